"""The compiled engine: golden answers, determinism, refusal of bad input."""

from __future__ import annotations

import functools
import itertools
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from conftest import GOLDEN, GOLDEN_DEVICE_COUNTS
from neuroshard_fast import _core
from neuroshard_fast.features import DIM_COLUMN, PUBLISHED_FEATURES, ShardFeatures

TASKS = ("2_gpu", "4_gpu", "4_gpu_tight", "8_gpu", "16_gpu", "128_gpu")


class Task(NamedTuple):
    """A golden task, the engine's view of it, and the published implementation's answers."""

    name: str
    problem: _core.Problem
    search: dict[str, int]
    expected: dict[str, Any]
    baseline_keys: dict[str, npt.NDArray[np.float64]]


def load_network(checkpoint: dict[str, Any], prefix: str, *, normalised: bool) -> _core.Network:
    state = checkpoint["state_dict"]
    count = sum(key.startswith(prefix) and key.endswith("weight") for key in state)
    layers = [
        (state[f"{prefix}.{k}.weight"].numpy(), state[f"{prefix}.{k}.bias"].numpy())
        for k in range(count)
    ]
    if not normalised:
        return _core.Network(layers)
    return _core.Network(
        layers, checkpoint["feature_means"].numpy(), checkpoint["feature_stds"].numpy()
    )


@functools.cache
def golden_networks() -> _core.CostNetworks:
    import torch

    def load(name: str) -> dict[str, Any]:
        checkpoint: dict[str, Any] = torch.load(GOLDEN / "models" / name, weights_only=True)
        return checkpoint

    compute = load("compute.pt")
    return _core.CostNetworks(
        load_network(compute, "t_hidden", normalised=True),
        load_network(compute, "c_hidden", normalised=False),
        {
            d: load_network(load(f"comm_{d}_fw.pt"), "hidden", normalised=True)
            for d in GOLDEN_DEVICE_COUNTS
        },
        {
            d: load_network(load(f"comm_{d}_bw.pt"), "hidden", normalised=True)
            for d in GOLDEN_DEVICE_COUNTS
        },
    )


def make_problem(
    configs: list[dict[str, Any]], dims: list[int], devices: int, memory_bytes: int
) -> _core.Problem:
    features = np.array(
        [
            [dim if name == "dim" else config[name] for name in PUBLISHED_FEATURES]
            for config, dim in zip(configs, dims, strict=True)
        ],
        np.float32,
    )
    rows = np.array([config["row"] for config in configs], np.int64)
    return _core.Problem(
        **ShardFeatures.with_width(features, DIM_COLUMN)._asdict(),
        dims=np.array(dims, np.int64),
        output_width=np.ones(len(dims)),
        bytes_per_column=4 * rows,
        bytes_fixed=np.zeros(len(dims), np.int64),
        devices=devices,
        memory_bytes=memory_bytes,
    )


def golden_tasks(name: str) -> Iterator[Task]:
    table_configs = json.loads((GOLDEN / "table_configs.json").read_text())
    expected = json.loads((GOLDEN / "tasks" / name / "expected.json").read_text())
    lines = (GOLDEN / "tasks" / name / "data.txt").read_text().splitlines()
    options = expected["search"]
    for number, (line, answers) in enumerate(zip(lines, expected["tasks"], strict=True)):
        ids, dims = ([int(word) for word in part.split(",")] for part in line.split())
        configs = [table_configs[i] for i in ids]
        rows = np.array([config["row"] for config in configs], float)
        lookups = np.array(dims) * np.array([config["pooling_factor"] for config in configs])
        yield Task(
            name=f"{name}:{number}",
            problem=make_problem(
                configs, dims, expected["ndevices"], math.floor(expected["max_mem_gb"] * 2**30)
            ),
            search={
                "beam_width": options["k"],
                "candidates": options["n"],
                "max_splits": options["max_length"],
                "grid_steps": options["search_steps"],
            },
            expected=answers,
            baseline_keys={
                "size_greedy": rows * np.array(dims),
                "dim_greedy": np.array(dims, float),
                "lookup_greedy": lookups,
                "size_lookup_greedy": lookups * np.log10(rows),
            },
        )


ALL_TASKS = [task for name in TASKS for task in golden_tasks(name)]


def relative_error(value: float, expected: float) -> float:
    return abs(value - expected) / abs(expected)


def test_golden_single_table_compute() -> None:
    worst = 0.0
    for task in ALL_TASKS:
        costs = _core.single_table_compute(golden_networks(), task.problem)
        expected = np.array(task.expected["single_table_compute"])
        worst = max(worst, float(np.max(np.abs(costs - expected) / np.abs(expected))))
    print(
        f"single-table compute of {len(ALL_TASKS)} golden tasks: worst relative error {worst:.1e}"
    )
    assert worst < 1e-4


