"""The automatic search of the engine: what its plans keep, and how good they are."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_fast import (
    CancelToken,
    Cluster,
    CostModels,
    Planner,
    ShardingPlan,
    _core,
    examples,
)
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.tables import TableSet
from test_engine import golden_networks, golden_tasks, problem_arguments, small_networks
from tight_tasks import draw_tight_task

BATCH_SIZE = 65536


@pytest.fixture(scope="module")
def models() -> CostModels:
    return CostModels.load("h100-sim")


@pytest.fixture(scope="module")
def planner(models: CostModels) -> Planner:
    return Planner(models)


@pytest.fixture(scope="module")
def networks(models: CostModels) -> _core.CostNetworks:
    return models.networks_for(BATCH_SIZE)


POOL = examples.broad(tables=800, max_rows=10**7, batch_size=BATCH_SIZE, seed=50)


def draw(generator: np.random.Generator, tables: tuple[int, int]) -> TableSet:
    """So many tables, of dims that the shipped models know."""
    return examples.draw_task(POOL, tables, (4, 8, 16, 32, 64, 128), generator)


def problem_of(
    planner: Planner, tables: TableSet, devices: int, fill: float = 0.3
) -> _core.Problem:
    """Devices of which the tables fill such a share."""
    total = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
    cluster = Cluster(
        world_size=devices, memory_bytes=int(total / devices / fill), batch_size=BATCH_SIZE
    )
    return planner.problem(tables, cluster)


def check_plan(networks: _core.CostNetworks, problem: _core.Problem, plan: _core.Plan) -> None:
    """Every shard is on a device once, no cap is exceeded, and the costs are those of the plan."""
    shards = _core.split_shards(problem, plan.column_splits)
    assert sorted(itertools.chain(*plan.placement)) == list(range(len(shards)))
    assert all(a <= b for a, b in zip(plan.memory_bytes, problem.memory_bytes, strict=True))
    again = _core.evaluate(networks, problem, plan.column_splits, plan.placement)
    assert (again.cost, again.memory_bytes) == (plan.cost, plan.memory_bytes)
    assert (again.compute, again.forward, again.backward) == (
        plan.compute,
        plan.forward,
        plan.backward,
    )


# ---- how good its plans are ----


@pytest.mark.parametrize("name", ["2_gpu", "4_gpu", "4_gpu_tight", "8_gpu", "16_gpu"])
def test_golden_plans_are_never_dearer_than_the_published_ones(name: str) -> None:
    gains = []
    for task in golden_tasks(name):
        options: Any = task.search
        answer = _core.auto_search(golden_networks(), task.problem, **options)
        assert answer.plan is not None, task.name  # also where the published search finds none
        assert answer.is_mean
        check_plan(golden_networks(), task.problem, answer.plan)
        mean = _core.objective(
            golden_networks(), task.problem, answer.plan.column_splits, answer.plan.placement
        )
        assert mean == answer.objective
        published = _core.search(golden_networks(), task.problem, **task.search)
        assert (published is None) == (answer.published is None)
        if published is not None:
            before = _core.objective(
                golden_networks(), task.problem, published.column_splits, published.placement
            )
            assert before == answer.published
            assert answer.objective <= before
            gains.append(1.0 - answer.objective / before)
    if name in ("4_gpu", "4_gpu_tight", "8_gpu"):
        assert np.mean(gains) >= 0.005


@pytest.mark.parametrize("name", ["2_gpu", "4_gpu"])
def test_with_few_devices_the_objective_is_the_mean_over_all_their_orders(name: str) -> None:
    task = next(golden_tasks(name))
    plan = _core.search(golden_networks(), task.problem, **task.search)
    assert plan is not None
    orders = [list(order) for order in itertools.permutations(plan.placement)]
    costs = [
        _core.evaluate(golden_networks(), task.problem, plan.column_splits, order).cost
        for order in orders
    ]
    assert min(costs) < max(costs)
    objectives = {
        _core.objective(golden_networks(), task.problem, plan.column_splits, order)
        for order in orders
    }
    assert max(objectives) == pytest.approx(np.mean(costs), rel=1e-12)
    assert max(objectives) == pytest.approx(min(objectives), rel=1e-9)


def test_with_more_devices_the_objective_does_not_depend_on_their_numbers_either() -> None:
    task = next(golden_tasks("8_gpu"))
    plan = _core.search(golden_networks(), task.problem, **task.search)
    assert plan is not None
    generator = np.random.default_rng(0)
    objectives = [
        _core.objective(
            golden_networks(),
            task.problem,
            plan.column_splits,
            [plan.placement[k] for k in generator.permutation(8)],
        )
        for _ in range(20)
    ]
    assert max(objectives) == pytest.approx(min(objectives), rel=1e-9)


def test_networks_that_know_no_numbers_have_their_cost_as_objective(
    planner: Planner, networks: _core.CostNetworks
) -> None:
    generator = np.random.default_rng(1)
    gains = []
    for _ in range(10):
        problem = problem_of(planner, draw(generator, (60, 90)), 8)
        answer = _core.auto_search(networks, problem)
        assert answer.plan is not None
        assert not answer.is_mean
        assert answer.objective == answer.plan.cost
        assert answer.published is not None
        assert answer.objective <= answer.published
        gains.append(1.0 - answer.objective / answer.published)
    assert np.mean(gains) > 0.0005


def small_problems(planner: Planner, count: int) -> Any:
    """Problems of at most nine shards on three devices, and the splits that there may be."""
    generator = np.random.default_rng(2)
    for _ in range(count):
        tables = int(generator.integers(4, 8))
        splits = min(9 - tables, int(generator.integers(0, 4)))
        drawn = draw(generator, (tables, tables))
        yield problem_of(planner, drawn, 3, float(generator.uniform(0.4, 0.95))), splits


def test_small_problems_are_solved(planner: Planner, networks: _core.CostNetworks) -> None:
    best = count = 0
    for problem, splits in small_problems(planner, 60):
        optimum = _core.exhaustive_search(networks, problem, max_splits=splits)
        answer = _core.auto_search(networks, problem, max_splits=splits)
        assert (answer.plan is None) == (optimum is None)
        if optimum is not None:
            assert answer.objective >= optimum[1] * (1 - 1e-6)
            best += answer.objective <= optimum[1] * (1 + 1e-6)
            count += 1
    assert count >= 20
    assert best >= 0.95 * count


def test_the_exhaustive_search_finds_the_best_of_all_placements() -> None:
    networks = small_networks()
    problem = _core.Problem(**problem_arguments(tables=4, memory_bytes=10**9))
    costs = []
    for devices in itertools.product(range(2), repeat=4):
        placement = [[k for k in range(4) if devices[k] == device] for device in range(2)]
        costs.append(_core.objective(networks, problem, [], placement))
    found = _core.exhaustive_search(networks, problem, max_splits=0)
    assert found is not None
    assert found[1] == pytest.approx(min(costs), rel=1e-6)
    more = _core.exhaustive_search(networks, problem, max_splits=2)
    assert more is not None
    assert more[1] <= found[1]
    assert len(more[0].column_splits) <= 2


def test_the_exhaustive_search_refuses_many_shards() -> None:
    problem = _core.Problem(**problem_arguments(tables=40, memory_bytes=10**9))
    with pytest.raises(ValueError, match="for few shards: there are 40 on 2 devices"):
        _core.exhaustive_search(small_networks(), problem, max_splits=0)


def test_tight_memory_is_filled(planner: Planner, networks: _core.CostNetworks) -> None:
    generator = np.random.default_rng(3)
    missed = []
    for number in range(60):
        tables, cluster = draw_tight_task(generator)
        problem = planner.problem(tables, cluster)
        answer = _core.auto_search(networks, problem)
        if answer.plan is None:
            missed.append(number)
        else:
            check_plan(networks, problem, answer.plan)
    assert len(missed) <= 1, missed


# ---- what every plan keeps ----


@st.composite
def problems(drawn: st.DrawFn) -> _core.Problem:
    """Few tables with caps of each device, least widths, split widths and pins."""
    tables = drawn(st.integers(1, 8))
    devices = 2
    dims = [4 * drawn(st.integers(1, 16)) for _ in range(tables)]
    per_column = [drawn(st.integers(0, 1000)) for _ in range(tables)]
    fixed = [drawn(st.integers(0, 500)) for _ in range(tables)]
    total = sum(d * b + f for d, b, f in zip(dims, per_column, fixed, strict=True))
    caps = [int(total * drawn(st.floats(0.3, 1.2))) + 1 for _ in range(devices)]
    pinned = [-1] * tables
    split_widths = [0] * tables
    for table in range(tables):
        choice = drawn(st.integers(0, 5))
        if choice == 0 and dims[table] % 8 == 0:
            split_widths[table] = dims[table] // 2
        if choice == 1:
            pinned[table] = drawn(st.integers(0, devices - 1))
    for device in range(devices):
        on_it = sum(
            dims[t] * per_column[t] + fixed[t] for t in range(tables) if pinned[t] == device
        )
        caps[device] = max(caps[device], on_it)
    return _core.Problem(
        **{
            **problem_arguments(tables=tables),
            "dims": dims,
            "bytes_per_column": per_column,
            "bytes_fixed": fixed,
            "memory_bytes": caps,
        },
        least_widths=[drawn(st.sampled_from([0, 4, 8, 16])) for _ in range(tables)],
        split_widths=split_widths,
        pinned=pinned,
    )


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(0, 2**64 - 1), st.integers(0, 4))
def test_every_plan_keeps_what_the_problem_says(
    problem: _core.Problem, seed: int, max_splits: int
) -> None:
    networks = small_networks()
    answer = _core.auto_search(networks, problem, seed=seed, max_splits=max_splits, evaluations=500)
    published = _core.search(networks, problem, max_splits=max_splits)
    if published is not None:
        assert answer.plan is not None
        assert answer.published is not None
        assert answer.objective <= answer.published
    if answer.plan is not None:
        assert len(answer.plan.column_splits) <= max_splits
        check_plan(networks, problem, answer.plan)
        assert answer.impossible == ""
    if answer.impossible:
        assert _core.exhaustive_search(networks, problem, max_splits=max_splits) is None


# ---- when it ends ----


@pytest.fixture(scope="module")
def some_problem(planner: Planner) -> _core.Problem:
    return problem_of(planner, draw(np.random.default_rng(4), (60, 60)), 8, 0.6)


def same(one: _core.AutoAnswer, other: _core.AutoAnswer) -> bool:
    assert one.plan is not None
    assert other.plan is not None
    return (one.plan.column_splits, one.plan.placement, one.objective) == (
        other.plan.column_splits,
        other.plan.placement,
        other.objective,
    )


@pytest.mark.parametrize("evaluations", [None, 0, 3000])
def test_the_same_seed_gives_the_same_answer_with_any_number_of_threads(
    networks: _core.CostNetworks, some_problem: _core.Problem, evaluations: int | None
) -> None:
    def search(**options: Any) -> _core.AutoAnswer:
        return _core.auto_search(networks, some_problem, evaluations=evaluations, **options)

    first = search(seed=7)
    for threads in (1, 2, 5):
        assert same(search(seed=7, threads=threads), first)
    if evaluations == 0:
        assert first.objective == first.published
    else:
        assert not same(search(seed=8), first)


def test_more_evaluations_are_no_worse_on_average(
    networks: _core.CostNetworks, some_problem: _core.Problem
) -> None:
    costs = [
        np.mean(
            [
                _core.auto_search(
                    networks, some_problem, evaluations=evaluations, seed=seed
                ).objective
                for seed in range(4)
            ]
        )
        for evaluations in (0, 500, 5000, 50000)
    ]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("seconds", [0.0, 1e-4, 0.05])
def test_a_deadline_ends_it_with_a_plan(
    networks: _core.CostNetworks, some_problem: _core.Problem, seconds: float
) -> None:
    started = time.perf_counter()
    answer = _core.auto_search(networks, some_problem, seconds=seconds)
    took = time.perf_counter() - started
    assert took < seconds + 0.5  # how well it is kept is measured elsewhere
    assert not answer.interrupted
    assert answer.plan is not None
    check_plan(networks, some_problem, answer.plan)


def test_a_token_stops_it_from_another_thread(
    networks: _core.CostNetworks, some_problem: _core.Problem
) -> None:
    token = CancelToken()
    threading.Timer(0.2, token.cancel).start()
    started = time.perf_counter()
    answer = _core.auto_search(networks, some_problem, seconds=60.0, cancel=token)
    assert time.perf_counter() - started < 2.0
    assert token.is_cancelled
    assert answer.interrupted
    assert answer.error is None
    assert answer.plan is not None
    check_plan(networks, some_problem, answer.plan)
    # It stops later searches at once.
    assert _core.auto_search(networks, some_problem, seconds=60.0, cancel=token).interrupted


def test_progress_is_told_of_ever_cheaper_plans(
    networks: _core.CostNetworks, some_problem: _core.Problem
) -> None:
    told: list[float] = []
    answer = _core.auto_search(networks, some_problem, seconds=0.3, progress=told.append)
    assert len(told) >= 1
    assert told == sorted(told, reverse=True)
    assert len(set(told)) == len(told)
    assert told[-1] == pytest.approx(answer.objective, rel=1e-5)


def test_what_progress_raises_ends_it_with_the_best_plan(
    networks: _core.CostNetworks, some_problem: _core.Problem
) -> None:
    def stop(cost: float) -> None:
        raise RuntimeError("enough")

    answer = _core.auto_search(networks, some_problem, seconds=60.0, progress=stop)
    assert isinstance(answer.error, RuntimeError)
    assert answer.interrupted
    assert answer.plan is not None


def test_ctrl_c_leaves_the_best_plan_with_the_planner() -> None:
    program = """
