"""How fast the machine is just now, from samples of the cost data that are measured again.

The speed of a machine that is shared with others drifts, lookups and all-to-alls each in their way. What
cost models can learn are costs at one speed: that of the cost data.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from neuroshard_fast.checks import finite_number
from neuroshard_fast.cost_data import CommunicationData, ComputeData
from neuroshard_fast.errors import InputError
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.sampling import AllToAll
from neuroshard_fast.refine.measure import Step
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.refine.samples import PlanMeasurement
from neuroshard_fast.tables import EmbeddingTable, TableSet

LOOKUPS = 12
"""Of a cycle; each is a sample for every device."""
TRANSFERS = 48
"""Of a cycle; all-to-alls repeat less well than lookups."""


class Lookups(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample of the cost data for each device, and its cost there, ms."""

    tables: tuple[TableSet, ...]
    costs_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        for cost in self.costs_ms:
            finite_number(cost, "costs_ms", low=1e-9, high=1e12)


class Transfers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An all-to-all of the cost data, and the backward costs of its devices there, ms."""

    all_to_all: AllToAll
    backward_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        for cost in self.backward_ms:
            finite_number(cost, "backward_ms", low=1e-9, high=1e12)


class Controls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of a cycle."""

    lookups: tuple[Lookups, ...] = ()
    transfers: tuple[Transfers, ...] = ()

    def require_devices(self, devices: int, where: str) -> None:
        """InputError unless all are for so many devices."""
        sizes = [size for each in self.lookups for size in (len(each.tables), len(each.costs_ms))]
        for each in self.transfers:
            fields = (each.all_to_all.dims, each.all_to_all.starts_ms, each.backward_ms)
            sizes += map(len, fields)
        if any(size != devices for size in sizes):
            raise InputError(f"{where}: must be for {devices} devices")

    def steps(self, devices: int) -> list[Step]:
        """What to measure: the lookups in turn, then the all-to-alls."""
        steps = [Step([list(tables) for tables in each.tables]) for each in self.lookups]
        nothing: list[list[EmbeddingTable]] = [[] for _ in range(devices)]
        return steps + [Step(nothing, each.all_to_all) for each in self.transfers]


@dataclass(frozen=True)
class Speeds:
    """Of the machine in each round against that of the cost data: below 1 everything takes longer.

    Empty where there is nothing to tell them by.
    """

    lookups: list[float]
    transfers: list[float]

    @classmethod
    def of(cls, controls: Controls, measured: Sequence[PlanMeasurement], rounds: int) -> Speeds:
        """From what the :meth:`Controls.steps` took, ``rounds`` of every measurement of each.

        Without all-to-alls, they are taken to be as slow as the lookups are, and the other way round.
        """
        count = len(controls.lookups)
        lookups: list[list[float]] = [[] for _ in range(rounds)]
        transfers: list[list[float]] = [[] for _ in range(rounds)]
        for lookup, measurement in zip(controls.lookups, measured[:count], strict=True):
            for again in measurement.measurements:
                for number, each in enumerate(again):
                    lookups[number] += _ratios(lookup.costs_ms, each.compute_ms)
        for transfer, measurement in zip(controls.transfers, measured[count:], strict=True):
            for again in measurement.measurements:
                for number, each in enumerate(again):
                    transfers[number] += _ratios(transfer.backward_ms, each.backward_ms)
        either = [a or b for a, b in zip(lookups, transfers, strict=True)]
        if not all(either):
            return cls([], [])
        return cls(
            *(
                [statistics.median(own or other) for own, other in zip(kind, either, strict=True)]
                for kind in (lookups, transfers)
            )
        )

    def of_cycle(self) -> tuple[float | None, float | None]:
        """Medians over the rounds, of lookups and of all-to-alls."""
        if not self.lookups:
            return None, None
        return statistics.median(self.lookups), statistics.median(self.transfers)

    def undone(self, plans: Sequence[PlanMeasurement]) -> list[PlanMeasurement]:
        """``plans`` as on a machine of speed 1."""
        if not self.lookups:
            return list(plans)
        return [plan.at_speeds(self.lookups, self.transfers) for plan in plans]


def draw_controls(
    compute: Sequence[ComputeData],
    communication: Sequence[CommunicationData],
    options: RefineOptions,
    cycle: int,
) -> Controls:
    """LOOKUPS and TRANSFERS of different samples, or as many as there are; lookups that fit the devices."""
    # Beyond the tasks of the cycle, which are drawn from seeds like this one.
    generator = np.random.default_rng([options.seed, cycle, options.tasks_per_cycle, 0])
    return Controls(
        lookups=_draw_lookups(compute, options, generator),
        transfers=_draw_transfers(communication, generator),
    )


def _draw_lookups(
    parts: Sequence[ComputeData], options: RefineOptions, generator: np.random.Generator
) -> tuple[Lookups, ...]:
    samples = [(part, number) for part in parts for number in range(len(part.costs))]
    chosen: list[tuple[TableSet, float]] = []
    for index in generator.permutation(len(samples)).tolist():
        part, number = samples[index]
        tables = [part.tables[table] for table in part.samples[number]]
        needed = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
        if needed <= options.memory_bytes:
            chosen.append((TableSet.of(tables), float(part.costs[number])))
        if len(chosen) == LOOKUPS * options.devices:
            break
    groups = [
        chosen[first : first + options.devices]
        for first in range(0, len(chosen) - options.devices + 1, options.devices)
    ]
    return tuple(
        Lookups(tables=tuple(tables for tables, _ in group), costs_ms=tuple(ms for _, ms in group))
        for group in groups
    )


def _draw_transfers(
    parts: Sequence[CommunicationData], generator: np.random.Generator
) -> tuple[Transfers, ...]:
    samples = [(part, number) for part in parts for number in range(len(part.dims))]
    chosen = generator.permutation(len(samples))[:TRANSFERS].tolist()
    return tuple(
        Transfers(
            all_to_all=AllToAll(
                tuple(part.dims[number].astype(int).tolist()), tuple(part.starts[number].tolist())
            ),
            backward_ms=tuple(part.backward[number].tolist()),
        )
        for part, number in (samples[index] for index in chosen)
    )


def interleaved(plans: int, others: int) -> list[int]:
    """``plans`` numbers from 0 on with ``others`` more, from ``plans`` on, spread evenly among them."""
    places = [(number + 0.5) / plans for number in range(plans)]
    places += [(number + 0.5) / others for number in range(others)]
    return sorted(range(plans + others), key=lambda number: places[number])


def _ratios(before: Sequence[float], now: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(before, now, strict=True)]