def test_golden_table_wise() -> None:
    same_placement = 0
    for task in ALL_TASKS:
        result = _core.table_wise(
            golden_networks(), task.problem, grid_steps=task.search["grid_steps"]
        )
        expected = task.expected["table_wise"]
        if expected["shards"] is None:
            assert result is None, task.name
            same_placement += 1
        else:
            assert result is not None, task.name
            assert relative_error(result.cost, expected["cost"]) < 1e-4, task.name
            same_placement += result.placement == expected["shards"]
    print(f"table-wise: the same placement on {same_placement} of {len(ALL_TASKS)} golden tasks")


def test_golden_search() -> None:
    close = same_splits = same_plan = infeasible = 0
    for task in ALL_TASKS:
        result = _core.search(golden_networks(), task.problem, **task.search)
        expected = task.expected["plan"]
        if expected is None:
            assert result is None, task.name
            infeasible += 1
            close += 1
            same_splits += 1
            same_plan += 1
            continue
        assert result is not None, task.name
        if relative_error(result.cost, expected["cost"]) < 1e-4:
            close += 1
        else:
            print(f"{task.name}: cost {result.cost:.6f}, expected {expected['cost']:.6f}")
        assert result.cost <= 1.02 * expected["cost"], task.name
        same_splits += result.column_splits == expected["col_split_steps"]
        same_plan += result.placement == expected["shards"]
    total = len(ALL_TASKS)
    print(
        f"search on {total} golden tasks: cost within 1e-4 on {close}, same column splits on "
        f"{same_splits}, same placement on {same_plan}, infeasible as expected {infeasible}"
    )
    assert close >= 0.97 * total
    assert same_splits >= 0.9 * total


def test_golden_plans_evaluate_to_their_costs() -> None:
    for task in ALL_TASKS:
        expected = task.expected["plan"]
        if expected is None:
            continue
        result = _core.evaluate(
            golden_networks(), task.problem, expected["col_split_steps"], expected["shards"]
        )
        assert relative_error(result.cost, expected["cost"]) < 1e-4, task.name
        np.testing.assert_allclose(result.compute, expected["compute"], rtol=1e-4)
        np.testing.assert_allclose(result.forward, expected["fw_comm"], rtol=1e-4)
        np.testing.assert_allclose(result.backward, expected["bw_comm"], rtol=1e-4)
        assert result.dim_sums == expected["dim_sums"], task.name
        np.testing.assert_allclose(
            np.array(result.memory_bytes) / 2**30, expected["sizes_gb"], rtol=1e-9
        )


@pytest.mark.parametrize(
    "name", ["size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"]
)
def test_golden_greedy_baselines(name: str) -> None:
    for task in ALL_TASKS:
        placement = _core.greedy_baseline(task.problem, task.baseline_keys[name])
        assert placement == task.expected["baselines"][name], task.name


def small_networks(devices: int = 2, features: int = 3, seed: int = 0) -> _core.CostNetworks:
    """Random networks of unpublished sizes; more shards on a device cost more."""
    random = np.random.default_rng(seed)

    def network(*sizes: int, low: float = -1.0) -> _core.Network:
        return _core.Network(
            [
                (random.uniform(low, 1.0, (outputs, inputs)) / inputs, np.full(outputs, 0.1))
                for inputs, outputs in itertools.pairwise(sizes)
            ]
        )

    return _core.CostNetworks(
        network(features, 7, 5),
        network(5, 3, 1, low=0.0),
        {devices: network(2 * devices, 9, devices, low=0.0)},
        {devices: network(devices, 33, devices, low=0.0)},
    )


def slow_networks() -> _core.CostNetworks:
    """Networks for two devices that take milliseconds for a table."""
    sizes = (3, 3000, 3000, 1)
    table = _core.Network([(np.zeros((o, i)), np.zeros(o)) for i, o in itertools.pairwise(sizes)])
    return _core.CostNetworks(
        table,
        _core.Network([(np.zeros((1, 1)), np.zeros(1))]),
        {2: _core.Network([(np.zeros((2, 4)), np.zeros(2))])},
        {2: _core.Network([(np.zeros((2, 2)), np.zeros(2))])},
    )


def problem_arguments(tables: int = 4, **changes: Any) -> dict[str, Any]:
    """Arguments of a sound problem: tables of 16 columns of 10 bytes each, two devices.

    Other features than the three here do not depend on the width.
    """
    features = changes.get("features")
    if isinstance(features, np.ndarray) and features.ndim == 2 and features.dtype.kind == "f":
        width = {"features_per_column": np.zeros_like(features)}
        changes = width | {"features_per_doubling": np.zeros(features.shape[1])} | changes
    return {
        "features": np.linspace(0.0, 1.0, tables * 3).reshape(tables, 3) * [1.0, 0.0, 1.0],
        "features_per_column": np.tile([0.0, 1.0, 0.0], (tables, 1)),
        "features_per_doubling": np.zeros(3),
        "dims": np.full(tables, 16),
        "output_width": np.ones(tables),
        "bytes_per_column": np.full(tables, 10),
        "bytes_fixed": np.zeros(tables, int),
        "devices": 2,
        "memory_bytes": 1000,
    } | changes


def reference_network(
    layers: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]],
    values: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    for k, (weight, bias) in enumerate(layers):
        values = weight.astype(float) @ (np.maximum(values, 0.0) if k else values) + bias
    return values


