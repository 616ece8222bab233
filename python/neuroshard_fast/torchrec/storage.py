"""Memory of shards: as TorchRec estimates it, and what training really takes.

TorchRec's figure is that of its ``EmbeddingStorageEstimator``: weights, inputs and outputs of a batch, and
the optimizer's state by a factor. It knows only optimizers that are attached to the parameters, and counts
row-wise state by columns. What training takes has the state as FBGEMM allocates it for each shard, a vector
for each bag of every feature, and, of replicated tables, the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchrec.distributed.planner.constants import BIGINT_DTYPE, KV_CACHING_RATIO, UVM_CACHING_RATIO
from torchrec.distributed.planner.shard_estimators import calculate_shard_storages
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS

from neuroshard_fast.memory import WEIGHT_BYTES
from neuroshard_fast.torchrec.constraints import Choice
from neuroshard_fast.torchrec.lookups import TableLookups
from neuroshard_fast.torchrec.model import ModelTable
from neuroshard_fast.torchrec.setting import Setting

_DEVICE_KERNEL = "fused"
_WEIGHT_OF_INDEX_BYTES = 4
HOST_KERNELS = ("fused_uvm", "fused_uvm_caching")
"""Those of tables with weights and their optimizer's state in host memory."""


class Line(NamedTuple):
    """Bytes of a shard of ``width`` columns: ``per_column * width + fixed``."""

    per_column: float
    fixed: float

    def at(self, width: int) -> int:
        """Whole bytes, rounded up."""
        return math.ceil(self.per_column * width + self.fixed)


class ShardStorage(NamedTuple):
    """Bytes of one shard; ``host`` is what it has in host memory beside that of a GPU."""

    estimate: int
    training: int
    host: int

    @property
    def larger(self) -> int:
        """What the cap has to hold."""
        return max(self.estimate, self.training)


class ColumnStorage(NamedTuple):
    """Memory of the column shards of a table."""

    estimate: Line
    training: Line
    host: Line

    def at(self, width: int) -> ShardStorage:
        """That of a shard of ``width`` columns."""
        return ShardStorage(self.estimate.at(width), self.training.at(width), self.host.at(width))

    def bound(self, dim: int) -> tuple[int, int]:
        """Whole bytes per column and fixed, of a line that no shard of a table of ``dim`` columns is above.

        It is the higher of the two lines, unless they cross.
        """
        ends = [(self.estimate.at(width), self.training.at(width)) for width in (4, dim)]
        lines = [self.estimate, self.training]
        if all(training >= estimate for estimate, training in ends):
            lines = [self.training]
        elif all(training <= estimate for estimate, training in ends):
            lines = [self.estimate]
        return (
            max(0, *(math.ceil(line.per_column) for line in lines)),
            max(0, *(math.ceil(line.fixed) for line in lines)),
        )


def column_storage(
    table: ModelTable, choice: Choice, lookups: TableLookups, setting: Setting
) -> ColumnStorage:
    """Memory of the shards of ``table``, whole or cut by columns."""
    inputs, outputs = _true_batch(table, lookups, setting)
    weights = table.rows * WEIGHT_BYTES[table.data_type]
    state = table.rows * table.optimizer.bytes_per_element
    counted_inputs, counted_outputs = _counted_batch(table, lookups)
    world_size = setting.world_size
    training = Line(
        weights + state + outputs * world_size * lookups.output_bytes,
        inputs * world_size * _index_bytes(lookups) + table.rows * table.optimizer.bytes_per_row,
    )
    if choice.kernel == _DEVICE_KERNEL:
        estimate = Line(
            weights * (1.0 + table.estimate_factor)
            + counted_outputs * world_size * _counted_output_bytes(table, choice),
            counted_inputs * world_size * BIGINT_DTYPE,
        )
        return ColumnStorage(estimate, training, Line(0.0, 0.0))
    # The weights are in host memory, and a part of them is cached on the device.
    widths = (4, table.dim)
    asked = [
        _ask_torchrec(table, choice, lookups, setting, "column_wise", [[table.rows, width]])[0]
        for width in widths
    ]
    estimate = _through(widths, [storage.hbm for storage in asked])
    host = _through(widths, [storage.ddr for storage in asked])
    counted_state = weights * table.estimate_factor
    more = Line(
        host.per_column + max(0.0, state - counted_state),
        host.fixed + table.rows * table.optimizer.bytes_per_row,
    )
    return ColumnStorage(estimate, estimate, more)


