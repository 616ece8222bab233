"""Seeded tasks that leave little memory, and have a plan."""

from __future__ import annotations

import numpy as np

from neuroshard_fast import Cluster, EmbeddingTable, Feature, TableSet

MOST_SPLITS = 10
"""Of the plan by which a task is drawn."""


def draw_tight_task(generator: np.random.Generator) -> tuple[TableSet, Cluster]:
    """Tables that take 90% to 98% of 2, 4 or 8 devices in a plan with at most MOST_SPLITS splits.

    Devices are filled one by one with shards of random sizes, some of which are halves of tables whose
    other halves are on other devices.
    """
    devices = int(generator.choice([2, 4, 8]))
    splits = int(generator.integers(0, MOST_SPLITS + 1))
    shards = [int(generator.integers(2, 12)) for _ in range(devices)]
    memory = 8 * 2**30
    taken = [0] * devices
    wanted = [int(generator.uniform(0.9, 0.98) * memory)] * devices
    tables: list[tuple[int, int]] = []

    def add(size: float, dim: int, on: list[int]) -> None:
        """A table of which each of these devices holds ``size`` bytes."""
        rows = max(1, int(size / 4 / dim))
        tables.append((rows, dim * len(on)))
        for device in on:
            taken[device] += rows * dim * 4

    for _ in range(splits):
        one, other = generator.choice(devices, 2, replace=False).tolist()
        room = min(wanted[one] - taken[one], wanted[other] - taken[other])
        add(
            room * generator.uniform(0.05, 0.4),
            int(generator.choice([4, 8, 16, 32, 64])),
            [one, other],
        )
    for device in range(devices):
        weights = generator.lognormal(0.0, 1.0, shards[device])
        room = wanted[device] - taken[device]
        for weight in weights / weights.sum():
            add(weight * room, int(generator.choice([4, 8, 16, 32, 64, 128])), [device])
    return (
        TableSet.of(
            [
                EmbeddingTable(
                    name=f"table_{number}",
                    num_embeddings=rows,
                    embedding_dim=dim,
                    features=(
                        Feature(
                            name=f"feature_{number}",
                            pooling_factor=float(generator.uniform(1.0, 20.0)),
                        ),
                    ),
                )
                for number, (rows, dim) in enumerate(tables)
            ]
        ),
        Cluster(world_size=devices, memory_bytes=memory, batch_size=65536),
    )
