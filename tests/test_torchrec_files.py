"""Plans of TorchRec models as files: read back, compared, and checked before they are used again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    PlannerErrorType,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    CacheStatistics,
    KeyValueParams,
    MultiPassPrefetchConfig,
    ShardingPlan,
)
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from neuroshard_fast import InputError
from neuroshard_fast.torchrec import TorchRecPlan, check_plan
from torchrec_cases import (
    MIB,
    Constraints,
    bag,
    bags,
    check_sound,
    described,
    one_table,
    parts,
    planner,
    sequence,
    sequences,
    shardings,
    table_bytes,
    topology,
    widths,
)

ROWS = 100_000
CAPS = [int(share * table_bytes(ROWS, 64, 4)) for share in (0.95, 0.45, 0.2, 0.2)]


def model(**changes: Any) -> nn.Module:
    """Tables of every kind; ``changes`` are to the configuration of ``bags.cut``."""
    cut: dict[str, Any] = {"rows": ROWS, "dim": 64, **changes}
    return parts(
        bags=bags(bag("cut", **cut), bag("rows", rows=50), bag("copied", rows=10, dim=8)),
        weighted=bags(bag("small", data_type=DataType.FP16), weighted=True),
        deep=parts(sequences=sequences(sequence("s"), sequence("left_out"))),
    )


def constraints() -> Constraints:
    """Some tables sharded otherwise, one with all that a file can hold, one of another device."""
    return {
        "rows": ParameterConstraints(sharding_types=["row_wise"]),
        "copied": ParameterConstraints(sharding_types=["data_parallel"]),
        "small": ParameterConstraints(
            cache_params=CacheParams(
                algorithm=CacheAlgorithm.LFU,
                load_factor=0.1,
                reserved_memory=2.0,
                precision=DataType.FP16,
                prefetch_pipeline=True,
            ),
            enforce_hbm=False,
            stochastic_rounding=True,
            bounds_check_mode=BoundsCheckMode.FATAL,
            output_dtype=DataType.FP16,
        ),
        "s": ParameterConstraints(cache_params=CacheParams()),
        "left_out": ParameterConstraints(device_group="cpu"),
    }


EXCLUDING = {"left_out": ParameterConstraints(device_group="cpu")}
"""What of the constraints says that a table is none of the plan's."""


def devices() -> Topology:
    """Four GPUs on which ``bags.cut`` fits in unequal shards."""
    return topology(4, CAPS)


@pytest.fixture(scope="module")
def made() -> tuple[ShardingPlan, TorchRecPlan]:
    """A plan in both forms."""
    ours = planner(devices(), constraints=constraints())
    plan = ours.plan(model())
    assert ours.last_plan is not None
    assert len(set(widths(ours.last_plan, "bags.cut"))) > 1
    return plan, ours.last_plan


@pytest.fixture
def contents(made: tuple[ShardingPlan, TorchRecPlan], tmp_path: Path) -> dict[str, Any]:
    """The plan as its file has it."""
    made[1].save(tmp_path / "plan.json")
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return found


def of(contents: dict[str, Any], name: str) -> dict[str, Any]:
    """The table of that name."""
    (found,) = [table for table in contents["tables"] if table["name"] == name]
    assert isinstance(found, dict)
    return found


def plan_of(contents: dict[str, Any]) -> TorchRecPlan:
    """The plan of a file, without what loading checks."""
    return msgspec.convert(contents, TorchRecPlan)


# ---- saved and loaded ----


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml"])
def test_a_plan_read_back_is_the_same_and_the_same_for_torchrec(
    name: str, made: tuple[ShardingPlan, TorchRecPlan], tmp_path: Path
) -> None:
    plan, described_plan = made
    described_plan.save(tmp_path / name)
    loaded = TorchRecPlan.load(tmp_path / name)
    assert loaded == described_plan
    assert described_plan.diff(loaded) == []
    again = loaded.to_sharding_plan(model(), topology=devices(), constraints=EXCLUDING)
    assert again == plan
    assert [path for path, _, _ in shardings(again)] == [path for path, _, _ in shardings(plan)]


