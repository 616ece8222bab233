"""A sharding plan: which columns of which table lie on which device, and what that is predicted to cost."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from neuroshard_fast import config

Source = Literal["measured", "simulated", "imported"]


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Columns ``column_offset`` … ``column_offset + width - 1`` of a table, on one device."""

    table: str
    column_offset: int
    width: int
    device: int
    memory_bytes: int


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one device holds and what its step is predicted to cost, in milliseconds."""

    device: int
    num_shards: int
    memory_bytes: int
    compute_ms: float
    forward_comm_ms: float
    backward_comm_ms: float
    total_ms: float


class CostModelsUsed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cost models predicted the costs of a plan.

    source: "measured" on hardware, "simulated" by an analytic model, or "imported" from published
    checkpoints, of which the origin is not known.
    """

    name: str
    source: Source
    batch_size: int
    hardware: str


class ShardingPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan and its predicted cost.

    cost_ms: the largest total over the devices.
    column_splits: the split sequence: indices of the shards split, each into the list as it stood then
        (specification of the method: a split leaves one half in place and appends the other).
    placement: for each device, shard indices after all splits, in the order of placement.
    shards: the same plan, by table and column.
    assumed_histograms: tables whose reuse histogram was assumed.
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
    planning_ms: float

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShardingPlan:
        """Read a plan from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)