@pytest.mark.parametrize("hidden", [1, 3, 7, 8, 31, 32, 33, 64, 100])
def test_networks_of_any_layer_size(hidden: int) -> None:
    random = np.random.default_rng(hidden)
    sizes = [5, hidden, 2 * hidden + 1, 6]
    layers = [
        (random.normal(size=(o, i)).astype(np.float32), random.normal(size=o).astype(np.float32))
        for i, o in itertools.pairwise(sizes)
    ]
    head = [
        (random.normal(size=(o, i)).astype(np.float32), random.normal(size=o).astype(np.float32))
        for i, o in [(6, hidden), (hidden, 1)]
    ]
    mean, std = random.normal(size=5), random.uniform(0.5, 2.0, 5)
    networks = _core.CostNetworks(_core.Network(layers, mean, std), _core.Network(head), {}, {})
    features = random.normal(size=(3, 5)).astype(np.float32)
    features[:, 1] = 16.0
    problem = _core.Problem(**problem_arguments(tables=3, features=features, memory_bytes=10**6))
    expected = [
        reference_network(head, np.maximum(reference_network(layers, (row - mean) / std), 0.0))[0]
        for row in features.astype(float)
    ]
    costs = _core.single_table_compute(networks, problem)
    np.testing.assert_allclose(costs, expected, rtol=1e-4, atol=1e-4)


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    for task in [*ALL_TASKS[:12], *ALL_TASKS[-4:-1]]:
        results = [
            _core.search(golden_networks(), task.problem, **task.search, threads=threads)
            for threads in (1, 2, 7)
        ]
        plans = [
            result and (result.cost, result.column_splits, result.placement, result.compute)
            for result in results
        ]
        assert plans[0] == plans[1] == plans[2], task.name


def test_search_result_evaluates_to_itself_bit_for_bit() -> None:
    for task in ALL_TASKS[:20]:
        result = _core.search(golden_networks(), task.problem, **task.search)
        assert result is not None
        again = _core.evaluate(
            golden_networks(), task.problem, result.column_splits, result.placement
        )
        assert again.cost == result.cost
        totals = np.sum([result.compute, result.forward, result.backward], axis=0)
        assert result.cost == pytest.approx(max(totals), rel=1e-12)
        assert max(result.memory_bytes) <= min(task.problem.memory_bytes)


def test_a_finer_grid_is_at_least_as_good() -> None:
    """Powers of two, so that the finer grid has exactly the limits of the coarser one and more."""
    for task in ALL_TASKS[:10]:
        fine = _core.table_wise(golden_networks(), task.problem, grid_steps=1025)
        coarse = _core.table_wise(golden_networks(), task.problem, grid_steps=9)
        if coarse is not None:
            assert fine is not None
            assert fine.cost <= coarse.cost


def test_table_wise_is_the_search_without_splits() -> None:
    task = ALL_TASKS[0]
    table_wise = _core.table_wise(golden_networks(), task.problem)
    search = _core.search(golden_networks(), task.problem, max_splits=0)
    assert table_wise is not None
    assert search is not None
    assert search.column_splits == []
    assert search.placement == table_wise.placement


def test_splitting_finds_a_plan_where_whole_tables_do_not_fit() -> None:
    problem = _core.Problem(**problem_arguments(tables=3, memory_bytes=240))
    assert _core.table_wise(small_networks(), problem) is None
    result = _core.search(small_networks(), problem)
    assert result is not None
    assert result.memory_bytes == [240, 240]


def test_fixed_bytes_are_in_every_shard() -> None:
    problem = _core.Problem(**problem_arguments(bytes_fixed=np.full(4, 7)))
    result = _core.evaluate(small_networks(), problem, [0, 4], [[0, 1, 2, 3], [4, 5]])
    assert result.memory_bytes == [80 + 3 * 160 + 4 * 7, 2 * 40 + 2 * 7]


def test_output_width_scales_what_devices_send() -> None:
    problem = _core.Problem(**problem_arguments(output_width=[0.5, 1.0, 2.0, 10.5]))
    result = _core.evaluate(small_networks(), problem, [3], [[0, 3], [1, 2, 4]])
    assert result.dim_sums == [8.0 + 84.0, 16.0 + 32.0 + 84.0]


