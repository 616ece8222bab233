"""Plans made through the Python API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_fast import (
    Cluster,
    CostModels,
    EmbeddingTable,
    Feature,
    InfeasiblePlanError,
    InputError,
    Planner,
    SearchOptions,
    ShardingPlan,
    TableSet,
    _core,
)
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.options import ALGORITHMS

GIB = 2**30


@pytest.fixture(scope="module")
def planner(golden_models: Path) -> Planner:
    return Planner(golden_models)


def _tables(count: int, seed: int = 0) -> TableSet:
    random = np.random.default_rng(seed)
    return TableSet.of(
        [
            EmbeddingTable(
                name=f"t{index}",
                num_embeddings=int(10 ** random.uniform(3, 6.5)),
                embedding_dim=int(2 ** random.integers(2, 8)),
                features=(Feature(name="f", pooling_factor=float(random.uniform(1, 50))),),
            )
            for index in range(count)
        ]
    )


def _check_plan(plan: ShardingPlan, tables: TableSet) -> None:
    """Every column of every table exactly once, caps kept, loads that add up."""
    columns = {table.name: np.zeros(table.embedding_dim, int) for table in tables}
    memory = {table.name: shard_memory(table) for table in tables}
    for shard in plan.shards:
        columns[shard.table][shard.column_offset : shard.column_offset + shard.width] += 1
        assert shard.width % 4 == 0
        assert shard.memory_bytes == memory[shard.table].of_width(shard.width)
    assert all((covered == 1).all() for covered in columns.values())
    assert len(plan.devices) == plan.world_size
    for load in plan.devices:
        mine = [shard for shard in plan.shards if shard.device == load.device]
        assert load.num_shards == len(mine)
        assert load.memory_bytes == sum(shard.memory_bytes for shard in mine)
        assert load.memory_bytes <= plan.memory_cap_bytes
    assert plan.cost_ms == pytest.approx(max(load.total_ms for load in plan.devices), rel=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_covers_every_column_and_keeps_the_caps(
    algorithm: str, planner: Planner
) -> None:
    tables = _tables(30)
    options = msgspec.convert({"algorithm": algorithm}, SearchOptions)
    plan = planner.plan(tables, Cluster(world_size=4, memory_bytes=4 * GIB), options)
    assert plan.algorithm == algorithm
    _check_plan(plan, tables)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 25),
    seed=st.integers(0, 2**20),
    devices=st.sampled_from((2, 4, 8)),
    slack=st.floats(1.05, 4.0),
)
def test_any_plan_is_valid_and_costs_what_a_fresh_evaluation_gives(
    planner: Planner, count: int, seed: int, devices: int, slack: float
) -> None:
    tables = _tables(count, seed)
    total = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
    cluster = Cluster(world_size=devices, memory_bytes=int(total / devices * slack) + 1)
    options = SearchOptions(candidates=3, max_splits=3)
    try:
        plan = planner.plan(tables, cluster, options)
    except InfeasiblePlanError:
        return
    _check_plan(plan, tables)
    problem = planner.problem(tables, cluster)
    placement = [list(indices) for indices in plan.placement]
    again = _core.evaluate(
        planner.cost_models.networks_for(65536), problem, list(plan.column_splits), placement
    )
    assert again.cost == pytest.approx(plan.cost_ms, rel=1e-6)


def test_splitting_pays_optimizer_state_in_every_shard(planner: Planner) -> None:
    table = EmbeddingTable(
        name="big",
        num_embeddings=4_000_000,
        embedding_dim=128,
        features=(Feature(name="f", pooling_factor=20.0),),
        optimizer="rowwise_adagrad",
    )
    # Half of the weights alone would fit, half with its own row-wise state does not.
    half = 4_000_000 * (64 * 4 + 4)
    fits = Cluster(world_size=2, memory_bytes=half)
    plan = planner.plan(TableSet.of([table]), fits)
    assert [shard.memory_bytes for shard in plan.shards] == [half, half]
    with pytest.raises(InfeasiblePlanError):
        planner.plan(TableSet.of([table]), Cluster(world_size=2, memory_bytes=half - 1))


def test_plans_survive_json_and_yaml(planner: Planner, tmp_path: Path) -> None:
    plan = planner.plan(_tables(8), Cluster(world_size=2, memory_bytes=8 * GIB))
    for name in ("plan.json", "plan.yaml"):
        plan.save(tmp_path / name)
        assert ShardingPlan.load(tmp_path / name) == plan


def test_assumed_histograms_are_named(planner: Planner) -> None:
    tables = list(_tables(3))
    known = msgspec.structs.replace(tables[0], reuse_histogram=(1.0,) + (0.0,) * 16)
    plan = planner.plan(
        TableSet.of([known, *tables[1:]]), Cluster(world_size=2, memory_bytes=8 * GIB)
    )
    assert plan.assumed_histograms == ("t1", "t2")


def test_the_plan_does_not_depend_on_threads_or_on_other_callers(planner: Planner) -> None:
    tables, cluster = _tables(40), Cluster(world_size=8, memory_bytes=4 * GIB)

    def plan(threads: int) -> ShardingPlan:
        made = planner.plan(tables, cluster, SearchOptions(threads=threads))
        return msgspec.structs.replace(made, planning_ms=0.0)

    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(plan, [1, 2, 3, 1, 4, 2]))
    assert all(made == plans[0] for made in plans)


def test_device_counts_that_the_models_lack_are_refused_with_those_they_have(
    planner: Planner,
) -> None:
    with pytest.raises(InputError, match=r"3.*2, 4, 8, 16, 128"):
        planner.plan(_tables(3), Cluster(world_size=3, memory_bytes=GIB))


@pytest.mark.parametrize("algorithm", ["neuroshard", "dim_greedy"])
def test_of_many_tables_that_fit_nowhere_the_first_are_named(
    planner: Planner, algorithm: str
) -> None:
    huge = [
        EmbeddingTable(
            name=f"huge{index}",
            num_embeddings=10**9,
            embedding_dim=64,
            features=(Feature(name="f", pooling_factor=1.0),),
        )
        for index in range(30)
    ]
    options = msgspec.convert({"algorithm": algorithm}, SearchOptions)
    with pytest.raises(InfeasiblePlanError) as raised:
        planner.plan(TableSet.of(huge), Cluster(world_size=2, memory_bytes=GIB), options)
    message = str(raised.value)
    assert "'huge2' fits on no device" in message
    assert "'huge3' fits on no device" not in message
    assert "27 more of the tables fit on no device" in message
    assert ("even when split" in message) == (algorithm == "neuroshard")


def test_baselines_are_told_of_tables_that_only_fit_when_split(planner: Planner) -> None:
    wide = EmbeddingTable(
        name="wide",
        num_embeddings=3_000_000,
        embedding_dim=128,
        features=(Feature(name="f", pooling_factor=1.0),),
    )
    cluster = Cluster(world_size=2, memory_bytes=GIB)
    with pytest.raises(InfeasiblePlanError, match=r"'wide' fits on no device: it takes 1\.43 GiB"):
        planner.plan(TableSet.of([wide]), cluster, SearchOptions(algorithm="size_greedy"))
    planner.plan(TableSet.of([wide]), cluster)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((None, Cluster(world_size=2, memory_bytes=GIB)), "TableSet"),
        (([], Cluster(world_size=2, memory_bytes=GIB)), "TableSet"),
        ((_tables(2), None), "Cluster"),
        ((_tables(2), Cluster(world_size=2, memory_bytes=GIB), {"beam_width": 3}), "SearchOptions"),
    ],
)
def test_an_argument_of_another_type_is_an_input_error(
    planner: Planner, arguments: Any, wanted: str
) -> None:
    with pytest.raises(InputError, match=f"a {wanted} is wanted"):
        planner.plan(*arguments)


def test_what_forbids_a_plan_where_memory_does_not(planner: Planner) -> None:
    one = TableSet.of([next(iter(_tables(1)))])
    with pytest.raises(InfeasiblePlanError, match=r"within 1\.5 times their mean"):
        planner.plan(
            one,
            Cluster(world_size=2, memory_bytes=GIB),
            SearchOptions(algorithm="neuroshard", max_splits=0),
        )


def test_cost_models_without_finite_costs_are_named(planner: Planner) -> None:
    tensors = {name: array.copy() for name, array in planner.cost_models.tensors.items()}
    tensors["forward.2.3.bias"][:] = 1e38
    tensors["forward.2.4.weight"][:] = 1e10
    wild = Planner(CostModels(planner.cost_models.info, tensors))
    with pytest.raises(InputError, match=r"cost models .* no finite cost"):
        wild.plan(_tables(8), Cluster(world_size=2, memory_bytes=8 * GIB))


def test_cost_models_with_absurd_costs_are_named(planner: Planner) -> None:
    tensors = {name: array.copy() for name, array in planner.cost_models.tensors.items()}
    tensors["forward.2.4.bias"][:] = 1e15
    wild = Planner(CostModels(planner.cost_models.info, tensors))
    with pytest.raises(InputError, match=r"cost models .* is no cost"):
        wild.plan(_tables(8), Cluster(world_size=2, memory_bytes=8 * GIB))


def test_baselines_are_not_said_to_have_limits_of_the_search(planner: Planner) -> None:
    tables = TableSet.of(
        [
            EmbeddingTable(
                name=f"t{index}",
                num_embeddings=rows,
                embedding_dim=64,
                features=(Feature(name="f", pooling_factor=1.0),),
                reuse_histogram=(1.0,) + (0.0,) * 16,
            )
            for index, rows in enumerate((30_000, 30_000, 20_000, 20_000, 20_000))
        ]
    )
    total = sum(shard_memory(table).of_width(64) for table in tables)
    tight = Cluster(world_size=2, memory_bytes=total // 2 + 1000)
    with pytest.raises(InfeasiblePlanError) as raised:
        planner.plan(tables, tight, SearchOptions(algorithm="dim_greedy"))
    assert "output dims" not in str(raised.value)
