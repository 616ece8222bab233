"""Files of the published tools are read as they are, and damaged or hostile ones are refused."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_fast import published
from neuroshard_fast.cli import import_tables
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.features import PUBLISHED_FEATURES, compute_features
from neuroshard_fast.published import PublishedTable
from neuroshard_fast.tables import TableSet

GOLDEN_TASKS = {"2_gpu": 10, "4_gpu": 40, "4_gpu_tight": 12, "8_gpu": 12, "16_gpu": 2, "128_gpu": 1}

Read = TypeVar("Read")
Edit = Callable[[dict[str, Any]], None]


def run_import(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    import_tables.add_arguments(parser)
    return import_tables.run(parser.parse_args(arguments))


def attempt(read: Callable[[], Read]) -> tuple[Read | None, str]:
    """What was read, or None and the text of the InputError; any other error passes through."""
    try:
        return read(), ""
    except InputError as error:
        return None, str(error)


def an_entry(**changes: Any) -> dict[str, Any]:
    bins = {f"bin_{k}": 1.0 if k == 2 else 0.0 for k in range(17)}
    return {"row": 1000, "pooling_factor": 3.5, **bins, **changes}


# ---- table configs and tasks ----


def test_golden_table_configs_keep_every_value(golden: Path) -> None:
    entries = json.loads((golden / "table_configs.json").read_text())
    read = published.read_table_configs(golden / "table_configs.json")
    assert len(read) == 856
    for table, entry in zip(read, entries, strict=True):
        assert (table.rows, table.pooling_factor, table.dim) == (
            entry["row"],
            entry["pooling_factor"],
            None,
        )
        assert table.reuse_histogram == tuple(entry[f"bin_{k}"] for k in range(17))


def test_table_configs_with_dims_give_features_in_published_order(golden: Path) -> None:
    path = golden / "cost_data/compute/table_configs.json"
    entries = json.loads(path.read_text())
    tables = published.read_table_configs(path).table_set()
    expected = np.array([[entry[name] for name in PUBLISHED_FEATURES] for entry in entries])
    assert np.array_equal(compute_features("published", tables, 65536), expected.astype(np.float32))


def test_tables_without_dim_need_one(golden: Path) -> None:
    read = published.read_table_configs(golden / "table_configs.json")
    with pytest.raises(InputError, match=r"table_configs.json: \[0\] has no dim"):
        read.table_set()
    assert {table.embedding_dim for table in read.table_set(dim=48)} == {48}


def test_golden_tasks_name_repeated_tables_as_instances(golden: Path) -> None:
    entries = json.loads((golden / "table_configs.json").read_text())
    repeated = 0
    for folder, count in GOLDEN_TASKS.items():
        path = golden / "tasks" / folder / "data.txt"
        tasks = published.read_tasks(path, golden / "table_configs.json")
        lines = path.read_text().splitlines()
        assert len(tasks) == len(lines) == count
        for tables, line in zip(tasks, lines, strict=True):
            ids, dims = ([int(item) for item in part.split(",")] for part in line.split())
            assert [table.embedding_dim for table in tables] == dims
            assert [table.num_embeddings for table in tables] == [entries[i]["row"] for i in ids]
            assert [int(table.name.split("#")[0]) for table in tables] == ids
            repeated += len(set(ids)) < len(ids)
    assert repeated == 43


def test_the_third_instance_of_a_table_is_number_three(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([an_entry()] * 3))
    (tmp_path / "data.txt").write_text("2,0,2,2,0 4,8,12,16,20\n\n")
    (tables,) = published.read_tasks(tmp_path / "data.txt", tmp_path / "t.json")
    assert [table.name for table in tables] == ["2", "0", "2#2", "2#3", "0#2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": -5}, r"\[1\]: row must lie between 1"),
        ({"row": 2.5}, r"\[1\]: row must be a whole number"),
        ({"row": "7"}, r"\[1\]: row must be a whole number"),
        ({"row": 10**40}, r"\[1\]: row must lie between 1"),
        ({"pooling_factor": -0.1}, r"\[1\]: pooling_factor must be a finite number"),
        ({"pooling_factor": None}, r"\[1\]: pooling_factor must be a number"),
        ({"bin_7": 3.0}, r"\[1\]: bin_7 must be a finite number between 0 and 1"),
        ({"bin_2": 0.1}, r"\[1\]: .*reuse_histogram must sum to 1"),
        ({"dim": 6}, r"\[1\]: .*embedding_dim must be a multiple of 4"),
        ({"dim": 0}, r"\[1\]: dim must lie between 4"),
        ({"bin_16": float("nan")}, r"line \d+: .*byte"),
        ({"row": [1]}, r"\[1\]: row must be a whole number"),
    ],
)
def test_a_bad_table_config_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "table_configs.json"
    path.write_text(json.dumps([an_entry(), an_entry(**changes)], indent=0))
    with pytest.raises(InputError, match=message) as raised:
        published.read_table_configs(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_missing_fields_and_empty_lists_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table_configs.json"
    for content, message in [
        ([{"row": 3}], r"\[0\]: pooling_factor, bin_0, .*bin_16 missing"),
        ([], "no tables"),
        ({"row": 3}, "Expected `array`"),
        ([3], r"\[0\]: Expected `object`"),
    ]:
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=message):
            published.read_table_configs(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,7 4,8", r"line 2: ids\[1\]: 7 is not a table of .*, which has 0 to 1"),
        ("0,-1 4,8", r"line 2: ids\[1\]: -1 is not a table"),
        ("0,1 4,6", r"line 2: dims\[1\]: .*must be a multiple of 4, got 6"),
        ("0,1 4,-4", r"line 2: dims\[1\]: .*must lie between 4"),
        ("0,1 4,99999999999999999999", r"line 2: dims\[1\]: .*must lie between 4"),
        ("0,1 4", r"line 2: 2 ids but 1 dims"),
        ("0,1", r"line 2: must have 2 columns, ids dims, .* has 1"),
        ("0 4 4", r"line 2: must have 2 columns, .* has 3"),
        ("", r"line 2: must have 2 columns, .* has 0"),
        ("0,x 4,8", r"line 2: ids: 'x' is not a whole number"),
        ("0,1.0 4,8", r"line 2: ids: '1.0' is not a whole number"),
        ("0,1, 4,8", r"line 2: ids: '' is not a whole number"),
        ("0,1 4,1_6", r"line 2: dims: '1_6' is not a whole number"),
        ("0,1 nan,8", r"line 2: dims: 'nan' is not a whole number"),
        ("0,1 4," + "9" * 5000, r"line 2: dims: '9{40}' is not a whole number"),
    ],
)
def test_a_bad_task_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps([an_entry()] * 2))
    path = tmp_path / "data.txt"
    path.write_text(f"0,1 4,8\n{line}\n0 4\n")
    with pytest.raises(InputError, match=message) as raised:
        published.read_tasks(path, tmp_path / "t.json")
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe0 4", b"0,1 4,8\n\0\n"])
def test_task_files_of_nothing_or_junk_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"data.txt: "):
        published.read_task_file(tmp_path / "data.txt")


def test_written_table_configs_and_tasks_read_back(tmp_path: Path, golden: Path) -> None:
    read = published.read_table_configs(golden / "table_configs.json")
    tables = [*read, PublishedTable(7, 0.5, (1.0,) + (0.0,) * 16, dim=12)]
    published.write_table_configs(tmp_path / "t.json", tables)
    # A folder of cost data is continued only where this file is the same to the byte.
    last = (tmp_path / "t.json").read_bytes().splitlines()[-2]
    assert last.startswith(b'{"row":7,"pooling_factor":0.5,"bin_0":1.0,"bin_1":0.0,"bin_2":0.0,')
    assert last.endswith(b'"bin_16":0.0,"dim":12}')
    assert list(published.read_table_configs(tmp_path / "t.json")) == tables
    again = [PublishedTable.of(table, batch_size=1) for table in read.table_set(16)]
    assert again == [dataclasses.replace(table, dim=16) for table in read]
    tasks = [((3, 3, 1), (4, 8, 12)), ((0,), (128,))]
    published.write_task_file(tmp_path / "tasks.txt", tasks)
    assert published.read_task_file(tmp_path / "tasks.txt") == tasks


# ---- cost data ----


def test_golden_cost_data_keeps_every_value(golden: Path) -> None:
    path = golden / "cost_data/compute/data.txt"
    samples, costs = published.read_compute_samples(path, 5136)
    assert len(samples) == len(costs) == 4000
    for sample, cost, line in zip(samples, costs, path.read_text().splitlines(), strict=True):
        assert line.split() == [",".join(map(str, sample)), f"{cost:.6f}"]
    path = golden / "cost_data/comm_4/data.txt"
    columns = published.read_communication_samples(path)
    assert {column.shape for column in columns} == {(2000, 4)}
    for row, line in enumerate(path.read_text().splitlines()):
        parsed = [[float(item) for item in part.split(",")] for part in line.split()]
        assert [column[row].tolist() for column in columns] == parsed


def test_written_cost_data_reads_back(tmp_path: Path) -> None:
    compute = [((3, 1, 1), 0.25), ((0,), 12.5)]
    published.write_compute_samples(tmp_path / "c.txt", compute)
    samples, costs = published.read_compute_samples(tmp_path / "c.txt", 4)
    assert list(zip(samples, costs.tolist(), strict=True)) == compute
    communication = [([1234568.0, 8.5], [0.0, 3.0], [1.5, 2.5], [0.5, 0.75])]
    published.write_communication_samples(tmp_path / "m.txt", communication)
    read = published.read_communication_samples(tmp_path / "m.txt")
    assert [column[0].tolist() for column in read] == list(communication[0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,9 1.5", "line 2: ids: 9 is not a table: there are 0 to 3"),
        ("0,1 nan", "line 2: cost must be a finite number between 0 and .*, got nan"),
        ("0,1 inf", "line 2: cost must be a finite number between 0 and .*, got inf"),
        ("0,1 -2", "line 2: cost must be a finite number between 0 and .*, got -2"),
        ("0,1 1,2", "line 2: cost: one number wanted, got 2"),
        ("0,1", "line 2: must have 2 columns, ids cost"),
        ("0,1 fast", "line 2: cost: 'fast' is not a number"),
    ],
)
def test_a_bad_compute_sample_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "data.txt").write_text(f"0,3 1.0\n{line}\n")
    with pytest.raises(InputError, match=message):
        published.read_compute_samples(tmp_path / "data.txt", 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("4,4,4 0,0,0 1,1,1 1,1,1", "line 2: dims: 2 devices wanted, got 3"),
        ("4,4 0 1,1 1,1", "line 2: starts: 2 devices wanted, got 1"),
        ("4,4 0,0 1,nan 1,1", "line 2: fw_costs must be a finite"),
        ("4,4 0,0 1,1 1,-1", "line 2: bw_costs must be a finite number between 0 and"),
        ("4,4 0,0 1,1", "line 2: must have 4 columns, dims starts fw_costs bw_costs"),
    ],
)
def test_a_bad_communication_sample_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "data.txt").write_text(f"4,4 0,0 1,1 1,1\n{line}\n")
    with pytest.raises(InputError, match=message):
        published.read_communication_samples(tmp_path / "data.txt")


# ---- checkpoints ----


def test_golden_checkpoints_give_their_layers(golden: Path) -> None:
    path = golden / "models/compute.pt"
    state = torch.load(path, weights_only=True)["state_dict"]
    compute = published.read_compute_checkpoint(path)
    shapes = [weight.shape for weight, _ in (*compute.table_layers, *compute.set_layers)]
    assert shapes == [(128, 20), (32, 128), (64, 32), (1, 64)]
    for name, layers in (("t_hidden", compute.table_layers), ("c_hidden", compute.set_layers)):
        for k, (weight, bias) in enumerate(layers):
            assert np.array_equal(weight, state[f"{name}.{k}.weight"])
            assert np.array_equal(bias, state[f"{name}.{k}.bias"])
            assert weight.dtype == bias.dtype == np.float32
    for devices in (2, 4, 8, 16, 128):
        for direction, inputs in (("fw", 2 * devices), ("bw", devices)):
            network = published.read_communication_checkpoint(
                golden / f"models/comm_{devices}_{direction}.pt"
            )
            assert (network.devices, network.is_forward) == (devices, direction == "fw")
            assert network.feature_mean.shape == network.feature_std.shape == (inputs,)
            sizes = [inputs, 128, 64, 32, 16, devices]
            assert [weight.shape for weight, _ in network.layers] == list(
                zip(sizes[1:], sizes[:-1], strict=True)
            )


def set_entry(key: str, value: Any) -> Edit:
    return lambda checkpoint: checkpoint.__setitem__(key, value)


def set_weight(key: str, value: Any) -> Edit:
    return lambda checkpoint: checkpoint["state_dict"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.pop("state_dict"), "state_dict missing"),
        (lambda c: c.pop("feature_stds"), "feature_stds missing"),
        (lambda c: c.pop("table_mlp_sizes"), "table_mlp_sizes missing"),
        (lambda c: c["state_dict"].pop("t_hidden.1.bias"), "t_hidden.1.bias missing"),
        (set_weight("t_hidden.2.bias", torch.zeros(3)), "t_hidden.2.bias not expected"),
        (set_weight("t_hidden.0.weight", torch.zeros(128, 21)), r"t_hidden.0.weight .*\(128, 20\)"),
        (set_weight("c_hidden.1.bias", torch.full((1,), torch.nan)), "c_hidden.1.bias must be fin"),
        (set_weight("c_hidden.1.bias", torch.full((1,), torch.inf)), "c_hidden.1.bias must be fin"),
        (set_weight("c_hidden.1.bias", [0.0]), "c_hidden.1.bias must be a dense tensor"),
        (set_weight("c_hidden.1.bias", torch.zeros(1).to_sparse()), "must be a dense tensor"),
        (set_weight("c_hidden.1.bias", torch.zeros(1, dtype=torch.int64)), "floating-point"),
        (set_entry("feature_means", torch.zeros(19)), r"feature_means must have the shape \(20,\)"),
        (set_entry("feature_stds", torch.zeros(20)), "feature_stds must be positive"),
        (set_entry("feature_stds", torch.full((20,), torch.nan)), "feature_stds must be finite"),
        (set_entry("num_table_features", 10**12), "num_table_features must lie between"),
        (set_entry("num_table_features", -20), "num_table_features must lie between"),
        (set_entry("num_table_features", "20"), "num_table_features must be a whole number"),
        (set_entry("table_mlp_sizes", []), "table_mlp_sizes must be a list of 1 to"),
        (set_entry("table_mlp_sizes", 128), "table_mlp_sizes must be a list of 1 to"),
        (set_entry("pred_mlp_sizes", [31, 64]), "pred_mlp_sizes must begin with .* 32, got 31"),
        (set_entry("state_dict", [1]), "state_dict must be a dictionary"),
    ],
)
def test_an_unsound_compute_checkpoint_is_refused(
    tmp_path: Path, golden: Path, edit: Edit, message: str
) -> None:
    checkpoint = torch.load(golden / "models/compute.pt", weights_only=True)
    edit(checkpoint)
    path = tmp_path / "compute.pt"
    torch.save(checkpoint, path)
    with pytest.raises(InputError, match=message) as raised:
        published.read_compute_checkpoint(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_entry("ndevices", 3), r"num_features must be ndevices .*: 3 or 6, got 8"),
        (set_entry("ndevices", 0), "ndevices must lie between 1"),
        (set_entry("mlp_sizes", [128, 64, 32]), "hidden.4.bias, hidden.4.weight not expected"),
        (set_weight("hidden.4.weight", torch.zeros(16, 4)), r"hidden.4.weight .*shape \(4, 16\)"),
    ],
)
def test_an_unsound_communication_checkpoint_is_refused(
    tmp_path: Path, golden: Path, edit: Edit, message: str
) -> None:
    checkpoint = torch.load(golden / "models/comm_4_fw.pt", weights_only=True)
    edit(checkpoint)
    torch.save(checkpoint, tmp_path / "c.pt")
    with pytest.raises(InputError, match=message):
        published.read_communication_checkpoint(tmp_path / "c.pt")


def test_the_wrong_kind_of_checkpoint_is_refused(golden: Path) -> None:
    with pytest.raises(InputError, match="num_table_features missing"):
        published.read_compute_checkpoint(golden / "models/comm_4_fw.pt")
    with pytest.raises(InputError, match="num_features missing"):
        published.read_communication_checkpoint(golden / "models/compute.pt")


class WritesAFile:
    """Pickled, it makes whoever loads it without care write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path, bytes], int], tuple[Path, bytes]]:
        return Path.write_bytes, (self.path, b"")


