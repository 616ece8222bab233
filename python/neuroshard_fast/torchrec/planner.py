"""The planner that TorchRec users swap in for ``EmbeddingShardingPlanner``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

import msgspec
import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlanDebugStats,
    ShardingOption,
    Stats,
    StorageReservation,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingPlanner

from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError, NeuroShardError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.torchrec import options as checked
from neuroshard_fast.torchrec.broadcast import plan_for_all, require_ranks
from neuroshard_fast.torchrec.build import describe
from neuroshard_fast.torchrec.constraints import checked_constraints
from neuroshard_fast.torchrec.engine import Engine
from neuroshard_fast.torchrec.errors import planner_error
from neuroshard_fast.torchrec.infeasible import host_overflow, why_none
from neuroshard_fast.torchrec.lookups import Statistics
from neuroshard_fast.torchrec.notes import listed
from neuroshard_fast.torchrec.plan import TorchRecPlan
from neuroshard_fast.torchrec.predict import Prediction, predict_costs
from neuroshard_fast.torchrec.report import format_torchrec_plan
from neuroshard_fast.torchrec.search import find_plan
from neuroshard_fast.torchrec.setting import Setting
from neuroshard_fast.torchrec.sharded import Sharded, sharded_tables
from neuroshard_fast.torchrec.sharding_options import sharding_options
from neuroshard_fast.torchrec.sharding_plan import torchrec_objects
from neuroshard_fast.torchrec.terms import Sharders, Terms

_logger = logging.getLogger(__name__)


class NeuroShardPlanner(ShardingPlanner):  # type: ignore[misc]  # TorchRec has no types
    """Plans the sharding of a model's embedding tables with cost models and a native search.

    The arguments up to ``plan_loader`` are those of ``EmbeddingShardingPlanner``, in its order:

    topology: devices and their memory; of the default process group where None.
    batch_size: samples a rank; times the number of ranks it is the batch of the cost models.
    storage_reservation: called as TorchRec's planner calls it; its default one where None.
    stats: TorchRec's statistics to log for a plan, with TorchRec's estimates; none where None.
    constraints: by table name. A table without them is table-wise or column-wise.
    debug: passed to ``stats``; also, whether the plan is logged as a table (level INFO).
    timeout_seconds: after so long no further alternatives are tried; a search is not interrupted.
    enumerator, proposer, partitioner, performance_model, callbacks, plan_loader: refused.

    cost_models: loaded ones, a shipped name, or a file; by default ``cpu-fbgemm``, which is measured, on
        CPUs, and ``h100-sim``, which is SIMULATED, on GPUs.
    options: of the search.
    table_stats: statistics of real batches: a ``TableStats``, a table set or its file. Without them pooling
        factors come from constraints, and how often rows recur is assumed.
    keep_row_statistics: never cut a table by columns whose optimizer works on whole rows, as row-wise
        Adagrad does: its statistics are of each column shard, so the table would train otherwise.
    uneven_columns: whether column shards of a pooled table may differ in width. TorchRec 1.8 reads no
        ``state_dict`` of ShardedTensors back for those that do.
    one_sharding_type: make whole tables column-wise too, of one shard, in pooled collections that have
        column-wise tables: TorchRec then looks all of them up and exchanges them at once.

    InputError where one of these cannot be used.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        enumerator: object = None,
        storage_reservation: StorageReservation | None = None,
        proposer: object = None,
        partitioner: object = None,
        performance_model: object = None,
        stats: Stats | list[Stats] | None = None,
        constraints: dict[str, ParameterConstraints] | None = None,
        debug: bool = True,
        callbacks: object = None,
        timeout_seconds: float | None = None,
        plan_loader: object = None,
        *,
        cost_models: CostModels | str | os.PathLike[str] | None = None,
        options: SearchOptions | None = None,
        table_stats: object = None,
        keep_row_statistics: bool = False,
        uneven_columns: bool = True,
        one_sharding_type: bool = True,
    ) -> None:
        checked.require_none(
            {
                "enumerator": enumerator,
                "proposer": proposer,
                "partitioner": partitioner,
                "performance_model": performance_model,
                "callbacks": callbacks,
                "plan_loader": plan_loader,
            }
        )
        checked.require_flags(
            {
                "keep_row_statistics": keep_row_statistics,
                "uneven_columns": uneven_columns,
                "one_sharding_type": one_sharding_type,
            }
        )
        topology = checked.checked_topology(topology)
        self._terms = Terms(
            topology=topology,
            setting=Setting.of(topology, checked.checked_batch_size(batch_size)),
            reservation=checked.checked_reservation(storage_reservation),
            constraints=checked_constraints(constraints),
            statistics=Statistics.of(table_stats),
            keep_row_statistics=keep_row_statistics,
            uneven_columns=uneven_columns,
        )
        self._stats = checked.checked_stats(stats)
        self._debug = debug
        self._timeout_seconds = timeout_seconds
        self._seconds = checked.checked_timeout(timeout_seconds)
        self._models = checked.checked_models(cost_models, topology.compute_device)
        self._options = checked.checked_options(options)
        self._one_sharding_type = one_sharding_type
        self._last_plan: TorchRecPlan | None = None

    @property
    def last_plan(self) -> TorchRecPlan | None:
        """The last plan that this planner made or received, with costs and memory; None before, and after an
        error."""
        return self._last_plan

    @property
    def cost_models(self) -> CostModels:
        """What plans are made with."""
        return self._models

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """The plan that the search finds cheapest, of every table of every module that a sharder is for.

        sharders: TorchRec's default ones where None. TorchRec's PlannerError where there is no plan, or
        something is not supported; it names it.
        """
        self._last_plan = None
        try:
            described, plan = self._plan(module, sharders)
        except NeuroShardError as error:
            raise planner_error(error) from error
        self._last_plan = described
        return plan

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Plan on the first rank of ``pg``, the default group where None, for all of its ranks.

        Where that fails, or ranks were given other models, topologies, batch sizes or constraints, every
        rank raises the same PlannerError.
        """
        if pg is None:
            if not dist.is_initialized():
                raise planner_error(
                    InputError("collective_plan: call init_process_group() first, or use plan()")
                )
            pg = dist.distributed_c10d._get_default_group()
        if not isinstance(pg, dist.ProcessGroup):
            raise planner_error(
                InputError(
                    f"pg: a ProcessGroup with this rank is wanted, got a {type(pg).__name__}"
                )
            )
        group = pg
        self._last_plan = None

        def make() -> tuple[TorchRecPlan | None, ShardingPlan]:
            require_ranks(group, self._terms.setting.world_size)
            plan = self.plan(module, sharders)
            return self._last_plan, plan

        described, plan = plan_for_all(group, make, lambda: self._terms.given(module, sharders))
        self._last_plan = described
        return plan

    def predict(
        self,
        module: nn.Module,
        plan: ShardingPlan | TorchRecPlan,
        sharders: Sharders | None = None,
    ) -> Prediction:
        """What the cost models predict for ``plan``, from wherever it is.

        PlannerError where it is none of ``module``, or the cost models do not cover it.
        """
        terms = self._terms
        try:
            tables = terms.find(module, sharders).tables
            return predict_costs(
                sharded_tables(plan, tables, terms.setting),
                [terms.lookups(table) for table in tables],
                terms.setting,
                self._models,
                self._options,
            )
        except NeuroShardError as error:
            raise planner_error(error) from error

    def sharding_options(
        self,
        module: nn.Module,
        plan: ShardingPlan | TorchRecPlan,
        sharders: Sharders | None = None,
    ) -> list[ShardingOption]:
        """``plan``, from wherever it is, with memory and performance as TorchRec's own estimators see them.

        PlannerError where it is none of ``module``.
        """
        terms = self._terms
        try:
            tables = terms.find(module, sharders).tables
            sharded = sharded_tables(plan, tables, terms.setting)
            for table in tables:
                terms.lookups(table)  # TorchRec asserts what is checked here
        except NeuroShardError as error:
            raise planner_error(error) from error
        return sharding_options(
            sharded, terms.topology, terms.setting.batch_size, terms.constraints
        )

    def _plan(
        self, module: nn.Module, sharders: Sharders | None
    ) -> tuple[TorchRecPlan | None, ShardingPlan]:
        started, terms = time.perf_counter(), self._terms
        deadline = time.monotonic() + self._seconds
        sharders = get_default_sharders() if sharders is None else sharders
        found = terms.find(module, sharders)
        if not found.tables:
            if found.excluded:
                _logger.warning("nothing to plan: device groups exclude %s", listed(found.excluded))
            return None, ShardingPlan({})
        question = terms.question(found.tables, module, sharders)
        engine = None
        if terms.setting.world_size > 1:
            engine = Engine(self._models, question, self._options)
        searched = find_plan(question, engine, deadline)
        if searched is None:
            raise why_none(question, terms.asked(found.tables, self._models, self._options))
        described = describe(
            question,
            searched,
            self._models,
            engine,
            excluded=found.excluded,
            notes=found.notes,
            one_sharding_type=self._one_sharding_type,
        )
        if terms.setting.compute_device == "cuda":
            overflow = host_overflow(question, [load.host_bytes for load in described.ranks])
            if overflow is not None:
                raise overflow
        choices = zip(found.tables, question.choices, strict=True)
        carried = {table.fqn: choice.carried for table, choice in choices}
        plan = torchrec_objects(described, terms.setting, lambda table: carried[table.fqn])
        # What TorchRec would check, and more: every table, whole, and such as can be trained.
        sharded = sharded_tables(plan, found.tables, terms.setting)
        seconds = time.perf_counter() - started
        msgspec.structs.force_setattr(described, "planning_ms", seconds * 1e3)
        if self._debug and _logger.isEnabledFor(logging.INFO):
            _logger.info("%s", format_torchrec_plan(described))
        if self._stats:
            self._log_stats(plan, sharded, sharders, seconds)
        return described, plan

    def _log_stats(
        self,
        plan: ShardingPlan,
        sharded: Sequence[Sharded],
        sharders: Sharders,
        seconds: float,
    ) -> None:
        terms, batch_size = self._terms, self._terms.setting.batch_size
        for stats in self._stats:
            try:
                stats.log(
                    sharding_plan=plan,
                    topology=terms.topology,
                    batch_size=batch_size,
                    storage_reservation=terms.reservation,
                    num_proposals=1,
                    num_plans=1,
                    run_time=seconds,
                    best_plan=sharding_options(
                        sharded, terms.topology, batch_size, terms.constraints
                    ),
                    constraints=terms.constraints or None,
                    sharders=list(sharders),
                    enumerator=None,
                    debug=self._debug,
                    debug_stats=PlanDebugStats(
                        planner_type=type(self).__name__, timeout_seconds=self._timeout_seconds
                    ),
                )
            except Exception:  # the plan is made, whatever becomes of its statistics
                _logger.warning("stats: %s was not logged", type(stats).__name__, exc_info=True)
