"""Table sets as TorchRec has them, for the benchmarks that compare planners."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from neuroshard_fast import TableSet

_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
_POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
_DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}


@contextmanager
def quiet() -> Iterator[None]:
    """TorchRec warns of much that does not matter on paper."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def bag_collection(tables: TableSet, device: str = "meta") -> EmbeddingBagCollection:
    """Pooled tables as one module; features go by the names of their tables and their own."""
    return EmbeddingBagCollection(
        device=torch.device(device),
        is_weighted=any(table.is_weighted for table in tables),
        tables=[
            EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                feature_names=[feature.name for feature in table.features],
                pooling=_POOLINGS[table.pooling],
                data_type=_DATA_TYPES[table.data_type],
            )
            for table in tables
        ],
    )


def sharders(tables: TableSet, learning_rate: float = 0.01) -> list[Any]:
    """With the optimizer that all ``tables`` have."""
    (optimizer,) = {table.optimizer for table in tables}
    fused = {"optimizer": _OPTIMIZERS[optimizer], "learning_rate": learning_rate}
    return [EmbeddingBagCollectionSharder(fused_params=fused)]


def constraints(
    tables: TableSet, sharding_types: list[str] | None = None
) -> dict[str, ParameterConstraints]:
    """Pooling factors of every table, and the sharding types that are allowed: all where None."""
    return {
        table.name: ParameterConstraints(
            sharding_types=sharding_types,
            pooling_factors=[feature.pooling_factor for feature in table.features],
            is_weighted=table.is_weighted,
        )
        for table in tables
    }


def no_reservation() -> FixedPercentageStorageReservation:
    """All of the memory is for tables."""
    return FixedPercentageStorageReservation(percentage=0.0)


def torchrec_planner(
    topology: Topology, batch_size: int, of_tables: dict[str, ParameterConstraints]
) -> EmbeddingShardingPlanner:
    """TorchRec's planner with its own defaults, but without statistics and debug output.

    batch_size: samples a rank.
    """
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        storage_reservation=no_reservation(),
        constraints=of_tables,
        stats=[],
        debug=False,
    )


def described(plan: Any) -> dict[str, int]:
    """How many tables a ShardingPlan shards by which type; column-wise ones in one shard apart."""
    found: dict[str, int] = {}
    for tables in plan.plan.values():
        for sharding in tables.values():
            spec = sharding.sharding_spec
            kind = sharding.sharding_type
            if kind == "column_wise" and spec is not None and len(spec.shards) == 1:
                kind = "column_wise, one shard"
            found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items()))
