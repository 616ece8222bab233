"""Planning: from tables, a cluster and cost models to a sharding plan."""

from __future__ import annotations

import copy
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np

from neuroshard_fast import _core, config
from neuroshard_fast.answers import Answer, Answers, question_key
from neuroshard_fast.checks import shown
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.doubts import outside_training
from neuroshard_fast.errors import InfeasiblePlanError, InputError
from neuroshard_fast.features import (
    output_width,
    shard_features,
)
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.options import SPLITTING, SearchOptions, search_arguments
from neuroshard_fast.plan import DeviceLoad, Shard, ShardingPlan
from neuroshard_fast.replanning import (
    SWEEP,
    Before,
    Replan,
    checked_limit,
    checked_shares,
)
from neuroshard_fast.tables import EmbeddingTable, TableSet
from neuroshard_fast.units import format_bytes

DEFAULT_COST_MODELS = "h100-sim"

_MAX_TOTAL_BYTES = 2**60  # as in csrc/engine/problem.cpp
_MAX_COST_MS = 1e12  # as in plan.py
_LISTED_TABLES = 3


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found.

    placement: shard indices of each device; None where no plan was found.
    result: the plan; None also where a baseline places shards over a memory cap.
    searched: more of what the automatic search found; None for other algorithms.
    """

    column_splits: list[int]
    placement: list[list[int]] | None
    result: _core.Plan | None
    searched: _core.AutoAnswer | None = None


@dataclass(frozen=True)
class Watch:
    """Who looks on while a search runs.

    cancel: stops the search from another thread; the best plan until then is the answer.
    progress: is told the cost of better plans that are found, ms, in the calling thread, at most 20 times a
        second; what it raises ends the search.
    """

    cancel: _core.CancelToken | None = None
    progress: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        if self.cancel is not None and not isinstance(self.cancel, _core.CancelToken):
            raise InputError(f"cancel must be a CancelToken, got {shown(self.cancel)}")
        if self.progress is not None and not callable(self.progress):
            raise InputError(
                f"progress must be a function that takes a cost, got {shown(self.progress)}"
            )


_NOBODY = Watch()


@dataclass(frozen=True)
class _Call:
    """A call of :meth:`Planner.plan` and its answer."""

    tables: TableSet
    cluster: Cluster
    options: SearchOptions
    answer: Answer


class _LastCall(threading.local):
    """The last call in each thread; None where there was none, or it ended in an InputError.

    interrupted: the best plan of a call that an exception ended, such as that of Ctrl-C.
    """

    call: _Call | None = None
    interrupted: ShardingPlan | None = None


class Planner:
    """Plans table sets with one set of cost models; may be used from several threads.

    A planner keeps its last answers, bounded in number and memory (:mod:`neuroshard_fast.answers`):
    asked the same again, tables, cluster and options being equal by value, it answers without a
    search. Where any table differs the search starts from nothing. What stays then are the networks
    as the engine takes them and, for all planners of a process, the assumed histograms of tables
    without a measured one. docs/planning.md has figures.

    cost_models: loaded models, the name of shipped ones, or a file.
    """

    def __init__(self, cost_models: CostModels | str | os.PathLike[str] = DEFAULT_COST_MODELS):
        if not isinstance(cost_models, CostModels):
            cost_models = CostModels.load(cost_models)
        self._cost_models = cost_models
        self._answers = Answers()
        self._last = _LastCall()

    @property
    def cost_models(self) -> CostModels:
        """What the plans are made with; fixed, since the kept answers are theirs."""
        return self._cost_models

    @property
    def interrupted_plan(self) -> ShardingPlan | None:
        """The best plan of this thread's last :meth:`plan`, where an exception ended that, such as the
        KeyboardInterrupt of Ctrl-C or one of ``progress``; None where there is none."""
        return self._last.interrupted

    def plan(
        self,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions | None = None,
        *,
        cancel: _core.CancelToken | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> ShardingPlan:
        """The plan that the search finds cheapest; its ``planning_ms`` is the time of this call.

        cancel: stops algorithm "auto" from another thread within 100 ms; the best plan until then is the
            answer, ``interrupted``.
        progress: algorithm "auto" tells it the cost of better plans, ms, in this thread, at most 20 times a
            second.
        InputError where the cost models do not fit the cluster; InfeasiblePlanError where none is
        found.
        """
        started = time.perf_counter()
        options = SearchOptions() if options is None else options
        self._last.call = self._last.interrupted = None
        watch = Watch(cancel, progress)
        _check_types(tables, cluster, options)
        key = question_key(tables, cluster, options)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answer(tables, cluster, options, watch, started)
            if answer.plan is None or not answer.plan.interrupted:
                self._answers.keep(key, answer)
        self._last.call = _Call(tables, cluster, options, answer)
        if answer.plan is None:
            raise InfeasiblePlanError(answer.why_none)
        # The kept plan is checked already; replace() would check it again, shard by shard.
        plan = copy.copy(answer.plan)
        msgspec.structs.force_setattr(plan, "planning_ms", (time.perf_counter() - started) * 1e3)
        return plan

    def replan(
        self,
        previous: ShardingPlan,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions | None = None,
        *,
        max_moved_bytes: int | None = None,
        lost_devices: Iterable[int] = (),
    ) -> Replan:
        """The cheapest plan found of which no more than ``max_moved_bytes`` go from device to device.

        previous: the plan that the devices hold. Its tables are found by their names: those that ``tables``
            lacks are removed, those that it lacks are new, as are those of another dim; rows, pooling
            factors and all else may have changed.
        lost_devices: devices of ``previous`` that are gone; the others are numbered anew in their order, and
            what else ``cluster`` has is new.
        max_moved_bytes: None is no limit; 0 leaves every shard that survives where it is.
        InputError where the previous plan or the options do not suit; InfeasiblePlanError where none is
        found.
        """
        started = time.perf_counter()
        options, before, limit = self._replan_terms(
            previous, tables, cluster, options, max_moved_bytes, lost_devices
        )
        plan = self._replan(tables, cluster, options, before, limit, started)
        return before.replan_of(plan, limit)

    def replan_curve(
        self,
        previous: ShardingPlan,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions | None = None,
        *,
        shares: Sequence[float] = SWEEP,
        lost_devices: Iterable[int] = (),
    ) -> list[Replan]:
        """What moving more is worth: a plan for each limit, shares of the bytes that survive.

        Limits under which no plan is found are left out; no plan is dearer than one before it.
        """
        options, before, _ = self._replan_terms(
            previous, tables, cluster, options, None, lost_devices
        )
        found: list[Replan] = []
        for share in checked_shares(shares):
            limit = int(share * before.surviving_bytes())
            try:
                plan = self._replan(tables, cluster, options, before, limit, time.perf_counter())
            except InfeasiblePlanError:
                continue
            if found and found[-1].plan.cost_ms < plan.cost_ms:
                plan = found[-1].plan
            found.append(before.replan_of(plan, limit))
        if not found:
            raise InfeasiblePlanError("replan: no plan is found, whatever moves")
        return found

    def _replan_terms(
        self,
        previous: ShardingPlan,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions | None,
        max_moved_bytes: int | None,
        lost_devices: Iterable[int],
    ) -> tuple[SearchOptions, Before, int | None]:
        options = SearchOptions() if options is None else options
        _check_types(tables, cluster, options)
        if options.algorithm != "auto" or options.deadline_ms is not None:
            raise InputError(
                "options: replanning is algorithm 'auto' and takes max_evaluations, no deadline_ms"
            )
        before = Before(previous, tables, cluster, lost_devices)
        return options, before, checked_limit(max_moved_bytes)

    def _replan(
        self,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions,
        before: Before,
        limit: int | None,
        started: float,
    ) -> ShardingPlan:
        problem = self._problem(tables, cluster, options)
        cannot_fit = _what_cannot_fit(tables, cluster, options)
        found = None
        if not cannot_fit:
            with _engine_refusals(f"cost models {self.cost_models.info.name!r}: "):
                found = _core.replan(
                    self._networks(cluster, options.doubt_penalty),
                    problem,
                    before.kept(),
                    most_moved=math.inf if limit is None else limit,
                    max_splits=options.max_splits,
                    seed=options.seed,
                    evaluations=options.max_evaluations,
                )
        plan = None
        if found is not None:
            plan = found[0]
        elif not cannot_fit:
            plan = self._plan_that_moves_little(tables, cluster, options, problem, before, limit)
        if plan is None:
            may_move = "" if limit is None else f", moving {format_bytes(limit)} at most"
            reasons = cannot_fit or ["plan() looks for one from nothing; a higher limit may help"]
            raise InfeasiblePlanError(
                "\n  ".join([f"replan: no plan is found that keeps the memory{may_move}", *reasons])
            )
        if options.doubt_penalty:
            networks = self._networks(cluster)
            plan = _core.evaluate(networks, problem, plan.column_splits, plan.placement)
        self._check_costs(plan)
        described = self._describe(tables, cluster, options, problem, plan, None)
        seconds = time.perf_counter() - started
        msgspec.structs.force_setattr(described, "planning_ms", seconds * 1e3)
        return described

    def _plan_that_moves_little(
        self,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions,
        problem: _core.Problem,
        before: Before,
        limit: int | None,
    ) -> _core.Plan | None:
        """A plan from nothing, if no more moves than may: where memory leaves no way from the plan before."""
        found = self.search(tables, cluster, problem, options).result
        if found is None or limit is None:
            return found
        described = self._describe(tables, cluster, options, problem, found, None)
        return found if before.replan_of(described, limit).moved_bytes <= limit else None

    def capture(self, path: str | os.PathLike[str]) -> None:
        """Write the last call of :meth:`plan` in this thread to ``path``, also an infeasible one.

        The file holds cost models, problem, options and answer, but no names; ``neuroshard-bench``
        plans it again. The answer is that of algorithm "neuroshard", also where "auto" went on from it.
        InputError where there is no such call, where it was one of a baseline, and
        where ``path`` cannot be written.
        """
        call = self._last.call
        if call is None:
            raise InputError("nothing to capture: call plan() first, in the same thread")
        require_capturable(call.options)
        networks = self._networks(call.cluster, call.options.doubt_penalty)
        problem = self._problem(call.tables, call.cluster, call.options)
        plan = call.answer.plan
        found = None
        if call.options.algorithm == "auto":  # the program plans with the published search
            found = _core.search(networks, problem, **search_arguments(call.options))
        elif plan is not None:
            found = _core.evaluate(networks, problem, plan.column_splits, plan.placement)
        captured = _core.write_capture(networks, problem, found, **search_arguments(call.options))
        config.write_atomically(path, captured)

    def problem(
        self, tables: TableSet, cluster: Cluster, options: SearchOptions | None = None
    ) -> _core.Problem:
        """The engine's view of a planning problem; InputError where the cost models do not fit it."""
        options = SearchOptions() if options is None else options
        _check_types(tables, cluster, options)
        return self._problem(tables, cluster, options)

    def _problem(self, tables: TableSet, cluster: Cluster, options: SearchOptions) -> _core.Problem:
        self.cost_models.require_device_count(cluster.world_size)
        batch_size = self._batch_size(cluster)
        self.cost_models.require_batch_size(batch_size, allow_mismatch=options.allow_batch_mismatch)
        memory = [shard_memory(table) for table in tables]
        total = sum(m.of_width(t.embedding_dim) for m, t in zip(memory, tables, strict=True))
        if total > _MAX_TOTAL_BYTES:
            raise InputError(f"tables: {format_bytes(total)} in all is beyond what can be planned")
        if options.doubt_penalty and not self.cost_models.has_doubt:
            raise InputError(
                f"options: doubt_penalty is {options.doubt_penalty:g}, but cost models "
                f"{self.cost_models.info.name!r} do not say how sure they are; leave it 0 or plan with "
                "models that do"
            )
        features = shard_features(self.cost_models.info.feature_kind, tables, batch_size)
        with _engine_refusals():
            return _core.Problem(
                **features._asdict(),
                dims=np.array([table.embedding_dim for table in tables], np.int64),
                output_width=np.array([output_width(table) for table in tables]),
                bytes_per_column=np.array([m.per_column for m in memory], np.int64),
                bytes_fixed=np.array([m.fixed for m in memory], np.int64),
                devices=cluster.world_size,
                memory_bytes=cluster.memory_bytes,
            )

    def _batch_size(self, cluster: Cluster) -> int:
        return cluster.batch_size or self.cost_models.info.batch_size

    def _networks(self, cluster: Cluster, doubt_penalty: float = 0.0) -> _core.CostNetworks:
        return self.cost_models.networks_for(self._batch_size(cluster), doubt_penalty)

    def search(
        self,
        tables: TableSet,
        cluster: Cluster,
        problem: _core.Problem,
        options: SearchOptions,
        watch: Watch = _NOBODY,
        started: float | None = None,
    ) -> SearchOutcome:
        """Run the algorithm of ``options`` on a problem made by :meth:`problem`.

        Costs are those that are expected, also where the search counts doubt as cost.
        started: by ``time.perf_counter()``, of which a deadline counts; now where None.
        """
        with _engine_refusals(f"cost models {self.cost_models.info.name!r}: "):
            if options.algorithm == "auto":
                return self._auto_search(cluster, problem, options, watch, started)
            return self._search(tables, cluster, problem, options)

    def _auto_search(
        self,
        cluster: Cluster,
        problem: _core.Problem,
        options: SearchOptions,
        watch: Watch,
        started: float | None,
    ) -> SearchOutcome:
        seconds = None
        if options.deadline_ms is not None:
            spent = 0.0 if started is None else time.perf_counter() - started
            # The answer is put into words afterwards, which takes about as long as the question took.
            seconds = max(0.0, options.deadline_ms / 1e3 - spent - _telling_seconds(problem))
        searched = _core.auto_search(
            self._networks(cluster, options.doubt_penalty),
            problem,
            **search_arguments(options),
            seed=options.seed,
            evaluations=options.max_evaluations,
            seconds=seconds,
            cancel=watch.cancel,
            progress=watch.progress,
        )
        found = searched.plan
        if found is None:
            return SearchOutcome([], None, None, searched)
        if options.doubt_penalty:
            networks = self._networks(cluster)
            found = _core.evaluate(networks, problem, found.column_splits, found.placement)
        return SearchOutcome(found.column_splits, found.placement, found, searched)

    def _search(
        self, tables: TableSet, cluster: Cluster, problem: _core.Problem, options: SearchOptions
    ) -> SearchOutcome:
        networks = self._networks(cluster)
        if options.algorithm == "neuroshard":
            searched = self._networks(cluster, options.doubt_penalty)
            result = _core.search(searched, problem, **search_arguments(options))
            if result is None:
                return SearchOutcome([], None, None)
            if options.doubt_penalty:
                result = _core.evaluate(networks, problem, result.column_splits, result.placement)
            return SearchOutcome(result.column_splits, result.placement, result)
        if options.algorithm == "random":
            placement = _core.random_placement(problem, options.seed)
        else:
            key = np.array([_BASELINE_KEYS[options.algorithm](table) for table in tables])
            placement = _core.greedy_baseline(problem, key)
        if placement is None:
            return SearchOutcome([], None, None)
        result = _core.evaluate(networks, problem, [], placement)
        feasible = all(map(operator.le, result.memory_bytes, problem.memory_bytes))
        return SearchOutcome([], placement, result if feasible else None)

    def _answer(
        self,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions,
        watch: Watch,
        started: float,
    ) -> Answer:
        problem = self._problem(tables, cluster, options)
        cannot_fit = _what_cannot_fit(tables, cluster, options)
        if cannot_fit:
            return Answer(None, _why_none(tables, cluster, options, cannot_fit))
        outcome = self.search(tables, cluster, problem, options, watch, started)
        plan = None
        if outcome.result is not None:
            self._check_costs(outcome.result)
            plan = self._describe(
                tables, cluster, options, problem, outcome.result, outcome.searched
            )
        if outcome.searched is not None and outcome.searched.error is not None:
            self._last.interrupted = plan
            raise outcome.searched.error
        if plan is None:
            reasons = _what_is_known(outcome.searched) or self._what_else_forbids(
                cluster, problem, options
            )
            return Answer(None, _why_none(tables, cluster, options, reasons))
        return Answer(plan, "")

    def _check_costs(self, found: _core.Plan) -> None:
        costs = np.abs([found.compute, found.forward, found.backward])
        if costs.max() > _MAX_COST_MS:
            raise InputError(
                f"cost models {self.cost_models.info.name!r}: they predict {costs.max():.3g} ms for a "
                f"device of the best plan; more than {_MAX_COST_MS:g} ms is no cost"
            )

    def _what_else_forbids(
        self, cluster: Cluster, problem: _core.Problem, options: SearchOptions
    ) -> list[str]:
        """Where any placement of whole tables fits: what else may have kept the search from a plan.

        InputError where it is the cost models, which have no finite cost for a placement that fits.
        """
        placement = _core.random_placement(problem, 0)
        if placement is None or options.algorithm != "neuroshard":
            return []
        with _engine_refusals(f"cost models {self.cost_models.info.name!r}: "):
            _core.evaluate(self._networks(cluster), problem, [], placement)
        highest = 1.0 if options.grid_steps == 1 else 1.5
        return [
            "a random placement fits: the search keeps the output dims of a device within "
            f"{highest:g} times their mean and places shards in one order, which rules others out"
        ]

    def _describe(
        self,
        tables: TableSet,
        cluster: Cluster,
        options: SearchOptions,
        problem: _core.Problem,
        found: _core.Plan,
        searched: _core.AutoAnswer | None,
    ) -> ShardingPlan:
        column_splits, placement = found.column_splits, found.placement
        pieces = _core.split_shards(problem, column_splits)
        memory = [shard_memory(table) for table in tables]
        names = [table.name for table in tables]
        shards: list[Shard] = []
        devices: list[DeviceLoad] = []
        high = self._high_costs(cluster, problem, found)
        costs = zip(found.compute, found.forward, found.backward, strict=True)
        for device, (indices, parts) in enumerate(zip(placement, costs, strict=True)):
            on_device = [
                Shard(
                    table=names[table],
                    column_offset=offset,
                    width=width,
                    device=device,
                    memory_bytes=memory[table].of_width(width),
                )
                for table, offset, width in (pieces[index] for index in indices)
            ]
            shards.extend(on_device)
            devices.append(
                DeviceLoad(
                    device=device,
                    num_shards=len(on_device),
                    memory_bytes=sum(shard.memory_bytes for shard in on_device),
                    compute_ms=parts[0],
                    forward_comm_ms=parts[1],
                    backward_comm_ms=parts[2],
                    total_ms=sum(parts),
                    high_ms=None if high is None else high[device],
                )
            )
        return ShardingPlan(
            algorithm=options.algorithm,
            cost_models=self.cost_models.info.used(),
            world_size=cluster.world_size,
            memory_cap_bytes=cluster.memory_bytes,
            batch_size=self._batch_size(cluster),
            cost_ms=found.cost,
            high_cost_ms=None if high is None else max(high),
            mean_cost_ms=searched.objective if searched is not None and searched.is_mean else None,
            lower_bound_ms=self._lower_bound(cluster, options, problem, found),
            interrupted=searched is not None and searched.interrupted,
            devices=tuple(devices),
            shards=tuple(shards),
            column_splits=tuple(column_splits),
            placement=tuple(tuple(indices) for indices in placement),
            assumed_histograms=tuple(t.name for t in tables if t.reuse_histogram is None),
            outside_training=self._outside_training(tables, cluster, pieces, found),
            planning_ms=0.0,  # each call that is answered with it has its own
        )

    def _lower_bound(
        self,
        cluster: Cluster,
        options: SearchOptions,
        problem: _core.Problem,
        found: _core.Plan,
    ) -> float | None:
        if not options.lower_bound:
            return None
        bound = _core.lower_bound(
            self._networks(cluster), problem, upper=found.cost, max_splits=options.max_splits
        )
        return bound if math.isfinite(bound) else None

    def _high_costs(
        self, cluster: Cluster, problem: _core.Problem, found: _core.Plan
    ) -> list[float] | None:
        """Total of each device if all of its costs are those that few exceed, ms."""
        if not self.cost_models.has_doubt:
            return None
        with _engine_refusals(f"cost models {self.cost_models.info.name!r}: high costs: "):
            high = _core.evaluate(
                self._networks(cluster, 1.0), problem, found.column_splits, found.placement
            )
        self._check_costs(high)
        return [sum(parts) for parts in zip(high.compute, high.forward, high.backward, strict=True)]

    def _outside_training(
        self,
        tables: TableSet,
        cluster: Cluster,
        pieces: Sequence[tuple[int, int, int]],
        found: _core.Plan,
    ) -> tuple[str, ...]:
        """``pieces``: table, offset and width of each shard."""
        info = self.cost_models.info
        if info.trained_on is None:
            return ()
        devices = [[(pieces[k][0], pieces[k][2]) for k in indices] for indices in found.placement]
        return tuple(
            outside_training(
                info.trained_on,
                tables,
                self._batch_size(cluster),
                devices,
                [sum(w * output_width(tables[t]) for t, w in shards) for shards in devices],
                [a + b for a, b in zip(found.compute, found.backward, strict=True)],
                info.devices_per_node,
            )
        )


