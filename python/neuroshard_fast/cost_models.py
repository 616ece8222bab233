"""Pre-trained cost networks and where they come from, in one safetensors file.

A file holds the compute network and either, for each device count it knows, a forward and a backward
communication network, or one pair of *shared* ones for any number of devices. Tensors, all fp32:

- ``compute.table.K.weight|bias``, ``compute.set.K.weight|bias``,
  ``compute.feature_mean|feature_std``
- ``forward.D.K.weight|bias``, ``forward.D.feature_mean|feature_std``, the same for ``backward.D``
- or ``forward.shared.device.K.weight|bias``, ``forward.shared.head.K.weight|bias``,
  ``forward.shared.feature_mean|feature_std``, the same for ``backward.shared``

with ``K`` the layer, counted from 0, and ``D`` the device count. ``compute.set`` and the heads of shared
networks may have a second output: a cost that HIGH_QUANTILE of all costs stay below. The metadata entry
``neuroshard`` is :class:`CostModelsInfo` as JSON. Reading a file needs no torch.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from neuroshard_fast import _core, config
from neuroshard_fast.checks import (
    MAX_SEED,
    finite_number,
    label,
    labels,
    one_of,
    shown,
    whole_number,
)
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES
from neuroshard_fast.doubts import TrainedOn
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import FEATURE_NAMES, PUBLISHED_FEATURES, FeatureKind
from neuroshard_fast.plan import CostModelsUsed, Source

F32 = npt.NDArray[np.float32]
Layers = list[tuple[F32, F32]]
HeldOut = Literal["samples", "tables", "plans"]

SUFFIX = ".safetensors"
METADATA_KEY = "neuroshard"
PUBLISHED_BATCH_SIZE = 65536
"""Batch size of the published cost data and checkpoints, which do not say so themselves."""

HIGH_QUANTILE = 0.9
"""Share of costs that stay below what networks with a second output say there."""

_MAX_COUNT = 10**9
_SHIPPED_FOLDER = Path(__file__).parent / "models"
_COST_OUTPUTS = (1, 2)  # the cost, and perhaps the high one
_MOST_KEPT_NETWORKS = 16
_SHARED_FEATURES = {"forward": 8, "backward": 7}
_LAYER_NAME = re.compile(
    r"(compute\.table|compute\.set|(?:forward|backward)\.(?:[1-9][0-9]{0,4}|shared\.(?:device|head)))"
    r"\.(0|[1-9][0-9]{0,4})\.(weight|bias)"
)
_STATISTICS_NAME = re.compile(
    r"(compute|(?:forward|backward)\.(?:[1-9][0-9]{0,4}|shared))\.feature_(mean|std)"
)


class TrainingData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One folder of cost data that networks were trained on.

    part: the folder's name: "compute", "compute_heldout" or "comm_D", perhaps with a label behind it.
    samples: samples in it.
    tables: tables in its pool, each with each dim counted; None for communication.
    data_type: of the tables, several joined by a comma; None for communication.
    source, backend, hardware, batch_size, seed, rounds, date, versions: as its info.json says; None
        or empty where it has none (published data), and ``rounds`` in files of earlier versions.
    """

    part: str
    samples: int
    tables: int | None = None
    data_type: str | None = None
    source: Source | None = None
    backend: str | None = None
    hardware: str | None = None
    batch_size: int | None = None
    seed: int | None = None
    rounds: int | None = None
    date: str | None = None
    versions: dict[str, str] = {}

    def __post_init__(self) -> None:
        label(self.part, "part")
        whole_number(self.samples, "samples", low=1, high=_MAX_COUNT)
        if self.source is not None:
            one_of(self.source, "source", get_args(Source))
        for field in ("data_type", "backend", "hardware", "date"):
            if getattr(self, field) is not None:
                label(getattr(self, field), field)
        for field, low, high in (
            ("tables", 1, _MAX_COUNT),
            ("batch_size", 1, MAX_BATCH_SIZE),
            ("seed", 0, MAX_SEED),
            ("rounds", 1, _MAX_COUNT),
        ):
            if getattr(self, field) is not None:
                whole_number(getattr(self, field), field, low=low, high=high)
        labels(self.versions, "versions")


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the networks were trained.

    command: the command line. seed: of the split, the initial weights and the batches.
    date: ISO 8601, UTC. versions: of the libraries used.
    """

    command: str
    seed: int
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        label(self.command, "command")
        whole_number(self.seed, "seed", low=0, high=MAX_SEED)
        label(self.date, "date")
        labels(self.versions, "versions")


class HeldOutError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the predictions of one network are off on samples it was not trained on.

    network: "compute", "forward.D", "backward.D", "forward.shared" or "backward.shared".
    devices: of the samples, for a network that serves any number of them; else None.
    held_out: "samples" (new combinations of tables known from training), "tables" (samples made
        up only of tables never seen in training) or "plans" (new plans that a search proposed).
    part: the folder of cost data that the samples are from, as in TrainingData; "" where it is not said.
    samples: how many samples were compared.
    mape: mean absolute percentage error, as a fraction.
    kendall: Kendall's rank correlation tau-b; None where it is not defined (constant values).
    mse: mean squared error, ms².
    noise_floor: MAPE between repeated measurements of the same sample, as a fraction; None where
        nothing was measured twice.
    bias: mean of what predictions are too high by, as a fraction of the cost; None where it is not said.
    coverage: share of the costs that lie below the predicted high ones, HIGH_QUANTILE of them if these are
        right; None where there are none.
    """

    network: str
    devices: int | None = None
    held_out: HeldOut
    part: str = ""
    samples: int
    mape: float
    kendall: float | None
    mse: float
    noise_floor: float | None = None
    bias: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        label(self.network, "network")
        if self.part:
            label(self.part, "part")
        if self.devices is not None:
            whole_number(self.devices, "devices", low=2, high=MAX_DEVICES)
        one_of(self.held_out, "held_out", get_args(HeldOut))
        whole_number(self.samples, "samples", low=1, high=_MAX_COUNT)
        for field, low, high in (
            ("mape", 0.0, 1e300),
            ("kendall", -1.0, 1.0),
            ("mse", 0.0, 1e300),
            ("noise_floor", 0.0, 1e300),
            ("bias", -1e300, 1e300),
            ("coverage", 0.0, 1.0),
        ):
            value = getattr(self, field)
            if value is not None or field in ("mape", "mse"):
                finite_number(value, field, low=low, high=high)


class CostModelsInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file of cost networks says about itself.

    name: of these cost models.
    source: "measured" on hardware, "simulated" by an analytic model, or "imported" from published
        checkpoints.
    hardware: what was measured or simulated, in words.
    batch_size: samples a step, of all devices together, that is planned for where nothing else is said;
        with the published features the only one that the costs hold for.
    devices_per_node: devices joined by the fast links of a node, of shared communication networks; None
        where there are none.
    feature_names: columns of the compute network's input: the published features, or the physical ones.
    trained_on: what the training data spans; None where that is not known.
    data, training, errors: provenance; empty for imported networks.
    """

    schema: Literal["neuroshard/cost-models/1"] = "neuroshard/cost-models/1"
    name: str
    source: Source
    hardware: str
    batch_size: int
    devices_per_node: int | None = None
    feature_names: tuple[str, ...] = PUBLISHED_FEATURES
    trained_on: TrainedOn | None = None
    data: tuple[TrainingData, ...] = ()
    training: Training | None = None
    errors: tuple[HeldOutError, ...] = ()

    def __post_init__(self) -> None:
        label(self.name, "name")
        one_of(self.source, "source", get_args(Source))
        label(self.hardware, "hardware")
        whole_number(self.batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
        if self.devices_per_node is not None:
            whole_number(self.devices_per_node, "devices_per_node", low=1, high=MAX_DEVICES)
        if self.feature_names not in FEATURE_NAMES.values():
            wanted = "; or ".join(", ".join(names) for names in FEATURE_NAMES.values())
            raise InputError(f"feature_names must be {wanted}; got {shown(self.feature_names)}")

    @property
    def feature_kind(self) -> FeatureKind:
        """Which features the compute network takes."""
        return next(kind for kind, names in FEATURE_NAMES.items() if names == self.feature_names)

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """The least and the largest batch size that the costs hold for."""
        if self.feature_kind == "published" or self.trained_on is None:
            return self.batch_size, self.batch_size
        return self.trained_on.batch_sizes

    def used(self) -> CostModelsUsed:
        """What a plan made with these cost models says of them."""
        return CostModelsUsed(
            name=self.name,
            source=self.source,
            batch_size=self.batch_size,
            hardware=self.hardware,
            batch_sizes=None if self.feature_kind == "published" else self.batch_sizes,
        )


@dataclass(frozen=True, eq=False)
class CostModels:
    """Cost networks, ready to plan with.

    tensors: the weights, by the names of the file format; checked when constructed: InputError
        names the first one that is missing, superfluous, of a wrong shape or not finite.
    """

    info: CostModelsInfo
    tensors: Mapping[str, F32]
    _networks: dict[tuple[int | None, float], _core.CostNetworks] = dataclasses.field(
        init=False, repr=False, default_factory=dict
    )
    _lock: threading.Lock = dataclasses.field(
        init=False, repr=False, default_factory=threading.Lock
    )

    def __post_init__(self) -> None:
        if not isinstance(self.info, CostModelsInfo):
            raise InputError(f"info must be a CostModelsInfo, got {shown(self.info)}")
        if not isinstance(self.tensors, Mapping):
            raise InputError(
                f"tensors must be a mapping of arrays by name, got {shown(self.tensors)}"
            )
        _check_tensors(self.tensors, len(self.info.feature_names))
        low, high = self.info.batch_sizes
        if not low <= self.info.batch_size <= high:
            raise InputError(
                f"batch_size must be one of those trained on, {low} to {high}, got {self.info.batch_size}"
            )
        if self.is_shared and self.info.devices_per_node is None:
            raise InputError("devices_per_node is missing: shared communication networks need it")
        if not self.is_shared and self.info.devices_per_node is not None:
            raise InputError(
                "devices_per_node is given, but there are no shared communication networks"
            )

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> CostModels:
        """Shipped cost models by their name, or those in a file by its path.

        A string that ends in .safetensors or contains a folder is a path. InputError for any other
        string that is not a shipped name, and for a file that is not sound.
        """
        path = _resolve(name_or_path)
        metadata, tensors = _read(path)
        if METADATA_KEY not in metadata:
            raise InputError(
                f"{path}: no metadata entry {METADATA_KEY!r}: not a file of cost models; published "
                "checkpoints are converted with `neuroshard import-checkpoints`"
            )
        info = config.decode(metadata[METADATA_KEY].encode(), CostModelsInfo, f"{path}: metadata")
        try:
            return cls(info, tensors)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, atomically; its name must end in .safetensors."""
        path = check_output(path)
        tensors = {name: np.ascontiguousarray(array) for name, array in self.tensors.items()}
        metadata = {METADATA_KEY: config.encode(self.info).decode()}
        config.write_atomically(path, safetensors.numpy.save(tensors, metadata=metadata))

    @cached_property
    def is_shared(self) -> bool:
        """Whether one pair of communication networks serves any number of devices."""
        return _is_shared(self.tensors)

    @cached_property
    def device_counts(self) -> Sequence[int]:
        """The device counts that the communication networks serve, ascending."""
        return range(2, MAX_DEVICES + 1) if self.is_shared else _device_counts(self.tensors)

    @cached_property
    def has_doubt(self) -> bool:
        """Whether networks say how much dearer than expected costs may be."""
        return len(self.layers("compute.set")[-1][1]) > 1

    def networks_for(self, batch_size: int, doubt_penalty: float = 0.0) -> _core.CostNetworks:
        """The networks as the engine takes them, for batches of ``batch_size`` samples.

        doubt_penalty: how much of the doubt is added to each cost: 0 gives the costs that are expected,
            1 those that HIGH_QUANTILE of costs stay below.
        """
        key = (batch_size if self.is_shared else None, doubt_penalty)
        with self._lock:
            networks = self._networks.get(key)
            if networks is None:
                if len(self._networks) >= _MOST_KEPT_NETWORKS:
                    del self._networks[next(iter(self._networks))]
                networks = self._networks[key] = self._make_networks(batch_size, doubt_penalty)
        return networks

    def _make_networks(self, batch_size: int, doubt_penalty: float) -> _core.CostNetworks:
        table = _core.Network(
            self.layers("compute.table"),
            self.tensors["compute.feature_mean"],
            self.tensors["compute.feature_std"],
        )
        set_ = _core.Network(self._penalised("compute.set", doubt_penalty), None, None)
        if self.info.devices_per_node is not None:
            shared = self._shared_communication(
                self.info.devices_per_node, batch_size, doubt_penalty
            )
            return _core.CostNetworks(table, set_, shared)
        return _core.CostNetworks(
            table,
            set_,
            {devices: self._communication("forward", devices) for devices in self.device_counts},
            {devices: self._communication("backward", devices) for devices in self.device_counts},
        )

    def _penalised(self, network: str, doubt_penalty: float) -> Layers:
        """The layers of ``network`` with one output: its cost plus ``doubt_penalty`` times the doubt.

        Both outputs are linear in what comes before, and so is their sum.
        """
        *layers, last = self.layers(network)
        if len(last[1]) > 1:
            mixed = []
            for both in last:
                cost, high = both[:1].astype(np.float64), both[1:].astype(np.float64)
                mixed.append(_as_fp32(cost + doubt_penalty * (high - cost), network))
            last = mixed[0], mixed[1]
        return [*layers, last]

    def layers(self, network: str) -> Layers:
        """Weight [outputs, inputs] and bias [outputs] of each layer of ``network``.

        ``network``: "compute.table", "compute.set", "forward.D" or "backward.D", "forward.shared.device" or
        "forward.shared.head" or those of "backward.shared".
        """
        layers: Layers = []
        while (weight := self.tensors.get(f"{network}.{len(layers)}.weight")) is not None:
            layers.append((weight, self.tensors[f"{network}.{len(layers)}.bias"]))
        return layers

    def require_device_count(self, devices: int) -> None:
        """InputError where there are no communication networks for ``devices`` devices."""
        if devices not in self.device_counts:
            known = (
                f"2 to {MAX_DEVICES:,}"
                if self.is_shared
                else ", ".join(map(str, self.device_counts)) or "none"
            )
            raise InputError(
                f"cost models {self.info.name!r} have no communication networks for {devices} "
                f"devices; device counts they have: {known}"
            )

    def require_batch_size(self, batch_size: int, *, allow_mismatch: bool = False) -> None:
        """InputError where the costs hold for other batch sizes, unless ``allow_mismatch``."""
        low, high = self.info.batch_sizes
        if not low <= batch_size <= high and not allow_mismatch:
            known = f"size {low}" if low == high else f"sizes {low} to {high}"
            raise InputError(
                f"cost models {self.info.name!r} hold for batch {known}, not {batch_size}; plan for "
                f"{'that' if low == high else 'one of those'}, or accept the error "
                "(--allow-batch-mismatch)"
            )

    def _communication(self, direction: str, devices: int) -> _core.Network:
        network = f"{direction}.{devices}"
        return _core.Network(
            self.layers(network),
            self.tensors[f"{network}.feature_mean"],
            self.tensors[f"{network}.feature_std"],
        )

    def _shared_communication(
        self, devices_per_node: int, batch_size: int, doubt_penalty: float
    ) -> _core.SharedCommunication:
        networks = []
        for direction in ("forward", "backward"):
            network = f"{direction}.shared"
            networks += [
                _core.Network(
                    self.layers(f"{network}.device"),
                    self.tensors[f"{network}.feature_mean"],
                    self.tensors[f"{network}.feature_std"],
                ),
                _core.Network(self._penalised(f"{network}.head", doubt_penalty), None, None),
            ]
        return _core.SharedCommunication(
            *networks,
            devices_per_node=devices_per_node,
            batch_size=batch_size,
        )


