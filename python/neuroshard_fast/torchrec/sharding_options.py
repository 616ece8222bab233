"""A plan as TorchRec's own planner would have proposed it, with its estimates: for its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    Shard,
    ShardingOption,
    Topology,
)
from torchrec.distributed.planner.utils import sharder_name

from neuroshard_fast.torchrec.question import ShardAt
from neuroshard_fast.torchrec.sharded import Sharded


def sharding_options(
    sharded: Sequence[Sharded],
    topology: Topology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints],
) -> list[ShardingOption]:
    """A ``ShardingOption`` for each table, storage and performance as TorchRec estimates them.

    batch_size: samples a rank.
    """
    options = [_option(entry, batch_size, constraints.get(entry.table.name)) for entry in sharded]
    data = {sharder_name(type(entry.table.module)): entry.table.offer.data for entry in sharded}
    for estimator in (
        EmbeddingPerfEstimator(topology=topology, constraints=dict(constraints)),
        EmbeddingStorageEstimator(topology=topology, constraints=dict(constraints)),
    ):
        estimator.estimate(options, sharder_data_map=data)
    return options


def _option(
    entry: Sharded, batch_size: int, constraint: ParameterConstraints | None
) -> ShardingOption:
    table = entry.table
    lengths = [POOLING_FACTOR] if constraint is None else list(constraint.pooling_factors)
    features: Any = None if constraint is None else constraint.feature_names
    return ShardingOption(
        name=table.name,
        tensor=table.parameter,
        module=(table.path, table.module),
        input_lengths=lengths,
        batch_size=batch_size,
        sharding_type=entry.sharding_type,
        partition_by=get_partition_by_type(entry.sharding_type),
        compute_kernel=entry.compute_kernel,
        shards=[_shard(shard, entry) for shard in entry.shards],
        is_pooled=table.kind == "bags",
        feature_names=features,
        **entry.carried._asdict(),
    )


def _shard(shard: ShardAt, entry: Sharded) -> Shard:
    rows, columns = shard.rows, shard.columns
    if entry.sharding_type == "data_parallel":
        rows, columns = entry.table.rows, entry.table.dim
    return Shard(
        size=[rows, columns], offset=[shard.row_offset, shard.column_offset], rank=shard.rank
    )