def test_what_a_file_holds_of_constraints_arrives_without_them(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    again = made[1].to_sharding_plan(model(), topology=devices(), constraints=EXCLUDING)
    found = {name: sharding for _, name, sharding in shardings(again)}
    wanted = constraints()
    for field in (
        *("cache_params", "enforce_hbm", "stochastic_rounding"),
        *("bounds_check_mode", "output_dtype"),
    ):
        assert getattr(found["small"], field) == getattr(wanted["small"], field) is not None
        assert getattr(found["cut"], field) is None
    assert found["s"].cache_params == CacheParams()


def test_each_sharding_plan_of_a_file_is_of_new_objects(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    plan, described_plan = made
    changed = described_plan.to_sharding_plan(model(), topology=devices(), constraints=EXCLUDING)
    for _, name, sharding in shardings(changed):
        if name == "small":
            sharding.cache_params.load_factor = 0.7
        if name == "cut":
            sharding.sharding_spec.shards.clear()
    assert (
        described_plan.to_sharding_plan(model(), topology=devices(), constraints=EXCLUDING)
        == plan
        != changed
    )


class Misses(CacheStatistics):  # type: ignore[misc]  # TorchRec has no types
    """Of a table that is never in the cache."""

    expected_lookups = 10.0
    cacheability = 1.0

    def expected_miss_rate(self, clf: float) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        (
            {"cache_params": CacheParams(load_factor=0.2, stats=Misses())},
            ("cache_params.stats",),
        ),
        (
            {
                "cache_params": CacheParams(
                    multipass_prefetch_config=MultiPassPrefetchConfig(num_passes=3)
                ),
                "key_value_params": KeyValueParams(l2_cache_size=3),
            },
            ("cache_params.multipass_prefetch_config", "key_value_params"),
        ),
    ],
)
def test_what_no_file_can_hold_is_asked_for_again(
    constraint: dict[str, Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    given = {"t": ParameterConstraints(**constraint)}
    planned = described(planner(topology(2), constraints=given), one_table(1000, 16))
    assert planned.tables[0].not_saved == names
    planned.save(tmp_path / "plan.json")
    loaded = TorchRecPlan.load(tmp_path / "plan.json")
    for missing in (None, {}, {"t": ParameterConstraints()}):
        with pytest.raises(
            PlannerError, match=f"table 'bags.t': {', '.join(names)} cannot be in a file: give"
        ):
            loaded.to_sharding_plan(one_table(1000, 16), topology=topology(2), constraints=missing)
    again = loaded.to_sharding_plan(one_table(1000, 16), topology=topology(2), constraints=given)
    ((_, _, sharding),) = shardings(again)
    expected = given["t"].cache_params
    if expected.stats is None:
        assert sharding.cache_params == expected
    else:
        assert isinstance(sharding.cache_params.stats, Misses)
        assert sharding.cache_params.load_factor == expected.load_factor
    assert sharding.cache_params is not expected
    assert sharding.key_value_params == given["t"].key_value_params


# ---- what is no plan ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ('{"schema": "neuroshard/torchrec-plan/1", "world_', "truncated"),
        ("null", "object"),
        ("[]", "object"),
        ("{}", "cost_models"),
        ('{"schema": "neuroshard/plan/1"}', "schema 'neuroshard/plan/1'"),
        ('{"schema": "neuroshard/torchrec-plan/2"}', "schema 'neuroshard/torchrec-plan/2'"),
        ("[" * 100_000, "plan.json"),
        ("\x00\xff", "plan.json"),
    ],
)
def test_what_is_no_plan_is_refused_with_one_sentence(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    check_refused(path, words)


def check_refused(path: Path, *words: str) -> None:
    """One line that begins with the file."""
    with pytest.raises(InputError) as caught:
        TorchRecPlan.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_plan_cut_short_anywhere_is_refused(
    made: tuple[ShardingPlan, TorchRecPlan], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    made[1].save(path)
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        check_refused(path)
    path.write_bytes(whole)
    assert TorchRecPlan.load(path) == made[1]


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Puts the last of ``path`` where the others lead; tables go by their name."""
    *where, last, value = path

    def change(contents: dict[str, Any]) -> None:
        found: Any = contents
        for step in where:
            is_table = isinstance(found, list) and isinstance(step, str)
            found = of(contents, step) if is_table else found[step]
        found[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("compute_device", "abacus"), ["compute_device", "abacus"]),
        (put("memory_kind", "SSD"), ["memory_kind", "SSD"]),
        (put("world_size", 0), ["world_size", "0"]),
        (put("world_size", 10**30), ["world_size"]),
        (put("world_size", 2.5), ["world_size", "int"]),
        (put("world_size", 5), ["ranks must be 0 to 4"]),
        (put("local_world_size", -1), ["local_world_size", "-1"]),
        (put("batch_size", 0), ["batch_size"]),
        (put("cost_ms", 1e300), ["cost_ms"]),
        (put("planning_ms", -1.0), ["planning_ms"]),
        (put("ranks", 1, "rank", 3), ["ranks must be 0 to 3"]),
        (put("ranks", 1, "estimated_bytes", -1), ["ranks[1]: estimated_bytes"]),
        (put("ranks", 2, "training_bytes", 2**61), ["ranks[2]: training_bytes"]),
        (put("ranks", 2, "training_bytes", 7), ["ranks[2]: training_bytes is 7, but its shards"]),
        (put("ranks", 2, "num_shards", 99), ["ranks[2]: num_shards is 99, but its shards make"]),
        (put("ranks", 2, "cap_bytes", -3), ["ranks[2]: cap_bytes", "-3"]),
        (put("ranks", 0, "total_ms", "fast"), ["ranks[0].total_ms", "float"]),
        (put("colour", "red"), ["colour"]),
        (put("tables", "cut", "colour", "red"), ["colour"]),
        (put("tables", "cut", "name", ""), ["tables: name"]),
        (put("tables", "cut", "name", "a\nb"), ["tables: name"]),
        (put("tables", "cut", "name", "rows"), ["names must be unique"]),
        (put("tables", "cut", "rows", 0), ["table 'bags.cut': rows", "0"]),
        (put("tables", "cut", "dim", 10**9), ["table 'bags.cut': dim"]),
        (put("tables", "cut", "data_type", "fp8"), ["table 'bags.cut': data_type", "fp8"]),
        (put("tables", "cut", "kind", "bag"), ["table 'bags.cut': kind", "bags"]),
        (put("tables", "cut", "sharding_type", "diagonal"), ["sharding_type", "diagonal"]),
        (put("tables", "cut", "compute_kernel", "quick"), ["compute_kernel", "quick"]),
        (put("tables", "cut", "shards", 0, "rank", 4), ["'bags.cut': shard: rank", "4"]),
        (put("tables", "cut", "shards", 0, "rank", -1), ["'bags.cut': shard: rank", "-1"]),
        (put("tables", "cut", "shards", 0, "columns", 0), ["'bags.cut': shard: columns"]),
        (put("tables", "cut", "shards", 0, "columns", 65), ["'bags.cut': shard: columns"]),
        (put("tables", "cut", "shards", 0, "rows", -5), ["'bags.cut': shard: rows"]),
        (put("tables", "cut", "shards", 0, "row_offset", -5), ["'bags.cut': shard: row_offset"]),
        (put("tables", "cut", "shards", 0, "column_offset", 99), ["shard: column_offset"]),
        (put("tables", "cut", "shards", 0, "training_bytes", -1), ["shard: training_bytes"]),
        (put("tables", "cut", "shards", "none"), ["array"]),
        (put("notes", ["one\nand two"]), ["notes"]),
    ],
)
def test_an_unsound_value_is_named(
    change: Callable[[dict[str, Any]], None],
    words: list[str],
    contents: dict[str, Any],
    tmp_path: Path,
) -> None:
    change(contents)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(contents))
    check_refused(path, *words)


# ---- checked before it is used ----


def check_unusable(
    plan: TorchRecPlan,
    *words: str,
    module: nn.Module | None = None,
    on: Topology | None = None,
    given: Constraints = EXCLUDING,
) -> None:
    """There is no sharding plan, and check_plan says the same; ``words`` are in the error."""
    module, on = model() if module is None else module, devices() if on is None else on
    for use in (
        lambda: plan.to_sharding_plan(module, topology=on, constraints=given),
        lambda: check_plan(module, plan, on, constraints=given),
    ):
        with pytest.raises(PlannerError) as caught:
            use()
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
        assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION


def test_a_plan_of_the_model_and_the_topology_passes(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    check_plan(model(), made[1], devices(), constraints=EXCLUDING)
    check_plan(model(), made[1], devices(), get_default_sharders(), EXCLUDING)
    check_plan(model(), made[0], devices(), constraints=EXCLUDING)


def test_a_table_is_not_excluded_because_a_file_says_so(
    made: tuple[ShardingPlan, TorchRecPlan], contents: dict[str, Any]
) -> None:
    check_unusable(
        made[1],
        "table 'deep.sequences.left_out': excluded, but no device group of constraints gives it to another",
        given={},
    )
    with pytest.raises(
        PlannerError, match=r"'deep\.sequences\.left_out': constraint device_group must be"
    ):
        check_plan(
            model(),
            made[1],
            devices(),
            constraints={"left_out": ParameterConstraints(device_group="CPU")},
        )
    contents["tables"] = [table for table in contents["tables"] if table["name"] != "rows"]
    check_unusable(plan_of(contents), "table 'bags.rows' of the model is not in it")
    contents["excluded"].append("bags.rows")
    check_unusable(plan_of(contents), "table 'bags.rows': excluded, but no device group")


def test_shards_take_no_less_than_their_weights_and_optimizer(contents: dict[str, Any]) -> None:
    for field in ("estimated_bytes", "training_bytes"):
        changed = json.loads(json.dumps(contents))
        of(changed, "cut")["shards"][0][field] = 0
        check_unusable(
            plan_of(changed),
            f"table 'bags.cut': {field} of its shard on rank",
            "is 0, but its weights",
        )
    given = {"t": ParameterConstraints(compute_kernels=["fused_uvm"])}
    plan = described(planner(topology(2), constraints=given), one_table())
    (table,) = plan.tables
    shards_without = tuple(msgspec.structs.replace(s, host_bytes=0) for s in table.shards)
    changed_table = msgspec.structs.replace(table, shards=shards_without)
    check_unusable(
        msgspec.structs.replace(plan, tables=(changed_table,)),
        "host_bytes of its shard on rank",
        module=one_table(),
        on=topology(2),
    )


def test_a_table_that_the_model_has_and_the_plan_has_not_is_named(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    larger = parts(**dict(model().named_children()), more=bags(bag("x"), bag("y"), bag("z")))
    check_unusable(
        made[1], "table 'more.x' of the model is not in it, nor are 2 more", module=larger
    )


def test_a_table_that_the_plan_has_and_the_model_has_not_is_named(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    kept = {name: part for name, part in model().named_children() if name != "weighted"}
    check_unusable(made[1], "table 'weighted.small' is none of the model's", module=parts(**kept))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": ROWS + 1}, f"table 'bags.cut': rows is {ROWS}, but {ROWS + 1} in the model"),
        ({"dim": 128}, "table 'bags.cut': dim is 64, but 128 in the model"),
        ({"data_type": DataType.FP16}, "table 'bags.cut': data_type is fp32, but fp16"),
    ],
)
def test_a_table_that_has_changed_is_named(
    changes: dict[str, Any], words: str, made: tuple[ShardingPlan, TorchRecPlan]
) -> None:
    check_unusable(made[1], words, "plan again", module=model(**changes))


def test_a_table_that_is_pooled_no_longer_is_named() -> None:
    plan = described(planner(topology(2)), parts(tables=bags(bag("t"))))
    check_unusable(
        plan,
        "table 'tables.t': kind is bags, but sequence in the model",
        module=parts(tables=sequences(sequence("t"))),
        on=topology(2),
    )


def other_topologies() -> Iterator[tuple[Topology, str]]:
    """Topologies that a plan of four ranks on one host is not for, and what is wrong with each."""
    yield topology(3), "world_size is 3, but the plan was made for 4"
    yield topology(8, local=4), "world_size is 8, but the plan was made for 4"
    yield topology(4, local=2), "local_world_size is 2, but the plan was made for 4"
    yield topology(4, device="cpu"), "compute_device is cpu, but the plan was made for cuda"
    yield topology(4, [MIB] * 4), "rank 0 has 1.00 MiB of HBM, but the plan puts"


@pytest.mark.parametrize(("other", "words"), list(other_topologies()))
def test_another_topology_or_less_memory_is_named(
    other: Topology, words: str, made: tuple[ShardingPlan, TorchRecPlan]
) -> None:
    check_unusable(made[1], f"topology: {words}", on=other)


def test_what_a_file_says_of_ranks_does_not_hide_what_their_shards_take(
    contents: dict[str, Any],
) -> None:
    for load in contents["ranks"]:
        load["estimated_bytes"] = load["training_bytes"] = 0
    check_unusable(
        plan_of(contents),
        "rank 0 has 1.00 MiB of HBM, but the plan puts",
        on=topology(4, [MIB] * 4),
    )


def test_more_memory_is_welcome(made: tuple[ShardingPlan, TorchRecPlan]) -> None:
    plan, described_plan = made
    assert (
        described_plan.to_sharding_plan(model(), topology=topology(4), constraints=EXCLUDING)
        == plan
    )


def test_less_host_memory_than_kernels_need_is_named() -> None:
    given = {"t": ParameterConstraints(compute_kernels=["fused_uvm"])}
    plan = described(planner(topology(2), constraints=given), one_table())
    check_unusable(
        plan,
        "has 1.00 MiB of host memory, but the plan puts",
        module=one_table(),
        on=topology(2, host_memory=MIB),
    )


def shards(*of_shards: tuple[int, int, int]) -> list[dict[str, int]]:
    """Column shards of all rows of ``bags.cut``: rank, column offset, columns."""
    return [
        {
            "rank": rank,
            "row_offset": 0,
            "column_offset": offset,
            "rows": ROWS,
            "columns": columns,
            "estimated_bytes": 1,
            "training_bytes": 1,
        }
        for rank, offset, columns in of_shards
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("tables", "cut", "shards", []), "it has no shards"),
        (put("tables", "cut", "shards", 0, "rank", 9), "a shard lies on rank 9 of 4"),
        (
            put("tables", "cut", "shards", shards((0, 0, 32), (1, 32, 16))),
            f"its shards do not make up the {ROWS} rows and 64 columns",
        ),
        (
            put("tables", "cut", "shards", shards((0, 0, 32), (1, 0, 32))),
            "its shards do not meet at column 32",
        ),
        (
            put("tables", "cut", "shards", shards((0, 0, 48), (1, 32, 32))),
            "its shards do not make up",
        ),
        (
            put("tables", "cut", "shards", shards((0, 0, 31), (1, 31, 33))),
            "a shard has 31 columns; FBGEMM wants a multiple of 4",
        ),
        (
            put("tables", "cut", "shards", shards((0, 0, 16), (1, 16, 16), (0, 32, 32))),
            "rank 0 has shards of 16 and 32 columns of it",
        ),
        (put("tables", "cut", "sharding_type", "table_wise"), "table-wise, it has"),
        (put("tables", "cut", "compute_kernel", "dense"), "with kernel dense"),
        (
            put("tables", "copied", "sharding_type", "row_wise"),
            "does not shard row_wise with kernel dense",
        ),
        (put("tables", "s", "sharding_type", "table_row_wise"), "does not shard table_row_wise"),
        (put("tables", "small", "carried", "colour", 1), "carried: colour"),
        (put("tables", "small", "carried", "output_dtype", "FP7"), "output_dtype: 'FP7'"),
        (put("tables", "small", "carried", "bounds_check_mode", "X"), "bounds_check_mode: 'X'"),
        (put("tables", "small", "carried", "enforce_hbm", "false"), "enforce_hbm: 'false'"),
        (
            put("tables", "small", "carried", "cache_params.load_factor", "much"),
            "cache_params.load_factor: 'much'",
        ),
        (
            put("tables", "small", "carried", "cache_params.prefetch_pipeline", 7),
            "cache_params.prefetch_pipeline: 7",
        ),
    ],
)
def test_a_plan_that_cannot_be_trained_is_refused_with_the_table(
    change: Callable[[dict[str, Any]], None], words: str, contents: dict[str, Any]
) -> None:
    change(contents)
    check_unusable(plan_of(contents), "plan: table '", words)


def test_a_replicated_table_that_a_rank_lacks_is_refused(contents: dict[str, Any]) -> None:
    of(contents, "copied")["shards"].pop()
    check_unusable(plan_of(contents), "'bags.copied': replicated, it needs a shard on each rank")


# ---- plans from elsewhere ----


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_plans_of_torchrecs_planner_pass_the_check() -> None:
    of_kinds = parts(
        bags=bags(bag("t", rows=5000), bag("u", dim=64)), sequences=sequences(sequence("s"))
    )
    given = {"u": ParameterConstraints(sharding_types=["column_wise"], min_partition=16)}
    theirs = EmbeddingShardingPlanner(topology(2), constraints=given, stats=[]).plan(
        of_kinds, get_default_sharders()
    )
    check_sound(theirs, of_kinds, topology(2))
    check_plan(of_kinds, theirs, topology(2))
    with pytest.raises(PlannerError, match="is none of the model's"):
        check_plan(nn.Linear(2, 2), theirs, topology(2))
    with pytest.raises(PlannerError, match="a ShardingPlan is wanted, got a dict"):
        check_plan(of_kinds, {}, topology(2))


def test_unequal_column_shards_in_an_embedding_collection_are_refused() -> None:
    of_two = parts(one=sequences(sequence("s", dim=64), sequence("t", dim=64)))
    given = {name: ParameterConstraints(sharding_types=["column_wise"]) for name in ("s", "t")}
    plan = planner(topology(2), constraints=given).plan(of_two)
    check_plan(of_two, plan, topology(2))
    narrower(plan, "t")
    with pytest.raises(
        PlannerError, match=r"'one\.s' and 'one\.t' have column shards of \d+ and 16 columns"
    ) as caught:
        check_plan(of_two, plan, topology(2))
    assert "EmbeddingCollection one: " in str(caught.value)
    ours = planner(topology(2))
    for use in (ours.predict, ours.sharding_options):
        with pytest.raises(PlannerError, match="TorchRec needs one width for all"):
            use(of_two, plan)
    # In a pooled collection they may be.
    pooled = parts(one=bags(bag("s", dim=64), bag("t", dim=64)))
    plan = planner(topology(2), constraints=given).plan(pooled)
    narrower(plan, "t")
    check_plan(pooled, plan, topology(2))


def narrower(plan: ShardingPlan, table: str) -> None:
    """Cut a table of 64 columns into shards of 16, on two ranks."""
    (sharding,) = [sharding for _, name, sharding in shardings(plan) if name == table]
    template = sharding.sharding_spec.shards[0]
    rows = template.shard_sizes[0]
    sharding.ranks = [0, 1, 0, 1]
    sharding.sharding_spec.shards = [
        type(template)(
            shard_offsets=[0, 16 * number],
            shard_sizes=[rows, 16],
            placement=f"rank:{rank}/cuda:{rank}",
        )
        for number, rank in enumerate(sharding.ranks)
    ]


def by_rows(*shards_of: tuple[int, int, int]) -> Any:
    """Puts these shards in place of a table's: rank, row offset, rows."""

    def change(sharding: Any) -> None:
        template = sharding.sharding_spec.shards[0]
        sharding.ranks = [rank for rank, _, _ in shards_of]
        sharding.sharding_spec.shards = [
            type(template)([offset, 0], [rows, 16], f"rank:{rank}/cuda:{rank}")
            for rank, offset, rows in shards_of
        ]

    return change


@pytest.mark.parametrize(
    "change",
    [
        by_rows((0, 0, 500), (1, 400, 500)),
        by_rows((0, 100, 500), (1, 500, 500)),
        by_rows((0, 0, 400), (1, 400, 600)),
        by_rows((1, 0, 500), (0, 500, 500)),
        by_rows((0, 0, 500), (0, 500, 500)),
        by_rows((0, 0, 250), (0, 250, 250), (1, 500, 500)),
        by_rows((0, 0, 1000)),
    ],
)
def test_rows_that_lie_where_torchrec_does_not_look_for_them_are_refused(change: Any) -> None:
    of_one = parts(one=sequences(sequence("s", rows=1000, dim=16)))
    given = {"s": ParameterConstraints(sharding_types=["row_wise"])}
    plan = planner(topology(2), constraints=given).plan(of_one)
    check_plan(of_one, plan, topology(2))
    ((_, _, sharding),) = shardings(plan)
    change(sharding)
    with pytest.raises(
        PlannerError,
        match=r"'one\.s': (row_wise, it needs a shard of 500 rows, .* ranks 0 to 1|its shards do not make)",
    ):
        check_plan(of_one, plan, topology(2))


def test_fewer_rows_than_ranks_leave_the_last_ranks_without_any() -> None:
    of_one = one_table(5, 16)
    given = {"t": ParameterConstraints(sharding_types=["row_wise"])}
    for ranks in (2, 3, 4, 8):
        plan = planner(topology(ranks, local=1), constraints=given).plan(of_one)
        check_plan(of_one, plan, topology(ranks, local=1))


def test_columns_of_a_sequence_lie_in_shards_in_their_order() -> None:
    given = {"t": ParameterConstraints(sharding_types=["column_wise"])}
    for collection in (sequences(sequence("t", dim=64)), bags(bag("t", dim=64))):
        of_one = parts(one=collection)
        plan = planner(topology(2), constraints=given).plan(of_one)
        narrower(plan, "t")
        check_plan(of_one, plan, topology(2))
        ((_, _, sharding),) = shardings(plan)
        sharding.sharding_spec.shards.reverse()
        sharding.ranks.reverse()
        if isinstance(collection, EmbeddingBagCollection):
            check_plan(of_one, plan, topology(2))
            continue
        with pytest.raises(PlannerError, match="which must be that of their columns"):
            check_plan(of_one, plan, topology(2))


@pytest.mark.parametrize(
    ("ranks", "device", "words"),
    [
        ([1], "cuda:0", r"its shards lie on ranks \[0\], but its ranks are \[1\]"),
        (None, "cuda:0", "but its ranks are None"),
        ([0], "cuda:1", "a shard of rank 0 lies on cuda:1, not on cuda:0"),
        ([0], "cpu", "a shard of rank 0 lies on cpu, not on cuda:0"),
        ([0], "meta", "a shard of rank 0 lies on meta"),
    ],
)
def test_ranks_and_devices_of_shards_are_those_of_the_topology(
    ranks: Any, device: str, words: str
) -> None:
    of_one = one_table(1000, 16)
    whole = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    plan = planner(topology(2), constraints=whole).plan(of_one)
    ((_, _, sharding),) = shardings(plan)
    (shard,) = sharding.sharding_spec.shards
    sharding.sharding_spec.shards = [
        type(shard)(shard.shard_offsets, shard.shard_sizes, f"rank:0/{device}")
    ]
    sharding.ranks = ranks
    with pytest.raises(PlannerError, match=words):
        check_plan(of_one, plan, topology(2))


@pytest.mark.parametrize("kind", ["table_row_wise", "table_column_wise"])
def test_a_table_of_one_host_that_lies_on_two_is_refused(kind: str) -> None:
    of_one, devices = one_table(1000, 16), topology(4, local=2)
    given = {"t": ParameterConstraints(sharding_types=["table_row_wise"])}
    plan = planner(devices, constraints=given).plan(of_one)
    ((_, _, sharding),) = shardings(plan)
    sharding.sharding_type = kind
    template, by_row = sharding.sharding_spec.shards[0], kind == "table_row_wise"
    sharding.ranks = [0, 3]
    sharding.sharding_spec.shards = [
        type(template)(
            [500 * place, 0] if by_row else [0, 8 * place],
            [500, 16] if by_row else [1000, 8],
            f"rank:{rank}/cuda:{rank % 2}",
        )
        for place, rank in enumerate(sharding.ranks)
    ]
    wanted = "of ranks 0 to 1" if by_row else "it lies on hosts 0, 1"
    with pytest.raises(PlannerError, match=wanted):
        check_plan(of_one, plan, devices)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"compute_kernel": "dense"}, "does not shard table_wise with kernel dense"),
        ({"compute_kernel": "fast"}, "does not shard table_wise with kernel fast"),
        (
            {"sharding_type": "data_parallel", "sharding_spec": None},
            "does not shard data_parallel with kernel fused",
        ),
        ({"sharding_type": "grid_shard"}, "sharding type grid_shard is not supported"),
        ({"sharding_type": 3}, "3 is no sharding type"),
        ({"sharding_spec": None}, "it has no list of shards"),
    ],
)
def test_what_the_sharder_does_not_offer_is_refused(fields: dict[str, Any], words: str) -> None:
    of_one = one_table(1000, 16)
    whole = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    plan = planner(topology(2), constraints=whole).plan(of_one)
    ((_, _, sharding),) = shardings(plan)
    for field, value in fields.items():
        setattr(sharding, field, value)
    with pytest.raises(PlannerError, match=rf"'bags\.t': .*{words}|'bags\.t': {words}"):
        check_plan(of_one, plan, topology(2))


