"""What is known of the cycles so far, from which refining goes on after it was interrupted."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import MAX_SEED, finite_number, label, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.log import MAX_ROUNDS
from neuroshard_fast.refine.comparison import Comparison
from neuroshard_fast.refine.options import MAX_CYCLES, MAX_TASKS, RefineOptions
from neuroshard_fast.tables import MAX_DIM, MAX_TABLES, TableSet

_MAX_SAMPLES = 10**9


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must stay the same from one run to the next.

    tables, cost_models: SHA-256 of the pool and of the models begun with.
    backend: of the lookups, or "simulated". Others: as in :class:`RefineOptions`.
    """

    tables: str
    cost_models: str
    backend: str
    hardware: str | None
    devices: int
    memory_bytes: int
    batch_size: int
    tasks_per_cycle: int
    tables_per_task: tuple[int, int]
    dims: tuple[int, ...] | None
    baselines: int
    rounds: int
    seed: int

    def __post_init__(self) -> None:
        for field in ("tables", "cost_models", "backend"):
            label(getattr(self, field), field)
        if self.hardware is not None:
            label(self.hardware, "hardware")
        for field, low, high in (
            ("devices", 2, MAX_DEVICES),
            ("memory_bytes", 1, MAX_MEMORY_BYTES),
            ("batch_size", 1, MAX_BATCH_SIZE),
            ("tasks_per_cycle", 1, MAX_TASKS),
            ("baselines", 0, 4),
            ("rounds", 1, MAX_ROUNDS),
            ("seed", 0, MAX_SEED),
        ):
            whole_number(getattr(self, field), field, low=low, high=high)
        for tables in self.tables_per_task:
            whole_number(tables, "tables_per_task", low=1, high=MAX_TABLES)
        for dim in self.dims or ():
            whole_number(dim, "dims", low=4, high=MAX_DIM)

    @classmethod
    def of(
        cls, pool: TableSet, models: CostModels, backend: str, options: RefineOptions
    ) -> Settings:
        """Those that a run is started with."""
        return cls(
            tables=hashlib.sha256(config.encode(pool)).hexdigest(),
            cost_models=_fingerprint(models),
            backend=backend,
            hardware=options.hardware,
            devices=options.devices,
            memory_bytes=options.memory_bytes,
            batch_size=options.batch_size,
            tasks_per_cycle=options.tasks_per_cycle,
            tables_per_task=options.tables_per_task,
            dims=options.dims,
            baselines=options.baselines,
            rounds=options.rounds,
            seed=options.seed,
        )


class Cycle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well the models of a cycle agreed with what its plans cost, none of which they knew.

    proposed: costs of the search's plans.
    settled: the same against what they would cost if every device took the medians of its rounds.
    compute, forward, backward: of the devices of these plans.
    baselines: costs of the other plans; None where there were none.
    lookup_speed, transfer_speed: of the machine against that of the cost data, in lookups and in
        all-to-alls, medians over the rounds; costs are compared as if they were 1. None where there was
        nothing to tell them by.
    date: when they had been compared, ISO 8601.
    seconds: how long the cycle took, without what a killed run did of it.
    is_trained: whether new models were trained with its measurements; not where these agreed.
    """

    proposed: Comparison
    settled: Comparison
    compute: Comparison
    forward: Comparison
    backward: Comparison
    baselines: Comparison | None
    lookup_speed: float | None = None
    transfer_speed: float | None = None
    date: str
    seconds: float
    is_trained: bool

    def __post_init__(self) -> None:
        label(self.date, "date")
        finite_number(self.seconds, "seconds", low=0.0, high=1e12)
        for field in ("lookup_speed", "transfer_speed"):
            if getattr(self, field) is not None:
                finite_number(getattr(self, field), field, low=0.0, high=1e12)


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings, and the cycles in turn; only the last of them may lack its training."""

    schema: Literal["neuroshard/refine/1"] = "neuroshard/refine/1"
    settings: Settings
    cycles: tuple[Cycle, ...] = ()

    def __post_init__(self) -> None:
        whole_number(len(self.cycles), "cycles: their number", low=0, high=MAX_CYCLES)
        for number, cycle in enumerate(self.cycles[:-1], 1):
            if not cycle.is_trained:
                raise InputError(f"cycles: cycle {number} lacks its training, but is not the last")


class RefineFolder:
    """``DATA/refine-plans_D_B``: the state, and in ``cycle_K`` the plans, rounds and models of each cycle.

    InputError where it was begun with other settings; the message names the first that differs.
    """

    def __init__(self, data: Path, label_: str, settings: Settings) -> None:
        self.path = data / f"refine-{label_}"
        self._file = self.path / "state.json"
        self.state = State(settings=settings)
        if self._file.exists():
            self.state = config.load(self._file, State)
            for field in Settings.__struct_fields__:
                before, now = getattr(self.state.settings, field), getattr(settings, field)
                if before != now:
                    raise InputError(
                        f"{self._file}: was begun with other {field} ({before}, not {now}); go on with "
                        "the same, or give a new folder of cost data"
                    )

    def begin(self) -> None:
        """Write the settings down where they are not yet, for a run that goes on."""
        if not self._file.exists():
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"{self.path}: cannot be made: {error.strerror or error}"
                ) from error
            config.save(self._file, self.state)

    def cycle(self, number: int) -> Path:
        """The folder of a cycle, counted from 1; made where it is missing."""
        path = self.path / f"cycle_{number}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be made: {error.strerror or error}") from error
        return path

    def models_file(self, number: int) -> Path:
        """The models that a cycle trained."""
        return self.cycle(number) / "models.safetensors"

    def save_cycle(self, number: int, cycle: Cycle) -> None:
        """Record ``cycle`` as the one of that number: the last one, or the one after it."""
        cycles = (*self.state.cycles[: number - 1], cycle)
        self.state = msgspec.structs.replace(self.state, cycles=cycles)
        config.save(self._file, self.state)


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """InputError where another process refines in ``data``: both would train on what both measure."""
    path = data / "refine.lock"
    try:
        file = path.open("ab")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{data}: another process is refining in it") from None
        yield


def _fingerprint(models: CostModels) -> str:
    digest = hashlib.sha256(config.encode(models.info))
    for name, tensor in sorted(models.tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
