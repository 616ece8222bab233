"""Memory of a shard as FBGEMM allocates it: weights and the state of the fused optimizer, in bytes.

Source: ``SplitTableBatchedEmbeddingBagsCodegen`` of fbgemm-gpu 1.8; a test compares with it.
"""

from __future__ import annotations

from typing import NamedTuple

from neuroshard_fast.tables import DataType, EmbeddingTable, Optimizer

WEIGHT_BYTES: dict[DataType, int] = {"fp32": 4, "fp16": 2, "int8": 1}
"""Bytes of an element of the weights."""
_ROW_HEADER_BYTES: dict[DataType, int] = {"fp32": 0, "fp16": 0, "int8": 8}
"""An int8 row carries its scale and bias, two fp32 numbers."""

_STATE_BYTES_PER_ELEMENT: dict[Optimizer, int] = {
    "sgd": 0,
    "adagrad": 4,
    "rowwise_adagrad": 0,
    "adam": 8,
}
_STATE_BYTES_PER_ROW: dict[Optimizer, int] = {
    "sgd": 0,
    "adagrad": 0,
    "rowwise_adagrad": 4,
    "adam": 0,
}


class ShardMemory(NamedTuple):
    """Memory of a shard of ``width`` columns: ``per_column * width + fixed`` bytes.

    The fixed part is in every shard of a table, so splitting a table costs memory.
    """

    per_column: int
    fixed: int

    def of_width(self, width: int) -> int:
        """Bytes of a shard with ``width`` columns."""
        return self.per_column * width + self.fixed


def shard_memory(table: EmbeddingTable) -> ShardMemory:
    """Memory of the shards of ``table``: weights and optimizer state."""
    return ShardMemory(
        per_column=table.num_embeddings
        * (WEIGHT_BYTES[table.data_type] + _STATE_BYTES_PER_ELEMENT[table.optimizer]),
        fixed=table.num_embeddings
        * (_ROW_HEADER_BYTES[table.data_type] + _STATE_BYTES_PER_ROW[table.optimizer]),
    )
