"""What a planner keeps from call to call."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

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
    published,
)
from neuroshard_fast.answers import Answer, Answers, question_key
from neuroshard_fast.planner import SearchOutcome

GIB = 2**30
CLUSTER = Cluster(world_size=4, memory_bytes=4 * GIB)
SMALL_SEARCH = SearchOptions(candidates=2, max_splits=2)


class CountingPlanner(Planner):
    """Counts its searches."""

    searches = 0

    def search(self, *args: Any, **kwargs: Any) -> SearchOutcome:
        self.searches += 1
        return super().search(*args, **kwargs)


@pytest.fixture(scope="module")
def models(golden_models: Path) -> CostModels:
    return CostModels.load(golden_models)


def _table(name: str, rows: int = 100_000, dim: int = 64, factor: float = 5.0) -> EmbeddingTable:
    features = (Feature(name="f", pooling_factor=factor),)
    return EmbeddingTable(name=name, num_embeddings=rows, embedding_dim=dim, features=features)


def _tables(count: int = 6, seed: int = 0, name: str = "t") -> TableSet:
    random = np.random.default_rng(seed)
    return TableSet.of(
        [
            _table(f"{name}{i}", int(10 ** random.uniform(3, 6)), int(2 ** random.integers(2, 8)))
            for i in range(count)
        ]
    )


def _copy(tables: TableSet) -> TableSet:
    return msgspec.json.decode(msgspec.json.encode(tables), type=TableSet)


def _timeless(plan: ShardingPlan) -> ShardingPlan:
    return msgspec.structs.replace(plan, planning_ms=0.0)


def test_equal_problems_are_searched_once(models: CostModels) -> None:
    planner = CountingPlanner(models)
    first = planner.plan(_tables(), CLUSTER, SMALL_SEARCH)
    cluster = Cluster(world_size=4, memory_bytes=4 * GIB)
    again = planner.plan(
        _copy(_tables()), cluster, SearchOptions(candidates=2, max_splits=2, grid_steps=11)
    )
    assert planner.searches == 1
    assert _timeless(again) == _timeless(first)
    assert 0 < again.planning_ms < first.planning_ms
    assert planner.plan(_tables(), CLUSTER, SMALL_SEARCH) is not again  # its time is its own


def test_that_there_is_no_plan_is_kept_too(models: CostModels) -> None:
    planner = CountingPlanner(models)
    one = TableSet.of([next(iter(_tables()))])  # more than 1.5 times the mean output dim
    reasons = []
    for _ in range(2):
        with pytest.raises(InfeasiblePlanError) as raised:
            planner.plan(one, CLUSTER, SearchOptions(algorithm="neuroshard", max_splits=0))
        reasons.append(str(raised.value))
    assert planner.searches == 1
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"num_embeddings": 100_001},
        {"embedding_dim": 128},
        {"features": (Feature(name="f", pooling_factor=5.5),)},
        {"features": (Feature(name="g", pooling_factor=5.0),)},
        {"pooling": "none"},
        {"is_weighted": True},
        {"reuse_histogram": (1.0,) + (0.0,) * 16},
        {"data_type": "fp16"},
        {"output_dtype": "bf16"},
        {"optimizer": "adam"},
    ],
    ids=str,
)
def test_any_change_of_a_table_gives_the_answer_of_a_new_planner(
    models: CostModels, change: dict[str, Any]
) -> None:
    tables = [_table(f"t{i}") for i in range(5)]
    changed = TableSet.of([*tables[:4], msgspec.structs.replace(tables[4], **change)])
    planner = CountingPlanner(models)
    planner.plan(TableSet.of(tables), CLUSTER)
    plan = planner.plan(changed, CLUSTER)
    assert planner.searches == 2
    assert _timeless(plan) == _timeless(Planner(models).plan(changed, CLUSTER))


def test_cluster_options_and_order_of_the_tables_are_part_of_the_problem(
    models: CostModels,
) -> None:
    tables = _tables()
    problems = [
        (tables, CLUSTER, SMALL_SEARCH),
        (TableSet.of(list(reversed(list(tables)))), CLUSTER, SMALL_SEARCH),
        (tables, Cluster(world_size=2, memory_bytes=4 * GIB), SMALL_SEARCH),
        (tables, Cluster(world_size=4, memory_bytes=4 * GIB + 1), SMALL_SEARCH),
        (tables, CLUSTER, msgspec.structs.replace(SMALL_SEARCH, beam_width=1)),
        (tables, CLUSTER, msgspec.structs.replace(SMALL_SEARCH, algorithm="random")),
        (tables, CLUSTER, msgspec.structs.replace(SMALL_SEARCH, algorithm="random", seed=1)),
    ]
    planner = CountingPlanner(models)
    for problem in problems:
        planner.plan(*problem)
    assert planner.searches == len(problems)
    for problem in problems:
        assert _timeless(planner.plan(*problem)) == _timeless(Planner(models).plan(*problem))
    assert planner.searches == len(problems)


def test_numbers_of_numpy_are_values_too(models: CostModels) -> None:
    planner = CountingPlanner(models)
    planner.plan(TableSet.of([_table("t")]), CLUSTER)
    numpy_table = _table("t", rows=np.int64(100_000), factor=np.float32(5.0))  # type: ignore[arg-type]
    planner.plan(TableSet.of([numpy_table]), CLUSTER)
    assert planner.searches == 1


def test_the_cost_models_of_a_planner_are_fixed(models: CostModels) -> None:
    with pytest.raises(AttributeError):
        Planner(models).cost_models = models  # type: ignore[misc]


def test_an_input_error_is_not_kept(models: CostModels) -> None:
    planner = Planner(models)
    for _ in range(2):
        with pytest.raises(InputError, match="no communication networks for 3"):
            planner.plan(_tables(), Cluster(world_size=3, memory_bytes=GIB))


def _answer(models: CostModels, tables: TableSet) -> Answer:
    return Answer(Planner(models).plan(tables, CLUSTER, SMALL_SEARCH), "")


def test_the_least_recently_used_answers_go_first(models: CostModels) -> None:
    answer = _answer(models, _tables())
    answers = Answers(max_answers=2)
    answers.keep(b"a", answer)
    answers.keep(b"b", answer)
    assert answers.get(b"a") is answer
    answers.keep(b"c", answer)
    assert len(answers) == 2
    assert answers.get(b"b") is None
    assert answers.get(b"a") is answer
    assert answers.get(b"c") is answer


def test_an_answer_kept_again_counts_once(models: CostModels) -> None:
    answer = _answer(models, _tables(50))
    once = Answers(max_bytes=50_000)
    for _ in range(20):
        once.keep(b"a", answer)
    once.keep(b"b", Answer(None, "none"))
    assert once.get(b"a") is answer


def test_an_answer_larger_than_all_that_is_kept_is_not(models: CostModels) -> None:
    answers = Answers(max_bytes=1000)
    answers.keep(b"a", Answer(None, "x"))
    answers.keep(b"b", _answer(models, _tables(50)))
    assert answers.get(b"b") is None


@pytest.mark.parametrize(
    ("name", "limit"),
    [("t", 10**6), ("four bytes a character: \U0001f9ee" + "x" * 2000, 2 * 10**7)],
)
@pytest.mark.parametrize("dim", [4, 4096])
def test_kept_answers_take_no_more_memory_than_allowed(
    models: CostModels, name: str, limit: int, dim: int
) -> None:
    answers = Answers(max_answers=10**6, max_bytes=limit)
    cluster = Cluster(world_size=4, memory_bytes=64 * GIB)
    planner = Planner(models)
    options = SearchOptions(candidates=1, max_splits=1)

    def keep(number: int) -> None:
        tables = TableSet.of([_table(f"{name}{number}.{i}", 1000 + i, dim) for i in range(100)])
        plan = planner.plan(tables, cluster, options)
        answers.keep(question_key(tables, cluster, options), Answer(plan, ""))

    keep(0)
    planner._answers = Answers(max_answers=0)
    tracemalloc.start()
    try:
        for number in range(1, 80):
            keep(number)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1 < len(answers) < 79  # the limit was met
    assert 0.2 * limit < taken < limit


def test_answers_are_right_from_many_threads_that_push_each_other_out(
    models: CostModels,
) -> None:
    problems = [_tables(5 + seed, seed) for seed in range(6)]
    wanted = [_timeless(Planner(models).plan(t, CLUSTER, SMALL_SEARCH)) for t in problems]
    planner = Planner(models)
    planner._answers = answers = Answers(max_answers=3)
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        start.wait()
        for index in random.integers(0, len(problems), 60):
            made = planner.plan(_copy(problems[index]), CLUSTER, SMALL_SEARCH)
            assert _timeless(made) == wanted[index]
            assert len(answers) <= 3

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len(answers) == 3


SIZES = [(50, 4), (1000, 128)]


def _problem(golden: Path, count: int, devices: int) -> tuple[TableSet, Cluster]:
    """Tables of the golden configurations with random dims, some of them more than once."""
    configs = published.read_table_configs(golden / "table_configs.json").table_set(dim=64)
    random = np.random.default_rng(0)
    tables = [
        msgspec.structs.replace(
            configs[i % len(configs)], name=f"t{i}", embedding_dim=int(2 ** random.integers(2, 8))
        )
        for i in range(count)
    ]
    return TableSet.of(tables), Cluster(world_size=devices, memory_bytes=16 * GIB)


@pytest.mark.parametrize(("count", "devices"), SIZES)
def test_planning_again_takes_a_fiftieth(
    golden: Path, models: CostModels, count: int, devices: int
) -> None:
    tables, cluster = _problem(golden, count, devices)
    planners = [Planner(models) for _ in range(4)]
    from_nothing = min(planner.plan(tables, cluster).planning_ms for planner in planners)
    again = min(planners[0].plan(_copy(tables), cluster).planning_ms for _ in range(30))
    assert again <= from_nothing / 50


@pytest.mark.full  # a comparison of times that are nearly equal
@pytest.mark.parametrize(("count", "devices"), SIZES)
def test_planning_with_some_tables_changed_takes_no_longer_than_from_nothing(
    golden: Path, models: CostModels, count: int, devices: int
) -> None:
    tables, cluster = _problem(golden, count, devices)
    planner = Planner(models)
    planner.plan(tables, cluster)
    from_nothing, changed = [], []
    for rows in range(1, 16):
        some = [msgspec.structs.replace(t, num_embeddings=1000 + rows) for t in list(tables)[:5]]
        other = TableSet.of([*some, *list(tables)[5:]])
        changed.append(planner.plan(other, cluster).planning_ms)
        from_nothing.append(Planner(models).plan(other, cluster).planning_ms)
    ratios = np.array(changed) / np.array(from_nothing)
    assert np.median(ratios) < 1.03
