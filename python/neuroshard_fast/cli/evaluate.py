"""``neuroshard evaluate``: measure what given plans really cost."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import check_outputs, output

NAME = "evaluate"
HELP = "measure what given plans really cost on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("tables", metavar="TABLES", help="table set, JSON or YAML")
    parser.add_argument(
        "--plans", metavar="PLAN", nargs="+", required=True, help="plans of it for as many devices"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each plan, interleaved (default: 3)"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=10,
        help="timed iterations of lookups a round, a fifth of those of all-to-alls (default: 10)",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "fbgemm", "embedding-bag"),
        default="auto",
        help="operator that looks up (default: FBGEMM where it is installed)",
    )
    parser.add_argument("--json", type=output, metavar="OUT", help="write the measured costs")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write what was asked for."""
    from tabulate import tabulate

    from neuroshard_fast import config
    from neuroshard_fast.plan import ShardingPlan
    from neuroshard_fast.profile.evaluation import evaluate_plans
    from neuroshard_fast.report import provenance
    from neuroshard_fast.tables import TableSet

    check_outputs(args.json)
    tables = TableSet.load(args.tables)
    plans = [ShardingPlan.load(path) for path in args.plans]
    evaluation = evaluate_plans(
        tables,
        plans,
        names=args.plans,
        rounds=args.rounds,
        iterations=args.iterations,
        backend=args.backend,
    )
    rows = []
    for path, plan, measured in zip(args.plans, plans, evaluation.problems[0], strict=True):
        slowest = max(
            measured.devices, key=lambda x: x.compute_ms + x.forward_comm_ms + x.backward_comm_ms
        )
        rows.append(
            (
                path,
                plan.algorithm,
                plan.cost_ms,
                measured.cost_ms,
                measured.lowest_ms,
                measured.highest_ms,
                slowest.device,
                slowest.compute_ms,
                slowest.forward_comm_ms,
                slowest.backward_comm_ms,
            )
        )
    print(
        f"measured on {evaluation.hardware}, {evaluation.backend}, "
        f"{evaluation.world_size} devices, batch size {evaluation.batch_size}, "
        f"medians of {evaluation.rounds} rounds of {evaluation.iterations} iterations"
    )
    for models, batch_size in dict.fromkeys((plan.cost_models, plan.batch_size) for plan in plans):
        print(f"predicted by {provenance(models, batch_size)}")
    headers = (
        *("plan", "algorithm", "predicted ms", "cost ms", "lowest", "highest"),
        *("slowest device", "compute ms", "forward ms", "backward ms"),
    )
    print(tabulate(rows, headers=headers, floatfmt=".3f", disable_numparse=[0, 1, 6]))
    if args.json is not None:
        config.save(args.json, evaluation)
        print(f"measured costs written to {args.json}")
    return 0
