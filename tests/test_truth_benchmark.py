"""benchmarks/truth.py: which tasks it draws, and what it reports of them."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

import truth
from neuroshard_fast import Cluster
from neuroshard_fast.agreement import Agreement

CLUSTER = Cluster(world_size=8, memory_bytes=80 * 2**30)


def test_tasks_are_seeded_and_fill_no_more_than_four_fifths_of_the_cluster() -> None:
    tasks = truth.draw_tasks(6, CLUSTER, 1024, "fp32", 0)
    assert tasks == truth.draw_tasks(6, CLUSTER, 1024, "fp32", 0)
    assert tasks != truth.draw_tasks(6, CLUSTER, 1024, "fp32", 1)
    assert all(40 <= len(tables) <= 120 for tables in tasks)
    assert {table.embedding_dim for tables in tasks for table in tables} == set(truth.DIMS)
    half = truth.draw_tasks(6, CLUSTER, 1024, "fp16", 0)
    for single, double in zip(half, tasks, strict=True):
        assert 2 * truth.bytes_of(single) == truth.bytes_of(double)
    small = msgspec.structs.replace(CLUSTER, memory_bytes=2**30)
    room = 0.8 * 8 * 2**30
    assert max(map(truth.bytes_of, tasks)) > room
    squeezed = truth.draw_tasks(6, small, 1024, "fp32", 0)
    assert all(0.5 * room < truth.bytes_of(tables) <= room for tables in squeezed[1:])


@pytest.mark.parametrize("data_type", ["fp32", "fp16"])
def test_the_report_groups_the_plans_by_pool(
    data_type: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--tasks", "5", "--data-type", data_type, "--batch-size", "65536"]
    arguments += ["-o", str(out), "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", ["truth.py", *arguments])
    monkeypatch.setattr(truth, "POOL_TABLES", 1)  # as many as a task may have
    truth.main()
    report = msgspec.json.decode(out.read_bytes(), type=truth.Report)
    assert (report.hardware, report.batch_size, report.data_type) == ("h100", 65536, data_type)
    assert {name: group.plans for name, group in report.groups.items()} == {
        "all": 5,
        "broad": 3,
        "dlrm-like": 2,
    }
    dlrm = truth.costs(report.tasks[1::2])
    assert report.groups["dlrm-like"].agreement == Agreement.of(*zip(*dlrm, strict=True))
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "SIMULATED true ms" in printed
    everything = report.groups["all"].agreement
    assert f" {everything.spearman:.4f} " in printed
    assert f" {everything.mean_gap:.2%} " in printed


def test_cost_models_of_other_hardware_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["truth.py", "--cost-models", "a100-sim", "-o", str(out)])
    with pytest.raises(SystemExit):
        truth.main()
    assert "a100-sim are of A100-SXM4-80GB" in capsys.readouterr().err
    assert not out.exists()
