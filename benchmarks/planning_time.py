"""How long does planning take, here and with others, at sizes that people have?

Plans golden tasks with this project's engine (neuroshard-bench, no Python in the process), through
``Planner.plan``, with the method in plain PyTorch (tests/torch_oracle.py) and with TorchRec's planner,
one after the other in one run, and prints times and their ratios as Markdown tables. The times of the
published planner are figures measured once on a machine of the same kind as docs/performance.md names;
all other figures are of this run. Three minutes; with --full seven.

TorchRec plans by other rules and its plans are not compared here. It gets the same tables and as many
CUDA devices on paper, its own default of 32 GB each, its default proposers and no statistics.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tabulate
import torch
import tqdm

import neuroshard_fast
from golden_models import GOLDEN, import_golden_models
from neuroshard_fast import Cluster, CostModels, Planner, SearchOptions, TableSet, config
from neuroshard_fast.published import read_tasks
from torch_oracle import SearchLimits, TorchOracle, read_golden_case

PUBLISHED = SearchOptions(algorithm="neuroshard")
"""The search that the published code does, too."""

BENCH = Path(sysconfig.get_path("scripts")) / "neuroshard-bench"
GLOBAL_BATCH = 65536


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A golden task, and what plans it.

    line: of the task file, from 0. devices, memory_gib: those of the task unless given.
    published_s: (least, most) seconds of the published planner at about this size.
    """

    tasks: str
    line: int
    devices: int | None = None
    memory_gib: int | None = None
    published_s: tuple[float, float] | None = None
    oracle: bool | None = True  # None: only if asked for
    torchrec: bool = False
    rounds: int = 1
    repeat: int = 15


SIZES = (
    Size(tasks="4_gpu", line=26, published_s=(3.0, 3.0), rounds=3, repeat=101),
    Size(tasks="4_gpu", line=20, published_s=(3.0, 3.0), rounds=3, repeat=101, torchrec=True),
    Size(tasks="16_gpu", line=1, devices=8, memory_gib=32, oracle=False, torchrec=True),
    Size(tasks="16_gpu", line=1, published_s=(22.0, 54.0)),
    Size(tasks="16_gpu", line=0, published_s=(22.0, 54.0)),
    Size(tasks="128_gpu", line=0, published_s=(174.0, 174.0), oracle=None),
)


class Result(msgspec.Struct, kw_only=True):
    """What was measured at one size; a list has an entry for each round.

    engine_ms: medians of neuroshard-bench by number of threads. planner_ms: medians of
    ``Planner.plan``, one thread, each by a new planner, which has no earlier answer to give again.
    engine: what neuroshard-bench reports for one thread.
    """

    tables: int
    devices: int
    cost_ms: float
    published_s: tuple[float, float] | None
    engine_ms: dict[int, list[float]]
    planner_ms: list[float] = []
    oracle_s: list[float] = []
    torchrec_s: list[float] = []
    engine: dict[str, Any] = {}


class Report(msgspec.Struct, kw_only=True):
    """Everything that was measured, and with what."""

    processor: str
    versions: dict[str, str]
    results: list[Result]