def _as_fp32(values: npt.NDArray[np.float64], network: str) -> F32:
    if np.abs(values).max(initial=0.0) > np.finfo(np.float32).max:
        raise InputError(f"{network}: weights of a cost with its doubt are beyond fp32")
    return values.astype(np.float32)


def check_output(path: str | os.PathLike[str]) -> Path:
    """``path``, if cost models can be saved there; asked before long work."""
    path = config.as_path(path)
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: the name of a file of cost models must end in {SUFFIX}")
    config.output_file(path)
    return path


def shipped_names() -> tuple[str, ...]:
    """Names of the cost models in the package, sorted."""
    return tuple(
        sorted(path.name.removesuffix(SUFFIX) for path in _SHIPPED_FOLDER.glob(f"*{SUFFIX}"))
    )


def shipped_card(name: str) -> str:
    """The card (Markdown) of the shipped cost models ``name``."""
    if name not in shipped_names():
        raise InputError(_unknown_name(name))
    return config.read_bytes(_SHIPPED_FOLDER / f"{name}.md").decode()


def _resolve(name_or_path: str | os.PathLike[str]) -> Path:
    if isinstance(name_or_path, str):
        if name_or_path in shipped_names():
            return _SHIPPED_FOLDER / f"{name_or_path}{SUFFIX}"
        if not name_or_path.endswith(SUFFIX) and Path(name_or_path).name == name_or_path:
            raise InputError(_unknown_name(name_or_path))
    return config.as_path(name_or_path)


