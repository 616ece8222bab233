"""What is counted of the batches of one table, and what a table set says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from torch import nn
from torchrec.modules.embedding_configs import DataType as TorchRecDataType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
)

from neuroshard_fast.errors import InputError
from neuroshard_fast.reuse import HISTOGRAM_BINS
from neuroshard_fast.tables import DataType, EmbeddingTable, Feature, Pooling
from neuroshard_fast.torchrec.row_samples import RowSample

_DATA_TYPES: dict[Any, DataType] = {
    TorchRecDataType.FP32: "fp32",
    TorchRecDataType.FP16: "fp16",
    TorchRecDataType.INT8: "int8",
}
_POOLINGS: dict[str, Pooling] = {"SUM": "sum", "MEAN": "mean"}


def tables_of_module(module: nn.Module) -> list[EmbeddingTable]:
    """The tables of every embedding collection in ``module``, with pooling factors 0: not known yet.

    A table goes by its name; where several have one, each by the path of its module and its name, joined
    by a dot. InputError where there is no table, and for one that a table set cannot describe.
    """
    found = [
        (path, table) for path, collection in _collections(module) for table in _tables(collection)
    ]
    if not found:
        raise InputError(
            f"the module, a {type(module).__name__}, has no EmbeddingBagCollection or "
            "EmbeddingCollection with tables; give the model before it is sharded"
        )
    often = Counter(table.name for _, table in found)
    return [
        table
        if often[table.name] == 1 or not path
        else msgspec.structs.replace(table, name=f"{path}.{table.name}")
        for path, table in found
    ]


def _collections(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Paths and collections, each once; what a collection is made of is left alone."""
    seen: set[int] = set()
    left = [("", model)]
    while left:
        path, module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, (EmbeddingBagCollectionInterface, EmbeddingCollectionInterface)):
            yield path, module
        else:
            children = [(f"{path}.{n}" if path else n, m) for n, m in module.named_children()]
            left.extend(reversed(children))


def _tables(collection: Any) -> Iterator[EmbeddingTable]:
    is_pooled = isinstance(collection, EmbeddingBagCollectionInterface)
    configs = collection.embedding_bag_configs() if is_pooled else collection.embedding_configs()
    for config in configs:
        if config.data_type not in _DATA_TYPES:
            raise InputError(
                f"table {config.name!r}: data type {config.data_type} is not supported"
            )
        yield EmbeddingTable(
            name=config.name,
            num_embeddings=config.num_embeddings,
            embedding_dim=config.embedding_dim,
            features=tuple(
                Feature(name=name, pooling_factor=0.0)
                for name in config.feature_names or [config.name]
            ),
            pooling=_POOLINGS[config.pooling.value] if is_pooled else "none",
            is_weighted=is_pooled and collection.is_weighted(),
            data_type=_DATA_TYPES[config.data_type],
        )


@dataclass
class FeatureCounts:
    """Samples seen of a feature, and their lookups."""

    samples: int = 0
    lookups: int = 0


class TableCounts:
    """Counts of one table.

    features: by name. rows: of all batches.
    steps: how many were complete; step_samples: samples in them; step_rows: their distinct rows by how
        often each occurs in its step, summed over the steps, [17].
    """

    def __init__(self, table: EmbeddingTable) -> None:
        self.table = table
        self.features = {feature.name: FeatureCounts() for feature in table.features}
        self.rows = RowSample()
        self.steps = 0
        self.step_samples = 0
        self.step_rows = np.zeros(HISTOGRAM_BINS)
        self._step = RowSample()
        self._samples = 0  # of the step that is not complete yet

    def add(
        self, lookups: Mapping[str, tuple[int, npt.NDArray[np.integer]]], batch_size: int | None
    ) -> None:
        """Count samples and rows, [lookups], by feature.

        A step is complete with ``batch_size`` samples, or at once where that is None.
        """
        for name, (samples, rows) in lookups.items():
            self.features[name].samples += samples
            self.features[name].lookups += rows.size
        rows = np.concatenate([rows for _, rows in lookups.values()])
        self.rows.add(rows)
        self._step.add(rows)
        self._samples += max(samples for samples, _ in lookups.values())
        if self._samples >= (batch_size or 1):
            self._end_step()

    def _end_step(self) -> None:
        self.steps += 1
        self.step_samples += self._samples
        self.step_rows += self._step.by_bin()
        self._samples = 0
        # Another salt, or rows that a bound leaves out would be left out of every step.
        self._step = RowSample(level=max(0, self._step.level - 1), salt=self.steps)

    def merge(self, other: TableCounts) -> None:
        """Count what ``other`` has counted, but for its last step where that is not complete."""
        for name, counts in other.features.items():
            self.features[name].samples += counts.samples
            self.features[name].lookups += counts.lookups
        self.rows.merge(other.rows)
        self.steps += other.steps
        self.step_samples += other.step_samples
        self.step_rows = self.step_rows + other.step_rows

    @property
    def samples(self) -> int:
        """Samples seen of every feature."""
        return min(counts.samples for counts in self.features.values())

    def described(self) -> EmbeddingTable | None:
        """The table with what was counted; None where a feature was not seen.

        Its reuse histogram is None before the first step is complete.
        """
        if not self.samples:
            return None
        distinct = self.step_rows.sum()
        histogram = None
        if self.steps:
            histogram = tuple((self.step_rows / distinct if distinct else self.step_rows).tolist())
        return msgspec.structs.replace(
            self.table,
            features=tuple(
                Feature(name=name, pooling_factor=counts.lookups / counts.samples)
                for name, counts in self.features.items()
            ),
            reuse_histogram=histogram,
        )