def require_capturable(options: SearchOptions) -> None:
    """InputError for the baselines: the engine, which captures are for, only plays a part in them."""
    if options.algorithm not in SPLITTING:
        raise InputError(
            f"only plans of algorithm 'auto' or 'neuroshard' can be captured, not of {options.algorithm!r}"
        )


def _telling_seconds(problem: _core.Problem) -> float:
    """About how long it takes to put a plan into words."""
    return 4e-4 + 8e-6 * problem.tables + 8e-6 * problem.devices


def _what_is_known(searched: _core.AutoAnswer | None) -> list[str]:
    """Why the automatic search found no plan."""
    if searched is None:
        return []
    if searched.impossible:
        return [f"there can be none: {searched.impossible}"]
    if searched.interrupted:
        return ["the search was cancelled before it had found one"]
    return ["that there can be none is not proven: none was found that keeps the memory"]


def _check_types(tables: object, cluster: object, options: object) -> None:
    for value, type_ in ((tables, TableSet), (cluster, Cluster), (options, SearchOptions)):
        if not isinstance(value, type_):
            raise InputError(f"a {type_.__name__} is wanted, got a {type(value).__name__}")


@contextmanager
def _engine_refusals(where: str = "") -> Iterator[None]:
    """What the engine refuses after all checks here, such as predictions beyond fp32, as InputError."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{where}{error}") from error


def _size(table: EmbeddingTable) -> float:
    return float(shard_memory(table).of_width(table.embedding_dim))


def _lookups(table: EmbeddingTable) -> float:
    return table.embedding_dim * table.pooling_factor


_BASELINE_KEYS: dict[str, Callable[[EmbeddingTable], float]] = {
    "size_greedy": _size,
    "dim_greedy": lambda table: float(table.embedding_dim),
    "lookup_greedy": _lookups,
    "size_lookup_greedy": lambda table: _lookups(table) * math.log10(table.num_embeddings),
}
"""What each greedy baseline balances (source: the published NeuroShard baselines)."""


def _what_cannot_fit(tables: TableSet, cluster: Cluster, options: SearchOptions) -> list[str]:
    """Why no plan can keep the memory; empty where one may."""
    cap = cluster.memory_bytes
    asked = sum(shard_memory(table).of_width(table.embedding_dim) for table in tables)
    reasons = []
    if asked > cap * cluster.world_size:
        reasons.append(
            f"the tables are larger than all devices together: {-(-asked // cap)} devices of this "
            f"memory or {format_bytes(-(-asked // cluster.world_size))} a device is the least that could do"
        )
    return reasons + _tables_that_fit_nowhere(tables, cap, options)


def _why_none(
    tables: TableSet, cluster: Cluster, options: SearchOptions, reasons: list[str]
) -> str:
    """That there is no plan, and what is known of why, for people to act on."""
    cap = cluster.memory_bytes
    sizes = {t.name: shard_memory(t).of_width(t.embedding_dim) for t in tables}
    lines = [
        f"algorithm {options.algorithm!r} finds no plan for {cluster.world_size} devices of "
        f"{format_bytes(cap)} each: the tables take {format_bytes(sum(sizes.values()))} of "
        f"{format_bytes(cap * cluster.world_size)} in all",
        *reasons,
    ]
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_LISTED_TABLES]
    lines.append("largest: " + ", ".join(f"{n!r} {format_bytes(s)}" for n, s in largest))
    if options.algorithm in SPLITTING:
        lines.append(
            f"more memory, more devices or more column splits (max_splits is {options.max_splits}) may help"
        )
    else:
        lines.append("this algorithm splits no table; 'auto' does")
    return "\n  ".join(lines)


def _tables_that_fit_nowhere(tables: TableSet, cap: int, options: SearchOptions) -> list[str]:
    """A line for each of the first tables of which no shard fits a device, and one for the others."""
    splits = options.algorithm in SPLITTING
    lines = []
    for table in tables:
        dim = table.embedding_dim
        least = shard_memory(table).of_width(_narrowest_width(dim) if splits else dim)
        if least > cap:
            lines.append(
                f"table {table.name!r} fits on no device even when split as narrow as it can be: "
                f"its smallest shard takes {format_bytes(least)}"
                if splits
                else f"table {table.name!r} fits on no device: it takes {format_bytes(least)}"
            )
    others = len(lines) - _LISTED_TABLES
    if others > 0:
        lines[_LISTED_TABLES:] = [f"{others} more of the tables fit on no device"]
    return lines


def _narrowest_width(dim: int) -> int:
    while dim // 2 % 4 == 0:
        dim //= 2
    return dim
