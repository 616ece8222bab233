"""The bound below the cost of every plan: it holds, and how close it comes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_fast import Cluster, CostModels, Planner, _core, examples
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.tables import TableSet
from test_auto_search import problems
from test_engine import golden_networks, golden_tasks, problem_arguments, small_networks

DIMS = (4, 8, 16, 32, 64, 128)
MODELS = ("h100-sim", "h200-sim", "a100-sim", "cpu-fbgemm")
BATCH_SIZES = {"cpu-fbgemm": 1024}
POOLS = {
    "h100-sim": examples.broad(tables=800, max_rows=10**7, batch_size=65536, seed=50),
    "cpu-fbgemm": examples.dlrm_like(2021, tables=400, max_rows=10**6, batch_size=1024, seed=51),
}


class Setting:
    """A shipped model, and tasks for it."""

    def __init__(self, name: str) -> None:
        models = CostModels.load(name)
        self.batch_size = BATCH_SIZES.get(name, 65536)
        self.networks = models.networks_for(self.batch_size)
        self.planner = Planner(models)
        self.pool = POOLS.get(name, POOLS["h100-sim"])

    def draw(
        self, generator: np.random.Generator, tables: tuple[int, int], devices: int, fill: float
    ) -> _core.Problem:
        """Tables that fill such a share of the devices."""
        drawn = examples.draw_task(self.pool, tables, DIMS, generator)
        return self.problem(drawn, devices, fill)

    def problem(self, tables: TableSet, devices: int, fill: float) -> _core.Problem:
        total = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
        cluster = Cluster(
            world_size=devices,
            memory_bytes=int(total / devices / fill),
            batch_size=self.batch_size,
        )
        return self.planner.problem(tables, cluster)


@pytest.fixture(scope="module")
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(request.param)


def few_per_node(networks_of: str, devices_per_node: int) -> _core.CostNetworks:
    """The networks of a shipped model for nodes of so many devices."""
    models = CostModels.load(networks_of)

    def network(name: str, statistics: str | None) -> _core.Network:
        layers = [
            (weight, bias) if keep is None else (weight[:keep], bias[:keep])
            for (weight, bias), keep in layers_of(models, name)
        ]
        if statistics is None:
            return _core.Network(layers)
        return _core.Network(
            layers,
            feature_mean=models.tensors[f"{statistics}.feature_mean"],
            feature_std=models.tensors[f"{statistics}.feature_std"],
        )

    return _core.CostNetworks(
        network("compute.table", "compute"),
        network("compute.set", None),
        _core.SharedCommunication(
            network("forward.shared.device", "forward.shared"),
            network("forward.shared.head", None),
            network("backward.shared.device", "backward.shared"),
            network("backward.shared.head", None),
            devices_per_node=devices_per_node,
            batch_size=65536,
        ),
    )


def layers_of(models: CostModels, name: str) -> Iterator[tuple[Any, int | None]]:
    """The layers, and how many outputs of the last one are costs: others are their uncertainty."""
    layers = models.layers(name)
    for number, layer in enumerate(layers):
        is_cost = number + 1 == len(layers) and name.endswith(("set", "head"))
        yield layer, 1 if is_cost else None


def check_optimum(
    networks: _core.CostNetworks, problem: _core.Problem, splits: int
) -> float | None:
    """That no bound is above the optimum, however far from it the known plan is; the closest gap."""
    found = _core.exhaustive_search(networks, problem, max_splits=splits)
    if found is None:
        return None
    optimum = found[1]
    bounds = [
        _core.lower_bound(networks, problem, upper=optimum * times, max_splits=splits)
        for times in (1.0, 1.001, 1.2, 3.0)
    ]
    assert max(bounds) <= optimum
    assert not any(math.isnan(bound) for bound in bounds)
    return 1.0 - bounds[0] / optimum


# ---- it holds ----


@pytest.mark.parametrize("setting", MODELS, indirect=True)
def test_it_is_never_above_the_optimum(setting: Setting) -> None:
    generator = np.random.default_rng(1)
    gaps = []
    for _ in range(20):
        devices = int(generator.integers(2, 4))
        tables = int(generator.integers(3, 7))
        splits = min(8 - tables, int(generator.integers(0, 4)))
        problem = setting.draw(generator, (tables, tables), devices, generator.uniform(0.2, 0.95))
        gaps.append(check_optimum(setting.networks, problem, splits))
    found = [gap for gap in gaps if gap is not None]
    assert len(found) >= 10
    assert np.median(found) < 0.35


@pytest.mark.parametrize("setting", ["h100-sim"], indirect=True)
@pytest.mark.parametrize("devices_per_node", [1, 2])
def test_it_is_never_above_the_optimum_of_several_nodes(
    setting: Setting, devices_per_node: int
) -> None:
    networks = few_per_node("h100-sim", devices_per_node)
    generator = np.random.default_rng(2)
    count = 0
    for _ in range(20):
        devices = int(generator.integers(2, 5))
        tables = int(generator.integers(3, 7))
        splits = min(7 - tables, int(generator.integers(0, 3)))
        problem = setting.draw(generator, (tables, tables), devices, generator.uniform(0.2, 0.9))
        count += check_optimum(networks, problem, splits) is not None
    assert count >= 10


def random_plans(problem: _core.Problem, generator: np.random.Generator, count: int) -> Any:
    """Placements, from even ones to such that leave devices empty, of up to ten splits."""
    for _ in range(count):
        splits: list[int] = []
        for _ in range(int(generator.integers(0, 11))):
            shards = _core.split_shards(problem, splits)
            wide = [k for k, (_, _, width) in enumerate(shards) if width % 8 == 0]
            splits.append(int(generator.choice(wide)))
        shards = _core.split_shards(problem, splits)
        shares = generator.dirichlet(np.full(problem.devices, 10 ** generator.uniform(-1, 2)))
        device = generator.choice(problem.devices, len(shards), p=shares)
        yield (
            splits,
            [np.flatnonzero(device == k).tolist() for k in range(problem.devices)],
        )


@pytest.mark.parametrize(
    ("setting", "devices"),
    [("h100-sim", 8), ("h100-sim", 12), ("h100-sim", 16), ("cpu-fbgemm", 4), ("a100-sim", 8)],
    indirect=["setting"],
)
def test_no_plan_is_cheaper(setting: Setting, devices: int) -> None:
    generator = np.random.default_rng(4)
    for _ in range(4):
        problem = setting.draw(generator, (5 * devices, 12 * devices), devices, 0.3)
        answer = _core.auto_search(setting.networks, problem, evaluations=3000)
        assert answer.plan is not None
        costs = [
            _core.evaluate(setting.networks, problem, splits, placement).cost
            for splits, placement in random_plans(problem, generator, 100)
        ]
        for upper in (answer.objective, 1.5 * answer.objective, float(np.median(costs))):
            bound = _core.lower_bound(setting.networks, problem, upper=upper)
            assert bound <= answer.objective
            assert bound <= min(costs)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_it_holds_whatever_the_problem_says(
    problem: _core.Problem, max_splits: int, seed: int
) -> None:
    networks = random_shared_networks(seed)
    found = _core.exhaustive_search(networks, problem, max_splits=max_splits)
    if found is not None:
        for more in (0.0, 0.5, 100.0):
            bound = _core.lower_bound(
                networks, problem, upper=found[1] + more, max_splits=max_splits
            )
            assert bound <= found[1]
            assert math.isfinite(bound)
    published = small_networks(seed=seed % 1000)
    found = _core.exhaustive_search(published, problem, max_splits=max_splits)
    if found is not None:
        bound = _core.lower_bound(published, problem, upper=found[1] + 1, max_splits=max_splits)
        assert bound <= found[1]


def random_shared_networks(
    seed: int, scale: float = 1.0, devices_per_node: int = 1, set_layers: int = 2
) -> _core.CostNetworks:
    """Networks for problems of three features, which have learnt nothing."""
    generator = np.random.default_rng(seed)

    def network(*sizes: int) -> _core.Network:
        return _core.Network(
            [
                (
                    scale * generator.normal(size=(outputs, inputs)),
                    scale * generator.normal(size=outputs),
                )
                for inputs, outputs in itertools.pairwise(sizes)
            ]
        )

    return _core.CostNetworks(
        network(3, 8, 4),
        network(4, *[16] * (set_layers - 1), 1),
        _core.SharedCommunication(
            network(8, 6, 4),
            network(12, 10, 1),
            network(7, 6, 4),
            network(12, 10, 1),
            devices_per_node=devices_per_node,
            batch_size=1000,
        ),
    )


@pytest.mark.parametrize(("devices", "devices_per_node"), [(1, 2), (3, 1), (3, 2), (3, 3)])
def test_it_holds_for_networks_that_have_learnt_nothing(
    devices: int, devices_per_node: int
) -> None:
    for seed in range(60):
        networks = random_shared_networks(seed, devices_per_node=devices_per_node)
        arguments = problem_arguments(tables=5, memory_bytes=10**9)
        problem = _core.Problem(**{**arguments, "devices": devices})
        found = _core.exhaustive_search(networks, problem, max_splits=1)
        assert found is not None
        for more in (0.0, 1.0, 1e3):
            bound = _core.lower_bound(networks, problem, upper=found[1] + more, max_splits=1)
            assert bound <= found[1]


# ---- how close it comes ----


@pytest.mark.parametrize(
    ("setting", "devices", "closest"),
    [("h100-sim", 8, 0.05), ("h200-sim", 8, 0.05), ("a100-sim", 8, 0.05), ("cpu-fbgemm", 4, 0.2)],
    indirect=["setting"],
)
def test_it_comes_close_to_plans_on_one_node(
    setting: Setting, devices: int, closest: float
) -> None:
    generator = np.random.default_rng(5)
    gaps = []
    for _ in range(10):
        problem = setting.draw(generator, (5 * devices, 15 * devices), devices, 0.3)
        answer = _core.auto_search(setting.networks, problem)
        bound = _core.lower_bound(setting.networks, problem, upper=answer.objective)
        assert bound > 0.0
        gaps.append(1.0 - bound / answer.objective)
    assert np.median(gaps) < closest


@pytest.mark.parametrize("setting", MODELS, indirect=True)
def test_it_is_the_same_every_time(setting: Setting) -> None:
    problem = setting.draw(np.random.default_rng(6), (30, 30), 4, 0.3)
    bounds = {_core.lower_bound(setting.networks, problem, upper=20.0) for _ in range(3)}
    assert len(bounds) == 1


# ---- where it is of little use, and what it refuses ----


def test_networks_of_the_published_kind_have_a_bound_too() -> None:
    for name in ("2_gpu", "4_gpu", "8_gpu"):
        for task in golden_tasks(name):
            plan = _core.search(golden_networks(), task.problem, **task.search)
            if plan is None:
                continue
            upper = _core.objective(
                golden_networks(), task.problem, plan.column_splits, plan.placement
            )
            bound = _core.lower_bound(
                golden_networks(),
                task.problem,
                upper=upper,
                max_splits=task.search["max_splits"],
            )
            assert math.isfinite(bound)
            assert bound <= upper


def test_other_depths_have_none() -> None:
    problem = _core.Problem(**problem_arguments())
    networks = random_shared_networks(0, set_layers=3)
    assert _core.lower_bound(networks, problem, upper=5.0) == -math.inf


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e3, 1e7])
@pytest.mark.parametrize("upper", [-1e300, -1.0, 0.0, 1e-300, 1.0, 1e300])
def test_huge_and_tiny_numbers_give_a_number(scale: float, upper: float) -> None:
    networks = random_shared_networks(1, scale)
    for output_width in (0.0, 1e-9, 1.0, 1e12):
        for devices in (1, 2, 5):
            arguments = {
                **problem_arguments(tables=3, memory_bytes=10**9),
                "devices": devices,
                "output_width": [output_width] * 3,
            }
            problem = _core.Problem(**arguments)
            bound = _core.lower_bound(networks, problem, upper=upper, max_splits=1000)
            assert not math.isnan(bound)
            assert bound <= upper


@pytest.mark.parametrize(
    ("upper", "max_splits", "message"),
    [
        (math.nan, 10, "upper must be a finite number"),
        (math.inf, 10, "upper must be a finite number"),
        (1.0, -1, "max_splits must be at least 0"),
    ],
)
def test_unusable_arguments_are_refused(upper: float, max_splits: int, message: str) -> None:
    problem = _core.Problem(**problem_arguments())
    with pytest.raises(ValueError, match=message):
        _core.lower_bound(small_networks(), problem, upper=upper, max_splits=max_splits)
