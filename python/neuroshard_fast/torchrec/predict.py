"""What cost models predict for a plan from wherever it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.torchrec.constraints import Choice, Layout
from neuroshard_fast.torchrec.engine import Engine
from neuroshard_fast.torchrec.lookups import TableLookups
from neuroshard_fast.torchrec.question import Columns, Devices, FixedShard, Question, ShardAt
from neuroshard_fast.torchrec.setting import Setting
from neuroshard_fast.torchrec.sharded import COLUMN_TYPES, Sharded
from neuroshard_fast.torchrec.storage import ColumnStorage, Line, ShardStorage

_COVERED_KERNELS = ("fused", "dense")
_NO_STORAGE = ShardStorage(0, 0, 0)
_NO_LINES = ColumnStorage(Line(0.0, 0.0), Line(0.0, 0.0), Line(0.0, 0.0))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted costs of a plan, ms; the tuples have an entry for each rank.

    cost_ms: the largest total. high_ms: totals if each part costs what nine of ten stay below; None where the
    cost models do not say.
    outside_training: what lies far outside of what the cost models were trained on, in words.
    """

    cost_ms: float
    compute_ms: tuple[float, ...]
    forward_comm_ms: tuple[float, ...]
    backward_comm_ms: tuple[float, ...]
    total_ms: tuple[float, ...]
    high_ms: tuple[float, ...] | None
    outside_training: tuple[str, ...]


def predict_costs(
    sharded: Sequence[Sharded],
    lookups: Sequence[TableLookups],
    setting: Setting,
    models: CostModels,
    options: SearchOptions,
) -> Prediction:
    """Costs of tables sharded like this; InputError where cost models do not cover it.

    Shards of rows count as tables of fewer rows and lookups, as in plans made here.
    """
    if not sharded:
        raise InputError("plan: it has no tables to predict costs for")
    question, devices = _question(sharded, lookups, setting)
    engine = Engine(models, question, options)
    costs = engine.costs(engine.problem(capped=False), devices)
    totals = tuple(
        sum(parts) for parts in zip(costs.compute, costs.forward, costs.backward, strict=True)
    )
    return Prediction(
        cost_ms=costs.total,
        compute_ms=tuple(costs.compute),
        forward_comm_ms=tuple(costs.forward),
        backward_comm_ms=tuple(costs.backward),
        total_ms=totals,
        high_ms=None if costs.high is None else tuple(costs.high),
        outside_training=engine.outside_training(devices, costs),
    )


def _question(
    sharded: Sequence[Sharded], lookups: Sequence[TableLookups], setting: Setting
) -> tuple[Question, Devices]:
    """A question that the plan answers, of tables without memory, and its answer."""
    devices: Devices = [[] for _ in range(setting.world_size)]
    free: list[int] = []
    fixed: list[FixedShard] = []
    for number, entry in enumerate(sharded):
        if entry.compute_kernel not in _COVERED_KERNELS:
            raise InputError(
                f"plan: table {entry.table.fqn!r}: cost models do not cover kernel {entry.compute_kernel}"
            )
        if entry.sharding_type in COLUMN_TYPES:
            for shard in entry.shards:
                devices[shard.rank].append((len(free), shard.columns))
            free.append(number)
        else:
            fixed += [
                FixedShard(number, _sized(shard, entry), _NO_STORAGE) for shard in entry.shards
            ]
    tables = [entry.table for entry in sharded]
    dims = [tables[number].dim for number in free]
    zeros = [0] * len(free)
    columns = Columns(dims, zeros, zeros, zeros, [-1] * len(free), [False] * len(free))
    question = Question(
        tables=tables,
        choices=[_choice(entry) for entry in sharded],
        lookups=list(lookups),
        setting=setting,
        caps=[0] * setting.world_size,
        host_caps=[0] * setting.world_size,
        free=free,
        columns=columns,
        storage=[_NO_LINES] * len(free),
        fixed=fixed,
    )
    return question, devices


def _sized(shard: ShardAt, entry: Sharded) -> ShardAt:
    """The shard, with the size of the table where it is replicated: TorchRec's plans do not say it."""
    if entry.sharding_type != "data_parallel":
        return shard
    return shard._replace(rows=entry.table.rows, columns=entry.table.dim)


def _choice(entry: Sharded) -> Choice:
    layout: Layout = "row_wise"
    if entry.sharding_type in COLUMN_TYPES:
        layout = "columns"
    elif entry.sharding_type == "data_parallel":
        layout = "data_parallel"
    return Choice(
        layout=layout,
        whole_type=entry.sharding_type,
        column_type=None,
        may_split=False,
        kernel=entry.compute_kernel,
        least_width=4,
        whole_is_columns=False,
        carried=entry.carried,
    )
