"""What the cost networks see of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neuroshard_fast.reuse import HISTOGRAM_BINS
from neuroshard_fast.tables import EmbeddingTable, OutputDtype, TableSet

_NAMES = [*(f"bin_{k}" for k in range(HISTOGRAM_BINS)), "dim", "pooling_factor", "row"]

PUBLISHED_FEATURES: tuple[str, ...] = tuple(sorted(_NAMES))
"""Names of the published compute features, in the order in which they sort as strings."""

_PUBLISHED_ORDER = [_NAMES.index(name) for name in PUBLISHED_FEATURES]

DIM_COLUMN = PUBLISHED_FEATURES.index("dim")

OUTPUT_BYTES: dict[OutputDtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of an element of the vectors that devices exchange."""


class ShardFeatures(NamedTuple):
    """Features of tables as functions of a shard's width ``w``, which planning varies:
    ``features + features_per_column * w + features_per_doubling * log2(w)``.

    features, features_per_column: [tables, features]; features_per_doubling: [features]. All fp32.
    """

    features: npt.NDArray[np.float32]
    features_per_column: npt.NDArray[np.float32]
    features_per_doubling: npt.NDArray[np.float32]

    @classmethod
    def with_width(cls, features: npt.NDArray[np.float32], column: int) -> ShardFeatures:
        """``features``, but for ``column``, which is the width itself; else the width changes nothing."""
        fixed, per_column = features.copy(), np.zeros_like(features)
        fixed[:, column], per_column[:, column] = 0.0, 1.0
        return cls(fixed, per_column, np.zeros(features.shape[1], np.float32))


def compute_features(tables: TableSet, batch_size: int) -> npt.NDArray[np.float32]:
    """Features of the unsplit tables, shape [tables, 20], columns as in PUBLISHED_FEATURES."""
    rows = [
        (
            *table.histogram(batch_size),
            table.embedding_dim,
            table.pooling_factor,
            table.num_embeddings,
        )
        for table in tables
    ]
    return np.array(rows, float)[:, _PUBLISHED_ORDER].astype(np.float32)


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
