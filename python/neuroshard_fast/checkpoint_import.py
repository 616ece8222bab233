"""Published checkpoints of cost networks, put together into cost models."""

from __future__ import annotations

import os
from collections.abc import Sequence

from neuroshard_fast.cost_models import F32, PUBLISHED_BATCH_SIZE, CostModels, CostModelsInfo
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import PUBLISHED_FEATURES
from neuroshard_fast.published import (
    CommunicationCheckpoint,
    read_communication_checkpoint,
    read_compute_checkpoint,
)

FilePath = str | os.PathLike[str]


def import_checkpoints(
    name: str,
    *,
    compute: FilePath,
    forward: Sequence[FilePath],
    backward: Sequence[FilePath],
    batch_size: int = PUBLISHED_BATCH_SIZE,
) -> CostModels:
    """Cost models made of published checkpoints; needs torch.

    compute: checkpoint of the compute network. forward, backward: checkpoints of communication
        networks, one pair for each device count, in any order.
    batch_size: samples a step that the costs hold for.

    InputError where a checkpoint is not sound, not of its kind, given twice, or lacks its partner.
    """
    networks = read_compute_checkpoint(compute)
    features = len(networks.feature_mean)
    if features != len(PUBLISHED_FEATURES):
        raise InputError(
            f"{compute}: has {features} table features; the published {len(PUBLISHED_FEATURES)} "
            "are wanted"
        )
    tensors = {
        **_named_layers("compute.table", networks.table_layers),
        **_named_layers("compute.set", networks.set_layers),
        "compute.feature_mean": networks.feature_mean,
        "compute.feature_std": networks.feature_std,
    }
    pairs = {
        "forward": _by_device_count("forward", forward),
        "backward": _by_device_count("backward", backward),
    }
    for direction, other in (("forward", "backward"), ("backward", "forward")):
        for devices, (path, checkpoint) in pairs[direction].items():
            if devices not in pairs[other]:
                raise InputError(f"{path}: no {other} checkpoint for {devices} devices beside it")
            network = f"{direction}.{devices}"
            tensors |= {
                **_named_layers(network, checkpoint.layers),
                f"{network}.feature_mean": checkpoint.feature_mean,
                f"{network}.feature_std": checkpoint.feature_std,
            }
    info = CostModelsInfo(
        name=name,
        source="imported",
        hardware="unknown (published checkpoints)",
        batch_size=batch_size,
    )
    return CostModels(info, tensors)


def _by_device_count(
    direction: str, paths: Sequence[FilePath]
) -> dict[int, tuple[FilePath, CommunicationCheckpoint]]:
    checkpoints: dict[int, tuple[FilePath, CommunicationCheckpoint]] = {}
    for path in paths:
        checkpoint = read_communication_checkpoint(path)
        found = "forward" if checkpoint.is_forward else "backward"
        if found != direction:
            raise InputError(f"{path}: is a {found} checkpoint, given as a {direction} one")
        if checkpoint.devices in checkpoints:
            raise InputError(
                f"{path}: a second {direction} checkpoint for {checkpoint.devices} devices, after "
                f"{checkpoints[checkpoint.devices][0]}"
            )
        checkpoints[checkpoint.devices] = (path, checkpoint)
    return checkpoints


def _named_layers(network: str, layers: Sequence[tuple[F32, F32]]) -> dict[str, F32]:
    named = {}
    for layer, (weight, bias) in enumerate(layers):
        named[f"{network}.{layer}.weight"] = weight
        named[f"{network}.{layer}.bias"] = bias
    return named
