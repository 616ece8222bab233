"""From a folder of cost data to cost models."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import label
from neuroshard_fast.cluster import MAX_DEVICES
from neuroshard_fast.cost_data import (
    COMPUTE_FOLDER,
    HELD_OUT_FOLDER,
    CommunicationData,
    ComputeData,
    CostDataInfo,
    communication_folder,
    device_counts,
    read_communication,
    read_compute,
)
from neuroshard_fast.cost_models import (
    F32,
    PUBLISHED_BATCH_SIZE,
    CostModels,
    CostModelsInfo,
    HeldOutError,
    Training,
    TrainingData,
)
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.features import DIM_COLUMN
from neuroshard_fast.plan import Source
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.stamps import installed_versions, utc_now

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
) -> CostModels:
    """Train cost networks on the cost data in ``folder``.

    folder: holds ``compute`` and, for each device count D trained on, ``comm_D``; perhaps
        ``compute_heldout``: samples of tables that ``compute`` lacks, to report the error on
        unseen tables.
    name: of the cost models.
    progress: show a progress bar for each network.

    InputError where the data is unsound, too small, or of different batch sizes or sources;
    MissingDependencyError without the extra ``pretrain``.
    """
    label(name, "name")
    options = options or PretrainOptions()
    data_folder = Path(folder)
    compute = read_compute(data_folder / COMPUTE_FOLDER)
    held_out = _read_held_out_tables(data_folder / HELD_OUT_FOLDER, compute)
    communication = {
        devices: _read_communication(data_folder / communication_folder(devices), devices)
        for devices in device_counts(data_folder)
    }
    _check_costs(data_folder / COMPUTE_FOLDER, compute.costs)
    data = [_training_data(COMPUTE_FOLDER, len(compute.costs), compute.info, len(compute.features))]
    if held_out is not None:
        data.append(
            _training_data(
                HELD_OUT_FOLDER, len(held_out.costs), held_out.info, len(held_out.features)
            )
        )
    data += [
        _training_data(communication_folder(devices), len(samples.dims), samples.info)
        for devices, samples in communication.items()
    ]

    source, hardware, batch_size = _common(data_folder, data)
    command = label(_command(data_folder, name, options), f"{folder}: the command to record")

    tensors: dict[str, F32] = {}
    errors: list[HeldOutError] = []
    with _torch(options):
        _train_compute(compute, held_out, options, tensors, errors, progress=progress)
        if options.communication == "per-count":
            for devices, samples in communication.items():
                _train_communication(devices, samples, options, tensors, errors, progress=progress)
        elif communication:
            _train_shared(communication, batch_size, options, tensors, errors, progress=progress)
    info = CostModelsInfo(
        name=name,
        source=source,
        hardware=hardware,
        batch_size=batch_size,
        devices_per_node=(
            options.devices_per_node
            if communication and options.communication == "shared"
            else None
        ),
        data=tuple(data),
        training=Training(
            command=command,
            seed=options.seed,
            date=utc_now(),
            versions={"python": platform.python_version(), **installed_versions(_LIBRARIES)},
        ),
        errors=tuple(errors),
    )
    return CostModels(info, tensors)


def _train_compute(
    compute: ComputeData,
    held_out: ComputeData | None,
    options: PretrainOptions,
    tensors: dict[str, F32],
    errors: list[HeldOutError],
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.accuracy import held_out_error
    from neuroshard_fast.pretrain.networks import ComputeRegression
    from neuroshard_fast.pretrain.training import Split, fit

    split = Split.random(len(compute.costs), options.seed)
    regression = ComputeRegression(
        compute.features, compute.samples, compute.costs, split.training, options
    )
    fit(
        regression,
        [split],
        options,
        minibatch_size=options.minibatch_size,
        weight_decay=options.weight_decay,
        label=_COMPUTE,
        progress=progress,
    )
    tensors |= regression.export()
    predicted = regression.predict(compute.features, [compute.samples[i] for i in split.test])
    errors.append(
        held_out_error(
            _COMPUTE, "samples", predicted, compute.costs[split.test], compute.noise_floor
        )
    )
    if held_out is not None:
        predicted = regression.predict(held_out.features, held_out.samples)
        noise_floor = (
            held_out.noise_floor if held_out.noise_floor is not None else compute.noise_floor
        )
        errors.append(held_out_error(_COMPUTE, "tables", predicted, held_out.costs, noise_floor))


def _train_communication(
    devices: int,
    samples: CommunicationData,
    options: PretrainOptions,
    tensors: dict[str, F32],
    errors: list[HeldOutError],
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.accuracy import held_out_error
    from neuroshard_fast.pretrain.networks import CommunicationRegression
    from neuroshard_fast.pretrain.training import Split, fit

    split = Split.random(len(samples.dims), options.seed)
    for network, inputs, costs, noise_floor in (
        (
            f"forward.{devices}",
            [samples.dims, samples.starts],
            samples.forward,
            samples.noise_floor_forward,
        ),
        (f"backward.{devices}", [samples.dims], samples.backward, samples.noise_floor_backward),
    ):
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
        errors.append(held_out_error(network, "samples", predicted, costs[split.test], noise_floor))


def _train_shared(
    communication: Mapping[int, CommunicationData],
    batch_size: int,
    options: PretrainOptions,
    tensors: dict[str, F32],
    errors: list[HeldOutError],
    *,
    progress: bool,
) -> None:
    from neuroshard_fast.pretrain.accuracy import held_out_error
    from neuroshard_fast.pretrain.shared_communication import (
        AllToAlls,
        SharedCommunicationRegression,
    )
    from neuroshard_fast.pretrain.training import Split, fit

    splits: dict[int, Split] = {}
    first = 0
    for devices, part in communication.items():
        splits[devices] = Split.random(len(part.dims), options.seed, first)
        first += len(part.dims)
    forward = {
        devices: AllToAlls(part.dims, part.starts, part.forward)
        for devices, part in communication.items()
    }
    backward = {
        devices: AllToAlls(part.dims, None, part.backward)
        for devices, part in communication.items()
    }
    for direction, samples in (("forward", forward), ("backward", backward)):
        network = f"{direction}.shared"
        regression = SharedCommunicationRegression(direction, samples, splits, batch_size, options)
        fit(
            regression,
            list(splits.values()),
            options,
            minibatch_size=options.shared_minibatch_size,
            weight_decay=0.0,
            label=network,
            progress=progress,
        )
        tensors |= regression.export()
        first = 0
        for devices, part in communication.items():
            test = splits[devices].test
            measured = samples[devices].costs[test - first]
            first += len(part.dims)
            noise_floor = (
                part.noise_floor_forward if direction == "forward" else part.noise_floor_backward
            )
            errors.append(
                held_out_error(
                    network,
                    "samples",
                    regression.predict(test),
                    measured,
                    noise_floor,
                    devices=devices,
                )
            )


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


def _read_held_out_tables(folder: Path, compute: ComputeData) -> ComputeData | None:
    """Samples of tables that are not trained on, or None where there are none.

    A table with other dims is the same table.
    """
    if not folder.exists():
        return None
    held_out = read_compute(folder)
    known = {row.tobytes() for row in np.delete(compute.features, DIM_COLUMN, axis=1)}
    for index, row in enumerate(np.delete(held_out.features, DIM_COLUMN, axis=1)):
        if row.tobytes() in known:
            raise InputError(
                f"{folder}: table {index} of table_configs.json is also in {COMPUTE_FOLDER}; the tables "
                "of the two folders must differ, so that the error on unseen tables is one"
            )
    _check_range(folder, held_out.costs)
    return held_out


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
    part: str, samples: int, info: CostDataInfo | None, tables: int | None = None
) -> TrainingData:
    if info is None:
        return TrainingData(part=part, samples=samples, tables=tables)
    return TrainingData(
        part=part,
        samples=samples,
        tables=tables,
        source=info.source,
        backend=info.backend,
        hardware=info.hardware,
        batch_size=info.batch_size,
        seed=info.seed,
        rounds=info.rounds,
        date=info.date,
        versions=info.versions,
    )


def _common(folder: Path, data: list[TrainingData]) -> tuple[Source, str, int]:
    """Source, hardware and batch size of all parts; InputError where they are not of one kind."""
    _check_same(folder, "source", data)
    _check_same(folder, "batch_size", data)
    # Else the error on unseen tables would be that of another operator.
    lookups = [part for part in data if part.part in (COMPUTE_FOLDER, HELD_OUT_FOLDER)]
    _check_same(folder, "backend", lookups)
    source, batch_size = data[0].source, data[0].batch_size
    hardware = dict.fromkeys(part.hardware for part in data if part.hardware is not None)
    return (
        "imported" if source is None else source,
        "; ".join(hardware) or "unknown (published cost data)",
        PUBLISHED_BATCH_SIZE if batch_size is None else batch_size,
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
