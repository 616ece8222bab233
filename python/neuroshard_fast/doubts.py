"""What cost models were trained on, and what of a plan lies far outside."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import finite_number, label, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import batch_lookups
from neuroshard_fast.memory import WEIGHT_BYTES
from neuroshard_fast.tables import TableSet

Floats = npt.NDArray[np.float64]
Range = tuple[float, float]

FAR = 2.0
"""Further outside the range of the training data than by this factor is far."""

_LISTED = 3
_MOST_SHOWN = 60
_TINY = 1e-300


class TrainedOn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The least and the largest of what is in training data.

    batch_sizes: samples of the global batch.
    data_types, optimizers: of the tables.
    rows, width, pooling_factor: of a table; the width is in columns.
    reuse: lookups of a batch for each row that is looked up.
    device_tables, device_lookups, device_read_bytes: tables on a device, and what a batch looks up and
        reads in all of them.
    device_counts: of the all-to-alls; empty where there are none.
    sent_bytes: what a device sends in an all-to-all.
    wait_ms: how long a device waits for the last one to start. None of both without all-to-alls.
    """

    batch_sizes: tuple[int, int]
    data_types: tuple[str, ...]
    optimizers: tuple[str, ...]
    rows: Range
    width: Range
    pooling_factor: Range
    reuse: Range
    device_tables: Range
    device_lookups: Range
    device_read_bytes: Range
    device_counts: tuple[int, ...] = ()
    sent_bytes: Range | None = None
    wait_ms: Range | None = None

    def __post_init__(self) -> None:
        _check_range("batch_sizes", self.batch_sizes)
        for size in self.batch_sizes:
            whole_number(size, "trained_on: batch_sizes", low=1, high=MAX_BATCH_SIZE)
        for field in _TABLE_RANGES + _DEVICE_RANGES:
            _check_range(field, getattr(self, field))
        for field in ("sent_bytes", "wait_ms"):
            if getattr(self, field) is not None:
                _check_range(field, getattr(self, field))
        for field in ("data_types", "optimizers"):
            for name in getattr(self, field):
                label(name, f"trained_on: {field}")
        for count in self.device_counts:
            whole_number(count, "trained_on: device_counts", low=2, high=MAX_DEVICES)
        if list(self.device_counts) != sorted(set(self.device_counts)):
            raise InputError("trained_on: device_counts must be ascending")


_TABLE_RANGES = ("rows", "width", "pooling_factor", "reuse")
_DEVICE_RANGES = ("device_tables", "device_lookups", "device_read_bytes")


def _check_range(field: str, bounds: tuple[float, float]) -> None:
    for bound in bounds:
        finite_number(bound, f"trained_on: {field}", low=0.0, high=1e300)
    if bounds[0] > bounds[1]:
        raise InputError(f"trained_on: {field} must begin with its lower end, got {bounds}")


class TableRanges(msgspec.Struct, frozen=True):
    """Quantities of tables, all [tables], by their names in :class:`TrainedOn`."""

    rows: Floats
    width: Floats
    pooling_factor: Floats
    reuse: Floats
    lookups: Floats
    read_bytes: Floats

    @classmethod
    def of(cls, tables: TableSet, batch_size: int) -> TableRanges:
        """Those of unsplit ``tables``."""
        looked_up = batch_lookups(tables, batch_size)
        element = np.array([WEIGHT_BYTES[table.data_type] for table in tables], float)
        width = np.array([table.embedding_dim for table in tables], float)
        return cls(
            rows=looked_up.rows,
            width=width,
            pooling_factor=looked_up.lookups / batch_size,
            reuse=looked_up.lookups / np.maximum(looked_up.distinct, 1.0),
            lookups=looked_up.lookups,
            read_bytes=looked_up.lookups * element * width,
        )