def _unknown_name(name: str) -> str:
    shipped = ", ".join(shipped_names()) or "none"
    return f"no cost models named {name!r}; shipped: {shipped}; or give the path of a {SUFFIX} file"


def _read(path: Path) -> tuple[dict[str, str], dict[str, F32]]:
    """Metadata and tensors of a safetensors file; names are checked before any data is read."""
    try:
        if not path.is_file():
            raise InputError(
                f"{path}: cannot be read: {'not a file' if path.exists() else 'no such file'}"
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                _check_name(name)
                if file.get_slice(name).get_dtype() != "F32":
                    raise InputError(f"tensor {name} must be of type F32")
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: not a sound safetensors file: {error}") from error


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise InputError(f"tensors have strings for names, got {shown(name)}")
    if not (_LAYER_NAME.fullmatch(name) or _STATISTICS_NAME.fullmatch(name)):
        raise InputError(f"tensor {shown(name)} does not belong in a file of cost models")


def _is_shared(tensors: Mapping[str, F32]) -> bool:
    return any(".shared." in name for name in tensors)


def _device_counts(tensors: Mapping[str, F32]) -> tuple[int, ...]:
    parts = (name.split(".") for name in tensors)
    return tuple(sorted({int(part[1]) for part in parts if part[1].isdigit()}))


def _check_tensors(tensors: Mapping[str, F32], features: int) -> None:
    for name, array in tensors.items():
        _check_name(name)
        if not isinstance(array, np.ndarray):
            raise InputError(f"tensor {name} must be an array of numpy, got {shown(array)}")
        if array.dtype != np.float32:
            raise InputError(f"tensor {name} must be of type float32, is {array.dtype}")
        if not np.isfinite(array).all():
            raise InputError(f"tensor {name} holds values that are not finite")

    table = _check_layers(tensors, "compute.table", inputs=features)
    _check_statistics(tensors, "compute", features)
    outputs = _check_layers(tensors, "compute.set", inputs=table, outputs=_COST_OUTPUTS)
    if _is_shared(tensors):
        _check_shared(tensors, outputs)
        return
    for devices in _device_counts(tensors):
        if not 2 <= devices <= MAX_DEVICES:
            raise InputError(f"device count {devices} must lie between 2 and {MAX_DEVICES}")
        for network, inputs in (
            (f"forward.{devices}", 2 * devices),
            (f"backward.{devices}", devices),
        ):
            _check_layers(tensors, network, inputs=inputs, outputs=(devices,))
            _check_statistics(tensors, network, inputs)


def _check_shared(tensors: Mapping[str, F32], outputs: int) -> None:
    """``outputs``: of the compute network; all say how sure they are, or none does."""
    if counts := _device_counts(tensors):
        raise InputError(
            f"there are shared communication networks and others for {counts[0]} devices; a file "
            "has one kind"
        )
    for direction, inputs in _SHARED_FEATURES.items():
        network = f"{direction}.shared"
        channels = _check_layers(tensors, f"{network}.device", inputs=inputs)
        _check_statistics(tensors, network, inputs)
        _check_layers(tensors, f"{network}.head", inputs=3 * channels, outputs=(outputs,))


def _check_layers(
    tensors: Mapping[str, F32], network: str, *, inputs: int, outputs: tuple[int, ...] | None = None
) -> int:
    """Check that all layers of ``network`` are there and chain; returns the last one's outputs."""
    indices = sorted(
        {
            int(match[2])
            for name in tensors
            if (match := _LAYER_NAME.fullmatch(name)) and match[1] == network
        }
    )
    width = inputs
    for layer in range(indices[-1] + 1 if indices else 1):
        weight = _get(tensors, f"{network}.{layer}.weight")
        if weight.ndim != 2 or weight.shape[0] < 1 or weight.shape[1] != width:
            raise InputError(
                f"tensor {network}.{layer}.weight must have shape [outputs, {width}], "
                f"has {list(weight.shape)}"
            )
        width = weight.shape[0]
        _check_vector(tensors, f"{network}.{layer}.bias", width)
    if outputs is not None and width not in outputs:
        raise InputError(
            f"tensor {network}.{indices[-1]}.weight must have {' or '.join(map(str, outputs))} outputs, "
            f"has {width}"
        )
    return width


def _check_statistics(tensors: Mapping[str, F32], network: str, inputs: int) -> None:
    _check_vector(tensors, f"{network}.feature_mean", inputs)
    if not (_check_vector(tensors, f"{network}.feature_std", inputs) > 0).all():
        raise InputError(f"tensor {network}.feature_std must be positive")


def _check_vector(tensors: Mapping[str, F32], name: str, length: int) -> F32:
    vector = _get(tensors, name)
    if vector.shape != (length,):
        raise InputError(f"tensor {name} must have shape [{length}], has {list(vector.shape)}")
    return vector


def _get(tensors: Mapping[str, F32], name: str) -> F32:
    if name not in tensors:
        raise InputError(f"tensor {name} is missing")
    return tensors[name]
