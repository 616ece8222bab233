"""Trained cost networks as the published code saves them with ``torch.save``, as plain arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import whole_number
from neuroshard_fast.cluster import MAX_DEVICES
from neuroshard_fast.errors import InputError
from neuroshard_fast.published.torch_files import load_torch

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float32]
Layer = tuple[Array, Array]
"""Weight, shape [outputs, inputs], and bias, shape [outputs], of an affine layer."""

_MAX_LAYERS = 64
_MAX_WIDTH = 16384
_MAX_FILE_BYTES = 2**30


@dataclass(frozen=True)
class ComputeCheckpoint:
    """The compute network: table layers for each shard, set layers for their sum over a device.

    feature_mean, feature_std: shape [features], features in the order of their names as strings.
    """

    feature_mean: Array
    feature_std: Array
    table_layers: tuple[Layer, ...]
    set_layers: tuple[Layer, ...]


@dataclass(frozen=True)
class CommunicationCheckpoint:
    """A communication network for ``devices`` devices.

    Backward networks take the devices' dims, forward ones their dims and then their start times.
    feature_mean, feature_std: shape [devices] or [2 * devices].
    """

    devices: int
    is_forward: bool
    feature_mean: Array
    feature_std: Array
    layers: tuple[Layer, ...]


def read_compute_checkpoint(path: str | os.PathLike[str]) -> ComputeCheckpoint:
    """Read a compute checkpoint; InputError where a key, a shape or a value is not sound."""
    checkpoint = _load(path)
    features = _size(checkpoint, "num_table_features", path)
    table_sizes = _sizes(checkpoint, "table_mlp_sizes", path)
    set_sizes = _sizes(checkpoint, "pred_mlp_sizes", path)
    if set_sizes[0] != table_sizes[-1]:
        raise InputError(
            f"{path}: pred_mlp_sizes must begin with the last of table_mlp_sizes,"
            f" {table_sizes[-1]}, got {set_sizes[0]}"
        )
    mean, std = _feature_statistics(checkpoint, features, path)
    state = _state(checkpoint, {"t_hidden": len(table_sizes), "c_hidden": len(set_sizes)}, path)
    return ComputeCheckpoint(
        feature_mean=mean,
        feature_std=std,
        table_layers=_layers(state, "t_hidden", [features, *table_sizes], path),
        set_layers=_layers(state, "c_hidden", [*set_sizes, 1], path),
    )


def read_communication_checkpoint(path: str | os.PathLike[str]) -> CommunicationCheckpoint:
    """Read a forward or backward communication checkpoint; InputError where it is not sound."""
    checkpoint = _load(path)
    features = _size(checkpoint, "num_features", path)
    devices = _size(checkpoint, "ndevices", path, high=MAX_DEVICES)
    sizes = _sizes(checkpoint, "mlp_sizes", path)
    if features not in (devices, 2 * devices):
        raise InputError(
            f"{path}: num_features must be ndevices (backward) or twice that (forward):"
            f" {devices} or {2 * devices}, got {features}"
        )
    mean, std = _feature_statistics(checkpoint, features, path)
    state = _state(checkpoint, {"hidden": len(sizes) + 1}, path)
    return CommunicationCheckpoint(
        devices=devices,
        is_forward=features == 2 * devices,
        feature_mean=mean,
        feature_std=std,
        layers=_layers(state, "hidden", [features, *sizes, devices], path),
    )


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > _MAX_FILE_BYTES:
        raise InputError(f"{path}: {size} bytes are too many for a checkpoint of cost networks")
    checkpoint = load_torch(path, source=path)
    if not isinstance(checkpoint, dict):
        raise InputError(f"{path}: must hold a dictionary, holds {type(checkpoint).__name__}")
    return checkpoint


def _entry(checkpoint: dict[str, Any], key: str, path: str | os.PathLike[str]) -> Any:
    if key not in checkpoint:
        raise InputError(f"{path}: {key} missing: not a checkpoint of this kind")
    return checkpoint[key]


def _size(
    checkpoint: dict[str, Any], key: str, path: str | os.PathLike[str], high: int = _MAX_WIDTH
) -> int:
    return whole_number(_entry(checkpoint, key, path), f"{path}: {key}", low=1, high=high)


def _sizes(checkpoint: dict[str, Any], key: str, path: str | os.PathLike[str]) -> list[int]:
    sizes = _entry(checkpoint, key, path)
    if not isinstance(sizes, (list, tuple)) or not 1 <= len(sizes) <= _MAX_LAYERS:
        raise InputError(f"{path}: {key} must be a list of 1 to {_MAX_LAYERS} layer sizes")
    return [
        whole_number(size, f"{path}: {key}[{k}]", low=1, high=_MAX_WIDTH)
        for k, size in enumerate(sizes)
    ]


def _feature_statistics(
    checkpoint: dict[str, Any], features: int, path: str | os.PathLike[str]
) -> tuple[Array, Array]:
    mean, std = (
        _array(_entry(checkpoint, key, path), (features,), f"{path}: {key}")
        for key in ("feature_means", "feature_stds")
    )
    if not (std > 0).all():
        raise InputError(f"{path}: feature_stds must be positive, got {std.min():g}")
    return mean, std


def _state(
    checkpoint: dict[str, Any], layers: dict[str, int], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """The state_dict, which must have the weights and biases of ``layers`` and nothing else."""
    state = _entry(checkpoint, "state_dict", path)
    if not isinstance(state, dict):
        raise InputError(f"{path}: state_dict must be a dictionary, got {type(state).__name__}")
    wanted = {
        f"{name}.{k}.{part}"
        for name, count in layers.items()
        for k in range(count)
        for part in ("weight", "bias")
    }
    for problem, keys in (("missing", wanted - set(state)), ("not expected", set(state) - wanted)):
        if keys:
            raise InputError(
                f"{path}: state_dict: {', '.join(sorted(map(str, keys))[:5])} {problem}"
            )
    return state


def _layers(
    state: dict[str, Any], name: str, sizes: list[int], path: str | os.PathLike[str]
) -> tuple[Layer, ...]:
    where = f"{path}: state_dict: {name}"
    return tuple(
        (
            _array(state[f"{name}.{k}.weight"], (outputs, inputs), f"{where}.{k}.weight"),
            _array(state[f"{name}.{k}.bias"], (outputs,), f"{where}.{k}.bias"),
        )
        for k, (inputs, outputs) in enumerate(pairwise(sizes))
    )


def _array(value: torch.Tensor | Any, shape: tuple[int, ...], where: str) -> Array:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise InputError(f"{where} must be a dense tensor, got {type(value).__name__}")
    if not value.is_floating_point() or value.is_meta:
        raise InputError(f"{where} must hold floating-point numbers, got {value.dtype}")
    if tuple(value.shape) != shape:
        raise InputError(f"{where} must have the shape {shape}, got {tuple(value.shape)}")
    array: Array = value.detach().to(torch.float32).numpy().copy()
    if not np.isfinite(array).all():
        raise InputError(f"{where} must be finite, but holds NaN or infinity")
    return array