import os, signal, threading, time
from neuroshard_fast import Cluster, Planner, SearchOptions, examples
tables = examples.broad(tables=60, max_rows=10**6, batch_size=65536, seed=1)
cluster = Cluster(world_size=8, memory_bytes=80 * 2**30)
planner = Planner("h100-sim")
planner.plan(tables, cluster)
assert planner.interrupted_plan is None
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
started = time.perf_counter()
try:
    planner.plan(tables, cluster, SearchOptions(deadline_ms=60_000))
except KeyboardInterrupt:
    assert time.perf_counter() - started < 2.0
    assert planner.interrupted_plan is not None
    assert planner.interrupted_plan.interrupted
    print("stopped")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "stopped\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": -1.0}, "seconds must lie between 0 and 1e9"),
        ({"seconds": float("nan")}, "seconds must lie between 0 and 1e9"),
        ({"evaluations": -1}, "evaluations must be at least 0"),
        ({"beam_width": 0}, "beam_width must lie between"),
        ({"max_splits": -1}, "max_splits must lie between"),
    ],
)
def test_impossible_options_are_refused(
    networks: _core.CostNetworks,
    some_problem: _core.Problem,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        _core.auto_search(networks, some_problem, **options)


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"memory_bytes": 300}, {}, "the tables take 640 bytes, all devices together have 600"),
        (
            {"memory_bytes": [10**6, 10**6], "bytes_per_column": [10**5] * 4},
            {},
            "the tables take 6400000 bytes, all devices together have 2000000",
        ),
        (
            {"memory_bytes": 10**6, "devices": 5, "bytes_per_column": [3 * 10**5, 1, 1, 1]},
            {},
            "table 0: its narrowest shard, of 4 columns, takes 1200000 bytes, more than any device has",
        ),
        (
            {"memory_bytes": [10**6, 10**6], "bytes_per_column": [10**5, 1, 1, 1]},
            {"max_splits": 0},
            "tables larger than any device take 1 splits until their shards fit, more than max_splits, 0",
        ),
    ],
)
def test_what_cannot_be_planned_is_explained(
    changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    problem = _core.Problem(**problem_arguments(tables=4, **changes))
    answer = _core.auto_search(small_networks(problem.devices), problem, **options)
    assert answer.plan is None
    assert answer.impossible == reason


def test_ctrl_c_on_the_command_line_leaves_the_best_plan(tmp_path: Path) -> None:
    POOL.save(tmp_path / "tables.json")
    command = [sys.executable, "-m", "neuroshard_fast.cli.main", "plan"]
    command += [str(tmp_path / "tables.json"), "--devices", "64", "--memory", "80GiB"]
    command += ["--deadline-ms", "60000", "-o", str(tmp_path / "plan.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(4.0)  # Python starts, tables are read
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the search was stopped: the best plan until then" in printed
    assert ShardingPlan.load(tmp_path / "plan.json").interrupted
