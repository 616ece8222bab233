"""Checks of plans, also of those that were made elsewhere: that TorchRec can train them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, NamedTuple, get_args

from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)

from neuroshard_fast.checks import finite_number, label, one_of, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import MAX_DIM, MAX_ROWS, DataType
from neuroshard_fast.torchrec.carried import Carried, read_carried
from neuroshard_fast.torchrec.constraints import KERNELS
from neuroshard_fast.torchrec.errors import ConstraintError
from neuroshard_fast.torchrec.model import KINDS, ModelTable
from neuroshard_fast.torchrec.plan import TablePlan, TorchRecPlan
from neuroshard_fast.torchrec.question import ShardAt
from neuroshard_fast.torchrec.setting import COMPUTE_DEVICES, Setting

SHARDING_TYPES = tuple(type_.value for type_ in ShardingType)
COLUMN_TYPES = ("table_wise", "column_wise", "table_column_wise")
"""Types in which every shard has all rows."""
ROW_TYPES = ("row_wise", "table_row_wise")

_Given = tuple[str, str, tuple[ShardAt, ...], Carried]
"""Fields of :class:`Sharded` but the table."""

_MAX_MS = 1e12
_BYTE_FIELDS = ("estimated_bytes", "training_bytes", "host_bytes")
_COST_FIELDS = ("compute_ms", "forward_comm_ms", "backward_comm_ms", "total_ms", "high_ms")


class Sharded(NamedTuple):
    """A table and how a plan shards it; shards in the order of the plan."""

    table: ModelTable
    sharding_type: str
    compute_kernel: str
    shards: tuple[ShardAt, ...]
    carried: Carried


def sharded_tables(
    plan: ShardingPlan | TorchRecPlan, tables: Sequence[ModelTable], setting: Setting
) -> list[Sharded]:
    """How ``plan`` shards each of ``tables``.

    InputError where it lacks one, has others, or shards one as TorchRec cannot train it.
    """
    given = _of_file(plan) if isinstance(plan, TorchRecPlan) else _of_torchrec(plan, setting)
    by_fqn = {table.fqn: table for table in tables}
    if missing := [fqn for fqn in by_fqn if fqn not in given]:
        raise InputError(
            f"plan: table {missing[0]!r} of the model is not in it"
            + (f", nor are {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    if others := [fqn for fqn in given if fqn not in by_fqn]:
        raise InputError(f"plan: table {others[0]!r} is none of the model's")
    found = [Sharded(table, *given[table.fqn]) for table in tables]
    for sharded in found:
        _check_table(sharded, setting)
    _check_widths_of_collections(found)
    _check_mean_by_rows(found)
    return found


def _of_file(plan: TorchRecPlan) -> dict[str, _Given]:
    return {
        table.fqn: (
            table.sharding_type,
            table.compute_kernel,
            tuple(
                ShardAt(s.rank, s.row_offset, s.column_offset, s.rows, s.columns)
                for s in table.shards
            ),
            read_carried(table.carried, f"plan: table {table.fqn!r}"),
        )
        for table in plan.tables
    }


def _of_torchrec(plan: ShardingPlan, setting: Setting) -> dict[str, _Given]:
    if not isinstance(plan, ShardingPlan):
        raise InputError(f"plan: a ShardingPlan is wanted, got a {type(plan).__name__}")
    found: dict[str, _Given] = {}
    if not isinstance(plan.plan, dict):
        raise InputError("plan: it has no dictionary of plans by module")
    for path, module_plan in plan.plan.items():
        if not isinstance(module_plan, EmbeddingModuleShardingPlan):
            raise InputError(
                f"plan: module {path!r}: an EmbeddingModuleShardingPlan is wanted, got a "
                f"{type(module_plan).__name__}"
            )
        parameters: dict[str, Any] = dict(module_plan)
        for name, sharding in parameters.items():
            fqn = f"{path}.{name}" if path else name
            if not isinstance(sharding, ParameterSharding):
                raise InputError(
                    f"plan: table {fqn!r}: a ParameterSharding is wanted, got a {type(sharding).__name__}"
                )
            found[fqn] = (
                sharding.sharding_type,
                sharding.compute_kernel,
                tuple(_shards_of(sharding, f"plan: table {fqn!r}", setting)),
                Carried.of(sharding),
            )
    return found


def _shards_of(sharding: Any, where: str, setting: Setting) -> Iterable[ShardAt]:
    if sharding.sharding_type == "data_parallel":
        # Without a specification: every rank has all of it, which only the model says how large it is.
        return [ShardAt(rank, 0, 0, -1, -1) for rank in range(setting.world_size)]
    if not isinstance(sharding.sharding_spec, EnumerableShardingSpec):
        raise InputError(f"{where}: it has no list of shards")
    try:
        shards = [
            ShardAt(
                shard.placement.rank(),
                *map(index, shard.shard_offsets),
                *map(index, shard.shard_sizes),
            )
            for shard in sharding.sharding_spec.shards
        ]
        devices = [str(shard.placement.device()) for shard in sharding.sharding_spec.shards]
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: a shard lacks a placement, or offsets and sizes of two whole numbers"
        ) from error
    ranks = [shard.rank for shard in shards]
    if sharding.ranks != ranks:
        raise InputError(
            f"{where}: its shards lie on ranks {ranks}, but its ranks are {shown(sharding.ranks)}"
        )
    for rank, device in zip(ranks, devices, strict=True):
        if rank in range(setting.world_size) and device != setting.device(rank):
            raise InputError(
                f"{where}: a shard of rank {rank} lies on {device}, not on {setting.device(rank)}"
            )
    return shards


def _check_table(sharded: Sharded, setting: Setting) -> None:
    table, shards = sharded.table, sharded.shards
    where = f"plan: table {table.fqn!r}"
    if sharded.sharding_type not in SHARDING_TYPES:
        raise InputError(f"{where}: {sharded.sharding_type!r} is no sharding type")
    if sharded.sharding_type not in (*COLUMN_TYPES, *ROW_TYPES, "data_parallel"):
        raise InputError(f"{where}: sharding type {sharded.sharding_type} is not supported")
    if sharded.compute_kernel not in table.offer.kernels.get(sharded.sharding_type, ()):
        raise InputError(
            f"{where}: {table.offer.name} does not shard {sharded.sharding_type} with kernel "
            f"{sharded.compute_kernel} on {setting.compute_device}"
        )
    if not shards:
        raise InputError(f"{where}: it has no shards")
    for shard in shards:
        if shard.rank is None or not 0 <= shard.rank < setting.world_size:
            raise InputError(f"{where}: a shard lies on rank {shard.rank} of {setting.world_size}")
    if sharded.sharding_type == "data_parallel":
        if table.kind == "sequence" and setting.compute_device == "cpu":
            raise ConstraintError(
                f"table {table.fqn!r}: data_parallel, and TorchRec 1.8 does not train replicated tables of "
                "an EmbeddingCollection on CPUs: shard it otherwise"
            )
        if sorted(shard.rank for shard in shards) != list(range(setting.world_size)):
            raise InputError(f"{where}: replicated, it needs a shard on each rank")
        return
    area = sum(shard.rows * shard.columns for shard in shards)
    inside = all(
        0 <= shard.row_offset <= shard.row_offset + shard.rows <= table.rows
        and 0 <= shard.column_offset < shard.column_offset + shard.columns <= table.dim
        for shard in shards
    )
    if not inside or area != table.rows * table.dim:
        raise InputError(
            f"{where}: its shards do not make up the {table.rows} rows and {table.dim} columns"
        )
    if sharded.sharding_type in COLUMN_TYPES:
        _check_columns(sharded, where)
    if sharded.sharding_type in ROW_TYPES:
        _check_rows(sharded, setting, where)
    if sharded.sharding_type.startswith("table_"):
        hosts = sorted({shard.rank // setting.group_size for shard in shards})
        if len(hosts) > 1:
            raise InputError(
                f"{where}: {sharded.sharding_type}, it lies on hosts {', '.join(map(str, hosts))}, and "
                "TorchRec trains it on one"
            )


def _check_columns(sharded: Sharded, where: str) -> None:
    end = 0
    widths: dict[int, set[int]] = {}
    shards = sorted(sharded.shards, key=lambda s: s.column_offset)
    if sharded.table.kind == "sequence" and tuple(shards) != sharded.shards:
        raise InputError(
            f"{where}: TorchRec puts the columns of an EmbeddingCollection together in the order of its "
            "shards, which must be that of their columns"
        )
    for shard in shards:
        if shard.rows != sharded.table.rows or shard.column_offset != end:
            raise InputError(f"{where}: its shards do not meet at column {end}")
        if shard.columns % 4:
            raise InputError(
                f"{where}: a shard has {shard.columns} columns; FBGEMM wants a multiple of 4"
            )
        end += shard.columns
        widths.setdefault(shard.rank, set()).add(shard.columns)
    if sharded.sharding_type == "table_wise" and len(sharded.shards) > 1:
        raise InputError(f"{where}: table-wise, it has {len(sharded.shards)} shards")
    for rank, found in widths.items():
        if len(found) > 1:
            raise InputError(
                f"{where}: rank {rank} has shards of {' and '.join(map(str, sorted(found)))} columns of "
                "it; TorchRec shows the shards of a rank as one matrix, so they must be equally wide: "
                "join them"
            )


def _check_rows(sharded: Sharded, setting: Setting, where: str) -> None:
    """TorchRec finds the rank of a row by dividing it by the rows of a shard, whatever the plan says."""
    shards, rows = sharded.shards, sharded.table.rows
    if setting.compute_device == "cpu" and (empty := [s.rank for s in shards if not s.rows]):
        raise ConstraintError(
            f"table {sharded.table.fqn!r}: {sharded.sharding_type}, its {rows} rows leave rank {empty[0]} "
            "without any, and FBGEMM does not train a shard without rows on CPUs: shard it otherwise"
        )
    by_host = sharded.sharding_type == "table_row_wise"
    count = setting.group_size if by_host else setting.world_size
    first = shards[0].rank // count * count
    most = -(-rows // count)
    ends = [min(rows, place * most) for place in range(count + 1)]
    wanted = [(first + place, ends[place], ends[place + 1]) for place in range(count)]
    given = [
        # Where a shard without rows begins means nothing.
        (s.rank, s.row_offset if s.rows else rows, s.row_offset + s.rows if s.rows else rows)
        for s in shards
    ]
    if given != wanted or any(shard.columns != sharded.table.dim for shard in shards):
        raise InputError(
            f"{where}: {sharded.sharding_type}, it needs a shard of {most} rows, or of what is left, on each "
            f"of ranks {first} to {first + count - 1}, in their order: TorchRec looks rows up there"
        )


def _check_widths_of_collections(found: Sequence[Sharded]) -> None:
    """Column shards of one EmbeddingCollection have one width."""
    widths: dict[str, tuple[int, str]] = {}
    for sharded in found:
        if sharded.table.kind != "sequence" or sharded.sharding_type != "column_wise":
            continue
        for shard in sharded.shards:
            path = sharded.table.path
            width, fqn = widths.setdefault(path, (shard.columns, sharded.table.fqn))
            if width != shard.columns:
                raise InputError(
                    f"plan: EmbeddingCollection {path or '(the model itself)'}: tables {fqn!r} and "
                    f"{sharded.table.fqn!r} have column shards of {width} and {shard.columns} columns; "
                    "TorchRec needs one width for all of a collection, or its outputs are wrong"
                )


def _check_mean_by_rows(found: Sequence[Sharded]) -> None:
    """Mean-pooled tables that are cut by rows have only such tables beside them in their collection.

    TorchRec 1.8 sums the parts of their bags and divides the collection's outputs by the lengths of the bags;
    it spares sum-pooled tables that are cut by rows, but no table that is sharded otherwise.
    """
    by_rows: dict[str, str] = {}
    others: dict[str, str] = {}
    for sharded in found:
        table = sharded.table
        if sharded.sharding_type not in ROW_TYPES:
            others.setdefault(table.path, table.fqn)
        elif table.pooling == "mean":
            by_rows.setdefault(table.path, table.fqn)
    for path, fqn in by_rows.items():
        if path in others:
            raise ConstraintError(
                f"table {fqn!r}: mean-pooled and cut by rows, beside table {others[path]!r}, which is not: "
                "TorchRec 1.8 divides the outputs of both by the lengths of bags, so that those of the "
                "second are wrong; shard all tables of the collection by rows, or none that is mean-pooled"
            )


def require_sound(plan: TorchRecPlan, source: str) -> None:
    """InputError, beginning with ``source``, where values are not such as a plan can have."""
    try:
        one_of(plan.compute_device, "compute_device", COMPUTE_DEVICES)
        one_of(plan.memory_kind, "memory_kind", ("HBM", "DDR"))
        whole_number(plan.world_size, "world_size", low=1, high=MAX_DEVICES)
        whole_number(plan.local_world_size, "local_world_size", low=1, high=MAX_DEVICES)
        whole_number(plan.batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
        finite_number(plan.planning_ms, "planning_ms", low=0.0, high=_MAX_MS)
        if plan.cost_ms is not None:
            finite_number(plan.cost_ms, "cost_ms", low=-_MAX_MS, high=_MAX_MS)
        if [load.rank for load in plan.ranks] != list(range(plan.world_size)):
            raise InputError(f"ranks must be 0 to {plan.world_size - 1}, in this order")
        for load in plan.ranks:
            where = f"ranks[{load.rank}]"
            for field in _BYTE_FIELDS:
                whole_number(
                    getattr(load, field), f"{where}: {field}", low=0, high=MAX_MEMORY_BYTES
                )
            whole_number(load.cap_bytes, f"{where}: cap_bytes", low=0, high=MAX_MEMORY_BYTES)
            for field in _COST_FIELDS:
                if (value := getattr(load, field)) is not None:
                    finite_number(value, f"{where}: {field}", low=-_MAX_MS, high=_MAX_MS)
        for table in plan.tables:
            _check_file_table(table, plan.world_size)
        _check_loads(plan)
        if len({table.fqn for table in plan.tables}) < len(plan.tables):
            raise InputError("tables: names must be unique")
        for field in ("excluded", "assumed_histograms", "assumed_pooling", "notes"):
            for text in getattr(plan, field):
                label(text, field)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _check_loads(plan: TorchRecPlan) -> None:
    """Loads of ranks are those of their shards."""
    shards = [shard for table in plan.tables for shard in table.shards]
    for load in plan.ranks:
        own = [shard for shard in shards if shard.rank == load.rank]
        found = {field: sum(getattr(shard, field) for shard in own) for field in _BYTE_FIELDS}
        for field, value in {"num_shards": len(own), **found}.items():
            if getattr(load, field) != value:
                raise InputError(
                    f"ranks[{load.rank}]: {field} is {getattr(load, field)}, but its shards make {value}"
                )


def _check_file_table(table: TablePlan, world_size: int) -> None:
    label(table.name, "tables: name")
    where = f"table {table.fqn!r}"
    whole_number(table.rows, f"{where}: rows", low=1, high=MAX_ROWS)
    whole_number(table.dim, f"{where}: dim", low=4, high=MAX_DIM)
    one_of(table.data_type, f"{where}: data_type", get_args(DataType))
    one_of(table.kind, f"{where}: kind", KINDS)
    one_of(table.sharding_type, f"{where}: sharding_type", SHARDING_TYPES)
    one_of(table.compute_kernel, f"{where}: compute_kernel", (*KERNELS, "dense"))
    for shard in table.shards:
        whole_number(shard.rank, f"{where}: shard: rank", low=0, high=world_size - 1)
        whole_number(shard.row_offset, f"{where}: shard: row_offset", low=0, high=table.rows)
        whole_number(shard.rows, f"{where}: shard: rows", low=0, high=table.rows)
        whole_number(shard.column_offset, f"{where}: shard: column_offset", low=0, high=table.dim)
        whole_number(shard.columns, f"{where}: shard: columns", low=1, high=table.dim)
        for field in _BYTE_FIELDS:
            value = getattr(shard, field)
            whole_number(value, f"{where}: shard: {field}", low=0, high=MAX_MEMORY_BYTES)
