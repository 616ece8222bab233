"""What NeuroShardPlanner refuses, by name, and why nothing fits, with a smallest change that is true."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    PlannerErrorType,
    Stats,
    Topology,
)
from torchrec.distributed.types import CacheParams, KeyValueParams
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection

from neuroshard_fast import InputError, SearchOptions
from neuroshard_fast.torchrec import NeuroShardPlanner
from neuroshard_fast.units import format_bytes, parse_bytes
from test_torchrec_training import launch
from torchrec_cases import (
    BATCH_SIZE,
    META,
    MIB,
    OPTIMIZERS,
    Constraints,
    attach,
    bag,
    bags,
    check_loads,
    described,
    one_table,
    parts,
    planner,
    sequence,
    sequences,
    sharders_with,
    table_bytes,
    topology,
    widths,
)

ROWS = 100_000
WHOLE = table_bytes(ROWS, 64, ranks=2)
"""Of a table of so many rows and 64 columns, on one of two ranks."""


def refused(
    of: NeuroShardPlanner,
    model: nn.Module,
    *words: str,
    kind: PlannerErrorType = PlannerErrorType.INPUT_VALIDATION,
    sharders: list[Any] | None = None,
) -> str:
    """The message with which there is no plan; ``words`` are in it."""
    with pytest.raises(PlannerError) as caught:
        of.plan(model, sharders)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert caught.value.error_type is kind
    assert of.last_plan is None
    return message


# ---- options ----


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("enumerator", "constraints"),
        ("proposer", "SearchOptions"),
        ("partitioner", "engine"),
        ("performance_model", "cost_models"),
        ("callbacks", "ShardingPlan"),
        ("plan_loader", "to_sharding_plan"),
    ],
)
def test_arguments_of_torchrecs_planner_without_a_meaning_are_refused_with_what_to_use(
    option: str, word: str
) -> None:
    given: dict[str, Any] = {option: [lambda options: options]}
    with pytest.raises(InputError, match=f"^{option} is not supported.*{word}"):
        NeuroShardPlanner(topology(2), **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topology": 8}, "topology: a Topology of TorchRec is wanted, got a int"),
        ({"batch_size": -1}, "batch_size must lie between 1"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"storage_reservation": 0.15}, "storage_reservation: a StorageReservation"),
        ({"stats": [object()]}, "stats: Stats of TorchRec are wanted, got a object"),
        ({"constraints": [ParameterConstraints()]}, "constraints: a dictionary"),
        ({"constraints": {"t": {"min_partition": 4}}}, "constraints: table 't': .* got a dict"),
        ({"timeout_seconds": 0}, "timeout_seconds must be a finite number"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be a finite number"),
        ({"cost_models": "no-such-models"}, "no-such-models"),
        ({"options": {"beam_width": 3}}, "options: SearchOptions are wanted, got a dict"),
        ({"options": SearchOptions(algorithm="random")}, "algorithm 'random'"),
        ({"table_stats": [1, 2]}, "table_stats: a TableSet, its file or a TableStats"),
        ({"table_stats": "no-such-file.json"}, "no-such-file.json"),
        ({"cost_models": 3}, "cost_models: CostModels, a shipped name or a file is wanted, got 3"),
        ({"batch_size": ""}, "batch_size must be a whole number"),
        ({"keep_row_statistics": "no"}, "keep_row_statistics must be True or False, got 'no'"),
        ({"uneven_columns": 0}, "uneven_columns must be True or False, got 0"),
        ({"one_sharding_type": None}, "one_sharding_type must be True or False, got None"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        NeuroShardPlanner(**{"topology": topology(2), **options})


def test_devices_that_are_not_planned_for_are_refused() -> None:
    with pytest.raises(InputError, match="compute_device 'mtia' is not supported"):
        NeuroShardPlanner(Topology(world_size=2, compute_device="mtia"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: topology(0), "world_size must lie between 1 and 65536, got 0"),
        (lambda: topology(2, local=-2), "local_world_size must lie between 1"),
        (lambda: topology(2, [MIB, "80GB"]), "hbm_cap of rank 1 must be .* got '80GB'"),  # type: ignore[list-item]
        (lambda: topology(2, [float("nan"), MIB]), "hbm_cap of rank 0 must be .* got nan"),  # type: ignore[list-item]
        (lambda: topology(2, [float("inf"), MIB], device="cpu"), "ddr_cap of rank 0 .* got inf"),  # type: ignore[list-item]
        (lambda: topology(2, host_memory="1TB"), "ddr_cap of rank 0 must be .* got '1TB'"),  # type: ignore[arg-type]
    ],
)
def test_topologies_that_cannot_be_planned_for_are_refused_with_the_field(
    given: Callable[[], Topology], words: str
) -> None:
    with pytest.raises(InputError, match=f"^topology: {words}"):
        NeuroShardPlanner(given())


@pytest.mark.parametrize(("cap", "planned"), [(2**61, 2**60), (10**400, 2**60), (1e9 + 0.5, 10**9)])
def test_caps_beyond_what_cost_models_know_are_cut_and_those_of_half_bytes_rounded(
    cap: Any, planned: int
) -> None:
    class Nothing(FixedPercentageStorageReservation):  # type: ignore[misc]  # TorchRec has no types
        def reserve(self, topology: Topology, **given: Any) -> Topology:
            return topology

    ours = planner(topology(2, [cap, MIB]), storage_reservation=Nothing(0.0))
    found = described(ours, one_table(1000, 16))
    assert [load.cap_bytes for load in found.ranks] == [planned, MIB]


def test_a_batch_beyond_the_cost_models_is_refused_with_those_that_they_know() -> None:
    model = one_table(1000, 16)
    message = refused(
        planner(topology(2), batch_size=100), model, "batch_size: 100", "200 a step", "h100-sim"
    )
    numbers = re.search(r"take a batch_size of (\d+) to (\d+)", message)
    assert numbers is not None
    for batch_size in map(int, numbers.groups()):
        described(planner(topology(2), batch_size=batch_size), model)
        lies = batch_size - 1 if batch_size == int(numbers[1]) else batch_size + 1
        refused(planner(topology(2), batch_size=lies), model, "batch_size")
    mismatch = SearchOptions(allow_batch_mismatch=True)
    described(planner(topology(2), batch_size=100, options=mismatch), model)


def test_ranks_that_cost_models_have_no_networks_for_are_refused_and_not_advised(
    golden_models: Path,
) -> None:
    options: dict[str, Any] = {
        "cost_models": golden_models,
        "options": SearchOptions(allow_batch_mismatch=True),
    }
    refused(
        planner(topology(3), **options),
        one_table(),
        *("no communication networks for 3 devices", "2, 4, 8, 16, 128"),
    )
    cap = int(0.4 * WHOLE)  # fits three
    message = refused(
        planner(topology(2, cap), **options),
        one_table(),
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    assert changes(message)["devices"] == "2"
    described(planner(topology(3, cap)), one_table())
    check_loads(described(planner(topology(4, cap), **options), one_table()))


# ---- models ----


def managed_collisions(tables: list[Any]) -> ManagedCollisionCollection:
    """Modules that map the ids of tables of 1000 rows."""
    return ManagedCollisionCollection(
        {
            table.name: MCHManagedCollisionModule(
                zch_size=1000,
                device=torch.device("cpu"),
                eviction_policy=DistanceLFU_EvictionPolicy(),
                eviction_interval=1,
            )
            for table in tables
        },
        tables,
    )


def managed_bags() -> nn.Module:
    tables = [bag("t")]
    found: nn.Module = ManagedCollisionEmbeddingBagCollection(
        bags(*tables), managed_collisions(tables)
    )
    return found


def managed_sequences() -> nn.Module:
    tables = [sequence("t")]
    found: nn.Module = ManagedCollisionEmbeddingCollection(
        sequences(*tables), managed_collisions(tables)
    )
    return found


def quantised() -> nn.Module:
    found: nn.Module = QuantEmbeddingBagCollection(
        tables=[bag("t", rows=10, dim=8, data_type=DataType.INT8)],
        is_weighted=False,
        device=torch.device("cpu"),
    )
    return found


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (managed_bags, "ManagedCollisionEmbeddingBagCollection"),
        (managed_sequences, "ManagedCollisionEmbeddingCollection"),
        (quantised, "torchrec.quant.embedding_modules.EmbeddingBagCollection"),
    ],
)
def test_modules_that_are_not_supported_are_refused_by_name_and_path(
    make: Callable[[], nn.Module], name: str
) -> None:
    model = parts(deep=parts(inner=make()), bags=bags(bag("u")))
    refused(planner(topology(2)), model, "module deep.inner: ", f"{name} is not supported")
    refused(planner(topology(2)), make(), "(the model itself)", f"{name} is not supported")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bags(bag("t", dim=6)), ["'inner.t'", "embedding_dim is 6", "multiple of 4"]),
        (lambda: bags(bag("t", dim=2)), ["'inner.t'", "embedding_dim is 2"]),
        (
            lambda: bags(bag("t", data_type=DataType.INT8)),
            ["'inner.t'", "data type INT8", "supported are FP32 and FP16"],
        ),
        (
            lambda: sequences(sequence("t", data_type=DataType.BF16)),
            ["'inner.t'", "data type BF16"],
        ),
        (
            lambda: bags(bag("t", use_virtual_table=True, total_num_buckets=10)),
            ["'inner.t'", "use_virtual_table is not supported"],
        ),
        (
            lambda: attach(torch.optim.RMSprop, bags(bag("t"))),
            ["'inner.t'", "cannot fuse optimizer RMSprop"],
        ),
    ],
)
def test_tables_that_are_not_supported_are_refused_by_name(
    make: Callable[[], nn.Module], words: list[str]
) -> None:
    model = parts(first=bags(bag("u")), inner=make())
    refused(planner(topology(2)), model, *words)


def test_an_optimizer_whose_state_is_not_known_is_refused_by_name() -> None:
    sharders = sharders_with(OPTIMIZERS["sgd"].fused)
    for sharder in sharders:
        sharder.fused_params["optimizer"] = "shampoo"
    refused(
        planner(topology(2)),
        one_table(1000, 16),
        *("'bags.t'", "'shampoo' is not known"),
        sharders=sharders,
    )


@pytest.mark.parametrize(
    ("sharders", "got"),
    [(3, "int"), ([1], "int"), ("bags", "str"), ([None], "NoneType"), (iter([]), "list_iter")],
)
def test_what_are_no_sharders_is_refused(sharders: Any, got: str) -> None:
    words = f"sharders: ModuleSharders of TorchRec are wanted, got a {got}"
    refused(planner(topology(2)), one_table(1000, 16), words, sharders=sharders)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(PlannerError, match=r"a torch\.nn\.Module is wanted, got a dict"):
        planner(topology(2)).plan({"bags": bags(bag("t"))})  # type: ignore[arg-type]


# ---- constraints ----


class Uncopyable(KeyValueParams):  # type: ignore[misc]  # TorchRec has no types
    """Such as hold a lock or an open file."""

    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("cannot pickle this")


NAN = float("nan")


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"sharding_types": ["diagonal"]}, ["sharding_types: 'diagonal' is no sharding type"]),
        ({"sharding_types": ["grid_shard"]}, ["sharding_types: grid_shard is not supported"]),
        (
            {"sharding_types": ["table_column_wise"]},
            ["sharding_types: table_column_wise is not supported", "on one host"],
        ),
        ({"compute_kernels": ["quick"]}, ["compute_kernels: 'quick' is no compute kernel"]),
        ({"compute_kernels": ["key_value"]}, ["compute_kernels allows key_value", "supported are"]),
        ({"compute_kernels": ["dense"]}, ["compute_kernels allows dense", "table_wise"]),
        (
            {"compute_kernels": ["fused"], "sharding_types": ["data_parallel"]},
            ["compute_kernels allows fused; for data_parallel", "offers dense"],
        ),
        ({"min_partition": 0}, ["min_partition must lie between 1"]),
        ({"min_partition": "wide"}, ["min_partition must be a whole number"]),
        ({"pooling_factors": [1.0, 2.0, 3.0]}, ["pooling_factors has 3 entries for 2 features"]),
        ({"pooling_factors": [5.0]}, ["pooling_factors has 1 entries for 2 features"]),
        ({"pooling_factors": [1.0, -2.0]}, ["pooling_factors must be a finite number", "-2"]),
        ({"pooling_factors": [1.0, float("nan")]}, ["pooling_factors must be a finite number"]),
        (
            {"pooling_factors": [1.0, 2.0], "num_poolings": [1.0]},
            ["num_poolings has 1 entries for 2 pooling factors"],
        ),
        (
            {"pooling_factors": [1.0, 2.0], "batch_sizes": [8, 8, 8]},
            ["batch_sizes has 3 entries for 2 pooling factors"],
        ),
        (
            {"pooling_factors": [1.0, 2.0], "batch_sizes": [8, -8]},
            ["batch_sizes must be a finite number"],
        ),
        ({"feature_names": ["f"]}, ["feature_names has f", "looked up by f, g"]),
        ({"feature_names": ["f", "h"]}, ["feature_names has f, h", "looked up by f, g"]),
        ({"use_virtual_table": True}, ["use_virtual_table is not supported"]),
        ({"sharding_types": 3}, ["sharding_types must be a list of strings, got 3"]),
        ({"sharding_types": "row_wise"}, ["sharding_types must be a list of strings"]),
        ({"sharding_types": [["row_wise"]]}, ["sharding_types must be a list of strings"]),
        ({"compute_kernels": 3}, ["compute_kernels must be a list of strings, got 3"]),
        ({"compute_kernels": "fused_uvm"}, ["compute_kernels must be a list", "'fused_uvm'"]),
        ({"compute_kernels": ["fused", "fusd_uvm"]}, ["'fusd_uvm' is no compute kernel"]),
        ({"pooling_factors": 3}, ["pooling_factors must be a list of numbers, got 3"]),
        ({"pooling_factors": None}, ["pooling_factors must be a list of numbers, got None"]),
        ({"pooling_factors": [1.0, "2"]}, ["pooling_factors must be a number, got '2'"]),
        ({"pooling_factors": [1.0, 2.0], "num_poolings": 1}, ["num_poolings must be a list"]),
        (
            {"pooling_factors": [1.0, 2.0], "num_poolings": [1.0, None]},
            ["num_poolings must be a number, got None"],
        ),
        ({"pooling_factors": [1.0, 2.0], "batch_sizes": 0}, ["batch_sizes must be a list"]),
        ({"feature_names": 3}, ["feature_names must be a list of strings, got 3"]),
        ({"feature_names": "fg"}, ["feature_names must be a list of strings, got 'fg'"]),
        ({"feature_names": ["f", 7]}, ["feature_names must be a list of strings"]),
        ({"is_weighted": "no"}, ["is_weighted must be True or False, got 'no'"]),
        ({"enforce_hbm": 1}, ["enforce_hbm must be True or False, got 1"]),
        ({"stochastic_rounding": "x"}, ["stochastic_rounding must be True or False, got 'x'"]),
        ({"bounds_check_mode": "x"}, ["bounds_check_mode must be a BoundsCheckMode, got 'x'"]),
        ({"output_dtype": "FP16"}, ["output_dtype must be a DataType, got 'FP16'"]),
        ({"key_value_params": {}}, ["key_value_params must be a KeyValueParams, got {}"]),
        (
            {"key_value_params": Uncopyable()},
            ["key_value_params cannot be copied: TypeError: cannot pickle this"],
        ),
        ({"device_group": "gpu"}, ["device_group must be one of cpu, cuda, got 'gpu'"]),
        ({"device_group": 3}, ["device_group must be one of cpu, cuda, got 3"]),
        ({"cache_params": "x"}, ["cache_params must be a CacheParams, got 'x'"]),
        *(
            (
                {"cache_params": CacheParams(**{field: value})},
                [f"cache_params.{field} must be", got],
            )
            for field, value, got in [
                *[("load_factor", value, f"{value}") for value in (-0.1, 0, NAN, "half", 1.5)],
                *[("reserved_memory", value, f"{value}") for value in (-1.0, NAN, "1GB")],
                ("prefetch_pipeline", 1, "True or False, got 1"),
                ("algorithm", "LRU", "a CacheAlgorithm, got 'LRU'"),
                ("precision", "FP16", "a DataType, got 'FP16'"),
            ]
        ),
    ],
)
def test_a_constraint_that_cannot_be_met_is_named_with_its_table(
    constraint: dict[str, Any], words: list[str]
) -> None:
    model = parts(bags=bags(bag("u"), bag("t", "f", "g")))
    constraints = {"t": ParameterConstraints(**constraint), "u": ParameterConstraints()}
    refused(
        planner(topology(4, local=2), constraints=constraints),
        model,
        *("table 'bags.t': constraint ", *words),
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )


@pytest.mark.parametrize("method", ["predict", "sharding_options"])
def test_constraints_are_checked_wherever_they_are_used(method: str) -> None:
    model = one_table(1000, 16)
    plan = planner(topology(2)).plan(model)
    ours = planner(topology(2), constraints={"t": ParameterConstraints(pooling_factors=None)})
    with pytest.raises(PlannerError, match=r"table 'bags\.t': constraint pooling_factors must be"):
        getattr(ours, method)(model, plan)


def test_a_sharding_type_that_the_sharder_does_not_offer_is_refused_with_what_it_offers() -> None:
    constraints = {"t": ParameterConstraints(sharding_types=["row_wise"])}
    refused(
        planner(topology(2, device="cpu"), constraints=constraints),
        one_table(1000, 16),
        "table 'bags.t': constraint sharding_types wants row_wise",
        "EmbeddingBagCollectionSharder shards by data_parallel, table_wise",
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )


def test_a_mean_pooled_table_cut_by_rows_beside_one_that_is_not_is_refused_by_name() -> None:
    model = parts(bags=bags(bag("t", pooling=PoolingType.MEAN), bag("u")))
    constraints = {"t": ParameterConstraints(sharding_types=["row_wise"])}
    refused(
        planner(topology(2), constraints=constraints),
        model,
        *("table 'bags.t': mean-pooled and cut by rows", "table 'bags.u', which is not"),
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )


# ---- groups ----


def test_planning_for_a_group_needs_one() -> None:
    ours = planner(topology(2))
    with pytest.raises(PlannerError, match="call init_process_group") as caught:
        ours.collective_plan(one_table(1000, 16))
    assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION


def test_a_group_of_other_ranks_than_the_topology_is_refused_as_2d_parallel() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        ours = planner(topology(2))
        with pytest.raises(
            PlannerError, match=r"has 1 ranks, the topology 2.*DMPCollection"
        ) as caught:
            ours.collective_plan(one_table(1000, 16), None, dist.group.WORLD)
        assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION
        assert ours.last_plan is None
    finally:
        dist.destroy_process_group()


def test_what_fails_otherwise_is_a_planner_error_for_all_ranks_too() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:

        class Odd(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # TorchRec has no types
            def sharding_types(self, compute_device_type: str) -> list[str]:
                raise ZeroDivisionError("of one's own\nmaking")

        described(planner(topology(1)), one_table(1000, 16))
        with pytest.raises(
            PlannerError,
            match=r"^planning failed on rank 0: ZeroDivisionError: of one's own making$",
        ) as caught:
            planner(topology(1)).collective_plan(one_table(1000, 16), [Odd()])
        assert caught.value.error_type is PlannerErrorType.OTHER
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("group", [3, "WORLD"])
def test_what_is_no_process_group_is_refused(group: Any) -> None:
    with pytest.raises(PlannerError, match=r"^pg: a ProcessGroup .* is wanted, got a ") as caught:
        planner(topology(2)).collective_plan(one_table(1000, 16), None, group)
    assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What comes of planning on three ranks of which one is given something else."""
    found = launch(3, tmp_path_factory.mktemp("refusals"), "--refusals")
    return [rank["refusals"] for rank in found]


