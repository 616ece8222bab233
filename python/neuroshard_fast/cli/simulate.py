"""``neuroshard simulate``: run a published task file and report predicted costs."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import (
    add_cluster_arguments,
    add_search_arguments,
    check_outputs,
    cluster,
    output,
    search_options,
)

NAME = "simulate"
HELP = "plan every task of a task file and report the predicted costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--tasks", required=True, metavar="FILE", help="task file, one task a line")
    parser.add_argument(
        "--table-configs", required=True, metavar="FILE", help="table_configs.json of the tasks"
    )
    parser.add_argument("--cost-models", required=True, metavar="NAME_OR_FILE")
    add_cluster_arguments(parser)
    parser.add_argument("--json", type=output, metavar="OUT", help="write the results as JSON")
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan all tasks, print a summary, write the JSON."""
    from tabulate import tabulate

    from neuroshard_fast import config
    from neuroshard_fast.planner import Planner
    from neuroshard_fast.published import read_tasks
    from neuroshard_fast.report import provenance
    from neuroshard_fast.simulation import simulate

    check_outputs(args.json)
    devices, options = cluster(args), search_options(args)
    tasks = read_tasks(args.tasks, args.table_configs)
    planner = Planner(args.cost_models)
    report = simulate(planner, tasks, devices, options)
    rows = [
        (
            number,
            len(tables),
            f"{task.cost_ms:.4f}" if task.cost_ms is not None else "infeasible",
            len(task.column_splits),
            f"{task.planning_ms:.1f}",
        )
        for number, (tables, task) in enumerate(zip(tasks, report.tasks, strict=True), start=1)
    ]
    print(tabulate(rows, headers=("task", "tables", "cost ms", "splits", "planning ms")))
    summary = report.summary
    mean = f"{summary.mean_cost_ms:.4f} ms" if summary.mean_cost_ms is not None else "none"
    print(
        f"\n{report.algorithm}: {summary.feasible} of {summary.tasks} tasks feasible, mean cost "
        f"{mean}, median planning time {summary.median_planning_ms:.1f} ms"
    )
    models = planner.cost_models.info
    print(provenance(models.used(), devices.batch_size or models.batch_size))
    if args.json is not None:
        config.save(args.json, report)
    return 0
