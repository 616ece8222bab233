"""Running many planning tasks against cost models, as the published benchmark does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import msgspec

from neuroshard_fast import _core
from neuroshard_fast.agreement import Agreement
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import CostModelsUsed
from neuroshard_fast.planner import Planner, SearchOutcome
from neuroshard_fast.profile.simulated import HARDWARE, score_devices
from neuroshard_fast.tables import TableSet


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``column_splits`` and ``shards`` are shard indices (docs/method.md); both are empty
    where nothing was found. A baseline's ``shards`` are given even where they break a cap.

    cost_ms: as the cost models predict it; None where infeasible.
    true_cost_ms: by the formula that made the data of simulated cost models; None where infeasible,
        and where it was not asked for.
    """

    feasible: bool
    cost_ms: float | None
    true_cost_ms: float | None
    column_splits: list[int]
    shards: list[list[int]]
    planning_ms: float


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """SIMULATED truth, over the feasible tasks; both None where there are none.

    hardware: the name of what is simulated, as in :data:`neuroshard_fast.profile.simulated.HARDWARE`.
    batch_size: that the formula was asked for.
    agreement: of predicted with true costs.
    """

    hardware: str
    batch_size: int
    mean_cost_ms: float | None
    agreement: Agreement | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Over all tasks; the mean cost is over the feasible ones, None where there are none.

    truth: None where it was not asked for.
    """

    tasks: int
    feasible: int
    mean_cost_ms: float | None
    median_planning_ms: float
    truth: Truth | None


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``neuroshard simulate --json`` writes."""

    algorithm: str
    devices: int
    memory_bytes: int
    threads: int
    cost_models: CostModelsUsed
    tasks: list[TaskResult]
    summary: Summary


def simulate(
    planner: Planner,
    tasks: Sequence[TableSet],
    cluster: Cluster,
    options: SearchOptions,
    *,
    truth: bool = False,
) -> SimulationReport:
    """Plan every task; the algorithm "random" draws each task with its own seed, counted up.

    truth: also score each plan by the formula that the data of simulated cost models came from;
        InputError where the cost models are none, or of hardware that is not known here.
    """
    info = planner.cost_models.info
    hardware = _simulated_hardware(planner) if truth else None
    batch_size = cluster.batch_size or info.batch_size
    results = []
    for number, tables in enumerate(tasks):
        started = time.perf_counter()
        seeded = msgspec.structs.replace(options, seed=options.seed + number)
        problem = planner.problem(tables, cluster, seeded)
        outcome = planner.search(tables, cluster, problem, seeded)
        planning_ms = (time.perf_counter() - started) * 1e3
        true_cost_ms = None
        if hardware is not None and outcome.result is not None:
            true_cost_ms = _true_cost(tables, problem, outcome, hardware, batch_size)
        results.append(
            TaskResult(
                feasible=outcome.result is not None,
                cost_ms=outcome.result.cost if outcome.result is not None else None,
                true_cost_ms=true_cost_ms,
                column_splits=outcome.column_splits,
                shards=outcome.placement or [],
                planning_ms=planning_ms,
            )
        )
    costs = [result.cost_ms for result in results if result.cost_ms is not None]
    true_costs = [result.true_cost_ms for result in results if result.true_cost_ms is not None]
    return SimulationReport(
        algorithm=options.algorithm,
        devices=cluster.world_size,
        memory_bytes=cluster.memory_bytes,
        threads=options.threads,
        cost_models=info.used(),
        tasks=results,
        summary=Summary(
            tasks=len(results),
            feasible=len(costs),
            mean_cost_ms=statistics.fmean(costs) if costs else None,
            median_planning_ms=statistics.median(result.planning_ms for result in results),
            truth=None
            if hardware is None
            else Truth(
                hardware=hardware,
                batch_size=batch_size,
                mean_cost_ms=statistics.fmean(true_costs) if true_costs else None,
                agreement=Agreement.of(costs, true_costs) if true_costs else None,
            ),
        ),
    )


def _simulated_hardware(planner: Planner) -> str:
    """The name in HARDWARE of what the cost models simulate."""
    info = planner.cost_models.info
    if info.source != "simulated":
        raise InputError(
            f"cost models {info.name!r} are {info.source}, so that the true cost of a plan is not "
            "known: take simulated ones, or measure plans with `neuroshard evaluate`"
        )
    for name, spec in HARDWARE.items():
        if spec.description == info.hardware:
            return name
    raise InputError(
        f"cost models {info.name!r} simulate {info.hardware!r}, of which no formula is known here; "
        f"known are {', '.join(HARDWARE)}"
    )


def _true_cost(
    tables: TableSet,
    problem: _core.Problem,
    outcome: SearchOutcome,
    hardware: str,
    batch_size: int,
) -> float:
    """Ms that the formula gives for the plan that was found."""
    shards = [
        msgspec.structs.replace(tables[table], embedding_dim=width)
        for table, _, width in _core.split_shards(problem, outcome.column_splits)
    ]
    placement = outcome.placement or []
    devices = [[shards[index] for index in indices] for indices in placement]
    return score_devices(devices, hardware, batch_size).cost_ms
