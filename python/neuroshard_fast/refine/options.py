"""What a user may choose of refining."""

from __future__ import annotations

from dataclasses import dataclass

from neuroshard_fast.checks import MAX_SEED, finite_number, one_of, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.log import MAX_ROUNDS, ROUNDS
from neuroshard_fast.profile.simulated import HARDWARE
from neuroshard_fast.tables import MAX_DIM, MAX_TABLES

FEWEST_TASKS = 20
"""Of a cycle: training wants so many samples of each kind, and there are as many all-to-alls as plans."""
MAX_TASKS = 10_000
MAX_CYCLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RefineOptions:
    """How cost models are refined, and when that is enough.

    devices, memory_bytes, batch_size: of the cluster that tasks are planned for.
    tasks_per_cycle: fresh tasks that are planned and measured in a cycle.
    tables_per_task: the fewest and the most tables of a task.
    dims: each table of a task has one of these, at random; None for 4, 8, 16, … up to 128 or the largest
        of the pool.
    baselines: plans of greedy baselines that are measured for each task besides the search's, 0 to 4.
    rounds: of each plan, some time apart.
    seed: of the tasks.
    backend: of the lookups measured: "auto", "fbgemm" or "embedding-bag".
    hardware: what to simulate instead of measuring.
    target_bias: predicted and measured costs of a cycle's proposed plans agree where the bias is within
        this fraction
    target_mape: and the MAPE within this times the noise floor.
    cycles: the most cycles in all, those of earlier runs included; None for any number.
    label: of the folders that the samples and the record of the cycles go to; "" for plans_D_B with D devices
        and batch size B.
    budget_seconds: after the first of a run, no cycle is begun that would probably end later than this; None
        for any time.
    """

    devices: int
    memory_bytes: int
    batch_size: int
    tasks_per_cycle: int = FEWEST_TASKS
    tables_per_task: tuple[int, int] = (10, 60)
    dims: tuple[int, ...] | None = None
    baselines: int = 1
    rounds: int = ROUNDS
    seed: int = 0
    backend: str = "auto"
    hardware: str | None = None
    target_bias: float = 0.02
    target_mape: float = 1.5
    cycles: int | None = None
    label: str = ""
    budget_seconds: float | None = None

    def __post_init__(self) -> None:
        whole_number(self.devices, "devices", low=2, high=MAX_DEVICES)
        whole_number(self.memory_bytes, "memory_bytes", low=1, high=MAX_MEMORY_BYTES)
        whole_number(self.batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
        whole_number(self.tasks_per_cycle, "tasks_per_cycle", low=FEWEST_TASKS, high=MAX_TASKS)
        if len(self.tables_per_task) != 2:
            raise InputError(
                "tables_per_task must be two numbers, the fewest and the most, got "
                f"{len(self.tables_per_task)}"
            )
        fewest, most = self.tables_per_task
        whole_number(most, "tables_per_task: the most", low=1, high=MAX_TABLES)
        whole_number(fewest, "tables_per_task: the fewest", low=1, high=most)
        if self.dims is not None:
            if not self.dims:
                raise InputError("dims: at least one is wanted")
            for dim in self.dims:
                whole_number(dim, "dims", low=4, high=MAX_DIM)
                if dim % 4:
                    raise InputError(f"dims must be multiples of 4, got {dim}")
        whole_number(self.baselines, "baselines", low=0, high=4)
        whole_number(self.rounds, "rounds", low=1, high=MAX_ROUNDS)
        whole_number(self.seed, "seed", low=0, high=MAX_SEED)
        finite_number(self.target_bias, "target_bias", low=0.0, high=1e6)
        finite_number(self.target_mape, "target_mape", low=0.0, high=1e6)
        if self.hardware is not None:
            one_of(self.hardware, "hardware", tuple(HARDWARE))
        if self.cycles is not None:
            whole_number(self.cycles, "cycles", low=1, high=MAX_CYCLES)
        if self.budget_seconds is not None:
            finite_number(self.budget_seconds, "budget_seconds", low=0.0, high=1e12)

    @property
    def labelled(self) -> str:
        """The label, or the one of this device count and batch size."""
        return self.label or f"plans_{self.devices}_{self.batch_size}"
