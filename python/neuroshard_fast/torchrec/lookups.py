"""What a batch looks up in each table: from constraints, or from statistics of real batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS
from torchrec.types import DataType as TorchRecDataType

from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import EmbeddingTable, Feature, OutputDtype, TableSet
from neuroshard_fast.torchrec.errors import ConstraintError
from neuroshard_fast.torchrec.model import ModelTable

_FP32_BYTES = 4.0
_OUTPUT_DTYPES: dict[float, OutputDtype] = {4.0: "fp32", 2.0: "fp16"}


class EstimateSizes(NamedTuple):
    """What TorchRec's estimate is asked with; one entry for each pooling factor of the constraint."""

    input_lengths: list[float]
    num_poolings: list[float]
    batch_sizes: list[int]

    def of_first(self, count: int) -> EstimateSizes:
        """The first entry of each, so many times."""
        return EstimateSizes(
            self.input_lengths[:1] * count,
            self.num_poolings[:1] * count,
            self.batch_sizes[:1] * count,
        )


class TableLookups(NamedTuple):
    """Lookups of a sample of the global batch.

    features: names. factors: mean lookups of each. vectors: pooled vectors of all of them.
    output_bytes: of an element of the vectors that come out.
    sent_bytes: of an element of the vectors that devices exchange.
    is_weighted: whether every index comes with a weight.
    histogram: of their reuse; None where it has to be assumed.
    factors_assumed: whether nothing says how long bags are, so that each counts as of one index.
    estimate: what TorchRec's memory estimate counts, which is not what ``factors`` say where they come
        from statistics, or where a table without constraints has several features.
    """

    features: tuple[str, ...]
    factors: tuple[float, ...]
    vectors: float
    output_bytes: float
    sent_bytes: float
    is_weighted: bool
    histogram: tuple[float, ...] | None
    factors_assumed: bool
    estimate: EstimateSizes

    @property
    def total(self) -> float:
        """Lookups of all features."""
        return sum(self.factors)


class Statistics:
    """Statistics of tables, found by a table's full name, or else by its own."""

    def __init__(self, tables: TableSet | None) -> None:
        self._by_name = {} if tables is None else {table.name: table for table in tables}

    @classmethod
    def of(cls, source: object) -> Statistics:
        """Of a table set, a file of one, or what makes one (``TableStats``); none where None."""
        if isinstance(source, (str, os.PathLike)):
            return cls(TableSet.load(source))
        make = getattr(source, "table_set", None)
        tables = make() if callable(make) else source
        if tables is not None and not isinstance(tables, TableSet):
            raise InputError(
                "table_stats: a TableSet, its file or a TableStats is wanted, got a "
                f"{type(source).__name__}"
            )
        return cls(tables)

    def of_table(self, table: ModelTable) -> EmbeddingTable | None:
        """Those of ``table``."""
        return self._by_name.get(table.fqn) or self._by_name.get(table.name)


def table_lookups(
    table: ModelTable,
    constraint: ParameterConstraints | None,
    measured: EmbeddingTable | None,
    batch_size: int,
) -> TableLookups:
    """What a batch of ``batch_size`` samples a rank looks up in ``table``.

    Statistics come before constraints. ConstraintError where the lists of a constraint do not fit the
    table; InputError where the statistics do not.
    """
    where = f"table {table.fqn!r}"
    features = _features(table, constraint, where)
    estimate = _estimate_sizes(constraint, len(features), batch_size, where)
    by_feature = len(estimate.input_lengths) == len(features)
    # One entry for several features is TorchRec's default, in which nobody said anything.
    lengths, poolings, batches = estimate if by_feature else estimate.of_first(len(features))
    bags = [n * b / batch_size for n, b in zip(poolings, batches, strict=True)]
    histogram = None
    if measured is not None:
        known = {feature.name: feature.pooling_factor for feature in measured.features}
        if missing := [name for name in features if name not in known]:
            raise InputError(
                f"{where}: the statistics given as table_stats have no feature {missing[0]!r} of it"
            )
        factors = [known[name] * b / batch_size for name, b in zip(features, batches, strict=True)]
        histogram = measured.reuse_histogram
    else:
        factors = [length * bag for length, bag in zip(lengths, bags, strict=True)]
    return TableLookups(
        features=features,
        factors=tuple(factors),
        vectors=sum(bags),
        output_bytes=_output_bytes(table, constraint),
        sent_bytes=_sent_bytes(table, constraint),
        is_weighted=table.is_weighted or bool(constraint is not None and constraint.is_weighted),
        histogram=histogram,
        factors_assumed=measured is None and _is_default(estimate.input_lengths),
        estimate=estimate,
    )


