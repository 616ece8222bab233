"""What the planner takes, checked; options of TorchRec's planner without a meaning here are refused."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torchrec.distributed.comm import get_local_size, get_topology_domain_multiple
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    Stats,
    StorageReservation,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.utils import get_device_type

from neuroshard_fast.checks import finite_number, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SPLITTING, SearchOptions

DEFAULT_COST_MODELS = {"cpu": "cpu-fbgemm", "cuda": "h100-sim"}
"""By compute device. Those of the CPU are measured, with one thread a process; the others are simulated."""

_RESERVED = 0.15  # as TorchRec's planner by default
_MOST_SECONDS = 1e9
_REFUSED = {
    "enumerator": "options are not enumerated one by one here; constraints say what is allowed",
    "proposer": "the engine proposes; options=SearchOptions(...) says how far it searches",
    "partitioner": "the engine places shards itself",
    "performance_model": "plans are rated by cost_models",
    "callbacks": "they work on lists of TorchRec's ShardingOption, which are not made here; change the "
    "ShardingPlan that plan() returns",
    "plan_loader": "load a saved plan with TorchRecPlan.load(path).to_sharding_plan(...)",
}


def require_none(values: Mapping[str, object]) -> None:
    """InputError that names the first option given that has no meaning here."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, (list, tuple)) and not value):
            raise InputError(f"{name} is not supported by NeuroShardPlanner: {_REFUSED[name]}")


def require_flags(values: Mapping[str, object]) -> None:
    """InputError that names the first option that is neither True nor False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InputError(f"{name} must be True or False, got {shown(value)}")


def checked_topology(topology: Topology | None) -> Topology:
    """``topology``, or that of the process group, as TorchRec's planner makes it."""
    if topology is not None:
        if not isinstance(topology, Topology):
            raise InputError(
                f"topology: a Topology of TorchRec is wanted, got a {type(topology).__name__}"
            )
        return topology
    if not dist.is_initialized():
        raise InputError("topology: give one, or call torch.distributed.init_process_group() first")
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(
            world_size=dist.get_world_size(),
            local_world_size=get_local_size(),
            pod_size=get_topology_domain_multiple(),
        ),
        kernel_config=KernelConfig(compute_device=get_device_type()),
    )


def checked_batch_size(batch_size: int | None) -> int:
    """Samples a rank; TorchRec's default where nothing is said."""
    if batch_size is None or (isinstance(batch_size, int) and batch_size == 0):
        return int(BATCH_SIZE)
    return whole_number(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)


def checked_reservation(reservation: StorageReservation | None) -> StorageReservation:
    """``reservation``, or the one that TorchRec's planner has by default."""
    if reservation is None:
        with warnings.catch_warnings():
            # It advises against itself, to a user who has not chosen it.
            warnings.simplefilter("ignore", FutureWarning)
            return HeuristicalStorageReservation(percentage=_RESERVED)
    if not isinstance(reservation, StorageReservation):
        raise InputError(
            "storage_reservation: a StorageReservation of TorchRec is wanted, got a "
            f"{type(reservation).__name__}"
        )
    return reservation


def checked_stats(stats: Stats | list[Stats] | None) -> list[Stats]:
    """Statistics to log; none where None."""
    listed: list[Any] = [] if stats is None else stats if isinstance(stats, list) else [stats]
    for entry in listed:
        if not isinstance(entry, Stats):
            raise InputError(f"stats: Stats of TorchRec are wanted, got a {type(entry).__name__}")
    return listed


def checked_models(
    models: CostModels | str | os.PathLike[str] | None, compute_device: str
) -> CostModels:
    """Loaded cost models; the shipped ones for the device where None."""
    if isinstance(models, CostModels):
        return models
    if models is not None and not isinstance(models, (str, os.PathLike)):
        raise InputError(
            f"cost_models: CostModels, a shipped name or a file is wanted, got {shown(models)}"
        )
    return CostModels.load(DEFAULT_COST_MODELS[compute_device] if models is None else models)


def checked_options(options: SearchOptions | None) -> SearchOptions:
    """Search options; those of the method where None."""
    if options is None:
        return SearchOptions()
    if not isinstance(options, SearchOptions):
        raise InputError(f"options: SearchOptions are wanted, got a {type(options).__name__}")
    if options.algorithm not in SPLITTING:
        raise InputError(
            f"options: algorithm {options.algorithm!r} does not keep constraints; only "
            f"{' and '.join(map(repr, SPLITTING))} plan for TorchRec"
        )
    if options.deadline_ms is not None:
        raise InputError("options: deadline_ms is not supported here; give max_evaluations")
    return options


def checked_timeout(timeout_seconds: float | None) -> float:
    """Seconds after which no further alternatives are tried."""
    if timeout_seconds is None:
        return _MOST_SECONDS
    return finite_number(timeout_seconds, "timeout_seconds", low=1e-9, high=_MOST_SECONDS)
