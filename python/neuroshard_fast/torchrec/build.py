"""From a plan that was found to the plan that users see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.torchrec.engine import Engine
from neuroshard_fast.torchrec.notes import plan_notes
from neuroshard_fast.torchrec.plan import RankLoad, TablePlan, TableShard, TorchRecPlan
from neuroshard_fast.torchrec.question import Question
from neuroshard_fast.torchrec.search import Found

_Places = list[tuple[int, int]]  # of a table: rank and columns of each shard


def describe(
    question: Question,
    found: Found,
    models: CostModels,
    engine: Engine | None,
    *,
    excluded: Sequence[str],
    notes: Sequence[str],
    one_sharding_type: bool,
) -> TorchRecPlan:
    """The plan in full; ``planning_ms`` is 0, for the caller to fill in.

    notes: sentences that are known already.
    one_sharding_type: whether whole tables of a pooled collection that has column-wise ones become
        column-wise as well, of one shard.
    """
    tables = _tables(question, found, one_sharding_type)
    setting = question.setting
    outside = (
        engine.outside_training(found.devices, found.costs)
        if engine is not None and found.costs is not None and engine.has_tables
        else ()
    )
    looked_up = list(zip(question.tables, question.lookups, strict=True))
    return TorchRecPlan(
        cost_models=models.info.used(),
        compute_device=setting.compute_device,
        world_size=setting.world_size,
        local_world_size=setting.local_world_size,
        batch_size=setting.batch_size,
        memory_kind=setting.memory_kind,
        cost_ms=None if found.costs is None else found.costs.total,
        ranks=tuple(_ranks(question, tables, found)),
        tables=tuple(tables),
        excluded=tuple(excluded),
        assumed_histograms=tuple(t.fqn for t, looked in looked_up if looked.histogram is None),
        assumed_pooling=tuple(t.fqn for t, looked in looked_up if looked.factors_assumed),
        notes=(
            *notes,
            *([found.note] if found.note is not None else []),
            *plan_notes(question, tables),
        ),
        outside_training=outside,
        planning_ms=0.0,
    )


def _tables(question: Question, found: Found, one_sharding_type: bool) -> list[TablePlan]:
    places: list[_Places] = [[] for _ in question.free]
    for rank, shards in enumerate(found.devices):
        for number, width in shards:
            places[number].append((rank, width))
    cut_modules = {
        question.tables[number].path
        for number, shards in zip(question.free, places, strict=True)
        if one_sharding_type and question.tables[number].kind == "bags" and len(shards) > 1
    }
    shards_of: dict[int, tuple[str, tuple[TableShard, ...]]] = {}
    for index, number in enumerate(question.free):
        choice = question.choices[number]
        type_ = choice.whole_type
        is_cut = len(places[index]) > 1 or question.tables[number].path in cut_modules
        if is_cut and choice.column_type is not None:
            type_ = choice.column_type
        shards_of[number] = type_, tuple(_column_shards(question, index, places[index]))
    for fixed in question.fixed:
        storage, (rank, row, column, rows, columns) = fixed.storage, fixed.shard
        shard = TableShard(
            rank=rank,
            row_offset=row,
            column_offset=column,
            rows=rows,
            columns=columns,
            estimated_bytes=storage.estimate,
            training_bytes=storage.training,
            host_bytes=storage.host,
        )
        type_, before = shards_of.get(fixed.table, (question.choices[fixed.table].whole_type, ()))
        shards_of[fixed.table] = type_, (*before, shard)
    return [
        TablePlan(
            module=table.path,
            name=table.name,
            rows=table.rows,
            dim=table.dim,
            data_type=table.data_type,
            kind=table.kind,
            sharding_type=shards_of[number][0],
            compute_kernel=choice.kernel,
            shards=shards_of[number][1],
            carried=choice.carried.plain(),
            not_saved=choice.carried.objects(),
        )
        for number, (table, choice) in enumerate(
            zip(question.tables, question.choices, strict=True)
        )
    ]


def _column_shards(question: Question, index: int, places: _Places) -> Iterator[TableShard]:
    """Shards of a searched table: columns are all alike, so the first rank gets the first ones."""
    rows, offset = question.tables[question.free[index]].rows, 0
    for rank, width in places:
        storage = question.storage[index].at(width)
        yield TableShard(
            rank=rank,
            row_offset=0,
            column_offset=offset,
            rows=rows,
            columns=width,
            estimated_bytes=storage.estimate,
            training_bytes=storage.training,
            host_bytes=storage.host,
        )
        offset += width


def _ranks(question: Question, tables: Sequence[TablePlan], found: Found) -> Iterator[RankLoad]:
    world_size, costs = question.setting.world_size, found.costs
    held = [[0, 0, 0, 0] for _ in range(world_size)]
    for table in tables:
        for shard in table.shards:
            of_rank = held[shard.rank]
            of_rank[0] += 1
            of_rank[1] += shard.estimated_bytes
            of_rank[2] += shard.training_bytes
            of_rank[3] += shard.host_bytes
    for rank, (count, estimated, training, host) in enumerate(held):
        parts = (
            (None, None, None)
            if costs is None
            else (costs.compute[rank], costs.forward[rank], costs.backward[rank])
        )
        yield RankLoad(
            rank=rank,
            num_shards=count,
            estimated_bytes=estimated,
            training_bytes=training,
            cap_bytes=question.caps[rank],
            host_bytes=host,
            compute_ms=parts[0],
            forward_comm_ms=parts[1],
            backward_comm_ms=parts[2],
            total_ms=None if costs is None else sum(part or 0.0 for part in parts),
            high_ms=None if costs is None or costs.high is None else costs.high[rank],
        )
