"""Memory sizes as people write them."""

from __future__ import annotations

import re

from neuroshard_fast.errors import InputError

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Whole bytes of a size such as ``80GiB``, ``1.5TiB`` or ``4096B``, rounded down."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise InputError(
            f"memory size {text[:60]!r} is not a number (at most 19 digits) with a unit B, KiB, MiB, "
            "GiB or TiB, as in 80GiB"
        )
    number = match.group(1)
    size = int(number) * unit if number.isdigit() else int(float(number) * unit)
    if not 1 <= size <= 2**60:
        raise InputError(f"memory size {text[:60]!r} must lie between 1B and 1048576TiB")
    return size


def format_bytes(size: int) -> str:
    """``size`` bytes for people to read, with the largest unit that keeps it at 1 or more."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"
