"""A plan that was made before, for a model and a topology that are here now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from neuroshard_fast.errors import InputError, NeuroShardError
from neuroshard_fast.memory import WEIGHT_BYTES
from neuroshard_fast.torchrec.carried import Carried, read_carried
from neuroshard_fast.torchrec.constraints import check_fields, checked_constraints, is_excluded
from neuroshard_fast.torchrec.errors import planner_error
from neuroshard_fast.torchrec.model import ModelTable, find_tables
from neuroshard_fast.torchrec.options import checked_topology
from neuroshard_fast.torchrec.plan import TablePlan, TorchRecPlan
from neuroshard_fast.torchrec.setting import Setting, host_caps, memory_caps
from neuroshard_fast.torchrec.sharded import sharded_tables
from neuroshard_fast.torchrec.sharding_plan import torchrec_objects
from neuroshard_fast.torchrec.storage import HOST_KERNELS
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
        setting = Setting.of(checked_topology(topology), plan.batch_size)
        given = checked_constraints(constraints)
        _require_topology(plan, setting, topology)
        tables = find_tables(module, sharders, setting.compute_device)
        _require_tables(plan, tables, setting, given)
        return torchrec_objects(plan, setting, _carried_with(given))
    except NeuroShardError as error:
        raise planner_error(error) from error


def check_plan(
    module: nn.Module,
    plan: ShardingPlan | TorchRecPlan,
    topology: Topology,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> None:
    """TorchRec's PlannerError where ``plan``, from wherever it is, is none to train ``module`` by.

    It names the table that is missing, of other rows or dim, not made up by its shards, or sharded as its
    sharder does not, and collections whose column shards have not one width. ``constraints`` are only needed
    where device groups exclude tables.
    """
    try:
        setting = Setting.of(checked_topology(topology), 1)
        given = checked_constraints(constraints)
        tables = find_tables(module, sharders, setting.compute_device)
        if isinstance(plan, TorchRecPlan):
            _require_topology(plan, setting, topology)
            _require_tables(plan, tables, setting, given)
        else:
            sharded_tables(plan, _not_excluded(tables, setting, given), setting)
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


def _not_excluded(
    tables: Sequence[ModelTable],
    setting: Setting,
    constraints: Mapping[str, ParameterConstraints],
) -> list[ModelTable]:
    for table in tables:
        if (constraint := constraints.get(table.name)) is not None:
            check_fields(constraint, f"table {table.fqn!r}")
    return [table for table in tables if not is_excluded(constraints.get(table.name), setting)]


def _require_tables(
    plan: TorchRecPlan,
    tables: Sequence[ModelTable],
    setting: Setting,
    constraints: Mapping[str, ParameterConstraints],
) -> None:
    by_fqn = {table.fqn: table for table in _not_excluded(tables, setting, constraints)}
    for fqn in plan.excluded:
        if fqn in by_fqn:
            raise InputError(
                f"plan: table {fqn!r}: excluded, but no device group of constraints gives it to another "
                "device: give the constraints that it was planned with"
            )
    planned_tables = {planned.fqn: planned for planned in plan.tables}
    for planned in planned_tables.values():
        table = by_fqn.get(planned.fqn)
        if table is None:
            continue  # found below, with tables that the plan lacks
        for field in ("rows", "dim", "data_type", "kind"):
            before, now = getattr(planned, field), getattr(table, field)
            if before != now:
                raise InputError(
                    f"plan: table {planned.fqn!r}: {field} is {before}, but {now} in the model: plan again"
                )
    for entry in sharded_tables(plan, list(by_fqn.values()), setting):
        _require_bytes(planned_tables[entry.table.fqn], entry.table)


def _require_bytes(planned: TablePlan, table: ModelTable) -> None:
    """InputError where shards are said to take less memory than their weights and optimizer do."""
    element, state = WEIGHT_BYTES[table.data_type], table.optimizer
    for shard in planned.shards:
        weights = shard.rows * shard.columns * element
        trained = weights + shard.rows * (
            shard.columns * state.bytes_per_element + state.bytes_per_row
        )
        least = {"estimated_bytes": weights, "training_bytes": trained}
        if planned.compute_kernel in HOST_KERNELS:
            least = {"host_bytes": trained}
        for field, value in least.items():
            if getattr(shard, field) < value:
                raise InputError(
                    f"plan: table {planned.fqn!r}: {field} of its shard on rank {shard.rank} is "
                    f"{getattr(shard, field)}, but its weights and optimizer take {value}: plan again"
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
