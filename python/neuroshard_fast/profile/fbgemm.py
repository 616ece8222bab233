"""Measuring fused lookups with FBGEMM's table-batched embedding operator."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from neuroshard_fast.profile.backends import TIMED_ITERATIONS
from neuroshard_fast.profile.host_memory import Arena, arena_elements, largest_arenas
from neuroshard_fast.profile.lookups import join
from neuroshard_fast.profile.timing import Step, TorchCompute
from neuroshard_fast.tables import EmbeddingTable

# FBGEMM warns of each optional operator that its build lacks.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
_TYPES = {
    "fp32": SparseType.FP32,
    "fp16": SparseType.FP16,
    "bf16": SparseType.BF16,
    "int8": SparseType.INT8,
}
_ARENA_TYPES = {"fp32": torch.float32, "fp16": torch.float16}
_BUFFERS = {"weights": "weights", "state": "momentum1"}
_POOLING = {"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN, "none": PoolingMode.NONE}


class FbgemmCompute(TorchCompute):
    """Fused lookups of all tables of one device, one operator for each kind of table (as TorchRec).

    batch_size: samples of the global batch.
    sets: tables that will be measured together; memory for any one of them is set aside on a CPU.
    iterations: timed iterations of a measurement.
    """

    def __init__(
        self,
        batch_size: int,
        sets: Iterable[Sequence[EmbeddingTable]] = (),
        iterations: int = TIMED_ITERATIONS,
    ) -> None:
        super().__init__(batch_size, iterations)
        self._arenas: dict[Arena, torch.Tensor] = {}
        if self.device.type == "cpu":
            self._make_room(largest_arenas(sets))

    def prepare(self, tables: Sequence[EmbeddingTable]) -> Step:
        groups: dict[tuple[object, ...], list[EmbeddingTable]] = {}
        for table in tables:
            # Sequences of different widths do not share an operator.
            width = table.embedding_dim if table.pooling == "none" else None
            kind = (table.data_type, table.output_dtype, table.optimizer, table.pooling)
            groups.setdefault((*kind, table.is_weighted, width), []).append(table)
        if self.device.type == "cpu":
            self._make_room(arena_elements(tables))
        used: Counter[Arena] = Counter()
        steps = [self._operator(group, used) for group in groups.values()]

        def step() -> None:
            for run in steps:
                run()

        return step

    def _operator(self, tables: Sequence[EmbeddingTable], used: Counter[Arena]) -> Step:
        first = tables[0]
        on_cpu = self.device.type == "cpu"
        place = (
            (EmbeddingLocation.HOST, ComputeDevice.CPU)
            if on_cpu
            else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        )
        operator = SplitTableBatchedEmbeddingBagsCodegen(
            [(table.num_embeddings, table.embedding_dim, *place) for table in tables],
            feature_table_map=[k for k, table in enumerate(tables) for _ in table.features],
            weights_precision=_TYPES[first.data_type],
            output_dtype=_TYPES[first.output_dtype],
            optimizer=_OPTIMIZERS[first.optimizer],
            pooling_mode=_POOLING[first.pooling],
            device=self.device,
            **self._host_buffers(tables, used),
        )
        indices, offsets = join([self._lookups.of_table(table) for table in tables])
        index = torch.from_numpy(indices).to(self.device)
        offset = torch.from_numpy(offsets).to(self.device)
        weight = torch.ones(index.numel(), device=self.device) if first.is_weighted else None
        output = operator(index, offset, weight)
        gradient = torch.full_like(output, 1e-3)

        def run() -> None:
            operator(index, offset, weight).backward(gradient)

        return run

    def _host_buffers(
        self, tables: Sequence[EmbeddingTable], used: Counter[Arena]
    ) -> dict[str, Any]:
        """Weights and optimizer state out of memory that is kept from one measurement to the next.

        Fresh memory would cost seconds a sample to fault in, and rows never written before would
        all be read from one page of zeros, which stays in the cache.
        """
        if self.device.type != "cpu":
            return {}
        buffers = {}
        for arena, elements in arena_elements(tables).items():
            start = used[arena]
            used[arena] += elements
            buffers[_BUFFERS[arena[0]]] = self._arenas[arena][start : start + elements]
        return {"preallocated_host_buffers": buffers}

    def _make_room(self, wanted: Mapping[Arena, int]) -> None:
        for arena, elements in wanted.items():
            if arena in self._arenas and self._arenas[arena].numel() >= elements:
                continue
            self._arenas.pop(arena, None)  # first, so that the two never need memory together
            self._arenas[arena] = torch.full((elements,), 0.5, dtype=_ARENA_TYPES[arena[1]])
