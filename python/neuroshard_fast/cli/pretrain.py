"""``neuroshard pretrain``: train cost models on cost data."""

from __future__ import annotations

import argparse

from neuroshard_fast.cli.common import output, whole_numbers

NAME = "pretrain"
HELP = "train cost models on a folder of cost data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    from typing import get_args

    from neuroshard_fast.features import FeatureKind
    from neuroshard_fast.pretrain.options import CommunicationKind, PretrainOptions

    defaults = PretrainOptions()
    parser.add_argument(
        "data",
        metavar="DATA",
        help="folder with compute, comm_D for each device count D, and perhaps compute_heldout "
        "(samples of other tables, to report the error on unseen ones)",
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
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="passes over the data")
    parser.add_argument(
        "--patience",
        type=int,
        default=defaults.patience,
        help="epochs without improvement after which to stop",
    )
    parser.add_argument(
        "--minibatch-size",
        type=int,
        default=defaults.minibatch_size,
        help="samples a training step",
    )
    parser.add_argument(
        "--shared-minibatch-size",
        type=int,
        default=defaults.shared_minibatch_size,
        help="the same for the shared communication network",
    )
    parser.add_argument(
        "--learning-rate", type=float, default=defaults.learning_rate, help="at its peak"
    )
    parser.add_argument(
        "--weight-decay",
        type=float,
        default=defaults.weight_decay,
        help="of the compute network",
    )
    parser.add_argument(
        "--features",
        choices=get_args(FeatureKind),
        default=defaults.features,
        help="what the compute network sees of a table: features that hold for any batch size and data type, "
        "or the published ones",
    )
    parser.add_argument(
        "--proposed-share",
        type=float,
        default=defaults.proposed_share,
        help="of the samples trained on, how many are of plans that a search proposed, if there are any",
    )
    parser.add_argument(
        "--feature-jitter",
        type=float,
        default=defaults.feature_jitter,
        help="relative spread by which rows and reuse histograms vary in training with published features; "
        "with the weight decay it keeps the network from learning the tables by heart",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, default=defaults.threads, help="torch threads")
    parser.add_argument(
        "--communication",
        choices=get_args(CommunicationKind),
        default=defaults.communication,
        help="one communication network for any number of devices, or one for each, as published",
    )
    for option, what in (
        ("--table-sizes", "layers of the table network"),
        ("--set-sizes", "hidden layers of the network behind the sum"),
        ("--device-sizes", "layers that the shared communication network has for each device"),
        ("--head-sizes", "hidden layers of the shared communication network behind them"),
        (
            "--communication-sizes",
            "hidden layers of the communication networks of one device count",
        ),
    ):
        default = getattr(defaults, option[2:].replace("-", "_"))
        parser.add_argument(
            option,
            type=whole_numbers,
            default=default,
            metavar="N,N,…",
            help=f"outputs of the {what}",
        )
    parser.add_argument(
        "--devices-per-node",
        type=int,
        default=defaults.devices_per_node,
        help="devices that share the fast links of a node",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from dataclasses import fields

    from neuroshard_fast.cost_models import check_output
    from neuroshard_fast.pretrain import PretrainOptions, errors_table, pretrain

    file = check_output(args.output)
    options = PretrainOptions(
        **{field.name: getattr(args, field.name) for field in fields(PretrainOptions)}
    )
    models = pretrain(args.data, file.stem if args.name is None else args.name, options)
    models.save(file)
    print(f"wrote {file}; errors on held-out data:\n{errors_table(models.info)}")
    return 0