ELSE = "collective_plan: rank 1 was given something else than rank 0: "


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("rows", f"{ELSE}table 'bags.t': rows is 2000, on rank 0 1000"),
        ("tables", f"{ELSE}table 'bags.u' is planned, on rank 0 not there"),
        ("memory", f"{ELSE}topology: ddr_cap of device 0 is {2**29}, on rank 0 {2**30}"),
        ("ranks", f"{ELSE}topology: world_size is 4, on rank 0 3"),
        ("batch_size", f"{ELSE}batch_size is 256, on rank 0 128"),
        (
            "constraints",
            f"{ELSE}table 'bags.t': constraint pooling_factors is [3.0], on rank 0 not there",
        ),
        ("excluded", f"{ELSE}table 'bags.t' is of another device group, on rank 0 planned"),
        (
            "not supported",
            "rank 1: table 'bags.t': embedding_dim is 6; FBGEMM's fused operators want a multiple of 4",
        ),
        (
            "wrong constraints",
            "rank 1: table 'bags.t': constraint pooling_factors must be a finite number between 0 and "
            "1e+06, got nan",
        ),
    ],
)
def test_where_a_rank_is_given_something_else_all_raise_what_it_is(
    together: list[dict[str, dict[str, Any]]], case: str, message: str
) -> None:
    for rank in together:
        assert rank[case]["type"] == "torchrec.distributed.planner.types.PlannerError"
        assert rank[case]["message"] == message
        assert rank[case]["seconds"] < 5.0


