"""A sharding plan: which columns of which table lie on which device, and what that is predicted to cost."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Literal, get_args

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, label, one_of, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import MAX_DIM, EmbeddingTable, TableSet

Source = Literal["measured", "simulated", "imported"]


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Columns ``column_offset`` … ``column_offset + width - 1`` of a table, on one device."""

    table: str
    column_offset: int
    width: int
    device: int
    memory_bytes: int

    def __post_init__(self) -> None:
        label(self.table, "shard: table")
        where = f"shard of table {self.table!r}"
        whole_number(self.column_offset, f"{where}: column_offset", low=0, high=MAX_DIM - 1)
        whole_number(self.width, f"{where}: width", low=1, high=MAX_DIM - self.column_offset)
        whole_number(self.device, f"{where}: device", low=0, high=MAX_DEVICES - 1)
        whole_number(self.memory_bytes, f"{where}: memory_bytes", low=0, high=MAX_MEMORY_BYTES)


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one device holds and what its step is predicted to cost, in milliseconds.

    high_ms: the total if each part costs what nine of ten stay below; None where the cost models do not say.
    """

    device: int
    num_shards: int
    memory_bytes: int
    compute_ms: float
    forward_comm_ms: float
    backward_comm_ms: float
    total_ms: float
    high_ms: float | None = None

    def __post_init__(self) -> None:
        where = f"device {self.device}"
        whole_number(self.device, f"{where}: device", low=0, high=MAX_DEVICES - 1)
        whole_number(self.num_shards, f"{where}: num_shards", low=0, high=2**31)
        whole_number(self.memory_bytes, f"{where}: memory_bytes", low=0, high=MAX_MEMORY_BYTES)
        for field in ("compute_ms", "forward_comm_ms", "backward_comm_ms", "total_ms"):
            # A network may predict a little below 0 for very little work.
            finite_number(getattr(self, field), f"{where}: {field}", low=-1e12, high=1e12)
        if self.high_ms is not None:
            finite_number(self.high_ms, f"{where}: high_ms", low=-1e12, high=1e12)


class CostModelsUsed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cost models predicted the costs of a plan.

    source: "measured" on hardware, "simulated" by an analytic model, or "imported" from published
    checkpoints, of which the origin is not known.
    batch_size: that is planned for where nothing else is said.
    batch_sizes: the least and the largest that the costs hold for; None where ``batch_size`` is the only one.
    """

    name: str
    source: Source
    batch_size: int
    hardware: str
    batch_sizes: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        label(self.name, "cost_models: name")
        one_of(self.source, "cost_models: source", get_args(Source))
        whole_number(self.batch_size, "cost_models: batch_size", low=1, high=MAX_BATCH_SIZE)
        label(self.hardware, "cost_models: hardware")
        for size in self.batch_sizes or ():
            whole_number(size, "cost_models: batch_sizes", low=1, high=MAX_BATCH_SIZE)


_MAX_SHARD = 2**31

_ENTRIES: dict[str, type] = {
    "devices": DeviceLoad,
    "shards": Shard,
    "column_splits": Integral,
    "placement": tuple,
    "assumed_histograms": str,
    "outside_training": str,
}
"""Fields of a plan that are tuples, and what is in them."""


class ShardingPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan and its predicted cost.

    cost_ms: the largest total over the devices.
    high_cost_ms: the largest of what few totals exceed (``high_ms`` of a device).
    column_splits: the split sequence: indices of the shards split, each into the list as it stood then
        (docs/method.md: a split leaves one half in place and appends the other).
    placement: for each device, shard indices after all splits, in the order of placement.
    shards: the same plan, by table and column.
    assumed_histograms: tables whose reuse histogram was assumed.
    mean_cost_ms: the cost as a mean over orders of the devices, which is what algorithm "auto" makes small
        where communication networks know devices by their numbers; None where ``cost_ms`` is that.
    lower_bound_ms: no plan with as many splits costs less, by these cost models; None where it was not asked
        for, or nothing is known.
    interrupted: whether the search was cancelled, so that this is the best plan until then.
    outside_training: what of the plan lies far outside of what the cost models were trained on, in words.
    """

    schema: Literal["neuroshard/plan/1"] = "neuroshard/plan/1"
    algorithm: str
    cost_models: CostModelsUsed
    world_size: int
    memory_cap_bytes: int
    batch_size: int
    cost_ms: float
    devices: tuple[DeviceLoad, ...]
    shards: tuple[Shard, ...]
    column_splits: tuple[int, ...]
    placement: tuple[tuple[int, ...], ...]
    assumed_histograms: tuple[str, ...] = ()
    high_cost_ms: float | None = None
    mean_cost_ms: float | None = None
    lower_bound_ms: float | None = None
    interrupted: bool = False
    outside_training: tuple[str, ...] = ()
    planning_ms: float

    def __post_init__(self) -> None:
        label(self.algorithm, "plan: algorithm")
        whole_number(self.world_size, "plan: world_size", low=1, high=MAX_DEVICES)
        whole_number(self.memory_cap_bytes, "plan: memory_cap_bytes", low=1, high=MAX_MEMORY_BYTES)
        whole_number(self.batch_size, "plan: batch_size", low=1, high=MAX_BATCH_SIZE)
        finite_number(self.cost_ms, "plan: cost_ms", low=-1e12, high=1e12)
        if self.high_cost_ms is not None:
            finite_number(self.high_cost_ms, "plan: high_cost_ms", low=-1e12, high=1e12)
        for field in ("mean_cost_ms", "lower_bound_ms"):
            if getattr(self, field) is not None:
                finite_number(getattr(self, field), f"plan: {field}", low=-1e12, high=1e12)
        if not isinstance(self.interrupted, bool):
            raise InputError(
                f"plan: interrupted must be true or false, got {shown(self.interrupted)}"
            )
        finite_number(self.planning_ms, "plan: planning_ms", low=0, high=1e12)
        for field, type_ in _ENTRIES.items():
            entries = getattr(self, field)
            if not isinstance(entries, tuple) or not all(isinstance(x, type_) for x in entries):
                raise InputError(
                    f"plan: {field} must be a tuple of {type_.__name__}, got {shown(entries)}"
                )
        if not isinstance(self.cost_models, CostModelsUsed):
            raise InputError(
                f"plan: cost_models must be CostModelsUsed, got {shown(self.cost_models)}"
            )
        for field in ("devices", "placement"):
            if len(getattr(self, field)) != self.world_size:
                raise InputError(
                    f"plan: {field} must have one entry for each of the {self.world_size} devices, "
                    f"got {len(getattr(self, field))}"
                )
        for index, load in enumerate(self.devices):
            if load.device != index:
                raise InputError(
                    f"plan: devices[{index}] must be device {index}, got {load.device}"
                )
        for index, split in enumerate(self.column_splits):
            whole_number(split, f"plan: column_splits[{index}]", low=0, high=_MAX_SHARD)
        for device, indices in enumerate(self.placement):
            for index in indices:
                whole_number(index, f"plan: placement[{device}]: shard", low=0, high=_MAX_SHARD)
        for name in self.assumed_histograms:
            label(name, "plan: assumed_histograms: table")
        for sentence in self.outside_training:
            label(sentence, "plan: outside_training: sentence")
        for shard in self.shards:
            if shard.device >= self.world_size:
                raise InputError(
                    f"plan: a shard of table {shard.table!r} lies on device {shard.device}, "
                    f"but there are {self.world_size}"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShardingPlan:
        """Read a plan from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)

    def tables_by_device(self, tables: TableSet) -> list[list[EmbeddingTable]]:
        """For each device what it holds: a shard is its table with the shard's width as dim.

        InputError where the shards are not those of ``tables``, every column in one of them.
        """
        if not isinstance(tables, TableSet):
            raise InputError(f"a TableSet is wanted, got a {type(tables).__name__}")
        by_name = {table.name: table for table in tables}
        held: list[list[EmbeddingTable]] = [[] for _ in range(self.world_size)]
        columns: dict[str, list[tuple[int, int]]] = {name: [] for name in by_name}
        for index, shard in enumerate(self.shards):
            where = f"plan: shards[{index}]"
            if shard.table not in by_name:
                raise InputError(f"{where}: no table is called {shard.table!r}")
            columns[shard.table].append((shard.column_offset, shard.width))
            table = by_name[shard.table]
            try:
                held[shard.device].append(msgspec.structs.replace(table, embedding_dim=shard.width))
            except InputError as error:
                raise InputError(f"{where}: width: {error}") from error
        for name, parts in columns.items():
            end = 0
            for offset, width in sorted(parts):
                if offset != end:
                    raise InputError(f"plan: table {name!r}: shards do not meet at column {end}")
                end += width
            dim = by_name[name].embedding_dim
            if end != dim:
                raise InputError(f"plan: table {name!r}: shards have {end} columns of {dim}")
        return held
