"""``neuroshard replan``: plan again from an earlier plan, moving few bytes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neuroshard_fast.cli.common import (
    add_cluster_arguments,
    add_search_arguments,
    check_outputs,
    cluster,
    output,
    search_options,
    whole_numbers,
)

if TYPE_CHECKING:
    from neuroshard_fast.replanning import Replan

NAME = "replan"
HELP = "plan again from an earlier plan, for changed tables or devices, moving few bytes"

_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("previous", metavar="PLAN", help="the plan that the devices hold")
    parser.add_argument("tables", metavar="TABLES", help="the table set as it is now")
    add_cluster_arguments(parser)
    parser.add_argument(
        "--cost-models",
        metavar="NAME_OR_FILE",
        help="shipped cost models or a file of them (default: h100-sim, which is simulated)",
    )
    parser.add_argument(
        "--max-moved",
        metavar="SIZE",
        help="most that goes from device to device, such as 10GiB; 0 leaves all that survives where it is",
    )
    parser.add_argument(
        "--lost",
        type=whole_numbers,
        default=(),
        metavar="DEVICES",
        help="devices of PLAN that are gone, such as 3,5; the others are numbered anew in their order",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="show what moving more is worth: a plan for each of several limits",
    )
    parser.add_argument(
        "-o", "--output", type=output, metavar="PLAN", help="write the plan, JSON or YAML"
    )
    parser.add_argument(
        "--moves", type=output, metavar="FILE", help="write plan and moves, JSON or YAML"
    )
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan again, print, and write what was asked for."""
    from neuroshard_fast.errors import InputError
    from neuroshard_fast.plan import ShardingPlan
    from neuroshard_fast.planner import DEFAULT_COST_MODELS, Planner
    from neuroshard_fast.tables import TableSet
    from neuroshard_fast.units import parse_bytes

    check_outputs(args.output, args.moves)
    if args.sweep and (args.max_moved, args.output, args.moves) != (None, None, None):
        raise InputError("--sweep shows several plans: leave out --max-moved, --output and --moves")
    devices, options = cluster(args), search_options(args)
    limit = None
    if args.max_moved is not None:
        limit = 0 if args.max_moved.strip() == "0" else parse_bytes(args.max_moved)
    previous, tables = ShardingPlan.load(args.previous), TableSet.load(args.tables)
    planner = Planner(DEFAULT_COST_MODELS if args.cost_models is None else args.cost_models)
    if args.sweep:
        curve = planner.replan_curve(previous, tables, devices, options, lost_devices=args.lost)
        print(_format_curve(curve, previous.cost_ms))
        return 0
    found = planner.replan(
        previous, tables, devices, options, max_moved_bytes=limit, lost_devices=args.lost
    )
    if args.output is not None:
        found.plan.save(args.output)
    if args.moves is not None:
        found.save(args.moves)
    print(_format(found, previous.cost_ms))
    for what, path in (("plan", args.output), ("plan and moves", args.moves)):
        if path is not None:
            print(f"{what} written to {path}")
    return 0


def _format(found: Replan, before_ms: float) -> str:
    from neuroshard_fast.report import format_plan
    from neuroshard_fast.units import format_bytes

    lines = [
        format_plan(found.plan),
        "",
        f"the plan before was predicted to cost {before_ms:.3f} ms, for its tables and devices",
        f"from device to device: {format_bytes(found.moved_bytes)}; of lost devices: "
        f"{format_bytes(found.restored_bytes)}; new tables: {format_bytes(found.new_bytes)}",
    ]
    for move in found.moves[:_LISTED]:
        source = "new" if move.source is None else f"device {move.source}"
        lines.append(
            f"  {move.table}: columns {move.column_offset} to {move.column_offset + move.width - 1}, "
            f"{format_bytes(move.num_bytes)}: {source} -> device {move.device}"
        )
    if len(found.moves) > _LISTED:
        lines.append(f"  and {len(found.moves) - _LISTED} more (--moves writes them all)")
    return "\n".join(lines)


def _format_curve(curve: Sequence[Replan], before_ms: float) -> str:
    from tabulate import tabulate

    from neuroshard_fast.units import format_bytes

    rows = [
        [
            format_bytes(found.max_moved_bytes or 0),
            format_bytes(found.moved_bytes),
            f"{found.plan.cost_ms:.3f}",
            f"{1 - found.plan.cost_ms / curve[0].plan.cost_ms:.2%}",
        ]
        for found in curve
    ]
    table = tabulate(
        rows,
        ("may move", "moves", "predicted cost ms", "below the first"),
        tablefmt="github",
        disable_numparse=True,
    )
    return f"the plan before was predicted to cost {before_ms:.3f} ms\n\n{table}"
