"""A plan that was made before, for a model and a topology that are here now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from neuroshard_fast.errors import InputError, NeuroShardError
from neuroshard_fast.torchrec.carried import Carried, read_carried
from neuroshard_fast.torchrec.constraints import checked_constraints
from neuroshard_fast.torchrec.errors import planner_error
from neuroshard_fast.torchrec.model import ModelTable, find_tables
from neuroshard_fast.torchrec.plan import TablePlan, TorchRecPlan
from neuroshard_fast.torchrec.setting import Setting, host_caps, memory_caps
from neuroshard_fast.torchrec.sharded import sharded_tables
from neuroshard_fast.torchrec.sharding_plan import torchrec_objects
from neuroshard_fast.units import format_bytes


def sharding_plan_for(
    plan: TorchRecPlan,
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]] | None,
    topology: Topology,
    constraints: Mapping[str, ParameterConstraints] | None,
) -> ShardingPlan:
    """See :meth:`TorchRecPlan.to_sharding_plan`."""
    try:
        setting = Setting.of(topology, plan.batch_size)
        _require_topology(plan, setting, topology)
        tables = find_tables(module, sharders, setting.compute_device)
        _require_tables(plan, tables, setting)
        return torchrec_objects(plan, setting, _carried_with(checked_constraints(constraints)))
    except NeuroShardError as error:
        raise planner_error(error) from error


def check_plan(
    module: nn.Module,
    plan: ShardingPlan | TorchRecPlan,
    topology: Topology,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
) -> None:
    """TorchRec's PlannerError where ``plan``, from wherever it is, is none to train ``module`` by.

    It names the table that is missing, of other rows or dim, or not made up by its shards, and collections
    whose column shards have not one width.
    """
    try:
        setting = Setting.of(topology, 1)
        tables = find_tables(module, sharders, setting.compute_device)
        if isinstance(plan, TorchRecPlan):
            _require_topology(plan, setting, topology)
            _require_tables(plan, tables, setting)
        else:
            sharded_tables(plan, tables, setting)
    except NeuroShardError as error:
        raise planner_error(error) from error


def _require_topology(plan: TorchRecPlan, setting: Setting, topology: Topology) -> None:
    for field in ("compute_device", "world_size", "local_world_size"):
        planned, given = getattr(plan, field), getattr(setting, field)
        if planned != given:
            raise InputError(
                f"topology: {field} is {given}, but the plan was made for {planned}: plan again"
            )
    for kind, caps, loads in (
        (plan.memory_kind, memory_caps(topology), _loads(plan, "estimated_bytes")),
        (plan.memory_kind, memory_caps(topology), _loads(plan, "training_bytes")),
        ("host memory", host_caps(topology), _loads(plan, "host_bytes")),
    ):
        for rank, (cap, taken) in enumerate(zip(caps, loads, strict=True)):
            if taken > cap:
                raise InputError(
                    f"topology: rank {rank} has {format_bytes(max(0, cap))} of {kind}, but the plan puts "
                    f"{format_bytes(taken)} there: plan again"
                )


def _loads(plan: TorchRecPlan, field: str) -> list[int]:
    """Bytes on each rank by its shards, which training goes by; files may say something else of ranks."""
    found = [0] * plan.world_size
    for table in plan.tables:
        for shard in table.shards:
            if 0 <= shard.rank < plan.world_size:  # else refused with the table
                found[shard.rank] += getattr(shard, field)
    return found


def _require_tables(plan: TorchRecPlan, tables: Sequence[ModelTable], setting: Setting) -> None:
    excluded = set(plan.excluded)
    by_fqn = {table.fqn: table for table in tables if table.fqn not in excluded}
    for planned in plan.tables:
        table = by_fqn.get(planned.fqn)
        if table is None:
            continue  # found below, with tables that the plan lacks
        for field in ("rows", "dim", "data_type", "kind"):
            before, now = getattr(planned, field), getattr(table, field)
            if before != now:
                raise InputError(
                    f"plan: table {planned.fqn!r}: {field} is {before}, but {now} in the model: plan again"
                )
    sharded = sharded_tables(plan, list(by_fqn.values()), setting)
    for entry in sharded:
        offered = entry.table.offer.kernels.get(entry.sharding_type, ())
        if entry.compute_kernel not in offered:
            raise InputError(
                f"plan: table {entry.table.fqn!r}: {entry.table.offer.name} does not shard "
                f"{entry.sharding_type} with kernel {entry.compute_kernel} on {setting.compute_device}"
            )


def _carried_with(
    constraints: Mapping[str, ParameterConstraints],
) -> Callable[[TablePlan], Carried]:
    """What a file held of each table, and what it could not hold from ``constraints``."""

    def of_table(table: TablePlan) -> Carried:
        where = f"plan: table {table.fqn!r}"
        carried = read_carried(table.carried, where)
        if not table.not_saved:
            return carried
        constraint = constraints.get(table.name)
        given = None if constraint is None else Carried.of(constraint)
        if given is None or given.objects() != table.not_saved:
            raise InputError(
                f"{where}: {', '.join(table.not_saved)} cannot be in a file: give the constraints again "
                "with which it was planned"
            )
        return carried._replace(
            cache_params=given.cache_params or carried.cache_params,
            key_value_params=given.key_value_params,
        )

    return of_table
