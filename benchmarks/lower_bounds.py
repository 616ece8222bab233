"""How far is the lower bound below the best known plan?

Plans tasks of the kind of ``truth.py`` with the automatic search, and bounds the cost of every plan.
Prints a Markdown table. The time of a bound is the least of five.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tabulate import tabulate

import truth
from neuroshard_fast import Cluster, CostModels, Planner, _core, examples
from neuroshard_fast.tables import TableSet
from neuroshard_fast.units import parse_bytes

SETTINGS = (
    ("h100-sim", 8, "80GiB"),
    ("h200-sim", 8, "141GiB"),
    ("a100-sim", 8, "80GiB"),
    ("h100-sim", 16, "80GiB"),
    ("h100-sim", 128, "80GiB"),
    ("cpu-fbgemm", 4, "2GiB"),
)
BATCH_SIZES = {"cpu-fbgemm": 1024}
POOL_SEED = 1002
TASK_SEED = 7
REPEATS = 5


def draw_tasks(
    name: str, count: int, cluster: Cluster, batch_size: int, seed: int
) -> list[TableSet]:
    """As in ``truth.py``; of smaller tables for CPUs."""
    if name != "cpu-fbgemm":
        return truth.draw_tasks(count, cluster, batch_size, "fp32", seed)
    pool = examples.dlrm_like(
        2021, tables=400, max_rows=10**6, batch_size=batch_size, seed=POOL_SEED
    )
    generator = np.random.default_rng(TASK_SEED)
    fewest, most = (times * cluster.world_size for times in truth.TABLES_PER_DEVICE)
    return [examples.draw_task(pool, (fewest, most), truth.DIMS, generator) for _ in range(count)]


def measure(name: str, devices: int, memory: str, count: int, seed: int) -> list[str]:
    """A row of the table."""
    models = CostModels.load(name)
    planner = Planner(models)
    batch_size = BATCH_SIZES.get(name, models.info.batch_size)
    networks = models.networks_for(batch_size)
    cluster = Cluster(world_size=devices, memory_bytes=parse_bytes(memory), batch_size=batch_size)
    tables, gaps, times = [], [], []
    for task in draw_tasks(name, count, cluster, batch_size, seed):
        problem = planner.problem(task, cluster)
        answer = _core.auto_search(networks, problem)
        if answer.plan is None:
            continue
        taken = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            bound = _core.lower_bound(networks, problem, upper=answer.objective)
            taken.append(1e3 * (time.perf_counter() - start))
        tables.append(problem.tables)
        gaps.append(1.0 - bound / answer.objective)
        times.append(min(taken))
    return [
        name,
        str(devices),
        f"{min(tables)} to {max(tables)}",
        str(len(gaps)),
        f"{np.median(gaps):.1%}",
        f"{min(gaps):.1%} to {max(gaps):.1%}",
        f"{np.median(times):.0f} ms",
        f"{max(times):.0f} ms",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tasks", type=int, default=20, help="of each kind, a tenth with 128 devices"
    )
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    rows = [
        measure(
            *setting,
            max(1, arguments.tasks // 10) if setting[1] > 100 else arguments.tasks,
            arguments.seed,
        )
        for setting in SETTINGS
    ]
    headers = [
        "model",
        "devices",
        "tables",
        "tasks",
        "median gap",
        "gaps",
        "median time",
        "longest",
    ]
    print(tabulate(rows, headers, tablefmt="pipe"))


if __name__ == "__main__":
    main()
