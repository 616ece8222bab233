"""Reuse histograms: how often the distinct indices of one batch occur.

Bin ``k`` of a histogram is the fraction of the distinct indices whose count in the batch lies in
(0, 1], (1, 2], (2, 4], (4, 8], …, (16384, 32768], and above 32768 in the last: 17 bins. Source: the
published NeuroShard features (arXiv:2305.01868).
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

HISTOGRAM_BINS = 17
ASSUMED_ZIPF_EXPONENT = 1.05
"""Exponent of the Zipf law that stands in where a table's index frequencies are unknown."""

# 1, 2, 4, …, 32768; the last bin has no upper edge
_UPPER_EDGES = 2 ** np.arange(HISTOGRAM_BINS - 1)
_LOW_COUNT = np.append(1, _UPPER_EDGES + 1)
_HIGH_COUNT = np.append(_UPPER_EDGES, 2 * _UPPER_EDGES[-1])
_EXACT_RANKS = 256
_BUCKETS_PER_OCTAVE = 8
_EXACT_EDGE = 32


def measured_histogram(indices: npt.NDArray[np.integer]) -> tuple[float, ...]:
    """The reuse histogram of the indices of one batch, shape [lookups]; all zeros for none."""
    return histogram_of_counts(np.unique(indices, return_counts=True)[1])


def histogram_of_counts(counts: npt.NDArray[np.integer]) -> tuple[float, ...]:
    """The reuse histogram where each distinct index's count is known, shape [distinct]."""
    if counts.size == 0:
        return (0.0,) * HISTOGRAM_BINS
    bins = np.searchsorted(_UPPER_EDGES, counts, side="left")
    return tuple((np.bincount(bins, minlength=HISTOGRAM_BINS) / counts.size).tolist())


def assumed_histogram(num_embeddings: int, lookups: float) -> tuple[float, ...]:
    """The histogram that stands in where nothing is known: draws from a Zipf law of exponent 1.05."""
    return expected_histogram(num_embeddings, lookups, ASSUMED_ZIPF_EXPONENT)


@functools.lru_cache(maxsize=65536)
def expected_histogram(num_embeddings: int, lookups: float, exponent: float) -> tuple[float, ...]:
    """The expected histogram of ``lookups`` draws from a Zipf law over the rows."""
    if lookups <= 0:
        return (0.0,) * HISTOGRAM_BINS
    weights, rows = _zipf_buckets(num_embeddings, exponent)
    below = _poisson_cdf(lookups * weights)  # [buckets, edges]
    none = np.exp(-lookups * weights)
    cumulative = rows @ np.clip(below - none[:, None], 0.0, None)
    occurring = float(rows @ -np.expm1(-lookups * weights))
    fractions = np.diff(np.append(cumulative, occurring), prepend=0.0) / occurring
    return tuple(np.clip(fractions, 0.0, 1.0).tolist())


