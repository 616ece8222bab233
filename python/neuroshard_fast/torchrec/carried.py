"""Settings of a table that a plan passes on to TorchRec: planning does not use them, training does."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    KeyValueParams,
)
from torchrec.types import DataType

from neuroshard_fast.checks import finite_number, shown
from neuroshard_fast.cluster import MAX_MEMORY_BYTES
from neuroshard_fast.errors import InputError

Plain = bool | int | float | str
T = TypeVar("T")

_CACHE_PREFIX = "cache_params."
_PLAIN_CACHE_FIELDS = ("load_factor", "reserved_memory", "prefetch_pipeline")
# Of the fields whose values a file holds as they are; the others are numbers.
_FLAGS = ("enforce_hbm", "stochastic_rounding", "prefetch_pipeline")
_OBJECTS_IN_CACHE = ("stats", "multipass_prefetch_config")
_TYPES: dict[str, type] = {
    "cache_params": CacheParams,
    "enforce_hbm": bool,
    "stochastic_rounding": bool,
    "bounds_check_mode": BoundsCheckMode,
    "output_dtype": DataType,
    "key_value_params": KeyValueParams,
}
_CACHE_TYPES: dict[str, type] = {
    "algorithm": CacheAlgorithm,
    "precision": DataType,
    "prefetch_pipeline": bool,
}
# From and to: a share of the rows, and bytes.
_CACHE_NUMBERS = {"load_factor": (1e-9, 1.0), "reserved_memory": (0.0, float(MAX_MEMORY_BYTES))}


class Carried(NamedTuple):
    """The fields of TorchRec's ``ParameterSharding`` of the same names; None leaves TorchRec's default."""

    cache_params: Any = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: Any = None
    output_dtype: Any = None
    key_value_params: Any = None

    @classmethod
    def of(cls, source: ParameterConstraints) -> Carried:
        """Those of constraints, or of a ``ParameterSharding``; objects are copied.

        InputError, beginning with the field, for what TorchRec does not take there.
        """
        given = cls(*(getattr(source, field) for field in cls._fields))
        if all(value is None for value in given):
            return NOTHING_CARRIED
        _check(given)
        return given._replace(
            cache_params=_copied(given.cache_params, "cache_params"),
            key_value_params=_copied(given.key_value_params, "key_value_params"),
        )

    def plain(self) -> dict[str, Plain]:
        """What of it a file can hold, by field; :meth:`objects` names the rest."""
        found: dict[str, Plain] = {}
        for field in ("enforce_hbm", "stochastic_rounding"):
            if getattr(self, field) is not None:
                found[field] = bool(getattr(self, field))
        if self.bounds_check_mode is not None:
            found["bounds_check_mode"] = self.bounds_check_mode.name
        if self.output_dtype is not None:
            found["output_dtype"] = self.output_dtype.value
        cache = self.cache_params
        if cache is not None:
            # Also where no field of it is set, so that there is one after reading.
            found["cache_params"] = True
            for field in _PLAIN_CACHE_FIELDS:
                if getattr(cache, field) is not None:
                    found[_CACHE_PREFIX + field] = getattr(cache, field)
            if cache.algorithm is not None:
                found[_CACHE_PREFIX + "algorithm"] = cache.algorithm.name
            if cache.precision is not None:
                found[_CACHE_PREFIX + "precision"] = cache.precision.value
        return found

    def objects(self) -> tuple[str, ...]:
        """Names of what no file can hold: it has to be given again, in constraints."""
        names = [
            _CACHE_PREFIX + field
            for field in _OBJECTS_IN_CACHE
            if getattr(self.cache_params, field, None) is not None
        ]
        if self.key_value_params is not None:
            names.append("key_value_params")
        return tuple(names)


NOTHING_CARRIED = Carried()


def read_carried(plain: Mapping[str, Plain], where: str) -> Carried:
    """The inverse of :meth:`Carried.plain`; InputError, beginning with ``where``, for other contents."""
    values: dict[str, Any] = {}
    cache: dict[str, Any] = {}
    try:
        for field, value in plain.items():
            if field == "cache_params":
                continue
            if field in ("enforce_hbm", "stochastic_rounding"):
                values[field] = _checked(field, value)
            elif field == "bounds_check_mode":
                values[field] = BoundsCheckMode[str(value)]
            elif field == "output_dtype":
                values[field] = DataType(value)
            elif field == _CACHE_PREFIX + "algorithm":
                cache["algorithm"] = CacheAlgorithm[str(value)]
            elif field == _CACHE_PREFIX + "precision":
                cache["precision"] = DataType(value)
            elif field.removeprefix(_CACHE_PREFIX) in _PLAIN_CACHE_FIELDS:
                name = field.removeprefix(_CACHE_PREFIX)
                cache[name] = _checked(name, value)
            else:
                raise InputError(f"{where}: carried: {field!r} is not known")
    except (KeyError, ValueError) as error:
        raise InputError(f"{where}: carried: {field}: {value!r} is not known") from error
    if cache or "cache_params" in plain:
        values["cache_params"] = CacheParams(**cache)
    carried = Carried(**values)
    try:
        _check(carried)
    except InputError as error:
        raise InputError(f"{where}: carried: {error}") from error
    return carried


def _checked(field: str, value: Plain) -> Plain:
    """``value`` where it is of the type of the field; else ValueError."""
    if isinstance(value, bool) != (field in _FLAGS) or isinstance(value, str):
        raise ValueError(field)
    return value


def _check(carried: Carried) -> None:
    _check_types(carried, _TYPES, "")
    cache = carried.cache_params
    if cache is None:
        return
    _check_types(cache, _CACHE_TYPES, _CACHE_PREFIX)
    for field, (low, high) in _CACHE_NUMBERS.items():
        value = getattr(cache, field)
        if value is not None:
            finite_number(value, _CACHE_PREFIX + field, low=low, high=high)


def _check_types(source: object, types: Mapping[str, type], prefix: str) -> None:
    for field, kind in types.items():
        value = getattr(source, field)
        if value is not None and not isinstance(value, kind):
            wanted = "True or False" if kind is bool else f"a {kind.__name__}"
            raise InputError(f"{prefix}{field} must be {wanted}, got {shown(value)}")


def _copied(value: T, field: str) -> T:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # the user's objects raise what they like
        raise InputError(f"{field} cannot be copied: {type(error).__name__}: {error}") from error
