"""Task files: which tables of a ``table_configs.json`` to plan for, and with which dims."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from neuroshard_fast import config
from neuroshard_fast.errors import InputError
from neuroshard_fast.published.table_configs import PublishedTables, read_table_configs
from neuroshard_fast.published.text import columns_of_lines, numbers
from neuroshard_fast.tables import MAX_TABLES, TableSet

Task = tuple[tuple[int, ...], tuple[int, ...]]
"""Table ids and dims, equally many."""


def read_tasks(
    tasks: str | os.PathLike[str], table_configs: str | os.PathLike[str]
) -> list[TableSet]:
    """The table set of every line of a task file.

    Tables are named by their ids; one that occurs again in a task is a separate instance: ``id#2``.
    InputError names the line for ids out of range, unequal columns and impossible dims.
    """
    published = read_table_configs(table_configs)
    return [
        _table_set(task, published, f"{tasks}: line {number}")
        for number, task in enumerate(read_task_file(tasks), start=1)
    ]


def read_task_file(path: str | os.PathLike[str]) -> list[Task]:
    """Ids and dims of every task, of the file alone."""
    tasks: list[Task] = []
    for where, (ids_text, dims_text) in columns_of_lines(path, ("ids", "dims")):
        ids = tuple(numbers(ids_text, int, f"{where}: ids"))
        dims = tuple(numbers(dims_text, int, f"{where}: dims"))
        if len(ids) != len(dims):
            raise InputError(f"{where}: {len(ids)} ids but {len(dims)} dims")
        if len(ids) > MAX_TABLES:
            raise InputError(f"{where}: at most {MAX_TABLES} tables a task, got {len(ids)}")
        tasks.append((ids, dims))
    return tasks


def write_task_file(
    path: str | os.PathLike[str], tasks: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> None:
    """Write ids and dims, one task a line."""
    lines = [f"{','.join(map(str, ids))} {','.join(map(str, dims))}\n" for ids, dims in tasks]
    config.write_atomically(path, "".join(lines).encode())


def _table_set(task: Task, published: PublishedTables, where: str) -> TableSet:
    tables = []
    seen: Counter[int] = Counter()
    for entry, (id_, dim) in enumerate(zip(*task, strict=True)):
        if not 0 <= id_ < len(published):
            raise InputError(
                f"{where}: ids[{entry}]: {id_} is not a table of {published.path},"
                f" which has 0 to {len(published) - 1}"
            )
        seen[id_] += 1
        name = str(id_) if seen[id_] == 1 else f"{id_}#{seen[id_]}"
        try:
            tables.append(published[id_].with_dim(dim, name))
        except InputError as error:
            raise InputError(f"{where}: dims[{entry}]: {error}") from error
    return TableSet.of(tables)
