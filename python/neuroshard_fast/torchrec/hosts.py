"""Tables whose kernels keep them in the memory of the hosts, beside that of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from neuroshard_fast.torchrec.question import Columns, Devices, FixedShard, Question, ShardAt
from neuroshard_fast.torchrec.storage import HOST_KERNELS


class HostTables(NamedTuple):
    """The searched tables of a question, by whether they are in host memory.

    tables, others: their numbers among the searched ones. columns: of ``tables``, with host memory.
    """

    tables: list[int]
    others: list[int]
    columns: Columns


def host_bytes(question: Question, devices: Devices) -> list[int]:
    """Host memory of each rank with searched tables placed like this."""
    taken = [0] * question.setting.world_size
    for rank, shards in enumerate(devices):
        taken[rank] += sum(question.storage[table].at(width).host for table, width in shards)
    for fixed in question.fixed:
        taken[fixed.shard.rank] += fixed.storage.host
    return taken


def split_by_host(question: Question) -> HostTables:
    """Which of the searched tables are in host memory."""
    kernels = [question.choices[number].kernel for number in question.free]
    tables = [index for index, kernel in enumerate(kernels) if kernel in HOST_KERNELS]
    others = [index for index, kernel in enumerate(kernels) if kernel not in HOST_KERNELS]
    lines = [question.storage[index].host for index in tables]
    columns = replace(
        _columns_of(question.columns, tables),
        bytes_per_column=[math.ceil(line.per_column) for line in lines],
        bytes_fixed=[max(0, math.ceil(line.fixed)) for line in lines],
    )
    return HostTables(tables, others, columns)


def without_placed(question: Question, split: HostTables, placed: Devices) -> Question:
    """What is left to plan when the tables in host memory are ``placed``."""
    fixed = list(question.fixed)
    ends = [0] * len(split.tables)
    for rank, shards in enumerate(placed):
        for index, width in shards:
            number = question.free[split.tables[index]]
            at = ShardAt(rank, 0, ends[index], question.tables[number].rows, width)
            fixed.append(FixedShard(number, at, question.storage[split.tables[index]].at(width)))
            ends[index] += width
    return replace(
        question,
        free=[question.free[index] for index in split.others],
        columns=_columns_of(question.columns, split.others),
        storage=[question.storage[index] for index in split.others],
        fixed=fixed,
    )


def _columns_of(columns: Columns, tables: Sequence[int]) -> Columns:
    return Columns(
        dims=[columns.dims[table] for table in tables],
        bytes_per_column=[columns.bytes_per_column[table] for table in tables],
        bytes_fixed=[columns.bytes_fixed[table] for table in tables],
        least_widths=[columns.least_widths[table] for table in tables],
        collections=[columns.collections[table] for table in tables],
        whole_is_columns=[columns.whole_is_columns[table] for table in tables],
    )
