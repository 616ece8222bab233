"""Measuring fused lookups with FBGEMM's table-batched embedding operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neuroshard_fast.profile.backends import TIMED_ITERATIONS
from neuroshard_fast.profile.lookups import LookupCache, join
from neuroshard_fast.profile.timing import StepTimer, keep_freed_memory
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
_POOLING = {"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN, "none": PoolingMode.NONE}

Step = Callable[[], None]


class FbgemmCompute:
    """Fused lookups of all tables of one device, one operator for each kind of table (as TorchRec).

    batch_size: samples of the global batch.
    memory_bytes: the most weights that one measurement needs; more is allocated when asked for.
    iterations: timed iterations of a measurement.
    """

    name = "fbgemm"

    def __init__(
        self, batch_size: int, memory_bytes: int = 0, iterations: int = TIMED_ITERATIONS
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            torch.set_num_threads(1)
            keep_freed_memory()
        self._lookups = LookupCache(batch_size)
        self._timer = StepTimer(self.device, iterations)
        self._batch_size = batch_size
        self._arenas: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        if memory_bytes:
            self._arena("weights", torch.float32, memory_bytes // 4)

    def measure(self, tables: Sequence[EmbeddingTable]) -> float:
        """Median milliseconds of forward, backward and update of ``tables``; 0 without tables."""
        return self._timer.median(self.prepare(tables)) if tables else 0.0

    def prepare(self, tables: Sequence[EmbeddingTable]) -> Step:
        """One training step of ``tables``, ready to run."""
        groups: dict[tuple[object, ...], list[EmbeddingTable]] = {}
        for table in tables:
            # Sequences of different widths do not share an operator.
            width = table.embedding_dim if table.pooling == "none" else None
            kind = (table.data_type, table.output_dtype, table.optimizer, table.pooling)
            groups.setdefault((*kind, table.is_weighted, width), []).append(table)
        used: dict[tuple[str, torch.dtype], int] = {}
        steps = [self._operator(group, used) for group in groups.values()]

        def step() -> None:
            for run in steps:
                run()

        return step

    def _operator(
        self, tables: Sequence[EmbeddingTable], used: dict[tuple[str, torch.dtype], int]
    ) -> Step:
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
        self, tables: Sequence[EmbeddingTable], used: dict[tuple[str, torch.dtype], int]
    ) -> dict[str, Any]:
        """Weights and optimizer state out of memory that is kept from one measurement to the next.

        Fresh memory would cost seconds a sample to fault in, and rows never written before would
        all be read from one page of zeros, which stays in the cache.
        """
        if self.device.type != "cpu":
            return {}
        elements = sum(table.num_embeddings * table.embedding_dim for table in tables)
        type_ = torch.float16 if tables[0].data_type == "fp16" else torch.float32
        buffers = {"weights": self._take("weights", type_, elements, used)}
        if tables[0].optimizer == "adagrad":
            buffers["momentum1"] = self._take("state", torch.float32, elements, used)
        elif tables[0].optimizer == "rowwise_adagrad":
            rows = sum(table.num_embeddings for table in tables)
            buffers["momentum1"] = self._take("state", torch.float32, rows, used)
        return {"preallocated_host_buffers": buffers}

    def _take(
        self,
        kind: str,
        type_: torch.dtype,
        elements: int,
        used: dict[tuple[str, torch.dtype], int],
    ) -> torch.Tensor:
        start = used.get((kind, type_), 0)
        used[kind, type_] = start + elements
        return self._arena(kind, type_, start + elements)[start:]

    def _arena(self, kind: str, type_: torch.dtype, elements: int) -> torch.Tensor:
        arena = self._arenas.get((kind, type_))
        if arena is None or arena.numel() < elements:
            arena = self._arenas[kind, type_] = torch.full((elements,), 0.5, dtype=type_)
        return arena[:elements]
