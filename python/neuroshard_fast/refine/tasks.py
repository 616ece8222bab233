"""The tasks of a cycle and the plans of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from neuroshard_fast import config
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.errors import InfeasiblePlanError, InputError
from neuroshard_fast.examples import draw_task
from neuroshard_fast.options import SPLITTING, SearchOptions
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.planner import Planner
from neuroshard_fast.profile.plan_rounds import Placement
from neuroshard_fast.profile.sampling import augmented_dims
from neuroshard_fast.refine.controls import Controls
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.tables import TableSet

_GREEDY = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
_MOST_DRAWS = 100


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task and its plans: the first is that of the search."""

    tables: TableSet
    plans: tuple[ShardingPlan, ...]


class PlannedTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cycle measures."""

    schema: Literal["neuroshard/refine-plans/1"] = "neuroshard/refine-plans/1"
    tasks: tuple[PlannedTask, ...]
    controls: Controls = Controls()

    @classmethod
    def load(cls, path: Path, options: RefineOptions) -> PlannedTasks:
        """Read what a cycle saved; InputError where it is not of ``options``."""
        planned = config.load(path, cls)
        if len(planned.tasks) != options.tasks_per_cycle:
            raise InputError(
                f"{path}: tasks: {options.tasks_per_cycle} wanted, got {len(planned.tasks)}"
            )
        for number, task in enumerate(planned.tasks):
            where = f"{path}: tasks[{number}]"
            if not task.plans or task.plans[0].algorithm not in SPLITTING:
                raise InputError(
                    f"{where}: the first plan must be of algorithm {' or '.join(map(repr, SPLITTING))}"
                )
            for index, plan in enumerate(task.plans):
                if (plan.world_size, plan.batch_size) != (options.devices, options.batch_size):
                    raise InputError(
                        f"{where}: plans[{index}]: must be for {options.devices} devices and batch size "
                        f"{options.batch_size}"
                    )
                try:
                    plan.tables_by_device(task.tables)
                except InputError as error:
                    raise InputError(f"{where}: plans[{index}]: {error}") from error
        planned.controls.require_devices(options.devices, f"{path}: controls")
        return planned

    def plans(self) -> list[ShardingPlan]:
        """Those of all tasks in turn."""
        return [plan for task in self.tasks for plan in task.plans]

    def placements(self) -> list[Placement]:
        """The tables of each device, for each of :meth:`plans`."""
        return [plan.tables_by_device(task.tables) for task in self.tasks for plan in task.plans]


def plan_tasks(
    planner: Planner,
    pool: TableSet,
    options: RefineOptions,
    cycle: int,
    controls: Controls,
) -> PlannedTasks:
    """Draw the tasks of ``cycle`` and plan them: with the search, and with greedy baselines."""
    return PlannedTasks(
        tasks=tuple(
            _planned_task(planner, pool, options, cycle, task)
            for task in range(options.tasks_per_cycle)
        ),
        controls=controls,
    )


def _planned_task(
    planner: Planner, pool: TableSet, options: RefineOptions, cycle: int, task: int
) -> PlannedTask:
    """One that can be planned: others are drawn again."""
    cluster = Cluster(
        world_size=options.devices,
        memory_bytes=options.memory_bytes,
        batch_size=options.batch_size,
    )
    dims = options.dims or augmented_dims(pool)
    why = ""
    for draw in range(_MOST_DRAWS):
        generator = np.random.default_rng([options.seed, cycle, task, draw])
        tables = draw_task(pool, options.tables_per_task, dims, generator)
        try:
            plans = [planner.plan(tables, cluster)]
        except InfeasiblePlanError as error:
            why = why or str(error)
            continue
        for algorithm in generator.permutation(_GREEDY)[: options.baselines].tolist():
            baseline = msgspec.convert({"algorithm": algorithm}, SearchOptions)
            try:
                plans.append(planner.plan(tables, cluster, baseline))
            except InfeasiblePlanError:  # it splits no table, and heeds no memory
                continue
        return PlannedTask(tables=tables, plans=tuple(plans))
    raise InputError(
        f"none of {_MOST_DRAWS} tasks drawn can be planned: give more memory, fewer tables_per_task or "
        f"smaller dims; of the first: {why}"
    )
