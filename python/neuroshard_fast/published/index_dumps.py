"""Index dumps of the public DLRM data: one batch of lookups, ``(indices, offsets, lengths)``.

``lengths`` is [tables, batch]; ``offsets`` has tables * batch + 1 entries. The bag of table ``t``
and sample ``b``, ``bag = t * batch + b``, is ``indices[offsets[bag]:offsets[bag + 1]]``. The files
take up to 13 GB, so they are mapped rather than read, and written one table at a time.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import whole_number
from neuroshard_fast.config import output_file
from neuroshard_fast.errors import InputError
from neuroshard_fast.progress import progress_bar
from neuroshard_fast.published.torch_files import import_torch, load_torch
from neuroshard_fast.reuse import measured_histogram
from neuroshard_fast.tables import MAX_DIM, MAX_TABLES, EmbeddingTable, Feature, TableSet

Item = TypeVar("Item")
Ints = npt.NDArray[np.int64]

MIN_ROWS = 100
"""Rows of a table of which only smaller indices, or none, were looked up."""

_COPY_BYTES = 16 * 2**20
_PARTS = ("indices", "offsets", "lengths")


def read_index_dump(path: str | os.PathLike[str], *, dim: int, progress: bool = True) -> TableSet:
    """The tables of an index dump, ``.pt`` or ``.pt.gz``, with measured pooling factors and reuse.

    Tables are named by their ids; rows are the largest index + 1, at least 100. The dump does not
    tell the dims: all tables get ``dim``. A ``.gz`` file is unpacked to a temporary file in TMPDIR.
    InputError where the three tensors do not fit together.
    """
    whole_number(dim, "dim", low=4, high=MAX_DIM)
    import_torch(path)  # before anything is unpacked
    with _unpacked(path, progress) as unpacked:
        loaded = load_torch(unpacked, source=path, mmap=_is_zip(unpacked))
        indices, offsets, lengths = _arrays(loaded, path)
        batch_size = lengths.shape[1]
        tables = []
        for table, table_lengths in enumerate(_tracked(lengths, len(lengths), progress)):
            bounds = offsets[table * batch_size : (table + 1) * batch_size + 1]
            if (
                bounds.min() < 0
                or bounds.max() > indices.size
                or table_lengths.min() < 0
                or not np.array_equal(np.diff(bounds), table_lengths)
            ):
                raise InputError(f"{path}: offsets and lengths of table {table} do not agree")
            tables.append(
                _table(indices[bounds[0] : bounds[-1]], table, dim, batch_size, str(path))
            )
        return TableSet.of(tables)


def write_index_dump(
    path: str | os.PathLike[str],
    tables: Iterable[tuple[Ints, Ints]],
    *,
    num_tables: int,
    progress: bool = True,
) -> None:
    """Write a dump, ``.pt`` or, by its name, gzipped.

    tables: ``num_tables`` pairs of indices, shape [lookups], and bag lengths, shape [batch]. They
    are taken one at a time and put by in files beside ``path``: the disk must hold them twice.
    """
    torch = import_torch(path)
    target = output_file(path)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            sizes = _write_parts(Path(folder), _tracked(tables, num_tables, progress))
            indices, offsets, lengths = (
                torch.from_file(
                    str(Path(folder) / part), shared=False, size=size, dtype=torch.int64
                )
                for part, size in zip(_PARTS, sizes, strict=True)
            )
            dump = (indices, offsets, lengths.view(num_tables, -1))
            finished = Path(folder) / "dump"
            if Path(path).suffix == ".gz":
                with gzip.open(finished, "wb", compresslevel=1) as file:
                    torch.save(dump, file)
            else:
                torch.save(dump, finished)
            finished.replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    except RuntimeError as error:  # of torch, where the disk is full
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: cannot be written: {reason}") from error


def _write_parts(folder: Path, tables: Iterable[tuple[Ints, Ints]]) -> tuple[int, int, int]:
    """Write the three parts, raw; how many numbers each has."""
    num_indices, num_bags = 0, 0
    with contextlib.ExitStack() as stack:
        indices_file, offsets_file, lengths_file = (
            stack.enter_context((folder / part).open("wb")) for part in _PARTS
        )
        np.zeros(1, np.int64).tofile(offsets_file)
        for indices, lengths in tables:
            indices.tofile(indices_file)
            (num_indices + np.cumsum(lengths)).tofile(offsets_file)
            lengths.tofile(lengths_file)
            num_indices += indices.size
            num_bags += lengths.size
    return num_indices, num_bags + 1, num_bags


def _table(indices: Ints, table: int, dim: int, batch_size: int, path: str) -> EmbeddingTable:
    if indices.size and indices.min() < 0:
        raise InputError(f"{path}: indices of table {table} must not be negative")
    largest = int(indices.max()) if indices.size else 0
    try:
        return EmbeddingTable(
            name=str(table),
            num_embeddings=max(MIN_ROWS, largest + 1),
            embedding_dim=dim,
            features=(Feature(name=str(table), pooling_factor=indices.size / batch_size),),
            reuse_histogram=measured_histogram(indices),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _arrays(loaded: Any, path: str | os.PathLike[str]) -> list[Ints]:
    """Indices, offsets and lengths as arrays that share the tensors' memory."""
    import torch

    if not isinstance(loaded, (tuple, list)) or len(loaded) != len(_PARTS):
        raise InputError(f"{path}: must hold a tuple ({', '.join(_PARTS)})")
    for name, tensor, dimensions in zip(_PARTS, loaded, (1, 1, 2), strict=True):
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.dtype not in (torch.int32, torch.int64)
            or tensor.layout != torch.strided
            or tensor.is_meta
            or not tensor.is_contiguous()
            or tensor.dim() != dimensions
        ):
            raise InputError(
                f"{path}: {name} must be a contiguous tensor of int32 or int64 with {dimensions}"
                " dimension(s)"
            )
    indices, offsets, lengths = (tensor.numpy() for tensor in loaded)
    if not lengths.size or len(lengths) > MAX_TABLES:
        raise InputError(
            f"{path}: lengths must be [tables, batch], with 1 to {MAX_TABLES} tables and at least"
            f" one sample, got {list(lengths.shape)}"
        )
    if offsets.size != lengths.size + 1:
        raise InputError(
            f"{path}: offsets must have {lengths.size + 1} entries, one more than lengths,"
            f" has {offsets.size}"
        )
    if offsets[0] != 0 or offsets[-1] != indices.size:
        raise InputError(
            f"{path}: offsets must go from 0 to the number of indices, {indices.size},"
            f" but go from {offsets[0]} to {offsets[-1]}"
        )
    return [indices, offsets, lengths]


@contextlib.contextmanager
def _unpacked(path: str | os.PathLike[str], progress: bool) -> Iterator[Path]:
    """``path`` itself, or for ``.gz`` a temporary file with its contents."""
    if Path(path).suffix != ".gz":
        yield Path(path)
        return
    with tempfile.NamedTemporaryFile(suffix=".pt") as unpacked:
        try:
            packed_bytes = Path(path).stat().st_size
            with (
                Path(path).open("rb") as packed,
                gzip.open(packed) as stream,
                progress_bar(packed_bytes, "unpacked", unit="B", disable=not progress) as bar,
            ):
                while chunk := stream.read(_COPY_BYTES):
                    unpacked.write(chunk)
                    bar.update(packed.tell() - bar.n)
            unpacked.flush()
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked: {error}") from error
        yield Path(unpacked.name)


def _is_zip(path: Path) -> bool:
    """Whether ``path`` is of the newer kind of torch.save, the only one that can be mapped."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _tracked(items: Iterable[Item], total: int, progress: bool) -> Iterator[Item]:
    with progress_bar(total, "index dump", unit="table", disable=not progress) as bar:
        for item in items:
            yield item
            bar.update()
