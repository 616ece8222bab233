"""``neuroshard simulate``: run a published task file and report predicted costs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuroshard_fast.cli.common import (
    add_cluster_arguments,
    add_search_arguments,
    check_outputs,
    cluster,
    output,
    search_options,
)

if TYPE_CHECKING:
    from neuroshard_fast.simulation import Truth

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
    parser.add_argument(
        "--truth",
        action="store_true",
        help="also score each plan by the formula that simulated cost models were trained on",
    )
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
    report = simulate(planner, tasks, devices, options, truth=args.truth)
    summary = report.summary
    headers = ["task", "tables", "cost ms", "splits", "planning ms"]
    rows = [
        [
            number,
            len(tables),
            _milliseconds(task.cost_ms, "infeasible"),
            len(task.column_splits),
            f"{task.planning_ms:.1f}",
        ]
        for number, (tables, task) in enumerate(zip(tasks, report.tasks, strict=True), start=1)
    ]
    if summary.truth is not None:
        headers.insert(3, "SIMULATED true ms")
        for row, task in zip(rows, report.tasks, strict=True):
            row.insert(3, _milliseconds(task.true_cost_ms, ""))
    print(tabulate(rows, headers=headers, disable_numparse=True, stralign="right"))
    print(
        f"\n{report.algorithm}: {summary.feasible} of {summary.tasks} tasks feasible, mean cost "
        f"{_milliseconds(summary.mean_cost_ms, 'none', ' ms')}, median planning time "
        f"{summary.median_planning_ms:.1f} ms"
    )
    models = planner.cost_models.info
    print(provenance(models.used(), devices.batch_size or models.batch_size))
    if summary.truth is not None:
        print(_truth_line(summary.truth))
    if args.json is not None:
        config.save(args.json, report)
    return 0


def _milliseconds(value: float | None, missing: str, unit: str = "") -> str:
    return missing if value is None else f"{value:.4f}{unit}"


def _truth_line(truth: Truth) -> str:
    line = f"true costs: SIMULATED {truth.hardware}, batch size {truth.batch_size}"
    if truth.agreement is None:
        return f"{line}; no plan to score"
    agreement = truth.agreement
    kendall, spearman = (
        "none" if value is None else f"{value:.4f}"
        for value in (agreement.kendall, agreement.spearman)
    )
    return (
        f"{line}; mean {_milliseconds(truth.mean_cost_ms, 'none', ' ms')}; predicted against true: "
        f"mean gap {agreement.mean_gap:.2%}, worst {agreement.worst_gap:.2%}, bias "
        f"{agreement.bias:+.2%}, rank correlation {kendall} (Kendall), {spearman} (Spearman)"
    )