def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    torch.save({"state_dict": WritesAFile(trace)}, tmp_path / "zip.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(WritesAFile(trace)))
    for name in ("zip.pt", "bare.pt"):
        for read in (
            published.read_compute_checkpoint,
            published.read_communication_checkpoint,
            lambda path: published.read_index_dump(path, dim=4, progress=False),
        ):
            with pytest.raises(InputError, match="not a file of tensors") as caught:
                read(tmp_path / name)
            assert "weights_only" not in str(caught.value)  # no advice to run it
    assert not trace.exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_checkpoint_loads_or_gives_an_input_error(
    golden: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray((golden / "models/comm_4_bw.pt").read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 20))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "c.pt"
    path.write_bytes(content)
    network, problem = attempt(lambda: published.read_communication_checkpoint(path))
    if network is None:
        assert problem.startswith(f"{path}: ")
    else:
        assert all(np.isfinite(weight).all() for weight, _ in network.layers)


def test_files_that_are_not_there_or_not_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.pt"):
        for read in (
            published.read_compute_checkpoint,
            published.read_communication_checkpoint,
            published.read_table_configs,
            published.read_task_file,
            published.read_communication_samples,
            lambda path: published.read_index_dump(path, dim=4, progress=False),
        ):
            with pytest.raises(InputError, match=r"cannot be read|not a file of tensors"):
                read(path)


# ---- index dumps ----

LENGTHS = torch.tensor([[2, 0, 1], [0, 0, 0], [1, 1, 2]])
INDICES = torch.tensor([5, 5, 499, 0, 1, 2, 2])
OFFSETS = torch.tensor([0, 2, 2, 3, 3, 3, 3, 4, 5, 7])


def read_dump(path: Path, dump: Any, **options: Any) -> TableSet:
    torch.save(dump, path, **options)
    return published.read_index_dump(path, dim=8, progress=False)


def check_dump(tables: TableSet) -> None:
    assert [table.name for table in tables] == ["0", "1", "2"]
    assert [table.num_embeddings for table in tables] == [500, 100, 100]
    assert [table.pooling_factor for table in tables] == pytest.approx([1, 0, 4 / 3])
    assert [(table.reuse_histogram or ())[:2] for table in tables] == [
        (0.5, 0.5),
        (0.0, 0.0),
        pytest.approx((2 / 3, 1 / 3)),
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("zipped", [True, False])
def test_an_index_dump_gives_rows_pooling_and_reuse(
    tmp_path: Path, dtype: torch.dtype, zipped: bool
) -> None:
    dump = (INDICES.to(dtype), OFFSETS.to(dtype), LENGTHS.to(dtype))
    check_dump(read_dump(tmp_path / "d.pt", dump, _use_new_zipfile_serialization=zipped))
    with gzip.open(tmp_path / "d.pt.gz", "wb") as file:
        file.write((tmp_path / "d.pt").read_bytes())
    check_dump(published.read_index_dump(tmp_path / "d.pt.gz", dim=8, progress=False))


def test_a_written_dump_is_the_published_tuple(tmp_path: Path) -> None:
    tables = [
        (INDICES[start:end].numpy(), lengths.numpy())
        for start, end, lengths in zip((0, 3, 3), (3, 3, 7), LENGTHS, strict=True)
    ]
    for name in ("d.pt", "d.pt.gz"):
        published.write_index_dump(tmp_path / name, tables, num_tables=3, progress=False)
        check_dump(published.read_index_dump(tmp_path / name, dim=8, progress=False))
    dump = torch.load(tmp_path / "d.pt", weights_only=True)
    assert isinstance(dump, tuple)
    for tensor, expected in zip(dump, (INDICES, OFFSETS, LENGTHS), strict=True):
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ((INDICES, OFFSETS), r"must hold a tuple \(indices, offsets, lengths\)"),
        ({"indices": INDICES}, "must hold a tuple"),
        ((INDICES, OFFSETS, [[1]]), "lengths must be a contiguous tensor"),
        ((INDICES.float(), OFFSETS, LENGTHS), "indices must be a contiguous tensor of int32"),
        ((INDICES, OFFSETS, LENGTHS.flatten()), "lengths must be .* with 2 dimension"),
        ((INDICES, OFFSETS[:-1], LENGTHS), "offsets must have 10 entries, .* has 9"),
        ((INDICES, OFFSETS, LENGTHS[:0]), "lengths must be .tables, batch., with 1 to"),
        ((INDICES[:-1], OFFSETS, LENGTHS), "go from 0 to the number of indices, 6, but .* 0 to 7"),
        ((INDICES, OFFSETS, LENGTHS + 1 - 2 * (LENGTHS > 0).long()), "of table 0 do not agree"),
        ((INDICES - 1, OFFSETS, LENGTHS), "indices of table 2 must not be negative"),
        ((INDICES + 2**50, OFFSETS, LENGTHS), "table '0': num_embeddings must lie between"),
        ((torch.tensor([1]).expand(7), OFFSETS, LENGTHS), "indices must be a contiguous"),
        ((INDICES, OFFSETS, torch.tensor([[0]]).expand(10**6, 10**6)), "lengths must be a contig"),
        ((INDICES, torch.tensor([0, 9, -9, 7]), torch.tensor([[9], [-18], [16]])), "table 0 do n"),
        ((INDICES, torch.tensor([0, 7, 0, 7]), torch.tensor([[7], [-7], [7]])), "table 1 do not"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    tmp_path: Path, dump: Any, message: str
) -> None:
    path = tmp_path / "d.pt"
    with pytest.raises(InputError, match=message) as raised:
        read_dump(path, dump)
    assert str(raised.value).startswith(f"{path}: ")


def test_what_a_dump_needs_is_asked_for_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.pt.gz"
    path.write_bytes(b"not even gzip")
    for missing in ("torch", "tqdm"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, missing, None)
            with pytest.raises(MissingDependencyError, match=missing):
                published.read_index_dump(path, dim=8, progress=False)


def test_a_disk_that_torch_finds_full_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed\n writing file data/0: file write failed")

    monkeypatch.setattr(torch, "save", full)
    table = (np.array([1, 2]), np.array([1, 1]))
    with pytest.raises(InputError, match=r"d\.pt: cannot be written: .*file write failed"):
        published.write_index_dump(tmp_path / "d.pt", [table], num_tables=1, progress=False)
    assert not list(tmp_path.iterdir())


def test_an_index_dump_needs_a_sound_dim(tmp_path: Path) -> None:
    torch.save((INDICES, OFFSETS, LENGTHS), tmp_path / "d.pt")
    for dim, message in ((0, "dim must lie between 4"), (6, "multiple of 4")):
        with pytest.raises(InputError, match=message):
            published.read_index_dump(tmp_path / "d.pt", dim=dim, progress=False)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_dump_loads_or_gives_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    torch.save((INDICES, OFFSETS, LENGTHS), folder / "d.pt")
    content = (folder / "d.pt").read_bytes()
    packed = data.draw(st.booleans())
    damaged = bytearray(gzip.compress(content) if packed else content)
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 10))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = folder / ("damaged.pt.gz" if packed else "damaged.pt")
    path.write_bytes(damaged)
    tables, problem = attempt(lambda: published.read_index_dump(path, dim=8, progress=False))
    if tables is None:
        assert problem.startswith(f"{path}: ")
    else:
        assert len(tables) >= 1


