"""``neuroshard import-checkpoints``: published checkpoints as one file of cost models."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import output

NAME = "import-checkpoints"
HELP = "convert published checkpoints into a file of cost models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    from neuroshard_fast.cost_models import PUBLISHED_BATCH_SIZE

    parser.add_argument("--compute", required=True, metavar="FILE", help="compute checkpoint (.pt)")
    for direction in ("forward", "backward"):
        parser.add_argument(
            f"--{direction}",
            action="extend",
            nargs="+",
            default=[],
            metavar="FILE",
            help=f"{direction} communication checkpoints, one for each device count",
        )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output,
        metavar="FILE",
        help="cost models (.safetensors)",
    )
    parser.add_argument("--name", help="of the cost models; default: the file's name")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=PUBLISHED_BATCH_SIZE,
        help="samples a step that the costs hold for; default: %(default)s, as published",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from neuroshard_fast.checkpoint_import import import_checkpoints
    from neuroshard_fast.cost_models import check_output

    file = check_output(args.output)
    models = import_checkpoints(
        file.stem if args.name is None else args.name,
        compute=args.compute,
        forward=args.forward,
        backward=args.backward,
        batch_size=args.batch_size,
    )
    models.save(file)
    counts = ", ".join(map(str, models.device_counts)) or "none"
    print(f"wrote {file}; device counts: {counts}")
    return 0
