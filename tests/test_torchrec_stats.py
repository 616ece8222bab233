"""TableStats: what it counts of batches, how seldom, and what it calls drift."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_fast import EmbeddingTable, Feature, InputError, TableSet
from neuroshard_fast.reuse import HISTOGRAM_BINS, assumed_histogram, draw_indices
from neuroshard_fast.torchrec import TableStats
from neuroshard_fast.torchrec.row_samples import CAPACITY, RowSample

META = torch.device("meta")


def bags(*tables: EmbeddingBagConfig, weighted: bool = False) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(tables=list(tables), is_weighted=weighted, device=META)


def bag(
    name: str, *features: str, rows: int = 100, dim: int = 8, **fields: Any
) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features) or [name],
        **fields,
    )


def features(**bags_of: Sequence[Sequence[int]]) -> KeyedJaggedTensor:
    """Rows of each sample, by feature."""
    return KeyedJaggedTensor.from_lengths_sync(
        keys=list(bags_of),
        values=torch.tensor(
            [row for bags in bags_of.values() for one in bags for row in one], dtype=torch.int64
        ),
        lengths=torch.tensor(
            [len(one) for bags in bags_of.values() for one in bags], dtype=torch.int32
        ),
    )


def histogram(**fractions: float) -> tuple[float, ...]:
    """By bin, such as ``bin0``."""
    return tuple(fractions.get(f"bin{k}", 0.0) for k in range(HISTOGRAM_BINS))


def table(name: str = "t", factor: float = 2.0, **fields: Any) -> EmbeddingTable:
    return EmbeddingTable(
        **{
            "name": name,
            "num_embeddings": 10_000,
            "embedding_dim": 8,
            "features": (Feature(name=name, pooling_factor=factor),),
            **fields,
        }
    )


class Clock:
    """Stands still until it is told otherwise, s."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# ---- what is found ----


