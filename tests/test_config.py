"""What may be written where, and what numbers and sizes may be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuroshard_fast import config
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import CostModelsUsed, DeviceLoad, Shard, ShardingPlan
from neuroshard_fast.progress import progress_bar
from neuroshard_fast.published import read_task_file
from neuroshard_fast.report import draw_plan
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet
from neuroshard_fast.units import parse_bytes

NP: Any = np  # whose numbers are no int and float to a type checker


def plan_of_numpy_numbers() -> ShardingPlan:
    """A plan of one shard, every number one of numpy's."""
    one = NP.float32(1.5)
    load = DeviceLoad(
        device=NP.int64(0),
        num_shards=NP.int32(1),
        memory_bytes=NP.uint64(2**40),
        compute_ms=one,
        forward_comm_ms=np.float64(0.5),
        backward_comm_ms=one,
        total_ms=np.float64(3.5),
    )
    shard = Shard(
        table="a",
        column_offset=NP.int16(0),
        width=NP.int64(8),
        device=NP.int64(0),
        memory_bytes=NP.int64(2**40),
    )
    return ShardingPlan(
        algorithm="by hand",
        cost_models=CostModelsUsed(
            name="none", source="measured", batch_size=NP.int64(4), hardware="none"
        ),
        world_size=NP.int64(1),
        memory_cap_bytes=NP.int64(2**41),
        batch_size=NP.int64(4),
        cost_ms=np.float64(3.5),
        devices=(load,),
        shards=(shard,),
        column_splits=(),
        placement=((NP.int64(0),),),
        planning_ms=NP.float32(0.25),
    )


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml"])
def test_numpy_numbers_are_written_as_numbers(tmp_path: Path, name: str) -> None:
    plan = plan_of_numpy_numbers()
    plan.save(tmp_path / name)
    read = ShardingPlan.load(tmp_path / name)
    assert read == plan
    assert type(read.devices[0].memory_bytes) is int
    assert type(read.cost_ms) is float


def test_numpy_numbers_are_written_to_cost_models(golden_models: Path, tmp_path: Path) -> None:
    models = CostModels.load(golden_models)
    changed = {**{name: getattr(models.info, name) for name in models.info.__struct_fields__}}
    info = type(models.info)(**{**changed, "batch_size": NP.int64(512)})
    CostModels(info, models.tensors).save(tmp_path / "m.safetensors")
    assert CostModels.load(tmp_path / "m.safetensors").info.batch_size == 512


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_numbers_beyond_all_bounds_are_refused_with_few_digits(digits: int) -> None:
    number = 10**digits
    for make in (
        lambda: Feature(name="f", pooling_factor=number),
        lambda: Cluster(world_size=number, memory_bytes=1),
    ):
        with pytest.raises(InputError, match="between") as raised:
            make()
        assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "text", ["9" * 400 + "GiB", "1." + "0" * 400 + "GiB", "9" * 5000 + "B", "9" * 19 + "TiB"]
)
def test_sizes_of_hundreds_of_digits_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="memory size '") as raised:
        parse_bytes(text)
    assert len(str(raised.value)) < 200


def test_the_largest_size_is_taken_in_any_unit() -> None:
    assert parse_bytes(f"{2**60}B") == parse_bytes("1048576TiB") == 2**60


@pytest.mark.parametrize(
    "value",
    [b'!!timestamp "x"', b'!!int ""', b"!!bool maybe", b'!!float "x"', b"2001-99-99", b"\xff"],
)
def test_yaml_values_that_do_not_fit_their_tags_are_input_errors(value: bytes) -> None:
    with pytest.raises(InputError, match=r"^file: "):
        config.decode(b"world_size: " + value, Cluster, "file", yaml=True)


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder/file.json", tmp_path / "link.json"
    link.symlink_to(file)
    for contents in (b"first", b"second"):
        config.write_atomically(link, contents)
        assert link.is_symlink()
        assert file.read_bytes() == contents
    assert [path.name for path in file.parent.iterdir()] == ["file.json"]


def test_devices_pipes_and_folders_are_not_written_over(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path(os.devnull), tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match="cannot be written"):
            config.write_atomically(path, b"data")
    assert pipe.is_fifo()
    assert not Path(os.devnull).is_file()


def table_set(rows: int = 1000) -> TableSet:
    feature = Feature(name="f", pooling_factor=2.0)
    return TableSet.of(
        [EmbeddingTable(name="t", num_embeddings=rows, embedding_dim=64, features=(feature,))]
    )


def shards(*placed: tuple[str, int, int, int]) -> dict[str, Any]:
    """The fields of a plan on two devices of (table, column offset, width, device)."""
    plan = plan_of_numpy_numbers()
    fields = {name: getattr(plan, name) for name in plan.__struct_fields__}
    return {
        **fields,
        "world_size": 2,
        "devices": tuple(
            msgspec.structs.replace(load, device=k) for k in (0, 1) for load in plan.devices
        ),
        "placement": ((), ()),
        "shards": tuple(
            Shard(table=table, column_offset=offset, width=width, device=device, memory_bytes=1)
            for table, offset, width, device in placed
        ),
    }