def test_what_is_no_plan_is_refused() -> None:
    of_one = one_table(1000, 16)
    plan = planner(topology(2)).plan(of_one)
    spoilt: list[Any] = [
        ShardingPlan(None),
        ShardingPlan({"": None}),
        ShardingPlan({"bags": {"t": 1}}),
    ]
    sharding = plan.plan["bags"]["t"]
    sharding.sharding_spec.shards[0].shard_offsets = ["a", 0]
    for wrong in (*spoilt, plan):
        with pytest.raises(PlannerError, match="plan: "):
            check_plan(of_one, wrong, topology(2))
    made: Any = planner(topology(2))
    made.plan(of_one)
    with pytest.raises(InputError, match="diff: a TorchRecPlan is wanted, got a int"):
        made.last_plan.diff(3)
    with pytest.raises(PlannerError, match="topology: a Topology of TorchRec is wanted, got a int"):
        made.last_plan.to_sharding_plan(of_one, topology=3)


def test_a_shard_on_a_rank_that_there_is_not_is_refused() -> None:
    of_one = one_table(1000, 16)
    whole = {"t": ParameterConstraints(sharding_types=["table_wise"])}
    plan = planner(topology(4), constraints=whole).plan(of_one)
    ((_, _, sharding),) = shardings(plan)
    for shard in sharding.sharding_spec.shards:
        shard.placement = type(shard.placement)("rank:3/cuda:3")
    sharding.ranks = [3]
    check_plan(of_one, plan, topology(4))
    with pytest.raises(PlannerError, match=r"'bags\.t': a shard lies on rank 3 of 2"):
        check_plan(of_one, plan, topology(2))


