"""What a user's constraints leave of the ways to shard a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingType

from neuroshard_fast.checks import finite_number, one_of, shown, whole_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import MAX_DIM, MAX_POOLING_FACTOR
from neuroshard_fast.torchrec.carried import NOTHING_CARRIED, Carried
from neuroshard_fast.torchrec.errors import ConstraintError
from neuroshard_fast.torchrec.model import ModelTable
from neuroshard_fast.torchrec.setting import COMPUTE_DEVICES, Setting

Layout = Literal["columns", "row_wise", "table_row_wise", "data_parallel"]

TABLE_WISE, COLUMN_WISE = "table_wise", "column_wise"
_TABLE_COLUMN_WISE = "table_column_wise"
_SEARCHED = (TABLE_WISE, COLUMN_WISE, _TABLE_COLUMN_WISE)
_FIXED: tuple[Layout, ...] = ("row_wise", "table_row_wise", "data_parallel")
_DEFAULT_TYPES = (TABLE_WISE, COLUMN_WISE)
_ALL_TYPES = tuple(type_.value for type_ in ShardingType)
_ALL_KERNELS = tuple(kernel.value for kernel in EmbeddingComputeKernel)
_NAMES: dict[str, tuple[str, ...]] = {  # what there is; features may have any
    "sharding_types": _ALL_TYPES,
    "compute_kernels": _ALL_KERNELS,
    "feature_names": (),
}
_PLAIN = ("min_partition", "is_weighted", "device_group", "use_virtual_table")
_NUMBERS = {  # the largest
    "pooling_factors": float(MAX_POOLING_FACTOR),
    "num_poolings": float(MAX_POOLING_FACTOR),
    "batch_sizes": 2.0**31,
}
KERNELS = ("fused", "fused_uvm_caching", "fused_uvm")
"""Kernels of tables that are not replicated, the most wanted first."""
_REPLICATED_KERNEL = "dense"


class Choice(NamedTuple):
    """How a table may be sharded.

    layout: "columns" is searched, whole on a rank or cut by columns; the others are fixed.
    whole_type: sharding type of the table in one shard.
    column_type: sharding type of the table in column shards; None where that is not allowed.
    may_split: whether it may be cut by columns.
    least_width: no column shard is narrower, in columns.
    whole_is_columns: whether the table in one shard counts as column-wise, being allowed nothing else.
    carried: what the plan passes on to TorchRec unused.
    """

    layout: Layout
    whole_type: str
    column_type: str | None
    may_split: bool
    kernel: str
    least_width: int
    whole_is_columns: bool
    carried: Carried


def checked_constraints(constraints: object) -> dict[str, ParameterConstraints]:
    """Constraints by the name of the table; InputError where they are something else."""
    if constraints is None:
        return {}
    if not isinstance(constraints, Mapping):
        raise InputError(
            "constraints: a dictionary of ParameterConstraints by table name is wanted, got a "
            f"{type(constraints).__name__}"
        )
    for name, constraint in constraints.items():
        if not isinstance(constraint, ParameterConstraints):
            raise InputError(
                f"constraints: table {name!r}: ParameterConstraints are wanted, got a "
                f"{type(constraint).__name__}"
            )
    return dict(constraints)


def check_fields(constraint: ParameterConstraints, where: str) -> None:
    """ConstraintError where a field that is planned with holds what TorchRec does not take there.

    where: the table, for the message.
    """
    with _naming(where):
        for field, known in _NAMES.items():
            values = getattr(constraint, field)
            if values is not None:
                _check_names(values, field, known)
        for field, high in _NUMBERS.items():
            values = getattr(constraint, field)
            if values is not None or field == "pooling_factors":
                for value in _listed(values, field, "numbers"):
                    finite_number(value, field, low=0.0, high=high)
        if constraint.min_partition is not None:
            whole_number(constraint.min_partition, "min_partition", low=1, high=MAX_DIM)
        weighted = constraint.is_weighted
        if weighted is not None and not isinstance(weighted, bool):
            raise InputError(f"is_weighted must be True or False, got {shown(weighted)}")
        if constraint.device_group not in (None, ""):
            one_of(constraint.device_group, "device_group", COMPUTE_DEVICES)


def given_fields(constraint: ParameterConstraints, where: str) -> dict[str, object]:
    """What ``constraint`` says, by field, the same on every rank that is given the same."""
    found: dict[str, object] = {
        field: list(values)
        for field in (*_NAMES, *_NUMBERS)
        if (values := getattr(constraint, field))
    }
    found |= {field: value for field in _PLAIN if (value := getattr(constraint, field))}
    with _naming(where):
        carried = Carried.of(constraint)
    return found | carried.plain() | dict.fromkeys(carried.objects(), "given")


def is_excluded(constraint: ParameterConstraints | None, setting: Setting) -> bool:
    """Whether the table's device group is of other devices, so that it is none of this plan's."""
    group = None if constraint is None else constraint.device_group
    return bool(group) and group != setting.compute_device


def choose(
    table: ModelTable,
    constraint: ParameterConstraints | None,
    setting: Setting,
    *,
    keep_row_statistics: bool,
) -> Choice:
    """What ``constraint`` and the sharder allow; ConstraintError where that is nothing.

    keep_row_statistics: no column splits of tables whose optimizer works on whole rows.
    """
    where = f"table {table.fqn!r}"
    if constraint is not None and constraint.use_virtual_table:
        raise ConstraintError(f"{where}: constraint use_virtual_table is not supported")
    types = _types(table, constraint, setting, where)
    kernels = {type_: _kernel(table, constraint, type_) for type_ in types}
    usable = [type_ for type_ in types if kernels[type_] is not None]
    if not usable:
        raise ConstraintError(_no_kernel(table, constraint, types, where))
    with _naming(where):
        carried = NOTHING_CARRIED if constraint is None else Carried.of(constraint)
    searched = [type_ for type_ in _SEARCHED if type_ in usable]
    if not searched:
        fixed = next(layout for type_ in usable for layout in _FIXED if layout == type_)
        kernel = kernels[fixed] or ""
        return Choice(fixed, fixed, None, False, kernel, table.dim, False, carried)
    column_type = next((type_ for type_ in searched if type_ != TABLE_WISE), None)
    may_split = column_type is not None and not (
        keep_row_statistics and table.optimizer.of_whole_rows
    )
    return Choice(
        layout="columns",
        whole_type=searched[0],
        column_type=column_type,
        may_split=may_split,
        kernel=kernels[searched[0]] or "",
        least_width=_least_width(table, constraint) if may_split else table.dim,
        whole_is_columns=searched[0] != TABLE_WISE,
        carried=carried,
    )


def _types(
    table: ModelTable, constraint: ParameterConstraints | None, setting: Setting, where: str
) -> list[str]:
    """The sharding types that are wanted, offered and supported, in the order of the constraint."""
    given = None if constraint is None else constraint.sharding_types
    wanted: Sequence[str] = list(dict.fromkeys(given)) if given else _DEFAULT_TYPES
    offered = [type_ for type_ in wanted if type_ in table.offer.types]
    if not offered:
        raise ConstraintError(
            f"{where}: {'constraint sharding_types' if given else 'planning'} wants "
            f"{' or '.join(wanted)}, but {table.offer.name} shards by "
            f"{', '.join(table.offer.types) or 'nothing'} on {setting.compute_device}"
        )
    supported = [type_ for type_ in offered if _is_supported(type_, setting)]
    if not supported:
        raise ConstraintError(
            f"{where}: constraint sharding_types: {', '.join(offered)} is not supported; supported are "
            f"{', '.join((*_SEARCHED[:2], *_FIXED))}, and {_TABLE_COLUMN_WISE} on one host"
        )
    return supported


def _is_supported(sharding_type: str, setting: Setting) -> bool:
    if sharding_type == _TABLE_COLUMN_WISE:
        return setting.hosts == 1  # there it is the same as column-wise
    return sharding_type in _SEARCHED or sharding_type in _FIXED


def _kernel(
    table: ModelTable, constraint: ParameterConstraints | None, sharding_type: str
) -> str | None:
    """The kernel to take of those that sharder and constraint allow; None where there is none."""
    allowed = constraint.compute_kernels if constraint is not None else None
    offered = table.offer.kernels[sharding_type]
    known = (_REPLICATED_KERNEL,) if sharding_type == "data_parallel" else KERNELS
    if allowed:
        return next((kernel for kernel in known if kernel in offered and kernel in allowed), None)
    # Without a constraint tables do not leave the devices' own memory.
    return known[0] if known[0] in offered else None


def _no_kernel(
    table: ModelTable, constraint: ParameterConstraints | None, types: Sequence[str], where: str
) -> str:
    offered = ", ".join(sorted({k for type_ in types for k in table.offer.kernels[type_]}))
    allowed = constraint.compute_kernels if constraint is not None else None
    if not allowed:
        return (
            f"{where}: {table.offer.name} offers compute kernels {offered}, none that is supported"
        )
    return (
        f"{where}: constraint compute_kernels allows {', '.join(allowed)}; for {' or '.join(types)} "
        f"{table.offer.name} offers {offered}, and supported are {', '.join(KERNELS)} and, for "
        f"data_parallel, {_REPLICATED_KERNEL}"
    )


def _least_width(table: ModelTable, constraint: ParameterConstraints | None) -> int:
    least: int | None = None if constraint is None else constraint.min_partition
    return 4 if least is None else min(table.dim, -(-int(least) // 4) * 4)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """What is wrong with a field becomes an error of the constraint of this table."""
    try:
        yield
    except InputError as error:
        raise ConstraintError(f"{where}: constraint {error}") from error


def _listed(values: object, field: str, of_what: str) -> Sequence[object]:
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise InputError(f"{field} must be a list of {of_what}, got {shown(values)}")
    return values


def _check_names(values: object, field: str, known: tuple[str, ...]) -> None:
    for value in _listed(values, field, "strings"):
        if not isinstance(value, str):
            raise InputError(f"{field} must be a list of strings, got {shown(values)}")
        if known and value not in known:
            what = field.removesuffix("s").replace("_", " ")
            raise InputError(f"{field}: {value!r} is no {what}; those are {', '.join(known)}")
