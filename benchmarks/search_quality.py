"""How good are the plans of algorithm "auto", and how soon?

Each part prints a Markdown table and adds its figures to a JSON file:

    truth      seeded tasks for a simulated cluster: predicted and SIMULATED true costs, and planning times,
               of "auto" and of "neuroshard"; tables fill as much of the memory as is asked for
    golden     the published tasks with the published networks: mean costs over orders of the devices
    optimum    tasks small enough to look at every plan
    tight      tasks with 90% to 98% of the memory taken in a plan that is known
    deadline   how well deadlines are kept
    annealing  one second of "auto" against a minute of plain annealing
    replan     tables change, or a device is lost: costs and times within several limits on what moves
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tabulate import tabulate

from neuroshard_fast import (
    Cluster,
    Feature,
    InfeasiblePlanError,
    Planner,
    SearchOptions,
    ShardingPlan,
    TableSet,
    _core,
    config,
    examples,
)
from neuroshard_fast.planner import SearchOutcome
from neuroshard_fast.profile.simulated import score_plan
from neuroshard_fast.units import parse_bytes
from truth import bytes_of, draw_tasks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

BATCH_SIZE = 65536
REPEATS = 3  # of a planning time; the median counts
Row = dict[str, Any]


def percent(values: list[float], of_what: Callable[[list[float]], float] = statistics.fmean) -> str:
    """Mean of shares, as percent."""
    return f"{of_what(values):.2%}" if values else ""


# ---- truth ----


def timed_plan(
    planner: Planner, tables: TableSet, cluster: Cluster, options: SearchOptions
) -> tuple[ShardingPlan | None, float]:
    """A plan, and the median time of the call with a planner that keeps no answer, ms."""
    times, plan = [], None
    for _ in range(REPEATS):
        fresh = Planner(planner.cost_models)
        started = time.perf_counter()
        try:
            plan = fresh.plan(tables, cluster, options)
        except InfeasiblePlanError:
            plan = None
        times.append((time.perf_counter() - started) * 1e3)
    return plan, statistics.median(times)


def truth(args: argparse.Namespace) -> list[Row]:
    """Tasks of benchmarks/truth.py; with ``--fill`` devices have as much memory as that leaves."""
    planner = Planner(f"{args.hardware}-sim")
    roomy = Cluster(
        world_size=args.devices, memory_bytes=parse_bytes("80GiB"), batch_size=BATCH_SIZE
    )
    rows = []
    for number, tables in enumerate(draw_tasks(args.tasks, roomy, BATCH_SIZE, "fp32", args.seed)):
        fill = args.fill[number % len(args.fill)] if args.fill else None
        cluster = roomy
        if fill is not None:
            memory = int(bytes_of(tables) / args.devices / fill)
            cluster = Cluster(world_size=args.devices, memory_bytes=memory, batch_size=BATCH_SIZE)
        row: Row = {"tables": len(tables), "fill": fill}
        for algorithm in ("neuroshard", "auto"):
            options = SearchOptions(algorithm=algorithm)
            plan, ms = timed_plan(planner, tables, cluster, options)
            row[f"{algorithm} ms"] = ms
            row[f"{algorithm} cost"] = None if plan is None else plan.cost_ms
            row[f"{algorithm} true"] = (
                None
                if plan is None
                else score_plan(plan, tables, args.hardware, BATCH_SIZE).cost_ms
            )
        rows.append(row)
        show_progress(number + 1, args.tasks)
    return rows


def format_truth(rows: list[Row]) -> str:
    """A line for each fill, and one for all."""
    lines = []
    fills = list(dict.fromkeys(row["fill"] for row in rows))
    for fill in [*fills, "all"] if len(fills) > 1 else fills:
        some = [row for row in rows if fill in ("all", row["fill"])]
        both = [r for r in some if r["neuroshard cost"] is not None and r["auto cost"] is not None]
        sums = {
            key: sum(row[key] for row in both)
            for key in ("neuroshard cost", "auto cost", "neuroshard true", "auto true")
        }
        times = [sum(row[f"{name} ms"] for row in both) for name in ("neuroshard", "auto")]
        lines.append(
            [
                {None: "as drawn", "all": "all"}.get(fill, fill),
                len(some),
                sum(row["neuroshard cost"] is not None for row in some),
                sum(row["auto cost"] is not None for row in some),
                f"{1 - sums['auto cost'] / sums['neuroshard cost']:.2%}" if both else "",
                f"{1 - sums['auto true'] / sums['neuroshard true']:.2%}" if both else "",
                percent([1 - r["auto true"] / r["neuroshard true"] for r in both]),
                percent([1 - r["auto true"] / r["neuroshard true"] for r in both], max),
                f"{times[0] / max(1, len(both)):.1f}",
                f"{times[1] / times[0]:.2f}" if both else "",
            ]
        )
    headers = (
        *("memory filled", "tasks", "neuroshard finds", "auto finds", "predicted mean lower by"),
        *("SIMULATED true mean lower by", "mean of tasks", "most", "neuroshard ms", "time ratio"),
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


# ---- golden ----


def golden(args: argparse.Namespace) -> list[Row]:
    """Published tasks; the objective is the mean cost over orders of the devices."""
    from test_engine import golden_networks, golden_tasks

    rows = []
    for name in ("2_gpu", "4_gpu", "4_gpu_tight", "8_gpu", "16_gpu"):
        for task in golden_tasks(name):
            options: Any = task.search
            started = time.perf_counter()
            _core.search(golden_networks(), task.problem, **options)
            middle = time.perf_counter()
            answer = _core.auto_search(golden_networks(), task.problem, **options)
            ended = time.perf_counter()
            rows.append(
                {
                    "tasks": name,
                    "neuroshard": answer.published,
                    "auto": answer.objective if answer.plan is not None else None,
                    "neuroshard ms": (middle - started) * 1e3,
                    "auto ms": (ended - middle) * 1e3,
                }
            )
    return rows


def format_golden(rows: list[Row]) -> str:
    """A line for each number of devices."""
    lines = []
    for name in dict.fromkeys(row["tasks"] for row in rows):
        some = [row for row in rows if row["tasks"] == name]
        gains = [1 - r["auto"] / r["neuroshard"] for r in some if r["neuroshard"] is not None]
        lines.append(
            [
                name,
                len(some),
                len(gains),
                sum(row["auto"] is not None for row in some),
                percent(gains),
                percent(gains, min),
                percent(gains, max),
                f"{statistics.median(row['neuroshard ms'] for row in some):.1f}",
                f"{statistics.median(row['auto ms'] for row in some):.1f}",
            ]
        )
    headers = (
        *("tasks", "of them", "neuroshard finds", "auto finds", "lower by, mean", "least", "most"),
        *("neuroshard ms", "auto ms"),
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


# ---- optimum ----


def small_tasks(planner: Planner, count: int, seed: int) -> Iterator[tuple[_core.Problem, int]]:
    """Four to seven tables on three devices, at most nine shards; and the splits that there may be."""
    pool = examples.broad(tables=1500, max_rows=10**7, batch_size=BATCH_SIZE, seed=1000)
    generator = np.random.default_rng(seed)
    for _ in range(count):
        tables = int(generator.integers(4, 8))
        splits = min(9 - tables, int(generator.integers(0, 4)))
        drawn = examples.draw_task(pool, (tables, tables), (4, 8, 16, 32, 64, 128), generator)
        memory = int(bytes_of(drawn) / 3 / generator.uniform(0.4, 0.95))
        yield planner.problem(drawn, Cluster(world_size=3, memory_bytes=memory)), splits


def optimum(args: argparse.Namespace) -> list[Row]:
    """As many tasks as asked for that have a plan."""
    planner = Planner("h100-sim")
    networks = planner.cost_models.networks_for(BATCH_SIZE)
    rows: list[Row] = []
    for problem, splits in small_tasks(planner, 100 * args.tasks, args.seed):
        best = _core.exhaustive_search(networks, problem, max_splits=splits)
        started = time.perf_counter()
        found = _core.auto_search(networks, problem, max_splits=splits)
        ms = (time.perf_counter() - started) * 1e3
        if best is None:
            if found.plan is not None:
                raise AssertionError("a plan where there is none")
            continue
        published = _core.search(networks, problem, max_splits=splits)
        rows.append(
            {
                "best": best[1],
                "auto": found.objective if found.plan is not None else None,
                "neuroshard": published.cost if published is not None else None,
                "ms": ms,
            }
        )
        if len(rows) == args.tasks:
            break
    return rows


def format_optimum(rows: list[Row]) -> str:
    """How often each algorithm finds the best of all plans, to 1e-6."""
    lines = []
    for name in ("neuroshard", "auto"):
        found = [row for row in rows if row[name] is not None]
        best = sum(row[name] <= row["best"] * (1 + 1e-6) for row in found)
        above = [row[name] / row["best"] - 1 for row in found]
        lines.append(
            [
                name,
                len(rows),
                len(found),
                f"{best / len(rows):.1%}",
                percent(above),
                percent(above, max),
            ]
        )
    headers = ("algorithm", "tasks", "finds a plan", "finds the best", "above it, mean", "most")
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


# ---- tight ----


def tight(args: argparse.Namespace) -> list[Row]:
    """Tasks of tests/tight_tasks.py."""
    from tight_tasks import draw_tight_task

    planner = Planner("h100-sim")
    networks = planner.cost_models.networks_for(BATCH_SIZE)
    generator = np.random.default_rng(args.seed)
    rows = []
    for _ in range(args.tasks):
        tables, cluster = draw_tight_task(generator)
        problem = planner.problem(tables, cluster)
        started = time.perf_counter()
        found = _core.auto_search(networks, problem)
        rows.append(
            {
                "tables": len(tables),
                "devices": cluster.world_size,
                "filled": bytes_of(tables) / cluster.memory_bytes / cluster.world_size,
                "neuroshard": found.published is not None,
                "auto": found.plan is not None,
                "auto ms": (time.perf_counter() - started) * 1e3,
            }
        )
    return rows


def format_tight(rows: list[Row]) -> str:
    """How many have a plan."""
    filled = [row["filled"] for row in rows]
    line = [
        len(rows),
        f"{min(filled):.0%} to {max(filled):.0%}",
        f"{statistics.fmean(row['neuroshard'] for row in rows):.1%}",
        f"{statistics.fmean(row['auto'] for row in rows):.1%}",
        f"{statistics.median(row['auto ms'] for row in rows):.1f}",
        f"{max(row['auto ms'] for row in rows):.0f}",
    ]
    headers = ("tasks", "filled", "neuroshard finds", "auto finds", "auto ms, median", "most")
    return tabulate([line], headers, tablefmt="github", disable_numparse=True)


# ---- deadline ----


def deadline(args: argparse.Namespace) -> list[Row]:
    """Calls of Planner.plan with deadlines, on tasks of three sizes."""
    planner = Planner("h100-sim")
    rows = []
    for devices in (8, 16, 128):
        cluster = Cluster(
            world_size=devices, memory_bytes=parse_bytes("80GiB"), batch_size=BATCH_SIZE
        )
        (tables,) = draw_tasks(1, cluster, BATCH_SIZE, "fp32", args.seed)
        for deadline_ms in (20.0, 100.0, 500.0):
            for run in range(args.tasks if deadline_ms < 500.0 else max(1, args.tasks // 4)):
                options = SearchOptions(deadline_ms=deadline_ms, seed=run)
                started = time.perf_counter()
                plan = planner.plan(tables, cluster, options)
                rows.append(
                    {
                        "tables": len(tables),
                        "devices": devices,
                        "deadline": deadline_ms,
                        "took": (time.perf_counter() - started) * 1e3,
                        "cost": plan.cost_ms,
                    }
                )
    return rows


def format_deadline(rows: list[Row]) -> str:
    """How long calls took, and what the plans cost."""
    lines = []
    for key in dict.fromkeys((r["tables"], r["devices"], r["deadline"]) for r in rows):
        some = [row for row in rows if (row["tables"], row["devices"], row["deadline"]) == key]
        took = sorted(row["took"] for row in some)
        lines.append(
            [
                f"{key[0]} x {key[1]}",
                f"{key[2]:g}",
                len(some),
                f"{statistics.median(took):.1f}",
                f"{took[int(0.95 * (len(took) - 1))]:.1f}",
                f"{took[-1]:.1f}",
                f"{key[2] + max(0.05 * key[2], 1.0):.1f}",
                f"{statistics.fmean(row['cost'] for row in some):.4f}",
            ]
        )
    headers = (
        *("tables x devices", "deadline ms", "calls", "median ms", "p95 ms", "longest ms"),
        *("allowed ms", "mean predicted cost ms"),
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


# ---- annealing ----


def annealing(args: argparse.Namespace) -> list[Row]:
    """From the plan of "neuroshard": one second of "auto", and so many of plain annealing."""
    planner = Planner(f"{args.hardware}-sim")
    networks = planner.cost_models.networks_for(BATCH_SIZE)
    cluster = Cluster(
        world_size=args.devices, memory_bytes=parse_bytes("80GiB"), batch_size=BATCH_SIZE
    )
    rows = []
    tasks = draw_tasks(args.tasks, cluster, BATCH_SIZE, "fp32", args.seed)
    for number, tables in enumerate(tasks):
        problem = planner.problem(tables, cluster)
        first = planner.search(tables, cluster, problem, SearchOptions(algorithm="neuroshard"))
        assert isinstance(first, SearchOutcome)
        assert first.result is not None
        found = _core.auto_search(networks, problem, seconds=1.0)
        cost, _, _, evaluations = _core.plain_annealing(
            networks,
            problem,
            first.result.column_splits,
            first.result.placement,
            seconds=args.seconds,
        )
        rows.append(
            {
                "devices": args.devices,
                "neuroshard": first.result.cost,
                "auto": found.objective,
                "annealing": cost,
                "evaluations": evaluations,
            }
        )
        show_progress(number + 1, len(tasks))
    return rows


def format_annealing(rows: list[Row]) -> str:
    """How far one second of "auto" is from what the annealing finds."""
    lines = []
    for devices in dict.fromkeys(row["devices"] for row in rows):
        some = [row for row in rows if row["devices"] == devices]
        above = [row["auto"] / row["annealing"] - 1 for row in some]
        lines.append(
            [
                devices,
                len(some),
                percent([1 - row["auto"] / row["neuroshard"] for row in some]),
                percent([1 - row["annealing"] / row["neuroshard"] for row in some]),
                percent(above),
                percent(above, max),
            ]
        )
    headers = (
        *("devices", "tasks", "auto, 1 s: below neuroshard", "annealing: below neuroshard"),
        *("auto above annealing, mean", "most"),
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


# ---- replan ----


def changed(tables: TableSet, generator: np.random.Generator) -> TableSet:
    """A tenth of the tables grown by a fifth, a tenth looked up otherwise, one in fifty gone or new."""
    found = []
    for table in tables:
        choice = generator.random()
        if choice < 0.02:
            continue
        if choice < 0.12:
            rows = int(1.2 * table.num_embeddings) + 1
            table = msgspec.structs.replace(table, num_embeddings=rows)
        elif choice < 0.22:
            factor = table.features[0].pooling_factor * float(generator.uniform(0.5, 2.0))
            features = (Feature(name=table.features[0].name, pooling_factor=factor),)
            table = msgspec.structs.replace(table, features=(*features, *table.features[1:]))
        elif choice < 0.24:
            found.append(msgspec.structs.replace(table, name=f"new_{table.name}"))
        found.append(table)
    return TableSet.of(found)


def replan(args: argparse.Namespace) -> list[Row]:
    """Tables change, or a device is lost: plans within several limits, and one from nothing."""
    planner = Planner(f"{args.hardware}-sim")
    memory = parse_bytes("80GiB")
    rows = []
    for count, devices in ((100, 8), (200, 16), (1000, 128)):
        pool = examples.broad(tables=count, max_rows=10**7, batch_size=BATCH_SIZE, seed=args.seed)
        cluster = Cluster(world_size=devices, memory_bytes=memory, batch_size=BATCH_SIZE)
        fewer = Cluster(world_size=devices - 1, memory_bytes=memory, batch_size=BATCH_SIZE)
        previous = planner.plan(pool, cluster)
        survives = sum(shard.memory_bytes for shard in previous.shards)
        now = changed(pool, np.random.default_rng(args.seed))
        cases = (("tables changed", now, cluster, ()), ("a device lost", pool, fewer, (1,)))
        for what, tables, on, lost in cases:
            fresh, fresh_ms = timed_plan(planner, tables, on, SearchOptions())
            assert fresh is not None
            for share in (0.0, 0.01, 0.05, None):
                limit = None if share is None else int(share * survives)
                times = []
                for _ in range(REPEATS):
                    started = time.perf_counter()
                    found = planner.replan(
                        previous, tables, on, max_moved_bytes=limit, lost_devices=lost
                    )
                    times.append((time.perf_counter() - started) * 1e3)
                rows.append(
                    {
                        "size": f"{count} x {devices}",
                        "what": what,
                        "share": share,
                        "moved": found.moved_bytes / survives,
                        "cost": found.plan.cost_ms,
                        "fresh": fresh.cost_ms,
                        "ms": statistics.median(times),
                        "fresh ms": fresh_ms,
                    }
                )
    return rows


def format_replan(rows: list[Row]) -> str:
    """A line for each limit."""
    lines = [
        [
            row["size"],
            row["what"],
            "any" if row["share"] is None else f"{row['share']:.0%}",
            f"{row['moved']:.2%}",
            f"{row['cost']:.3f}",
            f"{row['cost'] / row['fresh']:.3f}",
            f"{row['ms']:.1f}",
            f"{row['ms'] / row['fresh ms']:.2f}",
        ]
        for row in rows
    ]
    headers = (
        *("tables x devices", "what", "may move", "moves", "predicted ms", "/ plan from nothing"),
        *("time, ms", "/ plan from nothing"),
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


PARTS: dict[str, tuple[Callable[[argparse.Namespace], list[Row]], Callable[[list[Row]], str]]] = {
    "truth": (truth, format_truth),
    "golden": (golden, format_golden),
    "optimum": (optimum, format_optimum),
    "tight": (tight, format_tight),
    "deadline": (deadline, format_deadline),
    "annealing": (annealing, format_annealing),
    "replan": (replan, format_replan),
}


def show_progress(done: int, total: int) -> None:
    """On the terminal's error stream."""
    print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--tasks", type=int, default=100, help="tasks, or calls for each deadline")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of plain annealing")
    parser.add_argument(
        "--fill", type=float, nargs="*", default=[], help="shares of the memory, for tasks by turns"
    )
    args = parser.parse_args()
    measure, show = PARTS[args.part]
    rows = measure(args)
    config.write_atomically(args.output, config.encode(rows))
    print(show(rows))


if __name__ == "__main__":
    main()
