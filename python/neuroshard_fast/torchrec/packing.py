"""Placing tables by memory alone: where the search finds nothing, and to see what would fit."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from neuroshard_fast.torchrec.question import Columns, Devices
from neuroshard_fast.torchrec.widths import bytes_on, joined, piece_counts, widths_for

_COLUMNS = 4


def pack(columns: Columns, room: Sequence[int]) -> Devices | None:
    """A placement within ``room`` bytes of each rank; None where none is found.

    The largest tables first, each to the rank with most room, or the least that holds it; tables that may be
    cut come after all others and fill what is left.
    """
    if not columns.dims:
        return [[] for _ in room]
    if min(room) < 0:
        return None
    for pieces in piece_counts(columns, len(room)):
        least, split = widths_for(columns, pieces)
        for tight in (False, True):
            devices = _pack(columns, least, split, room, tight)
            if devices is None:
                continue
            devices = joined(devices, columns, pieces)
            fits = zip(bytes_on(devices, columns), room, strict=True)
            if all(taken <= free for taken, free in fits):
                return devices
    return None


def _pack(
    columns: Columns, least: list[int], split: list[int], room: Sequence[int], tight: bool
) -> Devices | None:
    devices: Devices = [[] for _ in room]
    ranks = [(-free, rank) for rank, free in enumerate(room)]
    heapq.heapify(ranks)

    def size(table: int) -> int:
        return columns.bytes_of(table, columns.dims[table])

    def is_whole(table: int) -> bool:
        return not split[table] and 2 * max(least[table], _COLUMNS) > columns.dims[table]

    for table in sorted(range(len(columns.dims)), key=lambda k: (not is_whole(k), -size(k))):
        if _put(columns, table, columns.dims[table], ranks, devices, tight):
            continue
        if split[table]:
            count = columns.dims[table] // split[table]
            if not all(
                _put(columns, table, split[table], ranks, devices, tight) for _ in range(count)
            ):
                return None
        elif not _pour(columns, table, least[table], ranks, devices):
            return None
    return devices


def _put(
    columns: Columns,
    table: int,
    width: int,
    ranks: list[tuple[int, int]],
    devices: Devices,
    tight: bool,
) -> bool:
    """Put one shard on the rank with most room, or, ``tight``, with the least that holds it."""
    wanted = columns.bytes_of(table, width)
    if -ranks[0][0] < wanted:
        return False
    place = 0
    if tight:
        place = max(
            (k for k, (free, _) in enumerate(ranks) if -free >= wanted), key=lambda k: ranks[k]
        )
    free, rank = ranks[place]
    devices[rank].append((table, width))
    if place == 0:
        heapq.heapreplace(ranks, (free + wanted, rank))
    else:
        ranks[place] = (free + wanted, rank)
        heapq.heapify(ranks)
    return True


def _pour(
    columns: Columns,
    table: int,
    least: int,
    ranks: list[tuple[int, int]],
    devices: Devices,
) -> bool:
    """Fill the ranks with most room with the columns of one table, no shard narrower than ``least``."""
    least = max(least, _COLUMNS)
    left = columns.dims[table]
    taken: list[tuple[int, int]] = []
    per_column, fixed = columns.bytes_per_column[table], columns.bytes_fixed[table]
    while left:
        if not ranks:
            return False
        free, rank = heapq.heappop(ranks)
        width = left
        if per_column:
            width = min(left, max(0, -free - fixed) // per_column // _COLUMNS * _COLUMNS)
        if 0 < left - width < least:
            width = (left - least) // _COLUMNS * _COLUMNS
        if width < least or columns.bytes_of(table, width) > -free:
            return False
        devices[rank].append((table, width))
        taken.append((free + columns.bytes_of(table, width), rank))
        left -= width
    for entry in taken:
        heapq.heappush(ranks, entry)
    return True
