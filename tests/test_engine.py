"""The compiled engine: golden answers of the published implementation, determinism, refusal of bad input."""

from __future__ import annotations

import functools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from neuroshard_fast import _core
from neuroshard_fast.features import DIM_COLUMN, PUBLISHED_FEATURES

GOLDEN = Path(__file__).parent / "golden"
TASKS = ("2_gpu", "4_gpu", "4_gpu_tight", "8_gpu", "16_gpu", "128_gpu")
DEVICE_COUNTS = (2, 4, 8, 16, 128)


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
        {d: load_network(load(f"comm_{d}_fw.pt"), "hidden", normalised=True) for d in DEVICE_COUNTS},
        {d: load_network(load(f"comm_{d}_bw.pt"), "hidden", normalised=True) for d in DEVICE_COUNTS},
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
        features=features,
        dim_column=DIM_COLUMN,
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
    print(f"single-table compute of {len(ALL_TASKS)} golden tasks: worst relative error {worst:.1e}")
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


@pytest.mark.parametrize("name", ["size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"])
def test_golden_greedy_baselines(name: str) -> None:
    for task in ALL_TASKS:
        placement = _core.greedy_baseline(task.problem, task.baseline_keys[name])
        assert placement == task.expected["baselines"][name], task.name
