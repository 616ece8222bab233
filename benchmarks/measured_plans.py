"""Do plans of the search cost less than those of the baselines when they are measured for real?

Plans 40 tasks (4 devices, 10 to 60 tables that the cost models have not seen) with the search, once for
each of the given cost models, and with every baseline, measures all plans of a task interleaved with
``neuroshard evaluate``'s code, and prints the mean cost of each as a Markdown table. A plan that several
of them find is measured once. About 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from tabulate import tabulate

from neuroshard_fast import (
    Cluster,
    Planner,
    SearchOptions,
    ShardingPlan,
    TableSet,
    config,
    examples,
)
from neuroshard_fast.agreement import Agreement, noise_floor
from neuroshard_fast.cost_models import SUFFIX
from neuroshard_fast.options import ALGORITHMS, SPLITTING
from neuroshard_fast.profile.evaluation import Evaluation, evaluate_problems

Identity = tuple[tuple[tuple[str, int], ...], ...]

DEVICES = 4
MEMORY_BYTES = 2 * 2**30
MAX_ROWS = 1_000_000
TABLES_PER_TASK = (10, 60)
DIMS = (4, 8, 16, 32, 64, 128)
POOL_SEED = 1000  # the shipped models are trained and tested on pools of seeds up to 15


class AlgorithmResult(msgspec.Struct, kw_only=True):
    """Costs of one algorithm's plans, ms, task by task.

    cost_models: what predicted them; plans of baselines do not depend on it.
    rounds_ms: of each task, the measured cost in each round.
    same_as_first: whether the plan is the one that the first algorithm found.
    """

    cost_models: str
    predicted_ms: list[float]
    measured_ms: list[float]
    rounds_ms: list[tuple[float, ...]]
    same_as_first: list[bool]


class Report(msgspec.Struct, kw_only=True):
    """What was measured, and with what; ``algorithms`` begins with the search, for each cost models."""

    hardware: str
    devices: int
    batch_size: int
    rounds: int
    iterations: int
    tables: list[int]
    algorithms: dict[str, AlgorithmResult]


def draw_tasks(count: int, batch_size: int, seed: int) -> list[TableSet]:
    """Tasks of 10 to 60 different tables with random dims."""
    pool = examples.dlrm_like(2021, batch_size=batch_size, max_rows=MAX_ROWS, seed=POOL_SEED)
    generator = np.random.default_rng(seed)
    return [examples.draw_task(pool, TABLES_PER_TASK, DIMS, generator) for _ in range(count)]


@dataclass(frozen=True)
class Column:
    """An algorithm that plans all tasks, and its plans."""

    name: str
    cost_models: str
    plans: list[ShardingPlan]


def labels(cost_models: list[str]) -> dict[str, str]:
    """Each of ``cost_models`` by a short name, that of its file unless two are called the same."""
    short = {Path(name).name.removesuffix(SUFFIX): name for name in cost_models}
    return short if len(short) == len(cost_models) else {name: name for name in cost_models}


def plan_all(
    planners: dict[str, Planner], tasks: list[TableSet], batch_size: int, seed: int
) -> list[Column]:
    """The searches with each of ``planners``, then the baselines, with costs as the first one predicts."""
    cluster = Cluster(world_size=DEVICES, memory_bytes=MEMORY_BYTES, batch_size=batch_size)
    searches = [(name, models) for name in ("neuroshard", "auto") for models in planners]
    baselines = [(name, next(iter(planners))) for name in ALGORITHMS if name not in SPLITTING]
    columns = []
    for algorithm, models in searches + baselines:
        plans = [
            planners[models].plan(
                tables,
                cluster,
                msgspec.convert({"algorithm": algorithm, "seed": seed + number}, SearchOptions),
            )
            for number, tables in enumerate(tasks)
        ]
        is_one_of_several = algorithm in SPLITTING and len(planners) > 1
        name = f"{algorithm} ({models})" if is_one_of_several else algorithm
        columns.append(Column(name, models, plans))
    return columns


def identity(plan: ShardingPlan) -> Identity:
    """The same for plans that differ only in how devices are numbered and in which columns of a table
    a shard has."""
    held: list[list[tuple[str, int]]] = [[] for _ in range(plan.world_size)]
    for shard in plan.shards:
        held[shard.device].append((shard.table, shard.width))
    return tuple(sorted(tuple(sorted(shards)) for shards in held))


def distinct_plans(columns: list[Column], task: int) -> dict[Identity, ShardingPlan]:
    """The plans of a task that have to be measured."""
    return {identity(column.plans[task]): column.plans[task] for column in columns}


def measure(columns: list[Column], tasks: list[TableSet], rounds: int) -> Evaluation:
    """Each task's :func:`distinct_plans`, measured in turn."""
    return evaluate_problems(
        [
            (tables, list(distinct_plans(columns, task).values()))
            for task, tables in enumerate(tasks)
        ],
        rounds=rounds,
    )


