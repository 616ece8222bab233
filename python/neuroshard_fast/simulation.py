"""Running many planning tasks against cost models, as the published benchmark does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import msgspec

from neuroshard_fast.cluster import Cluster
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import CostModelsUsed
from neuroshard_fast.planner import Planner
from neuroshard_fast.tables import TableSet


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``column_splits`` and ``shards`` are shard indices (docs/method.md); both are empty
    where nothing was found. A baseline's ``shards`` are given even where they break a cap."""

    feasible: bool
    cost_ms: float | None
    column_splits: list[int]
    shards: list[list[int]]
    planning_ms: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Over all tasks; the mean cost is over the feasible ones, None where there are none."""

    tasks: int
    feasible: int
    mean_cost_ms: float | None
    median_planning_ms: float


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
    planner: Planner, tasks: Sequence[TableSet], cluster: Cluster, options: SearchOptions
) -> SimulationReport:
    """Plan every task; the algorithm "random" draws each task with its own seed, counted up."""
    results = []
    for number, tables in enumerate(tasks):
        started = time.perf_counter()
        seeded = msgspec.structs.replace(options, seed=options.seed + number)
        problem = planner.problem(tables, cluster, seeded)
        outcome = planner.search(tables, cluster, problem, seeded)
        results.append(
            TaskResult(
                feasible=outcome.result is not None,
                cost_ms=outcome.result.cost if outcome.result is not None else None,
                column_splits=outcome.column_splits,
                shards=outcome.placement or [],
                planning_ms=(time.perf_counter() - started) * 1e3,
            )
        )
    costs = [result.cost_ms for result in results if result.cost_ms is not None]
    return SimulationReport(
        algorithm=options.algorithm,
        devices=cluster.world_size,
        memory_bytes=cluster.memory_bytes,
        threads=options.threads,
        cost_models=planner.cost_models.info.used(),
        tasks=results,
        summary=Summary(
            tasks=len(results),
            feasible=len(costs),
            mean_cost_ms=statistics.fmean(costs) if costs else None,
            median_planning_ms=statistics.median(result.planning_ms for result in results),
        ),
    )
