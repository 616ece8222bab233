"""Simulated cost data and tasks that tests of refining begin with."""

from __future__ import annotations

from pathlib import Path

from neuroshard_fast import examples
from neuroshard_fast.profile.communication import profile_communication
from neuroshard_fast.profile.compute import profile_compute
from neuroshard_fast.refine import RefineOptions

POOL = examples.dlrm_like(2021, tables=60, batch_size=4096, max_rows=100_000, seed=3)
OPTIONS = RefineOptions(
    devices=4,
    memory_bytes=2**30,
    batch_size=4096,
    tasks_per_cycle=20,
    tables_per_task=(8, 12),
    hardware="h100",
    cycles=3,
)


def simulate_cost_data(data: Path) -> Path:
    """Lookups of POOL and all-to-alls of four devices, in the folder ``data``."""
    profile_compute(POOL, data, samples=400, batch_size=4096, memory_bytes=2**30, hardware="h100")
    profile_communication(data, devices=4, samples=200, batch_size=4096, hardware="h100")
    return data
