"""From a folder of cost data to cost models."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import label
from neuroshard_fast.cluster import MAX_DEVICES
from neuroshard_fast.cost_data import (
    COMPUTE_FOLDER,
    CommunicationData,
    ComputeData,
    CostDataInfo,
    cost_data_folders,
    read_communication,
    read_compute,
)
from neuroshard_fast.cost_models import (
    F32,
    CostModels,
    CostModelsInfo,
    HeldOut,
    HeldOutError,
    Training,
    TrainingData,
    check_output,
)
from neuroshard_fast.doubts import TableRanges, TrainedOn
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.features import FEATURE_NAMES, compute_features
from neuroshard_fast.plan import Source
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.report import picture_format, require_matplotlib
from neuroshard_fast.stamps import installed_versions, utc_now
from neuroshard_fast.tables import EmbeddingTable

if TYPE_CHECKING:
    from neuroshard_fast.pretrain.calibration import HeldOutSamples
    from neuroshard_fast.pretrain.networks import Predictions

Floats = npt.NDArray[np.float64]

_COMPUTE = "compute"  # the network
_FEWEST_SAMPLES = 20
_LEAST_COST_MS = 1e-9  # errors are relative to costs, in fp32
_LIBRARIES = ("torch", "numpy", "scipy", "neuroshard-fast")


def pretrain(
    folder: str | os.PathLike[str],
    name: str,
    options: PretrainOptions | None = None,
    *,
    progress: bool = True,
    output: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
) -> CostModels:
    """Train cost networks on the cost data in ``folder``.

    folder: holds ``compute`` and, for each device count D trained on, ``comm_D``; perhaps
        ``compute_heldout``: samples of tables that ``compute`` lacks, to report the error on
        unseen tables. Of each there may be several, with a label behind ``-``: of other batch sizes, data
        types or plans that a search proposed.
    name: of the cost models.
    progress: show a progress bar for each network.
    output: a file to write the models to.
    plot: a picture to draw of how right predictions are on held-out samples.

    InputError where the data is unsound, too small, or of different sources, or of different batch sizes
    where networks serve but one; MissingDependencyError without the extra ``pretrain``.
    """
    label(name, "name")
    if output is not None:
        check_output(output)
    if plot is not None:
        picture_format(plot)
        require_matplotlib()
    options = options or PretrainOptions()
    data_folder = Path(folder)
    data = read_cost_data(data_folder, options)
    described = data.described()
    source, hardware = _source(described), _hardware(described)
    command = label(_command(data_folder, name, options), f"{folder}: the command to record")

    tensors: dict[str, F32] = {}
    results = _Results([], [])
    with _torch(options):
        _train_compute(data, options, tensors, results, progress=progress)
        if options.communication == "per-count":
            for part in data.communication:
                _train_communication(part, options, tensors, results, progress=progress)
        elif data.communication:
            _train_shared(data.communication, options, tensors, results, progress=progress)
    is_shared = bool(data.communication) and options.communication == "shared"
    info = CostModelsInfo(
        name=name,
        source=source,
        hardware=hardware,
        batch_size=data.compute[0].batch_size,
        devices_per_node=options.devices_per_node if is_shared else None,
        feature_names=FEATURE_NAMES[options.features],
        trained_on=_trained_on(data),
        data=tuple(described),
        training=Training(
            command=command,
            seed=options.seed,
            date=utc_now(),
            versions={"python": platform.python_version(), **installed_versions(_LIBRARIES)},
        ),
        errors=tuple(results.errors),
    )
    models = CostModels(info, tensors)
    if output is not None:
        models.save(output)
    if plot is not None:
        from neuroshard_fast.pretrain.calibration import draw_calibration

        draw_calibration(results.samples, info, plot)
    return models


@dataclass(frozen=True)
class _Results:
    """How right the trained networks are."""

    errors: list[HeldOutError]
    samples: list[HeldOutSamples]

    def add(
        self,
        network: str,
        held_out: HeldOut,
        predicted: Predictions,
        measured: Floats,
        noise_floor: float | None,
        *,
        part: str,
        devices: int | None = None,
    ) -> None:
        """As :func:`neuroshard_fast.pretrain.accuracy.held_out_error` takes them."""
        from neuroshard_fast.pretrain.accuracy import held_out_error
        from neuroshard_fast.pretrain.calibration import HeldOutSamples

        self.errors.append(
            held_out_error(
                network, held_out, predicted, measured, noise_floor, part=part, devices=devices
            )
        )
        self.samples.append(HeldOutSamples(network, predicted, measured))


@dataclass(frozen=True)
class CostData:
    """All cost data in a folder.

    compute, held_out, communication: in the order of their folders' names.
    """

    compute: list[ComputeData]
    held_out: list[ComputeData]
    communication: list[CommunicationData]

    def described(self) -> list[TrainingData]:
        """What cost models say of the data that they are made of."""
        return [
            *(_training_data(part, len(part.tables)) for part in (*self.compute, *self.held_out)),
            *(_training_data(part) for part in self.communication),
        ]


def read_cost_data(folder: Path, options: PretrainOptions) -> CostData:
    """All cost data in ``folder``; InputError where networks of ``options`` cannot be trained on it."""
    folders = cost_data_folders(folder)
    if not folders.compute:
        raise InputError(f"{folder}: no folder {COMPUTE_FOLDER} or {COMPUTE_FOLDER}-LABEL in it")
    compute = [read_compute(path) for path in folders.compute]
    for path, part in zip(folders.compute, compute, strict=True):
        _check_costs(path, part.costs)
    held_out = [read_compute(path) for path in folders.held_out]
    for path, part in zip(folders.held_out, held_out, strict=True):
        _check_unseen(path, part, compute)
        _check_range(path, part.costs)
    communication = [
        _read_communication(path, devices)
        for devices, paths in folders.communication.items()
        for path in paths
    ]
    data = CostData(compute, held_out, communication)
    described = data.described()
    _check_same(folder, "source", described)
    # Else the error on unseen tables would be that of another operator.
    _check_same(folder, "backend", [part for part in described if part.tables is not None])
    if options.features == "published" or options.communication == "per-count":
        _check_same(folder, "batch_size", described)
    if options.communication == "per-count":
        _check_one_folder_a_count(folder)
    return data


def _train_compute(
    data: CostData,
    options: PretrainOptions,
    tensors: dict[str, F32],
    results: _Results,
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.networks import ComputeRegression, LookupSamples, calibrate
    from neuroshard_fast.pretrain.training import Split, fit

    samples = LookupSamples.of(options.features, data.compute)
    splits: list[Split] = []
    first = 0
    for part in data.compute:
        splits.append(Split.random(len(part.costs), options.seed, first))
        first += len(part.costs)
    split = Split.joined(splits, [_repeats(part, data.compute, options) for part in data.compute])
    regression = ComputeRegression(options.features, samples, split.training, options)
    fit(
        regression,
        [split],
        options,
        minibatch_size=options.minibatch_size,
        weight_decay=options.weight_decay,
        label=_COMPUTE,
        progress=progress,
    )
    calibrate(regression, regression.output, [each.validation for each in splits])
    tensors |= regression.export()
    for part, own in zip(data.compute, splits, strict=True):
        sets = [samples.sets[index] for index in own.test]
        predicted = regression.predict(samples.features, sets)
        results.add(
            _COMPUTE,
            _held_out(part.info),
            predicted,
            samples.costs[own.test][:, None],
            part.noise_floor,
            part=part.name,
        )
    for part in data.held_out:
        features = compute_features(options.features, part.tables, part.batch_size)
        predicted = regression.predict(features, part.samples)
        costs = part.costs[:, None]
        results.add(_COMPUTE, "tables", predicted, costs, part.noise_floor, part=part.name)


def _train_communication(
    part: CommunicationData,
    options: PretrainOptions,
    tensors: dict[str, F32],
    results: _Results,
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.networks import CommunicationRegression
    from neuroshard_fast.pretrain.training import Split, fit

    split = Split.random(len(part.dims), options.seed)
    devices = part.dims.shape[1]
    for direction, inputs in (
        ("forward", [part.dims, part.starts]),
        ("backward", [part.dims]),
    ):
        network = f"{direction}.{devices}"
        costs, noise_floor = _costs(part, direction)
        regression = CommunicationRegression(network, inputs, costs, split.training, options)
        fit(
            regression,
            [split],
            options,
            minibatch_size=options.minibatch_size,
            weight_decay=0.0,
            label=network,
            progress=progress,
        )
        tensors |= regression.export()
        predicted = regression.predict(split.test)
        results.add(
            network,
            _held_out(part.info),
            predicted,
            costs[split.test],
            noise_floor,
            part=part.name,
        )


def _costs(part: CommunicationData, direction: str) -> tuple[Floats, float | None]:
    """Costs and noise floor of one direction."""
    if direction == "forward":
        return part.forward, part.noise_floor_forward
    return part.backward, part.noise_floor_backward


def _train_shared(
    communication: list[CommunicationData],
    options: PretrainOptions,
    tensors: dict[str, F32],
    results: _Results,
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.networks import calibrate
    from neuroshard_fast.pretrain.shared_communication import (
        AllToAlls,
        SharedCommunicationRegression,
    )
    from neuroshard_fast.pretrain.training import Split, fit

    splits: list[Split] = []
    first = 0
    for part in communication:
        splits.append(Split.random(len(part.dims), options.seed, first))
        first += len(part.dims)
    repeated = [
        split.repeated(_repeats(part, communication, options))
        for part, split in zip(communication, splits, strict=True)
    ]
    for direction in ("forward", "backward"):
        network = f"{direction}.shared"
        samples = [
            AllToAlls(
                part.batch_size,
                part.dims,
                part.starts if direction == "forward" else None,
                _costs(part, direction)[0],
            )
            for part in communication
        ]
        regression = SharedCommunicationRegression(direction, samples, splits, options)
        fit(
            regression,
            repeated,
            options,
            minibatch_size=options.shared_minibatch_size,
            weight_decay=0.0,
            label=network,
            progress=progress,
        )
        calibrate(regression, regression.output, [split.validation for split in splits])
        tensors |= regression.export()
        first = 0
        for part, split in zip(communication, splits, strict=True):
            costs, noise_floor = _costs(part, direction)
            results.add(
                network,
                _held_out(part.info),
                regression.predict(split.test),
                costs[split.test - first],
                noise_floor,
                part=part.name,
                devices=part.dims.shape[1],
            )
            first += len(costs)


def _repeats(
    part: ComputeData | CommunicationData,
    parts: Sequence[ComputeData | CommunicationData],
    options: PretrainOptions,
) -> int:
    """How often the samples of ``part`` are trained on for once that random ones are.

    Samples of plans are few, and are where planning looks: of all they become ``proposed_share``.
    """
    if _held_out(part.info) != "plans":
        return 1
    proposed = sum(_samples(each) for each in parts if _held_out(each.info) == "plans")
    others = sum(map(_samples, parts)) - proposed
    share = options.proposed_share
    return max(1, round(others * share / (1 - share) / proposed))


def _samples(part: ComputeData | CommunicationData) -> int:
    return len(part.samples if isinstance(part, ComputeData) else part.dims)


def _held_out(info: CostDataInfo | None) -> Literal["samples", "plans"]:
    return "plans" if info is not None and info.drawn_from == "plans" else "samples"


def _trained_on(data: CostData) -> TrainedOn:
    """What the samples to train on span."""
    quantities = []
    loads = []
    for part in data.compute:
        each = TableRanges.of(part.tables, part.batch_size)
        quantities.append(each)
        loads += [
            (len(sample), each.lookups[list(sample)].sum(), each.read_bytes[list(sample)].sum())
            for sample in part.samples
        ]
    infos = [part.info for part in data.compute]
    sizes = [part.batch_size for part in data.compute]
    device_tables, device_lookups, device_read_bytes = (_range(x) for x in zip(*loads, strict=True))
    tables = {
        field: _range(np.concatenate([getattr(each, field) for each in quantities]))
        for field in ("rows", "width", "pooling_factor", "reuse")
    }
    sent = [part.dims * 4 * part.batch_size for part in data.communication]
    waits = [part.starts.max(axis=1, keepdims=True) - part.starts for part in data.communication]
    return TrainedOn(
        batch_sizes=(min(sizes), max(sizes)),
        data_types=tuple(sorted({table.data_type for x in data.compute for table in x.tables})),
        optimizers=tuple(
            sorted(
                {o for info in infos if info and info.optimizer for o in info.optimizer.split(",")}
            )
        ),
        **tables,
        device_tables=device_tables,
        device_lookups=device_lookups,
        device_read_bytes=device_read_bytes,
        device_counts=tuple(sorted({part.dims.shape[1] for part in data.communication})),
        sent_bytes=_range(np.concatenate([x.ravel() for x in sent])) if sent else None,
        wait_ms=_range(np.concatenate([x.ravel() for x in waits])) if waits else None,
    )


def _range(values: npt.ArrayLike) -> tuple[float, float]:
    array = np.asarray(values, float)
    return float(array.min()), float(array.max())


@contextmanager
def _torch(options: PretrainOptions) -> Iterator[None]:
    """Torch with the seed and threads of ``options``, and as it was afterwards."""
    try:
        import scipy.stats  # noqa: F401
        import torch
        import tqdm  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"pre-training needs {error.name}: pip install 'neuroshard-fast[pretrain]'"
        ) from error
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        torch.set_num_threads(options.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _read_communication(folder: Path, devices: int) -> CommunicationData:
    samples = read_communication(folder)
    found = samples.dims.shape[1]
    if found != devices or not 2 <= devices <= MAX_DEVICES:
        raise InputError(
            f"{folder}: holds data of {found} devices; the folder's name must be comm_D with their "
            f"number, 2 to {MAX_DEVICES}"
        )
    for costs in (samples.forward, samples.backward):
        _check_costs(folder, costs)
    return samples


def _check_unseen(folder: Path, held_out: ComputeData, compute: Sequence[ComputeData]) -> None:
    """InputError where a table is trained on too. A table with other dims is the same table."""
    known = {_identity(table) for part in compute for table in part.tables}
    for index, table in enumerate(held_out.tables):
        if _identity(table) in known:
            raise InputError(
                f"{folder}: table {index} of table_configs.json is also in {COMPUTE_FOLDER}; the tables "
                "of the two folders must differ, so that the error on unseen tables is one"
            )


def _identity(table: EmbeddingTable) -> tuple[object, ...]:
    return table.num_embeddings, table.pooling_factor, table.reuse_histogram


def _check_range(folder: Path, costs: npt.NDArray[np.float64]) -> None:
    if not (costs >= _LEAST_COST_MS).all():
        raise InputError(
            f"{folder}: data.txt: every cost must be above 0 ms (at least {_LEAST_COST_MS:g}), got "
            f"{costs.min():g}"
        )


def _check_costs(folder: Path, costs: npt.NDArray[np.float64]) -> None:
    if len(costs) < _FEWEST_SAMPLES:
        raise InputError(
            f"{folder}: {len(costs)} samples are too few to train on; at least {_FEWEST_SAMPLES}"
        )
    _check_range(folder, costs)


def _training_data(
    part: ComputeData | CommunicationData, tables: int | None = None
) -> TrainingData:
    info = part.info
    if info is None:
        return TrainingData(part=part.name, samples=_samples(part), tables=tables)
    return TrainingData(
        part=part.name,
        samples=_samples(part),
        tables=tables,
        data_type=info.data_type or None,
        source=info.source,
        backend=info.backend,
        hardware=info.hardware,
        batch_size=info.batch_size,
        seed=info.seed,
        rounds=info.rounds,
        date=info.date,
        versions=info.versions,
    )


def _source(data: list[TrainingData]) -> Source:
    return "imported" if data[0].source is None else data[0].source


def _hardware(data: list[TrainingData]) -> str:
    named = dict.fromkeys(part.hardware for part in data if part.hardware is not None)
    return "; ".join(named) or "unknown (published cost data)"


def _check_one_folder_a_count(folder: Path) -> None:
    for devices, paths in cost_data_folders(folder).communication.items():
        if len(paths) > 1:
            listed = ", ".join(path.name for path in paths)
            raise InputError(
                f"{folder}: {listed}: networks of one device count are trained on one folder; give one for "
                f"{devices} devices, or train shared networks"
            )


def _check_same(folder: Path, field: str, data: list[TrainingData]) -> None:
    values = {part.part: getattr(part, field) for part in data}
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{part}: {value}" for part, value in values.items())
        raise InputError(
            f"{folder}: info.json: {field} must be the same for all of them ({listed})"
        )


def _command(folder: Path, name: str, options: PretrainOptions) -> str:
    words = ["neuroshard", "pretrain", folder.resolve().name, "-o", f"{name}.safetensors"]
    defaults = PretrainOptions()
    for field in fields(options):
        value = getattr(options, field.name)
        if value != getattr(defaults, field.name):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += ["--" + field.name.replace("_", "-"), text]
    return shlex.join(words)
