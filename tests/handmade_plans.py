"""Plans written by hand, for tests of what takes a plan."""

from __future__ import annotations

from neuroshard_fast.plan import CostModelsUsed, DeviceLoad, Shard, ShardingPlan


def plan_of(*shards: tuple[str, int, int, int], devices: int = 2, batch: int = 256) -> ShardingPlan:
    """A plan of (table, column offset, width, device)."""
    loads = tuple(
        DeviceLoad(
            device=device,
            num_shards=0,
            memory_bytes=0,
            compute_ms=1.0,
            forward_comm_ms=1.0,
            backward_comm_ms=1.0,
            total_ms=3.0,
        )
        for device in range(devices)
    )
    return ShardingPlan(
        algorithm="by hand",
        cost_models=CostModelsUsed(
            name="none", source="measured", batch_size=batch, hardware="none"
        ),
        world_size=devices,
        memory_cap_bytes=2**30,
        batch_size=batch,
        cost_ms=3.0,
        devices=loads,
        shards=tuple(
            Shard(table=table, column_offset=offset, width=width, device=device, memory_bytes=1)
            for table, offset, width, device in shards
        ),
        column_splits=(),
        placement=((),) * devices,
        planning_ms=0.0,
    )
