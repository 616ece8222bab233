"""The batch of lookups that a table is measured with: always the same for the same table."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuroshard_fast.reuse import draw_indices
from neuroshard_fast.tables import EmbeddingTable

_CACHE_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Lookups:
    """Bags of one batch of a table, feature by feature.

    indices: row indices, int64 [lookups].
    ends: end of every bag in ``indices``, int64 [features * batch_size]; bag lengths of a feature
        differ by at most one.
    """

    indices: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """Memory of both arrays."""
        return self.indices.nbytes + self.ends.nbytes


class LookupCache:
    """Draws the lookups of a table from its reuse histogram, once for all its widths.

    Keeps those used last, ``cache_bytes`` of them at most; others are drawn again, the same ones.
    """

    def __init__(self, batch_size: int, cache_bytes: int = _CACHE_BYTES) -> None:
        self.batch_size = batch_size
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[tuple[object, ...], Lookups] = OrderedDict()
        self._kept_bytes = 0

    def of_table(self, table: EmbeddingTable) -> Lookups:
        """The lookups of ``table``; they depend on its rows, histogram and pooling factors."""
        factors = tuple(feature.pooling_factor for feature in table.features)
        histogram = table.histogram(self.batch_size)
        key = (table.num_embeddings, factors, histogram)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        lookups = self._draw(table.num_embeddings, factors, histogram)
        self._kept[key] = lookups
        self._kept_bytes += lookups.num_bytes
        while self._kept_bytes > self._cache_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].num_bytes
        return lookups

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
