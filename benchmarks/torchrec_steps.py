"""Are training steps faster with plans of NeuroShardPlanner than with those of TorchRec's planner?

Trains one EmbeddingBagCollection sharded both ways, in the same gloo processes on this machine's CPU, in
turns of a few steps, for seeded models of tables that TorchRec's default planner and ours see alike: the same
pooling factors and memory; ours gets reuse histograms too, as TableStats would collect them. There is nothing
in a step but the tables: lookups, exchange and fused SGD, forward and backward. Prints median times of a step
and their ratios as a Markdown table, above 1 where ours is faster. Several minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tabulate
import torch
import torch.distributed as dist
import tqdm
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import PlannerError, Topology
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_fast import TableSet, config, examples
from neuroshard_fast.profile.environment import hardware_name
from neuroshard_fast.profile.timing import keep_freed_memory
from neuroshard_fast.reuse import draw_indices
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

OURS, TORCHREC = "neuroshard", "torchrec"
PLANNERS = (OURS, TORCHREC)
WORLD_SIZES = (2, 4)
GLOBAL_BATCH = 1024
TABLES = (15, 40)
DIMS = (16, 32, 64, 128)
MAX_ROWS = 500_000
DDR_BYTES = 4 * 2**30
POOL_SEED = 2000  # the shipped models are trained and tested on pools of seeds up to 15
BATCHES = 4
WARMUP_STEPS = 3


class PlanTimes(msgspec.Struct, kw_only=True):
    """Steps with one plan.

    types: tables by sharding type. predicted_ms: by our cost models; None where they do not cover it.
    steps_ms: mean ms of a step in each turn, that of the slowest rank.
    """

    types: dict[str, int]
    predicted_ms: float | None
    steps_ms: list[float] = []


class ModelTimes(msgspec.Struct, kw_only=True):
    """One model on so many processes, with each planner's plan."""

    seed: int
    world_size: int
    tables: int
    weight_bytes: int
    plans: dict[str, PlanTimes]

    def ratios(self) -> list[float]:
        """TorchRec's time over ours, turn by turn."""
        return [
            theirs / ours
            for ours, theirs in zip(
                self.plans[OURS].steps_ms, self.plans[TORCHREC].steps_ms, strict=True
            )
        ]


class Report(msgspec.Struct, kw_only=True):
    """Everything that was measured, and with what."""

    hardware: str
    versions: dict[str, str]
    batch_size: int
    steps_a_turn: int
    models: list[ModelTimes]


def draw_tables(seed: int) -> TableSet:
    """The tables of a model: different ones of a pool with the totals of Meta's public data."""
    pool = examples.dlrm_like(2021, batch_size=GLOBAL_BATCH, max_rows=MAX_ROWS, seed=POOL_SEED)
    return examples.draw_task(pool, TABLES, DIMS, np.random.default_rng(seed))


def own_batch(tables: TableSet, rank: int, world_size: int, seed: list[int]) -> KeyedJaggedTensor:
    """A rank's part of a batch in which every table has its lookups and its reuse."""
    generator = np.random.default_rng(seed)  # the same on every rank, which each take a part
    samples = GLOBAL_BATCH // world_size
    keys, values, lengths = [], [], []
    for table in tables:
        (feature,) = table.features
        count = round(feature.pooling_factor * GLOBAL_BATCH)
        rows = draw_indices(table.num_embeddings, count, table.histogram(GLOBAL_BATCH), generator)
        length = generator.multinomial(count, np.full(GLOBAL_BATCH, 1 / GLOBAL_BATCH))
        ends = np.append(0, np.cumsum(length))
        first, last = rank * samples, (rank + 1) * samples
        keys.append(feature.name)
        values.append(rows[ends[first] : ends[last]])
        lengths.append(length[first:last])
    return KeyedJaggedTensor.from_lengths_sync(
        keys=keys,
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
    )


class Trained:
    """A model sharded by one planner, ready to make steps."""

    def __init__(self, tables: TableSet, planner: Any, judge: NeuroShardPlanner | None) -> None:
        module, of_tables = bag_collection(tables), sharders(tables)
        plan = planner.collective_plan(module, of_tables, dist.group.WORLD)
        prediction = None
        try:
            if judge is not None:
                prediction = judge.predict(module, plan, of_tables).cost_ms
        except PlannerError as error:
            print(f"not predicted: {error}", file=sys.stderr)
        self.times = PlanTimes(types=described(plan), predicted_ms=prediction)
        self.module = DistributedModelParallel(
            module, plan=plan, sharders=of_tables, device=torch.device("cpu")
        )
        # What is replicated has no fused optimizer.
        replicated = dict(in_backward_optimizer_filter(self.module.named_parameters()))
        self._gradient: torch.Tensor | None = None
        self._optimizer = torch.optim.SGD(replicated.values(), lr=0.01) if replicated else None

    def step(self, batch: KeyedJaggedTensor) -> None:
        vectors = self.module(batch).values()
        if self._gradient is None:
            self._gradient = torch.full_like(vectors, 1e-3)
        vectors.backward(self._gradient)
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()

    def turn(self, batches: list[KeyedJaggedTensor], steps: int) -> float:
        """Mean ms of a step, that of the slowest rank."""
        dist.barrier()
        started = time.perf_counter()
        for number in range(steps):
            self.step(batches[number % len(batches)])
        milliseconds = torch.tensor((time.perf_counter() - started) * 1e3 / steps)
        dist.all_reduce(milliseconds, dist.ReduceOp.MAX)
        return float(milliseconds)


