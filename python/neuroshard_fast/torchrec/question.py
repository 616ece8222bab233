"""A planning question: tables with what may be done to them, and memory; no cost models yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

from neuroshard_fast.torchrec.constraints import Choice
from neuroshard_fast.torchrec.lookups import TableLookups
from neuroshard_fast.torchrec.model import ModelTable
from neuroshard_fast.torchrec.setting import Setting
from neuroshard_fast.torchrec.storage import (
    ColumnStorage,
    ShardStorage,
    column_storage,
    fixed_storage,
)

Devices = list[list[tuple[int, int]]]
"""For each rank its shards of searched tables: number of the table among them, and columns."""


class ShardAt(NamedTuple):
    """A shard: the rows and columns from these offsets on, on a rank."""

    rank: int
    row_offset: int
    column_offset: int
    rows: int
    columns: int


class FixedShard(NamedTuple):
    """A shard whose place the search does not choose; ``table`` counts all tables."""

    table: int
    shard: ShardAt
    storage: ShardStorage


@dataclass(frozen=True)
class Columns:
    """Tables whose columns are placed by the search; every list has an entry for each.

    bytes_per_column, bytes_fixed: of a shard.
    least_widths: no cut is narrower; the table's dim keeps it whole.
    collections: which tables want one width of column shards in common, by number; -1: any widths.
    whole_is_columns: whether the table in one shard is a column shard too, for the common width.
    """

    dims: list[int]
    bytes_per_column: list[int]
    bytes_fixed: list[int]
    least_widths: list[int]
    collections: list[int]
    whole_is_columns: list[bool]

    def bytes_of(self, table: int, width: int) -> int:
        """Memory of a shard."""
        return self.bytes_per_column[table] * width + self.bytes_fixed[table]


@dataclass(frozen=True)
class Question:
    """What to plan, and within which memory.

    caps, host_caps: bytes that each rank has left for tables, in the memory that they fill and in that of
        the host beside a GPU.
    free: numbers of the tables in ``columns``. storage: of their shards.
    fixed: shards of the other tables.
    """

    tables: list[ModelTable]
    choices: list[Choice]
    lookups: list[TableLookups]
    setting: Setting
    caps: list[int]
    host_caps: list[int]
    free: list[int]
    columns: Columns
    storage: list[ColumnStorage]
    fixed: list[FixedShard]

    def fixed_bytes(self) -> list[int]:
        """Memory of the fixed shards of each rank."""
        total = [0] * self.setting.world_size
        for fixed in self.fixed:
            total[fixed.shard.rank] += fixed.storage.larger
        return total


def pose(
    tables: list[ModelTable],
    choices: list[Choice],
    lookups: list[TableLookups],
    setting: Setting,
    caps: list[int],
    host_caps: list[int],
    *,
    uneven_columns: bool,
) -> Question:
    """The question of these tables.

    uneven_columns: whether column shards of a pooled table may differ in width.
    """
    free = [number for number, choice in enumerate(choices) if choice.layout == "columns"]
    storage = [
        column_storage(tables[number], choices[number], lookups[number], setting) for number in free
    ]
    bounds = [line.bound(tables[number].dim) for line, number in zip(storage, free, strict=True)]
    columns = Columns(
        dims=[tables[number].dim for number in free],
        bytes_per_column=[per_column for per_column, _ in bounds],
        bytes_fixed=[fixed for _, fixed in bounds],
        least_widths=[choices[number].least_width for number in free],
        collections=_collections([tables[number] for number in free], uneven_columns),
        whole_is_columns=[choices[number].whole_is_columns for number in free],
    )
    return Question(
        tables=tables,
        choices=choices,
        lookups=lookups,
        setting=setting,
        caps=[max(0, cap) for cap in caps],
        host_caps=[max(0, cap) for cap in host_caps],
        free=free,
        columns=columns,
        storage=storage,
        fixed=_fixed_shards(tables, choices, lookups, setting),
    )


def _collections(tables: Sequence[ModelTable], uneven_columns: bool) -> list[int]:
    numbers: dict[tuple[str, str], int] = {}
    found = []
    for table in tables:
        if table.kind == "sequence":
            found.append(numbers.setdefault(("module", table.path), len(numbers)))
        elif uneven_columns:
            found.append(-1)
        else:  # of a width that only the shards of this table have in common
            found.append(numbers.setdefault(("table", table.fqn), len(numbers)))
    return found


def _fixed_shards(
    tables: Sequence[ModelTable],
    choices: Sequence[Choice],
    lookups: Sequence[TableLookups],
    setting: Setting,
) -> list[FixedShard]:
    numbers = [number for number, choice in enumerate(choices) if choice.layout != "columns"]
    hosts = _hosts_of(
        [number for number in numbers if choices[number].layout == "table_row_wise"],
        tables,
        setting,
    )
    found = []
    for number in numbers:
        table, choice = tables[number], choices[number]
        sizes, offsets = calculate_shard_sizes_and_offsets(
            tensor=table.parameter,
            world_size=setting.world_size,
            local_world_size=setting.group_size,
            sharding_type=choice.layout,
            # Not in proportion to the memory of ranks: TorchRec trains such rows with wrong outputs.
            device_memory_sizes=None,
        )
        first = hosts.get(number, 0) * setting.group_size
        storages = fixed_storage(table, choice, lookups[number], setting, sizes)
        found += [
            FixedShard(number, ShardAt(first + place, *offset, *size), storage)
            for place, (offset, size, storage) in enumerate(
                zip(offsets, sizes, storages, strict=True)
            )
        ]
    return found


def _hosts_of(
    numbers: Sequence[int], tables: Sequence[ModelTable], setting: Setting
) -> dict[int, int]:
    """A host for each table that is cut by rows within one: the largest first, to the emptiest."""
    loads = [0] * setting.hosts
    found = {}
    for number in sorted(numbers, key=lambda k: -tables[k].rows * tables[k].dim):
        host = loads.index(min(loads))
        found[number] = host
        loads[host] += tables[number].rows * tables[number].dim
    return found
