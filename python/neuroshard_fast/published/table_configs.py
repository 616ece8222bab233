"""``table_configs.json``: rows, pooling factor, reuse histogram and perhaps dim of every table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, one_of, whole_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.reuse import HISTOGRAM_BINS
from neuroshard_fast.tables import (
    MAX_DIM,
    MAX_POOLING_FACTOR,
    MAX_ROWS,
    DataType,
    EmbeddingTable,
    Feature,
    Pooling,
    TableSet,
)

_MAX_FEATURES = 10_000
_BINS = tuple(f"bin_{k}" for k in range(HISTOGRAM_BINS))


@dataclass(frozen=True)
class PublishedTable:
    """One entry: rows, mean pooling factor, reuse histogram (17 bins), and dim or None.

    Published files say no more. Where a table is more than they know of, an entry also has

    data_type: of the weights; None where it is not said;
    features: how many look it up;
    is_pooled: whether a bag gives one vector, and not a sequence of them.
    """

    rows: int
    pooling_factor: float
    reuse_histogram: tuple[float, ...]
    dim: int | None = None
    data_type: DataType | None = None
    features: int = 1
    is_pooled: bool = True

    @classmethod
    def of(
        cls, table: EmbeddingTable, batch_size: int, *, with_data_type: bool = False
    ) -> PublishedTable:
        """``table`` as published tables are described, its histogram that of ``batch_size`` samples."""
        return cls(
            rows=table.num_embeddings,
            pooling_factor=table.pooling_factor,
            reuse_histogram=table.histogram(batch_size),
            dim=table.embedding_dim,
            data_type=table.data_type if with_data_type else None,
            features=len(table.features),
            is_pooled=table.pooling != "none",
        )

    def with_dim(self, dim: int, name: str) -> EmbeddingTable:
        """The table with ``dim`` columns: SGD and, if nothing is said, one pooled feature and fp32, as
        the published code has it."""
        share = self.pooling_factor / self.features
        names = [name, *(f"{name}_{k}" for k in range(1, self.features))]
        return EmbeddingTable(
            name=name,
            num_embeddings=self.rows,
            embedding_dim=dim,
            features=tuple(Feature(name=each, pooling_factor=share) for each in names),
            pooling="sum" if self.is_pooled else "none",
            reuse_histogram=self.reuse_histogram,
            data_type=self.data_type or "fp32",
        )


@dataclass(frozen=True)
class PublishedTables:
    """The entries of a ``table_configs.json``, by id; ``path`` is where they come from."""

    path: str
    tables: tuple[PublishedTable, ...]

    def __len__(self) -> int:
        return len(self.tables)

    def __iter__(self) -> Iterator[PublishedTable]:
        return iter(self.tables)

    def __getitem__(self, index: int) -> PublishedTable:
        return self.tables[index]

    def table_set(self, dim: int | None = None) -> TableSet:
        """All tables, named by their ids; ``dim`` is for those whose dim is not fixed."""
        tables = []
        for index, table in enumerate(self.tables):
            table_dim = table.dim if table.dim is not None else dim
            if table_dim is None:
                raise InputError(
                    f"{self.path}: [{index}] has no dim: give one for all tables, or a task file"
                )
            tables.append(table.with_dim(table_dim, str(index)))
        return TableSet.of(tables)


def read_table_configs(path: str | os.PathLike[str]) -> PublishedTables:
    """Read a ``table_configs.json``; InputError names the entry and the field."""
    entries = config.load(path, list[dict[str, Any]])
    if not entries:
        raise InputError(f"{path}: no tables")
    return PublishedTables(
        str(path), tuple(_table(entry, f"{path}: [{k}]") for k, entry in enumerate(entries))
    )


def encode_table_configs(tables: Sequence[PublishedTable]) -> bytes:
    """The contents of a ``table_configs.json``."""
    entries = []
    for table in tables:
        entry: dict[str, int | float | str] = {
            "row": table.rows,
            "pooling_factor": table.pooling_factor,
            **dict(zip(_BINS, table.reuse_histogram, strict=True)),
        }
        if table.dim is not None:
            entry["dim"] = table.dim
        if table.data_type is not None:
            entry["data_type"] = table.data_type
        if table.features > 1:
            entry["features"] = table.features
        if not table.is_pooled:
            entry["pooling"] = "none"
        entries.append(config.encode(entry))
    return b"[\n" + b",\n".join(entries) + b"\n]\n"


def write_table_configs(path: str | os.PathLike[str], tables: Sequence[PublishedTable]) -> None:
    """Write a ``table_configs.json``."""
    config.write_atomically(path, encode_table_configs(tables))


def _table(entry: dict[str, Any], where: str) -> PublishedTable:
    missing = [field for field in ("row", "pooling_factor", *_BINS) if field not in entry]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    try:
        table = PublishedTable(
            rows=whole_number(entry["row"], "row", low=1, high=MAX_ROWS),
            pooling_factor=finite_number(
                entry["pooling_factor"], "pooling_factor", low=0.0, high=MAX_POOLING_FACTOR
            ),
            reuse_histogram=tuple(
                finite_number(entry[name], name, low=0.0, high=1.0) for name in _BINS
            ),
            dim=None
            if entry.get("dim") is None
            else whole_number(entry["dim"], "dim", low=4, high=MAX_DIM),
            data_type=None
            if entry.get("data_type") is None
            else cast(DataType, one_of(entry["data_type"], "data_type", get_args(DataType))),
            features=whole_number(entry.get("features", 1), "features", low=1, high=_MAX_FEATURES),
            is_pooled=one_of(entry.get("pooling", "sum"), "pooling", get_args(Pooling)) != "none",
        )
        table.with_dim(table.dim or 4, "table")  # checks the rest: sum of the bins, multiple of 4
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return table
