"""Seeded random models with embedding collections, their batches, and how they are to be sharded.

Everything is drawn from the seed, so that every process makes the same model of it. TorchRec's modules go by
these names: a "bag" is an EmbeddingBagCollection, weighted or not, a "sequence" an EmbeddingCollection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

Kind = Literal["bag", "weighted_bag", "sequence"]
OptimizerName = Literal["sgd", "adagrad", "rowwise_adagrad"]

SEEDS = range(30)
SAMPLES = 8
"""Of a rank's batch."""
SQUEEZED_BAGS, SQUEEZED_SEQUENCES = (3, 4, 6, 7), (9, 10)
"""Seeds of models with a table that no device has room for: unequal devices get its columns in unequal
shards, and a sequence is cut into equal ones."""

GATHERED_SEED, GATHERED_BATCHES = 5, 8
"""What statistics are gathered of."""

_KINDS: tuple[Kind, ...] = ("bag", "weighted_bag", "sequence")
_OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adagrad", "rowwise_adagrad")
_LONGEST_BAG = 4
_LEAST_ROWS_BY_ROW = 16  # with fewer, one of four devices may get none
_SQUEEZED_ROWS, _SQUEEZED_DIM = 80_000, 64
_SQUEEZED_NAME = "squeezed"


@dataclass(frozen=True)
class Table:
    """A table; ``forced`` is a sharding type that its constraint demands."""

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    mean: bool = False
    forced: str | None = None

    @property
    def weights(self) -> int:
        """Numbers in it."""
        return self.rows * self.dim


@dataclass(frozen=True)
class Collection:
    """A collection in a model, so many modules deep; all tables of a sequence have one dim."""

    name: str
    kind: Kind
    depth: int
    tables: tuple[Table, ...]

    @property
    def is_weighted(self) -> bool:
        return self.kind == "weighted_bag"


@dataclass(frozen=True)
class Model:
    """What a seed stands for.

    in_backward: whether the optimizer is attached to the parameters, and not given to the sharders.
    """

    seed: int
    collections: tuple[Collection, ...]
    optimizer: OptimizerName
    in_backward: bool

    @property
    def tables(self) -> list[tuple[Collection, Table]]:
        return [
            (collection, table) for collection in self.collections for table in collection.tables
        ]

    def features(self, *, weighted: bool) -> list[str]:
        """Of collections with weights, or of those without; each once, in the order of tables."""
        names = [
            feature
            for collection, table in self.tables
            if collection.is_weighted == weighted
            for feature in table.features
        ]
        return list(dict.fromkeys(names))

    def memory_caps(self, world_size: int) -> list[int] | None:
        """Bytes of each device, of which none has room for the squeezed table; None where there is none."""
        squeezed = [(c, table) for c, table in self.tables if table.name == _SQUEEZED_NAME]
        if not squeezed:
            return None
        collection, table = squeezed[0]
        state = 4 if self.optimizer == "adagrad" else 0
        size = table.weights * (4 + state)
        if collection.kind == "sequence":
            return [int(0.75 * size)] * world_size
        shares = [0.95, 0.45, *([0.2] * (world_size - 2))]  # no equal shards fit
        return [int(share * size) for share in shares]


