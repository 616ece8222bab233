"""The example table sets: totals, feasibility, and index dumps that measure as they were drawn."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from neuroshard_fast import examples
from neuroshard_fast.cli import generate, import_tables
from neuroshard_fast.errors import InputError
from neuroshard_fast.examples import DlrmLike
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.published import read_index_dump
from neuroshard_fast.reuse import measured_histogram
from neuroshard_fast.tables import TableSet

# Tables, batch, indices and distinct indices that are published for the two files.
PUBLISHED = {
    2021: (856, 65_536, 887_017_990, 128_435_723),
    2022: (788, 131_072, 1_405_163_864, 110_259_238),
}
SMALLER = {"full": {}, "50 tables": {"tables": 50}, "batch 512": {"batch_size": 512}} | {
    "small": {"tables": 20, "batch_size": 256, "max_rows": 100_000}
}


def neuroshard(command: object, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]
    return int(command.run(parser.parse_args(arguments)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("year", PUBLISHED)
@pytest.mark.parametrize("scale", SMALLER)
def test_pooling_and_distinct_share_are_published_ones_at_any_scale(year: int, scale: str) -> None:
    tables, batch_size, indices, distinct = PUBLISHED[year]
    drawn = DlrmLike.draw(year, **SMALLER[scale], seed=1)
    lookups = drawn.lookups.sum()
    mean_pooling_factor = indices / tables / batch_size
    assert lookups / len(drawn) / drawn.batch_size == pytest.approx(mean_pooling_factor, rel=0.01)
    assert drawn.distinct.sum() / lookups == pytest.approx(distinct / indices, rel=0.01)
    assert (drawn.distinct <= np.minimum(drawn.rows, drawn.lookups)).all()


@pytest.mark.parametrize("year", PUBLISHED)
def test_full_size_totals_are_within_one_percent_of_the_published(year: int) -> None:
    tables, batch_size, indices, distinct = PUBLISHED[year]
    drawn = DlrmLike.draw(year)
    assert (len(drawn), drawn.batch_size) == (tables, batch_size)
    # The counts that the indices are made of, one table at a time.
    lookups, found = 0, 0
    for table in range(len(drawn)):
        counts = drawn.counts(table)
        assert counts.min() >= 1
        lookups += int(counts.sum())
        found += counts.size
    assert lookups == pytest.approx(indices, rel=0.01)
    assert found == pytest.approx(distinct, rel=0.01)


@pytest.mark.parametrize("year", PUBLISHED)
def test_indices_have_the_counts_that_were_drawn(year: int) -> None:
    drawn = DlrmLike.draw(year, tables=30, batch_size=2048)
    table_set = drawn.table_set()
    for table in range(len(drawn)):
        indices, lengths = drawn.indices(table), drawn.lengths(table)
        counts = np.unique(indices, return_counts=True)[1]
        assert np.array_equal(np.sort(counts), np.sort(drawn.counts(table)))
        assert counts.size == drawn.distinct[table]
        assert indices.size == drawn.lookups[table] == lengths.sum()
        assert lengths.shape == (2048,)
        assert lengths.min() >= 0
        assert indices.min() >= 0
        assert indices.max() == table_set[table].num_embeddings - 1
        assert measured_histogram(indices) == table_set[table].reuse_histogram


@pytest.mark.parametrize("suffix", [".pt", ".pt.gz"])
def test_a_generated_dump_reads_back_as_its_table_set(tmp_path: Path, suffix: str) -> None:
    drawn = DlrmLike.draw(2021, tables=40, batch_size=512, seed=5)
    drawn.write_index_dump(tmp_path / f"dump{suffix}", progress=False)
    read = read_index_dump(tmp_path / f"dump{suffix}", dim=16, progress=False)
    for table, expected in zip(read, drawn.table_set(), strict=True):
        assert table.embedding_dim == 16
        assert table.name == expected.name
        assert table.num_embeddings == expected.num_embeddings
        assert table.pooling_factor == pytest.approx(expected.pooling_factor)
        assert table.reuse_histogram == expected.reuse_histogram
    assert [path.name for path in tmp_path.iterdir()] == [f"dump{suffix}"]


def test_pooling_factors_rows_and_reuse_vary() -> None:
    tables = examples.dlrm_like(2021, batch_size=1024, max_rows=1_000_000)
    pooling_factors = np.array([table.pooling_factor for table in tables])
    rows = np.array([table.num_embeddings for table in tables])
    reused = 1 - np.array([table.reuse_histogram or (0.0,) for table in tables])[:, 0]
    assert pooling_factors.max() > 100
    assert np.median(pooling_factors) < pooling_factors.mean() / 2
    assert rows.max() <= 1_000_000
    assert np.quantile(rows, 0.9) > 50 * np.quantile(rows, 0.1)
    assert np.quantile(reused, 0.9) - np.quantile(reused, 0.1) > 0.4


def test_the_seed_decides_the_tables() -> None:
    assert examples.dlrm_like(2022, tables=9, batch_size=64) == examples.dlrm_like(
        2022, tables=9, batch_size=64
    )
    assert examples.dlrm_like(2022, tables=9, batch_size=64) != examples.dlrm_like(
        2022, tables=9, batch_size=64, seed=1
    )
    assert examples.production_like(2) == examples.production_like(2)
    assert examples.production_like(2) != examples.production_like(3)


def test_rows_too_few_for_the_distinct_indices_are_refused() -> None:
    with pytest.raises(InputError, match="max_rows is too small"):
        DlrmLike.draw(2021, max_rows=1000)
    with pytest.raises(InputError, match="year must be one of 2021, 2022"):
        DlrmLike.draw(2023)
    with pytest.raises(InputError, match="tables must lie between"):
        DlrmLike.draw(2021, tables=0)


def test_mlperf_is_the_benchmark_of_26_tables() -> None:
    tables = examples.mlperf_dlrm_dcnv2()
    assert len(tables) == 26
    assert {table.embedding_dim for table in tables} == {128}
    assert sum(table.num_embeddings for table in tables) == 204_184_588
    assert sum(table.pooling_factor for table in tables) == 214


@pytest.mark.parametrize("seed", [0, 1])
def test_the_production_set_is_3_tib_and_fits_128_devices_of_80_gib(seed: int) -> None:
    sizes = [
        shard_memory(table).of_width(table.embedding_dim)
        for table in examples.production_like(seed)
    ]
    assert len(sizes) == 1000
    assert sum(sizes) == pytest.approx(3 * 2**40, rel=0.001)
    # Largest first on the emptiest device: an upper bound of what a planner needs.
    devices = np.zeros(128)
    for size in sorted(sizes, reverse=True):
        devices[devices.argmin()] += size
    assert devices.max() <= 80 * 2**30


@pytest.mark.parametrize(
    "arguments",
    [
        ["mlperf-dlrm-dcnv2"],
        ["production", "--seed", "4"],
        ["dlrm-2021", "--tables", "6", "--batch-size", "64", "--max-rows", "5000"],
        ["dlrm-2022", "--tables", "6", "--batch-size", "64", "--seed", "2"],
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_generate_writes_a_table_set(tmp_path: Path, arguments: list[str], suffix: str) -> None:
    path = tmp_path / f"tables{suffix}"
    assert neuroshard(generate, *arguments, "-o", str(path)) == 0
    wanted = {
        "mlperf-dlrm-dcnv2": examples.mlperf_dlrm_dcnv2(),
        "production": examples.production_like(4),
        "dlrm-2021": examples.dlrm_like(2021, tables=6, batch_size=64, max_rows=5000),
        "dlrm-2022": examples.dlrm_like(2022, tables=6, batch_size=64, seed=2),
    }
    assert TableSet.load(path) == wanted[arguments[0]]


def test_generated_dumps_can_be_imported(tmp_path: Path) -> None:
    dump, tables = str(tmp_path / "d.pt.gz"), str(tmp_path / "t.json")
    size = ["--tables", "5", "--batch-size", "32"]
    assert neuroshard(generate, "dlrm-2021", *size, "-o", dump) == 0
    assert neuroshard(import_tables, dump, "--dim", "32", "-o", tables) == 0
    expected = examples.dlrm_like(2021, tables=5, batch_size=32)
    assert [table.reuse_histogram for table in TableSet.load(tables)] == [
        table.reuse_histogram for table in expected
    ]


def test_generate_refuses_sizes_for_examples_that_have_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not apply to production"):
        neuroshard(generate, "production", "--tables", "3", "-o", str(tmp_path / "t.json"))
    with pytest.raises(InputError, match="dlrm-2021 and dlrm-2022 only"):
        neuroshard(generate, "production", "-o", str(tmp_path / "t.pt"))


def test_broad_tables_span_what_is_planned_and_are_seeded() -> None:
    tables = examples.broad(tables=200, batch_size=4096, seed=3)
    assert tables == examples.broad(tables=200, batch_size=4096, seed=3)
    assert tables != examples.broad(tables=200, batch_size=4096, seed=4)
    rows = sorted(table.num_embeddings for table in tables)
    factors = sorted(table.pooling_factor for table in tables)
    assert rows[0] < 100
    assert rows[-1] > 10**8
    assert factors[0] < 1
    assert factors[-1] > 100
    assert all(table.reuse_histogram is not None for table in tables)
