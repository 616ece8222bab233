"""Is NeuroShardPlanner faster than TorchRec's planner, and are its plans cheaper?

Plans MLPerf's DLRM-DCNv2 on 8 and 16 GPUs, and seeded sets of 50 tables on 4, 200 on 8 and 200 on 16, with
``NeuroShardPlanner``, with ``EmbeddingShardingPlanner`` restricted to table- and column-wise sharding, and
with its default, one after the other in one run. Prints planning times, and the cost of each plan under this
project's models (``h100-sim``: SIMULATED) and under TorchRec's own estimator, as Markdown tables.

All get the same module on the meta device, pooling factors, optimizer and memory; TorchRec's statistics are
off. Ours gets reuse histograms too, as TableStats would collect them, where the set has any: TorchRec takes
none. A planner is new for each plan, and its making is part of the time. Several minutes, nearly all of them
TorchRec's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tabulate
import torch
import tqdm
from torchrec.distributed.planner.types import PlannerError, Topology

from neuroshard_fast import TableSet, config, examples, reuse
from neuroshard_fast.profile.environment import hardware_name
from neuroshard_fast.stamps import installed_versions
from neuroshard_fast.torchrec import NeuroShardPlanner
from torchrec_sets import (
    bag_collection,
    constraints,
    described,
    no_reservation,
    quiet,
    sharders,
    torchrec_planner,
)

COST_MODELS = "h100-sim"
GLOBAL_BATCH = 65536
HBM_BYTES = 80 * 2**30
GPUS_A_HOST = 8
DIMS = (16, 32, 64, 128, 256)
MAX_ROWS = 4_000_000
RESTRICTED = ["table_wise", "column_wise"]
OURS, NARROW, DEFAULT = "ours", "TorchRec, table- and column-wise", "TorchRec, default"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned: ``tables`` seeded ones, or MLPerf's where None, on so many GPUs."""

    tables: int | None = None
    devices: int

    def __str__(self) -> str:
        return f"{self.tables or 'DLRM-DCNv2: 26'} × {self.devices}"


SIZES = (
    Size(devices=8),
    Size(devices=16),
    Size(tables=50, devices=4),
    Size(tables=200, devices=8),
    Size(tables=200, devices=16),
)


class Planned(msgspec.Struct, kw_only=True):
    """Plans of one planner; costs are None where there is no plan, or no model that covers it.

    times_s: of each call. types: tables by sharding type.
    model_ms: predicted by our cost models. torchrec_ms: by TorchRec's estimator.
    """

    times_s: list[float]
    types: dict[str, int] = {}
    model_ms: float | None = None
    torchrec_ms: float | None = None
    remark: str = ""


class Result(msgspec.Struct, kw_only=True):
    """One size with every planner."""

    size: str
    planners: dict[str, Planned]


class Report(msgspec.Struct, kw_only=True):
    """Everything that was found, and with what."""

    processor: str
    versions: dict[str, str]
    cost_models: str
    results: list[Result]


def table_set(size: Size, seed: int) -> TableSet:
    """The tables of a size: those of :func:`examples.broad` with random dims."""
    if size.tables is None:
        return examples.mlperf_dlrm_dcnv2()
    generator = np.random.default_rng([seed, size.tables])
    drawn = examples.broad(
        tables=size.tables, batch_size=GLOBAL_BATCH, max_rows=MAX_ROWS, seed=seed
    )
    return TableSet.of(
        [
            msgspec.structs.replace(table, embedding_dim=int(generator.choice(DIMS)))
            for table in drawn
        ]
    )


class Case:
    """A size, ready to be planned by each planner."""

    def __init__(self, size: Size, seed: int) -> None:
        self.tables = table_set(size, seed)
        self.module = bag_collection(self.tables)
        self.sharders = sharders(self.tables)
        self.batch_size = GLOBAL_BATCH // size.devices
        self.topology = Topology(
            world_size=size.devices,
            local_world_size=min(size.devices, GPUS_A_HOST),
            compute_device="cuda",
            hbm_cap=HBM_BYTES,
        )
        self.judge = self.ours()

    def ours(self) -> NeuroShardPlanner:
        """Our planner, as in a process that has not planned yet."""
        reuse.expected_histogram.cache_clear()
        reuse._zipf_buckets.cache_clear()
        return NeuroShardPlanner(
            topology=self.topology,
            batch_size=self.batch_size,
            storage_reservation=no_reservation(),
            constraints=constraints(self.tables),
            cost_models=COST_MODELS,
            table_stats=self.tables,
        )

    def torchrecs(self, sharding_types: list[str] | None) -> Any:
        """TorchRec's planner."""
        return torchrec_planner(
            self.topology, self.batch_size, constraints(self.tables, sharding_types)
        )

    def plan(self, make: Callable[[], Any], repeats: int) -> tuple[Planned, Any, Any]:
        """Plan with planners that ``make`` makes; the last planner and its plan, None where there is none."""
        planned = Planned(times_s=[])
        planner = plan = None
        for _ in range(repeats):
            started = time.perf_counter()
            planner = make()
            try:
                plan = planner.plan(self.module, self.sharders)
            except PlannerError as error:
                planned.remark = str(error).splitlines()[0]
            planned.times_s.append(time.perf_counter() - started)
        if plan is not None:
            planned.types = described(plan)
            try:
                planned.model_ms = self.judge.predict(self.module, plan, self.sharders).cost_ms
            except PlannerError as error:
                planned.remark = f"not covered: {error}"
        return planned, planner, plan

    def rate(self, torchrec: Any, plan: Any) -> float:
        """Cost of ``plan`` as a planner of TorchRec's that has planned for this module rates it, ms."""
        options = self.judge.sharding_options(self.module, plan, self.sharders)
        torchrec._enumerator.populate_estimates(options)
        return float(torchrec._perf_model.rate(options))


