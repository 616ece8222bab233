"""Embedding tables and sets of them, as TorchRec describes them, and what cost models need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, label, one_of, shown, whole_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.reuse import HISTOGRAM_BINS, assumed_histogram

Pooling = Literal["sum", "mean", "none"]
DataType = Literal["fp32", "fp16", "int8"]
OutputDtype = Literal["fp32", "fp16", "bf16"]
Optimizer = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]

MAX_ROWS = 2**40
MAX_DIM = 2**14
MAX_POOLING_FACTOR = 1e6
MAX_TABLES = 1_000_000


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sparse feature that looks a table up.

    name: unique within its table.
    pooling_factor: mean number of indices a sample (bag length), 0 … 1e6.
    """

    name: str
    pooling_factor: float

    def __post_init__(self) -> None:
        label(self.name, "feature name")
        finite_number(
            self.pooling_factor,
            f"feature {self.name!r}: pooling_factor",
            low=0.0,
            high=MAX_POOLING_FACTOR,
        )


class EmbeddingTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One embedding table.

    name: unique within a table set.
    num_embeddings: rows, 1 … 2^40.
    embedding_dim: columns, a multiple of 4, 4 … 16384.
    features: the features that look it up, at least one.
    pooling: "sum" or "mean" of a bag, or "none" for an unpooled sequence, which TorchRec has in an
        EmbeddingCollection.
    is_weighted: whether every index comes with a weight.
    reuse_histogram: fractions of the distinct indices of one batch by how often each occurs (see
        :mod:`neuroshard_fast.reuse`), 17 bins; None where unknown, and then it is assumed.
    data_type: element type of the weights.
    output_dtype: element type of the looked-up vectors that devices exchange.
    optimizer: the optimizer fused into the backward pass; its state takes memory.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    features: tuple[Feature, ...]
    pooling: Pooling = "sum"
    is_weighted: bool = False
    reuse_histogram: tuple[float, ...] | None = None
    data_type: DataType = "fp32"
    output_dtype: OutputDtype = "fp32"
    optimizer: Optimizer = "sgd"

    def __post_init__(self) -> None:
        label(self.name, "table name")
        where = f"table {self.name!r}"
        whole_number(self.num_embeddings, f"{where}: num_embeddings", low=1, high=MAX_ROWS)
        whole_number(self.embedding_dim, f"{where}: embedding_dim", low=4, high=MAX_DIM)
        if self.embedding_dim % 4:
            raise InputError(
                f"{where}: embedding_dim must be a multiple of 4, got {self.embedding_dim}"
            )
        if not isinstance(self.features, tuple) or not self.features:
            raise InputError(f"{where}: features must be a tuple of at least one Feature")
        if not all(isinstance(feature, Feature) for feature in self.features):
            raise InputError(f"{where}: features must hold Feature objects, got {self.features!r}")
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise InputError(f"{where}: feature names must be unique, got {', '.join(names)}")
        one_of(self.pooling, f"{where}: pooling", get_args(Pooling))
        one_of(self.data_type, f"{where}: data_type", get_args(DataType))
        one_of(self.output_dtype, f"{where}: output_dtype", get_args(OutputDtype))
        one_of(self.optimizer, f"{where}: optimizer", get_args(Optimizer))
        if not isinstance(self.is_weighted, bool):
            raise InputError(
                f"{where}: is_weighted must be true or false, got {self.is_weighted!r}"
            )
        if self.reuse_histogram is not None:
            _check_histogram(self.reuse_histogram, where)

    @property
    def pooling_factor(self) -> float:
        """Mean number of lookups a sample, over all features."""
        return sum(feature.pooling_factor for feature in self.features)

    def histogram(self, batch_size: int) -> tuple[float, ...]:
        """The reuse histogram; where none is known, the assumed one for ``batch_size`` samples."""
        if self.reuse_histogram is not None:
            return self.reuse_histogram
        return assumed_histogram(self.num_embeddings, batch_size * self.pooling_factor)


class TableSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A non-empty sequence of tables with unique names; shards are numbered in its order."""

    schema: Literal["neuroshard/tables/1"] = "neuroshard/tables/1"
    tables: Annotated[tuple[EmbeddingTable, ...], Meta(max_length=MAX_TABLES)]

    def __post_init__(self) -> None:
        if not isinstance(self.tables, tuple) or not self.tables:
            raise InputError(
                "tables: must be a tuple of at least one table (TableSet.of takes a list too), got "
                + shown(self.tables)
            )
        seen: set[str] = set()
        for index, table in enumerate(self.tables):
            if not isinstance(table, EmbeddingTable):
                raise InputError(f"tables[{index}] must be an EmbeddingTable, got {shown(table)}")
            if table.name in seen:
                raise InputError(
                    f"tables[{index}]: the name {table.name!r} is taken: names must be unique"
                )
            seen.add(table.name)

    def __len__(self) -> int:
        return len(self.tables)

    def __iter__(self) -> Iterator[EmbeddingTable]:
        return iter(self.tables)

    def __getitem__(self, index: int) -> EmbeddingTable:
        return self.tables[index]

    @classmethod
    def of(cls, tables: list[EmbeddingTable] | tuple[EmbeddingTable, ...]) -> TableSet:
        """A table set of the given tables."""
        return cls(tables=tuple(tables) if isinstance(tables, list) else tables)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableSet:
        """Read a table set from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table set as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)


def _check_histogram(histogram: tuple[float, ...], where: str) -> None:
    if not isinstance(histogram, tuple) or len(histogram) != HISTOGRAM_BINS:
        raise InputError(f"{where}: reuse_histogram must be a tuple of {HISTOGRAM_BINS} fractions")
    # Few histograms are wrong, and the names of their fractions take long to write.
    if not all(type(fraction) is float and 0.0 <= fraction <= 1.0 for fraction in histogram):
        for index, fraction in enumerate(histogram):
            finite_number(fraction, f"{where}: reuse_histogram[{index}]", low=0.0, high=1.0)
    total = sum(histogram)
    # Published files round each bin to five digits; a table that was never looked up has all zeros.
    if total != 0.0 and abs(total - 1.0) > 0.01:
        raise InputError(f"{where}: reuse_histogram must sum to 1 (or be all 0), got {total:g}")