class Case:
    """A size, ready to be planned by each planner."""

    def __init__(self, size: Size, cost_models: CostModels, folder: Path) -> None:
        self.size = size
        golden_case = read_golden_case(GOLDEN, size.tasks, size.line)
        task_file = GOLDEN / "tasks" / size.tasks / "data.txt"
        self.shards = golden_case.shards
        self.tables: TableSet = read_tasks(task_file, GOLDEN / "table_configs.json")[size.line]
        memory = size.memory_gib * 2**30 if size.memory_gib else golden_case.memory_bytes
        self.cluster = Cluster(world_size=size.devices or golden_case.devices, memory_bytes=memory)
        self.cost_models = cost_models
        planner = Planner(cost_models)
        self.cost_ms = planner.plan(self.tables, self.cluster, PUBLISHED).cost_ms
        self.capture = folder / "problem.capture"
        planner.capture(self.capture)

    def engine(self, threads: int) -> dict[str, Any]:
        """What neuroshard-bench reports."""
        options = ["--threads", str(threads), "--repeat", str(self.size.repeat)]
        answer = subprocess.run(
            [BENCH, self.capture, *options, "--verify", "--json"], capture_output=True, check=True
        )
        report: dict[str, Any] = json.loads(answer.stdout)
        return report

    def planner_ms(self) -> float:
        """Median of ``Planner.plan``, by a planner that has not planned before."""
        return statistics.median(
            Planner(self.cost_models).plan(self.tables, self.cluster, PUBLISHED).planning_ms
            for _ in range(self.size.repeat)
        )

    def oracle_s(self) -> float:
        """Time of the method in PyTorch, which has to find the same plan."""
        oracle = TorchOracle(
            GOLDEN, self.cluster.world_size, self.cluster.memory_bytes, SearchLimits()
        )
        started = time.perf_counter()
        plan = oracle.search(self.shards)
        seconds = time.perf_counter() - started
        if abs(plan.cost / self.cost_ms - 1) > 1e-4:
            raise SystemExit(f"{self.size}: engine {self.cost_ms} ms, oracle {plan.cost} ms")
        return seconds

    def torchrec_s(self) -> float:
        """Time of TorchRec's planner for the same tables."""
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection

        devices = self.cluster.world_size
        collection = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=f"table {index}",
                    embedding_dim=table.embedding_dim,
                    num_embeddings=table.num_embeddings,
                    feature_names=[f"feature {index}"],
                )
                for index, table in enumerate(self.tables)
            ],
        )
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=devices, compute_device="cuda"),
            batch_size=GLOBAL_BATCH // devices,
            stats=[],
            debug=False,
        )
        started = time.perf_counter()
        planner.plan(collection, [EmbeddingBagCollectionSharder()])
        return time.perf_counter() - started