def test_a_plan_gives_the_tables_of_each_device() -> None:
    plan = ShardingPlan(**shards(("t", 16, 48, 0), ("t", 0, 16, 1)))
    first, second = plan.tables_by_device(table_set())
    assert [(table.name, table.embedding_dim) for table in first] == [("t", 48)]
    assert [(table.name, table.embedding_dim) for table in second] == [("t", 16)]


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ([("u", 0, 64, 0)], r"shards\[0\]: no table is called 'u'"),
        ([("t", 0, 32, 0)], "shards have 32 columns of 64"),
        ([("t", 0, 32, 0), ("t", 28, 36, 1)], "do not meet at column 32"),
        ([("t", 0, 62, 0), ("t", 62, 2, 1)], r"shards\[0\]: width: .*multiple of 4"),
    ],
)
def test_a_plan_of_other_tables_is_refused(
    placed: list[tuple[str, int, int, int]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ShardingPlan(**shards(*placed)).tables_by_device(table_set())


def test_progress_without_tqdm_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    missing = pytest.raises(MissingDependencyError, match=r"neuroshard-fast\[profile\]")
    with missing, progress_bar(3, "work"):
        pass


def test_a_reader_that_has_gone_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "neuroshard_fast.cli.main", "schema", "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert error == b""


@pytest.mark.parametrize("type_", [TableSet, Cluster, SearchOptions, ShardingPlan, CostModels])
@pytest.mark.parametrize("path", [None, 5, b"bytes", "", "a\0b.json"])
def test_what_is_no_path_is_an_input_error(type_: Any, path: Any) -> None:
    with pytest.raises(InputError, match="path"):
        type_.load(path)
    with pytest.raises(InputError, match="path"):
        config.write_atomically(path, b"data")
    if type_ is not CostModels:
        with pytest.raises(InputError, match="path"):
            config.save(path, SearchOptions())


@pytest.mark.parametrize("given", [5, [5], (5,), None, "abc", [], {}])
def test_what_is_no_sequence_of_tables_is_an_input_error(given: Any) -> None:
    with pytest.raises(InputError, match=r"^tables"):
        TableSet.of(given)


def test_a_table_set_holds_a_tuple_and_is_made_of_a_list_by_of() -> None:
    tables = list(table_set())
    assert TableSet.of(tables).tables == tuple(tables)
    not_typed: Any = tables
    with pytest.raises(InputError, match="tables: must be a tuple"):
        TableSet(tables=not_typed)


@pytest.mark.parametrize("value", [None, 5, [], ("a", None)])
@pytest.mark.parametrize("field", ["devices", "shards", "column_splits", "placement"])
def test_parts_of_a_plan_of_another_type_are_input_errors(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"plan: {field} must be a tuple"):
        ShardingPlan(**{**shards(("t", 0, 64, 0)), field: value})


def test_a_plan_that_cannot_be_printed_is_refused() -> None:
    with pytest.raises(InputError, match="plan: algorithm must be"):
        ShardingPlan(**{**shards(("t", 0, 64, 0)), "algorithm": "two\nlines"})


@pytest.mark.parametrize("name", ["mixed-up.json", "mixed-up.yaml"])
def test_a_file_of_another_kind_is_named_with_what_is_wanted(tmp_path: Path, name: str) -> None:
    plan_of_numpy_numbers().save(tmp_path / name)
    message = rf"{name}: is a file of schema 'neuroshard/plan/1'; .*'neuroshard/tables/1' is wanted"
    with pytest.raises(InputError, match=message):
        TableSet.load(tmp_path / name)
    table_set().save(tmp_path / name)
    with pytest.raises(InputError, match="schema 'neuroshard/tables/1'"):
        Cluster.load(tmp_path / name)


@pytest.mark.parametrize("name", ["t.json", "t.yaml"])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, name: str) -> None:
    table_set().save(tmp_path / name)
    marked = tmp_path / f"marked-{name}"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert TableSet.load(marked) == table_set()


def test_a_byte_order_mark_is_passed_over_in_lines_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_bytes(b"\xef\xbb\xbf0,1 8,16\n")
    assert read_task_file(tmp_path / "tasks.txt") == [((0, 1), (8, 16))]


def test_a_device_is_not_read_for_ever() -> None:
    for type_ in (TableSet, ShardingPlan):
        with pytest.raises(InputError, match="/dev/zero: cannot be read: it is a device"):
            type_.load("/dev/zero")


def test_a_file_as_folder_of_an_output_is_refused_before_any_work(tmp_path: Path) -> None:
    table_set().save(tmp_path / "t.json")
    with pytest.raises(InputError, match=r"t\.json/plan\.json: cannot be written: no such folder"):
        config.output_file(tmp_path / "t.json" / "plan.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("column_splits", (-1,), r"column_splits\[0\] must lie between 0"),
        ("column_splits", (0, True), r"column_splits\[1\] must be a whole number"),
        ("placement", ((0,), (-1,)), r"placement\[1\]: shard must lie between 0"),
        ("placement", (("a",), ()), r"placement\[0\]: shard must be a whole number, got 'a'"),
        ("assumed_histograms", ("two\nlines",), "assumed_histograms: table must be"),
        ("cost_models", None, "cost_models must be CostModelsUsed, got None"),
    ],
)
def test_a_plan_that_no_search_can_give_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^plan: {message}"):
        ShardingPlan(**{**shards(("t", 0, 64, 0)), field: value})


def test_the_devices_of_a_plan_come_in_order() -> None:
    plan = shards(("t", 0, 64, 0))
    with pytest.raises(InputError, match=r"plan: devices\[0\] must be device 0, got 1"):
        ShardingPlan(**{**plan, "devices": plan["devices"][::-1]})


@pytest.mark.parametrize("tables", [None, 5, [1], "abc"])
def test_the_tables_of_a_plan_are_a_table_set(tables: Any) -> None:
    with pytest.raises(InputError, match="a TableSet is wanted"):
        ShardingPlan(**shards(("t", 0, 64, 0))).tables_by_device(tables)


@pytest.mark.parametrize("path", [None, 5, ""])
def test_a_picture_needs_a_path(path: Any) -> None:
    with pytest.raises(InputError, match="path"):
        draw_plan(plan_of_numpy_numbers(), path)
