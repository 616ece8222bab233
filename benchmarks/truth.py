"""Do cost models rank and price plans as the formula does that made their data?

Plans tasks for a simulated cluster and scores every plan with the generating formula, which is the
SIMULATED truth. Each task has 5 to 15 tables a device, by turns of ``examples.broad`` and of
``examples.dlrm_like``, with seeds that no shipped model was trained on, and dims of 4 to 128. Of tables
that fill more than 80% of the cluster the largest are left out. Prints a Markdown table. A few seconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from tabulate import tabulate

from neuroshard_fast import Cluster, Planner, SearchOptions, TableSet, config, examples
from neuroshard_fast.agreement import Agreement
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.options import SPLITTING
from neuroshard_fast.plan import CostModelsUsed
from neuroshard_fast.profile.simulated import HARDWARE
from neuroshard_fast.report import picture_format, provenance
from neuroshard_fast.simulation import SimulationReport, simulate
from neuroshard_fast.tables import DataType, EmbeddingTable
from neuroshard_fast.units import format_bytes, parse_bytes

DIMS = (4, 8, 16, 32, 64, 128)
TABLES_PER_DEVICE = (5, 15)
MAX_ROWS = 100_000_000
MOST_OF_THE_CLUSTER = 0.8
POOL_TABLES = 1500
POOL_SEED = 1000  # the shipped models are trained and tested on pools of seeds up to 100
POOLS = ("broad", "dlrm-like")


class Task(msgspec.Struct, kw_only=True):
    """One task, and what its plan costs in ms; None where there is no plan.

    pool: where its tables are from. bytes: of all of them.
    """

    pool: str
    tables: int
    bytes: int
    splits: int
    predicted_ms: float | None
    true_ms: float | None


class Group(msgspec.Struct, kw_only=True):
    """The plans of several tasks: how many, their mean costs, and how those agree."""

    plans: int
    predicted_ms: float
    true_ms: float
    agreement: Agreement


class Report(msgspec.Struct, kw_only=True):
    """What was planned with what; ``groups``: all tasks, and those of each pool that have a plan."""

    cost_models: CostModelsUsed
    hardware: str
    devices: int
    memory_bytes: int
    batch_size: int
    data_type: DataType
    seed: int
    tasks: list[Task]
    groups: dict[str, Group]


def draw_tasks(
    count: int, cluster: Cluster, batch_size: int, data_type: DataType, seed: int
) -> list[TableSet]:
    """Tasks of tables of :data:`POOLS` by turns."""
    fewest, most = (count * cluster.world_size for count in TABLES_PER_DEVICE)
    tables = max(POOL_TABLES, most)
    pools = (
        examples.broad(tables=tables, max_rows=MAX_ROWS, batch_size=batch_size, seed=POOL_SEED),
        examples.dlrm_like(2021, tables=tables, batch_size=batch_size, seed=POOL_SEED),
    )
    room = MOST_OF_THE_CLUSTER * cluster.world_size * cluster.memory_bytes
    generator = np.random.default_rng(seed)
    tasks = []
    for number in range(count):
        pool = pools[number % len(pools)]
        drawn = [
            msgspec.structs.replace(table, data_type=data_type)
            for table in examples.draw_task(pool, (fewest, most), DIMS, generator)
        ]
        while bytes_of(drawn) > room:
            drawn.remove(max(drawn, key=lambda table: bytes_of([table])))
        tasks.append(TableSet.of(drawn))
    return tasks


def bytes_of(tables: Iterable[EmbeddingTable]) -> int:
    """Memory of unsplit ``tables``."""
    return sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)


def make_report(
    simulated: SimulationReport, drawn: list[TableSet], data_type: DataType, seed: int
) -> Report:
    """The plans of the tasks ``drawn`` with what they cost."""
    truth = simulated.summary.truth
    assert truth is not None
    tasks = [
        Task(
            pool=POOLS[number % len(POOLS)],
            tables=len(tables),
            bytes=bytes_of(tables),
            splits=len(result.column_splits),
            predicted_ms=result.cost_ms,
            true_ms=result.true_cost_ms,
        )
        for number, (tables, result) in enumerate(zip(drawn, simulated.tasks, strict=True))
    ]
    members = {"all": tasks} | {pool: [t for t in tasks if t.pool == pool] for pool in POOLS}
    groups = {name: group(costs(some)) for name, some in members.items() if costs(some)}
    return Report(
        cost_models=simulated.cost_models,
        hardware=truth.hardware,
        devices=simulated.devices,
        memory_bytes=simulated.memory_bytes,
        batch_size=truth.batch_size,
        data_type=data_type,
        seed=seed,
        tasks=tasks,
        groups=groups,
    )


def costs(tasks: list[Task]) -> list[tuple[float, float]]:
    """Predicted and true ms of the plans that there are."""
    pairs = ((task.predicted_ms, task.true_ms) for task in tasks)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def group(pairs: list[tuple[float, float]]) -> Group:
    """Of the predicted and true ms of at least one plan."""
    predicted, true = zip(*pairs, strict=True)
    return Group(
        plans=len(pairs),
        predicted_ms=statistics.fmean(predicted),
        true_ms=statistics.fmean(true),
        agreement=Agreement.of(predicted, true),
    )


def format_report(report: Report) -> str:
    """A Markdown table: how predicted and true costs agree, for all tasks and by pool."""
    rows = [
        [
            name,
            each.plans,
            f"{each.predicted_ms:.3f}",
            f"{each.true_ms:.3f}",
            _correlation(each.agreement.spearman),
            _correlation(each.agreement.kendall),
            f"{each.agreement.mean_gap:.2%}",
            f"{each.agreement.bias:+.2%}",
            f"{each.agreement.worst_gap:.2%}",
        ]
        for name, each in report.groups.items()
    ]
    headers = (
        *("tables from", "plans", "predicted ms", "SIMULATED true ms", "Spearman", "Kendall"),
        *("mean gap", "bias", "worst gap"),
    )
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _correlation(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def plot(report: Report, path: Path) -> None:
    """Predicted over true costs, a dot for each plan."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5.5), layout="constrained")
    for pool in POOLS:
        pairs = costs([task for task in report.tasks if task.pool == pool])
        if pairs:
            predicted, true = zip(*pairs, strict=True)
            axes.loglog(true, predicted, "o", markersize=4, alpha=0.7, label=pool)
    ends = [true for _, true in costs(report.tasks)]
    if ends:
        axes.loglog([min(ends), max(ends)], [min(ends), max(ends)], "k:", label="equal")
        axes.legend(fontsize="small")
    axes.set_xlabel(f"SIMULATED true cost of the plan, {report.hardware}, ms")
    axes.set_ylabel(f"cost predicted by {report.cost_models.name}, ms")
    axes.set_title(
        f"{report.devices} devices, batch size {report.batch_size:,}, {report.data_type}",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100, format=picture_format(path))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--plot", type=Path, help="picture of predicted over true costs")
    parser.add_argument("--hardware", choices=tuple(HARDWARE), default="h100")
    parser.add_argument(
        "--cost-models", help="of that hardware; default: those shipped for it, such as h100-sim"
    )
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--memory", default="80GiB", help="of a device")
    parser.add_argument("--batch-size", type=int, help="default: that of the cost models")
    parser.add_argument("--data-type", choices=get_args(DataType), default="fp32")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=SPLITTING, default="neuroshard")
    args = parser.parse_args()
    planner = Planner(args.cost_models or f"{args.hardware}-sim")
    info = planner.cost_models.info
    if info.hardware != HARDWARE[args.hardware].description:
        parser.error(f"cost models {info.name} are of {info.hardware}, not of {args.hardware}")
    batch_size = args.batch_size or info.batch_size
    cluster = Cluster(
        world_size=args.devices, memory_bytes=parse_bytes(args.memory), batch_size=batch_size
    )
    tasks = draw_tasks(args.tasks, cluster, batch_size, args.data_type, args.seed)
    simulated = simulate(
        planner, tasks, cluster, SearchOptions(algorithm=args.algorithm), truth=True
    )
    report = make_report(simulated, tasks, args.data_type, args.seed)
    config.save(args.output, report)
    print(provenance(report.cost_models, report.batch_size))
    fullest = max(task.bytes for task in report.tasks)
    splits = statistics.fmean(task.splits for task in report.tasks)
    print(
        f"{report.devices} devices of {format_bytes(report.memory_bytes)}, {report.data_type}: "
        f"{simulated.summary.feasible} of {len(tasks)} tasks have a plan; the largest takes "
        f"{format_bytes(fullest)}, {fullest / report.devices / report.memory_bytes:.0%} of the "
        f"devices; {splits:.1f} splits a plan\n"
    )
    print(format_report(report))
    if args.plot:
        plot(report, args.plot)


if __name__ == "__main__":
    main()
