"""The loop: plan, measure, compare, train, until predicted and measured costs agree."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from neuroshard_fast import config
from neuroshard_fast.cost_data import CommunicationData, ComputeData, CostDataInfo
from neuroshard_fast.cost_models import CostModels, check_output
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SPLITTING, SearchOptions
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.planner import Planner
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.profile.backends import MeasuringBackendName, choose_compute_backend
from neuroshard_fast.profile.environment import MeasuringName, measured_info, simulated_info
from neuroshard_fast.profile.plan_rounds import PlanRound, settled_cost
from neuroshard_fast.profile.simulated import HARDWARE
from neuroshard_fast.refine.comparison import Comparison, compare
from neuroshard_fast.refine.controls import Speeds, draw_controls, interleaved
from neuroshard_fast.refine.measure import Step, measure_steps, simulate_plans
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.refine.samples import (
    PlanMeasurement,
    measured_plans,
    sample_folders,
    write_communication,
    write_compute,
)
from neuroshard_fast.refine.state import Cycle, RefineFolder, Settings, locked
from neuroshard_fast.refine.tasks import PlannedTasks, plan_tasks
from neuroshard_fast.stamps import utc_now
from neuroshard_fast.tables import TableSet

_PREDICTED = {
    "compute": "compute_ms",
    "forward": "forward_comm_ms",
    "backward": "backward_comm_ms",
}


@dataclass(frozen=True)
class Refinement:
    """What refining came to.

    cycles: all of them, those of earlier runs included.
    models: the refined ones; those that the last cycle compared, or, where that trained, its new ones,
        which nothing has been compared with yet.
    agrees: whether the last cycle's costs agreed, as the targets want.
    """

    cycles: tuple[Cycle, ...]
    models: CostModels
    agrees: bool


def refine(
    folder: str | os.PathLike[str],
    pool: TableSet,
    models: CostModels,
    options: RefineOptions,
    *,
    output: str | os.PathLike[str],
    training: PretrainOptions | None = None,
    on_cycle: Callable[[int, Cycle], None] | None = None,
) -> Refinement:
    """Refine ``models`` on plans that a search proposes with them.

    A cycle draws fresh tasks, plans them with the models so far, measures the plans and compares their
    costs with the predicted ones. Where these agree as the targets want, that is all. Else each
    device's lookups and each plan's all-to-alls become samples in ``folder``, new models are trained on
    all that it holds, and the next cycle begins.

    folder: cost data that ``models`` were trained on, as :func:`neuroshard_fast.pretrain.pretrain` takes
        it. Samples go to ``compute-plans_D_B`` and ``comm_D-plans_D_B`` in it, for D devices and batch
        size B, and the record of the cycles to ``refine-plans_D_B``; or with another label than
        ``plans_D_B``.
    pool: tables that tasks are drawn from.
    models: to begin with.
    output: file that the refined models are written to, after every cycle.
    training: options of the training; what kind of networks these are, ``models`` say.
    on_cycle: is called with the number and the record of every cycle of this run that was compared, and
        again once it was trained with.

    Killed and called again with the same arguments it goes on: what was measured stays. Targets, limits,
    ``output`` and ``training`` may change. InputError where others do, another process refines in
    ``folder``, or tasks cannot be planned or measured.
    """
    data = Path(folder)
    if not data.is_dir():
        raise InputError(f"{folder}: there is no such folder of cost data")
    most = options.tables_per_task[1]
    if most > len(pool):
        raise InputError(
            f"tables_per_task: the most is {most}, but there are only {len(pool)} tables to draw from"
        )
    file = check_output(output)
    with locked(data):
        loop = _Loop(data, pool, models, options, file.stem, training)
        begun = time.perf_counter()
        first = number = loop.number
        loop.models().save(file)
        while True:
            if not loop.is_compared(number):
                elapsed = time.perf_counter() - begun
                if not loop.may_begin(number, elapsed, is_first=number == first):
                    break
                loop.compare(number)
                if on_cycle is not None:
                    on_cycle(number, loop.cycles[-1])
            if loop.agrees(number):
                break
            loop.train(number)
            loop.models().save(file)
            if on_cycle is not None:
                on_cycle(number, loop.cycles[-1])
            number += 1
        return Refinement(loop.cycles, loop.models(), loop.agrees(len(loop.cycles)))


class _Loop:
    """The steps of cycles, counted from 1; each leaves what it has done on disk."""

    def __init__(
        self,
        data: Path,
        pool: TableSet,
        models: CostModels,
        options: RefineOptions,
        name: str,
        training: PretrainOptions | None,
    ) -> None:
        models.require_device_count(options.devices)
        models.require_batch_size(options.batch_size)
        self._data = data
        self._pool = pool
        self._start = models
        self._options = options
        self._name = name
        # Refined networks are of the kind that they begin as.
        self._training = dataclasses.replace(
            training or PretrainOptions(),
            features=models.info.feature_kind,
            communication="shared" if models.is_shared else "per-count",
            devices_per_node=models.info.devices_per_node or PretrainOptions().devices_per_node,
        )
        self._backend: MeasuringBackendName | None = None
        if options.hardware is None:
            self._backend = choose_compute_backend(options.backend)
        self._sample_folders = sample_folders(data, options.devices, options.labelled)
        settings = Settings.of(pool, models, self._backend or "simulated", options)
        self._folder = RefineFolder(data, options.labelled, settings)
        for path in self._sample_folders:
            if path.exists() and not self.cycles:
                raise InputError(
                    f"{path}: holds samples of plans, but {self._folder.path} knows of no cycle that they "
                    "are from; remove it, or give another folder of cost data"
                )
        self._control_data = self._check_data()

    def _check_data(self) -> tuple[list[ComputeData], list[CommunicationData]]:
        """What controls can be drawn from.

        InputError where training would refuse the data with the new samples; now, not after measuring.
        """
        from neuroshard_fast.pretrain.run import read_cost_data

        data = read_cost_data(self._data, self._training)
        wanted = (
            ("simulated", "simulated") if self._backend is None else ("measured", self._backend)
        )
        for part in data.compute:
            info = part.info
            found = ("unknown", "unknown") if info is None else (info.source, info.backend)
            if found != wanted:
                raise InputError(
                    f"{self._data / part.name}: its costs are {found[0]} (backend {found[1]}), but those of "
                    f"plans would be {wanted[0]} (backend {wanted[1]}); they cannot be trained on together"
                )
        batch_size = self._options.batch_size
        pool = {
            (table.num_embeddings, table.pooling_factor, table.histogram(batch_size)): table.name
            for table in self._pool
        }
        for part in data.held_out:
            for table in part.tables:
                identity = (table.num_embeddings, table.pooling_factor, table.reuse_histogram)
                if identity in pool:
                    raise InputError(
                        f"{self._data / part.name}: holds table {pool[identity]!r}, which tasks would be "
                        "drawn from: held-out tables must stay unseen; draw from others"
                    )
        return (
            [part for part in data.compute if self._is_control(part)],
            [
                part
                for part in data.communication
                if self._is_control(part) and part.dims.shape[1] == self._options.devices
            ],
        )

    def _is_control(self, part: ComputeData | CommunicationData) -> bool:
        """Whether samples of ``part`` tell how fast this machine is."""
        info = part.info
        return (
            info is not None
            and info.batch_size == self._options.batch_size
            and info.source == "measured"
            and info.drawn_from == "random"
        )

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """Those compared so far, of all runs."""
        return self._folder.state.cycles

    @property
    def number(self) -> int:
        """The cycle to go on with."""
        return sum(cycle.is_trained for cycle in self.cycles) + 1

    def models(self) -> CostModels:
        """Those of the cycle to go on with."""
        if self.number == 1:
            return self._start
        return CostModels.load(self._folder.models_file(self.number - 1))

    def is_compared(self, number: int) -> bool:
        """Whether the plans of a cycle have been measured and compared."""
        return number <= len(self.cycles)

    def agrees(self, number: int) -> bool:
        """Whether predicted and measured costs of a cycle agreed; not where there is no such cycle."""
        if number > len(self.cycles):
            return False
        options = self._options
        proposed = self.cycles[number - 1].proposed
        return proposed.is_within(options.target_bias, options.target_mape)

    def may_begin(self, number: int, elapsed: float, *, is_first: bool) -> bool:
        """Whether there may be a cycle of that number, and of that length, in this run."""
        options = self._options
        if options.cycles is not None and number > options.cycles:
            return False
        if options.budget_seconds is None or is_first:
            return True
        return elapsed + self.cycles[-1].seconds <= options.budget_seconds

    def compare(self, number: int) -> None:
        """Plan the tasks of a cycle, measure the plans, and record how well their costs agree."""
        begun = time.perf_counter()
        planned = self._planned(number)
        plans = planned.plans()
        measured, speeds = self._measured(number, planned)
        rounds = [plan.rounds for plan in measured]
        lookup_speed, transfer_speed = speeds.of_cycle()
        proposed = [k for k, plan in enumerate(plans) if plan.algorithm in SPLITTING]
        others = [k for k in range(len(plans)) if k not in proposed]
        cycle = Cycle(
            proposed=_compare_costs(plans, rounds, proposed),
            settled=compare(
                [plans[k].cost_ms for k in proposed], [[settled_cost(rounds[k])] for k in proposed]
            ),
            **{
                part: _compare_parts(plans, rounds, proposed, part)
                for part in ("compute", "forward", "backward")
            },
            baselines=_compare_costs(plans, rounds, others) if others else None,
            lookup_speed=lookup_speed,
            transfer_speed=transfer_speed,
            date=utc_now(),
            seconds=time.perf_counter() - begun,
            is_trained=False,
        )
        self._folder.save_cycle(number, cycle)

    def train(self, number: int) -> None:
        """Make samples of all cycles up to this one, and train the models of the next on all data."""
        from neuroshard_fast.pretrain import pretrain

        begun = time.perf_counter()
        plans = [
            plan
            for cycle in range(1, number + 1)
            for plan in self._measured(cycle, self._planned(cycle))[0]
        ]
        compute, communication = self._sample_folders
        write_compute(compute, self._compute_info(), plans)
        write_communication(communication, self._communication_info(), plans)
        models = pretrain(self._data, self._name, self._training)
        models.save(self._folder.models_file(number))
        compared = self.cycles[number - 1]
        seconds = compared.seconds + time.perf_counter() - begun
        self._folder.save_cycle(
            number, msgspec.structs.replace(compared, seconds=seconds, is_trained=True)
        )

    def _planned(self, number: int) -> PlannedTasks:
        """The plans of a cycle; made once, so that rounds always are of the same plans."""
        file = self._folder.cycle(number) / "plans.json"
        if not file.exists():
            controls = draw_controls(*self._control_data, self._options, number)
            planned = plan_tasks(
                Planner(self.models()), self._pool, self._options, number, controls
            )
            self._folder.begin()  # not before it is known that tasks can be planned
            config.save(file, planned)
        return PlannedTasks.load(file, self._options)

    def _measured(self, number: int, planned: PlannedTasks) -> tuple[list[PlanMeasurement], Speeds]:
        """The plans of a cycle as on a machine of the cost data's speed, and its speed in each round."""
        plans, controls = planned.placements(), planned.controls
        options = self._options
        if self._backend is None:
            assert options.hardware is not None  # noqa: S101 for the type checker
            rounds = simulate_plans(plans, options.hardware, options.batch_size)
            return measured_plans(plans, rounds), Speeds([], [])
        steps = [Step(placement) for placement in plans] + controls.steps(options.devices)
        order = interleaved(len(plans), len(steps) - len(plans))
        in_order = [steps[k] for k in order]
        folder = self._folder.cycle(number)
        rounds = measure_steps(folder, self._plans_info(), in_order, self._backend)
        in_order_measured = measured_plans([step.placement for step in in_order], rounds)
        by_step = dict(zip(order, in_order_measured, strict=True))
        measured = [by_step[k] for k in range(len(steps))]
        speeds = Speeds.of(controls, measured[len(plans) :], options.rounds)
        return speeds.undone(measured[: len(plans)]), speeds

    def _plans_info(self) -> CostDataInfo:
        """How plans are measured."""
        assert self._backend is not None  # noqa: S101 for the type checker
        return self._info(self._backend, world_size=self._options.devices)

    def _compute_info(self) -> CostDataInfo:
        most = self._options.tables_per_task[1] + SearchOptions().max_splits
        return self._info(
            self._backend,
            memory_bytes=self._options.memory_bytes,
            most_tables=most,
            data_type=",".join(sorted({table.data_type for table in self._pool})),
            optimizer=",".join(sorted({table.optimizer for table in self._pool})),
        )

    def _communication_info(self) -> CostDataInfo:
        backend: MeasuringName | None = None
        if self._backend is not None:
            from neuroshard_fast.profile.distributed import communication_backend

            backend = communication_backend()
        return self._info(backend, world_size=self._options.devices)

    def _info(self, backend: MeasuringName | None, **settings: Any) -> CostDataInfo:
        """backend: None where the costs are simulated."""
        options = self._options
        common = {"batch_size": options.batch_size, "seed": options.seed, "drawn_from": "plans"}
        if backend is None:
            assert options.hardware is not None  # noqa: S101 for the type checker
            description = HARDWARE[options.hardware].description
            return simulated_info(description, **common, **settings)
        return measured_info(backend, options.rounds, **common, **settings)


def _compare_costs(
    plans: list[ShardingPlan], rounds: list[list[PlanRound]], chosen: list[int]
) -> Comparison:
    return compare(
        [plans[k].cost_ms for k in chosen], [[each.cost_ms for each in rounds[k]] for k in chosen]
    )


def _compare_parts(
    plans: list[ShardingPlan], rounds: list[list[PlanRound]], chosen: list[int], part: str
) -> Comparison:
    """Of one part of the cost, on every device that has it."""
    predicted: list[float] = []
    measured: list[list[float]] = []
    for k in chosen:
        for load in plans[k].devices:
            if load.num_shards or part != "compute":
                predicted.append(getattr(load, _PREDICTED[part]))
                measured.append([getattr(each, f"{part}_ms")[load.device] for each in rounds[k]])
    return compare(predicted, measured)
