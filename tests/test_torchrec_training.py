"""Training with plans of NeuroShardPlanner: sharded models do what the same models do unsharded.

Real processes on gloo, each started once for many models (torchrec_worker.py); every commit trains each model
with two or with four of them, and make test-full with the other number too.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torchrec")

from neuroshard_fast.torchrec import TableStats
from torchrec_models import (
    GATHERED_BATCHES,
    GATHERED_SEED,
    SAMPLES,
    SEEDS,
    SQUEEZED_BAGS,
    SQUEEZED_SEQUENCES,
    Model,
    RandomModel,
    batches,
    draw,
)

WORKER = Path(__file__).parent / "torchrec_worker.py"
TOLERANCE = 1e-5  # relative to numbers above 1; fp32 sums in another order
SECONDS = 300

# Even seeds with two processes, odd ones with four; each kind of model is among both.
EVERY_COMMIT = {2: tuple(SEEDS[::2]), 4: tuple(SEEDS[1::2])}
THE_OTHERS = {2: EVERY_COMMIT[4], 4: EVERY_COMMIT[2]}


def launch(world_size: int, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What each rank printed at last; the first process that fails ends the others."""
    common = [sys.executable, str(WORKER), "--world-size", str(world_size)]
    common += ["--store", str(folder / "store"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    logs = [(folder / f"{rank}.out", folder / f"{rank}.err") for rank in range(world_size)]
    processes = []
    for rank, (out, err) in enumerate(logs):
        with out.open("wb") as stdout, err.open("wb") as stderr:
            processes.append(
                subprocess.Popen(
                    [*common, "--rank", str(rank)], stdout=stdout, stderr=stderr, env=environment
                )
            )
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        statuses = [process.poll() for process in processes]
        if any(statuses) or None not in statuses:
            break
        time.sleep(0.05)
    statuses = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    for rank, status in enumerate(statuses):
        if status:
            pytest.fail(f"rank {rank} of {world_size}: {logs[rank][1].read_text()[-4000:]}")
    assert statuses == [0] * world_size, f"not done after {SECONDS} s: {statuses}"
    return [json.loads(out.read_text().splitlines()[-1]) for out, _ in logs]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains models of some seeds once; of each seed what each rank found."""

    @cache
    def run(world_size: int, seeds: tuple[int, ...]) -> dict[int, list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp(f"{world_size}-ranks")
        ranks = launch(world_size, folder, "--seeds", *map(str, seeds))
        found = zip(*(rank["models"] for rank in ranks), strict=True)
        return {seed: list(models) for seed, models in zip(seeds, found, strict=True)}

    return run


def of_every_commit(train: Any) -> list[tuple[Model, dict[str, Any]]]:
    """Models and their tables as planned."""
    return [
        (draw(seed), ranks[0]["tables"])
        for world_size, seeds in EVERY_COMMIT.items()
        for seed, ranks in train(world_size, seeds).items()
    ]


def check_training(found: dict[int, list[dict[str, Any]]]) -> None:
    """The same outputs and weights on every rank, every weight of a table on one of them."""
    for seed, ranks in found.items():
        where = f"seed {seed}"
        for what in ("output_difference", "weight_difference"):
            assert max(rank[what] for rank in ranks) < TOLERANCE, (where, what)
        assert min(rank["outputs"] for rank in ranks) > 0, where
        assert min(rank["weight_change"] for rank in ranks) > 10 * TOLERANCE, where
        weights = sum(table.weights for _, table in draw(seed).tables)
        assert sum(rank["weights"] for rank in ranks) == weights, where
        assert all(rank["tables"] == ranks[0]["tables"] for rank in ranks), where


@pytest.mark.parametrize("world_size", EVERY_COMMIT)
def test_outputs_and_weights_are_those_of_the_unsharded_model(train: Any, world_size: int) -> None:
    check_training(train(world_size, EVERY_COMMIT[world_size]))


@pytest.mark.full
@pytest.mark.parametrize("world_size", THE_OTHERS)
def test_so_they_are_with_the_other_number_of_processes(train: Any, world_size: int) -> None:
    check_training(train(world_size, THE_OTHERS[world_size]))


def test_the_models_are_of_every_kind_and_optimizer() -> None:
    models = [draw(seed) for seed in SEEDS]
    assert len(models) >= 25
    assert {len(model.tables) for model in models} == set(range(1, 31))
    for seeds in EVERY_COMMIT.values():
        some = [models[seed] for seed in seeds]
        seen = {
            (collection.kind, model.optimizer, model.in_backward)
            for model in some
            for collection in model.collections
        }
        assert {kind for kind, _, _ in seen} == {"bag", "weighted_bag", "sequence"}
        assert {(optimizer, attached) for _, optimizer, attached in seen} == set(
            itertools.product(("sgd", "adagrad", "rowwise_adagrad"), (True, False))
        )
    tables = [table for model in models for _, table in model.tables]
    assert any(table.mean for table in tables)
    assert any(len(table.features) > 1 for table in tables)
    looked_up = [f for model in models for _, table in model.tables for f in table.features]
    assert len(set(looked_up)) < len(looked_up)  # and a feature that looks two tables up
    assert any(len(model.collections) > 1 for model in models)
    assert {c.depth for model in models for c in model.collections} == {0, 1, 2}


def test_tables_are_sharded_by_table_by_column_and_where_forced_by_row(train: Any) -> None:
    planned = of_every_commit(train)
    forced = [
        tables[table.name]["type"]
        for model, tables in planned
        for _, table in model.tables
        if table.forced == "row_wise"
    ]
    assert forced
    assert set(forced) == {"row_wise"}
    free = {
        (tables[table.name]["type"], len(tables[table.name]["shards"]) > 1)
        for model, tables in planned
        for _, table in model.tables
        if not table.forced
    }
    assert ("table_wise", False) in free
    assert ("column_wise", True) in free
    assert {kind for kind, _ in free} == {"table_wise", "column_wise"}


@pytest.mark.parametrize("world_size", EVERY_COMMIT)
def test_columns_of_a_pooled_table_lie_in_shards_of_unequal_width(
    train: Any, world_size: int
) -> None:
    found = train(world_size, EVERY_COMMIT[world_size])
    seeds = [seed for seed in SQUEEZED_BAGS if seed in found]
    assert seeds
    for seed in seeds:
        table = found[seed][0]["tables"]["squeezed"]
        widths = [columns for _, _, columns in table["shards"]]
        assert table["type"] == "column_wise"
        assert len(set(widths)) > 1, seed
        assert sum(widths) == 64
        ranks = [rank for rank, _, _ in table["shards"]]
        assert len(set(ranks)) > 1


@pytest.mark.parametrize("world_size", EVERY_COMMIT)
def test_rows_are_cut_evenly_where_memory_is_not(train: Any, world_size: int) -> None:
    found = train(world_size, EVERY_COMMIT[world_size])
    forced = [
        (table, found[seed][0]["tables"][table.name])
        for seed in SQUEEZED_BAGS
        if seed in found
        for _, table in draw(seed).tables
        if table.forced == "row_wise"
    ]
    assert forced
    for table, planned in forced:
        most = -(-table.rows // world_size)
        assert [rank for rank, _, _ in planned["shards"]] == list(range(world_size))
        assert all(rows == most for _, rows, _ in planned["shards"][:-1])


def test_columns_of_a_sequence_are_cut_into_one_width(train: Any) -> None:
    for world_size, seeds in EVERY_COMMIT.items():
        found = train(world_size, seeds)
        squeezed = [seed for seed in SQUEEZED_SEQUENCES if seed in found]
        assert squeezed
        for seed in squeezed:
            shards = found[seed][0]["tables"]["squeezed"]["shards"]
            assert len(shards) > 1
    for model, tables in of_every_commit(train):
        for collection in model.collections:
            if collection.kind != "sequence":
                continue
            cut = [tables[table.name] for table in collection.tables]
            widths = {
                columns
                for table in cut
                if table["type"] == "column_wise"
                for _, _, columns in table["shards"]
            }
            assert len(widths) <= 1, (model.seed, collection.name)


@pytest.fixture(scope="module")
def without_training(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes find that train nothing."""
    return launch(2, tmp_path_factory.mktemp("without-training"), "--without-training")


def test_when_planning_fails_on_rank_0_every_rank_raises_the_same_error(
    without_training: list[dict[str, Any]],
) -> None:
    failures = [rank["failure"] for rank in without_training]
    for failure in failures:
        assert failure["type"] == "torchrec.distributed.planner.types.PlannerError"
        assert failure["kind"] == "PlannerErrorType.INSUFFICIENT_STORAGE"
        assert failure["seconds"] < 5.0
    assert len({failure["message"] for failure in failures}) == 1
    assert "rank" in failures[0]["message"]


def test_statistics_that_ranks_gather_are_those_of_all_batches(
    without_training: list[dict[str, Any]],
) -> None:
    model = draw(GATHERED_SEED)
    parts = [TableStats(RandomModel(model), share=1.0, batch_size=2 * SAMPLES) for _ in range(2)]
    for number, batch in enumerate(batches(model, GATHERED_BATCHES, SAMPLES)):
        parts[number % 2].observe(*batch.inputs(model))
    alone = msgspec.to_builtins(parts[0].table_set())
    parts[0].merge(parts[1])
    together = msgspec.to_builtins(parts[0].table_set())
    assert together != alone
    for rank in without_training:
        assert rank["gathered"] == json.loads(json.dumps(together))
