"""A planning question as the engine takes it, with cost models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from neuroshard_fast import _core
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.doubts import outside_training
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import ShardFeatures, shard_features
from neuroshard_fast.options import SearchOptions, search_arguments
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet
from neuroshard_fast.torchrec.lookups import cost_table, sent_width
from neuroshard_fast.torchrec.question import Devices, FixedShard, Question

_UNCAPPED = 2**60


class Costs(NamedTuple):
    """Predicted costs of a plan, ms; each list has an entry for each rank.

    high: totals that few exceed; None where the cost models do not say.
    """

    total: float
    compute: list[float]
    forward: list[float]
    backward: list[float]
    high: list[float] | None


class Part(NamedTuple):
    """A fixed shard as a table of its own.

    sent: fp32 numbers for each column and sample. is_local: whether its rank looks up its own samples only.
    """

    rank: int
    table: EmbeddingTable
    sent: float
    num_bytes: int
    is_local: bool


class Engine:
    """Searches and predicts for one question.

    InputError where the cost models do not serve its number of ranks or its batch.
    """

    def __init__(self, models: CostModels, question: Question, options: SearchOptions) -> None:
        self.models = models
        self.question = question
        self.options = options
        _require_serves(models, question, options)
        # In this order the engine numbers the tables: searched ones, then fixed parts.
        self.tables = [
            cost_table(question.tables[number], question.lookups[number])
            for number in question.free
        ]
        # Local parts last: their features are those of another batch.
        parts = [part for fixed in question.fixed if (part := _part(question, fixed)) is not None]
        self.parts = sorted(parts, key=lambda part: part.is_local)
        self._features = self._all_features()
        self._sent = np.array(
            [
                *(sent_width(question.tables[k], question.lookups[k]) for k in question.free),
                *(part.sent for part in self.parts),
            ]
        )
        self._dims = np.array([table.embedding_dim for table in self._all_tables()], np.int64)

    @property
    def has_tables(self) -> bool:
        """Whether there is anything to predict for."""
        return bool(self.tables or self.parts)

    def problem(
        self,
        least_widths: Sequence[int] | None = None,
        split_widths: Sequence[int] | None = None,
        *,
        capped: bool = True,
    ) -> _core.Problem:
        """The engine's problem; the widths are [searched tables]. Without caps for predictions only."""
        columns, fixed = self.question.columns, len(self.parts)
        with self._refusals():
            return _core.Problem(
                **self._features._asdict(),
                dims=self._dims,
                output_width=self._sent,
                bytes_per_column=np.array([*columns.bytes_per_column, *[0] * fixed], np.int64),
                bytes_fixed=np.array(
                    [*columns.bytes_fixed, *(part.num_bytes for part in self.parts)], np.int64
                ),
                devices=self.question.setting.world_size,
                memory_bytes=(
                    [max(0, cap) for cap in self.question.caps]
                    if capped
                    else [_UNCAPPED] * self.question.setting.world_size
                ),
                least_widths=[*(least_widths or columns.least_widths), *[0] * fixed],
                split_widths=[*(split_widths or [0] * len(columns.dims)), *[0] * fixed],
                pinned=[*[-1] * len(columns.dims), *(part.rank for part in self.parts)],
            )

    def search(self, problem: _core.Problem) -> tuple[Devices, float] | None:
        """The plan that the search finds cheapest and its cost, doubt counted as the options say."""
        options = self.options
        networks, arguments = self._networks(options.doubt_penalty), search_arguments(options)
        with self._refusals():
            if options.algorithm == "auto":
                answer = _core.auto_search(
                    networks,
                    problem,
                    **arguments,
                    seed=options.seed,
                    evaluations=options.max_evaluations,
                )
                if answer.error is not None:
                    raise answer.error
                found = answer.plan
            else:
                found = _core.search(networks, problem, **arguments)
        if found is None:
            return None
        pieces, searched = _core.split_shards(problem, found.column_splits), len(self.tables)
        devices: Devices = [
            [(table, width) for table, _, width in map(pieces.__getitem__, on) if table < searched]
            for on in found.placement
        ]
        return devices, found.cost

    def cost(self, problem: _core.Problem, devices: Devices) -> float:
        """Cost of a plan, doubt counted as in a search."""
        return self._evaluate(problem, devices, self.options.doubt_penalty).cost

    def costs(self, problem: _core.Problem, devices: Devices) -> Costs:
        """Costs of a plan that are expected."""
        plan = self._evaluate(problem, devices, 0.0)
        high = None
        if self.models.has_doubt:
            with_doubt = self._evaluate(problem, devices, 1.0)
            high = [
                sum(parts)
                for parts in zip(
                    with_doubt.compute, with_doubt.forward, with_doubt.backward, strict=True
                )
            ]
        return Costs(plan.cost, plan.compute, plan.forward, plan.backward, high)

    def outside_training(self, devices: Devices, costs: Costs) -> tuple[str, ...]:
        """What of a plan lies far outside of what the cost models were trained on, in words."""
        info = self.models.info
        if info.trained_on is None:
            return ()
        shards = self._with_parts(devices)
        return tuple(
            outside_training(
                info.trained_on,
                TableSet.of(self._all_tables()),
                self.question.setting.samples,
                shards,
                [sum(float(self._sent[t]) * width for t, width in on) for on in shards],
                [a + b for a, b in zip(costs.compute, costs.backward, strict=True)],
                info.devices_per_node,
            )
        )

    def _networks(self, doubt_penalty: float) -> _core.CostNetworks:
        return self.models.networks_for(self.question.setting.samples, doubt_penalty)

    def _evaluate(
        self, problem: _core.Problem, devices: Devices, doubt_penalty: float
    ) -> _core.Plan:
        with self._refusals():
            return _core.evaluate_shards(
                self._networks(doubt_penalty), problem, self._with_parts(devices)
            )

    def _with_parts(self, devices: Devices) -> Devices:
        shards = [list(on) for on in devices]
        for number, part in enumerate(self.parts, start=len(self.tables)):
            shards[part.rank].append((number, part.table.embedding_dim))
        return shards

    def _all_tables(self) -> list[EmbeddingTable]:
        return [*self.tables, *(part.table for part in self.parts)]

    def _all_features(self) -> ShardFeatures:
        kind, setting = self.models.info.feature_kind, self.question.setting
        shared = [*self.tables, *(part.table for part in self.parts if not part.is_local)]
        local = [
            _seen_by_one_rank(part.table, setting.world_size)
            for part in self.parts
            if part.is_local
        ]
        found = [
            shard_features(kind, TableSet.of(tables), batch)
            for tables, batch in ((shared, setting.samples), (local, setting.batch_size))
            if tables
        ]
        return ShardFeatures(
            np.concatenate([features.features for features in found]),
            np.concatenate([features.features_per_column for features in found]),
            found[0].features_per_doubling,
        )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What the engine refuses, such as predictions beyond fp32, as InputError."""
        try:
            yield
        except ValueError as error:
            raise InputError(f"cost models {self.models.info.name!r}: {error}") from error


def _part(question: Question, fixed: FixedShard) -> Part | None:
    """A fixed shard for the cost models; None for one without rows, which costs nothing."""
    table, lookups = question.tables[fixed.table], question.lookups[fixed.table]
    shard = fixed.shard
    if not shard.rows or not shard.columns:
        return None
    is_local = question.choices[fixed.table].layout == "data_parallel"
    # Rows are looked up alike wherever they lie; what is replicated serves the samples of its rank.
    share = 1.0 / question.setting.world_size if is_local else shard.rows / table.rows
    return Part(
        rank=shard.rank,
        table=cost_table(
            table,
            lookups,
            name=f"{table.fqn} on rank {shard.rank} from row {shard.row_offset}, "
            f"column {shard.column_offset}",
            rows=shard.rows,
            columns=shard.columns,
            share=share,
        ),
        sent=0.0 if is_local else sent_width(table, lookups, share),
        num_bytes=fixed.storage.larger,
        is_local=is_local,
    )


def _seen_by_one_rank(table: EmbeddingTable, world_size: int) -> EmbeddingTable:
    """A replicated table with lookups a sample of its own rank instead of one of the global batch."""
    return msgspec.structs.replace(
        table,
        features=tuple(
            Feature(name=feature.name, pooling_factor=feature.pooling_factor * world_size)
            for feature in table.features
        ),
    )


def serves(models: CostModels, ranks: int, batch_size: int, options: SearchOptions) -> bool:
    """Whether ``models`` plan for so many ranks, with ``batch_size`` samples each."""
    low, high = models.info.batch_sizes
    is_known = options.allow_batch_mismatch or low <= ranks * batch_size <= high
    return is_known and ranks in models.device_counts


def _require_serves(models: CostModels, question: Question, options: SearchOptions) -> None:
    setting = question.setting
    models.require_device_count(setting.world_size)
    if options.doubt_penalty and not models.has_doubt:
        raise InputError(
            f"options: doubt_penalty is {options.doubt_penalty:g}, but cost models {models.info.name!r} do "
            "not say how sure they are; leave it 0 or plan with models that do"
        )
    low, high = models.info.batch_sizes
    if not low <= setting.samples <= high and not options.allow_batch_mismatch:
        ranks = setting.world_size
        least, most = -(-low // ranks), high // ranks
        if least > most:
            raise InputError(
                f"batch_size: cost models {models.info.name!r} hold for {low} to {high} samples a step, "
                f"which {ranks} ranks cannot share evenly: take other cost_models, or accept the error with "
                "options=SearchOptions(allow_batch_mismatch=True)"
            )
        raise InputError(
            f"batch_size: {setting.batch_size} samples on each of {ranks} ranks are {setting.samples} a "
            f"step, but cost models {models.info.name!r} hold for {low} to {high} samples a step: take a "
            f"batch_size of {least} to {most} or other cost_models, or accept the "
            "error with options=SearchOptions(allow_batch_mismatch=True)"
        )
