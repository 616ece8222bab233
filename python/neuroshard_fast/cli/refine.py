"""``neuroshard refine``: refine cost models on plans that the search proposes with them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuroshard_fast.cli.common import check_outputs, output, whole_numbers
from neuroshard_fast.cli.pretrain import add_training_arguments, training_options

if TYPE_CHECKING:
    from neuroshard_fast.refine import RefineOptions

NAME = "refine"
HELP = "refine cost models on plans that the search proposes with them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "data", metavar="DATA", help="cost data that the models were trained on; it grows"
    )
    parser.add_argument(
        "tables", metavar="TABLES", help="table set that tasks are drawn from, JSON or YAML"
    )
    parser.add_argument(
        "--cost-models", required=True, metavar="NAME_OR_FILE", help="cost models to begin with"
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output,
        metavar="FILE",
        help="refined cost models (.safetensors), written after every cycle",
    )
    parser.add_argument("--plot", type=output, metavar="FILE", help="draw bias and MAPE by cycle")

    tasks = parser.add_argument_group("tasks and plans")
    tasks.add_argument("--devices", type=int, required=True, help="number of devices")
    tasks.add_argument(
        "--memory", default="2GiB", help="memory of a device for tables (default: 2GiB)"
    )
    tasks.add_argument("--batch-size", type=int, required=True, help="global batch size")
    tasks.add_argument(
        "--tasks-per-cycle",
        type=int,
        default=20,
        help="fresh tasks of a cycle, at least 20 (default: 20)",
    )
    tasks.add_argument(
        "--tables-per-task",
        type=whole_numbers,
        default=(10, 60),
        metavar="N,N",
        help="fewest and most tables of a task (default: 10,60)",
    )
    tasks.add_argument(
        "--dims",
        type=whole_numbers,
        metavar="N,N,…",
        help="dims that tables are given (default: 4, 8, 16, … up to 128 or the largest)",
    )
    tasks.add_argument(
        "--baselines",
        type=int,
        default=1,
        help="plans of greedy baselines measured besides, for each task (default: 1)",
    )
    tasks.add_argument(
        "--label",
        default="",
        help="of the folders in DATA that are added to (default: plans_D_B with D devices and batch size B)",
    )
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument(
        "--rounds", type=int, default=3, help="rounds of each plan, some time apart (default: 3)"
    )
    measuring.add_argument(
        "--backend",
        choices=("auto", "fbgemm", "embedding-bag", "simulated"),
        default="auto",
        help="default: FBGEMM where it is installed",
    )
    measuring.add_argument("--hardware", help="what to simulate: a100, h100 or h200")

    limits = parser.add_argument_group("when to stop")
    limits.add_argument(
        "--target-bias",
        type=float,
        default=0.02,
        help="bias within which predicted and measured costs agree (default: 0.02)",
    )
    limits.add_argument(
        "--target-mape",
        type=float,
        default=1.5,
        help="noise floors within which their MAPE is, too (default: 1.5)",
    )
    limits.add_argument(
        "--budget",
        metavar="TIME",
        help="begin no cycle that would probably end later in this run, such as 30min or 2h",
    )
    limits.add_argument(
        "--cycles", type=int, help="most cycles, those of earlier runs in DATA included"
    )
    add_training_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import os

    from neuroshard_fast.cost_models import CostModels
    from neuroshard_fast.errors import InputError
    from neuroshard_fast.refine import (
        Cycle,
        RefineOptions,
        cycles_table,
        draw_cycles,
        refine,
    )
    from neuroshard_fast.report import picture_format, require_matplotlib
    from neuroshard_fast.tables import TableSet
    from neuroshard_fast.units import parse_bytes, parse_seconds

    if (args.backend == "simulated") != (args.hardware is not None):
        raise InputError("--backend simulated and --hardware go together")
    check_outputs(args.output, args.plot)
    if args.plot is not None:
        picture_format(args.plot)
        require_matplotlib()
    if os.path.realpath(args.output) == os.path.realpath(args.cost_models):
        raise InputError(
            f"{args.output}: would overwrite the cost models to begin with, which are needed to go on "
            "after an interruption"
        )
    options = RefineOptions(
        devices=args.devices,
        memory_bytes=parse_bytes(args.memory),
        batch_size=args.batch_size,
        tasks_per_cycle=args.tasks_per_cycle,
        tables_per_task=args.tables_per_task,
        dims=args.dims,
        baselines=args.baselines,
        rounds=args.rounds,
        seed=args.seed,
        label=args.label,
        backend="auto" if args.hardware else args.backend,
        hardware=args.hardware,
        target_bias=args.target_bias,
        target_mape=args.target_mape,
        cycles=args.cycles,
        budget_seconds=None if args.budget is None else parse_seconds(args.budget),
    )

    def show(number: int, cycle: Cycle) -> None:
        if cycle.is_trained:
            print(f"cycle {number}: new models trained", flush=True)
        else:
            print(f"cycle {number}: compared, bias {cycle.proposed.bias:+.2%}", flush=True)

    refined = refine(
        args.data,
        TableSet.load(args.tables),
        CostModels.load(args.cost_models),
        options,
        output=args.output,
        training=training_options(args),
        on_cycle=show,
    )
    print(f"\n{_what(options)}\n\n{cycles_table(refined.cycles, options)}\n")
    state = "agree" if refined.agrees else "did not agree yet; these models know the last cycle too"
    print(f"wrote {args.output}: costs {state}")
    if args.plot is not None:
        draw_cycles(refined.cycles, options, _what(options), args.plot)
        print(f"wrote {args.plot}")
    return 0


def _what(options: RefineOptions) -> str:
    against = (
        "measured costs" if options.hardware is None else f"SIMULATED {options.hardware} costs"
    )
    return (
        f"predicted against {against} of plans that the search proposed, {options.devices} devices, "
        f"batch size {options.batch_size}"
    )
