"""NeuroShardPlanner against TorchRec's own objects: what is planned, constraints, memory, notes.

Nothing is trained here (test_torchrec_training.py does that); models are on the meta device.
"""

from __future__ import annotations

import copy
import inspect
import logging
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.planners import (
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    CustomTopologyData,
    ParameterConstraints,
    PlannerError,
    PlannerErrorType,
    Stats,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    KeyValueParams,
    ShardingPlan,
    ShardingPlanner,
)
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_fast import EmbeddingTable, Feature, InputError, SearchOptions, TableSet
from neuroshard_fast.reuse import HISTOGRAM_BINS
from neuroshard_fast.torchrec import NeuroShardPlanner, TorchRecPlan, format_torchrec_plan
from neuroshard_fast.torchrec.lookups import cost_table, table_lookups
from neuroshard_fast.torchrec.model import find_tables
from torchrec_cases import (
    BATCH_SIZE,
    META,
    MIB,
    OPTIMIZERS,
    SEEDS,
    Case,
    Constraints,
    attach,
    bag,
    bags,
    check_loads,
    check_sound,
    described,
    draw_case,
    one_table,
    parts,
    planner,
    sequence,
    sequences,
    sharders_with,
    shardings,
    table_bytes,
    topology,
    torchrec_storage,
    types_of,
    widths,
)

ROWS = 100_000
WHOLE = table_bytes(ROWS, 64, ranks=4)
"""Of a table of so many rows and 64 columns on one of four ranks."""
UNEVEN = [int(share * WHOLE) for share in (0.95, 0.45, 0.2, 0.2)]
"""Caps of four ranks among which its columns fit, but not in equal shards, one a rank."""


# ---- what it takes ----


def test_it_takes_the_arguments_of_torchrecs_planner_in_the_same_order() -> None:
    assert issubclass(NeuroShardPlanner, ShardingPlanner)
    theirs = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
    ours = inspect.signature(NeuroShardPlanner.__init__).parameters
    names = list(theirs)
    assert list(ours)[: len(names)] == names
    assert [ours[name].default for name in names] == [theirs[name].default for name in names]
    more = list(ours.values())[len(names) :]
    assert more
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in more)


@pytest.mark.parametrize("method", ["plan", "collective_plan"])
def test_its_methods_take_what_those_of_torchrecs_planner_take(method: str) -> None:
    theirs = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
    ours = inspect.signature(getattr(NeuroShardPlanner, method)).parameters
    assert list(ours) == list(theirs)


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_default_reservation_leaves_what_that_of_torchrecs_planner_leaves(device: str) -> None:
    model = parts(bags=bags(bag("t", "f", "g"), bag("u")), dense=nn.Linear(1000, 1000, device=META))
    constraints = {"t": ParameterConstraints(pooling_factors=[3.0, 5.0])}
    devices = topology(2, [64 * MIB, 48 * MIB], device=device)
    options: dict[str, Any] = {"batch_size": 256, "constraints": constraints}
    theirs = EmbeddingShardingPlanner(devices, **options)
    reserved = theirs._storage_reservation.reserve(
        topology=devices,
        batch_size=256,
        module=model,
        sharders=get_default_sharders(),
        constraints=constraints,
    )
    caps = [
        device_.storage.hbm if device == "cuda" else device_.storage.ddr
        for device_ in reserved.devices
    ]
    ours = NeuroShardPlanner(
        devices, options=SearchOptions(allow_batch_mismatch=device == "cuda"), **options
    )
    assert [load.cap_bytes for load in described(ours, model).ranks] == caps
    assert max(caps) < 64 * MIB


def test_without_a_batch_size_it_is_that_of_torchrec() -> None:
    ours = planner(topology(8), batch_size=None)
    theirs = EmbeddingShardingPlanner(
        topology(8), storage_reservation=ours._terms.reservation, stats=[]
    )
    assert described(ours, one_table(1000, 16)).batch_size == theirs._batch_size


def test_the_topology_comes_from_the_process_group_where_none_is_given() -> None:
    with pytest.raises(InputError, match="topology: give one, or call torch"):
        NeuroShardPlanner()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        ours = NeuroShardPlanner(batch_size=256)
        model = one_table(1000, 16)
        assert ours.collective_plan(model) == ours.plan(model)
        assert ours.last_plan is not None
        assert ours.last_plan.world_size == 1
    finally:
        dist.destroy_process_group()


# ---- what is planned ----


def every_kind() -> nn.Module:
    """A model with collections of each kind at several depths."""
    shared = bag("a", "f", "g", rows=5000, dim=32)
    return parts(
        bags=bags(shared, bag("b", "f", data_type=DataType.FP16, pooling=PoolingType.MEAN)),
        deep=parts(
            inner=nn.Sequential(
                nn.Linear(4, 4, device=META),
                sequences(sequence("c", rows=777), sequence("d", "d0", "d1")),
            ),
            weighted=bags(bag("a", dim=8), bag("e", rows=3, dim=4), weighted=True),
        ),
        dense=nn.Linear(16, 16, device=META),
    )


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_table_of_every_collection_is_planned_once(device: str) -> None:
    model, devices = every_kind(), topology(4, device=device)
    ours = planner(devices)
    plan = ours.plan(model)
    assert {path: set(tables) for path, tables in plan.plan.items()} == {
        "bags": {"a", "b"},
        "deep.inner.1": {"c", "d"},
        "deep.weighted": {"a", "e"},
    }
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    # What TorchRec's planner checks of its own plans.
    validate_modules_inclusion_in_sharding_plan(plan, model, get_default_sharders())
    validate_rank_assignment(plan, devices)
    validate_compute_kernels(ours.sharding_options(model, plan))


def test_a_collection_may_be_the_model_itself() -> None:
    model, devices = bags(bag("t"), bag("u")), topology(2)
    plan = planner(devices).plan(model)
    assert list(plan.plan) == [""]
    check_sound(plan, model, devices)