def cost_table(
    table: ModelTable,
    lookups: TableLookups,
    *,
    name: str = "",
    rows: int | None = None,
    columns: int | None = None,
    share: float = 1.0,
) -> EmbeddingTable:
    """``table`` as cost models see it, or a part of it.

    name, rows, columns: of the part. share: of the lookups that come to the part.
    """
    return EmbeddingTable(
        name=name or table.fqn,
        num_embeddings=table.rows if rows is None else rows,
        embedding_dim=table.dim if columns is None else columns,
        features=tuple(
            Feature(name=feature, pooling_factor=factor * share)
            for feature, factor in zip(lookups.features, lookups.factors, strict=True)
        ),
        pooling=table.pooling,
        is_weighted=lookups.is_weighted,
        reuse_histogram=lookups.histogram,
        data_type=table.data_type,
        output_dtype=_OUTPUT_DTYPES.get(lookups.sent_bytes, "fp32"),
        optimizer=table.optimizer.trained_as,
    )


def sent_width(table: ModelTable, lookups: TableLookups, share: float = 1.0) -> float:
    """What a device sends for each column, in fp32 numbers a sample of the global batch.

    share: of the lookups; pooled vectors come whole, also out of a part of the rows.
    """
    vectors = lookups.vectors if table.kind == "bags" else lookups.total * share
    return vectors * lookups.sent_bytes / _FP32_BYTES


def _is_default(input_lengths: list[float]) -> bool:
    return input_lengths == [POOLING_FACTOR]


def _features(
    table: ModelTable, constraint: ParameterConstraints | None, where: str
) -> tuple[str, ...]:
    """The features in the order in which the lists of the constraint count them."""
    given = None if constraint is None else constraint.feature_names
    if not given:
        return table.features
    if sorted(given) != sorted(table.features):
        raise ConstraintError(
            f"{where}: constraint feature_names has {', '.join(map(str, given))}, but the table is "
            f"looked up by {', '.join(table.features)}"
        )
    return tuple(given)


def _estimate_sizes(
    constraint: ParameterConstraints | None, features: int, batch_size: int, where: str
) -> EstimateSizes:
    lengths = list(constraint.pooling_factors) if constraint is not None else [POOLING_FACTOR]
    poolings = None if constraint is None else constraint.num_poolings
    batches = None if constraint is None else constraint.batch_sizes
    if len(lengths) != features and not (_is_default(lengths) and not (poolings or batches)):
        raise ConstraintError(
            f"{where}: constraint pooling_factors has {len(lengths)} entries for {features} features"
        )
    for field, values in (("num_poolings", poolings), ("batch_sizes", batches)):
        if values and len(values) != len(lengths):
            raise ConstraintError(
                f"{where}: constraint {field} has {len(values)} entries for {len(lengths)} pooling factors"
            )
    poolings = list(poolings) if poolings else [1.0] * len(lengths)
    batches = list(batches) if batches else [batch_size] * len(lengths)
    return EstimateSizes(lengths, poolings, batches)


def _sent_bytes(table: ModelTable, constraint: ParameterConstraints | None) -> float:
    """Bytes of an element that is exchanged: the sharder's codecs, else the type of the output.

    Where forward and backward codecs differ, their mean.
    """
    operation = (
        CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL
        if table.kind == "bags"
        else CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL
    )
    coded: Mapping[str, tuple[float, float]] = table.offer.data.qcomm_dtype_sizes
    if operation.name in coded:
        return sum(coded[operation.name]) / 2
    return _output_bytes(table, constraint)


def _output_bytes(table: ModelTable, constraint: ParameterConstraints | None) -> float:
    """Bytes of an element that comes out of the fused operator: fp32 where nothing is said."""
    output = None if constraint is None else constraint.output_dtype
    if output is None:
        output = table.offer.fused_params.get("output_dtype")
    if output is None:
        return _FP32_BYTES
    # FBGEMM's types have the names of TorchRec's.
    name = getattr(output, "name", str(output))
    try:
        return float(DATA_TYPE_NUM_BITS[TorchRecDataType[name]]) / 8
    except KeyError as error:
        raise InputError(f"table {table.fqn!r}: output_dtype {name} is not supported") from error
