"""What the cost networks see of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from neuroshard_fast.memory import WEIGHT_BYTES
from neuroshard_fast.reuse import HISTOGRAM_BINS, expected_reuse
from neuroshard_fast.tables import EmbeddingTable, OutputDtype, TableSet

F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
FeatureKind = Literal["physical", "published"]

_BINS = tuple(f"bin_{k}" for k in range(HISTOGRAM_BINS))
_NAMES = (*_BINS, "dim", "pooling_factor", "row")

PUBLISHED_FEATURES: tuple[str, ...] = tuple(sorted(_NAMES))
"""Names of the published compute features, in the order in which they sort as strings."""

_PUBLISHED_ORDER = [_NAMES.index(name) for name in PUBLISHED_FEATURES]
DIM_COLUMN = PUBLISHED_FEATURES.index("dim")

PHYSICAL_FEATURES: tuple[str, ...] = (
    # what a batch costs at least, each in proportion
    *("lookups_1e6", "read_gb", "distinct_rows_1e6", "distinct_gb", "output_gb"),
    # log2
    *("log_rows", "log_width", "log_pooling_factor", "log_lookups", "log_distinct_rows"),
    *("log_reuse", "log_read_bytes", "log_distinct_bytes", "log_table_bytes"),
    *("log_batch_size", "log_element_bytes", "log_output_columns"),
    *_BINS,
)
"""Names of the compute features that hold for any batch size and data type (docs/cost-models.md)."""

FEATURE_NAMES: dict[FeatureKind, tuple[str, ...]] = {
    "physical": PHYSICAL_FEATURES,
    "published": PUBLISHED_FEATURES,
}

OUTPUT_BYTES: dict[OutputDtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of an element of the vectors that devices exchange."""

_LEAST_POOLING_FACTOR = 2.0**-6  # in logarithms: below, a table is hardly looked up


class ShardFeatures(NamedTuple):
    """Features of tables as functions of a shard's width ``w``, which planning varies:
    ``features + features_per_column * w + features_per_doubling * log2(w)``.

    features, features_per_column: [tables, features]; features_per_doubling: [features]. All fp32.
    """

    features: F32
    features_per_column: F32
    features_per_doubling: F32

    @classmethod
    def with_width(cls, features: F32, column: int) -> ShardFeatures:
        """``features``, but for ``column``, which is the width itself; else the width changes nothing."""
        fixed, per_column = features.copy(), np.zeros_like(features)
        fixed[:, column], per_column[:, column] = 0.0, 1.0
        return cls(fixed, per_column, np.zeros(features.shape[1], np.float32))

    def of_width(self, widths: Floats) -> F32:
        """The features of shards of these ``widths``, [tables], one of each table."""
        varying = self.features_per_doubling * np.log2(widths)[:, None]
        of_columns = self.features_per_column * widths[:, None]
        return np.asarray(self.features + of_columns + varying, np.float32)


class Lookups(NamedTuple):
    """What a batch looks up in each table; all [tables].

    rows: of the table. lookups: of all its features. distinct: rows among them that differ.
    outputs: vectors that come out. histograms: of the lookups, [tables, bins].
    """

    rows: Floats
    lookups: Floats
    distinct: Floats
    outputs: Floats
    histograms: Floats


def shard_features(kind: FeatureKind, tables: TableSet, batch_size: int) -> ShardFeatures:
    """The features of the shards of ``tables``, named :data:`FEATURE_NAMES` of ``kind``."""
    if kind == "physical":
        return _physical(tables, batch_size)
    rows = [
        (
            *table.histogram(batch_size),
            table.embedding_dim,
            table.pooling_factor,
            table.num_embeddings,
        )
        for table in tables
    ]
    features = np.array(rows, float)[:, _PUBLISHED_ORDER].astype(np.float32)
    return ShardFeatures.with_width(features, DIM_COLUMN)


def compute_features(kind: FeatureKind, tables: TableSet, batch_size: int) -> F32:
    """Features of the unsplit tables, [tables, features]."""
    widths = np.array([table.embedding_dim for table in tables], float)
    return shard_features(kind, tables, batch_size).of_width(widths)


def batch_lookups(tables: TableSet, batch_size: int) -> Lookups:
    """What a batch of ``batch_size`` samples looks up in each of ``tables``."""
    rows = np.array([table.num_embeddings for table in tables], float)
    lookups = batch_size * np.array([table.pooling_factor for table in tables])
    histograms = np.array([table.histogram(batch_size) for table in tables])
    distinct = expected_reuse(rows, lookups, histograms)[0].sum(axis=1)
    features = np.array([len(table.features) for table in tables], float)
    pooled = np.array([table.pooling != "none" for table in tables])
    outputs = np.where(pooled, batch_size * features, lookups)
    return Lookups(rows, lookups, distinct, outputs, histograms)


def _physical(tables: TableSet, batch_size: int) -> ShardFeatures:
    rows, lookups, distinct, outputs, histograms = batch_lookups(tables, batch_size)
    element = np.array([WEIGHT_BYTES[table.data_type] for table in tables], float)
    pooling_factor = np.maximum(lookups / batch_size, _LEAST_POOLING_FACTOR)
    # One more of each lets tables be that are not looked up.
    log_lookups, log_distinct = np.log2(lookups + 1.0), np.log2(distinct + 1.0)
    log_element = np.log2(element)
    zero = np.zeros(len(tables))
    fixed = {
        "lookups_1e6": lookups / 1e6,
        "distinct_rows_1e6": distinct / 1e6,
        "log_rows": np.log2(rows),
        "log_width": zero,
        "log_pooling_factor": np.log2(pooling_factor),
        "log_lookups": log_lookups,
        "log_distinct_rows": log_distinct,
        "log_reuse": log_lookups - log_distinct,
        "log_read_bytes": log_lookups + log_element,
        "log_distinct_bytes": log_distinct + log_element,
        "log_table_bytes": np.log2(rows) + log_element,
        "log_batch_size": np.full(len(tables), np.log2(batch_size)),
        "log_element_bytes": log_element,
        "log_output_columns": np.log2(outputs + 1.0),
        **dict(zip(_BINS, histograms.T, strict=True)),
    }
    per_column = {
        "read_gb": lookups * element / 1e9,
        "distinct_gb": distinct * element / 1e9,
        "output_gb": outputs * 4 / 1e9,
    }
    doubling = ("log_width", "log_read_bytes", "log_distinct_bytes", "log_table_bytes")
    return ShardFeatures(
        np.stack([fixed.get(name, zero) for name in PHYSICAL_FEATURES], 1).astype(np.float32),
        np.stack([per_column.get(name, zero) for name in PHYSICAL_FEATURES], 1).astype(np.float32),
        np.array(
            [name in (*doubling, "log_output_columns") for name in PHYSICAL_FEATURES], np.float32
        ),
    )


def output_width(table: EmbeddingTable) -> float:
    """What a device sends for each column of a shard of ``table``, in fp32 numbers a sample.

    Pooled: one vector a feature. Unpooled: one a lookup. Half-precision output counts half.
    """
    vectors = len(table.features) if table.pooling != "none" else table.pooling_factor
    return vectors * OUTPUT_BYTES[table.output_dtype] / 4


def output_dims(devices: Iterable[Sequence[EmbeddingTable]]) -> list[float]:
    """What each device sends, in fp32 numbers a sample; ``devices`` are the tables that each holds."""
    return [
        sum(table.embedding_dim * output_width(table) for table in tables) for tables in devices
    ]
