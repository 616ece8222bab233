"""``neuroshard plan --torchrec``: plan a user's own model without starting its training."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard_fast.cli.common import check_outputs, search_options
from neuroshard_fast.cluster import MAX_DEVICES
from neuroshard_fast.errors import InfeasiblePlanError, InputError
from neuroshard_fast.units import parse_bytes

if TYPE_CHECKING:
    from neuroshard_fast.cost_models import CostModels

_DEVICES_OF_A_HOST = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command that are for models only."""
    group = parser.add_argument_group("models of TorchRec")
    group.add_argument(
        "--torchrec",
        metavar="MODULE:FACTORY",
        help="plan the model that this function returns, in place of TABLES; it may be on the meta device. "
        "The function may return a model and constraints, a dictionary of ParameterConstraints",
    )
    group.add_argument(
        "--compute-device",
        choices=("cpu", "cuda"),
        help="that the model will train on (default: cuda); --memory is HBM of a GPU, or DDR of a process",
    )
    group.add_argument(
        "--table-stats",
        metavar="FILE",
        help="statistics of the model's batches, a table set as TableStats saves it",
    )
    group.add_argument(
        "--local-devices",
        type=int,
        help="devices of a host (default: 8, or all where they are fewer)",
    )


def require_tables_or_model(args: argparse.Namespace) -> None:
    """InputError where not one of both is given, or with options that are for the other."""
    if (args.tables is None) == (args.torchrec is None):
        raise InputError("give either TABLES, a file of a table set, or --torchrec MODULE:FACTORY")
    if args.torchrec is None:
        others = {
            "--compute-device": args.compute_device,
            "--local-devices": args.local_devices,
            "--table-stats": args.table_stats,
        }
        where = "is for --torchrec only"
    else:
        others = {"--plot": args.plot, "--capture": args.capture}
        where = "is not for --torchrec"
    for option, value in others.items():
        if value is not None:
            raise InputError(f"{option} {where}")


def run(args: argparse.Namespace) -> int:
    """Plan, print, and write what was asked for."""
    check_outputs(args.output)
    from neuroshard_fast.torchrec import NeuroShardPlanner, format_torchrec_plan
    from neuroshard_fast.torchrec.options import checked_models

    model, constraints = make_model(args.torchrec)
    from torchrec.distributed.planner.types import (
        KernelConfig,
        PlannerError,
        PlannerErrorType,
        TopologyFactory,
        TrainerConfig,
    )

    device, memory = args.compute_device or "cuda", parse_bytes(args.memory)
    topology = TopologyFactory.create_topology(
        trainer_config=TrainerConfig(
            world_size=args.devices,
            local_world_size=_local_devices(args),
            hbm_cap_bytes=memory if device == "cuda" else None,
            ddr_cap_bytes=memory if device == "cpu" else None,
        ),
        kernel_config=KernelConfig(compute_device=device),
    )
    options = search_options(args)
    models = checked_models(args.cost_models, device)
    batch_size = _samples_of_a_rank(args, models)
    # Here, where the batch is that of all devices; the planner speaks of that of a rank.
    models.require_batch_size(
        batch_size * int(args.devices), allow_mismatch=options.allow_batch_mismatch
    )
    planner = NeuroShardPlanner(
        topology,
        constraints=constraints,
        cost_models=models,
        options=options,
        batch_size=batch_size,
        table_stats=args.table_stats,
    )
    try:
        planner.plan(model)
    except PlannerError as error:
        # TorchRec's users catch its error; here it goes the way of all others.
        does_not_fit = (PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.STRICT_CONSTRAINTS)
        kind = InfeasiblePlanError if error.error_type in does_not_fit else InputError
        raise kind(str(error)) from error
    plan = planner.last_plan
    if plan is None:
        raise InputError(f"--torchrec {args.torchrec}: {_why_empty(model, constraints, device)}")
    if args.output is not None:
        plan.save(args.output)
    print(format_torchrec_plan(plan, tables=True))
    if args.output is not None:
        print(f"plan written to {args.output}")
    return 0


def make_model(source: str) -> tuple[Any, Any]:
    """The model, and constraints or None, of ``module:factory``; InputError where there is none.

    Modules are looked for in the working folder too.
    """
    from torch import nn

    module_name, separator, factory_name = source.partition(":")
    if not separator or not module_name or not factory_name:
        raise InputError(
            f"--torchrec must be MODULE:FACTORY, such as my_model:build; got {source!r}"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
        made = factory()
    except (Exception, SystemExit) as error:  # the user's code raises what it likes
        raise InputError(f"--torchrec {source}: {type(error).__name__}: {error}") from error
    model, constraints = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--torchrec {source}: a torch.nn.Module is wanted, got a {type(model).__name__}"
        )
    return model, constraints


def _why_empty(model: Any, constraints: Any, device: str) -> str:
    """Why no table of ``model`` was planned."""
    from neuroshard_fast.torchrec.model import find_tables
    from neuroshard_fast.torchrec.notes import listed

    left_out = [
        f"{table.fqn} to {constraints[table.name].device_group}"
        for table in find_tables(model, None, device)
    ]
    if not left_out:
        return "the model has no table to plan"
    return (
        f"no table is left to plan for {device}: constraint device_group gives {listed(left_out)}"
    )


def _local_devices(args: argparse.Namespace) -> int:
    devices: int = args.devices
    if not 1 <= devices <= MAX_DEVICES:
        raise InputError(f"--devices must lie between 1 and {MAX_DEVICES}, got {devices}")
    if args.local_devices is None:
        full = devices % _DEVICES_OF_A_HOST == 0
        return _DEVICES_OF_A_HOST if full else devices
    local: int = args.local_devices
    if local < 1 or devices % local:
        raise InputError(f"--local-devices must divide the {devices} devices, got {local}")
    return local


def _samples_of_a_rank(args: argparse.Namespace, models: CostModels) -> int:
    """The global batch, or that of the cost models, divided among the ranks."""
    samples: int | None = args.batch_size
    if samples is None:
        return max(1, models.info.batch_size // int(args.devices))
    devices: int = args.devices
    if samples < 1 or samples % devices:
        raise InputError(
            f"--batch-size, of all devices, must be a multiple of the {args.devices} devices, got {samples}"
        )
    return samples // devices