def measure(seed: int, turns: int, steps: int) -> ModelTimes:
    """One model with both plans, in turns; which one begins alternates."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tables = draw_tables(seed)
    topology = Topology(world_size=world_size, compute_device="cpu", ddr_cap=DDR_BYTES)
    batch_size = GLOBAL_BATCH // world_size
    ours = NeuroShardPlanner(
        topology=topology,
        batch_size=batch_size,
        storage_reservation=no_reservation(),
        constraints=constraints(tables),
        table_stats=tables,
    )
    planners = {OURS: ours, TORCHREC: torchrec_planner(topology, batch_size, constraints(tables))}
    trained = {name: Trained(tables, planners[name], ours) for name in PLANNERS}
    batches = [own_batch(tables, rank, world_size, [seed, number]) for number in range(BATCHES)]
    for name in PLANNERS:
        trained[name].turn(batches, WARMUP_STEPS)
    for turn in range(turns):
        for name in PLANNERS[:: 1 if turn % 2 == 0 else -1]:
            trained[name].times.steps_ms.append(trained[name].turn(batches, steps))
    return ModelTimes(
        seed=seed,
        world_size=world_size,
        tables=len(tables),
        weight_bytes=sum(4 * table.num_embeddings * table.embedding_dim for table in tables),
        plans={name: trained[name].times for name in PLANNERS},
    )


def work(args: argparse.Namespace) -> None:
    """Be one of the processes; the first writes what was measured."""
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.store}",
        rank=args.rank,
        world_size=args.world_size,
        timeout=timedelta(minutes=10),
    )
    models = []
    with quiet():
        for seed in tqdm.tqdm(range(args.models), leave=False, disable=args.rank != 0):
            models.append(measure(seed, args.turns, args.steps))
    if args.rank == 0:
        config.save(args.output, models)
    dist.destroy_process_group()


def run(world_size: int, args: argparse.Namespace) -> list[ModelTimes]:
    """Start the processes and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "models.json"
        command = [sys.executable, __file__, "-o", str(result), "--store", f"{folder}/store"]
        command += ["--world-size", str(world_size), "--models", str(args.models)]
        command += ["--turns", str(args.turns), "--steps", str(args.steps)]
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(world_size)
        ]
        try:
            if any(process.wait() for process in processes):
                raise SystemExit("a process failed: see above")
        finally:
            for process in processes:
                process.kill()
        return config.load(result, list[ModelTimes])


def format_report(report: Report) -> str:
    """A Markdown table: a row for each model, and one for all of a number of processes."""
    rows = []
    for world_size in sorted({model.world_size for model in report.models}):
        models = [model for model in report.models if model.world_size == world_size]
        for model in models:
            low, middle, high = np.quantile(model.ratios(), (0.25, 0.5, 0.75))
            ours, theirs = (model.plans[name] for name in PLANNERS)
            rows.append(
                [
                    world_size,
                    model.seed,
                    model.tables,
                    f"{model.weight_bytes / 2**30:.2f}",
                    _types(ours),
                    _types(theirs),
                    f"{statistics.median(ours.steps_ms):.2f}",
                    f"{statistics.median(theirs.steps_ms):.2f}",
                    f"{middle:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    _predicted_ratio(ours, theirs),
                ]
            )
        medians = [float(np.median(model.ratios())) for model in models]
        geometric = statistics.geometric_mean(medians)
        spread = f"{min(medians):.3f} to {max(medians):.3f}"
        won = f"ours faster: {sum(ratio > 1 for ratio in medians)} of {len(medians)}"
        rows.append([world_size, "all", "", "", won, "", "", "", f"{geometric:.3f}", spread, ""])
    headers = (
        *("processes", "seed", "tables", "GiB", "our plan", "TorchRec's plan", "ours, ms"),
        *("TorchRec's, ms", "median ratio", "quartiles, or range", "predicted ratio"),
    )
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _types(times: PlanTimes) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in times.types.items())


def _predicted_ratio(ours: PlanTimes, theirs: PlanTimes) -> str:
    if ours.predicted_ms is None or theirs.predicted_ms is None:
        return "–"
    return f"{theirs.predicted_ms / ours.predicted_ms:.3f}"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--models", type=int, default=8, help="seeds from 0 on")
    parser.add_argument("--turns", type=int, default=15, help="of each plan")
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    # Of one process:
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        work(args)
        return
    report = Report(
        hardware=hardware_name(),
        versions=installed_versions(("neuroshard-fast", "torch", "torchrec", "fbgemm-gpu-cpu")),
        batch_size=GLOBAL_BATCH,
        steps_a_turn=args.steps,
        models=[model for world_size in WORLD_SIZES for model in run(world_size, args)],
    )
    config.save(args.output, report)
    print(f"{report.hardware}, one thread a process, batch {GLOBAL_BATCH} of all processes\n")
    print(format_report(report))


if __name__ == "__main__":
    main()
