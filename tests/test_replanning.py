"""Replanning: what may move, what does, and that the plans are sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuroshard_fast import (
    Cluster,
    EmbeddingTable,
    Feature,
    InfeasiblePlanError,
    InputError,
    Planner,
    Replan,
    SearchOptions,
    ShardingPlan,
    TableSet,
    _core,
    examples,
)
from neuroshard_fast.cli.main import main
from neuroshard_fast.memory import shard_memory

GIB = 2**30
POOL = list(examples.broad(tables=400, max_rows=10**7, batch_size=65536, seed=60))


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner("h100-sim")


def size(tables: list[EmbeddingTable]) -> int:
    return sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)


def devices_for(tables: list[EmbeddingTable], devices: int, fill: float) -> Cluster:
    return Cluster(world_size=devices, memory_bytes=int(size(tables) / devices / fill))


def draw(generator: np.random.Generator, count: int) -> list[EmbeddingTable]:
    chosen = generator.choice(len(POOL), count, replace=False)
    return [
        msgspec.structs.replace(POOL[k], embedding_dim=int(generator.choice([8, 16, 32, 64, 128])))
        for k in chosen
    ]


def changed(generator: np.random.Generator, tables: list[EmbeddingTable]) -> list[EmbeddingTable]:
    """Some removed, some grown, some with other bags, some of another dim, some new."""
    found = []
    for table in tables:
        choice = generator.random()
        if choice < 0.1:
            continue
        if choice < 0.25:
            table = msgspec.structs.replace(
                table, num_embeddings=int(table.num_embeddings * 1.2) + 1
            )
        elif choice < 0.35:
            factor = float(generator.uniform(1.0, 30.0))
            features = tuple(
                Feature(name=feature.name, pooling_factor=factor) for feature in table.features
            )
            table = msgspec.structs.replace(table, features=features)
        elif choice < 0.4:
            table = msgspec.structs.replace(table, embedding_dim=table.embedding_dim * 2)
        found.append(table)
    new = draw(generator, 3)
    return found + [
        msgspec.structs.replace(table, name=f"new_{number}") for number, table in enumerate(new)
    ]


def check_sound(plan: ShardingPlan, tables: TableSet, planner: Planner, cluster: Cluster) -> None:
    """Every column is on a device once, in shards that the splits make, within the memory, at its cost."""
    held = plan.tables_by_device(tables)
    assert all(size(on_device) <= cluster.memory_bytes for on_device in held)
    problem = planner.problem(tables, cluster)
    shards = _core.split_shards(problem, plan.column_splits)
    by_number = {
        number: (tables[table].name, offset, width)
        for number, (table, offset, width) in enumerate(shards)
    }
    placed = {
        (*by_number[number], device)
        for device, numbers in enumerate(plan.placement)
        for number in numbers
    }
    assert placed == {(s.table, s.column_offset, s.width, s.device) for s in plan.shards}
    again = _core.evaluate(
        planner.cost_models.networks_for(65536), problem, plan.column_splits, plan.placement
    )
    assert again.cost == plan.cost_ms


def columns_on(plan: ShardingPlan) -> dict[tuple[str, int], int]:
    """Device of every column of every table."""
    return {
        (shard.table, column): shard.device
        for shard in plan.shards
        for column in range(shard.column_offset, shard.column_offset + shard.width)
    }


def check_moves(
    found: Replan, previous: ShardingPlan, tables: TableSet, number: dict[int, int]
) -> None:
    """``number``: of the devices that are left. What moves is what is not where it was."""
    before, now = columns_on(previous), columns_on(found.plan)
    dims = {table.name: table.embedding_dim for table in tables}
    old_dims: dict[str, int] = {}
    sizes: dict[tuple[str, int], float] = {}
    for shard in previous.shards:
        old_dims[shard.table] = old_dims.get(shard.table, 0) + shard.width
        for column in range(shard.column_offset, shard.column_offset + shard.width):
            sizes[shard.table, column] = shard.memory_bytes / shard.width
    moved = 0.0
    expected = set()
    for (name, column), device in now.items():
        source = before.get((name, column)) if old_dims.get(name) == dims[name] else None
        if source is not None and number.get(source) == device:
            continue
        is_left = source is not None and source in number
        expected.add((name, column, source if is_left else None, device))
        moved += sizes[name, column] if is_left else 0.0
    told = {
        (move.table, column, move.source, move.device)
        for move in found.moves
        for column in range(move.column_offset, move.column_offset + move.width)
    }
    assert told == expected
    assert found.moved_bytes == pytest.approx(moved, rel=1e-6, abs=len(found.moves))
    if found.max_moved_bytes is not None:
        assert found.moved_bytes <= found.max_moved_bytes + len(found.moves)


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_sound_and_move_no_more_than_they_may(planner: Planner, seed: int) -> None:
    generator = np.random.default_rng(seed)
    devices = int(generator.choice([2, 4, 8]))
    tables = draw(generator, int(generator.integers(4 * devices, 10 * devices)))
    cluster = devices_for(tables, devices, float(generator.uniform(0.3, 0.7)))
    previous = planner.plan(TableSet.of(tables), cluster)
    now = TableSet.of(changed(generator, tables))
    survives = sum(shard.memory_bytes for shard in previous.shards)
    for share in (0.0, 0.02, 0.2, None):
        limit = None if share is None else int(share * survives)
        try:
            found = planner.replan(previous, now, cluster, max_moved_bytes=limit)
        except InfeasiblePlanError:
            assert share is not None  # grown tables may leave no way but to move some
            continue
        check_sound(found.plan, now, planner, cluster)
        check_moves(found, previous, now, {device: device for device in range(devices)})
        if share == 0.0:
            assert found.moved_bytes == 0


@pytest.mark.parametrize(("lost", "devices"), [([1], 3), ([0, 2], 4), ([], 6)])
def test_devices_that_are_lost_or_added(planner: Planner, lost: list[int], devices: int) -> None:
    generator = np.random.default_rng(5)
    tables = draw(generator, 30)
    previous = planner.plan(TableSet.of(tables), devices_for(tables, 4, 0.4))
    now = TableSet.of(tables)
    memory = devices_for(tables, 3, 0.6).memory_bytes
    cluster = Cluster(world_size=devices, memory_bytes=memory)
    found = planner.replan(previous, now, cluster, max_moved_bytes=0, lost_devices=lost)
    left = [device for device in range(4) if device not in lost]
    number = {device: new for new, device in enumerate(left)}
    check_sound(found.plan, now, planner, cluster)
    check_moves(found, previous, now, number)
    assert found.moved_bytes == 0
    gone = sum(shard.memory_bytes for shard in previous.shards if shard.device in lost)
    assert found.restored_bytes == pytest.approx(gone, abs=len(found.moves))
    if not lost:
        # Two devices are empty: moving is worth it.
        more = planner.replan(previous, now, cluster)
        assert more.plan.cost_ms < found.plan.cost_ms
        assert more.moved_bytes > 0


def test_nothing_moves_where_nothing_has_changed(planner: Planner) -> None:
    tables = TableSet.of(draw(np.random.default_rng(6), 40))
    cluster = devices_for(list(tables), 8, 0.5)
    previous = planner.plan(tables, cluster, SearchOptions(deadline_ms=300))
    found = planner.replan(previous, tables, cluster, max_moved_bytes=0)
    assert found.moves == ()
    assert found.plan.cost_ms <= previous.cost_ms * (1 + 1e-6)


def test_a_curve_goes_down(planner: Planner) -> None:
    generator = np.random.default_rng(7)
    tables = draw(generator, 50)
    cluster = devices_for(tables, 8, 0.2)
    previous = planner.plan(TableSet.of(tables), cluster, SearchOptions(algorithm="size_greedy"))
    curve = planner.replan_curve(previous, TableSet.of(tables), cluster)
    costs = [found.plan.cost_ms for found in curve]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.98 * costs[0]
    limits = [found.max_moved_bytes for found in curve]
    assert limits[0] == 0
    for found in curve:
        assert found.max_moved_bytes is not None
        assert found.moved_bytes <= found.max_moved_bytes + len(found.moves)


def test_tables_that_grow_beyond_their_device_move_or_are_refused(planner: Planner) -> None:
    tables = [
        EmbeddingTable(
            name=f"t{number}",
            num_embeddings=1_000_000,
            embedding_dim=64,
            features=(Feature(name=f"f{number}", pooling_factor=5.0),),
        )
        for number in range(8)
    ]
    cluster = Cluster(world_size=2, memory_bytes=int(1.1 * size(tables) / 2))
    previous = planner.plan(TableSet.of(tables), cluster)
    grown = [
        msgspec.structs.replace(table, num_embeddings=1_300_000)
        if table.name in {shard.table for shard in previous.shards if shard.device == 0}
        else msgspec.structs.replace(table, num_embeddings=600_000)
        for table in tables
    ]
    with pytest.raises(InfeasiblePlanError, match=r"keeps the memory, moving 0 B at most"):
        planner.replan(previous, TableSet.of(grown), cluster, max_moved_bytes=0)
    found = planner.replan(previous, TableSet.of(grown), cluster)
    check_sound(found.plan, TableSet.of(grown), planner, cluster)
    assert found.moved_bytes > 0


def test_the_same_seed_gives_the_same_plan(planner: Planner) -> None:
    generator = np.random.default_rng(8)
    tables = draw(generator, 40)
    cluster = devices_for(tables, 4, 0.5)
    previous = planner.plan(TableSet.of(tables), cluster)
    now = TableSet.of(changed(generator, tables))
    one, other = (planner.replan(previous, now, cluster).plan for _ in range(2))
    assert (one.shards, one.cost_ms) == (other.shards, other.cost_ms)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"previous": 3}, "previous: a ShardingPlan is wanted, got 3"),
        ({"tables": 3}, "a TableSet is wanted, got a int"),
        ({"max_moved_bytes": -1}, "max_moved_bytes must lie between 0"),
        ({"max_moved_bytes": float("nan")}, "max_moved_bytes must be a whole number"),
        ({"lost_devices": [7]}, "lost_devices must lie between 0 and 1"),
        ({"lost_devices": "1"}, "lost_devices must be a list of device numbers, got '1'"),
        ({"lost_devices": 1}, "lost_devices must be a list of device numbers, got 1"),
        (
            {"cluster": Cluster(world_size=1, memory_bytes=GIB)},
            "2 devices of the previous plan are left",
        ),
        ({"options": SearchOptions(algorithm="random")}, "replanning is algorithm 'auto'"),
        ({"options": SearchOptions(deadline_ms=5)}, "takes max_evaluations, no deadline_ms"),
    ],
)
def test_bad_input_is_named(planner: Planner, changes: dict[str, Any], message: str) -> None:
    tables = TableSet.of(draw(np.random.default_rng(9), 6))
    cluster = devices_for(list(tables), 2, 0.5)
    arguments: dict[str, Any] = {
        "previous": planner.plan(tables, cluster),
        "tables": tables,
        "cluster": cluster,
        **changes,
    }
    with pytest.raises(InputError, match=message):
        planner.replan(**arguments)


def test_a_plan_whose_shards_do_not_meet_is_named(planner: Planner) -> None:
    tables = TableSet.of(draw(np.random.default_rng(9), 6))
    cluster = devices_for(list(tables), 2, 0.5)
    plan = planner.plan(tables, cluster)
    first = msgspec.structs.replace(plan.shards[0], column_offset=4)
    broken = msgspec.structs.replace(plan, shards=(first, *plan.shards[1:]))
    with pytest.raises(InputError, match="shards do not meet at column 0"):
        planner.replan(broken, tables, cluster)


def test_shares_of_a_curve_are_checked(planner: Planner) -> None:
    tables = TableSet.of(draw(np.random.default_rng(9), 6))
    cluster = devices_for(list(tables), 2, 0.5)
    plan = planner.plan(tables, cluster)
    wrong: list[Any] = [[], "all", [2.0], [float("nan")]]
    for shares in wrong:
        with pytest.raises(InputError, match="shares must"):
            planner.replan_curve(plan, tables, cluster, shares=shares)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = TableSet.of(draw(np.random.default_rng(10), 12))
    tables.save(tmp_path / "tables.json")
    cluster = ["--devices", "4", "--memory", "80GiB"]
    before, after, moves = (str(tmp_path / name) for name in ("a.json", "b.json", "moves.json"))
    assert main(["plan", str(tmp_path / "tables.json"), *cluster, "-o", before]) == 0
    replan = ["replan", before, str(tmp_path / "tables.json")]
    fewer = ["--devices", "3", "--memory", "80GiB", "--lost", "2"]
    assert main([*replan, *fewer, "--max-moved", "0", "-o", after, "--moves", moves]) == 0
    printed = capsys.readouterr().out
    assert "from device to device: 0 B; of lost devices:" in printed
    found = Replan.load(moves)
    assert found.plan == ShardingPlan.load(after)
    assert found.restored_bytes > 0
    assert main([*replan, *cluster, "--sweep"]) == 0
    assert "| may move" in capsys.readouterr().out
    assert main([*replan, *cluster, "--sweep", "--max-moved", "1GiB"]) == 2
    assert main([*replan, *fewer, "--max-moved", "-5"]) == 2