def measure(size: Size, seed: int, repeats: int, torchrec_repeats: int, progress: Any) -> Result:
    """Plan with every planner, ours before and after TorchRec's."""
    case = Case(size, seed)
    progress.set_description(f"{size}: {OURS}")
    ours, _, our_plan = case.plan(case.ours, repeats)
    planned = {OURS: ours}
    for name, types in ((NARROW, RESTRICTED), (DEFAULT, None)):
        progress.set_description(f"{size}: {name}")
        planned[name], torchrec, plan = case.plan(partial(case.torchrecs, types), torchrec_repeats)
        if plan is None:
            continue
        own = float(torchrec._perf_model.rate(torchrec._best_plan))
        planned[name].torchrec_ms = own
        if name == NARROW:  # as a check that plans are rated here as TorchRec rates its own
            rated = case.rate(torchrec, plan)
            assert abs(rated / own - 1) < 1e-6, f"{size}: TorchRec rates {own}, here {rated}"
        if our_plan is not None:
            ours.torchrec_ms = case.rate(torchrec, our_plan)
    ours.times_s += case.plan(case.ours, repeats)[0].times_s
    return Result(size=str(size), planners=planned)


def format_times(results: list[Result]) -> str:
    """Medians of planning times, and how many times TorchRec's are ours."""
    rows = []
    for result in results:
        ours = statistics.median(result.planners[OURS].times_s)
        row = [result.size, f"{ours * 1e3:.3g} ms"]
        for name in (NARROW, DEFAULT):
            theirs = statistics.median(result.planners[name].times_s)
            row += [f"{theirs:.3g} s", f"{theirs / ours:,.0f}×"]
        rows.append(row)
    headers = ("tables × devices", OURS, NARROW, "/ ours", DEFAULT, "/ ours")
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def format_costs(results: list[Result]) -> str:
    """Costs of all plans, and their ratios to ours: above 1 where ours is cheaper."""
    rows = []
    for result in results:
        ours = result.planners[OURS]
        for name, planned in result.planners.items():
            rows.append(
                [
                    result.size,
                    name,
                    ", ".join(f"{count} {kind}" for kind, count in planned.types.items())
                    or "no plan",
                    *_cost(planned.model_ms, ours.model_ms),
                    *_cost(planned.torchrec_ms, ours.torchrec_ms),
                    planned.remark,
                ]
            )
    headers = (
        *("tables × devices", "plan of", "tables by type", f"{COST_MODELS} ms", "/ ours"),
        *("TorchRec's estimate, ms", "/ ours", "remark"),
    )
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _cost(cost: float | None, ours: float | None) -> tuple[str, str]:
    if cost is None:
        return "–", "–"
    return f"{cost:.4g}", f"{cost / ours:.3f}" if ours else "–"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument(
        "--repeats", type=int, default=5, help="of our planner, twice for each size"
    )
    parser.add_argument("--torchrec-repeats", type=int, default=3, help="of each of TorchRec's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with quiet(), tqdm.tqdm(SIZES, leave=False) as progress:
        results = [
            measure(size, args.seed, args.repeats, args.torchrec_repeats, progress)
            for size in progress
        ]
    report = Report(
        processor=hardware_name(),
        versions=installed_versions(("neuroshard-fast", "torch", "torchrec")),
        cost_models=COST_MODELS,
        results=results,
    )
    config.save(args.output, report)
    print(f"{report.processor}; medians, one thread\n")
    print(format_times(results))
    print(f"\nPredicted cost a step; {COST_MODELS} is SIMULATED\n")
    print(format_costs(results))


if __name__ == "__main__":
    main()