PEAK_MEMORY = """
import re, sys
from neuroshard_fast.published import read_index_dump
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
read_index_dump(sys.argv[1], dim=8, progress=False)  # what torch itself takes
before = peak()
read_index_dump(sys.argv[2], dim=8, progress=False)
print(peak() - before)
"""


def test_reading_a_dump_takes_little_more_memory_than_its_size(tmp_path: Path) -> None:
    torch.save((INDICES, OFFSETS, LENGTHS), tmp_path / "small.pt")
    generator = np.random.default_rng(0)
    lengths = np.full(4096, 50, np.int64)
    tables = ((generator.integers(0, 10**6, size=lengths.sum()), lengths) for _ in range(60))
    path = tmp_path / "large.pt"
    published.write_index_dump(path, tables, num_tables=60, progress=False)
    size = path.stat().st_size
    assert size > 90 * 2**20
    measured = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY, str(tmp_path / "small.pt"), str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0 < int(measured.stdout) < 1.2 * size


# ---- the command ----


def test_import_tables_reads_configs_tasks_and_dumps(tmp_path: Path, golden: Path) -> None:
    configs, out = str(golden / "table_configs.json"), str(tmp_path / "t.json")
    tasks = golden / "tasks/8_gpu/data.txt"
    assert run_import(configs, "--dim", "16", "-o", out) == 0
    assert TableSet.load(out) == published.read_table_configs(configs).table_set(16)
    assert run_import(configs, "--tasks", str(tasks), "--line", "3", "-o", out) == 0
    assert TableSet.load(out) == published.read_tasks(tasks, configs)[2]
    torch.save((INDICES, OFFSETS, LENGTHS), tmp_path / "d.pt")
    assert run_import(str(tmp_path / "d.pt"), "--dim", "8", "-o", out) == 0
    check_dump(TableSet.load(out))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CONFIGS"], "has no dim"),
        (["CONFIGS", "--tasks", "TASKS", "--line", "13"], "--line .*must lie between 1 and 12"),
        (["CONFIGS", "--tasks", "TASKS", "--dim", "8"], "--dim does not apply with --tasks"),
        (["some.pt"], "does not tell embedding dims: give --dim"),
        (["CONFIGS", "--dim", "8", "--line", "2"], "--line is that of a task file"),
        (["some.pt", "--dim", "8", "--line", "1"], "--line is that of a task file"),
        (["some.pt", "--tasks", "TASKS"], "--tasks goes with a table_configs.json"),
    ],
)
def test_import_tables_says_what_is_missing(
    tmp_path: Path, golden: Path, arguments: list[str], message: str
) -> None:
    paths = {
        "CONFIGS": str(golden / "table_configs.json"),
        "TASKS": str(golden / "tasks/8_gpu/data.txt"),
    }
    with pytest.raises(InputError, match=message):
        run_import(*[paths.get(item, item) for item in arguments], "-o", str(tmp_path / "t.json"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["empty.pt", "empty.pt.gz"])
def test_an_empty_file_of_torch_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    with pytest.raises(InputError, match=rf"/{name}: is empty: not a file of torch\.save$"):
        run_import(str(tmp_path / name), "--dim", "64", "-o", str(tmp_path / "tables.json"))


def test_an_empty_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.pt").touch()
    with pytest.raises(InputError, match=r"/c\.pt: is empty: not a file of torch\.save$"):
        published.read_compute_checkpoint(tmp_path / "c.pt")
