"""How far what tables look up now is from the statistics that a plan was made with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from neuroshard_fast.checks import finite_number, whole_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.reuse import expected_reuse
from neuroshard_fast.tables import EmbeddingTable, TableSet

_LEAST_POOLING_FACTOR = 0.01
"""Lookups a sample below which a change is no change."""
_LISTED = 20


class TableDrift(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a table, as planned with and now; factors are 1 or more, 1 for no change.

    samples: counted now.
    pooling_factor: planned with and now, lookups a sample over all features.
    pooling_change: the factor by which the pooling factor of one of its features changed at most.
    distinct_rows: planned with and now, distinct rows a step; None where no step was complete.
    distinct_change: the factor between them; None as above.
    reuse_change: the mean factor by which lookups a distinct row changed, as far as histograms tell; None
        as above.
    """

    table: str
    samples: int
    pooling_factor: tuple[float, float]
    pooling_change: float
    distinct_rows: tuple[float, float] | None = None
    distinct_change: float | None = None
    reuse_change: float | None = None

    @property
    def largest_change(self) -> float:
        """The largest of its factors."""
        return max(self.pooling_change, self.distinct_change or 1.0, self.reuse_change or 1.0)


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far tables have drifted; ``str`` of it is a report for people.

    threshold: a table has drifted where one of its factors is larger.
    tables: those judged, the largest change first.
    few_samples: tables with fewer samples than were asked for, and those not seen.
    not_planned: tables that the statistics planned with do not have.
    """

    threshold: float
    least_samples: int
    tables: tuple[TableDrift, ...]
    few_samples: tuple[str, ...]
    not_planned: tuple[str, ...]

    @property
    def drifted(self) -> tuple[str, ...]:
        """Tables whose largest change is above the threshold."""
        return tuple(t.table for t in self.tables if t.largest_change > self.threshold)

    def __str__(self) -> str:
        lines = [
            f"{len(self.drifted)} of {len(self.tables)} tables drifted: a change by more than a factor of "
            f"{self.threshold:g}"
        ]
        if self.tables:
            rows = [_row(table, self.threshold) for table in self.tables[:_LISTED]]
            headers = (
                *("table", "samples", "lookups a sample", "change"),
                *("distinct rows a step", "change", "lookups a row: change", ""),
            )
            lines += ["", tabulate(rows, headers, disable_numparse=True)]
        if len(self.tables) > _LISTED:
            lines.append(f"{len(self.tables) - _LISTED} more tables changed less")
        if self.few_samples:
            lines += ["", f"fewer than {self.least_samples:,} samples: {_names(self.few_samples)}"]
        if self.not_planned:
            lines += ["", f"not in the statistics planned with: {_names(self.not_planned)}"]
        return "\n".join(lines)


def compare(
    planned: TableSet,
    now: TableSet,
    *,
    samples: Mapping[str, int],
    step_samples: Mapping[str, float],
    threshold: float,
    least_samples: int,
) -> DriftReport:
    """Statistics ``planned`` with against those of ``now``.

    samples: of each table, also those that ``now`` does not have.
    step_samples: mean samples of a step, of tables whose reuse was counted.
    InputError where the two have no table in common.
    """
    finite_number(threshold, "threshold", low=1.0, high=1e6)
    whole_number(least_samples, "least_samples", low=1, high=2**62)
    then = {table.name: table for table in planned}
    current = {table.name: table for table in now}
    if not then.keys() & samples.keys():
        raise InputError("the statistics planned with have none of the tables that were counted")
    enough = [name for name in samples if name in current and samples[name] >= least_samples]
    tables = [
        _table_drift(then[name], current[name], samples[name], step_samples.get(name))
        for name in enough
        if name in then
    ]
    return DriftReport(
        threshold=threshold,
        least_samples=least_samples,
        tables=tuple(sorted(tables, key=lambda table: (-table.largest_change, table.table))),
        few_samples=tuple(sorted(samples.keys() - set(enough))),
        not_planned=tuple(sorted(samples.keys() - then.keys())),
    )


def _table_drift(
    then: EmbeddingTable, now: EmbeddingTable, samples: int, step_samples: float | None
) -> TableDrift:
    factors = {feature.name: feature.pooling_factor for feature in then.features}
    pooling_change = max(
        _change(factors.get(feature.name, 0.0), feature.pooling_factor, least=_LEAST_POOLING_FACTOR)
        for feature in now.features
    )
    drift = TableDrift(
        table=now.name,
        samples=samples,
        pooling_factor=(then.pooling_factor, now.pooling_factor),
        pooling_change=pooling_change,
    )
    if step_samples is None or now.reuse_histogram is None:
        return drift
    batch_size = max(1, round(step_samples))
    histograms = np.array([then.histogram(batch_size), now.reuse_histogram])
    lookups = step_samples * np.array([then.pooling_factor, now.pooling_factor])
    # Both by the formula that cost models go by, as a table set has no other figure.
    distinct = np.array([_distinct(now, *pair) for pair in zip(lookups, histograms, strict=True)])
    return msgspec.structs.replace(
        drift,
        distinct_rows=(float(distinct[0]), float(distinct[1])),
        distinct_change=_change(
            float(distinct[0]), float(distinct[1]), least=_LEAST_POOLING_FACTOR * step_samples
        ),
        reuse_change=_reuse_change(histograms),
    )


def _distinct(table: EmbeddingTable, lookups: float, histogram: npt.NDArray[np.float64]) -> float:
    """Distinct rows of a step, expected."""
    rows = np.array([float(table.num_embeddings)])
    distinct, _ = expected_reuse(rows, np.array([lookups]), histogram[None])
    return float(distinct.sum()) if lookups else 0.0


def _reuse_change(histograms: npt.NDArray[np.float64]) -> float:
    """How far counts have to move to make one histogram of the other, as a factor; shape [2, 17].

    A bin is a doubling of the count, and the distance of the histograms is that of earth movers.
    """
    totals = histograms.sum(axis=1)
    if not totals.all():
        return 1.0  # never looked up: the pooling factor tells
    then, now = np.cumsum(histograms / totals[:, None], axis=1)
    return float(2.0 ** np.abs(then - now).sum())


def _change(then: float, now: float, *, least: float) -> float:
    """The factor between two numbers, of which what lies below ``least`` counts as that."""
    low, high = sorted((max(then, least), max(now, least)))
    return high / low


def _row(drift: TableDrift, threshold: float) -> list[str]:
    distinct = drift.distinct_rows
    return [
        drift.table,
        f"{drift.samples:,}",
        f"{drift.pooling_factor[0]:.3g} → {drift.pooling_factor[1]:.3g}",
        f"{drift.pooling_change:.2f}×",
        f"{distinct[0]:,.0f} → {distinct[1]:,.0f}" if distinct else "–",
        f"{drift.distinct_change:.2f}×" if drift.distinct_change else "–",
        f"{drift.reuse_change:.2f}×" if drift.reuse_change else "–",
        "drifted" if drift.largest_change > threshold else "",
    ]


def _names(tables: tuple[str, ...]) -> str:
    listed = ", ".join(tables[:_LISTED])
    more = len(tables) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed
