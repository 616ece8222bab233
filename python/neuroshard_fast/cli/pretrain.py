"""``neuroshard pretrain``: train cost models on cost data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuroshard_fast.cli.common import check_outputs, output, whole_numbers

if TYPE_CHECKING:
    from neuroshard_fast.pretrain.options import PretrainOptions

NAME = "pretrain"
HELP = "train cost models on a folder of cost data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
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
    parser.add_argument(
        "--plot",
        type=output,
        metavar="PICTURE",
        help="draw how right predictions are on held-out samples (PNG, SVG, PDF)",
    )
    parser.add_argument("--name", help="of the cost models; default: the file's name")
    _add_kind_arguments(parser)
    add_training_arguments(parser)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """How networks are trained, as in :class:`PretrainOptions`."""

    from neuroshard_fast.pretrain.options import PretrainOptions

    defaults = PretrainOptions()
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=defaults.epochs, help="passes over the data")
    group.add_argument(
        "--patience",
        type=int,
        default=defaults.patience,
        help="epochs without improvement after which to stop",
    )
    group.add_argument(
        "--minibatch-size",
        type=int,
        default=defaults.minibatch_size,
        help="samples a training step",
    )
    group.add_argument(
        "--shared-minibatch-size",
        type=int,
        default=defaults.shared_minibatch_size,
        help="the same for the shared communication network",
    )
    group.add_argument(
        "--learning-rate", type=float, default=defaults.learning_rate, help="at its peak"
    )
    group.add_argument(
        "--weight-decay",
        type=float,
        default=defaults.weight_decay,
        help="of the compute network",
    )
    group.add_argument(
        "--proposed-share",
        type=float,
        default=defaults.proposed_share,
        help="of the samples trained on, how many are of plans that a search proposed, if there are any",
    )
    group.add_argument(
        "--feature-jitter",
        type=float,
        default=defaults.feature_jitter,
        help="relative spread by which rows and reuse histograms vary in training with published features; "
        "with the weight decay it keeps the network from learning the tables by heart",
    )
    group.add_argument("--seed", type=int, default=defaults.seed)
    group.add_argument("--threads", type=int, default=defaults.threads, help="torch threads")
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
        group.add_argument(
            option,
            type=whole_numbers,
            default=default,
            metavar="N,N,…",
            help=f"outputs of the {what}",
        )


def _add_kind_arguments(parser: argparse.ArgumentParser) -> None:
    """What kind of networks; refined ones are of the kind that they begin as."""
    from typing import get_args

    from neuroshard_fast.features import FeatureKind
    from neuroshard_fast.pretrain.options import CommunicationKind, PretrainOptions

    defaults = PretrainOptions()
    parser.add_argument(
        "--features",
        choices=get_args(FeatureKind),
        default=defaults.features,
        help="what the compute network sees of a table: features that hold for any batch size and data type, "
        "or the published ones",
    )
    parser.add_argument(
        "--communication",
        choices=get_args(CommunicationKind),
        default=defaults.communication,
        help="one communication network for any number of devices, or one for each, as published",
    )
    parser.add_argument(
        "--devices-per-node",
        type=int,
        default=defaults.devices_per_node,
        help="devices that share the fast links of a node",
    )


def training_options(args: argparse.Namespace) -> PretrainOptions:
    """The options of training that were given."""
    from dataclasses import fields

    from neuroshard_fast.pretrain.options import PretrainOptions

    names = [field.name for field in fields(PretrainOptions)]
    return PretrainOptions(**{name: getattr(args, name) for name in names if name in args})


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from neuroshard_fast.cost_models import check_output
    from neuroshard_fast.pretrain import errors_table, pretrain

    file = check_output(args.output)
    check_outputs(args.plot)
    options = training_options(args)
    name = file.stem if args.name is None else args.name
    models = pretrain(args.data, name, options, output=file, plot=args.plot)
    print(f"wrote {file}; errors on held-out data:\n{errors_table(models.info)}")
    return 0
