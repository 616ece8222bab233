"""Planning tasks made of the tables of a larger set."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from neuroshard_fast.tables import TableSet


def draw_task(
    pool: TableSet,
    tables_per_task: tuple[int, int],
    dims: Sequence[int],
    generator: np.random.Generator,
) -> TableSet:
    """Different tables of ``pool``, each with one of ``dims`` chosen at random.

    tables_per_task: the fewest and the most of them; at most as many as ``pool`` has.
    """
    fewest, most = tables_per_task
    size = int(generator.integers(fewest, most + 1))
    chosen = generator.choice(len(pool), size=size, replace=False).tolist()
    dim_of = generator.choice(dims, size=size).tolist()
    return TableSet.of(
        [
            msgspec.structs.replace(pool[table], embedding_dim=dim)
            for table, dim in zip(chosen, dim_of, strict=True)
        ]
    )
