"""Small checks of values given by users; every failure names the field and what it takes."""

from __future__ import annotations

import math
from numbers import Integral, Real

from neuroshard_fast.errors import InputError


def whole_number(value: object, field: str, *, low: int, high: int) -> int:
    """``value`` as an int within ``low`` … ``high``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{field} must be a whole number, got {value!r}")
    if not low <= int(value) <= high:
        raise InputError(f"{field} must lie between {low} and {high}, got {value}")
    return int(value)


def finite_number(value: object, field: str, *, low: float, high: float) -> float:
    """``value`` as a finite float within ``low`` … ``high``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{field} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        raise InputError(
            f"{field} must be a finite number between {low:g} and {high:g}, got {value}"
        )
    return number


def one_of(value: object, field: str, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{field} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def label(value: object, field: str) -> str:
    """``value`` if it is a non-empty string of printable characters."""
    if not isinstance(value, str):
        raise InputError(f"{field} must be a string, got {value!r}")
    if not value or not value.isprintable():
        raise InputError(
            f"{field} must be a non-empty string of printable characters, got {value!r}"
        )
    return value
