"""Bad input to the command line: one clear error, the right exit code, nothing half-written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from neuroshard_fast.cli.main import main

GOLDEN = Path(__file__).parent / "golden"
BAD_INPUT, INFEASIBLE = 2, 3


def _table(**changes: Any) -> dict[str, Any]:
    table = {
        "name": "users",
        "num_embeddings": 1000,
        "embedding_dim": 64,
        "features": [{"name": "user", "pooling_factor": 2.0}],
    }
    return {**table, **changes}


def _plan(
    tmp_path: Path, tables: Any, *options: str, devices: str = "8", memory: str = "1GiB"
) -> int:
    path = tmp_path / "tables.json"
    path.write_text(tables if isinstance(tables, str) else json.dumps({"tables": tables}))
    arguments = ["plan", str(path), "--devices", devices, f"--memory={memory}"]
    return main([*arguments, "-o", str(tmp_path / "plan.json"), *options])


def _one_error(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], ["tables.json", "at least one table"]),
        ([_table(num_embeddings=-5)], ["tables.json", "users", "num_embeddings", "-5"]),
        ([_table(num_embeddings=0)], ["users", "num_embeddings"]),
        ([_table(num_embeddings=2**63)], ["num_embeddings"]),
        ([_table(num_embeddings=10**30)], ["num_embeddings"]),
        ([_table(num_embeddings=1.5)], ["tables[0].num_embeddings"]),
        ([_table(num_embeddings="many")], ["tables[0].num_embeddings", "int"]),
        ([_table(embedding_dim=6)], ["users", "embedding_dim", "multiple of 4"]),
        ([_table(embedding_dim=0)], ["users", "embedding_dim"]),
        ([_table(embedding_dim=10**6)], ["users", "embedding_dim"]),
        ([_table(features=[])], ["users", "features"]),
        ([_table(features=[{"name": "f", "pooling_factor": -1}])], ["pooling_factor"]),
        ([_table(reuse_histogram=[1.0])], ["reuse_histogram", "17"]),
        ([_table(reuse_histogram=[0.5] * 17)], ["reuse_histogram", "sum to 1"]),
        ([_table(optimizer="lion")], ["optimizer"]),
        ([_table(colour="red")], ["colour"]),
        ([_table(), _table()], ["users", "unique"]),
        ('{"tables": [{"name": "a"', ["tables.json", "truncated"]),
        ('{"tables": [{"name": "a", "num_embeddings": NaN}]}', ["tables.json"]),
        ("[" * 100_000, ["tables.json"]),
        ("\x00\xff", ["tables.json"]),
    ],
)
def test_bad_table_sets_are_refused_by_name(
    tables: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, tables) == BAD_INPUT
    error = _one_error(capsys)
    for word in words:
        assert word in error
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": "0"}, ["world_size", "0"]),
        ({"devices": "-3"}, ["world_size"]),
        ({"devices": "1"}, ["1 devices", "2 to 65,536"]),
        ({"memory": "0GiB"}, ["0GiB"]),
        ({"memory": "-1GiB"}, ["-1GiB"]),
        ({"memory": "80"}, ["80", "GiB"]),
        ({"memory": "80GB"}, ["80GB", "GiB"]),
        ({"memory": "nanGiB"}, ["nanGiB"]),
    ],
)
def test_bad_clusters_are_refused_by_name(
    options: dict[str, str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()], **options) == BAD_INPUT
    error = _one_error(capsys)
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    "option",
    [["--beam-width", "0"], ["--grid-steps", "-1"], ["--threads", "0"], ["--batch-size", "0"]],
)
def test_bad_options_are_refused_by_name(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()], *option) == BAD_INPUT
    assert option[0].strip("-").replace("-", "_") in _one_error(capsys)


def test_another_batch_size_needs_to_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()], "--batch-size", "512") == BAD_INPUT
    assert "--allow-batch-mismatch" in _one_error(capsys)
    assert _plan(tmp_path, [_table()], "--batch-size", "512", "--allow-batch-mismatch") == 0
    assert "512" in capsys.readouterr().out


def test_infeasible_plans_have_an_exit_code_of_their_own_and_say_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [_table(), _table(name="items", num_embeddings=10**8, embedding_dim=128)]
    assert _plan(tmp_path, tables) == INFEASIBLE
    error = _one_error(capsys)
    assert "'items'" in error
    assert "47.68 GiB of 8.00 GiB" in error
    assert not (tmp_path / "plan.json").exists()


def test_outputs_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "no" / "plan.json")
    assert main(["plan", "nowhere.json", "--devices", "8", "--memory", "1GiB", "-o", missing]) == 2
    assert missing in _one_error(capsys)


def test_files_that_are_not_there_or_cannot_be_written_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "nowhere.json", "--devices", "8", "--memory", "1GiB"]) == BAD_INPUT
    assert "nowhere.json" in _one_error(capsys)
    assert _plan(tmp_path, [_table()], "-o", str(tmp_path / "no" / "plan.json")) == BAD_INPUT
    assert "plan.json" in _one_error(capsys)
    assert _plan(tmp_path, [_table()], "--plot", str(tmp_path / "plan.tables")) == BAD_INPUT
    assert ".png" in _one_error(capsys)


@pytest.fixture
def shipped(tmp_path: Path) -> tuple[dict[str, np.ndarray], dict[str, str], Path]:
    import neuroshard_fast

    source = Path(neuroshard_fast.__file__).parent / "models" / "h100-sim.safetensors"
    with safe_open(source, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = dict(file.metadata())
    target = tmp_path / "models.safetensors"
    target.write_bytes(source.read_bytes())
    return tensors, metadata, target


def test_truncated_cost_models_are_refused(
    shipped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shipped[2]
    whole = path.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert _plan(tmp_path, [_table()], "--cost-models", str(path)) == BAD_INPUT
        assert "models.safetensors" in _one_error(capsys)


def test_damaged_cost_models_are_refused_by_tensor(
    shipped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, metadata, path = shipped

    def refuses(changed: dict[str, np.ndarray | None], word: str) -> None:
        kept = {name: value for name, value in {**tensors, **changed}.items() if value is not None}
        save_file(kept, path, metadata)
        assert _plan(tmp_path, [_table()], "--cost-models", str(path)) == BAD_INPUT
        assert word in _one_error(capsys)

    weight = tensors["compute.table.0.weight"]
    with_nan = weight.copy()
    with_nan[0, 0] = np.nan
    refuses({"compute.table.0.weight": with_nan}, "compute.table.0.weight")
    refuses({"compute.table.0.weight": weight[:, :-1].copy()}, "compute.table.0")
    refuses({"compute.table.0.weight": None}, "compute.table.0")
    refuses({"forward.shared.head.0.bias": None}, "forward.shared.head.0")
    refuses({"compute.feature_std": np.zeros_like(tensors["compute.feature_std"])}, "feature_std")


def test_unknown_cost_models_list_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()], "--cost-models", "v100") == BAD_INPUT
    error = _one_error(capsys)
    for name in ("cpu-fbgemm", "a100-sim", "h100-sim", "h200-sim"):
        assert name in error


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("0,1,900 8,8,8", "900"),
        ("0,-1 8,8", "-1"),
        ("0,1 8", "line 1"),
        ("0,1 8,6", "6"),
        ("0,x 8,8", "x"),
        ("", "line 1"),
    ],
)
def test_bad_task_files_are_refused_by_line(
    line: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text(line + "\n")
    configs = str(GOLDEN / "table_configs.json")
    arguments = ["simulate", "--tasks", str(tasks), "--table-configs", configs]
    arguments += ["--cost-models", "h100-sim", "--devices", "8", "--memory", "1GiB"]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == BAD_INPUT
    error = _one_error(capsys)
    assert "tasks.txt" in error
    assert word in error
    assert not (tmp_path / "out.json").exists()


def test_running_out_of_memory_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(args: argparse.Namespace) -> int:
        raise MemoryError

    monkeypatch.setattr("neuroshard_fast.cli.schema.run", exhausted)
    assert main(["schema", "plan"]) == 1
    assert capsys.readouterr().err == "error: out of memory\n"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["plan", "t.json", "--devices", "8", "--memory", "1GiB", "-o", ""], "-o/--output"),
        (["plan", "t.json", "--devices", "8", "--memory", "1GiB", "--plot="], "--plot"),
        (["evaluate", "t.json", "--plans", "p.json", "--json", ""], "--json"),
        (["generate", "production", "-o", ""], "-o/--output"),
        (["import-tables", "t.json", "-o", ""], "-o/--output"),
        (["import-checkpoints", "--compute", "c.pt", "-o", ""], "-o/--output"),
        (["pretrain", "data", "-o", ""], "-o/--output"),
        (["profile", "comm", "--devices", "2", "--batch-size", "8", "-o", ""], "-o/--output"),
    ],
)
def test_an_empty_name_of_what_to_write_is_an_error_that_names_the_option(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    message = f"error: argument {option}: must name what to write, got an empty name\n"
    assert capsys.readouterr().err.endswith(message)


def test_an_empty_name_is_an_error_and_not_as_if_it_were_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()], "--cost-models", "") == BAD_INPUT
    assert "no cost models named ''" in _one_error(capsys)
    assert main(["plan", "", "--devices", "8", "--memory", "1GiB"]) == BAD_INPUT
    assert "a path must not be empty" in _one_error(capsys)
    out = str(tmp_path / "out.json")
    assert main(["import-tables", "configs.json", "--tasks", "", "-o", out]) == BAD_INPUT
    _one_error(capsys)
    out = str(tmp_path / "out.safetensors")
    assert main(["pretrain", str(GOLDEN / "cost_data"), "--name", "", "-o", out]) == BAD_INPUT
    assert "name must be a non-empty string" in _one_error(capsys)


@pytest.mark.parametrize("sizes", ["a", "", "128,", "1.5", "9" * 5000])
@pytest.mark.parametrize("option", ["--table-sizes", "--set-sizes", "--communication-sizes"])
def test_layer_sizes_of_another_form_name_the_option_and_the_form(
    option: str, sizes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pretrain", "data", "-o", "m.safetensors", option, sizes])
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: must be whole numbers with commas between them" in error
    assert len(error) < 300


def test_a_file_of_another_kind_is_named_with_the_kind_that_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, [_table()]) == 0
    plan = str(tmp_path / "plan.json")
    capsys.readouterr()
    assert main(["plan", plan, "--devices", "8", "--memory", "1GiB"]) == BAD_INPUT
    error = _one_error(capsys)
    assert f"{plan}: is a file of schema 'neuroshard/plan/1'" in error
    assert "'neuroshard/tables/1' is wanted" in error


def test_pictures_and_twice_named_outputs_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", "nowhere.json", "--devices", "8", "--memory", "1GiB"]
    assert main([*plan, "--plot", str(tmp_path / "load.txt")]) == BAD_INPUT
    assert ".svg" in _one_error(capsys)
    twice = str(tmp_path / "load.png")
    assert main([*plan, "-o", twice, "--plot", twice]) == BAD_INPUT
    assert "same file" in _one_error(capsys)