def make_report(columns: list[Column], tasks: list[TableSet], evaluation: Evaluation) -> Report:
    """Predicted and measured costs side by side; ``evaluation`` is of :func:`measure`."""
    measured = [
        dict(zip(distinct_plans(columns, task), plans, strict=True))
        for task, plans in enumerate(evaluation.problems)
    ]
    algorithms = {}
    for column in columns:
        found = [measured[task][identity(plan)] for task, plan in enumerate(column.plans)]
        algorithms[column.name] = AlgorithmResult(
            cost_models=column.cost_models,
            predicted_ms=[plan.cost_ms for plan in column.plans],
            measured_ms=[plan.cost_ms for plan in found],
            rounds_ms=[plan.rounds_ms for plan in found],
            same_as_first=[
                identity(plan) == identity(first)
                for plan, first in zip(column.plans, columns[0].plans, strict=True)
            ],
        )
    return Report(
        hardware=evaluation.hardware,
        devices=evaluation.world_size,
        batch_size=evaluation.batch_size,
        rounds=evaluation.rounds,
        iterations=evaluation.iterations,
        tables=[len(tables) for tables in tasks],
        algorithms=algorithms,
    )


def format_report(report: Report) -> str:
    """A Markdown table: mean costs, how the first algorithm compares task by task, and how right the
    predictions are."""
    first = next(iter(report.algorithms.values()))
    rows = []
    for name, result in report.algorithms.items():
        mean, ours = statistics.fmean(result.measured_ms), statistics.fmean(first.measured_ms)
        pairs = list(zip(first.measured_ms, result.measured_ms, strict=True))
        wins = f"{sum(own < theirs for own, theirs in pairs)} of {len(pairs)}"
        same = sum(result.same_as_first)
        agreement = Agreement.of(result.predicted_ms, result.measured_ms)
        floor = noise_floor(result.rounds_ms)
        rows.append(
            [
                name,
                f"{statistics.fmean(result.predicted_ms):.2f}",
                f"{mean:.2f}",
                f"{mean / ours:.3f}",
                f"{statistics.median(theirs / own for own, theirs in pairs):.3f}",
                "" if result is first else wins + (f", {same} the same" if same else ""),
                f"{agreement.bias:+.1%}",
                f"{agreement.mean_gap:.1%}",
                "" if floor is None else f"{floor:.1%}",
            ]
        )
    headers = (
        *("algorithm", "predicted ms", "measured ms", "against the first", "median ratio"),
        *("tasks the first wins", "bias", "MAPE", "noise floor"),
    )
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def format_predictions(report: Report) -> str:
    """How right the first cost models are about their own plans, in words."""
    first = next(iter(report.algorithms.values()))
    agreement = Agreement.of(first.predicted_ms, first.measured_ms)
    line = (
        f"{first.cost_models} about its plans: bias {agreement.bias:+.2%}, MAPE "
        f"{agreement.mean_gap:.2%}"
    )
    floor = noise_floor(first.rounds_ms)
    if floor is None:
        return f"{line}; a noise floor takes at least two rounds"
    return f"{line}, {agreement.mean_gap / floor:.2f} times the noise floor between rounds, {floor:.2%}"


def format_greedy(report: Report) -> str:
    """What picking each task's best greedy plan, after measuring them all, would cost."""
    greedy = [x.measured_ms for name, x in report.algorithms.items() if name.endswith("greedy")]
    first = next(iter(report.algorithms.values()))
    best = [min(costs) for costs in zip(*greedy, strict=True)]
    ratio = statistics.fmean(best) / statistics.fmean(first.measured_ms)
    return f"the best greedy plan of each task, known after measuring all: {ratio:.3f} of the first"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument(
        "--cost-models",
        nargs="+",
        default=["cpu-fbgemm"],
        metavar="NAME_OR_FILE",
        help="measured, for 4 devices; the first ones are compared with all others",
    )
    parser.add_argument("--batch-size", type=int, help="default: that of the first cost models")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    planners = {label: Planner(name) for label, name in labels(args.cost_models).items()}
    batch_size = args.batch_size or next(iter(planners.values())).cost_models.info.batch_size
    tasks = draw_tasks(args.tasks, batch_size, args.seed)
    columns = plan_all(planners, tasks, batch_size, args.seed)
    report = make_report(columns, tasks, measure(columns, tasks, args.rounds))
    config.save(args.output, report)
    print(format_report(report))
    print(f"\n{format_predictions(report)}")
    print(format_greedy(report))


if __name__ == "__main__":
    main()
