"""``neuroshard models``: the cost models in the package, and their cards."""

from __future__ import annotations

import argparse

NAME = "models"
HELP = "list the cost models in the package, or print the card of cost models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "models",
        nargs="?",
        metavar="NAME_OR_FILE",
        help="print the card of these: shipped ones, or those in a file",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from neuroshard_fast.cost_models import CostModels, shipped_card, shipped_names
    from neuroshard_fast.pretrain.card import models_table, render_card

    if args.models is None:
        print(models_table([CostModels.load(name) for name in shipped_names()]))
    elif args.models in shipped_names():
        print(shipped_card(args.models), end="")
    else:
        print(render_card(CostModels.load(args.models)), end="")
    return 0
