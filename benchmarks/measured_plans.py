"""Do plans of the search cost less than those of the baselines when they are measured for real?

Plans 40 tasks (4 devices, 10 to 60 tables that the cost models have not seen) with every algorithm
on the measured CPU models, measures all plans of a task interleaved with ``neuroshard evaluate``'s
code, and prints the mean cost of each algorithm as a Markdown table. About 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import msgspec
import numpy as np

from neuroshard_fast import (
    Cluster,
    Planner,
    SearchOptions,
    ShardingPlan,
    TableSet,
    config,
    examples,
)
from neuroshard_fast.options import ALGORITHMS
from neuroshard_fast.profile.evaluation import Evaluation, evaluate_problems

DEVICES = 4
MEMORY_BYTES = 2 * 2**30
MAX_ROWS = 1_000_000
DIMS = (4, 8, 16, 32, 64, 128)
POOL_SEED = 1000  # the shipped models are trained on the pool of seed 2


class AlgorithmResult(msgspec.Struct, kw_only=True):
    """Costs of one algorithm's plans, ms, task by task."""

    predicted_ms: list[float]
    measured_ms: list[float]
    lowest_ms: list[float]
    highest_ms: list[float]


class Report(msgspec.Struct, kw_only=True):
    """What was measured, and with what."""

    cost_models: str
    hardware: str
    devices: int
    rounds: int
    iterations: int
    tables: list[int]
    algorithms: dict[str, AlgorithmResult]


def draw_tasks(count: int, batch_size: int, seed: int) -> list[TableSet]:
    """Tasks of 10 to 60 different tables with random dims."""
    pool = examples.dlrm_like(2021, batch_size=batch_size, max_rows=MAX_ROWS, seed=POOL_SEED)
    generator = np.random.default_rng(seed)
    tasks = []
    for _ in range(count):
        size = int(generator.integers(10, 61))
        chosen = generator.choice(len(pool), size=size, replace=False)
        dims = generator.choice(DIMS, size=size)
        tasks.append(
            TableSet.of(
                [
                    msgspec.structs.replace(pool[int(table)], embedding_dim=int(dim))
                    for table, dim in zip(chosen, dims, strict=True)
                ]
            )
        )
    return tasks


def plan_all(planner: Planner, tasks: list[TableSet], seed: int) -> list[list[ShardingPlan]]:
    """For each task the plans of all algorithms, in the order of ALGORITHMS."""
    cluster = Cluster(world_size=DEVICES, memory_bytes=MEMORY_BYTES)
    return [
        [
            planner.plan(
                tables,
                cluster,
                msgspec.convert({"algorithm": name, "seed": seed + number}, SearchOptions),
            )
            for name in ALGORITHMS
        ]
        for number, tables in enumerate(tasks)
    ]


def make_report(
    plans: list[list[ShardingPlan]], tasks: list[TableSet], evaluation: Evaluation
) -> Report:
    """Predicted and measured costs side by side."""
    return Report(
        cost_models=plans[0][0].cost_models.name,
        hardware=evaluation.hardware,
        devices=DEVICES,
        rounds=evaluation.rounds,
        iterations=evaluation.iterations,
        tables=[len(tables) for tables in tasks],
        algorithms={
            name: AlgorithmResult(
                predicted_ms=[task[column].cost_ms for task in plans],
                measured_ms=[task[column].cost_ms for task in evaluation.problems],
                lowest_ms=[task[column].lowest_ms for task in evaluation.problems],
                highest_ms=[task[column].highest_ms for task in evaluation.problems],
            )
            for column, name in enumerate(ALGORITHMS)
        },
    )


def format_report(report: Report) -> str:
    """A Markdown table: mean costs, and how neuroshard compares task by task."""
    ours = report.algorithms["neuroshard"].measured_ms
    lines = [
        "| algorithm | predicted ms | measured ms | against neuroshard | median ratio | "
        "tasks neuroshard wins | spread of rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in report.algorithms.items():
        pairs = list(zip(ours, result.measured_ms, strict=True))
        mean = statistics.fmean(result.measured_ms)
        ratio = mean / statistics.fmean(ours)
        spread = statistics.median(
            (high - low) / middle
            for low, middle, high in zip(
                result.lowest_ms, result.measured_ms, result.highest_ms, strict=True
            )
        )
        median = statistics.median(theirs / own for own, theirs in pairs)
        wins = f"{sum(own < theirs for own, theirs in pairs)} of {len(pairs)}"
        lines.append(
            f"| {name} | {statistics.fmean(result.predicted_ms):.2f} | {mean:.2f} | {ratio:.3f} | "
            f"{median:.3f} | {'' if name == 'neuroshard' else wins} | {spread:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--cost-models", default="cpu-fbgemm", help="measured, for 4 devices")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    planner = Planner(args.cost_models)
    tasks = draw_tasks(args.tasks, planner.cost_models.info.batch_size, args.seed)
    plans = plan_all(planner, tasks, args.seed)
    evaluation = evaluate_problems(
        [(tables, task_plans) for tables, task_plans in zip(tasks, plans, strict=True)],
        rounds=args.rounds,
    )
    report = make_report(plans, tasks, evaluation)
    config.save(args.output, report)
    print(format_report(report))


if __name__ == "__main__":
    main()