def test_fused_and_feature_processed_collections_are_planned_as_those_within() -> None:
    fused = FusedEmbeddingBagCollection(
        tables=[bag("t", rows=500, dim=8), bag("u", rows=500, dim=8)],
        optimizer_type=torch.optim.Adagrad,
        optimizer_kwargs={"lr": 0.1},
    )
    processed = FeatureProcessedEmbeddingBagCollection(
        bags(bag("v", "f", rows=500, dim=8), weighted=True),
        {"f": PositionWeightedModule(10, META)},
    )
    model, devices = parts(fused=fused, processed=processed), topology(2)
    ours = planner(devices)
    plan = ours.plan(model)
    assert {(path, name) for path, name, _ in shardings(plan)} == {
        ("fused", "t"),
        ("fused", "u"),
        ("processed", "v"),
    }
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    # The optimizer of a fused module is its own: a number for each weight. Lookups of the other have weights.
    extra = {
        table.fqn: sum(s.training_bytes - s.estimated_bytes for s in table.shards)
        for table in ours.last_plan.tables
    }
    samples = ours.last_plan.batch_size * ours.last_plan.world_size
    assert extra == {"fused.t": 4 * 500 * 8, "fused.u": 4 * 500 * 8, "processed.v": 4 * samples}


def test_only_modules_that_a_sharder_is_for_are_planned() -> None:
    model, devices = every_kind(), topology(2)
    sharders = [EmbeddingCollectionSharder()]
    plan = planner(devices).plan(model, sharders)
    assert list(plan.plan) == ["deep.inner.1"]
    check_sound(plan, model, devices, sharders)


def test_a_model_without_tables_has_an_empty_plan() -> None:
    ours = planner(topology(2))
    described(ours, one_table(1000, 16))
    assert ours.plan(nn.Linear(2, 2, device=META)) == ShardingPlan({})
    assert ours.last_plan is None


