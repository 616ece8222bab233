"""Widths of column shards that a whole collection has in common, and shards joined on their ranks.

TorchRec sizes the output of an EmbeddingCollection by the first column shard that it meets, so all column
shards of one collection must have one width.
"""

from __future__ import annotations

from collections import defaultdict

from neuroshard_fast.torchrec.question import Columns, Devices

_COLUMNS = 4  # the width of every shard is a multiple of this


def piece_counts(columns: Columns, most: int) -> list[int]:
    """Into how many pieces tables of collections may be cut, ``most`` at most; 1 first: none is."""
    dims = {
        dim for dim, number in zip(columns.dims, columns.collections, strict=True) if number >= 0
    }
    return [
        1,
        *(
            count
            for count in range(2, most + 1)
            if any(_piece_width(dim, count) is not None for dim in dims)
        ),
    ]


def widths_for(columns: Columns, pieces: int) -> tuple[list[int], list[int]]:
    """Least and split widths for the engine where collections are cut into ``pieces``, if at all.

    A collection whose dim has no so many pieces is cut into as many as it has below that.
    """
    least, split = list(columns.least_widths), [0] * len(columns.dims)
    blocked = set()
    for table, number in enumerate(columns.collections):
        width = _piece_width(columns.dims[table], _own_pieces(columns.dims[table], pieces))
        # Left whole, such a table would be a column shard of another width.
        stays = width is None or columns.least_widths[table] > width
        if columns.whole_is_columns[table] and stays:
            blocked.add(number)
    for table, number in enumerate(columns.collections):
        if number < 0:
            continue
        width = _piece_width(columns.dims[table], _own_pieces(columns.dims[table], pieces))
        if width is None or number in blocked or columns.least_widths[table] > width:
            least[table] = columns.dims[table]
        else:
            split[table] = width
    return least, split


def joined(devices: Devices, columns: Columns, pieces: int) -> Devices:
    """The same columns on the same ranks in as few shards as TorchRec takes.

    Those of a pooled table are joined into one. In a collection, which is cut into ``pieces``, a table whose
    columns all lie on one rank becomes whole, or stays in pieces where whole it would be a wider column shard
    than the others.
    """
    held: list[dict[int, int]] = []
    for shards in devices:
        widths: dict[int, int] = defaultdict(int)
        for table, width in shards:
            widths[table] += width
        held.append(widths)
    cut = {
        columns.collections[table]
        for widths in held
        for table, width in widths.items()
        if width < columns.dims[table]
    }
    found: Devices = []
    for widths in held:
        shards = []
        for table, width in widths.items():
            number, dim = columns.collections[table], columns.dims[table]
            whole_among_cut = columns.whole_is_columns[table] and number in cut and width == dim
            if number >= 0 and (width < dim or whole_among_cut):
                piece = dim // _own_pieces(dim, pieces)
                shards += [(table, piece)] * (width // piece)
            else:
                shards.append((table, width))
        found.append(shards)
    return found


def bytes_on(devices: Devices, columns: Columns) -> list[int]:
    """Memory of the searched tables on each rank."""
    return [sum(columns.bytes_of(table, width) for table, width in shards) for shards in devices]


def _own_pieces(dim: int, pieces: int) -> int:
    """Into how many pieces, ``pieces`` at most, a table of ``dim`` columns can be cut; 1 where it cannot."""
    return next(count for count in range(pieces, 0, -1) if count == 1 or _piece_width(dim, count))


def _piece_width(dim: int, pieces: int) -> int | None:
    """Columns of each of so many equal pieces; None where there are none, or just one."""
    width = dim // pieces
    return width if pieces > 1 and width * pieces == dim and width % _COLUMNS == 0 else None
