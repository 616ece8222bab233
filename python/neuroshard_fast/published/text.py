"""Lines of comma-separated numbers, the text format of published task files and cost data."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import TypeVar

from neuroshard_fast import config
from neuroshard_fast.errors import InputError

Number = TypeVar("Number", int, float)


def columns_of_lines(
    path: str | os.PathLike[str], columns: tuple[str, ...]
) -> Iterator[tuple[str, list[str]]]:
    """For each line: where it is, for messages, and its space-separated columns.

    Empty lines at the end are passed over. InputError where there is no line, or the number of
    columns is another.
    """
    try:
        text = config.read_bytes(path).removeprefix(codecs.BOM_UTF8).decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file of numbers (byte {error.start})") from error
    lines = text.rstrip().split("\n")
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        fields = line.split()
        if len(fields) != len(columns):
            raise InputError(
                f"{where}: must have {len(columns)} columns, {' '.join(columns)},"
                f" separated by a space; has {len(fields)}"
            )
        yield where, fields


def numbers(text: str, type_: type[Number], where: str) -> list[Number]:
    """The comma-separated numbers of ``text``."""
    items = text.split(",")
    try:
        if "_" in text:  # Python would take it for a thousands separator
            raise ValueError
        return [type_(item) for item in items]
    except ValueError:
        bad = next(item for item in items if not _is_number(item, type_))
        kind = "a whole number" if type_ is int else "a number"
        raise InputError(f"{where}: {bad[:40]!r} is not {kind}") from None


def _is_number(item: str, type_: type[int] | type[float]) -> bool:
    try:
        type_(item)
    except ValueError:
        return False
    return "_" not in item
