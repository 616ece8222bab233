"""Folders of cost data, from which cost models are trained.

``DATA/compute`` holds measurements of fused lookups, ``DATA/comm_D`` of all-to-alls between D
devices. What was measured under other conditions, such as another batch size or data type, stands beside
them in ``DATA/compute-LABEL`` and ``DATA/comm_D-LABEL``. In each of them

- ``data.txt``: one sample a line in the published format (compute: ``id,id,… cost``, ids into
  ``table_configs.json`` beside it; communication: ``dims starts forward backward``, each
  comma-separated per device), costs and starts in ms;
- ``info.json``: how the data was made (:class:`CostDataInfo`); published data has none;
- ``repeats.txt``: samples measured once more later in the run, ``sample cost`` or
  ``sample forward backward``: how well measurements repeat bounds what a model of them can reach.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from neuroshard_fast import config, published
from neuroshard_fast.agreement import differences_of_repeats
from neuroshard_fast.checks import MAX_SEED, label, labels, one_of, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.cost_models import PUBLISHED_BATCH_SIZE
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import DataType, TableSet

Floats = npt.NDArray[np.float64]
DataSource = Literal["measured", "simulated"]
DrawnFrom = Literal["random", "plans"]
Backend = Literal["fbgemm", "embedding-bag", "gloo", "nccl", "simulated"]

COMPUTE_FOLDER = "compute"
HELD_OUT_FOLDER = "compute_heldout"
"""Samples of other tables than those of COMPUTE_FOLDER."""

_LABEL = r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}"
_FOLDER = re.compile(rf"(compute|compute_heldout|comm_([1-9][0-9]{{0,4}}))(?:-{_LABEL})?")


def communication_folder(devices: int) -> str:
    """Name of the folder of all-to-alls between ``devices`` devices."""
    return f"comm_{devices}"


def labelled(folder: str, label: str) -> str:
    """Name of the folder like ``folder`` for the condition that ``label`` names; "" for none.

    InputError unless it is letters, digits, dots and underscores, 64 at most, the first no dot.
    """
    if not label:
        return folder
    if not isinstance(label, str) or not re.fullmatch(_LABEL, label):
        raise InputError(
            "label must be 1 to 64 letters, digits, dots and underscores, the first a letter or digit, "
            f"got {shown(label)}"
        )
    return f"{folder}-{label}"


@dataclass(frozen=True)
class CostDataFolders:
    """The folders of cost data in one folder, each kind sorted by name.

    communication: by number of devices, ascending.
    """

    compute: list[Path]
    held_out: list[Path]
    communication: dict[int, list[Path]]


def cost_data_folders(folder: Path) -> CostDataFolders:
    """Those in ``folder``; InputError where it cannot be read."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror or error}") from error
    found = CostDataFolders([], [], {})
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match is None:
            continue
        if match[2] is not None:
            found.communication.setdefault(int(match[2]), []).append(folder / name)
        else:
            (found.compute if match[1] == COMPUTE_FOLDER else found.held_out).append(folder / name)
    communication = dict(sorted(found.communication.items()))
    return CostDataFolders(found.compute, found.held_out, communication)


class CostDataInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How cost data was made.

    source: "measured" on hardware or "simulated" by an analytic model.
    backend: what carried the operations out.
    hardware: the device; measurements on a CPU use one thread of it a device.
    batch_size: samples of the global batch.
    seed: of the samples drawn.
    warmup, iterations: untimed and timed iterations of a round, of which the median is taken.
    rounds: rounds of a measurement, some time apart; its cost is the median of theirs.
    world_size: devices of an all-to-all; None for lookups.
    drawn_from: "random" sets of tables and all-to-alls, or the device loads and all-to-alls of "plans" that a
        search proposed.
    sampling: which distribution samples are drawn from, ``TABLE_SETS`` or ``ALL_TO_ALLS`` in
        ``profile.sampling``.
    memory_bytes: the most that the tables of a sample take; None for communication.
    most_tables: the most tables of a sample of lookups.
    data_type, optimizer: of the tables, several joined by a comma; empty for communication.
    versions: of the libraries measured.
    date: of the start, ISO 8601.
    """

    schema: Literal["neuroshard/cost-data/1"] = "neuroshard/cost-data/1"
    source: DataSource
    backend: Backend
    hardware: str
    batch_size: int
    seed: int
    warmup: int
    iterations: int
    rounds: int = 1
    world_size: int | None = None
    drawn_from: DrawnFrom = "random"
    sampling: int = 1
    memory_bytes: int | None = None
    most_tables: int = 15
    data_type: str = ""
    optimizer: str = ""
    versions: dict[str, str]
    date: str

    def __post_init__(self) -> None:
        one_of(self.source, "source", get_args(DataSource))
        one_of(self.backend, "backend", get_args(Backend))
        one_of(self.drawn_from, "drawn_from", get_args(DrawnFrom))
        if (self.source == "simulated") != (self.backend == "simulated"):
            raise InputError(
                f"source {self.source!r} and backend {self.backend!r} contradict each other"
            )
        label(self.hardware, "hardware")
        whole_number(self.batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
        whole_number(self.seed, "seed", low=0, high=MAX_SEED)
        whole_number(self.warmup, "warmup", low=0, high=10**9)
        whole_number(self.iterations, "iterations", low=1, high=10**9)
        whole_number(self.rounds, "rounds", low=1, high=10**9)
        if self.world_size is not None:
            whole_number(self.world_size, "world_size", low=2, high=MAX_DEVICES)
        whole_number(self.sampling, "sampling", low=1, high=10**9)
        if self.memory_bytes is not None:
            whole_number(self.memory_bytes, "memory_bytes", low=1, high=MAX_MEMORY_BYTES)
        whole_number(self.most_tables, "most_tables", low=1, high=10**6)
        for field in ("data_type", "optimizer"):
            if getattr(self, field):
                label(getattr(self, field), field)
        labels(self.versions, "versions")
        label(self.date, "date")


@dataclass(frozen=True)
class ComputeData:
    """Measured (or simulated) costs of fused lookups.

    name: of the folder.
    tables: that samples are made of, with their histograms.
    samples: numbers of ``tables``, one tuple a sample.
    costs: ms, [samples].
    noise_floor: how well costs repeat, as a fraction. Each measurement ``x`` of a sample that
        ``repeats.txt`` has too (that of ``data.txt`` is one of them) is compared with the mean ``m``
        of the sample's other measurements; the floor is the mean of ``abs(x - m) / m`` over all
        measurements of all these samples. ``a`` and ``b`` alone give the mean of
        ``abs(a - b) / b`` and ``abs(a - b) / a``. None where nothing was measured twice.
    """

    name: str
    tables: TableSet
    samples: list[tuple[int, ...]]
    costs: Floats
    info: CostDataInfo | None
    noise_floor: float | None

    @property
    def batch_size(self) -> int:
        """Samples of the global batch."""
        return _batch_size(self.info)


@dataclass(frozen=True)
class CommunicationData:
    """Measured (or simulated) costs of all-to-alls; all arrays [samples, devices].

    name: of the folder.
    dims: columns that each device sends for a sample of the batch, in fp32 numbers.
    starts: ms after the first device at which each starts its forward all-to-all.
    forward, backward: ms.
    noise_floor_forward, noise_floor_backward: as in :class:`ComputeData`, each device's cost compared
        with that device's other ones; the mean is over the devices too.
    """

    name: str
    dims: Floats
    starts: Floats
    forward: Floats
    backward: Floats
    info: CostDataInfo | None
    noise_floor_forward: float | None
    noise_floor_backward: float | None

    @property
    def batch_size(self) -> int:
        """Samples of the global batch."""
        return _batch_size(self.info)


def _batch_size(info: CostDataInfo | None) -> int:
    """Published data, which does not say so itself, has the published one."""
    return PUBLISHED_BATCH_SIZE if info is None else info.batch_size


def read_compute(folder: str | os.PathLike[str]) -> ComputeData:
    """Read ``DATA/compute`` or any folder with ``data.txt`` and ``table_configs.json``.

    InputError where something is missing or malformed.
    """
    path = Path(folder)
    info = read_info(path)
    tables = published.read_table_configs(path / "table_configs.json")
    samples, costs = published.read_compute_samples(path / "data.txt", len(tables))
    floors = _noise_floors(path / "repeats.txt", costs[:, None, None])
    typed = _with_data_types(tables.table_set(), [table.data_type for table in tables], info, path)
    return ComputeData(path.name, typed, samples, costs, info, floors[0])


def read_communication(folder: str | os.PathLike[str]) -> CommunicationData:
    """Read ``DATA/comm_D`` or any folder with ``data.txt`` of all-to-alls; InputError as above."""
    path = Path(folder)
    dims, starts, forward, backward = published.read_communication_samples(path / "data.txt")
    floors = _noise_floors(path / "repeats.txt", np.stack([forward, backward], axis=1))
    return CommunicationData(path.name, dims, starts, forward, backward, read_info(path), *floors)


def _with_data_types(
    tables: TableSet, stated: list[DataType | None], info: CostDataInfo | None, path: Path
) -> TableSet:
    """Tables without a data type of their own have that of ``info``, which data of earlier versions had
    for all of them together."""
    of_all = info.data_type if info is not None and info.data_type else "fp32"
    if None not in stated or of_all == "fp32":
        return tables
    if of_all not in get_args(DataType):
        raise InputError(
            f"{path}: table_configs.json does not say which tables are of which data type ({of_all}); "
            "measure each data type into a folder of its own (--label)"
        )
    return TableSet.of(
        [
            msgspec.structs.replace(table, data_type=of_all) if own is None else table
            for table, own in zip(tables, stated, strict=True)
        ]
    )


def read_info(path: Path) -> CostDataInfo | None:
    """How the data in folder ``path`` was made; None where it does not say, as published data."""
    return config.load(path / "info.json", CostDataInfo) if (path / "info.json").exists() else None


def _noise_floors(path: Path, first: Floats) -> tuple[float | None, ...]:
    """The noise floor of each field, as :class:`ComputeData` and :class:`CommunicationData` say.

    path: of ``repeats.txt``; None for each field where there is no such file or nothing in it.
    first: first measurement of every sample, [samples, fields, devices].
    """
    measured: dict[int, list[Floats]] = {}
    text = config.read_bytes(path).decode(errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            sample, *fields = line.split()
            repeat = np.array([[float(x) for x in field.split(",")] for field in fields])
            before = first[int(sample)]
        except (ValueError, IndexError):
            raise InputError(f"{path}: line {number}: {line[:80]!r} is not a repeat") from None
        if int(sample) < 0 or repeat.shape != before.shape:
            raise InputError(f"{path}: line {number}: {line[:80]!r} is not a repeat of a sample")
        if not (np.isfinite(repeat).all() and (repeat > 0).all() and (before > 0).all()):
            raise InputError(f"{path}: line {number}: costs must be finite and above 0")
        measured.setdefault(int(sample), [before]).append(repeat)
    differences = []
    for same in map(np.array, measured.values()):
        relative = differences_of_repeats(same)
        differences.append(relative.transpose(1, 0, 2).reshape(first.shape[1], -1))
    if not differences:
        return tuple(None for _ in range(first.shape[1]))
    floors: list[float] = np.concatenate(differences, axis=1).mean(axis=1).tolist()
    return tuple(floors)
