"""Tables of every kind, to profile with where the tables to be planned are not known."""

from __future__ import annotations

import math

import numpy as np

from neuroshard_fast.checks import MAX_SEED, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE
from neuroshard_fast.reuse import HISTOGRAM_BINS, expected_histogram
from neuroshard_fast.tables import MAX_TABLES, EmbeddingTable, Feature, TableSet

TABLES = 1500
BATCH_SIZE = 65536
MAX_ROWS = 2**32
_ROWS = (3, MAX_ROWS)
_POOLING_FACTORS = (0.1, 500.0)
_ZIPF_EXPONENTS = (0.3, 1.5)
"""From almost uniform to far more skewed than the 1.05 that is assumed where nothing is known."""
_SLOPES = (-0.5, 3.0)
"""Of other histograms: how many doublings a bin has fewer rows than the one before."""


def broad(
    *,
    tables: int = TABLES,
    batch_size: int = BATCH_SIZE,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
) -> TableSet:
    """Tables with rows and pooling factors spread evenly on logarithmic scales.

    Reuse histograms are, for every second table, those expected of ``batch_size`` samples from a Zipf law
    of random exponent; for the others they fall evenly from bin to bin, from the first that the rows suffice
    for up to a random one that the lookups suffice for.
    """
    whole_number(tables, "tables", low=1, high=MAX_TABLES)
    whole_number(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
    whole_number(max_rows, "max_rows", low=_ROWS[0], high=MAX_ROWS)
    whole_number(seed, "seed", low=0, high=MAX_SEED)
    generator = np.random.default_rng(seed)
    rows = np.exp(generator.uniform(np.log(_ROWS[0]), np.log(max_rows), tables)).astype(int)
    low, high = np.log(_POOLING_FACTORS)
    factors = np.exp(generator.uniform(low, high, tables)).round(2)
    exponents = generator.uniform(*_ZIPF_EXPONENTS, tables)
    slopes = generator.uniform(*_SLOPES, tables)
    last_bins = generator.random(tables)

    def histogram(index: int) -> tuple[float, ...]:
        lookups = batch_size * float(factors[index])
        if index % 2 == 0:
            return expected_histogram(int(rows[index]), lookups, float(exponents[index]))
        # So few rows occur at least so often, and none more often than there are lookups.
        first, last = (
            min(HISTOGRAM_BINS - 1, math.ceil(math.log2(max(count, 1.0))))
            for count in (lookups / int(rows[index]), lookups)
        )
        bins = np.arange(HISTOGRAM_BINS)
        fractions = 2.0 ** (-slopes[index] * bins)
        fractions[(bins < first) | (bins > first + last_bins[index] * (last - first))] = 0.0
        return tuple((fractions / fractions.sum()).tolist())

    return TableSet.of(
        [
            EmbeddingTable(
                name=f"table_{index}",
                num_embeddings=int(rows[index]),
                embedding_dim=64,
                features=(Feature(name=f"feature_{index}", pooling_factor=float(factors[index])),),
                reuse_histogram=histogram(index),
            )
            for index in range(tables)
        ]
    )