def fixed_storage(
    table: ModelTable,
    choice: Choice,
    lookups: TableLookups,
    setting: Setting,
    sizes: Sequence[Sequence[int]],
) -> list[ShardStorage]:
    """Memory of shards of ``sizes`` (rows and columns) of a table that is sharded otherwise."""
    asked = _ask_torchrec(table, choice, lookups, setting, choice.layout, sizes)
    element, state = WEIGHT_BYTES[table.data_type], table.optimizer
    replicated = choice.layout == "data_parallel"
    more_a_number = max(0.0, lookups.output_bytes - _counted_output_bytes(table, choice))
    _, outputs = _true_batch(table, lookups, setting)
    if not replicated:
        outputs *= setting.world_size
    found = []
    for (rows, columns), storage in zip(sizes, asked, strict=True):
        on_device = storage.hbm if setting.compute_device == "cuda" else storage.ddr
        host = storage.ddr if setting.compute_device == "cuda" else 0
        weights = rows * columns * element
        counted_state = math.ceil(weights * table.estimate_factor)
        real_state = rows * (columns * state.bytes_per_element + state.bytes_per_row)
        more = real_state - counted_state + (weights if replicated else 0)
        more += math.ceil(outputs * columns * more_a_number) if rows else 0
        if choice.kernel in HOST_KERNELS:
            found.append(ShardStorage(on_device, on_device, host + max(0, more)))
        else:
            found.append(ShardStorage(on_device, on_device + more, host))
    return found


def _true_batch(table: ModelTable, lookups: TableLookups, setting: Setting) -> tuple[float, float]:
    """Indices of a rank's batch, and vectors that come out for them."""
    inputs = lookups.total * setting.batch_size
    return inputs, lookups.vectors * setting.batch_size if table.kind == "bags" else inputs


def _counted_batch(table: ModelTable, lookups: TableLookups) -> tuple[float, float]:
    """The same as TorchRec counts them: a bag that is mostly empty makes less than a vector."""
    sizes = list(zip(*lookups.estimate, strict=True))
    inputs = sum(length * poolings * batch for length, poolings, batch in sizes)
    if table.kind != "bags":
        return inputs, inputs
    return inputs, sum(min(1.0, length) * poolings * batch for length, poolings, batch in sizes)


def _index_bytes(lookups: TableLookups) -> int:
    """Of an index, and of its weight where it has one."""
    return int(BIGINT_DTYPE) + (_WEIGHT_OF_INDEX_BYTES if lookups.is_weighted else 0)


def _counted_output_bytes(table: ModelTable, choice: Choice) -> float:
    """Of an element that comes out as TorchRec counts it: like the weights where nothing is said."""
    output = choice.carried.output_dtype
    if output is None:
        return WEIGHT_BYTES[table.data_type]
    return float(DATA_TYPE_NUM_BITS[output]) / 8


def _through(widths: tuple[int, int], values: Sequence[int]) -> Line:
    """The line through the values at two widths, which may be the same."""
    per_column = (values[1] - values[0]) / (widths[1] - widths[0]) if widths[1] > widths[0] else 0.0
    return Line(per_column, values[0] - per_column * widths[0])


def _ask_torchrec(
    table: ModelTable,
    choice: Choice,
    lookups: TableLookups,
    setting: Setting,
    sharding_type: str,
    sizes: Sequence[Sequence[int]],
) -> list[Any]:
    """TorchRec's estimate for shards of ``sizes``, as its ``EmbeddingStorageEstimator`` asks for it."""
    data = table.offer.data
    cache_ratio = getattr(choice.carried.cache_params, "load_factor", None)
    if cache_ratio is None:
        cache_ratio = data.fused_params.get("cache_load_factor")
    estimated: list[Any] = calculate_shard_storages(
        sharder_data=data,
        sharding_type=sharding_type,
        tensor=table.parameter,
        compute_device=setting.compute_device,
        compute_kernel=choice.kernel,
        shard_sizes=[list(size) for size in sizes],
        batch_sizes=lookups.estimate.batch_sizes,
        world_size=setting.world_size,
        local_world_size=setting.group_size,
        input_lengths=lookups.estimate.input_lengths,
        num_poolings=lookups.estimate.num_poolings,
        caching_ratio=cache_ratio or UVM_CACHING_RATIO,
        is_pooled=table.kind == "bags",
        input_data_type_size=BIGINT_DTYPE,
        output_data_type_size=_counted_output_bytes(table, choice),
        key_value_params=choice.carried.key_value_params,
        kv_cache_load_factor=data.fused_params.get("cache_load_factor", KV_CACHING_RATIO),
    )
    return estimated