class Nested(nn.Module):
    """Collections at several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = bags(bag("a", "a1", "a2", pooling=PoolingType.MEAN))
        self.inner = nn.ModuleDict(
            {
                "deep": nn.Sequential(bags(bag("b", dim=16), weighted=True)),
                "sequence": EmbeddingCollection(
                    tables=[
                        EmbeddingConfig(
                            name="c",
                            num_embeddings=7,
                            embedding_dim=4,
                            feature_names=["c"],
                            data_type=DataType.FP16,
                        )
                    ],
                    device=META,
                ),
            }
        )
        self.again = self.first  # the same tables
        self.dense = nn.Linear(2, 2)


def test_tables_are_found_wherever_they_are_and_once_each() -> None:
    stats = TableStats(Nested(), share=1.0)
    stats.observe(features(a1=[[1], [2]], a2=[[], []], b=[[3], []], c=[[4, 4], []]))
    once = histogram(bin0=1.0)
    assert stats.table_set() == TableSet.of(
        [
            EmbeddingTable(
                name="a",
                num_embeddings=100,
                embedding_dim=8,
                features=(
                    Feature(name="a1", pooling_factor=1.0),
                    Feature(name="a2", pooling_factor=0.0),
                ),
                pooling="mean",
                reuse_histogram=once,
            ),
            EmbeddingTable(
                name="b",
                num_embeddings=100,
                embedding_dim=16,
                features=(Feature(name="b", pooling_factor=0.5),),
                is_weighted=True,
                reuse_histogram=once,
            ),
            EmbeddingTable(
                name="c",
                num_embeddings=7,
                embedding_dim=4,
                features=(Feature(name="c", pooling_factor=1.0),),
                pooling="none",
                data_type="fp16",
                reuse_histogram=histogram(bin1=1.0),
            ),
        ]
    )


def test_tables_of_one_name_go_by_their_paths() -> None:
    model = nn.ModuleDict({"x": bags(bag("t", "f"), bag("u")), "y": bags(bag("t", "g"))})
    assert set(TableStats(model).samples_seen()) == {"x.t", "u", "y.t"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "the module, a Linear, has no EmbeddingBagCollection"),
        (bags(bag("t", dim=6)), "table 't': embedding_dim must be a multiple of 4, got 6"),
        (bags(bag("t", data_type=DataType.BF16)), "table 't': data type BF16 is not supported"),
        ("model.pt", "a model or a TableSet is wanted, got a str"),
    ],
)
def test_a_model_without_usable_tables_is_refused(model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableStats(model)


# ---- what is counted ----


def test_counts_of_two_batches_by_hand() -> None:
    stats = TableStats(bags(bag("t", "f", "g"), bag("u")), share=1.0)
    stats.observe(features(f=[[1, 2], [], [1]], g=[[5], [5], [5]], u=[[], [], []]))
    # 1 occurs twice, 2 once, 5 three times: bins 1, 0 and 2
    first = stats.table_set()[0]
    assert [f.pooling_factor for f in first.features] == [1.0, 1.0]
    assert first.reuse_histogram == pytest.approx(histogram(bin0=1 / 3, bin1=1 / 3, bin2=1 / 3))
    stats.observe(features(f=[[9]], g=[[]], u=[[3, 3, 3, 3, 3]]))
    t, u = stats.table_set()
    assert [f.pooling_factor for f in t.features] == [1.0, 0.75]
    assert t.reuse_histogram == pytest.approx(histogram(bin0=0.5, bin1=0.25, bin2=0.25))
    assert u.features[0].pooling_factor == 1.25
    assert u.reuse_histogram == pytest.approx(histogram(bin3=1.0))
    assert stats.rows_seen() == {"t": 4.0, "u": 1.0}
    assert stats.samples_seen() == {"t": 4, "u": 4}


def test_batches_are_joined_until_they_make_a_step() -> None:
    stats = TableStats(bags(bag("t")), batch_size=4, share=1.0)
    stats.observe(features(t=[[1], [2]]))
    assert stats.table_set()[0].reuse_histogram is None  # half a step says nothing of reuse
    stats.observe(features(t=[[1], [3]]))
    whole = histogram(bin0=2 / 3, bin1=1 / 3)
    assert stats.table_set()[0].reuse_histogram == pytest.approx(whole)
    stats.observe(features(t=[[1], [1]]))  # of the next step
    assert stats.table_set()[0].reuse_histogram == pytest.approx(whole)
    assert stats.table_set()[0].features[0].pooling_factor == 1.0


def test_features_may_come_in_several_batches_and_others_with_them() -> None:
    stats = TableStats(bags(bag("t", "f", "g")), share=1.0)
    counted = stats.observe(features(f=[[1], [2]], other=[[10**9], [7]]), features(g=[[1], []]))
    assert counted == ("t",)
    (t,) = stats.table_set()
    assert [f.pooling_factor for f in t.features] == [1.0, 0.5]
    assert t.reuse_histogram == pytest.approx(histogram(bin0=0.5, bin1=0.5))


def test_empty_batches_count_nothing_and_empty_bags_count_as_samples() -> None:
    stats = TableStats(bags(bag("t"), bag("u")), share=1.0)
    no_samples = KeyedJaggedTensor(
        keys=["t", "u"],
        values=torch.empty(0, dtype=torch.int64),
        lengths=torch.empty(0, dtype=torch.int32),
    )
    for batch in (KeyedJaggedTensor.empty(), no_samples):
        assert stats.observe(batch) == ()
    assert stats.observe() == ()
    assert stats.unseen() == ("t", "u")
    with pytest.raises(InputError, match="no table was counted yet"):
        stats.table_set()
    stats.observe(features(t=[[], [], []]))
    (t,) = stats.table_set()
    assert t.features[0].pooling_factor == 0.0
    assert t.reuse_histogram == (0.0,) * HISTOGRAM_BINS
    assert stats.unseen() == ("u",)


def test_a_feature_that_never_came_leaves_its_table_out() -> None:
    stats = TableStats(bags(bag("t", "f", "g"), bag("u")), share=1.0)
    stats.observe(features(f=[[1]], u=[[1]]))
    assert [t.name for t in stats.table_set()] == ["u"]
    assert stats.unseen() == ("t",)


def a_batch(**fields: Any) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        **{
            "keys": ["f"],
            "values": torch.tensor([1, 2]),
            "lengths": torch.tensor([1, 1]),
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (a_batch(values=torch.tensor([1, 100])), "feature 'f': row 100 is not in table 't' of 100"),
        (
            a_batch(values=torch.tensor([-1, 2])),
            "feature 'f': row -1 is not in table 't' of 100 rows",
        ),
        (a_batch(values=torch.tensor([1.0, 2.0])), "feature 'f': rows must be whole numbers"),
        (a_batch(lengths=torch.tensor([1, 2])), "feature 'f': its lengths end at lookup 3 of the"),
        ({"f": [1]}, "observe takes KeyedJaggedTensors, got a dict"),
        (
            a_batch(
                keys=["f", "g"],
                lengths=torch.tensor([1, 1, 0]),
                stride_per_key_per_rank=[[1], [2]],
            ),
            "features have different numbers of samples",
        ),
    ],
)
def test_a_bad_batch_is_refused_and_counts_nothing(batch: Any, message: str) -> None:
    stats = TableStats(bags(bag("t", "f")), share=1.0)
    with pytest.raises(InputError, match=message):
        stats.observe(batch)
    assert stats.samples_seen() == {"t": 0}
    assert stats.rows_seen() == {"t": 0.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size must lie between 1"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"share": 0.0}, "share must be a finite number between"),
        ({"share": 1.5}, "share must be a finite number between"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableStats(bags(bag("t")), **fields)


# ---- many rows ----


@pytest.mark.parametrize("rows", [CAPACITY, 50_000, 1_000_000])
def test_a_sample_of_rows_tells_how_many_there_are(rows: int) -> None:
    sample = RowSample()
    for part in np.array_split(np.random.default_rng(1).permutation(rows), 7):
        sample.add(np.concatenate([part, part]))
    assert sample.distinct == pytest.approx(rows, rel=0.0 if rows == CAPACITY else 0.1)
    assert sample.by_bin()[1] == sample.distinct  # each row came twice, within one part
    assert sample._hashes.size <= CAPACITY


def test_samples_of_parts_make_the_sample_of_the_whole() -> None:
    generator = np.random.default_rng(2)
    parts = [generator.zipf(1.3, size=40_000).clip(max=10**9) for _ in range(4)]
    whole = RowSample()
    merged = RowSample()
    for part in parts:
        whole.add(part)
        one = RowSample()
        one.add(part)
        merged.merge(one)
    assert merged.level == whole.level > 0
    assert np.array_equal(merged._hashes, whole._hashes)
    assert np.array_equal(merged._counts, whole._counts)
    with pytest.raises(ValueError, match="salts 0 and 1"):
        merged.merge(RowSample(salt=1))


def test_reuse_of_many_rows_is_estimated_over_steps() -> None:
    generator = np.random.default_rng(3)
    wanted = assumed_histogram(1_000_000, 200_000)
    stats = TableStats(TableSet.of([table(num_embeddings=1_000_000)]), share=1.0)
    for _ in range(6):
        rows = draw_indices(1_000_000, 200_000, wanted, generator)
        stats.observe(
            KeyedJaggedTensor.from_lengths_sync(
                keys=["t"],
                values=torch.from_numpy(rows),
                lengths=torch.full((1000,), 200, dtype=torch.int32),
            )
        )
    (found,) = stats.table_set()
    assert found.features[0].pooling_factor == 200.0
    assert np.abs(np.subtract(found.reuse_histogram or (), wanted)).max() < 0.02


# ---- several ranks ----


def random_batches(count: int, samples: int, seed: int = 0) -> list[KeyedJaggedTensor]:
    generator = np.random.default_rng(seed)

    def drawn() -> list[list[int]]:
        return [
            (100 * generator.random(generator.integers(0, 6)) ** 3).astype(int).tolist()
            for _ in range(samples)
        ]

    return [features(t=drawn(), f=drawn(), g=drawn()) for _ in range(count)]


def test_merged_statistics_are_those_of_all_batches_at_once() -> None:
    model = bags(bag("t"), bag("u", "f", "g"))
    batches = random_batches(12, 20)
    at_once, *ranks = (TableStats(model, batch_size=40, share=1.0) for _ in range(4))
    for number, batch in enumerate(batches):
        at_once.observe(batch)
        ranks[number // 4].observe(batch)
    merged = ranks[0]
    for other in ranks[1:]:
        merged.merge(other)
    for one, all_ in zip(merged.table_set(), at_once.table_set(), strict=True):
        assert one.features == all_.features
        assert one.reuse_histogram == pytest.approx(all_.reuse_histogram)
    assert merged.rows_seen() == at_once.rows_seen()
    assert merged.samples_seen() == at_once.samples_seen() == {"t": 240, "u": 240}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TableStats(bags(bag("t", rows=99))), "other tables cannot be merged: 't' differs"),
        (TableStats(bags(bag("t"), bag("u"))), "other tables cannot be merged: 'u' differs"),
        (TableStats(bags(bag("t")), batch_size=7), "batch sizes None and 7 cannot be merged"),
        ("stats", "TableStats are wanted, got a str"),
    ],
)
def test_statistics_of_something_else_are_not_merged(other: Any, message: str) -> None:
    stats = TableStats(bags(bag("t")))
    with pytest.raises(InputError, match=message):
        stats.merge(other)


def test_gathering_needs_a_process_group() -> None:
    with pytest.raises(InputError, match="init_process_group first"):
        TableStats(bags(bag("t"))).gather()


# ---- how seldom ----


class Costly(KeyedJaggedTensor):  # type: ignore[misc]
    """A batch of which every look at its rows takes some time."""

    clock: Clock
    seconds: float

    def offset_per_key(self) -> list[int]:
        self.clock.now += self.seconds
        offsets: list[int] = super().offset_per_key()
        return offsets


def costly(clock: Clock, seconds: float, tables: int) -> Costly:
    batch = Costly(
        keys=[f"t{k}" for k in range(tables)],
        values=torch.zeros(tables, dtype=torch.int64),
        lengths=torch.ones(tables, dtype=torch.int32),
    )
    batch.clock, batch.seconds = clock, seconds
    return batch


@pytest.mark.parametrize("share", [0.02, 0.2])
@pytest.mark.parametrize(("tables", "seconds"), [(1, 0.0003), (10, 0.0003), (3, 0.02), (2, 0.3)])
def test_counting_takes_its_share_of_the_time_and_not_more(
    share: float, tables: int, seconds: float
) -> None:
    clock = Clock()
    model = bags(*(bag(f"t{k}") for k in range(tables)))
    stats = TableStats(model, share=share, clock=clock)
    batch, spent, longest, times, steps = costly(clock, seconds, tables), 0.0, 0.0, 0, 2000
    for _ in range(steps):
        clock.now += 0.010
        before = clock.now
        times += len(stats.observe(batch))
        longest = max(longest, clock.now - before)
        spent += clock.now - before
    assert spent <= share * 0.010 * steps + seconds  # once more than was saved up
    assert times > 0.5 * min(share * 0.010 * steps / seconds, tables * steps)
    assert longest <= max(seconds, 0.05) + seconds
    counted = stats.samples_seen().values()
    assert max(counted) - min(counted) <= 1  # each in its turn


def test_a_long_pause_is_not_followed_by_a_slow_step() -> None:
    clock = Clock()
    stats = TableStats(bags(*(bag(f"t{k}") for k in range(1000))), clock=clock)
    batch = costly(clock, 0.001, 1000)
    stats.observe(batch)
    clock.now += 3600.0
    before = clock.now
    assert stats.observe(batch)
    assert clock.now - before < 0.06


def test_with_a_share_of_one_every_table_of_every_batch_is_counted() -> None:
    clock = Clock()
    stats = TableStats(bags(bag("t0"), bag("t1")), share=1.0, clock=clock)
    for _ in range(5):
        assert len(stats.observe(costly(clock, 10.0, 2))) == 2


def test_tables_of_batches_observed_in_turn_are_all_counted() -> None:
    clock = Clock()
    stats = TableStats(bags(*(bag(f"t{k}") for k in range(4))), clock=clock)
    ones = features(t0=[[1]], t1=[[1]])
    others = features(t2=[[1]], t3=[[1]])
    for _ in range(400):
        for batch in (ones, others):
            clock.now += 0.01
            stats.observe(batch)
    assert min(stats.samples_seen().values()) > 10


@pytest.mark.full
def test_counting_real_batches_takes_under_two_percent_of_their_steps() -> None:
    generator = np.random.default_rng(4)
    names = [f"t{k}" for k in range(40)]
    stats = TableStats(TableSet.of([table(name, num_embeddings=10**6) for name in names]))
    batch = KeyedJaggedTensor.from_lengths_sync(
        keys=names,
        values=torch.from_numpy(generator.integers(0, 10**6, 40 * 20_000)),
        lengths=torch.full((40 * 2000,), 10, dtype=torch.int32),
    )
    spent, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < 20.0:
        time.sleep(0.02)
        before = time.perf_counter()
        stats.observe(batch)
        spent += time.perf_counter() - before
    assert spent < 0.02 * (time.perf_counter() - started)
    assert min(stats.samples_seen().values()) > 0


# ---- files ----


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_statistics_are_saved_as_a_table_set(tmp_path: Path, suffix: str) -> None:
    stats = TableStats(bags(bag("t"), bag("u", "f", "g")), share=1.0)
    for batch in random_batches(3, 10):
        stats.observe(batch)
    path = tmp_path / f"stats{suffix}"
    stats.save(path)
    assert TableSet.load(path) == stats.table_set()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_statistics_of_nothing_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text("old")
    with pytest.raises(InputError, match="no table was counted yet"):
        TableStats(bags(bag("t"))).save(path)
    assert path.read_text() == "old"
    stats = TableStats(bags(bag("t")), share=1.0)
    stats.observe(features(t=[[1]]))
    with pytest.raises(InputError, match="cannot be written"):
        stats.save(tmp_path / "none" / "stats.json")


# ---- drift ----


def observed(factor: int, rows: int, seed: int = 0, samples: int = 2000) -> TableStats:
    """Statistics of ``factor`` uniform lookups a sample among the first ``rows``."""
    generator = np.random.default_rng(seed)
    stats = TableStats(TableSet.of([table(factor=0.0)]), batch_size=500, share=1.0)
    for _ in range(samples // 250):
        stats.observe(
            KeyedJaggedTensor.from_lengths_sync(
                keys=["t"],
                values=torch.from_numpy(generator.integers(0, rows, 250 * factor)),
                lengths=torch.full((250,), factor, dtype=torch.int32),
            )
        )
    return stats


def test_other_batches_of_the_same_kind_are_no_drift() -> None:
    planned = observed(4, 3000, seed=1).table_set()
    report = observed(4, 3000, seed=2).drift(planned)
    assert report.drifted == ()
    (drift,) = report.tables
    assert drift.pooling_factor == (4.0, 4.0)
    assert 1.0 <= drift.largest_change < 1.05
    assert "0 of 1 tables drifted" in str(report)


@pytest.mark.parametrize(
    ("factor", "rows", "changed"),
    [
        (5, 3000, {"pooling_change"}),  # reuse grows with it, but by less than the threshold
        (4, 300, {"distinct_change", "reuse_change"}),
        (1, 10_000, {"pooling_change", "distinct_change", "reuse_change"}),
    ],
)
def test_other_lengths_and_other_reuse_are_drift(factor: int, rows: int, changed: set[str]) -> None:
    planned = observed(4, 3000).table_set()
    report = observed(factor, rows).drift(planned)
    assert report.drifted == ("t",)
    (drift,) = report.tables
    fields = ("pooling_change", "distinct_change", "reuse_change")
    assert {field for field in fields if getattr(drift, field) > 1.2} == changed
    assert drift.pooling_factor == (4.0, float(factor))
    assert "1 of 1 tables drifted" in str(report)
    assert str(report).count("drifted") == 2  # in the first line and in the row of the table
    assert observed(factor, rows).drift(planned, threshold=100.0).drifted == ()


def test_changes_are_factors_in_either_direction() -> None:
    few, many = observed(2, 3000), observed(6, 3000)
    up = many.drift(few.table_set()).tables[0]
    down = few.drift(many.table_set()).tables[0]
    assert up.pooling_change == down.pooling_change == 3.0
    assert up.reuse_change == pytest.approx(down.reuse_change)
    assert up.distinct_change == pytest.approx(down.distinct_change)


def test_drift_of_reuse_is_the_mean_factor_of_counts() -> None:
    # Each row twice, not once: one doubling.
    planned = TableSet.of([table(factor=2.0, reuse_histogram=histogram(bin0=1.0))])
    stats = TableStats(TableSet.of([table(factor=0.0)]), share=1.0)
    stats.observe(features(t=[[k, k] for k in range(1000)]))
    (drift,) = stats.drift(planned).tables
    assert drift.reuse_change == 2.0
    assert drift.distinct_rows == pytest.approx((2000.0, 1000.0))
    assert drift.distinct_change == pytest.approx(2.0)
    assert drift.pooling_change == 1.0
    # Half of the rows do: half a doubling on average.
    half = TableStats(TableSet.of([table(factor=0.0)]), share=1.0)
    half.observe(features(t=[[k, k] if k % 2 else [k] for k in range(1000)]))
    assert half.drift(planned).tables[0].reuse_change == pytest.approx(math.sqrt(2.0))


def test_drift_is_judged_against_the_histogram_that_the_plan_assumed() -> None:
    planned = TableSet.of([table(factor=4.0)])
    report = observed(4, 10_000).drift(planned)
    assert report.drifted == ("t",)  # uniform rows, where Zipf's law was assumed


def test_few_samples_and_tables_planned_without_statistics_are_named(tmp_path: Path) -> None:
    tables = TableSet.of([table(name, factor=0.0) for name in ("few", "new", "t", "unseen")])
    stats = TableStats(tables, share=1.0)
    stats.observe(features(t=[[1]] * 1000, new=[[1]] * 1000), features(few=[[1]] * 999))
    planned = TableSet.of([table("t", factor=1.0), table("few"), table("gone"), table("unseen")])
    planned.save(tmp_path / "planned.json")
    report = stats.drift(tmp_path / "planned.json")
    assert [drift.table for drift in report.tables] == ["t"]
    assert report.few_samples == ("few", "unseen")
    assert report.not_planned == ("new",)
    assert "fewer than 1,000 samples: few, unseen" in str(report)
    assert "not in the statistics planned with: new" in str(report)
    assert {d.table for d in stats.drift(planned, least_samples=999).tables} == {"few", "t"}


def test_drift_against_nothing_in_common_is_refused(tmp_path: Path) -> None:
    stats = observed(1, 10)
    with pytest.raises(InputError, match="none of the tables that were counted"):
        stats.drift(TableSet.of([table("other")]))
    with pytest.raises(InputError, match="cannot be read"):
        stats.drift(tmp_path / "none.json")
    with pytest.raises(InputError, match="threshold must be a finite number between 1"):
        stats.drift(TableSet.of([table()]), threshold=0.5)
    with pytest.raises(InputError, match="least_samples must lie between 1"):
        stats.drift(TableSet.of([table()]), least_samples=0)


def test_the_largest_changes_come_first_and_the_report_is_cut() -> None:
    names = [f"t{k:02}" for k in range(30)]
    stats = TableStats(TableSet.of([table(name, factor=0.0) for name in names]), share=1.0)
    stats.observe(features(**{name: [[1] * (k + 1)] * 1000 for k, name in enumerate(names)}))
    once = [(Feature(name=name, pooling_factor=1.0),) for name in names]
    planned = TableSet.of(
        [
            msgspec.structs.replace(found, features=feature)
            for found, feature in zip(stats.table_set(), once, strict=True)
        ]
    )
    report = stats.drift(planned)
    changes = [drift.largest_change for drift in report.tables]
    assert changes == sorted(changes, reverse=True)
    assert report.tables[0].table == "t29"
    assert "10 more tables changed less" in str(report)
