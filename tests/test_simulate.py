"""``neuroshard simulate`` on the golden tasks, through files alone, as a user of published data runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuroshard_fast.cli.main import main
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.simulation import SimulationReport, Summary, TaskResult

TASK_SETS = ("2_gpu", "4_gpu", "4_gpu_tight", "8_gpu", "16_gpu", "128_gpu")
BASELINES = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")


def _expected(golden: Path, name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((golden / "tasks" / name / "expected.json").read_text())
    return expected


def _simulate(
    golden: Path, models: Path, name: str, algorithm: str, out: Path, *options: str
) -> dict[str, Any]:
    expected = _expected(golden, name)
    search = expected["search"]
    arguments = ["simulate", "--tasks", str(golden / "tasks" / name / "data.txt")]
    arguments += ["--table-configs", str(golden / "table_configs.json")]
    arguments += ["--cost-models", str(models), "--devices", str(expected["ndevices"])]
    arguments += ["--memory", f"{expected['max_mem_gb']}GiB", "--algorithm", algorithm]
    arguments += ["--beam-width", str(search["k"]), "--candidates", str(search["n"])]
    arguments += ["--max-splits", str(search["max_length"])]
    arguments += ["--grid-steps", str(search["search_steps"])]
    assert main([*arguments, "--json", str(out), *options]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_neuroshard_gives_the_golden_plans(
    golden: Path, golden_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = same_cost = same_splits = 0
    worst = 0.0
    for name in TASK_SETS:
        report = _simulate(golden, golden_models, name, "neuroshard", tmp_path / "out.json")
        for task, want in zip(report["tasks"], _expected(golden, name)["tasks"], strict=True):
            tasks += 1
            plan = want["plan"]
            if plan is None:
                assert task["feasible"] is False
                assert task["cost_ms"] is None
                same_cost += 1
                same_splits += 1
                continue
            excess = task["cost_ms"] / plan["cost"] - 1
            same_cost += abs(excess) <= 1e-4
            same_splits += task["column_splits"] == plan["col_split_steps"]
            worst = max(worst, excess)
    with capsys.disabled():
        print(
            f"\ngolden tasks: {tasks}; cost within 1e-4: {same_cost}; same column splits: "
            f"{same_splits}; largest excess {worst:.3%}"
        )
    assert tasks == 77
    assert same_cost >= 0.97 * tasks
    assert same_splits >= 0.90 * tasks
    assert worst <= 0.02


@pytest.mark.parametrize("algorithm", BASELINES)
def test_baselines_give_the_golden_device_lists(
    algorithm: str, golden: Path, golden_models: Path, tmp_path: Path
) -> None:
    for name in TASK_SETS:
        report = _simulate(golden, golden_models, name, algorithm, tmp_path / "out.json")
        for task, want in zip(report["tasks"], _expected(golden, name)["tasks"], strict=True):
            assert task["shards"] == want["baselines"][algorithm]
            assert task["column_splits"] == []
            assert task["feasible"] == (task["cost_ms"] is not None)


def test_random_is_seeded_and_feasible(golden: Path, golden_models: Path, tmp_path: Path) -> None:
    def shards(seed: str) -> list[Any]:
        out = tmp_path / "out.json"
        report = _simulate(golden, golden_models, "4_gpu", "random", out, "--seed", seed)
        assert report["summary"]["feasible"] == 35  # the others have a table above the cap
        return [task["shards"] for task in report["tasks"]]

    assert shards("1") == shards("1") != shards("2")


def test_json_has_the_documented_fields(golden: Path, golden_models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    report = _simulate(golden, golden_models, "2_gpu", "neuroshard", out, "--threads", "2")
    assert set(report) == {
        *("algorithm", "devices", "memory_bytes", "threads", "cost_models", "tasks", "summary")
    }
    assert report["cost_models"]["source"] == "imported"
    assert (report["algorithm"], report["devices"], report["threads"]) == ("neuroshard", 2, 2)
    assert report["memory_bytes"] == int(_expected(golden, "2_gpu")["max_mem_gb"] * 2**30)
    fields = {"feasible", "cost_ms", "column_splits", "shards", "planning_ms"}
    assert all(set(task) == fields for task in report["tasks"])
    costs = [task["cost_ms"] for task in report["tasks"]]
    summary = report["summary"]
    assert set(summary) == {"tasks", "feasible", "mean_cost_ms", "median_planning_ms"}
    assert summary["mean_cost_ms"] == pytest.approx(sum(costs) / len(costs))


def test_where_the_costs_come_from_is_printed(
    golden: Path, golden_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = CostModels.load(golden_models)
    info = msgspec.structs.replace(
        models.info, name="toy", source="simulated", hardware="toy GPU", batch_size=512
    )
    path = tmp_path / "toy.safetensors"
    CostModels(info, models.tensors).save(path)
    _simulate(golden, path, "2_gpu", "dim_greedy", tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert "cost models toy: SIMULATED toy GPU, batch size 512\n" in printed
    other = ("--batch-size", "1024", "--allow-batch-mismatch")
    _simulate(golden, path, "2_gpu", "dim_greedy", tmp_path / "out.json", *other)
    assert "planned for batch size 1024: the predictions are off" in capsys.readouterr().out


def test_its_schema_has_the_fields_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "simulation"]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    for struct in (SimulationReport, TaskResult, Summary):
        assert tuple(definitions[struct.__name__]["properties"]) == struct.__struct_fields__
