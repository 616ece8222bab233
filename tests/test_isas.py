"""Every instruction set and number of threads gives the same plan, to the last bit.

Random problems beyond the golden ones: fractional output widths, little memory, any number of
devices, set networks of any shape, and numbers that differ only below fp32 resolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuroshard_fast import _core
from neuroshard_fast.features import ShardFeatures
from reference_search import ReferenceSearch
from test_engine import ALL_TASKS, golden_networks
from test_engine_reference import engine_arguments, random_layers

THREADS = (1, 2, 5)

Layer = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


@pytest.fixture(autouse=True)
def widest_isa() -> Iterator[None]:
    yield
    _core.use_isa(_core.supported_isas()[0])


def everything(plan: _core.Plan | None) -> object:
    return plan and (
        plan.cost,
        plan.column_splits,
        plan.placement,
        plan.compute,
        plan.forward,
        plan.backward,
        plan.dim_sums,
        plan.memory_bytes,
    )


def plan_of_all(
    networks: _core.CostNetworks, problem: _core.Problem, **options: int
) -> _core.Plan | None:
    """The plan that all instruction sets find with any number of threads."""
    plans = []
    for isa in _core.supported_isas():
        _core.use_isa(isa)
        assert _core.isa() == isa
        plans += [
            _core.search(networks, problem, **options, threads=threads) for threads in THREADS
        ]
    assert all(everything(plan) == everything(plans[0]) for plan in plans)
    return plans[0]


def test_the_isas_of_this_processor_end_with_one_that_all_have() -> None:
    assert _core.supported_isas()[-1] in ("portable", "neon")
    with pytest.raises(ValueError, match="isa: 'sparc' cannot run here, this processor has: "):
        _core.use_isa("sparc")


@pytest.mark.parametrize("task", [*ALL_TASKS[::5], ALL_TASKS[-1]], ids=lambda task: str(task.name))
def test_golden_tasks(task: Any) -> None:
    plan = plan_of_all(golden_networks(), task.problem, **task.search)
    assert (plan is None) == (task.expected["plan"] is None)


def random_networks(
    random: np.random.Generator, features: int, devices: int, set_sizes: list[int]
) -> _core.CostNetworks:
    def network(*sizes: int, low: float = -1.0) -> _core.Network:
        return _core.Network(
            [
                (random.uniform(low, 1.0, (outputs, inputs)) / inputs, random.normal(size=outputs))
                for inputs, outputs in itertools.pairwise(sizes)
            ]
        )

    encoding = int(random.integers(1, 40))
    return _core.CostNetworks(
        network(features, int(random.integers(1, 50)), encoding),
        network(encoding, *set_sizes, 1, low=-0.2),
        {devices: network(2 * devices, int(random.integers(1, 20)), devices, low=-0.1)},
        {devices: network(devices, int(random.integers(1, 20)), devices, low=-0.1)},
    )


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", [1, 2, 3, 7, 16, 17, 33])
def test_random_problems(layers: int, devices: int) -> None:
    random = np.random.default_rng(100 * layers + devices)
    found = 0
    for spare in (0.02, 0.3, 3.0):  # memory beyond an even share
        tables = int(random.integers(4 * devices, 6 * devices + 1))
        features = int(random.integers(1, 9))
        set_sizes = [int(random.choice([1, 3, 15, 16, 17, 31, 65])) for _ in range(layers - 1)]
        widths = 4 * 2 ** random.integers(0, 5, tables)
        bytes_per_column = random.integers(2**32, 2**33, tables)
        bytes_fixed = random.integers(0, 2**20, tables)
        total = int((widths * bytes_per_column + bytes_fixed).sum())
        problem = _core.Problem(
            features=random.normal(size=(tables, features)),
            features_per_column=random.normal(size=(tables, features)),
            features_per_doubling=random.normal(size=features),
            dims=widths,
            output_width=random.choice([random.uniform(0.0, 2.0, tables), np.ones(tables)]),
            bytes_per_column=bytes_per_column,
            bytes_fixed=bytes_fixed,
            devices=devices,
            memory_bytes=int(total / devices * (1.0 + spare)),
        )
        networks = random_networks(random, features, devices, set_sizes)
        options = {"beam_width": 2, "candidates": 3, "max_splits": 4, "grid_steps": 7}
        plan = plan_of_all(networks, problem, **options)
        if plan is not None:
            found += 1
            assert max(plan.memory_bytes) <= min(problem.memory_bytes)
            again = _core.evaluate(networks, problem, plan.column_splits, plan.placement)
            assert everything(again) == everything(plan)
    assert found > 0


def case(
    random: np.random.Generator,
    dims: list[int],
    devices: int,
    cap: int,
    *,
    output_width: list[int] | None = None,
    bytes_per_column: list[int] | None = None,
    bytes_fixed: list[int] | None = None,
    **changes: Any,
) -> ReferenceSearch:
    """A problem of whole numbers; without more, all shards of a width cost the same."""
    tables = len(dims)
    arguments: dict[str, Any] = {
        "table": random_layers(random, 1, 3, low=0),
        "set_": random_layers(random, 3, 3, 1, low=0),
        "forward": random_layers(random, 2 * devices, devices, low=0),
        "backward": random_layers(random, devices, devices, low=0),
        "features": np.array(dims)[:, None],
        "output_width": output_width or [1] * tables,
        "bytes_per_column": bytes_per_column or [1] * tables,
        "bytes_fixed": bytes_fixed or [0] * tables,
        "devices": devices,
        "caps": [cap] * devices,
        "grid_steps": 11,
    }
    return ReferenceSearch(**(arguments | changes))


def compare_with_reference(
    reference: ReferenceSearch, *, beam_width: int = 2, candidates: int = 4, max_splits: int = 3
) -> _core.Plan | None:
    cost, splits, placement = reference.search(beam_width, candidates, max_splits)
    plan = plan_of_all(
        *engine_arguments(reference),
        beam_width=beam_width,
        candidates=candidates,
        max_splits=max_splits,
        grid_steps=reference.grid_steps,
    )
    if placement is None:
        assert plan is None
    else:
        assert plan is not None
        assert (plan.cost, plan.column_splits, plan.placement) == (cost, splits, placement)
    return plan


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_differ_only_below_fp32_resolution(seed: int) -> None:
    """Equal costs are decided by memory, fits by single bytes, in numbers above 2^40."""
    random = np.random.default_rng(seed)
    tables, devices = int(random.integers(4, 8)), int(random.integers(2, 4))
    dims = [8] * tables if seed % 2 else (4 * 2 ** random.integers(0, 3, tables)).tolist()
    bytes_per_column = (2**40 + random.integers(0, 3, tables)).tolist()
    bytes_fixed = random.integers(0, 2, tables).tolist()
    sizes = [d * b + f for d, b, f in zip(dims, bytes_per_column, bytes_fixed, strict=True)]
    # An exact fit of some of the tables, or a byte less or more.
    fit = sum(sorted(sizes)[-(tables // devices + 1) :])
    for cap in (fit - 1, fit, fit + 1):
        compare_with_reference(
            case(
                random,
                dims,
                devices,
                cap,
                bytes_per_column=bytes_per_column,
                bytes_fixed=bytes_fixed,
            )
        )


@pytest.mark.parametrize("seed", range(10))
def test_output_dims_beyond_fp32_and_limits_hit_exactly(seed: int) -> None:
    """Whole output dims above 2^24, where fp32 rounds; an even share is a limit hit exactly."""
    random = np.random.default_rng(seed)
    devices = int(random.integers(2, 4))
    tables = devices * int(random.integers(1, 4))
    output_width = [2**24 + 1] * tables
    if seed % 2:
        output_width = (2**24 + random.integers(0, 3, tables)).tolist()
    reference = case(
        random,
        [8] * tables,
        devices,
        cap=10**6,
        output_width=output_width,
        # These networks see the output dims rounded, so they must not look at them.
        forward=[(np.zeros((devices, 2 * devices), int), np.zeros(devices, int))],
        backward=[(np.zeros((devices, devices), int), np.zeros(devices, int))],
    )
    plan = compare_with_reference(reference)
    if seed % 2 == 0:  # an even share for everyone is what the lowest limit leaves
        assert plan is not None


def test_exact_fit_uses_every_byte() -> None:
    random = np.random.default_rng(0)
    bytes_per_column = [2**50 + i for i in range(4)]
    total = 8 * sum(bytes_per_column)
    # 0 with 3 and 1 with 2 are the only pairs that fit. The pass takes 3 and 2 first, and then 1 to
    # the device that holds less.
    reference = case(random, [8] * 4, 2, cap=total // 2, bytes_per_column=bytes_per_column)
    plan = compare_with_reference(reference)
    assert plan is not None
    assert plan.memory_bytes == [total // 2] * 2
    one_byte_less = case(random, [8] * 4, 2, cap=total // 2 - 1, bytes_per_column=bytes_per_column)
    assert compare_with_reference(one_byte_less) is None


def case_of_many_limits(grid_steps: int, seed: int) -> ReferenceSearch:
    """Costs and output dims have little to do with each other, so the limits are in the way."""
    random = np.random.default_rng(seed)
    tables, devices = int(random.integers(12, 21)), int(random.integers(2, 5))
    dims = (4 * 2 ** random.integers(0, 3, tables)).tolist()
    bytes_per_column = random.integers(1, 9, tables).tolist()
    fair_share = int(np.dot(dims, bytes_per_column)) / devices
    return case(
        random,
        dims,
        devices,
        cap=int(fair_share * (1.15 if seed % 2 else 2.0)),  # little or much
        table=random_layers(random, 3, 4, 3, low=0),
        features=np.column_stack([dims, random.integers(0, 20, (tables, 2))]),
        output_width=random.integers(1, 100, tables).tolist(),
        bytes_per_column=bytes_per_column,
        grid_steps=grid_steps,
    )


@pytest.mark.parametrize(
    ("grid_steps", "seed"),
    [
        *((64, seed) for seed in (4, 224, 396, 297, 449, 881)),
        *((257, seed) for seed in (750, 814)),
    ],
)
def test_many_limits_that_give_different_passes(grid_steps: int, seed: int) -> None:
    """What a pass keeps of one under a higher limit is what it would have placed itself."""
    reference = case_of_many_limits(grid_steps, seed)
    assert len({str(placement) for placement in reference.passes(reference.unsplit())}) >= 12
    splits = int(grid_steps == 64)  # the reference takes seconds for more
    plan = compare_with_reference(reference, beam_width=1, candidates=1, max_splits=splits)
    assert plan is not None


@pytest.mark.parametrize("seed", range(6))
def test_many_limits_with_pinned_tables_and_caps_that_differ(seed: int) -> None:
    """What is pinned stays under every limit, also on devices beyond the limit."""
    reference = case_of_many_limits(64, seed)
    devices = reference.devices
    reference.pinned = [
        table % devices if table < devices + 1 else -1 for table in range(len(reference.features))
    ]
    if seed % 2:  # a device that nothing is pinned to
        reference.pinned = [-1 if device == 1 else device for device in reference.pinned]
    reference.caps = [cap * (2 + device) // 2 for device, cap in enumerate(reference.caps)]
    assert compare_with_reference(reference, beam_width=1, candidates=2, max_splits=1) is not None


@pytest.mark.parametrize("seed", [281, 351, 927])
def test_passes_that_fail_under_the_highest_limits(seed: int) -> None:
    reference = case_of_many_limits(33, seed)
    passes = reference.passes(reference.unsplit())
    assert passes[-1] is None
    assert any(passes)
    assert compare_with_reference(reference, max_splits=0) is not None


@pytest.mark.parametrize("grid_steps", [3, 11, 64, 257])
def test_the_only_limit_that_gives_a_plan_is_tried(grid_steps: int) -> None:
    """Table 2 costs least on device 1, but then table 3 fits nowhere: only a limit forbids it."""
    mean = 9973  # a prime: no limit but the lowest is a whole number
    for step in range(1, grid_steps - 1, 1 + grid_steps // 20):
        limit = math.floor((1.0 + step * (0.5 / (grid_steps - 1))) * mean)
        third = mean + 2
        second = limit + 1 - third  # one too many for 1 and 2 together
        reference = case(
            np.random.default_rng(0),
            [8] * 4,
            2,
            cap=8 * 10,
            table=[(np.array([[0, 1]]), np.zeros(1, int))],
            set_=[(np.ones((1, 1), int), np.zeros(1, int))],
            features=np.column_stack([[8] * 4, [5, 4, 2, 1]]),  # the second is the cost
            output_width=[limit - third, second, third, 2 * mean - limit - second],
            bytes_per_column=[5, 3, 5, 7],  # only 0 with 2 and 1 with 3 fit
            grid_steps=grid_steps,
        )
        passes = reference.passes(reference.unsplit())
        assert [i for i, placement in enumerate(passes) if placement] == [step]
        plan = compare_with_reference(reference, max_splits=0)
        assert plan is not None
        assert plan.placement == [[0, 2], [1, 3]]


def test_every_table_costs_what_it_costs_alone() -> None:
    """Hidden units that are dead for some of the tables computed together, or for all."""
    random = np.random.default_rng(0)
    tables, features = 200, 6

    def network(*sizes: int) -> _core.Network:
        layers = []
        for inputs, outputs in itertools.pairwise(sizes):
            bias = random.choice([-0.0, -0.5, -100.0], outputs, p=[0.6, 0.3, 0.1])
            layers.append((random.normal(size=(outputs, inputs)) / inputs, bias))
        return _core.Network(layers)

    values = random.normal(size=(tables, features))
    values[random.random((tables, features)) < 0.6] = 0.0
    values[random.random((tables, features)) < 0.1] = -0.0
    values[40:60] = 0.0  # kLanes tables and more

    def costs(networks: _core.CostNetworks, rows: npt.NDArray[np.float64]) -> bytes:
        ones = np.ones(len(rows), int)
        problem = _core.Problem(
            **ShardFeatures.with_width(rows.astype(np.float32), 0)._asdict(),
            dims=4 * ones,
            output_width=ones,
            bytes_per_column=ones,
            bytes_fixed=ones,
            devices=2,
            memory_bytes=1000,
        )
        return _core.single_table_compute(networks, problem).tobytes()

    for set_sizes in ([], [64], [33], [20, 40]):
        networks = _core.CostNetworks(
            network(features, 70, 50, 30), network(30, *set_sizes, 1), {}, {}
        )
        together = set()
        for isa in _core.supported_isas():
            _core.use_isa(isa)
            together.add(costs(networks, values))
            assert together == {b"".join(costs(networks, row[None]) for row in values)}


@pytest.mark.parametrize("set_sizes", [[], [16], [3], [64], [16, 5], [3, 64]])
@pytest.mark.parametrize("where", ["hidden", "encoding", "set"])
def test_what_is_not_a_number_passes_no_relu(where: str, set_sizes: list[int]) -> None:
    """inf - inf, in a layer of the table network or the first one of the set network."""

    def ones(*sizes: int) -> list[Layer]:
        return [
            (np.ones((outputs, inputs)), np.ones(outputs))
            for inputs, outputs in itertools.pairwise(sizes)
        ]

    huge: Layer = (np.full((2, 2), 3e38) * [1, -1], np.zeros(2))
    if where == "hidden":
        table, set_ = [huge, *ones(2, 4)], ones(4, *set_sizes, 1)
    elif where == "encoding":
        table, set_ = [*ones(2, 2), huge], ones(2, *set_sizes, 1)
    else:  # encodings are inf already
        size, *others = [*set_sizes, 1]
        table = [(np.full((2, 2), 3e38), np.zeros(2))]
        set_ = [(np.ones((size, 2)) * [1, -1], np.zeros(size)), *ones(size, *others)]
    networks = _core.CostNetworks(_core.Network(table), _core.Network(set_), {}, {})
    problem = _core.Problem(
        **ShardFeatures.with_width(np.full((3, 2), 10.0, np.float32), 0)._asdict(),
        dims=[8] * 3,
        output_width=[1] * 3,
        bytes_per_column=[1] * 3,
        bytes_fixed=[0] * 3,
        devices=2,
        memory_bytes=1000,
    )
    for isa in _core.supported_isas():
        _core.use_isa(isa)
        with pytest.raises(ValueError, match=r"features\[0\]: .* gives no finite cost"):
            _core.single_table_compute(networks, problem)
