"""What is read and counted of the batches of one table, and what a table set says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType as TorchRecDataType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_fast.checks import shown
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
_WHOLE = {
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
}


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


class CheckedBatch:
    """A batch whose parts agree on where the lookups of each feature are.

    samples: of each feature.
    ends: 0, and then where the lookups of each feature end.

    name: a feature of it that is to be counted, for messages. InputError, naming a feature, where the parts
    do not agree. What takes a look at every sample is left to :meth:`lookups`, for one feature at a time.
    """

    def __init__(self, batch: KeyedJaggedTensor, name: str) -> None:
        where, keys = f"feature {name!r}", batch.keys()
        self._lengths, self._offsets = batch.lengths_or_none(), batch.offsets_or_none()
        self._values = _whole_tensor(batch.values(), f"{where}: rows")
        if self._values.dim() != 1:
            raise InputError(
                f"{where}: rows must have one dimension, got shape {tuple(self._values.shape)}; "
                "flatten the values of the batch"
            )
        if self._lengths is None and self._offsets is None:
            raise InputError(
                f"{where}: its batch has neither lengths nor offsets; give it one of them"
            )
        self.samples: int = batch.stride()
        sizes = {}
        if self._lengths is not None:
            sizes["lengths"] = _whole_tensor(self._lengths, f"{where}: lengths").numel()
        if self._offsets is not None:
            sizes["offsets"] = max(0, _whole_tensor(self._offsets, f"{where}: offsets").numel() - 1)
        for part, size in sizes.items():
            if not isinstance(self.samples, Integral) or size != len(keys) * self.samples:
                raise InputError(
                    f"{where}: the {part} of its batch are for {size} bags, but it has {len(keys)} features "
                    f"of {shown(self.samples)} samples; give one for each sample of each feature"
                )
        self.ends = self._found_ends(keys)
        if self.samples:
            self._check_stated(batch, where)

    def _found_ends(self, keys: Sequence[str]) -> list[int]:
        if not self.samples:
            ends = [0] * (len(keys) + 1)
        elif self._offsets is not None:
            ends = self._offsets.reshape(-1)[:: self.samples].tolist()
        elif self._lengths is not None:
            lengths = self._lengths.reshape(len(keys), self.samples)
            # On the host torch would wake its threads for it, which takes ten times as long as the sum.
            on_host = lengths.device.type == "cpu"
            sums = _on_host(lengths).sum(axis=1) if on_host else _on_host(lengths.sum(dim=1))
            ends = [0, *sums.cumsum(dtype=np.int64).tolist()]
        if ends[0] != 0:
            raise InputError(
                f"feature {keys[0]!r}: its offsets begin at {ends[0]}; the first of a batch must be 0"
            )
        for key, (start, end) in zip(keys, pairwise(ends), strict=True):
            if end < start:
                raise InputError(
                    f"feature {key!r}: its lengths sum to {end - start}; none may be below 0, and offsets "
                    "may not go back"
                )
        if ends[-1] != self._values.numel():
            raise InputError(
                f"feature {keys[-1]!r}: its lengths end at lookup {ends[-1]} of the batch, which has "
                f"{self._values.numel()} values; both must end at the same"
            )
        return ends

    def _check_stated(self, batch: KeyedJaggedTensor, where: str) -> None:
        """Check what the batch keeps of its lengths; TorchRec believes it and may have it from a user."""
        found = {
            "length_per_key": [end - start for start, end in pairwise(self.ends)],
            "offset_per_key": self.ends,
        }
        stated = {
            "length_per_key": batch.length_per_key_or_none(),
            "offset_per_key": batch.offset_per_key_or_none(),
        }
        for part, numbers in stated.items():
            if numbers is None:
                continue
            if not isinstance(numbers, (list, tuple)) or list(numbers) != found[part]:
                raise InputError(
                    f"{where}: {part} of its batch is {shown(numbers)}, by its lengths or offsets it is "
                    f"{shown(found[part])}; make the batch without {part}"
                )

    def lookups(
        self, name: str, number: int, table: EmbeddingTable
    ) -> tuple[int, npt.NDArray[np.integer]]:
        """Samples and rows, [lookups], of feature ``name``, the ``number``-th, which looks ``table`` up.

        InputError where a length is below 0, where lengths and offsets differ, and for rows that ``table``
        does not have.
        """
        where = f"feature {name!r}"
        own = self._own_lengths(where, number)
        if own.min() < 0:
            sample = int(own.argmin())
            raise InputError(
                f"{where}: length {own[sample]} of sample {sample}; no length may be below 0, and offsets "
                "may not go back"
            )
        rows = _on_host(self._values[self.ends[number] : self.ends[number + 1]])
        if rows.size and not (rows.min() >= 0 and rows.max() < table.num_embeddings):
            wrong = rows[(rows < 0) | (rows >= table.num_embeddings)][0]
            raise InputError(
                f"{where}: row {wrong} is not in table {table.name!r} of {table.num_embeddings} rows"
            )
        return self.samples, rows

    def _own_lengths(self, where: str, number: int) -> npt.NDArray[np.int64]:
        """Lengths of one feature, [samples]."""
        start, end = number * self.samples, (number + 1) * self.samples
        found: list[npt.NDArray[np.int64]] = []
        if self._lengths is not None:
            found.append(
                _on_host(self._lengths.reshape(-1)[start:end]).astype(np.int64, copy=False)
            )
        if self._offsets is not None:
            offsets = _on_host(self._offsets.reshape(-1)[start : end + 1])
            found.append(offsets[1:].astype(np.int64) - offsets[:-1].astype(np.int64))
        if not np.array_equal(found[0], found[-1]):
            raise InputError(
                f"{where}: lengths and offsets of its batch differ; make the batch with one of them"
            )
        return found[0]


def _whole_tensor(tensor: object, what: str) -> torch.Tensor:
    """``tensor`` if it is one of whole numbers that are there; an empty one may have any type."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{what} must be a tensor, got a {type(tensor).__name__}")
    if tensor.is_meta:
        raise InputError(
            f"{what} are on the meta device, where nothing is stored; observe batches with data"
        )
    if tensor.layout != torch.strided:
        raise InputError(f"{what} must be a dense tensor, got {tensor.layout}; use to_dense()")
    if tensor.dtype not in _WHOLE and (tensor.numel() or tensor.is_complex()):
        raise InputError(
            f"{what} must be whole numbers, got {tensor.dtype}; convert them with long()"
        )
    return tensor


def _on_host(tensor: torch.Tensor) -> npt.NDArray[np.integer]:
    return np.asarray(tensor.detach().cpu().numpy())


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

    def copy(self) -> TableCounts:
        """The same counts, which counting more leaves this one out of."""
        same = copy(self)
        same.features = {name: replace(counts) for name, counts in self.features.items()}
        same.rows, same._step = copy(self.rows), copy(self._step)
        return same

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
        self.step_rows = self.step_rows + self._step.by_bin()  # a copy has the array, too
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
