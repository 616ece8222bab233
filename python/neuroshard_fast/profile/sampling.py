"""Which sets of tables and which all-to-alls are measured; sample i depends on the seed and i.

Source of the distributions: the published NeuroShard benchmark (arXiv:2305.01868).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from neuroshard_fast.errors import InputError
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.tables import EmbeddingTable, TableSet

AUGMENTED_DIMS = (4, 8, 16, 32, 64, 128)
"""Dims of the tables of an all-to-all, and the least that every table of a pool is taken with."""
TABLE_SETS = 2
"""Which distribution :class:`ComputeSampler` draws from. 1, of earlier versions, was the published one:
all numbers of tables are equally likely."""
MOST_TABLES = 15
"""Most tables of a compute sample, unless said otherwise."""


def augmented_dims(pool: TableSet) -> tuple[int, ...]:
    """AUGMENTED_DIMS, doubled on until they reach the largest dim of ``pool``."""
    largest = max(table.embedding_dim for table in pool)
    dims = list(AUGMENTED_DIMS)
    while dims[-1] < largest:
        dims.append(2 * dims[-1])
    return tuple(dims)


def augment(pool: TableSet, dims: Sequence[int] | None = None) -> list[EmbeddingTable]:
    """Every table of ``pool`` with each of ``dims``, table by table; by default its
    :func:`augmented_dims`."""
    each = augmented_dims(pool) if dims is None else dims
    return [msgspec.structs.replace(table, embedding_dim=dim) for table in pool for dim in each]


class ComputeSampler:
    """Sets of 1 to ``most_tables`` tables whose weights and optimizer state fit ``memory_bytes``.

    Half of the time all numbers of tables are equally likely, as published; else few are likelier: plans
    leave the dearest tables alone on a device.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        memory_bytes: int,
        seed: int,
        most_tables: int = MOST_TABLES,
    ) -> None:
        sizes = [shard_memory(table).of_width(table.embedding_dim) for table in tables]
        self._seed = seed
        self._most_tables = most_tables
        self._memory_bytes = memory_bytes
        self._sizes = np.array(sizes)
        self._fitting = np.flatnonzero(self._sizes <= memory_bytes)
        if not self._fitting.size:
            raise InputError(
                f"the smallest table takes {min(sizes)} bytes: none fits a sample of "
                f"{memory_bytes} bytes"
            )

    def draw(self, sample: int) -> tuple[int, ...]:
        """Table numbers of a sample, all different."""
        generator = np.random.default_rng([self._seed, sample])
        if generator.random() < 0.5:
            wanted = int(generator.integers(1, self._most_tables + 1))
        else:
            wanted = int(_log_uniform(generator, 1.0, self._most_tables + 1))
        chosen: list[int] = []
        left = self._memory_bytes
        for table in generator.permutation(self._fitting):
            if self._sizes[table] <= left:
                chosen.append(int(table))
                left -= int(self._sizes[table])
                if len(chosen) == wanted:
                    break
        return tuple(chosen)


ALL_TO_ALLS = 3
"""Which distribution :func:`draw_all_to_all` draws from. 1, of earlier versions, was the published one:
starts in whole ms, and nothing like a finished plan. In 2 plans had no late devices."""

_COLUMNS = 4  # dims are multiples of it
_PLANNED_DIMS = tuple(range(_COLUMNS, 257, _COLUMNS))
_MOST_PLANNED_TABLES = 16  # for each device, of a sample that is like a plan
_STARTS_DIGITS = 6  # of a start in ms: what data.txt holds


@dataclass(frozen=True)
class AllToAll:
    """An all-to-all to measure: columns of each device, and how long after the first it starts."""

    dims: tuple[int, ...]
    starts_ms: tuple[float, ...]


def draw_all_to_all(world_size: int, seed: int, sample: int) -> AllToAll:
    """A sample of any imbalance from none to strong, or, in two of three, one like a finished plan.

    Any imbalance: 10 to 59 tables (times a quarter of the devices beyond four) are placed one after the
    other on the device with the fewest columns, or, with a probability drawn for the sample, on any
    device. Starts spread evenly below 1 to 19 ms. As published, but that starts are continuous.

    Like a plan: up to 16 tables a device are placed, widest first, on the device with the fewest
    columns; up to a tenth of them on any device. Now and then their dims are any multiples of 4 up to
    256. Starts spread evenly below 0.01 to 2 ms. In half of these samples some devices are late, by up
    to 0.05 to 20 ms, and may have fewer columns: a dear table that cannot be split leaves a device so.
    """
    generator = np.random.default_rng([seed, sample])
    if generator.random() < 1 / 3:
        sums = published_dims(generator, world_size)
        starts = generator.uniform(0.0, float(generator.integers(1, 20)), size=world_size)
    else:
        sums = _planned_dims(generator, world_size)
        starts = generator.uniform(0.0, _log_uniform(generator, 0.01, 2.0), size=world_size)
        if generator.random() < 0.5:
            count = int(_log_uniform(generator, 1.0, world_size))
            late = generator.permutation(world_size)[:count]
            starts[late] += _log_uniform(generator, 0.05, 20.0) * generator.uniform(0.5, 1.0, count)
            if generator.random() < 0.5:
                fewer = sums[late] * generator.random(count) / _COLUMNS
                sums[late] = _COLUMNS * np.maximum(1, fewer.astype(np.int64))
    starts = (starts - starts.min()).round(_STARTS_DIGITS)
    return AllToAll(tuple(map(int, sums)), tuple(map(float, starts)))


def published_dims(generator: np.random.Generator, world_size: int) -> npt.NDArray[np.int64]:
    """Columns of each device, of any imbalance, as published."""
    tables = int(generator.integers(10, 60)) * max(1, world_size // 4)
    dims = generator.choice(AUGMENTED_DIMS, size=tables)
    random_share = generator.random()
    sums = np.zeros(world_size, np.int64)
    anywhere = generator.random(tables) < random_share
    anyone = generator.integers(0, world_size, size=tables)
    for dim, random, device in zip(dims, anywhere, anyone, strict=True):
        sums[device if random else sums.argmin()] += dim
    return sums


def _planned_dims(generator: np.random.Generator, world_size: int) -> npt.NDArray[np.int64]:
    """Columns of each device, nearly balanced."""
    tables = round(world_size * _log_uniform(generator, 1.0, _MOST_PLANNED_TABLES))
    pool = _PLANNED_DIMS if generator.random() < 0.5 else AUGMENTED_DIMS
    dims = generator.choice(pool, size=tables)
    anywhere = generator.random(tables) < generator.uniform(0.0, 0.1)
    sums = np.zeros(world_size, np.int64)
    np.add.at(sums, generator.integers(0, world_size, size=anywhere.sum()), dims[anywhere])
    least = [(int(columns), device) for device, columns in enumerate(sums)]
    heapq.heapify(least)
    for dim in np.sort(dims[~anywhere])[::-1]:
        columns, device = least[0]
        heapq.heapreplace(least, (columns + int(dim), device))
    for columns, device in least:
        sums[device] = columns
    return sums


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))
