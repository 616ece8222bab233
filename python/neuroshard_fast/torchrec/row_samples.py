"""How often the rows of a table are looked up, in bounded memory however many rows there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from neuroshard_fast.reuse import histogram_of_counts

CAPACITY = 4096
"""Distinct rows that a sample keeps at most, in 64 KiB: estimates made of it are about 2% off."""

_WORD = 2**64
_STEP = 0x9E3779B97F4A7C15  # of the seeds of splitmix64, whose mixing is below


class RowSample:
    """Distinct rows of a stream of lookups, and how often each was looked up.

    Up to ``CAPACITY`` distinct rows are all kept. Of more, those are kept whose hash lies below a bound,
    which is halved whenever too many are: every row is as likely to be kept, whatever its count, and the
    counts of those kept are exact.

    level: halvings of the bound to begin with.
    salt: samples with another salt keep other rows.
    """

    def __init__(self, *, level: int = 0, salt: int = 0) -> None:
        self.level = level
        self.salt = salt
        # Replaced, never written to: copies of this object share them.
        self._hashes = np.empty(0, np.uint64)  # ascending
        self._counts = np.empty(0, np.int64)

    @property
    def distinct(self) -> float:
        """Estimated number of distinct rows; exact up to ``CAPACITY`` of them."""
        return float(self._hashes.size) * 2.0**self.level

    def by_bin(self) -> npt.NDArray[np.float64]:
        """Estimated distinct rows by how often they were looked up, in bins of a reuse histogram, [17]."""
        return self.distinct * np.array(histogram_of_counts(self._counts))

    def add(self, rows: npt.NDArray[np.integer]) -> None:
        """Count ``rows``, none below 0, shape [lookups]."""
        hashes = _hashes(rows, self.salt)
        if self.level:
            hashes = hashes[hashes <= self._last_hash()]
        self._join(*np.unique(hashes, return_counts=True))

    def merge(self, other: RowSample) -> None:
        """Count what ``other``, of the same salt, has counted."""
        if other.salt != self.salt:
            raise ValueError(f"samples of salts {self.salt} and {other.salt} cannot be merged")
        self.level = max(self.level, other.level)
        self._join(other._hashes, other._counts)

    def _join(self, hashes: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]) -> None:
        joined, place = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        totals = np.bincount(place, np.concatenate([self._counts, counts]), minlength=joined.size)
        while (kept := int(np.searchsorted(joined, self._last_hash(), side="right"))) > CAPACITY:
            self.level += 1
        self._hashes = joined[:kept].copy()  # a slice alone would keep all of it in memory
        self._counts = totals[:kept].astype(np.int64)

    def _last_hash(self) -> np.uint64:
        """The largest hash that is kept."""
        return np.uint64((_WORD >> self.level) - 1)


def _hashes(rows: npt.NDArray[np.integer], salt: int) -> npt.NDArray[np.uint64]:
    """Hashes of ``rows``, spread over 64 bits; no two rows have the same."""
    mixed = rows.astype(np.uint64) + np.uint64((salt + 1) * _STEP % _WORD)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
