"""A plan for a TorchRec model, with its predicted costs and memory, and as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from neuroshard_fast import config
from neuroshard_fast.errors import InputError
from neuroshard_fast.plan import CostModelsUsed
from neuroshard_fast.torchrec.carried import Plain

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints, Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan


class TableShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A shard: ``rows`` and ``columns`` from the offsets on, on a rank.

    estimated_bytes: by TorchRec's estimate. training_bytes: what training takes. host_bytes: beside
    that, in host memory, where the table's kernel keeps it there.
    """

    rank: int
    row_offset: int
    column_offset: int
    rows: int
    columns: int
    estimated_bytes: int
    training_bytes: int
    host_bytes: int = 0


class TablePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one table is sharded.

    module: path of its module in the model. kind: "bags" are pooled, "sequence" is not.
    shards: in the order of their columns, or of their rows.
    carried: what is passed on to TorchRec; not_saved: names of what of it no file can hold.
    """

    module: str
    name: str
    rows: int
    dim: int
    data_type: str
    kind: str
    sharding_type: str
    compute_kernel: str
    shards: tuple[TableShard, ...]
    carried: dict[str, Plain] = {}
    not_saved: tuple[str, ...] = ()

    @property
    def fqn(self) -> str:
        """Path and name, joined by a dot."""
        return f"{self.module}.{self.name}" if self.module else self.name

    @property
    def layout(self) -> tuple[object, ...]:
        """What training depends on: how the table is cut, and which rank has which shard."""
        places = tuple(
            (s.rank, s.row_offset, s.column_offset, s.rows, s.columns) for s in self.shards
        )
        return self.sharding_type, self.compute_kernel, places


class RankLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank holds, and what its step is predicted to cost, in milliseconds.

    cap_bytes: what the reservation leaves of the memory that tables fill. estimated_bytes, training_bytes,
    host_bytes: as of its shards. Costs are None where cost models have none, for one rank alone.
    high_ms: the total if each part costs what nine of ten stay below; None where that is not known.
    """

    rank: int
    num_shards: int
    estimated_bytes: int
    training_bytes: int
    cap_bytes: int
    host_bytes: int = 0
    compute_ms: float | None = None
    forward_comm_ms: float | None = None
    backward_comm_ms: float | None = None
    total_ms: float | None = None
    high_ms: float | None = None


class TorchRecPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan of all tables of a model.

    compute_device, world_size, local_world_size: of the topology. batch_size: samples a rank.
    memory_kind: which memory the tables fill, "HBM" or "DDR".
    cost_ms: the largest total of a rank; None for one rank alone.
    excluded: tables that the user's device groups give to other devices.
    assumed_histograms, assumed_pooling: tables of which nothing says how often rows recur, or how long bags
        are, so that it was assumed.
    notes: what else there is to know of the plan, a sentence each.
    outside_training: what lies far outside of what the cost models were trained on, likewise.
    planning_ms: time of the call that made it.
    """

    schema: Literal["neuroshard/torchrec-plan/1"] = "neuroshard/torchrec-plan/1"
    cost_models: CostModelsUsed
    compute_device: str
    world_size: int
    local_world_size: int
    batch_size: int
    memory_kind: str
    cost_ms: float | None
    ranks: tuple[RankLoad, ...]
    tables: tuple[TablePlan, ...]
    excluded: tuple[str, ...] = ()
    assumed_histograms: tuple[str, ...] = ()
    assumed_pooling: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    outside_training: tuple[str, ...] = ()
    planning_ms: float

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TorchRecPlan:
        """Read a plan from JSON or YAML; InputError where it is not sound."""
        from neuroshard_fast.torchrec.sharded import require_sound

        plan = config.load(path, cls)
        require_sound(plan, str(path))
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON or YAML, chosen by the name of ``path``, atomically."""
        config.save(path, self)

    def to_sharding_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        *,
        topology: Topology,
        constraints: Mapping[str, ParameterConstraints] | None = None,
    ) -> ShardingPlan:
        """The plan as TorchRec takes it, without planning again.

        It is checked against the model and the topology first. ``constraints`` are only needed for what no
        file can hold, and where device groups exclude tables. TorchRec's PlannerError where something does
        not fit, by name.
        """
        from neuroshard_fast.torchrec.reuse_plan import sharding_plan_for

        return sharding_plan_for(self, module, sharders, topology, constraints)

    def diff(self, other: TorchRecPlan) -> list[str]:
        """How ``other`` differs from this plan, a line each; empty where it would train alike."""
        if not isinstance(other, TorchRecPlan):
            raise InputError(f"diff: a TorchRecPlan is wanted, got a {type(other).__name__}")
        return [*_diff_of_settings(self, other), *_diff_of_tables(self, other)]


_COMPARED = ("compute_device", "world_size", "local_world_size", "batch_size", "cost_models")


def _diff_of_settings(old: TorchRecPlan, new: TorchRecPlan) -> list[str]:
    lines = []
    for field in _COMPARED:
        before: Any = getattr(old, field)
        after: Any = getattr(new, field)
        if before != after:
            if field == "cost_models":
                before, after = before.name, after.name
            lines.append(f"{field.replace('_', ' ')}: {before} -> {after}")
    return lines


def _diff_of_tables(old: TorchRecPlan, new: TorchRecPlan) -> list[str]:
    before = {table.fqn: table for table in old.tables}
    after = {table.fqn: table for table in new.tables}
    lines = []
    for fqn in dict.fromkeys([*before, *after]):
        if fqn not in after:
            lines.append(f"table {fqn}: only in the first plan")
        elif fqn not in before:
            lines.append(f"table {fqn}: only in the second plan")
        else:
            one, two = before[fqn], after[fqn]
            shapes = [(table.rows, table.dim, table.data_type) for table in (one, two)]
            if shapes[0] != shapes[1]:
                lines.append(
                    f"table {fqn}: {one.rows} x {one.dim} {one.data_type} -> "
                    f"{two.rows} x {two.dim} {two.data_type}"
                )
            if one.layout != two.layout:
                lines.append(f"table {fqn}: {describe_layout(one)} -> {describe_layout(two)}")
            if (one.carried, one.not_saved) != (two.carried, two.not_saved):
                lines.append(f"table {fqn}: what is passed on to TorchRec differs")
    return lines


def describe_layout(table: TablePlan) -> str:
    """Type and places of a table's shards in a few words, columns or rows of each on its rank."""
    if table.sharding_type == "data_parallel":
        return "data_parallel"
    by_rows = len({shard.column_offset for shard in table.shards}) == 1 and len(table.shards) > 1
    parts = ", ".join(
        f"{shard.rows if by_rows else shard.columns} on {shard.rank}" for shard in table.shards
    )
    kernel = "" if table.compute_kernel == "fused" else f" {table.compute_kernel}"
    return f"{table.sharding_type}{kernel} ({parts})"
