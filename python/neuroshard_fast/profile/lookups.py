"""The batch of lookups that a table is measured with: always the same for the same table."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuroshard_fast.reuse import draw_indices
from neuroshard_fast.tables import EmbeddingTable


@dataclass(frozen=True)
class Lookups:
    """Bags of one batch of a table, feature by feature.

    indices: row indices, int64 [lookups].
    ends: end of every bag in ``indices``, int64 [features * batch_size]; bag lengths of a feature
        differ by at most one.
    """

    indices: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


class LookupCache:
    """Draws the lookups of a table from its reuse histogram, once for all its widths."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._drawn: dict[tuple[object, ...], Lookups] = {}

    def of_table(self, table: EmbeddingTable) -> Lookups:
        """The lookups of ``table``; they depend on its rows, histogram and pooling factors."""
        factors = tuple(feature.pooling_factor for feature in table.features)
        histogram = table.histogram(self.batch_size)
        key = (table.num_embeddings, factors, histogram)
        if key not in self._drawn:
            self._drawn[key] = self._draw(table.num_embeddings, factors, histogram)
        return self._drawn[key]

    def _draw(self, rows: int, factors: tuple[float, ...], histogram: tuple[float, ...]) -> Lookups:
        ends, total = [], 0
        for factor in factors:
            lookups = round(self.batch_size * factor)
            bags = np.arange(1, self.batch_size + 1, dtype=np.int64)
            ends.append(total + bags * lookups // self.batch_size)
            total += lookups
        seed = zlib.crc32(repr((rows, factors, histogram)).encode())
        indices = draw_indices(rows, total, histogram, np.random.default_rng(seed))
        return Lookups(indices, np.concatenate(ends))


def join(lookups: Sequence[Lookups]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices [lookups] and offsets [bags + 1] of several tables as one flat batch."""
    offsets, total = [np.zeros(1, np.int64)], 0
    for item in lookups:
        offsets.append(total + item.ends)
        total += item.indices.size
    return np.concatenate([item.indices for item in lookups]), np.concatenate(offsets)
