"""How fast the machine is just now, from samples of the cost data that are measured again.

The speed of a machine that is shared with others drifts, all costs together. What cost models can learn
are costs at one speed: that of the cost data.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from neuroshard_fast.checks import finite_number
from neuroshard_fast.cost_data import ComputeData
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.plan_rounds import Placement
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.refine.samples import PlanMeasurement
from neuroshard_fast.tables import TableSet

CONTROLS = 12
"""Of a cycle; each is a sample for every device."""


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample of the cost data for each device, and its costs there, ms."""

    tables: tuple[TableSet, ...]
    costs_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        for cost in self.costs_ms:
            finite_number(cost, "costs_ms", low=1e-9, high=1e12)

    @property
    def placement(self) -> Placement:
        """As plans have it."""
        return [list(tables) for tables in self.tables]


def draw_controls(
    parts: Sequence[ComputeData], options: RefineOptions, cycle: int
) -> tuple[Control, ...]:
    """CONTROLS of them, or as many as ``parts`` suffice for, of different samples that fit the devices."""
    # Beyond the tasks of the cycle, which are drawn from seeds like this one.
    generator = np.random.default_rng([options.seed, cycle, options.tasks_per_cycle, 0])
    samples = [(part, number) for part in parts for number in range(len(part.costs))]
    chosen: list[tuple[TableSet, float]] = []
    for index in generator.permutation(len(samples)).tolist():
        part, number = samples[index]
        tables = [part.tables[table] for table in part.samples[number]]
        needed = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
        if needed <= options.memory_bytes:
            chosen.append((TableSet.of(tables), float(part.costs[number])))
        if len(chosen) == CONTROLS * options.devices:
            break
    groups = [
        chosen[first : first + options.devices]
        for first in range(0, len(chosen) - options.devices + 1, options.devices)
    ]
    return tuple(
        Control(tables=tuple(tables for tables, _ in group), costs_ms=tuple(ms for _, ms in group))
        for group in groups
    )


def interleaved(plans: int, controls: int) -> list[int]:
    """``plans`` numbers from 0 on with ``controls`` more, from ``plans`` on, spread evenly among them."""
    places = [(number + 0.5) / plans for number in range(plans)]
    places += [(number + 0.5) / controls for number in range(controls)]
    return sorted(range(plans + controls), key=lambda number: places[number])


def round_speeds(
    controls: Sequence[Control], measured: Sequence[PlanMeasurement], rounds: int
) -> list[float]:
    """The speed of each round against that of the cost data: below 1 everything takes longer.

    measured: the controls, each with ``rounds`` of every measurement of it.
    """
    ratios: list[list[float]] = [[] for _ in range(rounds)]
    for control, measurement in zip(controls, measured, strict=True):
        for again in measurement.measurements:
            for number, each in enumerate(again):
                for before, now in zip(control.costs_ms, each.compute_ms, strict=True):
                    ratios[number].append(before / now)
    return [statistics.median(of_round) for of_round in ratios]
