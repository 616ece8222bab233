"""The method in plain PyTorch against the golden answers, and the engine against both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neuroshard_fast import Cluster, Planner, SearchOptions, published
from neuroshard_fast.errors import InfeasiblePlanError
from torch_oracle import TorchOracle, read_golden_case

# Tight memory, many splits, no splits, no plan; short ones, because the oracle takes its time.
CASES = [
    *(("2_gpu", line) for line in (3, 9)),
    *(("4_gpu", line) for line in (12, 32, 33, 35)),
    *(("4_gpu_tight", line) for line in (7, 10)),
    ("8_gpu", 11),
]


@pytest.mark.parametrize(("tasks", "line"), CASES)
def test_oracle_and_engine_give_the_golden_cost(
    golden: Path, golden_models: Path, one_torch_thread: None, tasks: str, line: int
) -> None:
    case = read_golden_case(golden, tasks, line)
    oracle = TorchOracle(golden, case.devices, case.memory_bytes, case.limits)
    plan = oracle.search(case.shards)

    folder = golden / "tasks" / tasks
    tables = published.read_tasks(folder / "data.txt", golden / "table_configs.json")[line]
    cluster = Cluster(world_size=case.devices, memory_bytes=case.memory_bytes)
    limits = case.limits
    options = SearchOptions(
        algorithm="neuroshard",
        beam_width=limits.beam_width,
        candidates=limits.candidates,
        max_splits=limits.max_splits,
        grid_steps=limits.grid_steps,
    )
    planner = Planner(golden_models)

    if case.plan is None:
        assert plan.placement is None
        with pytest.raises(InfeasiblePlanError):
            planner.plan(tables, cluster, options)
        return
    engine = planner.plan(tables, cluster, options)
    assert plan.cost == pytest.approx(case.plan["cost"], rel=1e-4)
    assert engine.cost_ms == pytest.approx(case.plan["cost"], rel=1e-4)
    assert engine.cost_ms == pytest.approx(plan.cost, rel=1e-4)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Networks this small are slower on several threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
