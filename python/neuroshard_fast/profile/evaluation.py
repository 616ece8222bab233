"""Measuring what finished plans really cost.

Run as a module under torchrun this is the process of one device; its argument is the path of an
:class:`_Job`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import whole_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.profile.backends import (
    TIMED_ITERATIONS,
    MeasuringBackendName,
    check_tables,
    choose_compute_backend,
)
from neuroshard_fast.profile.environment import hardware_name
from neuroshard_fast.profile.host_memory import batch_bytes, check_host_memory, needed_bytes
from neuroshard_fast.profile.log import ROUNDS
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound, median_round
from neuroshard_fast.progress import progress_bar
from neuroshard_fast.tables import TableSet


class MeasuredLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cost of one device, ms: medians over the rounds."""

    device: int
    compute_ms: float
    forward_comm_ms: float
    backward_comm_ms: float


class MeasuredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cost of a plan.

    cost_ms: median over the rounds of the largest sum of compute, forward and backward, ms.
    lowest_ms, highest_ms: the cheapest and the dearest round.
    rounds_ms: the cost in each round.
    compute_cost_ms: median over the rounds of the largest compute, ms.
    """

    cost_ms: float
    lowest_ms: float
    highest_ms: float
    rounds_ms: tuple[float, ...]
    compute_cost_ms: float
    devices: tuple[MeasuredLoad, ...]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Measured costs of the plans of each problem, and what they were measured with."""

    schema: Literal["neuroshard/evaluation/1"] = "neuroshard/evaluation/1"
    hardware: str
    backend: str
    world_size: int
    batch_size: int
    rounds: int
    iterations: int
    problems: tuple[tuple[MeasuredPlan, ...], ...]


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """placements: tables of each device, for every plan of every problem."""

    placements: list[list[Placement]]
    backend: MeasuringBackendName
    batch_size: int
    rounds: int
    iterations: int
    output: str


def evaluate_plans(
    tables: TableSet,
    plans: Sequence[ShardingPlan],
    *,
    names: Sequence[str] | None = None,
    rounds: int = ROUNDS,
    iterations: int = TIMED_ITERATIONS,
    backend: str = "auto",
) -> Evaluation:
    """Measure ``plans`` of one table set; see :func:`evaluate_problems`."""
    return evaluate_problems(
        [(tables, plans)], names=names, rounds=rounds, iterations=iterations, backend=backend
    )


def evaluate_problems(
    problems: Sequence[tuple[TableSet, Sequence[ShardingPlan]]],
    *,
    names: Sequence[str] | None = None,
    rounds: int = ROUNDS,
    iterations: int = TIMED_ITERATIONS,
    backend: str = "auto",
) -> Evaluation:
    """Measure several plans for each of several table sets, with one process a device.

    Every round measures each plan of a problem once: the compute of one device after the other while the
    rest is idle, in turns of a few iterations, then the backward all-to-all, then the forward one with the
    devices starting when their measured compute and backward communication let them.

    problems: table sets, each with plans of it, all for as many devices and one batch size. They are
        measured at that batch size, also where their costs were predicted for another one.
    names: of all plans in turn, for errors, such as their files; by default ``plans[0]`` and so on.
    rounds: of each plan, interleaved with those of the other plans of the problem.
    iterations: timed iterations of lookups a round, of which the median is taken, and five times as many of
        all-to-alls.
    backend: of the compute: "auto", "fbgemm" or "embedding-bag".

    InputError where a plan does not belong to its tables, device counts or batch sizes differ, or this
    machine has too little memory.
    """
    whole_number(rounds, "rounds", low=1, high=10**6)
    whole_number(iterations, "iterations", low=1, high=10**6)
    all_plans = [plan for _, plans in problems for plan in plans]
    if not all_plans:
        raise InputError("plans: there is no plan to evaluate")
    if names is None:
        names = [f"plans[{k}]" for k in range(len(all_plans))]
    if len(names) != len(all_plans):
        raise InputError(f"names: one for each of {len(all_plans)} plans wanted, got {len(names)}")
    for field in ("world_size", "batch_size"):
        if len({getattr(plan, field) for plan in all_plans}) > 1:
            raise InputError(f"plans: all must have the same {field}")
    world_size = all_plans[0].world_size
    each_name = iter(names)
    placements = [
        [_placement(plan, tables, next(each_name)) for plan in plans] for tables, plans in problems
    ]
    name = choose_compute_backend(backend)
    batch_size = all_plans[0].batch_size
    require_measurable(name, [plan for plans in placements for plan in plans], batch_size)

    from neuroshard_fast.profile import distributed

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        job = _Job(
            placements=placements,
            backend=name,
            batch_size=batch_size,
            rounds=rounds,
            iterations=iterations,
            output=str(output),
        )
        job_file = Path(folder) / "job.json"
        config.save(job_file, job)
        distributed.launch(world_size, __name__, str(job_file))
        measured = config.load(output, list[list[MeasuredPlan]])
    return Evaluation(
        hardware=hardware_name(),
        backend=name,
        world_size=world_size,
        batch_size=batch_size,
        rounds=rounds,
        iterations=iterations,
        problems=tuple(map(tuple, measured)),
    )


def require_measurable(
    name: MeasuringBackendName, plans: Sequence[Placement], batch_size: int
) -> None:
    """InputError where this machine cannot measure all of ``plans``, at least one, with that backend."""
    check_tables(name, (table for plan in plans for tables in plan for table in tables))
    check_host_memory(
        sum(needed_bytes(name, sets) for sets in zip(*plans, strict=True))
        + max(sum(batch_bytes(tables, batch_size) for tables in plan) for plan in plans)
    )


def _placement(plan: ShardingPlan, tables: TableSet, name: str) -> Placement:
    try:
        return plan.tables_by_device(tables)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _work(job: _Job) -> None:
    """Measure as the process of one device; the first one writes the result."""
    import torch.distributed as dist

    from neuroshard_fast.profile.distributed import process_group
    from neuroshard_fast.profile.plan_timer import PlanTimer

    with process_group() as device:
        rank = dist.get_rank()
        timer = PlanTimer(
            device,
            job.backend,
            job.batch_size,
            sets=[plan[rank] for plans in job.placements for plan in plans],
            iterations=job.iterations,
        )
        results = []
        steps = job.rounds * sum(map(len, job.placements))
        with progress_bar(steps, "plans, round by round", disable=rank > 0) as progress:
            for plans in job.placements:
                rounds: list[list[PlanRound]] = [[] for _ in plans]
                for _ in range(job.rounds):
                    for measured, plan in zip(rounds, plans, strict=True):
                        measured.append(timer.measure(plan))
                        progress.update()
                results.append([_summary(measured) for measured in rounds])
        if rank == 0:
            config.save(job.output, results)


def _summary(rounds: list[PlanRound]) -> MeasuredPlan:
    costs = [each.cost_ms for each in rounds]
    middle = median_round(rounds)
    parts = zip(middle.compute_ms, middle.forward_ms, middle.backward_ms, strict=True)
    return MeasuredPlan(
        cost_ms=statistics.median(costs),
        lowest_ms=min(costs),
        highest_ms=max(costs),
        rounds_ms=tuple(costs),
        compute_cost_ms=statistics.median(max(each.compute_ms) for each in rounds),
        devices=tuple(
            MeasuredLoad(device=k, compute_ms=c, forward_comm_ms=f, backward_comm_ms=b)
            for k, (c, f, b) in enumerate(parts)
        ),
    )


if __name__ == "__main__":
    from neuroshard_fast.profile.distributed import run_worker

    run_worker(lambda: _work(config.load(sys.argv[1], _Job)))