def draw(seed: int) -> Model:
    """The model of a seed: ``seed`` + 1 tables in one to four collections."""
    generator = np.random.default_rng(seed)
    count = seed + 1
    collections = min(count, int(generator.integers(1, 5)))
    ends = np.sort(generator.choice(np.arange(1, count), collections - 1, replace=False))
    bounds = [0, *ends.tolist(), count]
    optimizer = _OPTIMIZERS[seed % 3]
    drawn = []
    for number in range(collections):
        kind = _KINDS[int(generator.integers(3))]
        size = bounds[number + 1] - bounds[number]
        if number == 0 and seed in SQUEEZED_BAGS + SQUEEZED_SEQUENCES:
            kind = "bag" if seed in SQUEEZED_BAGS else "sequence"
        drawn.append(_draw_collection(generator, seed, number, kind, size, optimizer))
    return Model(seed, tuple(drawn), optimizer, in_backward=seed // 6 % 2 == 0)


def _draw_collection(
    generator: np.random.Generator,
    seed: int,
    number: int,
    kind: Kind,
    count: int,
    optimizer: OptimizerName,
) -> Collection:
    is_squeezed = seed in SQUEEZED_BAGS + SQUEEZED_SEQUENCES
    common_dim = _SQUEEZED_DIM if is_squeezed else 4 * int(generator.integers(1, 9))
    most_rows = 300 if is_squeezed else 2000
    tables: list[Table] = []
    for index in range(count):
        name = f"{kind}_{number}_{index}"
        features = [
            f"{name}.{k}" for k in range(int(generator.choice([1, 2, 3], p=[0.6, 0.3, 0.1])))
        ]
        if kind != "sequence" and tables and generator.random() < 0.15:
            features[-1] = tables[-1].features[0]  # which looks both tables up
        dim = common_dim if kind == "sequence" else 4 * int(generator.integers(1, 17))
        rows = int(np.exp(generator.uniform(np.log(3), np.log(most_rows))))
        forced = None
        chance = generator.random()
        if chance < 0.15 and rows >= _LEAST_ROWS_BY_ROW:
            forced = "row_wise"
        elif chance < 0.3 and optimizer != "rowwise_adagrad":
            forced = "column_wise"
        mean = kind == "bag" and bool(generator.random() < 0.3)
        tables.append(
            Table(
                name=name,
                rows=rows,
                dim=dim,
                features=tuple(features),
                # TorchRec 1.8 gets the other tables of its collection wrong beside a mean cut by rows.
                mean=mean and forced != "row_wise",
                forced=forced,
            )
        )
    if number == 0 and is_squeezed:
        feature = f"{_SQUEEZED_NAME}.0"
        tables[0] = Table(_SQUEEZED_NAME, _SQUEEZED_ROWS, _SQUEEZED_DIM, (feature,))
    return Collection(f"{kind}_{number}", kind, int(generator.integers(0, 3)), tuple(tables))


class Nested(nn.Module):
    """A module in another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: KeyedJaggedTensor) -> object:
        return self.inner(features)


class RandomModel(nn.Module):
    """The collections of a model, and a linear layer on all of their vectors.

    Gives a number for each sample, [samples], and the vectors of each feature of each collection by name:
    [samples, dim] of bags, [lookups, dim] of sequences.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        torch.manual_seed(model.seed)
        self.parts = nn.ModuleDict()
        self.kinds = {collection.name: collection.kind for collection in model.collections}
        width = 0
        for collection in model.collections:
            part: nn.Module = make_collection(collection)
            for _ in range(collection.depth):
                part = Nested(part)
            self.parts[collection.name] = part
            width += sum(table.dim * len(table.features) for table in collection.tables)
        self.head = nn.Linear(width, 1)

    def forward(
        self, plain: KeyedJaggedTensor, weighted: KeyedJaggedTensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        outputs: dict[str, Tensor] = {}
        pooled: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            kind = self.kinds[name]
            result = part(weighted if kind == "weighted_bag" else plain)
            if kind == "sequence":
                for feature, rows in result.items():
                    outputs[f"{name}/{feature}"] = rows.values()
                    pooled[f"{name}/{feature}"] = _sum_of_bags(rows.values(), rows.lengths())
            else:
                vectors = {f"{name}/{feature}": x for feature, x in result.to_dict().items()}
                outputs.update(vectors)
                pooled.update(vectors)
        everything = torch.cat([pooled[key] for key in sorted(pooled)], dim=1)
        return self.head(everything).squeeze(1), outputs


def make_collection(collection: Collection) -> nn.Module:
    """The collection as TorchRec has it, with weights of a size that a few steps show in."""
    module: nn.Module
    if collection.kind == "sequence":
        module = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=table.name,
                    num_embeddings=table.rows,
                    embedding_dim=table.dim,
                    feature_names=list(table.features),
                )
                for table in collection.tables
            ]
        )
    else:
        module = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.rows,
                    embedding_dim=table.dim,
                    feature_names=list(table.features),
                    pooling=PoolingType.MEAN if table.mean else PoolingType.SUM,
                )
                for table in collection.tables
            ],
            is_weighted=collection.is_weighted,
        )
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def _sum_of_bags(rows: Tensor, lengths: Tensor) -> Tensor:
    """Sums of the rows of each sample, [samples, dim]."""
    sample = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    return torch.zeros(lengths.numel(), rows.shape[1]).index_add(0, sample, rows)


@dataclass(frozen=True)
class Lookups:
    """Of one feature: lengths [samples], rows and weights [lookups]."""

    lengths: Tensor
    rows: Tensor
    weights: Tensor

    def part(self, start: int, end: int) -> Lookups:
        """Of samples ``start`` to ``end`` - 1."""
        first, last = (int(self.lengths[:sample].sum()) for sample in (start, end))
        return Lookups(self.lengths[start:end], self.rows[first:last], self.weights[first:last])


@dataclass(frozen=True)
class Batch:
    """Lookups by feature, and the numbers to learn, [samples]."""

    lookups: dict[str, Lookups]
    labels: Tensor

    def part(self, start: int, end: int) -> Batch:
        """Samples ``start`` to ``end`` - 1."""
        parts = {name: lookups.part(start, end) for name, lookups in self.lookups.items()}
        return Batch(parts, self.labels[start:end])

    def features(self, names: Sequence[str], *, weighted: bool) -> KeyedJaggedTensor:
        """The lookups of features ``names``; none of them makes an empty batch."""
        if not names:
            return KeyedJaggedTensor.empty(is_weighted=weighted, values_dtype=torch.int64)
        found = [self.lookups[name] for name in names]
        return KeyedJaggedTensor.from_lengths_sync(
            keys=list(names),
            values=torch.cat([lookups.rows for lookups in found]),
            lengths=torch.cat([lookups.lengths for lookups in found]),
            weights=torch.cat([lookups.weights for lookups in found]) if weighted else None,
        )

    def inputs(self, model: Model) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
        """What a :class:`RandomModel` takes."""
        plain = self.features(model.features(weighted=False), weighted=False)
        return plain, self.features(model.features(weighted=True), weighted=True)


def batches(model: Model, count: int, samples: int) -> Iterator[Batch]:
    """``count`` batches; some samples look nothing up, and a few features nothing in a whole batch."""
    generator = np.random.default_rng([model.seed, 1])
    rows: dict[str, int] = {}
    for _, table in model.tables:
        for feature in table.features:
            rows[feature] = min(rows.get(feature, table.rows), table.rows)
    for _ in range(count):
        lookups = {}
        for feature, most in rows.items():
            longest = 0 if generator.random() < 0.05 else _LONGEST_BAG
            lengths = generator.integers(0, longest + 1, samples)
            chosen = (most * generator.random(int(lengths.sum())) ** 2).astype(np.int64)
            weights = generator.uniform(0.5, 1.5, chosen.size).astype(np.float32)
            lookups[feature] = Lookups(
                torch.from_numpy(lengths.astype(np.int32)),
                torch.from_numpy(chosen),
                torch.from_numpy(weights),
            )
        labels = torch.from_numpy(generator.standard_normal(samples).astype(np.float32))
        yield Batch(lookups, labels)
