"""What does collecting statistics cost a training step?

Trains one EmbeddingBagCollection in one process on this machine's CPU, in turns with and without
``TableStats.observe``, and prints how much longer a step takes with it, and what was counted meanwhile.
A minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torchrec.distributed.planner.types import Topology

from neuroshard_fast import config
from neuroshard_fast.profile.environment import hardware_name
from neuroshard_fast.profile.timing import keep_freed_memory
from neuroshard_fast.stamps import installed_versions
from neuroshard_fast.torchrec import NeuroShardPlanner, TableStats
from torchrec_sets import constraints, no_reservation, quiet
from torchrec_steps import DDR_BYTES, GLOBAL_BATCH, Trained, draw_tables, own_batch

BATCHES = 8


class Report(msgspec.Struct, kw_only=True):
    """Times of a step in each turn, ms; of the tables counted least and most, the samples counted."""

    hardware: str
    versions: dict[str, str]
    tables: int
    without_ms: list[float]
    with_ms: list[float]
    counted: tuple[int, int]
    samples: int

    @property
    def share(self) -> float:
        """Of a step, what collecting takes: the median over pairs of turns."""
        pairs = zip(self.with_ms, self.without_ms, strict=True)
        return statistics.median(a / b - 1 for a, b in pairs)


def measure(seed: int, turns: int, steps: int) -> Report:
    """Train in turns of so many steps."""
    tables = draw_tables(seed)
    planner = NeuroShardPlanner(
        topology=Topology(world_size=1, compute_device="cpu", ddr_cap=DDR_BYTES),
        batch_size=GLOBAL_BATCH,
        storage_reservation=no_reservation(),
        constraints=constraints(tables),
    )
    trained = Trained(tables, planner, None)
    stats = TableStats(tables, batch_size=GLOBAL_BATCH)
    batches = [own_batch(tables, 0, 1, [seed, number]) for number in range(BATCHES)]
    for batch in batches:
        trained.step(batch)
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns):
        collects = (turn + turn // 2) % 2 == 1  # neither always comes first
        started = time.perf_counter()
        for step in range(steps):
            if collects:
                stats.observe(batches[step % BATCHES])
            trained.step(batches[step % BATCHES])
        times[collects].append((time.perf_counter() - started) * 1e3 / steps)
    counted = stats.samples_seen().values()
    return Report(
        hardware=hardware_name(),
        versions=installed_versions(("neuroshard-fast", "torch", "torchrec", "fbgemm-gpu-cpu")),
        tables=len(tables),
        without_ms=times[False],
        with_ms=times[True],
        counted=(min(counted), max(counted)),
        samples=turns * steps * GLOBAL_BATCH,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--turns", type=int, default=20, help="with and without, each so many")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, quiet():
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        report = measure(args.seed, args.turns, args.steps)
        dist.destroy_process_group()
    config.save(args.output, report)
    print(
        f"{report.hardware}: {report.tables} tables, batches of {GLOBAL_BATCH}; a step takes "
        f"{statistics.median(report.without_ms):.2f} ms, and {report.share:.2%} more with TableStats, which "
        f"counted {report.counted[0]:,} to {report.counted[1]:,} of {report.samples:,} samples of each table"
    )


if __name__ == "__main__":
    main()
