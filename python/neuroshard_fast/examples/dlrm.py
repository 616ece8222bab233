"""Synthetic tables and index dumps with the totals of Meta's public DLRM data, 2021 and 2022.

Every table gets its exact number of lookups and of distinct indices first, so that the totals hold
by construction at any scale; indices that have them are drawn afterwards, one table at a time.
Totals: https://github.com/facebookresearch/dlrm_datasets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import MAX_SEED, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE
from neuroshard_fast.errors import InputError
from neuroshard_fast.published.index_dumps import MIN_ROWS, write_index_dump
from neuroshard_fast.reuse import histogram_of_counts
from neuroshard_fast.tables import MAX_ROWS, MAX_TABLES, EmbeddingTable, Feature, TableSet

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PublishedTotals:
    """What is published about one file of the data; distinct indices are counted table by table."""

    tables: int
    batch_size: int
    indices: int
    distinct: int


PUBLISHED_TOTALS = {
    2021: PublishedTotals(856, 65_536, 887_017_990, 128_435_723),
    2022: PublishedTotals(788, 131_072, 1_405_163_864, 110_259_238),
}

_PUBLISHED_ROWS = 30_000_000
_LARGEST_TO_SMALLEST = 3_000
_POOLING_FACTOR_SPREAD = 1.3  # standard deviation of the logarithm
_POOLING_FACTOR_RANGE = (0.25, 200.0)
_DIMS = (4, 8, 16, 32, 64, 128)
_BAG_LENGTH_SHAPE = 2.0  # of the gamma law behind the bag lengths


@dataclass(frozen=True)
class DlrmLike:
    """One batch of synthetic lookups: how many each table gets, to how many distinct rows.

    rows, lookups, distinct, dims: shape [tables].
    reuse_exponent: how fast the counts of a table's distinct indices fall off with rank, [tables].
    """

    batch_size: int
    seed: tuple[int, ...]
    rows: Ints
    dims: Ints
    lookups: Ints
    distinct: Ints
    reuse_exponent: Floats

    @classmethod
    def draw(
        cls,
        year: int,
        *,
        tables: int | None = None,
        batch_size: int | None = None,
        max_rows: int | None = None,
        seed: int = 0,
    ) -> DlrmLike:
        """Draw the tables; None takes the size of the published data.

        Mean pooling factor and share of distinct indices are the published ones at any size.
        InputError where the rows are too few for so many distinct indices.
        """
        if year not in PUBLISHED_TOTALS:
            raise InputError(f"year must be one of 2021, 2022, got {year!r}")
        published = PUBLISHED_TOTALS[year]
        count = published.tables if tables is None else tables
        batch = published.batch_size if batch_size is None else batch_size
        largest = _PUBLISHED_ROWS if max_rows is None else max_rows
        whole_number(count, "tables", low=1, high=MAX_TABLES)
        whole_number(batch, "batch_size", low=1, high=MAX_BATCH_SIZE)
        whole_number(largest, "max_rows", low=MIN_ROWS, high=MAX_ROWS)
        whole_number(seed, "seed", low=0, high=MAX_SEED)
        generator = np.random.default_rng([seed, year])

        lookups = _whole_lookups(published, count, batch, generator)
        smallest = max(MIN_ROWS, largest // _LARGEST_TO_SMALLEST)
        rows = np.geomspace(smallest, largest, 2 * count + 1)[1::2].round().astype(np.int64)
        generator.shuffle(rows)
        total_distinct = round(int(lookups.sum()) * published.distinct / published.indices)
        return cls(
            batch_size=batch,
            seed=(seed, year),
            rows=rows,
            dims=generator.choice(_DIMS, size=count),
            lookups=lookups,
            distinct=_whole_distinct(np.minimum(rows, lookups), total_distinct, generator),
            reuse_exponent=generator.uniform(0.3, 1.6, size=count),
        )

    def __len__(self) -> int:
        return int(self.rows.size)

    def counts(self, table: int) -> Ints:
        """How often each distinct index of ``table`` occurs, shape [distinct], descending."""
        distinct, lookups = int(self.distinct[table]), int(self.lookups[table])
        if distinct == 0:
            return np.zeros(0, np.int64)
        weights = np.arange(1, distinct + 1) ** -self.reuse_exponent[table]
        np.cumsum(weights, out=weights)
        ends = np.floor(weights * ((lookups - distinct) / weights[-1]) + 1e-6).astype(np.int64)
        ends[-1] = lookups - distinct
        return np.sort(1 + np.diff(ends, prepend=0))[::-1]

    def lengths(self, table: int) -> npt.NDArray[np.int64]:
        """Bag lengths of ``table``, shape [batch_size]; their sum is its lookups."""
        generator = np.random.default_rng([*self.seed, 1, table])
        weights = generator.gamma(_BAG_LENGTH_SHAPE, size=self.batch_size)
        return generator.multinomial(self.lookups[table], weights / weights.sum())

    def indices(self, table: int) -> Ints:
        """Row indices looked up in ``table``, shape [lookups]; its last row is among them."""
        generator = np.random.default_rng([*self.seed, 2, table])
        counts = self.counts(table)
        if counts.size == 0:
            return np.zeros(0, np.int64)
        last = int(self.rows[table]) - 1
        others = generator.choice(last, size=counts.size - 1, replace=False, shuffle=False)
        indices = np.repeat(np.append(others, last), generator.permutation(counts))
        generator.shuffle(indices)
        return indices

    def write_index_dump(self, path: str | os.PathLike[str], *, progress: bool = True) -> None:
        """Write the batch in the published format, ``.pt`` or ``.pt.gz``; needs torch."""
        write_index_dump(
            path,
            ((self.indices(table), self.lengths(table)) for table in range(len(self))),
            num_tables=len(self),
            progress=progress,
        )

    def table_set(self) -> TableSet:
        """The tables, with pooling factors and reuse histograms as measured on this batch."""
        return TableSet.of(
            [
                EmbeddingTable(
                    name=str(table),
                    num_embeddings=int(self.rows[table]),
                    embedding_dim=int(self.dims[table]),
                    features=(
                        Feature(
                            name=str(table),
                            pooling_factor=float(self.lookups[table] / self.batch_size),
                        ),
                    ),
                    reuse_histogram=histogram_of_counts(self.counts(table)),
                )
                for table in range(len(self))
            ]
        )


def dlrm_like(
    year: int,
    *,
    tables: int | None = None,
    batch_size: int | None = None,
    max_rows: int | None = None,
    seed: int = 0,
) -> TableSet:
    """A synthetic table set with the mean pooling factor and distinct share of a year's data.

    Pooling factors are skewed (0.25 to 200), rows spread evenly on a logarithmic scale up to
    ``max_rows``, dims 4 to 128. Reuse histograms are those of one batch of that size. None takes
    the published sizes.
    """
    drawn = DlrmLike.draw(year, tables=tables, batch_size=batch_size, max_rows=max_rows, seed=seed)
    return drawn.table_set()


def _whole_lookups(
    published: PublishedTotals, tables: int, batch_size: int, generator: np.random.Generator
) -> Ints:
    """Lookups of each table in a batch: log-normal pooling factors with the published mean, one
    from each equal share of the law, so that few tables are spread like many."""
    mean = published.indices / (published.tables * published.batch_size)
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((table + 0.5) / tables) for table in range(tables)])
    spread = np.exp(_POOLING_FACTOR_SPREAD * generator.permutation(scores))

    def pooling_factors(middle: float) -> Floats:
        return np.clip(middle * spread, *_POOLING_FACTOR_RANGE)

    middle = _bisect(lambda x: float(pooling_factors(x).mean()), mean, 0.0, 200.0)
    ends = np.floor(np.cumsum(pooling_factors(middle) * batch_size) + 0.5).astype(np.int64)
    ends[-1] = round(mean * tables * batch_size)
    return np.diff(ends, prepend=0)


def _whole_distinct(most: Ints, total: int, generator: np.random.Generator) -> Ints:
    """Distinct indices of each table: at least 1 where there are lookups, at most ``most``, and
    ``total`` together; shares of ``most`` vary widely from table to table."""
    least = np.minimum(most, 1)
    total = max(total, int(least.sum()))
    if total > most.sum():
        raise InputError(
            f"max_rows is too small: the tables can have {most.sum()} distinct indices at most, but"
            f" the published share needs {total}; raise max_rows or lower batch_size"
        )
    odds = np.exp(1.5 * generator.standard_normal(most.size))

    def shares(factor: float) -> Floats:
        return np.maximum(least, most * (factor * odds / (1.0 + factor * odds)))

    log_factor = _bisect(lambda x: float(shares(np.exp(x)).sum()), float(total), -40.0, 40.0)
    distinct = np.clip(np.floor(shares(np.exp(log_factor))).astype(np.int64), least, most)
    # Rounding down left a few over; the tables with the most room take them.
    left = total - int(distinct.sum())
    for table in np.argsort(distinct - most, kind="stable"):
        added = min(-(-left // most.size) if left > 0 else 0, int(most[table] - distinct[table]))
        distinct[table] += added
        left -= added
    return distinct


def _bisect(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where the increasing ``function`` reaches ``wanted`` between ``low`` and ``high``."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return high
