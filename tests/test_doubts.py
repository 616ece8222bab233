"""What lies far outside the training data is said; doubt is reported and can be counted as cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuroshard_fast import Cluster, CostModels, InputError, Planner, SearchOptions, TableSet, _core
from neuroshard_fast.cost_models import CostModelsInfo
from neuroshard_fast.doubts import TrainedOn, outside_training
from neuroshard_fast.features import PHYSICAL_FEATURES, shard_features
from neuroshard_fast.report import format_plan
from neuroshard_fast.tables import EmbeddingTable, Feature
from test_cost_models import SHARED_INFO, shared_tensors

TRAINED_ON = TrainedOn(
    batch_sizes=(1024, 4096),
    data_types=("fp32",),
    optimizers=("sgd",),
    rows=(100.0, 1e6),
    width=(4.0, 128.0),
    pooling_factor=(1.0, 100.0),
    reuse=(1.0, 50.0),
    device_tables=(1.0, 10.0),
    device_lookups=(1e3, 1e7),
    device_read_bytes=(1e5, 1e10),
    device_counts=(2, 4, 8, 16),
    sent_bytes=(1e3, 1e8),
    wait_ms=(0.0, 10.0),
)


def table(name: str = "t", **changes: Any) -> EmbeddingTable:
    fields = {
        "num_embeddings": 10_000,
        "embedding_dim": 64,
        "features": (Feature(name="f", pooling_factor=10.0),),
    }
    return EmbeddingTable(name=name, **{**fields, **changes})


def flags(
    tables: list[EmbeddingTable],
    batch_size: int = 2048,
    devices: list[list[tuple[int, int]]] | None = None,
    output_dims: list[float] | None = None,
    starts_ms: list[float] | None = None,
    devices_per_node: int | None = 8,
) -> list[str]:
    placed = devices or [[(k, each.embedding_dim) for k, each in enumerate(tables)], []]
    return outside_training(
        TRAINED_ON,
        TableSet.of(tables),
        batch_size,
        placed,
        output_dims or [64.0] * len(placed),
        starts_ms or [0.0] * len(placed),
        devices_per_node,
    )


def test_nothing_is_said_of_what_was_trained_on() -> None:
    assert flags([table("a"), table("b", num_embeddings=10**6)]) == []


def test_less_than_twice_outside_is_not_far() -> None:
    assert flags([table(num_embeddings=1_900_000)]) == []
    assert flags([table(num_embeddings=2_100_000)]) == [
        "rows of table 't' (2.1e+06): trained on 100 to 1e+06"
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_embeddings": 3}, "rows of table 't' (3): trained on 100 to 1e+06"),
        ({"num_embeddings": 10}, "rows of table 't' (10): trained on 100 to 1e+06"),
        ({"embedding_dim": 512}, "width of table 't' (512): trained on 4 to 128"),
        (
            {"features": (Feature(name="f", pooling_factor=0.1),)},
            "pooling factor of table 't' (0.1): trained on 1 to 100",
        ),
        ({"data_type": "fp16"}, "data type fp16: trained on fp32"),
        ({"optimizer": "adam"}, "optimizer adam: trained on sgd"),
    ],
)
def test_a_table_far_outside_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in flags([table(**changes), table("other")])


def test_shards_count_with_their_own_width_and_each_table_once() -> None:
    wide = table(embedding_dim=512)
    halves = [[(0, 256), (0, 256)], []]
    assert flags([wide], devices=halves) == []
    quarters = [[(0, 512)], [(0, 512)]]
    assert flags([wide], devices=quarters) == ["width of table 't' (512): trained on 4 to 128"]


def test_many_tables_are_counted() -> None:
    tables = [table(str(k), num_embeddings=10**7 + k) for k in range(7)]
    (said,) = flags(tables)
    assert said.startswith(
        "rows of table '6' (1e+07), table '5' (1e+07), table '4' (1e+07) and 4 more"
    )


def test_the_furthest_outside_come_first() -> None:
    rows = (30_000_000, 2, 20, 4_000_000, 10, 3_000_000)
    found = flags([table(str(k), num_embeddings=size) for k, size in enumerate(rows)])
    (said,) = (each for each in found if each.startswith("rows"))
    names = "table '1' (2), table '0' (3e+07), table '4' (10) and 3 more"
    assert said == f"rows of {names}: trained on 100 to 1e+06"
    (said,) = flags([table()], starts_ms=[0.0, 70.0, 30.0, 5.0], devices=[[(0, 64)], [], [], []])
    assert said.startswith("wait ms of device 0 (70), device 3 (65), device 2 (40)")


def test_long_names_are_cut() -> None:
    found = flags([table("n" * 4096, num_embeddings=1)])
    assert found
    assert max(map(len, found)) < 200


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"devices": [[(0, 64)] * 21, []]}, "tables of device 0 (21): trained on 1 to 10"),
        ({"output_dims": [64.0, 1e6]}, "sent bytes of device 1"),
        ({"starts_ms": [0.0, 30.0]}, "wait ms of device 0 (30): trained on 0 to 10"),
        ({"devices": [[(0, 64)]] + [[]] * 31}, "32 devices: trained on 2 to 16"),
        ({"devices": [[(0, 64)]] + [[]] * 11}, "12 devices leave a node of 8 not full, and"),
        ({"batch_size": 10_000}, "batch size 10,000: trained on 1,024 to 4,096"),
    ],
)
def test_a_load_far_outside_is_named(plan: dict[str, Any], said: str) -> None:
    assert any(each.startswith(said) for each in flags([table()], **plan))


def test_counts_between_those_trained_on_are_fine_where_nodes_are_full() -> None:
    assert flags([table()], devices=[[(0, 64)]] + [[]] * 5) == []
    assert flags([table()], devices=[[(0, 64)]] + [[]] * 11, devices_per_node=None) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": (2.0, 1.0)}, "rows must begin with its lower end"),
        ({"rows": (0.0, float("inf"))}, "rows must be a finite number"),
        ({"batch_sizes": (0, 4)}, "batch_sizes must lie between 1"),
        ({"device_counts": (1,)}, "device_counts must lie between 2"),
        ({"device_counts": (4, 2)}, "device_counts must be ascending"),
        ({"data_types": ("",)}, "data_types must be a non-empty string"),
    ],
)
def test_ranges_that_are_none_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        msgspec.structs.replace(TRAINED_ON, **changes)


# ---- features ----


def test_physical_features_are_what_a_batch_touches() -> None:
    tables = TableSet.of([table(data_type="fp16", reuse_histogram=(0.0, 1.0) + (0.0,) * 15)])
    (values,) = shard_features("physical", tables, 1000).of_width(np.array([32.0]))
    named = dict(zip(PHYSICAL_FEATURES, values.tolist(), strict=True))
    lookups, distinct = 10_000, 5_000
    wanted = {
        "lookups_1e6": lookups / 1e6,
        "read_gb": lookups * 32 * 2 / 1e9,
        "distinct_rows_1e6": distinct / 1e6,
        "distinct_gb": distinct * 32 * 2 / 1e9,
        "output_gb": 1000 * 32 * 4 / 1e9,
        "log_rows": np.log2(10_000),
        "log_width": 5.0,
        "log_pooling_factor": np.log2(10),
        "log_lookups": np.log2(lookups + 1),
        "log_distinct_rows": np.log2(distinct + 1),
        "log_reuse": np.log2((lookups + 1) / (distinct + 1)),
        "log_read_bytes": np.log2((lookups + 1) * 32 * 2),
        "log_distinct_bytes": np.log2((distinct + 1) * 32 * 2),
        "log_table_bytes": np.log2(10_000 * 32 * 2),
        "log_batch_size": np.log2(1000),
        "log_element_bytes": 1.0,
        "log_output_columns": np.log2(1001 * 32),
        "bin_1": 1.0,
    }
    wanted |= {f"bin_{k}": 0.0 for k in range(17) if k != 1}
    assert named == pytest.approx(wanted, rel=1e-4)


def test_a_table_that_is_never_looked_up_has_finite_features() -> None:
    idle = table(features=(Feature(name="f", pooling_factor=0.0),))
    features = shard_features("physical", TableSet.of([idle]), 1000).of_width(np.array([4.0]))
    assert np.isfinite(features).all()


# ---- doubt ----


def doubtful(golden_models: Path, factor: float) -> CostModels:
    """The golden compute network with a second output: ``factor`` times the cost."""
    models = CostModels.load(golden_models)
    tensors = dict(models.tensors)
    for part in ("weight", "bias"):
        row = tensors[f"compute.set.1.{part}"]
        tensors[f"compute.set.1.{part}"] = np.concatenate([row, row * np.float32(factor)])
    return CostModels(models.info, tensors)


def tables() -> TableSet:
    return TableSet.of([table(f"t{k}", num_embeddings=1000 * (k + 1)) for k in range(12)])


CLUSTER = Cluster(world_size=4, memory_bytes=2**30)


def test_high_costs_are_those_of_the_second_output(golden_models: Path) -> None:
    plan = Planner(doubtful(golden_models, 1.5)).plan(tables(), CLUSTER)
    plain = Planner(CostModels.load(golden_models)).plan(tables(), CLUSTER)
    assert plan.cost_ms == plain.cost_ms
    assert plan.placement == plain.placement
    assert plain.high_cost_ms is None
    for load in plan.devices:
        assert load.high_ms is not None
        assert load.high_ms > load.compute_ms * 1.5 + load.backward_comm_ms
    assert plan.high_cost_ms == max(load.high_ms for load in plan.devices if load.high_ms)
    assert "doubt: " in format_plan(plan)
    assert "doubt: " not in format_plan(plain)


def test_a_penalty_searches_with_dearer_costs_and_reports_expected_ones(
    golden_models: Path,
) -> None:
    models = doubtful(golden_models, 3.0)
    networks = models.networks_for(65536, 0.5)
    # 0.5 of the way from the cost to three times the cost is twice the cost.
    tensors = dict(CostModels.load(golden_models).tensors)
    for part in ("weight", "bias"):
        tensors[f"compute.set.1.{part}"] = tensors[f"compute.set.1.{part}"] * np.float32(2.0)
    twice = CostModels(models.info, tensors).networks_for(65536)
    planner = Planner(models)
    problem = planner.problem(tables(), CLUSTER)
    options = {"beam_width": 3, "candidates": 10, "max_splits": 10, "grid_steps": 11, "threads": 1}
    found = [_core.search(each, problem, **options) for each in (networks, twice)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].cost == pytest.approx(found[1].cost, rel=1e-5)
    plan = planner.plan(tables(), CLUSTER, SearchOptions(algorithm="neuroshard", doubt_penalty=0.5))
    assert plan.column_splits == tuple(found[0].column_splits)
    fresh = _core.evaluate(
        models.networks_for(65536), problem, found[0].column_splits, found[0].placement
    )
    assert plan.cost_ms == fresh.cost


def test_a_penalty_needs_models_that_know_doubt(golden_models: Path) -> None:
    with pytest.raises(InputError, match=r"doubt_penalty is 1, but cost models .* how sure"):
        Planner(CostModels.load(golden_models)).plan(
            tables(), CLUSTER, SearchOptions(doubt_penalty=1.0)
        )


@pytest.mark.parametrize("penalty", [-0.1, 11.0, float("nan"), "1"])
def test_a_penalty_lies_between_0_and_10(penalty: Any) -> None:
    with pytest.raises(InputError, match="options: doubt_penalty"):
        SearchOptions(doubt_penalty=penalty)


def test_what_lies_outside_is_in_the_plan(golden_models: Path) -> None:
    models = CostModels.load(golden_models)
    info = msgspec.structs.replace(models.info, trained_on=TRAINED_ON)
    plan = Planner(CostModels(info, models.tensors)).plan(tables(), CLUSTER)
    assert any(each.startswith("batch size 65,536") for each in plan.outside_training)
    assert "outside the training data: batch size 65,536" in format_plan(plan)


def test_models_with_physical_features_hold_for_the_batch_sizes_trained_on() -> None:
    info = CostModelsInfo(
        name="x",
        source="measured",
        hardware="h",
        batch_size=2048,
        feature_names=PHYSICAL_FEATURES,
        trained_on=TRAINED_ON,
    )
    assert info.batch_sizes == (1024, 4096)
    assert info.used().batch_sizes == (1024, 4096)
    assert msgspec.structs.replace(info, trained_on=None).batch_sizes == (2048, 2048)


def test_a_captured_call_has_the_penalty_in_its_networks(
    golden_models: Path, tmp_path: Path
) -> None:
    planner = Planner(doubtful(golden_models, 3.0))
    for name, penalty in (("plain", 0.0), ("penalised", 0.5)):
        planner.plan(tables(), CLUSTER, SearchOptions(doubt_penalty=penalty))
        planner.capture(tmp_path / name)
    assert (tmp_path / "plain").read_bytes() != (tmp_path / "penalised").read_bytes()


def test_high_costs_that_no_network_can_have_are_one_error(golden_models: Path) -> None:
    models = doubtful(golden_models, 1.0)
    tensors = dict(models.tensors)
    bias = tensors["compute.set.1.bias"].copy()
    bias[1] = 3e38
    broken = CostModels(models.info, {**tensors, "compute.set.1.bias": bias})
    with pytest.raises(InputError, match=r"high costs|ms is no cost"):
        Planner(broken).plan(tables(), CLUSTER)
    weight = tensors["compute.set.1.weight"].copy()
    weight[0], weight[1] = -3e38, 3e38
    broken = CostModels(models.info, {**tensors, "compute.set.1.weight": weight})
    with pytest.raises(InputError, match="beyond fp32"):
        broken.networks_for(65536, 10.0)


def test_networks_of_many_batch_sizes_are_planned_with_from_several_threads(
    golden_models: Path,
) -> None:
    models = doubtful(golden_models, 2.0)
    options = SearchOptions(max_splits=1, grid_steps=2)
    penalties = [k / 40 for k in range(40)]
    alone = [
        Planner(models).plan(tables(), CLUSTER, msgspec.structs.replace(options, doubt_penalty=x))
        for x in penalties
    ]
    planner = Planner(models)
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(
                lambda x: planner.plan(
                    tables(), CLUSTER, msgspec.structs.replace(options, doubt_penalty=x)
                ),
                penalties,
            )
        )
    assert [plan.placement for plan in together] == [plan.placement for plan in alone]


def test_all_networks_say_how_sure_they_are_or_none_does() -> None:
    tensors = shared_tensors()
    assert not CostModels(SHARED_INFO, tensors).has_doubt
    for network in ("compute.set.1", "forward.shared.head.1", "backward.shared.head.1"):
        for part in ("weight", "bias"):
            row = tensors[f"{network}.{part}"]
            tensors[f"{network}.{part}"] = np.concatenate([row, row + 1])
    assert CostModels(SHARED_INFO, tensors).has_doubt
    tensors["forward.shared.head.1.weight"] = tensors["forward.shared.head.1.weight"][:1]
    tensors["forward.shared.head.1.bias"] = tensors["forward.shared.head.1.bias"][:1]
    with pytest.raises(InputError, match=r"forward\.shared\.head\.1\.weight must have 2 outputs"):
        CostModels(SHARED_INFO, tensors)


def test_a_penalty_reaches_the_communication_networks() -> None:
    tensors = shared_tensors()
    doubtful_tensors = dict(tensors)
    for network in ("compute.set.1", "forward.shared.head.1", "backward.shared.head.1"):
        for part in ("weight", "bias"):
            row = tensors[f"{network}.{part}"]
            doubtful_tensors[f"{network}.{part}"] = np.concatenate([row, 3 * row])
    models = CostModels(SHARED_INFO, doubtful_tensors)
    twice = {
        name: array * (2 if ".head.1." in name or ".set.1." in name else 1)
        for name, array in tensors.items()
    }
    planner = Planner(CostModels(SHARED_INFO, tensors))
    problem = planner.problem(tables(), CLUSTER, SearchOptions(allow_batch_mismatch=True))
    placement = [[k for k in range(12) if k % 4 == device] for device in range(4)]
    penalised, wanted = (
        _core.evaluate(networks, problem, [], placement)
        for networks in (
            models.networks_for(1024, 0.5),
            CostModels(SHARED_INFO, twice).networks_for(1024),
        )
    )
    for part in ("compute", "backward", "forward"):
        assert getattr(penalised, part) == pytest.approx(getattr(wanted, part), rel=1e-4)