def outside_training(
    trained_on: TrainedOn,
    tables: TableSet,
    batch_size: int,
    devices: Sequence[Sequence[tuple[int, int]]],
    output_dims: Sequence[float],
    starts_ms: Sequence[float],
    devices_per_node: int | None,
) -> list[str]:
    """What of a plan lies far outside the training data, one sentence each; empty where nothing does.

    devices: for each device its shards: (number of the table, width).
    output_dims: fp32 numbers that each device sends for a sample.
    starts_ms: after the first, when each device starts its forward all-to-all.
    devices_per_node: devices of a full node; None where communication networks do not know of nodes.
    """
    found = []
    low, high = trained_on.batch_sizes
    if not low / FAR <= batch_size <= high * FAR:
        found.append(_sentence(f"batch size {batch_size:,}", trained_on.batch_sizes))
    for field, names in (
        ("data_type", trained_on.data_types),
        ("optimizer", trained_on.optimizers),
    ):
        others = {getattr(table, field) for table in tables} - set(names)
        if names and others:
            what = field.replace("_", " ")
            found.append(f"{what} {_joined(sorted(others))}: trained on {_joined(names)}")

    each = TableRanges.of(tables, batch_size)
    shards = sorted({shard for device in devices for shard in device})
    table_of = np.array([table for table, _ in shards], int)
    width = np.array([width for _, width in shards], float)
    for field in _TABLE_RANGES:
        values = width if field == "width" else getattr(each, field)[table_of]
        bounds = getattr(trained_on, field)
        far = _how_far(values, bounds)
        # Of the shards of a table the one that is furthest outside counts.
        worst: dict[int, tuple[float, float]] = {}
        for index in np.flatnonzero(far > FAR):
            table = int(table_of[index])
            worst[table] = max(
                worst.get(table, (0.0, 0.0)), (float(far[index]), float(values[index]))
            )
        if worst:
            listed = _listed(worst, lambda k: f"table {shown(tables[k].name)}")
            found.append(_sentence(f"{field.replace('_', ' ')} of {listed}", bounds))

    loads = {"device_tables": [float(len(device)) for device in devices]}
    share = each.read_bytes / each.width
    loads["device_lookups"] = [sum(each.lookups[t] for t, _ in device) for device in devices]
    loads["device_read_bytes"] = [sum(share[t] * w for t, w in device) for device in devices]
    if trained_on.sent_bytes is not None:
        loads["sent_bytes"] = [batch_size * 4 * dim for dim in output_dims]
    if trained_on.wait_ms is not None:
        last = max(starts_ms)
        loads["wait_ms"] = [last - start for start in starts_ms]
    for field, amounts in loads.items():
        low, high = getattr(trained_on, field)
        # Less than in any training sample is no danger: costs are nearly in proportion there.
        far = _how_far(np.array(amounts), (0.0, high))
        over = {int(k): (float(far[k]), amounts[k]) for k in np.flatnonzero(far > FAR)}
        if over:
            name = field.removeprefix("device_").replace("_", " ")
            listed = _listed(over, lambda k: f"device {k}")
            found.append(_sentence(f"{name} of {listed}", (low, high)))

    counts = trained_on.device_counts
    if counts and devices_per_node is not None and len(devices) not in counts:
        count = len(devices)
        if not counts[0] <= count <= counts[-1]:
            found.append(_sentence(f"{count:,} devices", (counts[0], counts[-1])))
        elif count > devices_per_node and count % devices_per_node:
            found.append(
                f"{count:,} devices leave a node of {devices_per_node} not full, and were not trained on"
            )
    return found


def _how_far(values: Floats, bounds: Range) -> Floats:
    """By what factor each value lies outside; 1 or less within."""
    low, high = bounds
    below = low / np.maximum(values, _TINY)
    return np.asarray(np.maximum(below, values / max(high, _TINY)))


def _listed(values: dict[int, tuple[float, float]], name: Callable[[int], str]) -> str:
    """The furthest outside of ``values``, each how far and the value itself, by ``name``."""
    worst = heapq.nlargest(_LISTED, values, key=lambda k: values[k][0])
    listed = ", ".join(f"{name(k)} ({values[k][1]:,.4g})" for k in worst)
    return listed + (f" and {len(values) - _LISTED} more" if len(values) > _LISTED else "")


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name[:_MOST_SHOWN] for name in names[:_LISTED]) + more


def _sentence(what: str, bounds: Range) -> str:
    low, high = bounds
    return f"{what}: trained on {low:,.4g} to {high:,.4g}"