def test_split_shards_names_table_offset_and_width() -> None:
    problem = _core.Problem(**problem_arguments(tables=2, dims=[32, 16]))
    assert _core.split_shards(problem, [0, 2, 1]) == [
        (0, 0, 16),
        (1, 0, 8),
        (0, 16, 8),
        (0, 24, 8),
        (1, 8, 8),
    ]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([4], r"column_splits\[0\] = 4: there are only 4 shards"),
        ([-1], r"column_splits\[0\] = -1"),
        ([0, 0, 0], r"column_splits\[2\] = 0: a shard of 4 columns cannot be split"),
    ],
)
def test_impossible_splits_are_refused(splits: list[int], message: str) -> None:
    problem = _core.Problem(**problem_arguments())
    with pytest.raises(ValueError, match=message):
        _core.split_shards(problem, splits)
    with pytest.raises(ValueError, match=message):
        _core.evaluate(small_networks(), problem, splits, [[], []])


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([[0, 1, 2, 3]], "one list for each of the 2 devices, it has 1"),
        ([[0, 1], [2]], "shard 3 is on no device"),
        ([[0, 1], [2, 3, 1]], r"placement\[1\]: shard 1 is placed twice"),
        ([[0, 1], [2, 3, 4]], r"placement\[1\]: shard 4 does not exist, there are 4"),
        ([[0, 1], [2, 3, -1]], r"placement\[1\]: shard -1 does not exist"),
        ([[], []], "shard 0 is on no device"),
    ],
)
def test_invalid_placements_are_refused(placement: list[list[int]], message: str) -> None:
    problem = _core.Problem(**problem_arguments())
    with pytest.raises(ValueError, match=message):
        _core.evaluate(small_networks(), problem, [], placement)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.full((4, 3), np.nan)}, "features must hold finite"),
        ({"features": np.full((4, 3), 1e300)}, "features must hold numbers within"),
        ({"features": np.zeros(12)}, "features must have 2 dimension"),
        ({"features": np.zeros((3, 3))}, "features must have one row"),
        ({"features": np.zeros((4, 0))}, "features must have the shape"),
        ({"features": np.zeros((4, 3), complex)}, "features must be an array of real numbers"),
        ({"features": np.array([["a"] * 3] * 4)}, "features must be an array of real numbers"),
        ({"features": [[1.0], [2.0, 3.0]]}, "features must be an array of real numbers"),
        ({"features": None}, "features must be an array of real numbers"),
        ({"features": np.zeros((4, 3), np.longdouble)}, "features must be an array"),
        ({"features_per_column": np.zeros((4, 2))}, "features_per_column must have the shape"),
        ({"features_per_column": np.zeros(12)}, "features_per_column must have 2 dimension"),
        (
            {"features_per_column": np.full((4, 3), np.inf)},
            r"features_per_column\[0\] must hold finite numbers|features_per_column must hold",
        ),
        ({"features_per_doubling": np.zeros(4)}, "features_per_doubling must have one entry"),
        ({"features_per_doubling": [0.0, np.nan, 0.0]}, "features_per_doubling must hold finite"),
        ({"dims": [16, 16, 16, 6]}, r"dims\[3\] must be a multiple of 4, got 6"),
        ({"dims": [16, 0, 16, 16]}, r"dims\[1\]"),
        ({"dims": [16, -4, 16, 16]}, r"dims\[1\]"),
        ({"dims": [16, 2**62, 16, 16]}, r"dims\[1\]"),
        ({"dims": np.full(4, 2**64 - 4, np.uint64)}, r"dims\[0\]"),
        ({"dims": [16.0] * 4}, "dims must be an array of integers"),
        ({"dims": np.array([True] * 4)}, "dims must be an array of integers"),
        ({"dims": 16}, "dims must have 1 dimension"),
        ({"dims": [2**70] * 4}, "dims must be an array of integers"),
        ({"output_width": [1.0, np.inf, 1.0, 1.0]}, "output_width must hold finite"),
        ({"output_width": [1.0, -1.0, 1.0, 1.0]}, r"output_width\[1\]"),
        ({"output_width": [1.0]}, "output_width must have one entry for each of the 4 tables"),
        ({"bytes_per_column": [10, 10, -10, 10]}, r"bytes_per_column\[2\]"),
        ({"bytes_per_column": [2**58] * 4}, r"bytes_per_column\[0\]"),
        ({"bytes_per_column": [2**56 - 1] * 4}, "all tables together"),
        ({"bytes_per_column": [10]}, "bytes_per_column must have one entry"),
        ({"bytes_fixed": [2**60] * 4}, r"bytes_fixed\[0\]"),
        ({"bytes_fixed": [-1] * 4}, r"bytes_fixed\[0\]"),
        ({"bytes_fixed": []}, "bytes_fixed must be an array of integers"),
        ({"devices": 0}, "devices must lie between 1 and 65536, got 0"),
        ({"devices": 10**6}, "devices"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 2**61}, "memory_bytes"),
    ],
)
def test_unusable_problems_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Problem(**problem_arguments(**changes))


def test_a_problem_without_tables_is_refused() -> None:
    empty: dict[str, Any] = {
        "features": np.zeros((0, 3)),
        "dims": np.zeros(0, int),
        "output_width": np.zeros(0),
        "bytes_per_column": np.zeros(0, int),
        "bytes_fixed": np.zeros(0, int),
    }
    with pytest.raises(ValueError, match="number of tables must lie between 1"):
        _core.Problem(**problem_arguments(**empty))


def test_arrays_of_any_layout_are_read_alike() -> None:
    features = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
    layouts = [
        features,
        np.asfortranarray(features),
        features.astype(">f8"),
        np.repeat(features, 2, axis=0)[::2],
        features.tolist(),
    ]
    dims = [np.full(4, 16, "<i8"), np.full(4, 16, ">i2"), np.full(8, 16, np.uint8)[::2]]
    results = {
        tuple(_core.single_table_compute(small_networks(), _core.Problem(**arguments)))
        for layout in layouts
        for dim in dims
        for arguments in [problem_arguments() | {"features": layout, "dims": dim}]
    }
    assert len(results) == 1


