"""TableStats: what it counts of batches, how seldom, and what it calls drift."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
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
from neuroshard_fast.torchrec.table_counts import CheckedBatch

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


CostlyBatch = Callable[[Clock, float, int], KeyedJaggedTensor]


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


def two_features(**fields: Any) -> KeyedJaggedTensor:
    """Of two samples each."""
    return a_batch(
        **{
            "keys": ["f", "g"],
            "values": torch.tensor([1, 2, 3, 4]),
            "lengths": torch.tensor([1, 1, 1, 1]),
            **fields,
        }
    )


def by_offsets(*offsets: int, **fields: Any) -> KeyedJaggedTensor:
    return two_features(**{"lengths": None, "offsets": torch.tensor(offsets), **fields})


BAD_BATCHES = {
    "row too large": (
        a_batch(values=torch.tensor([1, 100])),
        "feature 'f': row 100 is not in table 't' of 100 rows",
    ),
    "row below 0": (
        a_batch(values=torch.tensor([-1, 2])),
        "feature 'f': row -1 is not in table 't' of 100 rows",
    ),
    "rows are floats": (
        a_batch(values=torch.tensor([1.0, 2.0])),
        "feature 'f': rows must be whole numbers, got torch.float32; convert them with long",
    ),
    "rows are bools": (
        a_batch(values=torch.tensor([True, False])),
        "feature 'f': rows must be whole numbers, got torch.bool",
    ),
    "no rows": (a_batch(values=None), "feature 'f': rows must be a tensor, got a NoneType"),
    "one number for rows": (
        a_batch(values=torch.tensor(1), lengths=torch.tensor([1])),
        r"feature 'f': rows must have one dimension, got shape \(\)",
    ),
    "rows of two dimensions": (
        a_batch(values=torch.tensor([[1, 2]])),
        r"feature 'f': rows must have one dimension, got shape \(1, 2\); flatten",
    ),
    "sparse rows": (
        a_batch(values=torch.tensor([1, 2]).to_sparse()),
        "feature 'f': rows must be a dense tensor, got torch.sparse_coo",
    ),
    "rows on the meta device": (
        a_batch(values=torch.tensor([1, 2], device=META)),
        "feature 'f': rows are on the meta device, where nothing is stored",
    ),
    "lengths on the meta device": (
        a_batch(lengths=torch.tensor([1, 1], device=META)),
        "feature 'f': lengths are on the meta device",
    ),
    "lengths past the rows": (
        a_batch(lengths=torch.tensor([1, 2])),
        "feature 'f': its lengths end at lookup 3 of the batch, which has 2 values",
    ),
    "lengths short of the rows": (
        two_features(lengths=torch.tensor([1, 1, 1, 0])),
        "feature 'g': its lengths end at lookup 3 of the batch, which has 4 values",
    ),
    "lengths of no samples": (
        a_batch(lengths=torch.empty(0, dtype=torch.int64)),
        "feature 'f': its lengths end at lookup 0 of the batch, which has 2 values",
    ),
    "a length below 0": (
        two_features(lengths=torch.tensor([3, -1, 1, 1])),
        "feature 'f': length -1 of sample 1; no length may be below 0",
    ),
    "a sum of lengths below 0": (
        two_features(lengths=torch.tensor([3, 2, -1, 0])),
        "feature 'g': its lengths sum to -1; none may be below 0",
    ),
    "offsets that go back": (
        by_offsets(0, 3, 2, 3, 4),
        "feature 'f': length -1 of sample 1; no length may be below 0, and offsets may not go back",
    ),
    "offsets that go back between features": (
        by_offsets(0, 1, 5, 4, 4),
        "feature 'g': its lengths sum to -1; none may be below 0, and offsets may not go back",
    ),
    "offsets that begin later": (
        by_offsets(1, 1, 2, 3, 4),
        "feature 'f': its offsets begin at 1; the first of a batch must be 0",
    ),
    "offsets past the rows": (
        by_offsets(0, 1, 2, 3, 5),
        "feature 'g': its lengths end at lookup 5 of the batch, which has 4 values",
    ),
    "lengths and offsets that differ": (
        by_offsets(0, 1, 2, 3, 4, lengths=torch.tensor([2, 0, 1, 1])),
        "feature 'f': lengths and offsets of its batch differ",
    ),
    "neither lengths nor offsets": (
        a_batch(lengths=None),
        "feature 'f': its batch has neither lengths nor offsets",
    ),
    "a length too many": (
        two_features(lengths=torch.tensor([1, 1, 1, 1, 0])),
        "feature 'f': the lengths of its batch are for 5 bags, but it has 2 features of 2 samples",
    ),
    "another stride": (
        two_features(stride=3),
        "feature 'f': the lengths of its batch are for 4 bags, but it has 2 features of 3 samples",
    ),
    "a stride of 0": (two_features(stride=0), "for 4 bags, but it has 2 features of 0 samples"),
    "a stride that is no number": (two_features(stride="2"), "2 features of '2' samples"),
    "length_per_key of something else": (
        two_features(length_per_key=[1, 3]),
        r"feature 'f': length_per_key of its batch is \[1, 3\], by its lengths or offsets it is \[2, 2\]",
    ),
    "length_per_key that is no list": (
        two_features(length_per_key=4),
        "feature 'f': length_per_key of its batch is 4",
    ),
    "offset_per_key of something else": (
        two_features(offset_per_key=[0, 1, 4]),
        r"feature 'f': offset_per_key of its batch is \[0, 1, 4\], by its lengths or offsets .* \[0, 2, 4\]",
    ),
    "a feature twice": (
        two_features(keys=["f", "f"]),
        "feature 'f': it comes twice in one step; give each feature of a step once",
    ),
    "keys that are no list": (
        a_batch(keys=None),
        "observe: keys of a batch must be a list of feature names, got None",
    ),
    "keys that are no names": (
        a_batch(keys=[["f"]]),
        "observe: keys of a batch must be a list of feature names, got",
    ),
    "no batch at all": ({"f": [1]}, "observe takes KeyedJaggedTensors, got a dict"),
    "features of several sizes": (
        a_batch(
            keys=["f", "g"],
            lengths=torch.tensor([1, 1, 0]),
            stride_per_key_per_rank=[[1], [2]],
        ),
        "features have different numbers of samples",
    ),
}


@pytest.mark.parametrize(("batch", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_a_bad_batch_is_refused_and_counts_nothing(batch: Any, message: str) -> None:
    # The table of a good batch comes first: its counts have to stay as they were, too.
    stats = TableStats(bags(bag("a"), bag("t", "f"), bag("u", "g")), share=1.0)
    stats.observe(features(a=[[7, 7]], f=[[8]], g=[[9]]))
    before = stats.table_set(), stats.samples_seen(), stats.rows_seen()
    with pytest.raises(InputError, match=message):
        stats.observe(features(a=[[1], [2]]), batch)
    assert (stats.table_set(), stats.samples_seen(), stats.rows_seen()) == before
    assert stats.observe(features(a=[[1], [2]])) == ("a",)
    assert stats.samples_seen() == {"a": 3, "t": 1, "u": 1}


def test_a_feature_in_two_batches_of_a_step_is_refused() -> None:
    stats = TableStats(bags(bag("t", "f")), share=1.0)
    with pytest.raises(InputError, match="feature 'f': it comes twice in one step"):
        stats.observe(features(f=[[1]], other=[[1]]), features(f=[[2]]))
    assert stats.samples_seen() == {"t": 0}
    assert stats.observe(features(f=[[1]]), features(f=[])) == ("t",)  # no sample of it


def test_what_is_wrong_with_features_of_no_table_is_passed_over() -> None:
    stats = TableStats(bags(bag("t", "f")), share=1.0)
    others = two_features(keys=["x", "x"], values=torch.tensor([0.5]), length_per_key=[7])
    assert stats.observe(features(f=[[1, 2]]), others) == ("t",)
    twice = two_features(keys=["x", "x", "f"], lengths=torch.tensor([1, 2, 1]))
    assert stats.observe(twice) == ("t",)
    assert stats.samples_seen() == {"t": 2}
    assert stats.rows_seen() == {"t": 3.0}  # 1, 2 and 4


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "batch",
    [
        two_features(lengths=torch.tensor([2, 0, 1, 1], dtype=torch.int32)),
        two_features(lengths=torch.tensor([2, 0, 1, 1]), stride=2),
        two_features(values=torch.tensor([1, 2, 3, 4], dtype=torch.int32)),
        by_offsets(0, 2, 2, 3, 4),
        by_offsets(0, 2, 2, 3, 4, lengths=torch.tensor([2, 0, 1, 1])),
    ],
)
def test_sound_batches_are_counted_however_they_say_it(batch: Any, kept: bool) -> None:
    if kept:
        batch.lengths(), batch.offsets(), batch.offset_per_key()
    stats = TableStats(bags(bag("t", "f"), bag("u", "g")), share=1.0)
    assert stats.observe(batch) == ("t", "u")
    assert stats.samples_seen() == {"t": 2, "u": 2}
    assert [t.features[0].pooling_factor for t in stats.table_set()] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size must lie between 1"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"share": 0.0}, "share must be a finite number between"),
        ({"share": 1.5}, "share must be a finite number between"),
        ({"share": "all"}, "share must be a number, got 'all'"),
        ({"clock": 5}, "clock must be a function that gives the time, got 5"),
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


def test_gathering_needs_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = TableStats(bags(bag("t")))
    with pytest.raises(InputError, match="init_process_group first"):
        stats.gather()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    # The second is what new_group gives to ranks that are not in the group.
    wrong: tuple[Any, ...] = ("gloo", dist.GroupMember.NON_GROUP_MEMBER)
    for group in wrong:
        with pytest.raises(InputError, match=r"process_group must be a torch\.distributed group"):
            stats.gather(group)


# ---- how seldom ----


class Costly(CheckedBatch):
    """A batch of which every look at the rows of a feature takes some time."""

    clock: ClassVar[Clock]
    seconds: ClassVar[float]

    def lookups(self, *args: Any) -> Any:
        self.clock.now += self.seconds
        return super().lookups(*args)


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> CostlyBatch:
    """Makes batches of one lookup in each of so many tables, which takes so many seconds to look at."""

    def make(clock: Clock, seconds: float, tables: int) -> KeyedJaggedTensor:
        monkeypatch.setattr(Costly, "clock", clock, raising=False)
        monkeypatch.setattr(Costly, "seconds", seconds, raising=False)
        monkeypatch.setattr("neuroshard_fast.torchrec.stats.CheckedBatch", Costly)
        return KeyedJaggedTensor(
            keys=[f"t{k}" for k in range(tables)],
            values=torch.zeros(tables, dtype=torch.int64),
            lengths=torch.ones(tables, dtype=torch.int32),
        )

    return make


@pytest.mark.parametrize("share", [0.02, 0.2])
@pytest.mark.parametrize(("tables", "seconds"), [(1, 0.0003), (10, 0.0003), (3, 0.02), (2, 0.3)])
def test_counting_takes_its_share_of_the_time_and_not_more(
    costly: CostlyBatch, share: float, tables: int, seconds: float
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


def test_a_long_pause_is_not_followed_by_a_slow_step(costly: CostlyBatch) -> None:
    clock = Clock()
    stats = TableStats(bags(*(bag(f"t{k}") for k in range(1000))), clock=clock)
    batch = costly(clock, 0.001, 1000)
    stats.observe(batch)
    clock.now += 3600.0
    before = clock.now
    assert stats.observe(batch)
    assert clock.now - before < 0.06


def test_with_a_share_of_one_every_table_of_every_batch_is_counted(costly: CostlyBatch) -> None:
    clock = Clock()
    stats = TableStats(bags(bag("t0"), bag("t1")), share=1.0, clock=clock)
    for _ in range(5):
        assert len(stats.observe(costly(clock, 10.0, 2))) == 2


def test_bad_batches_are_paid_for_too(costly: CostlyBatch) -> None:
    clock = Clock()
    stats = TableStats(bags(bag("t0")), clock=clock, share=0.5)
    batch, looks = costly(clock, 0.02, 1), 0
    batch._values = torch.full((1,), 1000)
    for _ in range(100):
        clock.now += 0.01
        try:
            stats.observe(batch)
        except InputError:
            looks += 1
    assert 20 <= looks <= 30  # 0.5 s at 0.02 s each


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
    wrong: Any = stats
    with pytest.raises(
        InputError, match="planned: a TableSet or its file is wanted, got a TableStats"
    ):
        stats.drift(wrong)
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