def test_one_rank_gets_all_tables_without_a_predicted_cost() -> None:
    model, devices = every_kind(), topology(1)
    ours = planner(devices)
    check_sound(ours.plan(model), model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    assert ours.last_plan.cost_ms is None
    assert set(types_of(ours.last_plan).values()) == {"table_wise"}


def test_more_ranks_than_cost_models_were_trained_on_are_named_in_the_plan() -> None:
    for ranks in (4, 8):
        plan = described(planner(topology(ranks, device="cpu")), one_table())
        named = [what for what in plan.outside_training if "devices" in what]
        assert named == (["8 devices: trained on 2 to 4"] if ranks == 8 else [])


# ---- random models ----


@dataclass(frozen=True)
class Planned:
    """A random model with a plan; ``memory`` of each rank, TorchRec's default where None."""

    case: Case
    memory: int | None
    plan: ShardingPlan
    described: TorchRecPlan


@pytest.fixture(scope="module")
def planned() -> list[Planned]:
    """Plans of random models with all the memory in the world and, where they fit, with little of it."""
    found = []
    for seed in SEEDS:
        case = draw_case(seed)
        memory = None
        for _ in range(2):
            ours = case.planner(memory)
            try:
                plan = ours.plan(case.model, case.sharders)
            except PlannerError:
                assert memory is not None, seed
                continue
            assert ours.last_plan is not None
            found.append(Planned(case, memory, plan, ours.last_plan))
            taken = [max(r.estimated_bytes, r.training_bytes) for r in ours.last_plan.ranks]
            memory = int(1.25 * sum(taken) / len(taken))
    return found


def test_plans_of_random_models_are_whole_and_keep_the_caps(planned: list[Planned]) -> None:
    assert sum(entry.memory is not None for entry in planned) >= len(SEEDS) // 2
    for entry in planned:
        devices = entry.case.topology(entry.memory)
        check_sound(entry.plan, entry.case.model, devices, entry.case.sharders)
        check_loads(entry.described)


def test_the_estimate_of_each_rank_is_within_one_percent_of_torchrecs(
    planned: list[Planned],
) -> None:
    for entry in planned:
        case = entry.case
        storage = torchrec_storage(
            entry.plan, case.model, case.topology(entry.memory), case.sharders, case.constraints
        )
        ours = [load.estimated_bytes for load in entry.described.ranks]
        assert ours == pytest.approx([s.hbm for s in storage], rel=0.01), case.seed


def joined(plan: TorchRecPlan) -> TorchRecPlan:
    """The plan with one shard of a pooled table on each rank."""
    tables = []
    for table in plan.tables:
        of_rank: dict[int, int] = {}
        for shard in table.shards:
            of_rank[shard.rank] = of_rank.get(shard.rank, 0) + shard.columns
        if table.kind == "bags" and "column" in table.sharding_type:
            ends = np.cumsum(list(of_rank.values())).tolist()
            merged = tuple(
                msgspec.structs.replace(
                    table.shards[0], rank=rank, column_offset=end - columns, columns=columns
                )
                for (rank, columns), end in zip(of_rank.items(), ends, strict=True)
            )
            table = msgspec.structs.replace(table, shards=merged)
        tables.append(table)
    return msgspec.structs.replace(plan, tables=tuple(tables))


def test_shards_of_a_pooled_table_on_one_rank_are_joined_unless_that_is_dearer(
    planned: list[Planned],
) -> None:
    for entry in planned:
        together = joined(entry.described)
        number = sum(len(table.shards) for table in entry.described.tables)
        if sum(len(table.shards) for table in together.tables) == number:
            continue
        ours = entry.case.planner(entry.memory)
        cost = ours.predict(entry.case.model, together, entry.case.sharders).cost_ms
        assert entry.described.cost_ms is not None
        assert cost > entry.described.cost_ms, entry.case.seed


def test_the_random_models_are_sharded_in_every_way(planned: list[Planned]) -> None:
    tables = [table for entry in planned for table in entry.described.tables]
    assert {table.sharding_type for table in tables} == {
        *("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
    }
    cut = [table for table in tables if "column" in table.sharding_type and len(table.shards) > 1]
    assert {table.kind for table in cut} == {"bags", "sequence"}
    assert {table.data_type for table in cut} == {"fp16", "fp32"}
    assert {entry.case.ranks for entry in planned} == {4, 8}


# ---- memory ----


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_takes_the_state_of_an_optimizer_in_fused_params(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    whole = table_bytes(ROWS, 64, 2, optimizer.state(ROWS, 64))
    devices = topology(2, int(0.75 * whole))
    plan = described(planner(devices), one_table(), sharders_with(optimizer.fused))
    assert len(plan.tables[0].shards) == 2  # each with its own state
    for shard in plan.tables[0].shards:
        assert shard.estimated_bytes == table_bytes(ROWS, shard.columns, 2)
        state = optimizer.state(ROWS, shard.columns)
        assert shard.training_bytes == table_bytes(ROWS, shard.columns, 2, state)
    left_out = sum(optimizer.state(ROWS, shard.columns) for shard in plan.tables[0].shards)
    notes = [note for note in plan.notes if "leaves out" in note]
    assert bool(notes) == bool(left_out)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_takes_the_state_of_an_optimizer_attached_to_the_parameters(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    model = attach(optimizer.attached, one_table())
    whole = table_bytes(ROWS, 64, 2, optimizer.state(ROWS, 64))
    devices = topology(2, int(0.75 * whole))
    ours = planner(devices)
    plan = described(ours, model)
    assert len(plan.tables[0].shards) == 2
    for shard in plan.tables[0].shards:
        state = optimizer.state(ROWS, shard.columns)
        assert shard.training_bytes == table_bytes(ROWS, shard.columns, 2, state)
    storage = torchrec_storage(ours.plan(model), model, devices)
    assert [load.estimated_bytes for load in plan.ranks] == pytest.approx(
        [s.hbm for s in storage], rel=1e-6
    )
    assert not any("leaves out" in note for note in plan.notes)


def test_state_of_half_precision_tables_is_counted_in_fp32() -> None:
    model = attach(torch.optim.Adam, one_table(data_type=DataType.FP16))
    plan = described(planner(topology(2)), model)
    # TorchRec's estimate takes two moments to be as large as the weights, and outputs to be of their type;
    # but both are fp32.
    samples = plan.batch_size * plan.world_size
    assert sum(load.training_bytes for load in plan.ranks) - sum(
        load.estimated_bytes for load in plan.ranks
    ) == ROWS * 64 * (8 - 4) + samples * 64 * (4 - 2)


def test_the_cap_holds_for_training_where_that_is_larger() -> None:
    # Adam's state is twice the weights; TorchRec's estimate does not see it in fused_params.
    model, cap = one_table(), int(1.6 * table_bytes(ROWS, 64, 2))
    adam = sharders_with(OPTIMIZERS["adam"].fused)
    whole = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    without = described(planner(topology(2, cap), constraints=whole), model)
    assert max(load.training_bytes for load in without.ranks) < cap
    with pytest.raises(PlannerError, match="in training"):
        planner(topology(2, cap), constraints=whole).plan(model, adam)
    plan = described(planner(topology(2, cap)), model, adam)
    assert len(plan.tables[0].shards) == 2
    check_loads(plan)
    assert sum(load.estimated_bytes for load in plan.ranks) < cap


def test_the_cap_holds_for_the_estimate_where_that_is_larger() -> None:
    # Statistics say that hardly anything is looked up; TorchRec's estimate does not know.
    model = parts(sequences=sequences(sequence("t", rows=100, dim=64)))
    statistics = TableSet.of(
        [
            EmbeddingTable(
                name="t",
                num_embeddings=100,
                embedding_dim=64,
                features=(Feature(name="t", pooling_factor=0.01),),
                pooling="none",
            )
        ]
    )
    whole = table_bytes(100, 64, 2)
    devices = topology(2, int(0.75 * whole))
    in_one = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    with pytest.raises(PlannerError, match="no plan fits"):
        planner(devices, constraints=in_one, table_stats=statistics).plan(model)
    plan = described(planner(devices, table_stats=statistics), model)
    assert widths(plan, "sequences.t") == [32, 32]
    for load in plan.ranks:
        assert 10 * load.training_bytes < load.estimated_bytes <= load.cap_bytes


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_ranks_may_have_different_caps(device: str) -> None:
    model = parts(bags=bags(*(bag(f"t{k}", rows=ROWS, dim=16) for k in range(6))))
    caps = [60 * MIB, 12 * MIB]
    plan = described(planner(topology(2, caps, device=device)), model)
    check_loads(plan)
    assert [load.cap_bytes for load in plan.ranks] == caps
    assert plan.memory_kind == {"cuda": "HBM", "cpu": "DDR"}[device]
    assert plan.ranks[0].estimated_bytes > caps[1]


def test_columns_fill_ranks_of_different_caps_in_unequal_joined_shards() -> None:
    model, devices = one_table(), topology(4, UNEVEN)
    ours = planner(devices)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    (table,) = ours.last_plan.tables
    assert table.sharding_type == "column_wise"
    assert len({shard.columns for shard in table.shards}) > 1
    ranks = [shard.rank for shard in table.shards]
    assert len(set(ranks)) == len(ranks)
    assert any("column shards of unequal width: bags.t" in note for note in ours.last_plan.notes)


# ---- constraints ----


@pytest.mark.parametrize(
    "sharding_type",
    [
        *("table_wise", "column_wise", "table_column_wise"),
        *("row_wise", "table_row_wise", "data_parallel"),
    ],
)
def test_a_sharding_type_that_a_constraint_demands_is_taken(sharding_type: str) -> None:
    model, devices = parts(bags=bags(bag("t"), bag("u"))), topology(4)
    constraints = {"t": ParameterConstraints(sharding_types=[sharding_type])}
    ours = planner(devices, constraints=constraints)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    found = {name: sharding for _, name, sharding in shardings(plan)}
    assert found["t"].sharding_type == sharding_type
    assert found["u"].sharding_type in ("table_wise", "column_wise")
    assert found["t"].compute_kernel == ("dense" if sharding_type == "data_parallel" else "fused")
    storage = torchrec_storage(plan, model, devices, constraints=constraints)
    assert ours.last_plan is not None
    assert [load.estimated_bytes for load in ours.last_plan.ranks] == pytest.approx(
        [s.hbm for s in storage], rel=0.01
    )


@pytest.mark.parametrize(
    ("allowed", "taken"),
    [
        (["row_wise", "table_wise"], "table_wise"),
        (["data_parallel", "column_wise"], "column_wise"),
        (["row_wise", "data_parallel"], "row_wise"),
        (["data_parallel", "row_wise"], "data_parallel"),
        (["grid_shard", "table_wise"], "table_wise"),
    ],
)
def test_of_several_sharding_types_those_that_are_searched_come_first(
    allowed: list[str], taken: str
) -> None:
    constraints = {"t": ParameterConstraints(sharding_types=allowed)}
    plan = described(planner(topology(2), constraints=constraints), one_table(1000, 16))
    assert types_of(plan) == {"bags.t": taken}


def test_tables_cut_by_rows_within_a_host_are_spread_over_the_hosts() -> None:
    model, devices = parts(bags=bags(bag("t"), bag("u"))), topology(4, local=2)
    by_host = ParameterConstraints(sharding_types=["table_row_wise"])
    ours = planner(devices, constraints={"t": by_host, "u": by_host})
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    ranks = {name: sharding.ranks for _, name, sharding in shardings(plan)}
    assert sorted(ranks.values()) == [[0, 1], [2, 3]]


def test_a_replicated_table_and_one_cut_by_rows_take_room_from_the_others() -> None:
    model = parts(bags=bags(*(bag(name, rows=ROWS, dim=64) for name in ("t", "u", "v"))))
    constraints = {
        "t": ParameterConstraints(sharding_types=["data_parallel"]),
        "u": ParameterConstraints(sharding_types=["row_wise"]),
    }
    loose = described(planner(topology(2), constraints=constraints), model)
    fixed = [
        sum(max(s.estimated_bytes, s.training_bytes) for s in t.shards if s.rank == 0)
        for t in loose.tables
        if t.sharding_type in ("data_parallel", "row_wise")
    ]
    cap = sum(fixed) + int(0.75 * table_bytes(ROWS, 64, 2))
    squeezed = described(planner(topology(2, cap), constraints=constraints), model)
    check_loads(squeezed)
    assert len(widths(squeezed, "bags.v")) == 2


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching"])
def test_kernels_in_host_memory_are_taken_where_a_constraint_demands_them(kernel: str) -> None:
    model, devices = parts(bags=bags(bag("t", rows=ROWS, dim=64), bag("u"))), topology(2)
    constraints = {
        "t": ParameterConstraints(
            compute_kernels=[kernel], cache_params=CacheParams(load_factor=0.3)
        )
    }
    ours = planner(devices, constraints=constraints)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    kernels = {name: sharding.compute_kernel for _, name, sharding in shardings(plan)}
    assert kernels == {"t": kernel, "u": "fused"}
    storage = torchrec_storage(plan, model, devices, constraints=constraints)
    assert ours.last_plan is not None
    ranks = ours.last_plan.ranks
    assert [r.estimated_bytes for r in ranks] == pytest.approx([s.hbm for s in storage], rel=0.01)
    assert [r.host_bytes for r in ranks] == pytest.approx([s.ddr for s in storage], rel=0.01)
    assert sum(r.host_bytes for r in ranks) >= 4 * ROWS * 64
    assert any(f"kernel {kernel}, bags.t" in note for note in ours.last_plan.notes)


@pytest.mark.parametrize("shares", [(4.2, 2.2), (1.2, 5.2)])
def test_tables_in_host_memory_are_placed_where_hosts_have_room(shares: tuple[float, ...]) -> None:
    names = [f"t{number}" for number in range(6)]
    model = parts(bags=bags(*(bag(name, rows=ROWS, dim=64) for name in names), bag("small")))
    given = {name: ParameterConstraints(compute_kernels=["fused_uvm"]) for name in names}
    size = 4 * ROWS * 64
    caps = [int(share * size) for share in shares]
    memory = CustomTopologyData({"hbm_cap": [80 * 2**30] * 2, "ddr_cap": caps}, 2)
    devices = Topology(world_size=2, compute_device="cuda", custom_topology_data=memory)
    ours = planner(devices, constraints=given)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    for load, cap in zip(ours.last_plan.ranks, caps, strict=True):
        assert load.host_bytes <= cap
    note = "tables in host memory were placed by what they take of it: the cheapest plan found takes more"
    assert note in ours.last_plan.notes
    roomy = described(planner(topology(2), constraints=given), model)
    assert note not in roomy.notes
    assert roomy.cost_ms is not None
    assert ours.last_plan.cost_ms is not None
    assert roomy.cost_ms < ours.last_plan.cost_ms


def test_tables_do_not_leave_device_memory_unless_they_must() -> None:
    kernels = ["fused_uvm_caching", "fused_uvm", "fused"]
    constraints = {"t": ParameterConstraints(compute_kernels=kernels)}
    plan = described(planner(topology(2), constraints=constraints), one_table())
    assert plan.tables[0].compute_kernel == "fused"


@pytest.mark.parametrize("least", [30, 32])
def test_no_shard_is_narrower_than_min_partition(least: int) -> None:
    caps = [int(share * WHOLE) for share in (0.8, 0.55, 0.3, 0.3)]
    model, devices = one_table(), topology(4, caps)
    constraints = {"t": ParameterConstraints(min_partition=least)}
    wide = described(planner(devices, constraints=constraints), model)
    check_loads(wide)
    assert widths(wide, "bags.t") == [32, 32]
    assert wide.tables[0].shards[0].rank + wide.tables[0].shards[1].rank == 1
    # Without it nothing keeps the columns from ranks that hold fewer.
    narrow = described(planner(topology(4, [int(0.3 * WHOLE)] * 4)), model)
    assert widths(narrow, "bags.t") == [16] * 4


def test_pooling_factors_num_poolings_and_batch_sizes_count_in_memory_as_torchrec_counts() -> None:
    model, devices = parts(bags=bags(bag("t", "f", "g", rows=1000, dim=16))), topology(2)
    constraints = {
        "t": ParameterConstraints(
            sharding_types=["table_wise"],
            pooling_factors=[3.0, 0.5],
            num_poolings=[1.0, 2.0],
            batch_sizes=[BATCH_SIZE, BATCH_SIZE // 2],
        )
    }
    ours = planner(devices, constraints=constraints)
    plan = ours.plan(model)
    storage = torchrec_storage(plan, model, devices, constraints=constraints)
    assert ours.last_plan is not None
    assert [load.estimated_bytes for load in ours.last_plan.ranks] == [s.hbm for s in storage]
    (shard,) = ours.last_plan.tables[0].shards
    # Bags of a rank: one of each sample, and two of each other sample; indices: 3 and 2 * 0.5 / 2 a sample.
    vectors, indices = 2 * BATCH_SIZE, BATCH_SIZE * 3.5
    assert shard.training_bytes == 1000 * 16 * 4 + 2 * (vectors * 16 * 4 + int(indices) * 8)
    assert ours.last_plan.assumed_pooling == ()


def test_pooling_factors_make_a_table_dearer() -> None:
    model = parts(bags=bags(bag("t", "f", "g", rows=ROWS, dim=64)))
    costs = []
    for factors in ([1.0, 1.0], [10.0, 1.0], [10.0, 90.0]):
        constraints = {"t": ParameterConstraints(pooling_factors=factors)}
        cost = described(planner(topology(2), constraints=constraints), model).cost_ms
        assert cost is not None
        costs.append(cost)
    assert costs[0] < costs[1] < costs[2]


def test_feature_names_say_which_feature_an_entry_is_of() -> None:
    model = parts(bags=bags(bag("t", "f", "g")))
    (table,) = find_tables(model, None, "cuda")
    constraint = ParameterConstraints(
        feature_names=["g", "f"], pooling_factors=[2.0, 30.0], batch_sizes=[100, 50]
    )
    lookups = table_lookups(table, constraint, None, 100)
    assert dict(zip(lookups.features, lookups.factors, strict=True)) == {"g": 2.0, "f": 15.0}
    measured = EmbeddingTable(
        name="t",
        num_embeddings=1000,
        embedding_dim=16,
        features=(Feature(name="f", pooling_factor=8.0), Feature(name="g", pooling_factor=1.0)),
    )
    lookups = table_lookups(table, constraint, measured, 100)
    assert dict(zip(lookups.features, lookups.factors, strict=True)) == {"g": 1.0, "f": 4.0}


@pytest.mark.parametrize("of_module", [False, True])
@pytest.mark.parametrize("of_constraint", [False, True])
def test_a_table_is_weighted_where_its_module_or_its_constraint_says_so(
    of_module: bool, of_constraint: bool
) -> None:
    (table,) = find_tables(parts(bags=bags(bag("t"), weighted=of_module)), None, "cuda")
    constraint = ParameterConstraints(is_weighted=of_constraint)
    lookups = table_lookups(table, constraint, None, BATCH_SIZE)
    assert cost_table(table, lookups).is_weighted == (of_module or of_constraint)


def test_tables_of_another_device_group_are_left_out_and_named() -> None:
    model = parts(bags=bags(bag("t"), bag("u"), bag("v")))
    constraints = {
        "t": ParameterConstraints(device_group="cpu"),
        "u": ParameterConstraints(device_group="cuda"),
    }
    ours = planner(topology(2), constraints=constraints)
    plan = ours.plan(model)
    assert [name for _, name, _ in shardings(plan)] == ["u", "v"]
    assert ours.last_plan is not None
    assert ours.last_plan.excluded == ("bags.t",)
    assert "not in the plan: 1 tables of other device groups, bags.t" in format_torchrec_plan(
        ours.last_plan
    )


def test_where_device_groups_leave_nothing_the_plan_is_empty_and_a_warning_names_the_tables(
    caplog: pytest.LogCaptureFixture,
) -> None:
    constraints = {"t": ParameterConstraints(device_group="cpu")}
    ours = planner(topology(2), constraints=constraints)
    with caplog.at_level(logging.WARNING, logger="neuroshard_fast"):
        assert ours.plan(one_table()) == ShardingPlan({})
    assert "device groups exclude bags.t" in caplog.text
    assert ours.last_plan is None


def carried() -> ParameterConstraints:
    """A constraint with everything that plans merely pass on."""
    return ParameterConstraints(
        cache_params=CacheParams(
            algorithm=CacheAlgorithm.LFU,
            load_factor=0.1,
            reserved_memory=2.0,
            precision=DataType.FP16,
            prefetch_pipeline=True,
        ),
        enforce_hbm=True,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.FATAL,
        output_dtype=DataType.FP16,
        key_value_params=KeyValueParams(l2_cache_size=3),
    )


def test_what_a_constraint_merely_carries_arrives_in_the_plan_as_a_copy() -> None:
    constraint = carried()
    model = parts(bags=bags(bag("t"), bag("u")))
    plan = planner(topology(2), constraints={"t": constraint}).plan(model)
    found = {name: sharding for _, name, sharding in shardings(plan)}
    for name in (
        *("cache_params", "enforce_hbm", "stochastic_rounding"),
        *("bounds_check_mode", "output_dtype", "key_value_params"),
    ):
        assert getattr(found["t"], name) == getattr(constraint, name) is not None
        assert getattr(found["u"], name) is None
    assert found["t"].cache_params is not constraint.cache_params
    assert found["t"].key_value_params is not constraint.key_value_params


def test_an_output_type_counts_in_memory_as_torchrec_counts_it() -> None:
    model, devices = one_table(1000, 16), topology(2)
    training = []
    for output_dtype in (None, DataType.FP16):
        constraints = {
            "t": ParameterConstraints(sharding_types=["table_wise"], output_dtype=output_dtype)
        }
        ours = planner(devices, constraints=constraints)
        storage = torchrec_storage(ours.plan(model), model, devices, constraints=constraints)
        assert ours.last_plan is not None
        assert [load.estimated_bytes for load in ours.last_plan.ranks] == [s.hbm for s in storage]
        training.append(sum(load.training_bytes for load in ours.last_plan.ranks))
    assert training[0] - training[1] == 2 * BATCH_SIZE * 16 * (4 - 2)


def test_a_constraint_counts_for_tables_of_its_name_in_every_module() -> None:
    model = parts(one=bags(bag("t")), two=bags(bag("t")), three=bags(bag("u")))
    constraints = {"t": ParameterConstraints(sharding_types=["row_wise"])}
    plan = described(planner(topology(2), constraints=constraints), model)
    types = types_of(plan)
    assert types["one.t"] == types["two.t"] == "row_wise" != types["three.u"]


def test_constraints_of_unknown_tables_are_noted() -> None:
    constraints: Constraints = {
        name: ParameterConstraints() for name in ("t", "ghost", "bags.t", "spirit", "wraith")
    }
    plan = described(planner(topology(2), constraints=constraints), one_table(1000, 16))
    assert (
        "constraints name tables that the model has not: 'bags.t', 'ghost', 'spirit' and 1 more"
        in plan.notes
    )
    few = described(planner(topology(2), constraints={"t": carried()}), one_table(1000, 16))
    assert not any("has not" in note for note in few.notes)


def test_mean_pooled_tables_may_be_cut_by_rows_where_all_of_their_collection_are() -> None:
    by_row = ParameterConstraints(sharding_types=["row_wise"])
    constraints = {"t": by_row, "u": by_row}
    model = parts(
        bags=bags(bag("t", pooling=PoolingType.MEAN), bag("u")),
        others=bags(bag("v", pooling=PoolingType.MEAN), bag("w")),
    )
    plan = described(planner(topology(2), constraints=constraints), model)
    by_rows = [table for table, type_ in types_of(plan).items() if type_ == "row_wise"]
    assert by_rows == ["bags.t", "bags.u"]


# ---- collections whose column shards have one width ----


def sequence_model() -> nn.Module:
    """Two unpooled collections, of which tables have to be cut, beside a pooled one."""
    return parts(
        one=sequences(*(sequence(f"a{k}", rows=ROWS, dim=64) for k in range(3))),
        two=sequences(*(sequence(f"b{k}", rows=ROWS // 2, dim=32) for k in range(2))),
        bags=bags(bag("c", rows=ROWS, dim=60)),
    )


def test_column_shards_of_a_collection_have_one_width_where_memory_forces_cuts() -> None:
    model = sequence_model()
    devices = topology(8, int(0.8 * WHOLE))
    ours = planner(devices)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    for table in ("one.a0", "one.a1", "one.a2"):
        assert len(set(widths(ours.last_plan, table))) == 1
        assert len(widths(ours.last_plan, table)) > 1


def test_a_table_that_may_only_be_column_wise_has_the_width_of_its_collection() -> None:
    model = parts(
        one=sequences(sequence("small", dim=64), sequence("big", rows=ROWS, dim=64)),
    )
    constraints = {"small": ParameterConstraints(sharding_types=["column_wise"])}
    devices = topology(2, int(0.75 * table_bytes(ROWS, 64, 2)))
    ours = planner(devices, constraints=constraints)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    assert types_of(ours.last_plan)["one.small"] == "column_wise"
    assert widths(ours.last_plan, "one.small") == widths(ours.last_plan, "one.big") == [32, 32]


# ---- options ----


def test_keep_row_statistics_cuts_no_table_whose_optimizer_works_on_whole_rows() -> None:
    model = parts(bags=bags(*(bag(name, rows=ROWS, dim=64) for name in ("a", "b", "c"))))
    by_row = [model.get_parameter(f"bags.embedding_bags.{name}.weight") for name in ("a", "b")]
    attach(RowWiseAdagrad, nn.ParameterList(by_row))
    cap = int(1.6 * table_bytes(ROWS, 64, 2, 4 * ROWS))  # one of three tables has to be cut
    plan = described(planner(topology(2, cap), keep_row_statistics=True), model)
    check_loads(plan)
    assert [len(widths(plan, f"bags.{name}")) for name in "abc"] == [1, 1, 2]
    assert not any("works on whole rows" in note for note in plan.notes)


def test_a_plan_says_which_tables_column_splits_train_otherwise() -> None:
    by_row = attach(RowWiseAdagrad, one_table())
    cap = int(0.75 * table_bytes(ROWS, 64, 2, 4 * ROWS))
    (note,) = (n for n in described(planner(topology(2, cap)), by_row).notes if "whole rows" in n)
    assert "optimizer exact_row_wise_adagrad" in note
    assert "bags.t will train otherwise" in note
    assert "keep_row_statistics=True forbids such splits" in note
    by_element = attach(torch.optim.Adagrad, one_table())
    cap = int(0.75 * table_bytes(ROWS, 64, 2, 4 * ROWS * 64))
    notes = described(planner(topology(2, cap)), by_element).notes
    assert not any("whole rows" in note for note in notes)


def test_without_uneven_columns_shards_of_a_table_have_one_width() -> None:
    model, devices = one_table(), topology(4, UNEVEN)
    ours = planner(devices, uneven_columns=False)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    assert set(widths(ours.last_plan, "bags.t")) == {16}
    assert not any("unequal width" in note for note in ours.last_plan.notes)


def test_without_uneven_columns_tables_need_no_width_in_common() -> None:
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64), bag("u", rows=ROWS, dim=48)))
    cap = int(0.75 * table_bytes(ROWS, 48, 4))
    plan = described(planner(topology(4, cap), uneven_columns=False), model)
    check_loads(plan)
    assert set(widths(plan, "bags.t")) == {32}
    assert set(widths(plan, "bags.u")) == {24}


def test_one_sharding_type_makes_whole_tables_of_a_cut_collection_column_wise() -> None:
    model = parts(
        cut=bags(bag("big", rows=ROWS, dim=64), bag("small", dim=4)),
        other=bags(bag("alone", dim=4)),
        sequences=sequences(sequence("s", dim=4)),
    )
    devices = topology(2, int(0.75 * table_bytes(ROWS, 64, 2)))
    usual = described(planner(devices, one_sharding_type=False), model)
    assert types_of(usual) == {
        "cut.big": "column_wise",
        "cut.small": "table_wise",
        "other.alone": "table_wise",
        "sequences.s": "table_wise",
    }
    ours = planner(devices)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    assert types_of(ours.last_plan) == {**types_of(usual), "cut.small": "column_wise"}
    assert widths(ours.last_plan, "cut.small") == [4]
    assert ours.last_plan.cost_ms == usual.cost_ms


def test_collections_are_cut_each_into_pieces_of_its_own() -> None:
    model = parts(
        a=sequences(sequence("a", rows=ROWS, dim=36)), b=sequences(sequence("b", rows=ROWS, dim=40))
    )
    devices = topology(4, 12_360_000 * ROWS // 100_000)
    ours = planner(devices)
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    assert widths(ours.last_plan, "a.a") == [12] * 3
    assert widths(ours.last_plan, "b.b") == [20] * 2


def test_a_rank_without_memory_stays_empty() -> None:
    model = one_table(1000, 16)
    memory = CustomTopologyData({"hbm_cap": [0, MIB], "ddr_cap": [0, MIB]}, 2)
    devices = Topology(world_size=2, compute_device="cuda", custom_topology_data=memory)

    class Takes(FixedPercentageStorageReservation):  # type: ignore[misc]
        def reserve(self, topology: Topology, **others: Any) -> Topology:
            reserved = super().reserve(topology, **others)
            reserved.devices[0].storage.hbm -= 5
            reserved.devices[0].storage.ddr -= 5
            return reserved

    ours = planner(devices, storage_reservation=Takes(percentage=0.0))
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    assert [load.num_shards for load in ours.last_plan.ranks] == [0, 1]


def test_one_sharding_type_changes_no_table_that_may_not_be_column_wise() -> None:
    model = parts(bags=bags(bag("big", rows=ROWS, dim=64), bag("small", dim=4)))
    constraints = {"small": ParameterConstraints(sharding_types=["table_wise"])}
    devices = topology(2, int(0.75 * table_bytes(ROWS, 64, 2)))
    plan = described(planner(devices, constraints=constraints), model)
    assert types_of(plan) == {"bags.big": "column_wise", "bags.small": "table_wise"}


def test_where_the_search_finds_nothing_tables_are_placed_by_memory_and_the_plan_says_so() -> None:
    model, devices = one_table(), topology(2, int(0.75 * table_bytes(ROWS, 64, 2)))
    ours = planner(devices, options=SearchOptions(max_splits=0))
    plan = ours.plan(model)
    check_sound(plan, model, devices)
    assert ours.last_plan is not None
    check_loads(ours.last_plan)
    assert len(ours.last_plan.tables[0].shards) == 2
    note = "placed by memory alone, whatever it costs: the search found no plan"
    assert note in ours.last_plan.notes
    assert ours.last_plan.cost_ms == pytest.approx(ours.predict(model, plan).cost_ms, rel=1e-6)
    assert note not in described(planner(devices), model).notes


def test_a_timeout_ends_the_trying_of_alternatives_with_a_plan() -> None:
    model, devices = sequence_model(), topology(8, int(0.8 * WHOLE))
    plan = planner(devices, timeout_seconds=1e-6).plan(model)
    check_sound(plan, model, devices)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_do_not_change_the_plan(threads: int) -> None:
    case = draw_case(SEEDS[3])
    plans = [
        described(
            planner(
                case.topology(),
                constraints=case.constraints,
                options=SearchOptions(threads=count),
            ),
            case.model,
            case.sharders,
        )
        for count in (1, threads)
    ]
    one, other = (msgspec.structs.replace(plan, planning_ms=0.0) for plan in plans)
    assert one == other


def test_another_planner_makes_the_same_plan_of_the_same_model_made_again() -> None:
    plans = []
    for _ in range(2):
        case = draw_case(SEEDS[5])
        plan = described(case.planner(), case.model, case.sharders)
        assert plan.planning_ms > 0.0
        plans.append(msgspec.structs.replace(plan, planning_ms=0.0))
    assert plans[0] == plans[1]


def test_each_plan_is_of_new_objects_which_sharding_may_change() -> None:
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64)))
    constraints = {"t": carried()}
    devices = topology(2, int(0.75 * table_bytes(ROWS, 64, 2)))
    ours = planner(devices, constraints=constraints)
    first = ours.plan(model)
    before = copy.deepcopy(first)
    kept = ours.last_plan
    ((_, _, sharding),) = shardings(first)
    sharding.sharding_spec.shards[0].shard_sizes[1] = 4
    sharding.sharding_spec.shards.pop()
    sharding.ranks.clear()
    sharding.cache_params.load_factor = 0.9
    second = ours.plan(model)
    assert second == before != first
    assert kept is not None
    assert ours.last_plan is not None
    assert kept.tables == ours.last_plan.tables


# ---- statistics, notes, logs ----


def statistics(*names: str, histogram: bool = True) -> TableSet:
    """Of tables of one feature of their name, looked up five times a sample."""
    bins = np.zeros(HISTOGRAM_BINS)
    bins[0] = 1.0  # every row once
    return TableSet.of(
        [
            EmbeddingTable(
                name=name,
                num_embeddings=1000,
                embedding_dim=16,
                features=(Feature(name=name.rpartition(".")[2], pooling_factor=5.0),),
                reuse_histogram=tuple(bins.tolist()) if histogram else None,
            )
            for name in names
        ]
    )


def test_what_nothing_is_known_of_is_assumed_and_the_plan_says_so() -> None:
    model = parts(bags=bags(bag("t"), bag("u"), bag("v"), bag("w")))
    constraints = {"u": ParameterConstraints(pooling_factors=[7.0])}
    table_stats = TableSet.of([*statistics("t"), *statistics("bags.v", histogram=False)])
    plan = described(planner(topology(2), constraints=constraints, table_stats=table_stats), model)
    assert plan.assumed_histograms == ("bags.u", "bags.v", "bags.w")
    assert plan.assumed_pooling == ("bags.w",)
    text = format_torchrec_plan(plan)
    assert "reuse histograms assumed (Zipf) for 3 of 4 tables" in text
    assert "pooling factors assumed to be 1 for 1 of 4 tables, bags.w" in text


def test_statistics_come_before_constraints_and_full_names_before_short_ones() -> None:
    model = parts(one=bags(bag("t")), two=bags(bag("t")))
    constraints = {"t": ParameterConstraints(pooling_factors=[90.0])}
    few = described(planner(topology(2), table_stats=statistics("t")), model)
    same = described(
        planner(topology(2), constraints=constraints, table_stats=statistics("t")), model
    )
    assert same.cost_ms == few.cost_ms
    table_stats = TableSet.of([*statistics("one.t")])
    one_known = described(
        planner(topology(2), constraints=constraints, table_stats=table_stats), model
    )
    assert one_known.assumed_histograms == ("two.t",)
    assert one_known.cost_ms is not None
    assert few.cost_ms is not None
    assert one_known.cost_ms > few.cost_ms


def test_statistics_without_a_feature_of_the_table_are_refused_by_name() -> None:
    model = parts(bags=bags(bag("t", "t", "extra")))
    with pytest.raises(PlannerError, match=r"table 'bags\.t': .* no feature 'extra'") as caught:
        planner(topology(2), table_stats=statistics("t")).plan(model)
    assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION


def test_the_plan_is_logged_as_a_table_where_debug_asks_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="neuroshard_fast"):
        planner(topology(2), debug=False).plan(one_table(1000, 16))
        assert "training HBM" not in caplog.text
        planner(topology(2)).plan(one_table(1000, 16))
        assert "training HBM" in caplog.text


class Recorded(Stats):  # type: ignore[misc]  # TorchRec has no types
    """Keeps what it is to log."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, **given: Any) -> None:
        self.logged.append(given)


def test_torchrecs_statistics_are_logged_for_a_plan_with_torchrecs_estimates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded, model, devices = Recorded(), every_kind(), topology(2)
    ours = planner(devices, stats=[recorded, EmbeddingStats()], debug=True)
    with caplog.at_level(logging.INFO, logger="torchrec"):
        plan = ours.plan(model)
    (given,) = recorded.logged
    assert given["sharding_plan"] is plan
    assert given["batch_size"] == BATCH_SIZE
    assert given["debug"] is True
    assert list(inspect.signature(Stats.log).parameters)[1:] == list(given)
    storage = torchrec_storage(plan, model, devices)
    logged = [0] * 2
    for option in given["best_plan"]:
        for shard in option.shards:
            logged[shard.rank] += shard.storage.hbm
            assert shard.perf.total > 0.0
    assert logged == [s.hbm for s in storage]
    assert "Planner Statistics" in caplog.text


# ---- predictions ----


def test_the_prediction_for_a_plan_is_its_own_cost() -> None:
    case = draw_case(SEEDS[1])
    ours = case.planner()
    plan = ours.plan(case.model, case.sharders)
    mine = ours.last_plan
    assert mine is not None
    for form in (plan, mine):
        found = ours.predict(case.model, form, case.sharders)
        assert found.cost_ms == pytest.approx(mine.cost_ms, rel=1e-6)
        assert found.total_ms == pytest.approx([r.total_ms for r in mine.ranks], rel=1e-6)


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_a_plan_of_torchrecs_planner_is_predicted_and_costs_no_less_than_ours() -> None:
    model = parts(bags=bags(*(bag(f"t{k}", rows=1000 * k + 10, dim=64) for k in range(8))))
    constraints = {
        f"t{k}": ParameterConstraints(
            sharding_types=["table_wise", "column_wise"], pooling_factors=[float(5 * k + 1)]
        )
        for k in range(8)
    }
    theirs = EmbeddingShardingPlanner(
        topology(4), batch_size=BATCH_SIZE, constraints=constraints, stats=[]
    ).plan(model, [EmbeddingBagCollectionSharder()])
    ours = planner(topology(4), constraints=constraints)
    mine = described(ours, model)
    assert mine.cost_ms is not None
    assert ours.predict(model, theirs).cost_ms >= mine.cost_ms * (1 - 1e-6)


def test_a_plan_of_another_model_or_kernel_is_not_predicted() -> None:
    ours = planner(topology(2))
    plan = ours.plan(one_table(1000, 16))
    with pytest.raises(PlannerError, match=r"table 'bags\.t' is none of the model's"):
        ours.predict(parts(other=nn.Linear(2, 2, device=META)), plan)
    with pytest.raises(PlannerError, match="it has no tables to predict costs for"):
        ours.predict(nn.Linear(2, 2, device=META), ShardingPlan({}))
    constraints = {"t": ParameterConstraints(compute_kernels=["fused_uvm"])}
    in_host = planner(topology(2), constraints=constraints).plan(one_table(1000, 16))
    with pytest.raises(PlannerError, match="cost models do not cover kernel fused_uvm"):
        ours.predict(one_table(1000, 16), in_host)
