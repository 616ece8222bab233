"""``neuroshard plan``: plan a table set, or a model of TorchRec, and show the load of each device."""

from __future__ import annotations

import argparse

import msgspec

from neuroshard_fast.cli import plan_torchrec
from neuroshard_fast.cli.common import (
    add_cluster_arguments,
    add_search_arguments,
    check_outputs,
    cluster,
    output,
    search_options,
)

NAME = "plan"
HELP = "plan a table set, or a model of TorchRec, and show the load of each device"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "tables", metavar="TABLES", nargs="?", help="table set, JSON or YAML; or give --torchrec"
    )
    add_cluster_arguments(parser)
    parser.add_argument(
        "--cost-models",
        metavar="NAME_OR_FILE",
        help="shipped cost models or a file of them (default: h100-sim, which is simulated; for models on "
        "CPUs cpu-fbgemm, which is measured)",
    )
    parser.add_argument(
        "-o", "--output", type=output, metavar="PLAN", help="write the plan, JSON or YAML"
    )
    parser.add_argument(
        "--plot", type=output, metavar="PICTURE", help="draw the load of each device (PNG, SVG)"
    )
    parser.add_argument(
        "--capture",
        type=output,
        metavar="FILE",
        help="write the whole planning call, also one without a plan, for neuroshard-bench",
    )
    parser.add_argument(
        "--no-lower-bound",
        action="store_true",
        help="do not say what no plan can cost less than; it is not said with --deadline-ms either",
    )
    add_search_arguments(parser)
    plan_torchrec.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, print, and write what was asked for."""
    plan_torchrec.require_tables_or_model(args)
    if args.torchrec is not None:
        return plan_torchrec.run(args)
    from neuroshard_fast.errors import InfeasiblePlanError
    from neuroshard_fast.planner import DEFAULT_COST_MODELS, Planner, require_capturable
    from neuroshard_fast.report import draw_plan, format_plan, picture_format
    from neuroshard_fast.tables import TableSet

    check_outputs(args.output, args.plot, args.capture)
    if args.plot is not None:
        picture_format(args.plot)
    devices, options = cluster(args), search_options(args)
    if not args.no_lower_bound and options.deadline_ms is None:
        options = msgspec.structs.replace(options, lower_bound=True)
    if args.capture is not None:
        require_capturable(options)
    tables = TableSet.load(args.tables)
    models = DEFAULT_COST_MODELS if args.cost_models is None else args.cost_models
    planner = Planner(models)
    try:
        plan = planner.plan(tables, devices, options)
    except InfeasiblePlanError:
        if args.capture is not None:
            planner.capture(args.capture)
            print(f"planning call captured in {args.capture}")
        raise
    except KeyboardInterrupt:
        if planner.interrupted_plan is None:
            raise
        # What was found until then may be all that there is time for.
        if args.output is not None:
            planner.interrupted_plan.save(args.output)
        print(format_plan(planner.interrupted_plan))
        if args.output is not None:
            print(f"plan written to {args.output}")
        raise
    # Files first: whoever reads what is printed may stop reading.
    if args.output is not None:
        plan.save(args.output)
    if args.plot is not None:
        draw_plan(plan, args.plot)
    if args.capture is not None:
        planner.capture(args.capture)
    print(format_plan(plan))
    for what, path in (
        ("planning call captured in", args.capture),
        ("plan written to", args.output),
        ("picture written to", args.plot),
    ):
        if path is not None:
            print(f"{what} {path}")
    return 0
