"""The data model: what a table set, cluster, options or plan may hold, and what files do to it."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuroshard_fast import config
from neuroshard_fast.cli import schema
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.errors import InputError
from neuroshard_fast.memory import ShardMemory, shard_memory
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.reuse import (
    HISTOGRAM_BINS,
    assumed_histogram,
    draw_indices,
    histogram_of_counts,
    measured_histogram,
)
from neuroshard_fast.tables import (
    MAX_DIM,
    MAX_ROWS,
    DataType,
    EmbeddingTable,
    Feature,
    Optimizer,
    OutputDtype,
    Pooling,
    TableSet,
)

FORMATS = (TableSet, Cluster, SearchOptions, ShardingPlan)

names = st.text(min_size=1, max_size=12).filter(str.isprintable)
histograms = st.lists(st.integers(0, 1000), min_size=HISTOGRAM_BINS, max_size=HISTOGRAM_BINS).map(
    lambda parts: tuple(part / max(1, sum(parts)) for part in parts)
)


@st.composite
def tables(draw: st.DrawFn, name: str) -> EmbeddingTable:
    feature_names = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    return EmbeddingTable(
        name=name,
        num_embeddings=draw(st.integers(1, MAX_ROWS)),
        embedding_dim=4 * draw(st.integers(1, MAX_DIM // 4)),
        features=tuple(
            Feature(name=feature, pooling_factor=draw(st.floats(0, 1e6)))
            for feature in feature_names
        ),
        pooling=draw(st.sampled_from(get_args(Pooling))),
        is_weighted=draw(st.booleans()),
        reuse_histogram=draw(st.none() | histograms),
        data_type=draw(st.sampled_from(get_args(DataType))),
        output_dtype=draw(st.sampled_from(get_args(OutputDtype))),
        optimizer=draw(st.sampled_from(get_args(Optimizer))),
    )


@st.composite
def table_sets(draw: st.DrawFn) -> TableSet:
    table_names = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return TableSet.of([draw(tables(name)) for name in table_names])


def a_table(**changes: Any) -> EmbeddingTable:
    fields: dict[str, Any] = {
        "name": "ads",
        "num_embeddings": 100,
        "embedding_dim": 64,
        "features": (Feature(name="ads", pooling_factor=2.5),),
    }
    return EmbeddingTable(**{**fields, **changes})


def a_file(**changes: Any) -> dict[str, Any]:
    """A valid table set as JSON has it; ``changes`` replace fields of its second table."""
    first, second = (
        {
            "name": name,
            "num_embeddings": 100,
            "embedding_dim": 64,
            "features": [{"name": name, "pooling_factor": 2.5}],
        }
        for name in ("ads", "users")
    )
    return {"schema": "neuroshard/tables/1", "tables": [first, {**second, **changes}]}


# ---- round trips ----


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table_set=table_sets(), suffix=st.sampled_from([".json", ".yaml", ".yml"]))
def test_any_table_set_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, table_set: TableSet, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("round") / f"tables{suffix}"
    table_set.save(path)
    assert TableSet.load(path) == table_set


@given(
    world_size=st.integers(1, 65536),
    memory=st.integers(1, 2**60),
    batch=st.none() | st.integers(1, 2**31),
    beam=st.integers(1, 4096),
    splits=st.integers(0, 65536),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=40, deadline=None)
def test_clusters_and_options_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    world_size: int,
    memory: int,
    batch: int | None,
    beam: int,
    splits: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("round")
    cluster = Cluster(world_size=world_size, memory_bytes=memory, batch_size=batch)
    options = SearchOptions(beam_width=beam, max_splits=splits, seed=seed)
    for suffix in (".json", ".yaml"):
        cluster.save(folder / f"cluster{suffix}")
        options.save(folder / f"options{suffix}")
        assert Cluster.load(folder / f"cluster{suffix}") == cluster
        assert SearchOptions.load(folder / f"options{suffix}") == options


# ---- what is refused, and what the message names ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embeddings": -1}, r"num_embeddings must lie between 1 and"),
        ({"num_embeddings": 0}, r"num_embeddings must lie between 1 and"),
        ({"num_embeddings": 2**40 + 1}, r"num_embeddings must lie between 1 and"),
        ({"num_embeddings": 10**30}, r"num_embeddings"),
        ({"num_embeddings": "many"}, r"num_embeddings: Expected `int`, got `str`"),
        ({"num_embeddings": 1.5}, r"num_embeddings: Expected `int`, got `float`"),
        ({"num_embeddings": True}, r"num_embeddings: Expected `int`, got `bool`"),
        ({"embedding_dim": 6}, r"embedding_dim must be a multiple of 4, got 6"),
        ({"embedding_dim": -4}, r"embedding_dim must lie between 4 and"),
        ({"embedding_dim": 2**20}, r"embedding_dim must lie between 4 and"),
        ({"features": []}, r"features must be a tuple of at least one Feature"),
        ({"features": [{"name": "f"}]}, r"features\[0\]: .*`pooling_factor`"),
        ({"features": [{"name": "f", "pooling_factor": -1}]}, r"pooling_factor must be a fin"),
        (
            {"features": [{"name": "f", "pooling_factor": 1e300}]},
            r"pooling_factor must be a fin",
        ),
        ({"features": [{"name": "f", "pooling_factor": 1}] * 2}, r"feature names must be unique"),
        ({"pooling": "max"}, r"pooling: Invalid enum value 'max'"),
        ({"data_type": "fp64"}, r"data_type: Invalid enum value 'fp64'"),
        ({"optimizer": None}, r"optimizer: Expected `str`, got `null`"),
        ({"reuse_histogram": [1.0]}, r"reuse_histogram must be a tuple of 17"),
        ({"reuse_histogram": [0.5] * 17}, r"reuse_histogram must sum to 1"),
        ({"reuse_histogram": [-1.0, 2.0] + [0] * 15}, r"reuse_histogram\[0\] must be a finite"),
        ({"name": ""}, r"table name must be a non-empty string"),
        ({"name": "a\nb"}, r"table name must be a non-empty string"),
        ({"name": "ads"}, r"tables\[1\]: the name 'ads' is taken"),
        ({"rows": 7}, r"unknown field `rows`"),
    ],
)
def test_a_bad_field_is_named_with_its_file_and_entry(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(a_file(**changes)))
    with pytest.raises(InputError, match=message) as raised:
        TableSet.load(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert "tables[1]" in text or "'users'" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_everywhere(tmp_path: Path, value: float) -> None:
    with pytest.raises(InputError, match="pooling_factor must be a finite number"):
        Feature(name="f", pooling_factor=value)
    with pytest.raises(InputError, match=r"reuse_histogram\[3\]"):
        a_table(reuse_histogram=(0.0, 0.0, 0.0, value) + (0.0,) * 13)
    broken = a_file(features=[{"name": "f", "pooling_factor": value}])
    (tmp_path / "t.json").write_text(json.dumps(broken))  # Python writes NaN, which is not JSON
    with pytest.raises(InputError, match=r"t.json: line 1: .*byte"):
        TableSet.load(tmp_path / "t.json")
    yaml_value = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    (tmp_path / "t.yaml").write_text(
        f"tables: [{{name: a, num_embeddings: 1, embedding_dim: 4, "
        f"features: [{{name: a, pooling_factor: {yaml_value}}}]}}]"
    )
    with pytest.raises(InputError, match=r"t.yaml: .*pooling_factor must be a finite number"):
        TableSet.load(tmp_path / "t.yaml")


def test_an_empty_table_set_is_refused() -> None:
    with pytest.raises(InputError, match="at least one table"):
        TableSet.of([])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"world_size": 0, "memory_bytes": 1}, "world_size must lie between 1"),
        ({"world_size": 2, "memory_bytes": 0}, "memory_bytes must lie between 1"),
        ({"world_size": 2, "memory_bytes": 2**61}, "memory_bytes must lie between 1"),
        ({"world_size": 2, "memory_bytes": 1, "batch_size": 0}, "batch_size must lie between 1"),
        ({"world_size": 2.5, "memory_bytes": 1}, "world_size must be a whole number"),
    ],
)
def test_an_impossible_cluster_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beam_width": 0}, "beam_width must lie between 1"),
        ({"beam_width": 4097}, "beam_width must lie between 1 and 4096"),
        ({"candidates": 4097}, "candidates must lie between 1 and 4096"),
        ({"threads": 0}, "threads must lie between 1"),
        ({"max_splits": -1}, "max_splits must lie between 0"),
        ({"algorithm": "best"}, "algorithm must be one of auto, neuroshard, random"),
        ({"seed": -1}, "seed must lie between 0"),
        ({"allow_batch_mismatch": 1}, "allow_batch_mismatch must be true or false"),
    ],
)
def test_impossible_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchOptions(**fields)


# ---- hostile files ----

HOSTILE = {
    "empty": b"",
    "nul": b"\0" * 64,
    "every byte": bytes(range(256)),
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"tables":' * 100_000,
    "deep flow maps": b"{tables: " * 100_000,
    "deep blocks": b"- " * 100_000,
    "huge number": b'{"schema": "neuroshard/tables/1", "tables": 1' + b"0" * 10_000 + b"}",
    "not UTF-8": b'{"tables": "\xff\xfe"}',
    "lone surrogate": b'{"tables": "\\ud800"}',
    "python tag": b'tables: !!python/object/apply:os.system ["false"]',
    "impossible date": b"tables: 2001-99-99",
    "self reference": b"tables: &a [*a]",
    "duplicate schema": b'{"schema": "neuroshard/plan/9"}',
    "aliases of aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 9)) for c in range(97, 120)
    )
    + b"tables: *x\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_hostile_files_give_one_line_naming_the_file(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(HOSTILE[kind])
    for type_ in FORMATS:
        with pytest.raises(InputError) as raised:
            config.load(path, type_)
        assert str(raised.value).startswith(f"{path}: ")
        assert "\n" not in str(raised.value)


def test_yaml_aliases_are_refused_but_asterisks_in_names_are_not(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    TableSet.of([a_table(name="*a*")]).save(path)
    assert TableSet.load(path)[0].name == "*a*"
    # Each table stands for 10,000 features: few bytes, 10^8 objects.
    features = b"[" + b"*f," * 10_000 + b"]"
    path.write_bytes(
        b"tables:\n- &t {name: &n a, num_embeddings: 1, embedding_dim: 4, features: [&f {name: f, "
        b"pooling_factor: 1}]}\n- {name: b, features: &fs %b}\n" % features + b"- *t\n" * 10_000
    )
    with pytest.raises(InputError, match=r"YAML aliases, such as \*f, are not read"):
        TableSet.load(path)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), yaml=st.booleans(), table_set=table_sets())
def test_a_truncated_or_altered_file_loads_or_gives_an_input_error(
    data: st.DataObject, yaml: bool, table_set: TableSet
) -> None:
    encoded = bytearray(msgspec.yaml.encode(table_set) if yaml else msgspec.json.encode(table_set))
    if data.draw(st.booleans()):
        encoded = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    problem = ""
    try:
        TableSet.of(config.decode(bytes(encoded), TableSet, "file", yaml=yaml).tables)
    except InputError as error:
        problem = str(error)
    assert problem == "" or problem.startswith("file: ")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "tables", "features", "schema", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(field=st.sampled_from(sorted(EmbeddingTable.__struct_fields__)), value=json_values)
def test_any_value_in_any_field_loads_or_gives_an_input_error(field: str, value: Any) -> None:
    data = json.dumps(a_file(**{field: value})).encode()
    problem = ""
    try:
        loaded = config.decode(data, TableSet, "file")
        assert config.decode(msgspec.json.encode(loaded), TableSet, "again") == loaded
    except InputError as error:
        problem = str(error)
    assert problem == "" or problem.startswith("file: ")


@pytest.mark.parametrize(
    ("name", "version", "type_"),
    [
        ("table-set", "neuroshard/tables/1", TableSet),
        ("cluster", "neuroshard/cluster/1", Cluster),
        ("options", "neuroshard/options/1", SearchOptions),
        ("plan", "neuroshard/plan/1", ShardingPlan),
    ],
)
def test_schema_prints_every_field_of_the_format(
    capsys: pytest.CaptureFixture[str], name: str, version: str, type_: type[msgspec.Struct]
) -> None:
    assert schema.run(argparse.Namespace(format=name)) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    properties = definitions[type_.__name__]["properties"]
    assert tuple(properties) == type_.__struct_fields__
    assert properties["schema"]["enum"] == [version]


def test_a_missing_file_or_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        TableSet.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        TableSet.load(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        TableSet.of([a_table()]).save(tmp_path / "none" / "t.json")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tables.json"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("neuroshard_fast.config.os.fsync", full_disk)
    with pytest.raises(InputError, match="No space left"):
        config.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# ---- reuse ----


def test_measured_histogram_counts_powers_of_two_in_the_bin_that_they_end() -> None:
    counts = np.array([1, 2, 3, 4, 5, 32768, 32769])
    histogram = measured_histogram(np.repeat(np.arange(counts.size), counts))
    assert np.flatnonzero(histogram).tolist() == [0, 1, 2, 3, 15, 16]
    assert histogram[2] == pytest.approx(2 / 7)
    assert histogram == histogram_of_counts(counts)
    assert all(type(fraction) is float for fraction in histogram)


def test_a_table_without_lookups_has_an_empty_histogram() -> None:
    assert measured_histogram(np.empty(0, np.int64)) == (0.0,) * HISTOGRAM_BINS
    assert assumed_histogram(1000, 0.0) == (0.0,) * HISTOGRAM_BINS


@pytest.mark.parametrize(("rows", "lookups"), [(50, 4000), (3000, 20_000), (200_000, 100_000)])
def test_assumed_histogram_is_that_of_zipf_draws(rows: int, lookups: int) -> None:
    weights = np.arange(1, rows + 1) ** -1.05
    generator = np.random.default_rng(7)
    drawn = np.array(
        [
            measured_histogram(generator.choice(rows, size=lookups, p=weights / weights.sum()))
            for _ in range(20)
        ]
    )
    assumed = np.array(assumed_histogram(rows, lookups))
    assert assumed.sum() == pytest.approx(1.0, abs=1e-6)
    assert np.abs(assumed - drawn.mean(axis=0)).max() < 0.02


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 10_000),
    lookups=st.integers(0, 20_000),
    histogram=histograms,
    seed=st.integers(0, 9),
)
def test_drawn_indices_are_rows_and_as_many_as_asked(
    rows: int, lookups: int, histogram: tuple[float, ...], seed: int
) -> None:
    indices = draw_indices(rows, lookups, histogram, np.random.default_rng(seed))
    assert indices.shape == (lookups,)
    assert lookups == 0 or 0 <= indices.min() <= indices.max() < rows


def test_drawn_indices_follow_the_histogram_where_rows_suffice() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        counts = np.ceil(generator.pareto(1.0, size=2000) + 1e-9).clip(1, 500).astype(np.int64)
        wanted = histogram_of_counts(counts)
        indices = draw_indices(1_000_000, int(counts.sum()), wanted, generator)
        assert np.abs(np.subtract(measured_histogram(indices), wanted)).max() < 0.01


# ---- memory ----

FBGEMM_PRECISION = {"fp32": "FP32", "fp16": "FP16", "int8": "INT8"}
FBGEMM_OPTIMIZER = {
    "sgd": "EXACT_SGD",
    "adagrad": "EXACT_ADAGRAD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
}
"""The optimizers that FBGEMM has on the CPU; Adam it has on GPUs only."""


@pytest.mark.parametrize("optimizer", FBGEMM_OPTIMIZER)
@pytest.mark.parametrize("data_type", FBGEMM_PRECISION)
def test_memory_is_what_fbgemm_allocates(data_type: DataType, optimizer: Optimizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own imports
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    # The shards of one table of 1,003 rows and 84 columns, all in one operator, as on one device.
    widths = [4, 12, 20, 48]
    operator = SplitTableBatchedEmbeddingBagsCodegen(
        [(1003, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for width in widths],
        optimizer=EmbOptimType[FBGEMM_OPTIMIZER[optimizer]],
        weights_precision=SparseType[FBGEMM_PRECISION[data_type]],
    )
    tensors = dict(itertools.chain(operator.named_buffers(), operator.named_parameters()))
    # Unused slots of the optimizer are placeholders of one element.
    allocated = sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in tensors.items()
        if name.startswith(("weights_host", "momentum1_host", "momentum2_host"))
        and tensor.numel() > 1
    )
    table = a_table(num_embeddings=1003, embedding_dim=84, data_type=data_type, optimizer=optimizer)
    memory = shard_memory(table)
    assert sum(memory.of_width(width) for width in widths) == allocated


def test_adam_keeps_two_fp32_numbers_an_element() -> None:
    memory = shard_memory(a_table(optimizer="adam", data_type="fp16"))
    assert memory == ShardMemory(per_column=100 * (2 + 8), fixed=0)


def test_splitting_a_table_repeats_its_row_wise_state() -> None:
    memory = shard_memory(a_table(optimizer="rowwise_adagrad"))
    assert 2 * memory.of_width(32) - memory.of_width(64) == 4 * 100
    assert memory._asdict() == {"per_column": 400, "fixed": 400}


@pytest.mark.parametrize(
    "pooling", [10**5000, np.array([1, 2]), ["sum"]], ids=["digits", "array", "list"]
)
def test_a_choice_of_another_type_is_an_input_error(pooling: Any) -> None:
    feature = Feature(name="a", pooling_factor=1.0)
    with pytest.raises(InputError, match="pooling must be one of"):
        EmbeddingTable(
            name="a", num_embeddings=8, embedding_dim=4, features=(feature,), pooling=pooling
        )


def test_a_long_name_is_shortened_in_the_message() -> None:
    with pytest.raises(InputError, match="printable") as caught:
        Feature(name="\n" * 10**6, pooling_factor=1.0)
    assert len(str(caught.value)) < 200
