"""From a plan to TorchRec's objects."""

from __future__ import annotations

from collections.abc import Callable

from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from neuroshard_fast.torchrec.carried import Carried
from neuroshard_fast.torchrec.plan import TablePlan, TorchRecPlan
from neuroshard_fast.torchrec.setting import Setting


def torchrec_objects(
    plan: TorchRecPlan, setting: Setting, carried: Callable[[TablePlan], Carried]
) -> ShardingPlan:
    """``plan`` as TorchRec takes it, in new objects, which sharding a model may change.

    carried: what is passed on with each table.
    """
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for table in plan.tables:
        module = modules.get(table.module)
        if module is None:
            module = modules[table.module] = EmbeddingModuleShardingPlan()
        specification = None
        if table.sharding_type != "data_parallel":
            specification = EnumerableShardingSpec(
                [
                    ShardMetadata(
                        shard_offsets=[shard.row_offset, shard.column_offset],
                        shard_sizes=[shard.rows, shard.columns],
                        placement=setting.placement(shard.rank),
                    )
                    for shard in table.shards
                ]
            )
        module[table.name] = ParameterSharding(
            sharding_type=table.sharding_type,
            compute_kernel=table.compute_kernel,
            ranks=[shard.rank for shard in table.shards],
            sharding_spec=specification,
            **carried(table)._asdict(),
        )
    return ShardingPlan(modules)