@pytest.mark.parametrize(
    ("layers", "mean", "std", "message"),
    [
        ([], None, None, "at least one layer"),
        ([(np.zeros((2, 3)), np.zeros(3))], None, None, r"layers\[0\] must have a weight of shape"),
        ([(np.zeros(3), np.zeros(3))], None, None, r"layers\[0\] weight must have 2"),
        ([(np.zeros((2, 3)), np.zeros((2, 1)))], None, None, r"layers\[0\] bias must have 1"),
        ([(np.zeros((0, 3)), np.zeros(0))], None, None, r"layers\[0\]"),
        ([(np.zeros((3, 0)), np.zeros(3))], None, None, r"layers\[0\]"),
        ([(np.full((2, 3), np.nan), np.zeros(2))], None, None, r"layers\[0\] weight must hold"),
        ([(np.zeros((2, 3)), np.full(2, np.inf))], None, None, r"layers\[0\] bias must hold"),
        ([(np.zeros((2, 3)), np.zeros(2))] * 2, None, None, "as many inputs as the one before"),
        (
            [(np.zeros((2, 3)), np.zeros(2))],
            np.zeros(2),
            np.ones(2),
            "feature_mean and feature_std",
        ),
        ([(np.zeros((2, 3)), np.zeros(2))], np.zeros(3), None, "feature_mean and feature_std"),
        ([(np.zeros((2, 3)), np.zeros(2))], np.zeros(3), np.zeros(3), "feature_std must hold"),
        ([(np.zeros((2, 3)), np.zeros(2))], np.zeros(3), -np.ones(3), "feature_std must hold"),
        (
            [(np.zeros((2, 3)), np.zeros(2))],
            np.zeros(3),
            np.full(3, np.nan),
            "feature_std must hold",
        ),
    ],
)
def test_unusable_networks_are_refused(layers: Any, mean: Any, std: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Network(layers, mean, std)


def test_cost_networks_that_do_not_belong_together_are_refused() -> None:
    def network(inputs: int, outputs: int) -> _core.Network:
        return _core.Network([(np.zeros((outputs, inputs)), np.zeros(outputs))])

    table, head = network(3, 5), network(5, 1)
    with pytest.raises(ValueError, match="set: the network must have 5 inputs and 1 outputs"):
        _core.CostNetworks(table, network(4, 1), {}, {})
    with pytest.raises(ValueError, match="set: the network must have"):
        _core.CostNetworks(table, network(5, 2), {}, {})
    with pytest.raises(ValueError, match=r"backward\[2\] is missing"):
        _core.CostNetworks(table, head, {2: network(4, 2)}, {})
    with pytest.raises(ValueError, match=r"forward\[2\] is missing"):
        _core.CostNetworks(table, head, {}, {2: network(2, 2)})
    with pytest.raises(ValueError, match=r"forward\[2\]: the network must have 4 inputs"):
        _core.CostNetworks(table, head, {2: network(2, 2)}, {2: network(2, 2)})
    with pytest.raises(ValueError, match="at least 1"):
        _core.CostNetworks(table, head, {0: network(2, 2)}, {0: network(2, 2)})
    both = _core.CostNetworks(table, head, {2: network(4, 2)}, {2: network(2, 2)})
    assert both.device_counts == [2]
    assert both.features == 3


def test_networks_and_problem_must_suit_each_other() -> None:
    three_devices = _core.Problem(**problem_arguments(devices=3))
    with pytest.raises(ValueError, match="not made for 3 devices, only for: 2"):
        _core.search(small_networks(), three_devices)
    with pytest.raises(ValueError, match="take 4 features of a table, got 3"):
        _core.search(small_networks(features=4), _core.Problem(**problem_arguments()))


@pytest.mark.parametrize(
    ("option", "low", "high"),
    [
        ("beam_width", 1, 4096),
        ("candidates", 1, 4096),
        ("max_splits", 0, 65536),
        ("grid_steps", 1, 65536),
        ("threads", 1, 1024),
    ],
)
def test_search_options_out_of_range_are_refused(option: str, low: int, high: int) -> None:
    problem = _core.Problem(**problem_arguments())
    for value in (low - 1, high + 1):
        message = f"{option} must lie between {low} and {high}, got {value}"
        with pytest.raises(ValueError, match=message):
            _core.search(small_networks(), problem, **{option: value})


def test_set_networks_too_wide_for_the_devices_are_refused() -> None:
    """A file of two megabytes must not make the search ask for 16 GiB."""

    def network(*sizes: int) -> _core.Network:
        return _core.Network(
            [(np.zeros((o, i)), np.zeros(o)) for i, o in itertools.pairwise(sizes)]
        )

    devices = 2**16
    networks = _core.CostNetworks(
        network(3, 1),
        network(1, 4096, 1),
        {devices: network(2 * devices, 1, devices)},
        {devices: network(devices, 1, devices)},
    )
    few = _core.Problem(**problem_arguments(devices=devices))
    _core.search(networks, few, max_splits=0, threads=8)  # is not
    many = _core.Problem(**problem_arguments(4096, devices=devices, memory_bytes=10**6))
    with pytest.raises(
        ValueError,
        match="set: a first layer of 4096 outputs is too wide for 65536 devices, 4096 tables and 8",
    ):
        _core.search(networks, many, threads=8)
    with pytest.raises(ValueError, match="beam_width: a beam of 4096 is too wide for 4096 tables"):
        _core.search(small_networks(), many, beam_width=4096, max_splits=65536)
    wide = _core.CostNetworks(network(3, 1), network(1, 200_000, 1), {}, {})
    with pytest.raises(ValueError, match="outputs is too wide for 4096 tables"):
        _core.single_table_compute(wide, many)


def networks_with_set_width(width: int) -> _core.CostNetworks:
    """Networks for two devices and three features whose set network has so wide a first layer."""

    def network(*sizes: int) -> _core.Network:
        return _core.Network([(np.ones((o, i)), np.zeros(o)) for i, o in itertools.pairwise(sizes)])

    return _core.CostNetworks(
        network(3, 1), network(1, width, 1), {2: network(4, 2)}, {2: network(2, 2)}
    )


def test_many_tables_alone_do_not_make_set_networks_too_wide() -> None:
    """What passes keep grows with devices and limits; there are few here."""
    tables = 100_000
    problem = _core.Problem(**problem_arguments(tables=tables, memory_bytes=2**40))
    plan = _core.search(
        networks_with_set_width(64), problem, max_splits=0, grid_steps=1, threads=16
    )
    assert plan is not None
    assert sum(len(device) for device in plan.placement) == tables


@pytest.mark.parametrize(
    ("tables", "options"),
    [
        (20_000, {"grid_steps": 65536, "max_splits": 0, "threads": 2}),
        (4, {"grid_steps": 65536, "max_splits": 20_000, "threads": 2}),
        (20_004, {"grid_steps": 10_002, "max_splits": 0, "threads": 2}),
        (2000, {"grid_steps": 65536, "max_splits": 0, "threads": 64}),
    ],
)
def test_set_networks_too_wide_for_the_limits_are_refused(
    tables: int, options: dict[str, int]
) -> None:
    problem = _core.Problem(**problem_arguments(tables=tables, memory_bytes=2**40))
    networks = networks_with_set_width(2048)
    message = f"set: a first layer of 2048 outputs is too wide for 2 devices, {tables} tables and "
    with pytest.raises(ValueError, match=message):
        _core.search(networks, problem, **options)


def test_networks_that_give_no_finite_cost_are_refused() -> None:
    def network(inputs: int, outputs: int, weight: float) -> _core.Network:
        return _core.Network([(np.full((outputs, inputs), weight), np.zeros(outputs))])

    problem = _core.Problem(**problem_arguments())
    pair = ({2: network(4, 2, 1.0)}, {2: network(2, 2, 1.0)})
    compute = _core.CostNetworks(network(3, 5, 1e30), network(5, 1, 1e30), *pair)
    with pytest.raises(
        ValueError, match=r"features\[0\]: the compute network gives no finite cost"
    ):
        _core.search(compute, problem)
    backward = _core.CostNetworks(
        network(3, 5, 1.0), network(5, 1, 1.0), pair[0], {2: network(2, 2, 3e38)}
    )
    assert _core.search(backward, problem) is None
    with pytest.raises(ValueError, match="no finite cost for this plan"):
        _core.evaluate(backward, problem, [], [[0, 1], [2, 3]])
    # Start times further apart than fp32 holds.
    apart = _core.Network([(np.zeros((2, 2)), np.array([3e38, -3e38]))])
    starts = _core.CostNetworks(network(3, 5, 1.0), network(5, 1, 1.0), pair[0], {2: apart})
    with pytest.raises(ValueError, match="no finite cost for this plan"):
        _core.evaluate(starts, problem, [], [[0, 1], [2, 3]])


def test_the_first_table_without_a_finite_cost_is_named_whatever_the_threads() -> None:
    features = np.ones((2000, 3))
    # The last of the tables that one thread takes at once; the next thread meets one at once.
    features[511:, 0] = 3e38
    problem = _core.Problem(**problem_arguments(tables=2000, features=features))
    layer = (np.ones((5, 3)), np.zeros(5))
    networks = _core.CostNetworks(
        _core.Network([layer]), _core.Network([(np.ones((1, 5)), np.zeros(1))]), {}, {}
    )
    for threads in (1, 4):
        with pytest.raises(ValueError, match=r"features\[511\]: the compute network gives"):
            _core.search(networks, problem, threads=threads)


def test_greedy_baseline_puts_what_fits_nowhere_on_the_last_device() -> None:
    problem = _core.Problem(**problem_arguments(tables=3, memory_bytes=170))
    assert _core.greedy_baseline(problem, [3.0, 2.0, 1.0]) == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("key", "message"),
    [([1.0, 2.0], "key must have one entry"), ([np.nan] * 4, "key must hold finite")],
)
def test_greedy_baseline_refuses_unusable_keys(key: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.greedy_baseline(_core.Problem(**problem_arguments()), key)


def test_random_placement_is_seeded_and_feasible() -> None:
    random = np.random.default_rng(0)
    bytes_per_column = random.integers(1, 100, 40)
    problem = _core.Problem(
        **problem_arguments(
            tables=40,
            bytes_per_column=bytes_per_column,
            devices=4,
            memory_bytes=int(bytes_per_column.sum() * 16 * 0.26),
        )
    )
    placements = [_core.random_placement(problem, seed) for seed in range(10)]
    for placement in placements:
        assert placement is not None
        assert sorted(table for device in placement for table in device) == list(range(40))
        for device in placement:
            assert sum(int(bytes_per_column[t]) * 16 for t in device) <= min(problem.memory_bytes)
    assert placements[3] == _core.random_placement(problem, 3)
    assert len({str(placement) for placement in placements}) == 10


def test_random_placement_finds_the_only_way_to_fit_large_tables() -> None:
    bytes_per_column = np.array([50, *[1] * 50, 50, 50])
    problem = _core.Problem(
        **problem_arguments(
            tables=53, bytes_per_column=bytes_per_column, devices=4, memory_bytes=50 * 16
        )
    )
    assert _core.random_placement(problem, 0) is not None


def test_random_placement_gives_up_on_what_cannot_fit() -> None:
    problem = _core.Problem(**problem_arguments(tables=3, memory_bytes=170))
    assert _core.random_placement(problem, 0) is None


@pytest.mark.parametrize(
    ("setup", "call"),
    [
        (
            "problem = make(tables=2000, dims=[1024] * 2000, memory_bytes=10**9)",
            "t._core.search(t.small_networks(), problem, beam_width=1000, candidates=2000,"
            " max_splits=1000, threads=2)",
        ),
        (
            "problem = make(tables=2**20, devices=2**16)",
            "t._core.greedy_baseline(problem, [1.0] * 2**20)",
        ),
        (
            "problem = make(tables=2**20)\nnetworks = t.slow_networks()",
            "t._core.evaluate(networks, problem, [], [list(range(2**20)), []])",
        ),
    ],
    ids=["search", "greedy_baseline", "evaluate"],
)
def test_long_work_can_be_interrupted(setup: str, call: str) -> None:
    """Ctrl-C ends work that would take minutes to hours, and Python sees its own exception."""
    # A job in the background may have inherited that SIGINT is ignored: set Python's handler again.
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_engine as t
make = lambda **changes: t._core.Problem(**t.problem_arguments(**changes))
{setup}
try:
    print("working", flush=True)
    {call}
except KeyboardInterrupt:
    sys.exit(77)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        time.sleep(1.0)  # until the engine is at work
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 77
    finally:
        process.kill()
        process.communicate()


def test_features_follow_the_width_of_a_shard() -> None:
    """The compute cost is feature 0, and linear, so what a shard costs alone shows its features."""
    networks = _core.CostNetworks(
        _core.Network([(np.array([[1.0, 0.0]]), np.zeros(1))]),
        _core.Network([(np.ones((1, 1)), np.zeros(1))]),
        {2: _core.Network([(np.zeros((2, 4)), np.zeros(2))])},
        {2: _core.Network([(np.zeros((2, 2)), np.zeros(2))])},
    )
    arguments = problem_arguments(1)
    arguments |= {
        "features": [[5.0, 0.0]],
        "features_per_column": [[0.25, 0.0]],
        "features_per_doubling": [3.0, 0.0],
    }
    problem = _core.Problem(**arguments)  # one table of 16 columns
    whole = 5.0 + 0.25 * 16 + 3.0 * 4
    half = 5.0 + 0.25 * 8 + 3.0 * 3
    assert _core.single_table_compute(networks, problem).tolist() == [whole]
    plan = _core.evaluate(networks, problem, [0], [[0], [1]])
    assert plan.compute == [half, half]


def constrained(**constraints: Any) -> _core.Problem:
    """Four tables of 16 columns of 10 bytes each on two devices."""
    return _core.Problem(**problem_arguments(tables=4, **constraints))


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"memory_bytes": [1000]}, "memory_bytes must have one entry for each of the 2 devices"),
        ({"memory_bytes": [1000, -1]}, "memory_bytes must lie between"),
        ({"memory_bytes": [1000, 2.5]}, "memory_bytes"),
        ({"memory_bytes": "much"}, "memory_bytes"),
        ({"devices": 0, "memory_bytes": []}, "devices must lie between"),
        ({"devices": 2**40}, "devices must lie between"),
        ({"least_widths": [4, 4]}, "least_widths must have one entry for each of the 4 tables"),
        ({"least_widths": [4, 4, 4, -4]}, r"least_widths\[3\] must lie between"),
        ({"split_widths": [0, 12, 0, 0]}, r"split_widths\[1\] must be 0, or a multiple of 4"),
        ({"split_widths": [0, 2, 0, 0]}, r"split_widths\[1\] must be 0, or a multiple of 4"),
        ({"pinned": [0, 1, 2, 0]}, r"pinned\[2\] must lie between -1 and 1"),
        ({"pinned": [-2, 1, 0, 0]}, r"pinned\[0\] must lie between -1 and 1"),
        (
            {"pinned": [1, 1, 1, -1], "memory_bytes": [1000, 479]},
            r"pinned\[2\]: device 1 has 479 bytes, less than the tables pinned to it take",
        ),
    ],
)
def test_unusable_constraints_are_refused(constraints: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        constrained(**constraints)


def test_a_split_that_would_make_millions_of_shards_is_refused() -> None:
    dims = np.full(4, 2**30)
    with pytest.raises(ValueError, match=r"split_widths\[0\] must make no more than 65536 shards"):
        constrained(dims=dims, bytes_per_column=[0] * 4, split_widths=[4, 0, 0, 0])


def test_splits_keep_constraints() -> None:
    problem = constrained(
        dims=[16, 16, 16, 16],
        least_widths=[8, 0, 0, 0],
        split_widths=[0, 4, 0, 0],
        pinned=[-1, -1, 1, -1],
    )
    halves = _core.split_shards(problem, [0])
    assert halves == [(0, 0, 8), (1, 0, 16), (2, 0, 16), (3, 0, 16), (0, 8, 8)]
    at_once = _core.split_shards(problem, [1])
    assert at_once[1] == (1, 0, 4)
    assert at_once[4:] == [(1, 4, 4), (1, 8, 4), (1, 12, 4)]
    for splits in ([0, 0], [1, 1], [2]):
        with pytest.raises(ValueError, match="must not be split"):
            _core.split_shards(problem, splits)


def test_baselines_keep_pins_and_caps() -> None:
    problem = constrained(memory_bytes=[330, 330], pinned=[-1, 1, -1, 1])
    assert _core.greedy_baseline(problem, [1.0, 9.0, 5.0, 9.0]) == [[2, 0], [1, 3]]
    for seed in range(5):
        placement = _core.random_placement(problem, seed)
        assert placement is not None
        assert placement[1] == [1, 3]
    uneven = constrained(memory_bytes=[0, 640])
    assert _core.greedy_baseline(uneven, [1.0, 2.0, 3.0, 4.0]) == [[], [3, 2, 1, 0]]


def test_shards_of_any_width_cost_what_the_same_splits_do() -> None:
    for task in ALL_TASKS[:10]:
        plan = _core.search(golden_networks(), task.problem, **task.search)
        assert plan is not None
        pieces = _core.split_shards(task.problem, plan.column_splits)
        shards = [[(pieces[s][0], pieces[s][2]) for s in device] for device in plan.placement]
        again = _core.evaluate_shards(golden_networks(), task.problem, shards)
        assert (again.cost, again.compute, again.memory_bytes) == (
            plan.cost,
            plan.compute,
            plan.memory_bytes,
        )
        assert (again.forward, again.backward, again.dim_sums) == (
            plan.forward,
            plan.backward,
            plan.dim_sums,
        )


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([[(0, 16), (1, 16), (2, 16), (3, 16)]], "one list for each of the 2 devices"),
        ([[(0, 16), (1, 16), (2, 16)], []], "16 columns of table 3 are on no device"),
        ([[(0, 16), (1, 16), (2, 16)], [(3, 16), (0, 4)]], "shards of table 0 have more columns"),
        ([[(0, 16), (1, 16), (2, 16)], [(4, 16)]], "table 4 does not exist"),
        ([[(0, 16), (1, 16), (2, 16)], [(-1, 16)]], "table -1 does not exist"),
        ([[(0, 16), (1, 16), (2, 16)], [(3, 10), (3, 6)]], "must be a positive multiple of 4"),
        ([[(0, 16), (1, 16), (2, 16), (2, -4)], [(3, 16)]], "must be a positive multiple of 4"),
    ],
)
def test_shards_that_are_no_plan_are_refused(
    shards: list[list[tuple[int, int]]], message: str
) -> None:
    networks = golden_networks()
    problem = _core.Problem(
        **problem_arguments(tables=4, features=np.zeros((4, networks.features)))
    )
    with pytest.raises(ValueError, match=message):
        _core.evaluate_shards(networks, problem, shards)


def test_joined_shards_are_a_wider_shard() -> None:
    networks = golden_networks()
    random = np.random.default_rng(0)
    features = random.random((2, networks.features), np.float32)
    problem = _core.Problem(
        **problem_arguments(
            tables=2,
            features=features,
            dims=[64, 16],
            bytes_per_column=[10, 10],
            bytes_fixed=[7, 0],
        )
    )
    plan = _core.evaluate_shards(networks, problem, [[(0, 48), (1, 16)], [(0, 16)]])
    assert plan.memory_bytes == [10 * 48 + 7 + 160, 10 * 16 + 7]
    assert plan.dim_sums == [64.0, 16.0]
    assert (plan.column_splits, plan.placement) == ([], [])
