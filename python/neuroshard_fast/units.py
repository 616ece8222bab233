"""Memory sizes and durations as people write them."""

from __future__ import annotations

import re

from neuroshard_fast.errors import InputError

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([A-Za-z]*)\s*")
_SECONDS = {"S": 1, "MIN": 60, "H": 3600, "D": 86400}
_MOST_SECONDS = 10_000 * 86400


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


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``30min``, ``1.5h`` or ``2d``."""
    match = _SIZE.fullmatch(text)
    unit = _SECONDS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise InputError(
            f"duration {text[:60]!r} is not a number with a unit s, min, h or d, as in 30min"
        )
    seconds = float(match.group(1)) * unit
    if seconds > _MOST_SECONDS:
        raise InputError(f"duration {text[:60]!r} must be at most 10000d")
    return seconds


def format_bytes(size: int, *, round_up: bool = False) -> str:
    """``size`` bytes for people to read, with the largest unit that keeps it at 1 or more.

    round_up: what is shown is no less than ``size``.
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            shown = -(-size * 100 // unit) / 100 if round_up else size / unit
            return f"{shown:.2f} {name}"
    return f"{size} B"