# ---- compared ----


def test_a_difference_is_named_by_table_and_setting(
    made: tuple[ShardingPlan, TorchRecPlan], contents: dict[str, Any]
) -> None:
    before = made[1]
    of(contents, "cut")["shards"] = shards((2, 0, 32), (3, 32, 32))
    of(contents, "small")["carried"]["enforce_hbm"] = True
    of(contents, "s")["rows"] += 5
    of(contents, "rows")["name"] = "renamed"
    contents["batch_size"] *= 2
    contents["cost_models"]["name"] = "others"
    contents["cost_ms"] = 99.0
    contents["planning_ms"] = 99.0
    contents["notes"] = []
    lines = before.diff(plan_of(contents))
    old = ", ".join(f"{s.columns} on {s.rank}" for s in before.tables[0].shards)
    assert lines == [
        f"batch size: {before.batch_size} -> {2 * before.batch_size}",
        "cost models: h100-sim -> others",
        f"table bags.cut: column_wise ({old}) -> column_wise (32 on 2, 32 on 3)",
        "table bags.rows: only in the first plan",
        "table weighted.small: what is passed on to TorchRec differs",
        "table deep.sequences.s: 1000 x 16 fp32 -> 1005 x 16 fp32",
        "table bags.renamed: only in the second plan",
    ]
    assert len(plan_of(contents).diff(before)) == len(lines)


def test_plans_that_train_alike_do_not_differ_whatever_they_are_predicted_to_cost(
    made: tuple[ShardingPlan, TorchRecPlan],
) -> None:
    other = msgspec.structs.replace(made[1], cost_ms=1.0, planning_ms=2.0, notes=("a", "b"))
    assert made[1].diff(other) == []
