"""Cost data made of measured plans: what each device looks up, and the all-to-alls between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neuroshard_fast import config, published
from neuroshard_fast.cost_data import (
    COMPUTE_FOLDER,
    CostDataInfo,
    communication_folder,
    labelled,
)
from neuroshard_fast.features import output_dims
from neuroshard_fast.profile.log import measured_line, start_folder
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound, median_round
from neuroshard_fast.published import PublishedTable
from neuroshard_fast.refine.measure import REPEAT_EVERY


@dataclass(frozen=True)
class PlanMeasurement:
    """What a plan places on each device, and its rounds.

    is_repeated: whether it was measured twice, by every other round.
    """

    placement: Placement
    rounds: list[PlanRound]
    is_repeated: bool

    @property
    def measurements(self) -> list[list[PlanRound]]:
        """The rounds of its only measurement, or those of the first and of the second."""
        return [self.rounds[::2], self.rounds[1::2]] if self.is_repeated else [self.rounds]

    def at_speeds(self, lookups: Sequence[float], transfers: Sequence[float]) -> PlanMeasurement:
        """What it would have measured on a machine of speed 1, not of these speeds in each round."""
        each = 2 if self.is_repeated else 1
        rounds = [
            round_.at_speeds(lookups[number // each], transfers[number // each])
            for number, round_ in enumerate(self.rounds)
        ]
        return PlanMeasurement(self.placement, rounds, self.is_repeated)


def measured_plans(
    placements: Sequence[Placement], rounds: Sequence[list[PlanRound]]
) -> list[PlanMeasurement]:
    """The plans of one cycle."""
    return [
        PlanMeasurement(placement, each, number % REPEAT_EVERY == 0 and len(each) > 1)
        for number, (placement, each) in enumerate(zip(placements, rounds, strict=True))
    ]


def sample_folders(data: Path, devices: int, label: str) -> tuple[Path, Path]:
    """Where the samples of plans lie: those of lookups, and those of all-to-alls."""
    compute = data / labelled(COMPUTE_FOLDER, label)
    return compute, data / labelled(communication_folder(devices), label)


def write_compute(folder: Path, info: CostDataInfo, plans: Sequence[PlanMeasurement]) -> None:
    """Write a sample for each device that holds tables, plan after plan.

    What the folder holds of the first plans stays as it is, number by number.
    """
    tables: dict[tuple[str, int], PublishedTable] = {}  # numbered as they first appear
    numbers: dict[tuple[str, int], int] = {}
    samples: list[tuple[list[int], float]] = []
    repeats: list[bytes] = []
    for plan in plans:
        medians = [median_round(rounds) for rounds in plan.measurements]
        for device, held in enumerate(plan.placement):
            if not held:
                continue
            ids = []
            for table in held:
                key = (table.name, table.embedding_dim)
                if key not in tables:
                    numbers[key] = len(tables)
                    tables[key] = PublishedTable.of(table, info.batch_size, with_data_type=True)
                ids.append(numbers[key])
            first, *second = (median.compute_ms[device] for median in medians)
            repeats += [measured_line(len(samples), [[again]]) for again in second]
            samples.append((ids, first))
    start_folder(folder, info, {})
    # In this order: samples that are there need the tables, and repeats the samples.
    published.write_table_configs(folder / "table_configs.json", list(tables.values()))
    published.write_compute_samples(folder / "data.txt", samples)
    config.write_atomically(folder / "repeats.txt", b"".join(repeats))


def write_communication(folder: Path, info: CostDataInfo, plans: Sequence[PlanMeasurement]) -> None:
    """Write a sample for each plan: medians of its starts and of what the devices took.

    Devices of a balanced plan start in another order in each round, so that its median starts are closer
    together than those of a round. Forward costs have the waiting of every round in them, and that is
    what such a plan costs.
    """
    samples = []
    repeats: list[bytes] = []
    for number, plan in enumerate(plans):
        starts = np.median([each.starts_ms for each in plan.measurements[0]], axis=0)
        starts -= starts.min()
        first, *second = (median_round(rounds) for rounds in plan.measurements)
        repeats += [
            measured_line(number, [again.forward_ms, again.backward_ms]) for again in second
        ]
        dims = output_dims(plan.placement)
        samples.append((dims, starts.tolist(), first.forward_ms, first.backward_ms))
    start_folder(folder, info, {})
    published.write_communication_samples(folder / "data.txt", samples)
    config.write_atomically(folder / "repeats.txt", b"".join(repeats))