def measure(case: Case, *, oracle: bool, torchrec: bool, progress: tqdm.tqdm[Any]) -> Result:
    """Plan with everything in turn, round by round, the engine before and after the slow ones."""
    result = Result(
        tables=len(case.tables),
        devices=case.cluster.world_size,
        cost_ms=case.cost_ms,
        published_s=case.size.published_s,
        engine_ms={1: [], 2: []},
    )
    reports: list[dict[str, Any]] = []

    def engine() -> None:
        progress.set_description(f"{result.tables} × {result.devices}: engine")
        reports.append(case.engine(1))
        result.engine_ms[1].append(reports[-1]["median_ms"])
        result.engine_ms[2].append(case.engine(2)["median_ms"])
        result.planner_ms.append(case.planner_ms())

    for _ in range(case.size.rounds):
        engine()
        if oracle:
            progress.set_description(f"{result.tables} × {result.devices}: oracle")
            result.oracle_s.append(case.oracle_s())
        if torchrec:
            progress.set_description(f"{result.tables} × {result.devices}: TorchRec")
            result.torchrec_s.append(case.torchrec_s())
        engine()
    result.engine = sorted(reports, key=lambda report: report["median_ms"])[len(reports) // 2]
    return result


def compare(results: list[Result]) -> str:
    """Times and ratios as a Markdown table."""
    rows = []
    for result in results:
        one, two = (statistics.median(result.engine_ms[threads]) for threads in (1, 2))
        rows.append(
            [
                f"{result.tables} × {result.devices}",
                spread(result.published_s or (), " s"),
                seconds(result.oracle_s),
                seconds(result.torchrec_s),
                f"{one:.3g} ms",
                f"{two:.3g} ms",
                f"{statistics.median(result.planner_ms):.3g} ms",
                spread([s * 1e3 / one for s in result.published_s or ()], "×"),
                ratio(result.oracle_s, one),
                ratio(result.torchrec_s, one),
                f"{one / two:.2f}×",
            ]
        )
    header = (
        "tables × devices",
        "published¹",
        "PyTorch oracle",
        "TorchRec 1.8",
        "engine, 1 thread",
        "2 threads",
        "Planner.plan",
        "published / 1 thread",
        "oracle / 1 thread",
        "TorchRec / 1 thread",
        "1 / 2 threads",
    )
    return tabulate.tabulate(rows, header, tablefmt="github", disable_numparse=True)


def explain(results: list[Result]) -> str:
    """Where the engine's time goes, one thread, as a Markdown table."""
    rows = []
    for result in results:
        engine = result.engine
        rows.append(
            [
                f"{result.tables} × {result.devices}",
                f"{engine['median_ms']:.3g} / {engine['p90_ms']:.3g} / {engine['p99_ms']:.3g}",
                f"{engine['placements']:,}",
                f"{engine['distinct_placements']:,}",
                f"{engine['distinct_sets']:,}",
                f"{engine['distinct_plans']:,}",
                f"{engine['arithmetic_floor_ms']:.3g}",
                f"{engine['stepping_floor_ms']:.3g}",
                f"{engine['times_arithmetic_floor']:.1f}",
                f"{engine['times_both_floors']:.1f}",
                f"{engine['peak_extra_bytes'] / 1e6:.0f} MB",
            ]
        )
    header = (
        "tables × devices",
        "median / p90 / p99, ms",
        "placements",
        "distinct",
        "distinct sets",
        "distinct plans",
        "arithmetic floor, ms",
        "stepping floor, ms",
        "× first",
        "× both",
        "peak extra memory",
    )
    return tabulate.tabulate(rows, header, tablefmt="github", disable_numparse=True)


def spread(values: Sequence[float], unit: str) -> str:
    """The least and the most value, one of them if they are the same."""
    if not values:
        return "–"
    least, most = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values)
    return f"{least}{unit}" if least == most else f"{least} to {most}{unit}"


def seconds(times_s: list[float]) -> str:
    return f"{statistics.median(times_s):.3g} s" if times_s else "–"


def ratio(times_s: list[float], engine_ms: float) -> str:
    return f"{statistics.median(times_s) * 1e3 / engine_ms:,.0f}×" if times_s else "–"


def processor() -> str:
    """The processor's model name and the number of cores to use."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Of what was compared."""
    found = {"python": platform.python_version(), "neuroshard-fast": neuroshard_fast.__version__}
    for package in ("torch", "torchrec"):
        if importlib.util.find_spec(package):
            found[package] = importlib.metadata.version(package)
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument(
        "--full", action="store_true", help="also the oracle at 1,000 × 128: some minutes"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    has_torchrec = importlib.util.find_spec("torchrec") is not None
    if not has_torchrec:
        print("TorchRec is not installed (docs/performance.md says how): its column stays empty")
    logging.disable(logging.WARNING)  # TorchRec warns of much that does not matter on paper
    warnings.simplefilter("ignore")

    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models.safetensors"
        with contextlib.redirect_stdout(sys.stderr):
            import_golden_models(models)
        cost_models = CostModels.load(models)
        results = []
        with tqdm.tqdm(SIZES, leave=False) as progress:
            for size in progress:
                case = Case(size, cost_models, Path(folder))
                results.append(
                    measure(
                        case,
                        oracle=args.full if size.oracle is None else size.oracle,
                        torchrec=size.torchrec and has_torchrec,
                        progress=progress,
                    )
                )
    report = Report(processor=processor(), versions=versions(), results=results)
    config.save(args.output, report)
    print(f"{report.processor}; one thread where nothing else is said\n")
    print(compare(results))
    print("\n¹ measured once before, not in this run: docs/performance.md says where\n")
    print(explain(results))


if __name__ == "__main__":
    main()