def draw_indices(
    num_embeddings: int,
    lookups: int,
    histogram: tuple[float, ...],
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Random row indices, shape [lookups], whose reuse histogram follows ``histogram``.

    Every bin gets its share of the distinct indices, and counts lie within their bins as far as the
    total allows; which rows occur is uniform. Where the rows or the lookups are too few for the
    histogram, the largest counts give way.
    """
    if lookups == 0:
        return np.empty(0, np.int64)
    fractions = np.asarray(histogram, float)
    if fractions.sum() == 0:
        fractions = np.eye(HISTOGRAM_BINS)[0]
    fractions = fractions / fractions.sum()
    # Reuse falls off like a power law, also within a bin: its mean lies below the middle.
    mean_count = float(fractions @ (_LOW_COUNT + 0.4 * (_HIGH_COUNT - _LOW_COUNT)))
    wanted = max(1, min(num_embeddings, lookups, round(lookups / mean_count)))
    shares = np.round(np.cumsum(fractions) * wanted).astype(np.int64)
    bins = np.repeat(np.arange(HISTOGRAM_BINS), np.diff(shares, prepend=0))
    low, room = _LOW_COUNT[bins], (_HIGH_COUNT - _LOW_COUNT)[bins]
    fill = (lookups - low.sum()) / max(1, room.sum())
    # Where rows are missing (fill > 1), every one of them occurs more often.
    scale = lookups / (low + room).sum()
    counts = (low + room) * scale if fill > 1 else low + max(0.0, fill) * room
    # Round so that the total stays; where it is too small even for the low ends, cut the largest.
    ends = np.minimum(np.floor(np.cumsum(counts) + 0.5).astype(np.int64), lookups)
    ends[-1] = lookups
    rows = _distinct_rows(num_embeddings, wanted, generator)
    indices = np.repeat(rows, np.diff(ends, prepend=0))
    generator.shuffle(indices)
    return indices


def expected_reuse(
    num_embeddings: npt.NDArray[np.float64],
    lookups: npt.NDArray[np.float64],
    histograms: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Distinct indices in each bin and their mean count, as :func:`draw_indices` draws them.

    Takes rows and lookups of many tables, shape [tables], and their histograms, shape [tables, 17];
    both results have the shape of the histograms and are not rounded; distinct times count sums to
    the lookups.
    """
    totals = histograms.sum(axis=1, keepdims=True)
    unknown = np.eye(1, HISTOGRAM_BINS)
    fractions = np.where(totals > 0, histograms / np.where(totals > 0, totals, 1.0), unknown)
    mean_count = fractions @ (_LOW_COUNT + 0.4 * (_HIGH_COUNT - _LOW_COUNT))
    wanted = np.minimum(np.minimum(num_embeddings, lookups), np.maximum(1.0, lookups / mean_count))
    distinct = fractions * wanted[:, None]
    low = distinct @ _LOW_COUNT
    room = distinct @ (_HIGH_COUNT - _LOW_COUNT)
    fill = np.clip((lookups - low) / np.where(room > 0, room, 1.0), 0.0, 1.0)
    counts = _LOW_COUNT + fill[:, None] * (_HIGH_COUNT - _LOW_COUNT)
    total = (distinct * counts).sum(axis=1)
    scale = np.where(total > 0, lookups / np.where(total > 0, total, 1.0), 1.0)
    return distinct, counts * scale[:, None]


def _distinct_rows(
    num_embeddings: int, wanted: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    if wanted * 4 >= num_embeddings:
        return generator.permutation(num_embeddings)[:wanted].astype(np.int64)
    rows = np.unique(generator.integers(0, num_embeddings, size=wanted + wanted // 2 + 16))
    while rows.size < wanted:
        more = generator.integers(0, num_embeddings, size=wanted)
        rows = np.unique(np.concatenate([rows, more]))
    return generator.permutation(rows)[:wanted].astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _zipf_buckets(
    num_embeddings: int, exponent: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Probability of a row and number of rows in each bucket of ranks: the first 256 ranks alone,
    then 8 buckets an octave, each standing for its geometric middle."""
    exact = np.arange(1, min(num_embeddings, _EXACT_RANKS) + 1, dtype=float)
    ranks, rows = exact, np.ones_like(exact)
    if num_embeddings > _EXACT_RANKS:
        octaves = math.log2(num_embeddings / _EXACT_RANKS)
        edges = np.geomspace(
            _EXACT_RANKS + 0.5,
            num_embeddings + 0.5,
            max(2, math.ceil(octaves * _BUCKETS_PER_OCTAVE) + 1),
        )
        ranks = np.append(ranks, np.sqrt(edges[1:] * edges[:-1]))
        rows = np.append(rows, np.diff(edges))
    weights = ranks**-exponent
    return weights / (weights @ rows), rows


def _poisson_cdf(mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """P(count <= edge) for every mean and upper edge, shape [means, edges].

    Summed exactly up to 32, above by the Wilson-Hilferty normal approximation (error below 1e-3).
    """
    result = np.empty((mean.size, _UPPER_EDGES.size))
    term = np.exp(-mean)
    total = term.copy()
    for count in range(1, _EXACT_EDGE + 1):
        term = term * mean / count
        total += term
        if count & (count - 1) == 0:
            result[:, count.bit_length() - 1] = total
    above = _UPPER_EDGES > _EXACT_EDGE
    edges = _UPPER_EDGES[above] + 1.0
    ninth = 1.0 / (9.0 * edges)
    z = (np.cbrt(mean[:, None] / edges) - 1.0 + ninth) / np.sqrt(ninth)
    result[:, above] = 1.0 - _normal_cdf(z)
    return np.minimum(result, 1.0)


def _normal_cdf(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8; numpy has no vectorised erf.
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    upper = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * poly
    return np.where(z >= 0, 1.0 - upper, upper)
