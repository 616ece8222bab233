"""``neuroshard simulate`` on the golden tasks, through files alone, as a user of published data runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuroshard_fast.agreement import Agreement
from neuroshard_fast.cli.main import main
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.planner import Planner
from neuroshard_fast.profile.simulated import score_devices, score_plan
from neuroshard_fast.published import read_tasks
from neuroshard_fast.simulation import SimulationReport, Summary, TaskResult, Truth, simulate
from neuroshard_fast.tables import TableSet

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
    fields = {"feasible", "cost_ms", "true_cost_ms", "column_splits", "shards", "planning_ms"}
    assert all(set(task) == fields for task in report["tasks"])
    costs = [task["cost_ms"] for task in report["tasks"]]
    summary = report["summary"]
    assert set(summary) == {"tasks", "feasible", "mean_cost_ms", "median_planning_ms", "truth"}
    assert summary["truth"] is None
    assert all(task["true_cost_ms"] is None for task in report["tasks"])
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


GIB = 2**30


@pytest.fixture(scope="module")
def tasks(golden: Path) -> list[TableSet]:
    """The golden tasks for 8 devices; two of them do not fit 4 GiB."""
    return read_tasks(golden / "tasks/8_gpu/data.txt", golden / "table_configs.json")


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner("h100-sim")


CLUSTER = Cluster(world_size=8, memory_bytes=4 * GIB, batch_size=65536)


def test_true_costs_are_those_of_the_plans(planner: Planner, tasks: list[TableSet]) -> None:
    options = SearchOptions(algorithm="neuroshard")
    report = simulate(planner, tasks, CLUSTER, options, truth=True)
    assert {task.feasible for task in report.tasks} == {True, False}
    assert any(task.column_splits for task in report.tasks)
    for tables, task in zip(tasks, report.tasks, strict=True):
        if not task.feasible:
            assert task.true_cost_ms is None
            continue
        plan = planner.plan(tables, CLUSTER, options)
        assert task.cost_ms == plan.cost_ms
        assert task.true_cost_ms == score_plan(plan, tables, "h100", 65536).cost_ms


def test_plans_of_baselines_have_a_true_cost_where_they_keep_the_cap(
    planner: Planner, tasks: list[TableSet]
) -> None:
    options = SearchOptions(algorithm="dim_greedy")
    report = simulate(planner, tasks, CLUSTER, options, truth=True)
    assert 0 < report.summary.feasible < len(tasks)
    for tables, task in zip(tasks, report.tasks, strict=True):
        devices = [[tables[index] for index in indices] for indices in task.shards]
        expected = score_devices(devices, "h100", 65536).cost_ms if task.feasible else None
        assert task.true_cost_ms == expected


def test_the_summary_compares_predicted_with_true_costs(
    planner: Planner, tasks: list[TableSet]
) -> None:
    report = simulate(planner, tasks, CLUSTER, SearchOptions(), truth=True)
    predicted = [task.cost_ms for task in report.tasks if task.cost_ms is not None]
    true = [task.true_cost_ms for task in report.tasks if task.true_cost_ms is not None]
    truth = report.summary.truth
    assert truth is not None
    assert (truth.hardware, truth.batch_size) == ("h100", 65536)
    assert truth.mean_cost_ms == pytest.approx(sum(true) / len(true))
    assert truth.agreement == Agreement.of(predicted, true)


def test_the_formula_is_asked_for_the_batch_size_planned_for(
    planner: Planner, tasks: list[TableSet]
) -> None:
    roomy = msgspec.structs.replace(CLUSTER, memory_bytes=80 * GIB)
    small = msgspec.structs.replace(roomy, batch_size=4096)
    options = SearchOptions(algorithm="dim_greedy", allow_batch_mismatch=True)
    large_report = simulate(planner, tasks[1:2], roomy, options, truth=True)
    report = simulate(planner, tasks[1:2], small, options, truth=True)
    assert report.summary.truth is not None
    assert report.summary.truth.batch_size == 4096
    (task,), (large,) = report.tasks, large_report.tasks
    assert task.shards == large.shards
    assert task.true_cost_ms is not None
    assert large.true_cost_ms is not None
    assert task.true_cost_ms < large.true_cost_ms / 4


def test_without_a_feasible_task_there_is_no_truth_to_compare(
    planner: Planner, tasks: list[TableSet]
) -> None:
    tiny = msgspec.structs.replace(CLUSTER, memory_bytes=1024)
    truth = simulate(planner, tasks[:1], tiny, SearchOptions(), truth=True).summary.truth
    assert truth == Truth(hardware="h100", batch_size=65536, mean_cost_ms=None, agreement=None)


def test_the_command_prints_simulated_truth_beside_the_predictions(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    batch_size = ("--batch-size", "65536")
    report = _simulate(golden, Path("h100-sim"), "8_gpu", "neuroshard", out, *batch_size, "--truth")
    printed = capsys.readouterr().out
    assert "SIMULATED true ms" in printed.splitlines()[0]
    truth = report["summary"]["truth"]
    line = next(line for line in printed.splitlines() if line.startswith("true costs: "))
    assert line.startswith(
        f"true costs: SIMULATED h100, batch size 65536; mean {truth['mean_cost_ms']:.4f} ms; "
    )
    assert f"{truth['agreement']['spearman']:.4f} (Spearman)" in line
    for task in report["tasks"]:
        if task["feasible"]:
            assert f"{task['true_cost_ms']:.4f}" in printed
    without = _simulate(golden, Path("h100-sim"), "8_gpu", "neuroshard", out, *batch_size)
    assert "true" not in capsys.readouterr().out
    assert [t["shards"] for t in without["tasks"]] == [t["shards"] for t in report["tasks"]]


def test_truth_is_refused_for_cost_models_that_no_known_formula_made(
    golden_models: Path, tasks: list[TableSet]
) -> None:
    models = CostModels.load(golden_models)
    info = msgspec.structs.replace(models.info, name="toy", source="simulated", hardware="toy GPU")
    for planner, message in (
        (Planner(models), "are imported, so that the true cost of a plan is not known"),
        (Planner("cpu-fbgemm"), "are measured, so that the true cost of a plan is not known"),
        (
            Planner(CostModels(info, models.tensors)),
            "'toy' simulate 'toy GPU', of which no formula is known here; known are a100, h100, h200",
        ),
    ):
        with pytest.raises(InputError, match=message):
            simulate(planner, tasks, CLUSTER, SearchOptions(), truth=True)


def test_its_schema_has_the_fields_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "simulation"]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    for struct in (SimulationReport, TaskResult, Summary, Truth, Agreement):
        assert tuple(definitions[struct.__name__]["properties"]) == struct.__struct_fields__
