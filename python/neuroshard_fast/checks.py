"""Small checks of values given by users; every failure names the field and what it takes."""

from __future__ import annotations

import math
from numbers import Integral, Real

from neuroshard_fast.errors import InputError

MAX_SEED = 2**63 - 1

# Below, int and float are told before Integral and Real, which take ten times as long to ask for: a plan
# holds thousands of numbers.
_MOST_SHOWN = 60
_LONGEST_LABEL = 4096  # the longest is the command of a training with many layer sizes


def whole_number(value: object, field: str, *, low: int, high: int) -> int:
    """``value`` as an int within ``low`` … ``high``."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise InputError(f"{field} must be a whole number, got {shown(value)}")
    if not low <= int(value) <= high:
        raise InputError(f"{field} must lie between {low} and {high}, got {shown(value)}")
    return int(value)


def finite_number(value: object, field: str, *, low: float, high: float) -> float:
    """``value`` as a finite float within ``low`` … ``high``."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise InputError(f"{field} must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high:
        raise InputError(
            f"{field} must be a finite number between {low:g} and {high:g}, got {shown(value)}"
        )
    return number


def shown(value: object) -> str:
    """``value``, cut short, for a message; Python does not write out integers of thousands of digits."""
    try:
        text = str(value) if isinstance(value, Real) else repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def one_of(value: object, field: str, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{field} must be one of {', '.join(choices)}, got {shown(value)}")
    return value


def label(value: object, field: str) -> str:
    """``value`` if it is a string of 1 to 4096 printable characters."""
    if not isinstance(value, str):
        raise InputError(f"{field} must be a string, got {shown(value)}")
    if not value or not value.isprintable():
        raise InputError(
            f"{field} must be a non-empty string of printable characters, got {shown(value)}"
        )
    if len(value) > _LONGEST_LABEL:
        raise InputError(f"{field} must have {_LONGEST_LABEL} characters at most, got {len(value)}")
    return value


def labels(values: object, field: str) -> None:
    """InputError where ``values`` is not a dictionary of a :func:`label` for each label."""
    if not isinstance(values, dict):
        raise InputError(f"{field} must be a dictionary, got {shown(values)}")
    for name, value in values.items():
        label(name, field)
        label(value, f"{field}: {name}")