def test_an_interrupt_on_rank_0_ends_the_others_too(
    together: list[dict[str, dict[str, Any]]],
) -> None:
    first, *others = (rank["interrupt"] for rank in together)
    assert first["type"] == "builtins.KeyboardInterrupt"
    for other in others:
        assert other["type"] == "torchrec.distributed.planner.types.PlannerError"
        assert other["message"].startswith("planning failed on rank 0: KeyboardInterrupt")
        assert other["seconds"] < 5.0
    assert {rank["alike"]["type"] for rank in together} == {""}


# ---- what users bring ----


class Reservation(FixedPercentageStorageReservation):  # type: ignore[misc]  # TorchRec has no types
    """One of a user, that does as it is told."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        super().__init__(percentage=0.0)
        self._answer = answer

    def reserve(self, **given: Any) -> Any:
        return self._answer()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: None, "must return a Topology, got a NoneType"),
        (lambda: 3, "must return a Topology, got a int"),
        (lambda: topology(3), "must return a Topology of world_size 2, got one of 3"),
        (lambda: topology(2, device="cpu"), "of compute_device cuda, got one of cpu"),
        (lambda: topology(2, [MIB, NAN]), "hbm_cap of rank 1 must be .* number of bytes, got nan"),  # type: ignore[list-item]
    ],
)
def test_what_a_reservation_may_not_return_is_refused_with_its_name(
    answer: Callable[[], Any], words: str
) -> None:
    ours = planner(topology(2), storage_reservation=Reservation(answer))
    with pytest.raises(
        PlannerError, match=rf"^storage_reservation: Reservation.reserve\(\).*{words}"
    ):
        ours.plan(one_table(1000, 16))
    assert ours.last_plan is None


def test_what_a_reservation_raises_is_named_and_kept() -> None:
    error = ZeroDivisionError("of one's own\nmaking")

    def fail() -> None:
        raise error

    ours = planner(topology(2), storage_reservation=Reservation(fail))
    with pytest.raises(PlannerError) as caught:
        ours.plan(one_table(1000, 16))
    assert str(caught.value) == (
        "storage_reservation: Reservation.reserve() raised ZeroDivisionError: of one's own making"
    )
    assert caught.value.__cause__ is error


def test_statistics_that_fail_cost_no_plan(caplog: pytest.LogCaptureFixture) -> None:
    logged = []

    class Broken(Stats):  # type: ignore[misc]  # TorchRec has no types
        def log(self, **given: Any) -> None:
            raise ZeroDivisionError("while counting")

    class Sound(Stats):  # type: ignore[misc]  # TorchRec has no types
        def log(self, **given: Any) -> None:
            logged.append(given["sharding_plan"])

    ours = planner(topology(2), stats=[Broken(), Sound()])
    with caplog.at_level(logging.WARNING, logger="neuroshard_fast"):
        plan = ours.plan(one_table(1000, 16))
    assert logged == [plan]
    assert ours.last_plan is not None
    assert "stats: Broken was not logged" in caplog.text
    assert "ZeroDivisionError: while counting" in caplog.text


# ---- why nothing fits ----


def changes(message: str) -> dict[str, str]:
    """The smallest changes that a message names: "devices", "memory" and "lift"."""
    line = message.splitlines()[-1]
    assert line.startswith("  the smallest change that would fit: ")
    patterns = {
        "devices": r"(\d+) more devices? like rank 0",
        "memory": r"([\d.]+ [KMGT]?i?B) more a rank",
        "lift": r"lifting (.*)$",
    }
    found = {name: re.search(pattern, line) for name, pattern in patterns.items()}
    return {name: match[1] for name, match in found.items() if match is not None}


def check_devices(
    message: str, model: nn.Module, cap: int, sharders: list[Any] | None = None, **options: Any
) -> None:
    """With so many more devices the model fits, with one fewer it does not."""
    more = int(changes(message)["devices"])
    check_loads(described(planner(topology(2 + more, cap), **options), model, sharders))
    if more > 1:
        with pytest.raises(PlannerError, match="no plan fits"):
            planner(topology(1 + more, cap), **options).plan(model, sharders)


def check_memory(
    message: str, model: nn.Module, cap: int, sharders: list[Any] | None = None, **options: Any
) -> None:
    """With so much more memory a rank the model fits, with a little less it does not."""
    more = parse_bytes(changes(message)["memory"])
    check_loads(described(planner(topology(2, cap + more), **options), model, sharders))
    less = int(0.95 * more) - 2 * MIB
    assert less > 0
    with pytest.raises(PlannerError, match="no plan fits"):
        planner(topology(2, cap + less), **options).plan(model, sharders)


def three_tables() -> nn.Module:
    """Of 25, 19 and 13 MiB."""
    return parts(
        bags=bags(
            bag("small", rows=ROWS // 2, dim=64), bag("big", rows=ROWS, dim=64), bag("tiny", dim=4)
        ),
        sequences=sequences(sequence("middle", rows=3 * ROWS // 4, dim=64)),
    )


def test_where_memory_is_too_small_the_error_says_what_is_asked_and_what_there_is() -> None:
    cap, model = 20 * MIB, three_tables()
    asked = sum(table_bytes(rows, 64, 2) for rows in (ROWS // 2, ROWS, 3 * ROWS // 4))
    asked += table_bytes(1000, 4, 2)
    message = refused(planner(topology(2, cap)), model, kind=PlannerErrorType.INSUFFICIENT_STORAGE)
    headline, reservation, largest, *more = message.splitlines()
    assert headline == (
        f"no plan fits 2 ranks (cuda): the tables ask for {format_bytes(asked)} of HBM, "
        f"{format_bytes(-(-asked // 2))} a rank if spread evenly ({format_bytes(asked)} by TorchRec's "
        f"estimate, {format_bytes(asked)} in training); available are 20.00 MiB a rank, 40.00 MiB in all"
    )
    assert "FixedPercentageStorageReservation keeps 0 B of the 20.00 MiB of rank 0" in reservation
    names = re.findall(r"'([\w.]+)' ([\d.]+ MiB)", largest)
    assert names == [
        ("bags.big", format_bytes(table_bytes(ROWS, 64, 2))),
        ("sequences.middle", format_bytes(table_bytes(3 * ROWS // 4, 64, 2))),
        ("bags.small", format_bytes(table_bytes(ROWS // 2, 64, 2))),
    ]
    assert not any("in the way" in line for line in more)
    assert changes(message).keys() == {"devices", "memory"}
    check_devices(message, model, cap)
    check_memory(message, model, cap)


def test_where_an_optimizer_makes_it_too_large_both_figures_are_named() -> None:
    cap, model = WHOLE, one_table()
    adam = sharders_with(OPTIMIZERS["adam"].fused)
    training = table_bytes(ROWS, 64, 2, OPTIMIZERS["adam"].state(ROWS, 64))
    message = refused(
        planner(topology(2, cap)),
        model,
        f"{format_bytes(WHOLE)} by TorchRec's estimate, {format_bytes(training)} in training",
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
        sharders=adam,
    )
    check_devices(message, model, cap, adam)
    check_memory(message, model, cap, adam)


@pytest.mark.parametrize("seed", range(6))
def test_the_smallest_change_is_true_of_models_of_any_sizes(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(20_000, 300_000, (5,), generator=generator).tolist()
    model = parts(bags=bags(*(bag(f"t{k}", rows=n, dim=32) for k, n in enumerate(rows))))
    cap = int(0.35 * sum(table_bytes(n, 32, 2) for n in rows))
    message = refused(planner(topology(2, cap)), model, kind=PlannerErrorType.INSUFFICIENT_STORAGE)
    check_devices(message, model, cap)
    check_memory(message, model, cap)


def test_unequal_ranks_are_given_as_a_range() -> None:
    refused(
        planner(topology(2, [10 * MIB, 20 * MIB])),
        three_tables(),
        "available are 10.00 MiB to 20.00 MiB a rank, 30.00 MiB in all",
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )


def test_on_cpus_the_memory_is_that_of_processes() -> None:
    message = refused(
        planner(topology(2, 10 * MIB, device="cpu")),
        one_table(),
        *("no plan fits 2 ranks (cpu)", "of DDR"),
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    more = int(changes(message)["devices"])
    described(planner(topology(2 + more, 10 * MIB, device="cpu")), one_table())


def test_no_more_devices_are_advised_than_the_batch_of_the_cost_models_allows() -> None:
    message = refused(
        planner(topology(2, 3 * MIB, device="cpu")),
        one_table(),
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    assert changes(message).keys() == {"memory"}


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_the_reservation_is_named_with_its_parts_and_the_change_is_true_despite_it() -> None:
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64)), dense=nn.Linear(512, 512, device=META))
    cap = 20 * MIB

    def ours(memory: int) -> NeuroShardPlanner:
        reservation = HeuristicalStorageReservation(percentage=0.15)
        return planner(topology(2, memory), storage_reservation=reservation)

    dense, batches = 6 * 4 * (512 * 512 + 512), 20 * 8 * BATCH_SIZE
    kept = cap - int(0.85 * cap) + dense + batches
    message = refused(
        ours(cap),
        model,
        f"reservation: HeuristicalStorageReservation keeps {format_bytes(kept)} of the 20.00 MiB of "
        f"rank 0 (15%, dense parameters {format_bytes(dense)}, batches {format_bytes(batches)})",
        f"available are {format_bytes(cap - kept)} a rank",
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    check_loads(described(ours(cap + parse_bytes(changes(message)["memory"])), model))


@pytest.mark.parametrize(
    ("reservation", "kept", "how"),
    [
        (FixedPercentageStorageReservation(0.1), 2 * MIB, " (10%)"),
        (FixedAbsoluteStorageReservation(5 * MIB), 5 * MIB, ""),
    ],
)
def test_a_reservation_is_not_said_to_keep_what_it_does_not(
    reservation: FixedPercentageStorageReservation, kept: int, how: str
) -> None:
    message = refused(
        planner(topology(2, 20 * MIB), storage_reservation=reservation),
        three_tables(),
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    assert message.splitlines()[1] == (
        f"  reservation: {type(reservation).__name__} keeps {format_bytes(kept)} of the 20.00 MiB of "
        f"rank 0{how}"
    )


# ---- constraints in the way ----


def in_the_way(
    model: nn.Module, cap: int, wish: str, ranks: int = 2, **options: Any
) -> dict[str, str]:
    """The changes where ``wish`` is named as what is in the way."""
    message = refused(
        planner(topology(ranks, cap), **options),
        model,
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )
    assert f"\n  in the way: {wish}\n" in message
    return changes(message)


def test_a_sharding_type_in_the_way_is_named_and_lifting_it_does() -> None:
    cap, model = int(0.75 * WHOLE), one_table()
    constraints = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    wish = "constraint sharding_types (table_wise) of table 'bags.t'"
    found = in_the_way(model, cap, wish, constraints=constraints)
    assert found["lift"] == wish
    assert "devices" not in found  # no number of them holds the table
    check_loads(described(planner(topology(2, cap)), model))
    more = parse_bytes(found["memory"])
    described(planner(topology(2, cap + more), constraints=constraints), model)


def test_the_narrowest_shard_that_fits_on_no_rank_is_named() -> None:
    refused(
        planner(
            topology(2, int(0.75 * WHOLE)),
            constraints={"t": ParameterConstraints(sharding_types=["table_wise"])},
        ),
        one_table(),
        f"table 'bags.t': its narrowest shard, of 64 columns, takes {format_bytes(WHOLE)}, more than any "
        "rank has: constraint sharding_types (table_wise)",
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )


def test_a_least_width_in_the_way_is_named_and_lifting_it_does() -> None:
    cap, model = int(0.3 * table_bytes(ROWS, 64, 4)), one_table()
    constraints = {"t": ParameterConstraints(min_partition=30)}
    wish = "constraint min_partition (32 columns) of table 'bags.t'"
    found = in_the_way(model, cap, wish, ranks=4, constraints=constraints)
    assert found["lift"] == wish
    assert widths(described(planner(topology(4, cap)), model), "bags.t") == [16] * 4


def test_kept_row_statistics_in_the_way_are_named_and_lifting_them_does() -> None:
    model = attach(RowWiseAdagrad, one_table())
    cap = int(0.75 * table_bytes(ROWS, 64, 2, 4 * ROWS))
    wish = "keep_row_statistics of table 'bags.t'"
    found = in_the_way(model, cap, wish, keep_row_statistics=True)
    assert found["lift"] == wish
    check_loads(described(planner(topology(2, cap)), model))


def test_of_several_constraints_the_one_that_is_in_the_way_is_named() -> None:
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64), bag("u", dim=64)))
    constraints = {
        "t": ParameterConstraints(sharding_types=["table_wise"]),
        "u": ParameterConstraints(sharding_types=["table_wise"]),
    }
    cap = int(0.75 * WHOLE)
    wish = "constraint sharding_types (table_wise) of table 'bags.t'"
    assert in_the_way(model, cap, wish, constraints=constraints)["lift"] == wish
    del constraints["t"]
    check_loads(described(planner(topology(2, cap), constraints=constraints), model))


def test_where_only_lifting_all_constraints_does_that_is_said() -> None:
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64), bag("u", rows=ROWS, dim=64)))
    one = ParameterConstraints(sharding_types=["table_wise"])
    cap = int(0.55 * table_bytes(ROWS, 64, 4))
    wish = "constraint sharding_types (table_wise) of table"
    found = in_the_way(
        model,
        cap,
        f"{wish} 'bags.t', {wish} 'bags.u'",
        ranks=4,
        constraints={"t": one, "u": one},
    )
    assert found["lift"] == "such constraints of all 2 tables"
    for left in ({"t": one}, {"u": one}):
        with pytest.raises(PlannerError, match="no plan fits"):
            planner(topology(4, cap), constraints=left).plan(model)
    check_loads(described(planner(topology(4, cap)), model))


def test_where_lifting_constraints_does_not_help_it_is_for_want_of_memory() -> None:
    constraints = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    cap, model = int(0.4 * WHOLE), one_table()
    message = refused(
        planner(topology(2, cap), constraints=constraints),
        model,
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    assert "in the way" not in message
    assert changes(message).keys() == {"memory"}
    check_memory(message, model, cap, constraints=constraints)


@pytest.mark.parametrize("sharding_type", ["row_wise", "data_parallel"])
def test_tables_that_are_not_searched_may_be_too_large_too(sharding_type: str) -> None:
    constraints: Constraints = {"t": ParameterConstraints(sharding_types=[sharding_type])}
    cap, model = int(0.4 * WHOLE), one_table()
    message = refused(
        planner(topology(2, cap), constraints=constraints),
        model,
        "largest tables: 'bags.t'",
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    found = changes(message)
    assert ("devices" in found) == (sharding_type == "row_wise")
    if "devices" in found:
        check_devices(message, model, cap, constraints=constraints)
    check_memory(message, model, cap, constraints=constraints)


def test_whole_hosts_are_advised_where_a_table_is_cut_by_rows_within_one() -> None:
    by_host = ParameterConstraints(sharding_types=["table_row_wise"])
    model = parts(bags=bags(bag("t", rows=ROWS, dim=64), bag("u", rows=ROWS, dim=64)))
    constraints = {"t": by_host, "u": by_host}
    cap = int(0.75 * table_bytes(ROWS, 64, 2))
    message = refused(
        planner(topology(2, cap, local=2), constraints=constraints),
        model,
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    more = int(changes(message)["devices"])
    assert more == 2
    check_loads(described(planner(topology(4, cap, local=2), constraints=constraints), model))


def test_host_memory_that_kernels_need_is_named_and_raising_it_does() -> None:
    model, cap = one_table(), 10 * MIB

    def ours(host_memory: int) -> NeuroShardPlanner:
        devices = topology(2, host_memory=host_memory)
        whole = ParameterConstraints(compute_kernels=["fused_uvm"], sharding_types=["table_wise"])
        return planner(devices, constraints={"t": whole})

    message = refused(
        ours(cap),
        model,
        *(f"take {format_bytes(4 * ROWS * 64)}", "compute_kernels", "ddr_cap leaves 10.00 MiB"),
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )
    raised = re.search(r"raise ddr_cap by ([\d.]+ MiB)", message)
    assert raised is not None
    described(ours(cap + parse_bytes(raised[1])), model)


def test_an_error_leaves_no_last_plan_and_the_planner_goes_on() -> None:
    ours = planner(topology(2, int(0.75 * WHOLE)))
    described(ours, one_table(1000, 16))
    with pytest.raises(PlannerError, match="no plan fits"):
        ours.plan(three_tables())
    assert ours.last_plan is None
    check_loads(described(ours, one_table()))


def test_where_the_reservation_leaves_nothing_it_is_named_with_the_largest_tables() -> None:
    with pytest.warns(FutureWarning, match="HeuristicalStorageReservation"):
        reservation = HeuristicalStorageReservation(percentage=0.15)
    model = parts(bags=bags(bag("t")), dense=nn.Linear(2000, 2000, device=META))
    ours = planner(topology(2, 20 * MIB), storage_reservation=reservation)
    refused(
        ours,
        model,
        "reservation: HeuristicalStorageReservation leaves no memory for tables",
        "negative available hbm",
        "before the reservation are 20.00 MiB a rank",
        "largest tables: 'bags.t'",
        kind=PlannerErrorType.INSUFFICIENT_STORAGE,
    )


# ---- what TorchRec does not train on CPUs ----


def test_rows_that_leave_a_rank_without_any_are_refused_on_cpus() -> None:
    class Rows(EmbeddingBagCollectionSharder):  # type: ignore[misc]
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return [*super().sharding_types(compute_device_type), "row_wise"]

    by_row = {"t": ParameterConstraints(sharding_types=["row_wise"])}
    for rows, ranks in ((9, 4), (1, 2)):
        refused(
            planner(topology(ranks, device="cpu"), constraints=by_row),
            one_table(rows, 16),
            f"table 'bags.t': row_wise, its {rows} rows leave rank",
            kind=PlannerErrorType.STRICT_CONSTRAINTS,
            sharders=[Rows()],
        )
    described(planner(topology(4, device="cpu"), constraints=by_row), one_table(10, 16), [Rows()])


def test_a_replicated_sequence_is_refused_on_cpus() -> None:
    replicated = {"s": ParameterConstraints(sharding_types=["data_parallel"])}
    model = parts(one=sequences(sequence("s")))
    refused(
        planner(topology(2, device="cpu"), constraints=replicated),
        model,
        "table 'one.s': data_parallel, and TorchRec 1.8 does not train replicated tables",
        kind=PlannerErrorType.STRICT_CONSTRAINTS,
    )
    described(planner(topology(2), constraints=replicated), model)


def test_estimates_of_constraints_that_do_not_fit_are_refused() -> None:
    model = one_table(1000, 16)
    plan = planner(topology(2)).plan(model)
    given = {"t": ParameterConstraints(num_poolings=[1.0, 2.0])}
    with pytest.raises(PlannerError, match=r"'bags\.t': constraint num_poolings"):
        planner(topology(2), constraints=given).sharding_options(model, plan)
