"""A large synthetic table set of the shape that production models have."""

from __future__ import annotations

import numpy as np

from neuroshard_fast.checks import MAX_SEED, whole_number
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

TABLES = 1000
TOTAL_BYTES = 3 * 2**40
"""Memory of the whole set: fp32 weights and the state of row-wise Adagrad (4 bytes a row)."""

WORLD_SIZE = 128
BATCH_SIZE = 65536

_DIMS = (4, 8, 16, 32, 64, 128, 256)
_DIM_SHARES = (0.03, 0.07, 0.15, 0.25, 0.27, 0.20, 0.03)
_LARGEST_BYTES = 60 * 2**30  # every table fits an 80 GB device, if with little else beside it
_SHARED_BY = (1, 2, 3, 4)
_SHARED_BY_SHARES = (0.90, 0.06, 0.03, 0.01)


def production_like(seed: int = 0) -> TableSet:
    """1,000 tables, 3 TiB with optimizer state, meant for 128 devices of 80 GiB.

    Rows and pooling factors are log-normal, a tenth of the tables is shared by several features;
    reuse histograms are left to be assumed. Invented, not taken from a real model.
    """
    whole_number(seed, "seed", low=0, high=MAX_SEED)
    generator = np.random.default_rng(seed)
    dims = generator.choice(_DIMS, size=TABLES, p=_DIM_SHARES)
    spread = np.exp(2.4 * generator.standard_normal(TABLES))
    pooling_factors = np.clip(5.0 * np.exp(1.3 * generator.standard_normal(TABLES)), 0.25, 200.0)
    features = generator.choice(_SHARED_BY, size=TABLES, p=_SHARED_BY_SHARES)
    row_bytes = 4 * dims + 4
    low, high = 0.0, float(_LARGEST_BYTES)
    for _ in range(100):
        middle = 0.5 * (low + high)
        sizes = np.minimum(middle * spread, _LARGEST_BYTES)
        low, high = (middle, high) if sizes.sum() < TOTAL_BYTES else (low, middle)
    rows = np.maximum(sizes // row_bytes, 100).astype(np.int64)
    return TableSet.of(
        [
            EmbeddingTable(
                name=f"table_{index}",
                num_embeddings=int(rows[index]),
                embedding_dim=int(dims[index]),
                features=tuple(
                    Feature(
                        name=f"feature_{index}_{feature}",
                        pooling_factor=round(float(pooling_factors[index]), 2),
                    )
                    for feature in range(features[index])
                ),
                optimizer="rowwise_adagrad",
            )
            for index in range(TABLES)
        ]
    )
