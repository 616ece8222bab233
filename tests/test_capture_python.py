"""Planning calls captured in a file, by :class:`Planner` and on the command line."""

from __future__ import annotations

import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from golden_captures import OPTIONS
from neuroshard_fast import (
    Cluster,
    CostModels,
    EmbeddingTable,
    Feature,
    InfeasiblePlanError,
    InputError,
    Planner,
    SearchOptions,
    TableSet,
    _core,
)
from neuroshard_fast.cli.main import main

GIB = 2**30
BENCH = Path(sysconfig.get_path("scripts")) / "neuroshard-bench"
CLUSTER = Cluster(world_size=4, memory_bytes=3 * GIB)


@pytest.fixture(scope="module")
def models(golden_models: Path) -> CostModels:
    return CostModels.load(golden_models)


def _tables(count: int = 20, seed: int = 0) -> TableSet:
    random = np.random.default_rng(seed)
    return TableSet.of(
        [
            EmbeddingTable(
                name=f"secret name {index}",
                num_embeddings=int(10 ** random.uniform(3, 6.5)),
                embedding_dim=int(2 ** random.integers(2, 8)),
                features=(Feature(name="f", pooling_factor=float(random.uniform(1, 50))),),
                optimizer="rowwise_adagrad",
                output_dtype="fp16",
            )
            for index in range(count)
        ]
    )


def _verify(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BENCH, path, "--verify", "--repeat", "1"], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(beam_width=2, candidates=3, max_splits=4, grid_steps=7, threads=2),
    ],
    ids=["defaults", "others"],
)
def test_replay_gives_the_captured_plan(
    models: CostModels, tmp_path: Path, options: SearchOptions
) -> None:
    planner = Planner(models)
    plan = planner.plan(_tables(), CLUSTER, options)
    planner.capture(tmp_path / "call")
    replay = _verify(tmp_path / "call")
    assert replay.returncode == 0, replay.stderr
    # Planned again from what is kept: the same call, the same file.
    planner.plan(_tables(), CLUSTER, options)
    planner.capture(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "call").read_bytes()
    assert plan.column_splits  # or a plan that ignores splits would do


def test_every_option_of_the_search_is_captured(models: CostModels, tmp_path: Path) -> None:
    planner = Planner(models)
    captured = set()
    for options in (
        SearchOptions(),
        SearchOptions(beam_width=2),
        SearchOptions(candidates=9),
        SearchOptions(max_splits=11),
        SearchOptions(grid_steps=12),
        SearchOptions(threads=2),
    ):
        planner.plan(_tables(5), CLUSTER, options)
        planner.capture(tmp_path / "call")
        captured.add((tmp_path / "call").read_bytes())
    assert len(captured) == 6


def test_a_plan_that_the_search_does_not_find_fails_the_replay(
    models: CostModels, tmp_path: Path
) -> None:
    planner = Planner(models)
    problem = planner.problem(_tables(), CLUSTER)
    other = _core.search(models.networks_for(65536), problem, **OPTIONS | {"max_splits": 0})
    assert other is not None
    captured = _core.write_capture(models.networks_for(65536), problem, other, **OPTIONS)
    (tmp_path / "call").write_bytes(captured)
    assert _verify(tmp_path / "call").returncode != 0


def test_a_call_without_a_plan_is_captured_too(models: CostModels, tmp_path: Path) -> None:
    planner = Planner(models)
    for name in ("first", "from what is kept"):
        with pytest.raises(InfeasiblePlanError):
            planner.plan(_tables(), Cluster(world_size=4, memory_bytes=GIB // 100))
        planner.capture(tmp_path / name)
        replay = _verify(tmp_path / name)
        assert replay.returncode == 0, replay.stderr


def test_a_captured_call_names_no_table(models: CostModels, tmp_path: Path) -> None:
    planner = Planner(models)
    planner.plan(_tables(), CLUSTER)
    planner.capture(tmp_path / "call")
    assert b"secret" not in (tmp_path / "call").read_bytes()


def test_without_a_call_in_this_thread_there_is_nothing_to_capture(
    models: CostModels, tmp_path: Path
) -> None:
    planner = Planner(models)
    with pytest.raises(InputError, match="nothing to capture"):
        planner.capture(tmp_path / "call")
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(planner.plan, _tables(3), CLUSTER).result()
        with pytest.raises(InputError, match="in the same thread"):
            planner.capture(tmp_path / "call")
        other_thread.submit(planner.capture, tmp_path / "call").result()
    assert _verify(tmp_path / "call").returncode == 0


def test_a_refused_call_is_not_mistaken_for_the_one_before(
    models: CostModels, tmp_path: Path
) -> None:
    planner = Planner(models)
    planner.plan(_tables(3), CLUSTER)
    with pytest.raises(InputError):
        planner.plan(_tables(3), Cluster(world_size=3, memory_bytes=GIB))
    with pytest.raises(InputError, match="nothing to capture"):
        planner.capture(tmp_path / "call")


def test_baselines_are_not_captured(models: CostModels, tmp_path: Path) -> None:
    planner = Planner(models)
    planner.plan(_tables(3), CLUSTER, SearchOptions(algorithm="dim_greedy"))
    with pytest.raises(InputError, match="'neuroshard' can be captured, not of 'dim_greedy'"):
        planner.capture(tmp_path / "call")


def test_a_capture_that_cannot_be_written_is_an_input_error(
    models: CostModels, tmp_path: Path
) -> None:
    planner = Planner(models)
    planner.plan(_tables(3), CLUSTER)
    with pytest.raises(InputError, match="no such folder"):
        planner.capture(tmp_path / "missing" / "call")


@pytest.fixture
def arguments(tmp_path: Path, golden_models: Path) -> list[str]:
    _tables().save(tmp_path / "tables.json")
    plan = ["plan", str(tmp_path / "tables.json"), "--devices", "4"]
    return [*plan, "--cost-models", str(golden_models), "--capture", str(tmp_path / "call")]


def test_the_command_line_captures(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--memory", "3GiB"]) == 0
    assert f"planning call captured in {tmp_path / 'call'}" in capsys.readouterr().out
    assert _verify(tmp_path / "call").returncode == 0


def test_the_command_line_captures_what_has_no_plan(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--memory", "10MiB"]) == 3
    assert "captured in" in capsys.readouterr().out
    assert _verify(tmp_path / "call").returncode == 0


def test_the_command_line_refuses_to_capture_baselines_before_planning(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The table set is not even read: it is no longer there.
    (tmp_path / "tables.json").unlink()
    assert main([*arguments, "--memory", "3GiB", "--algorithm", "random"]) == 2
    assert (
        "only plans of algorithm 'auto' or 'neuroshard' can be captured" in capsys.readouterr().err
    )
    assert not (tmp_path / "call").exists()
