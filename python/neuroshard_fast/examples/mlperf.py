"""The tables of MLPerf's recommendation benchmark."""

from __future__ import annotations

from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

BATCH_SIZE = 65536
"""Global batch of the benchmark."""

_DIM = 128
# fmt: off
_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956,
    405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000,
    590_152, 12_973, 108, 36,
)
_POOLING_FACTORS = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)
# fmt: on


def mlperf_dlrm_dcnv2() -> TableSet:
    """MLPerf DLRM-DCNv2 on multi-hot Criteo 1TB: 26 tables of dim 128, fp32, row-wise Adagrad.

    Index frequencies are not published with the benchmark: reuse histograms are left to be assumed.
    """
    return TableSet.of(
        [
            EmbeddingTable(
                name=f"t_cat_{index}",
                num_embeddings=rows,
                embedding_dim=_DIM,
                features=(Feature(name=f"cat_{index}", pooling_factor=pooling_factor),),
                optimizer="rowwise_adagrad",
            )
            for index, (rows, pooling_factor) in enumerate(
                zip(_ROWS, _POOLING_FACTORS, strict=True)
            )
        ]
    )
