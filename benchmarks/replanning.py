"""What does a planner save when it plans again?

Plans table sets of three sizes from nothing, after a set in which a tenth of the tables were
others, and after the same set, and prints the median times of the calls, ms, as a Markdown table. "From
nothing" is a new planner with cost models just loaded; "tables alone" is what the compute network
takes for each table alone, the part of a search that does not depend on other tables. Half
of the rows are for tables without reuse histograms. Half a minute on one core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import msgspec
import numpy as np

from neuroshard_fast import (
    Cluster,
    CostModels,
    Planner,
    SearchOptions,
    TableSet,
    _core,
    examples,
    reuse,
)
from neuroshard_fast.planner import SearchOutcome

SIZES = ((50, 4), (200, 16), (1000, 128))
DIMS = (4, 8, 16, 32, 64, 128)
MAX_ROWS = 4_000_000
MEMORY_BYTES = 80 * 2**30
COLUMNS = ("from nothing", "tenth changed", "of it search", "tables alone", "unchanged")
AGAIN = 20  # times that an unchanged problem is planned in a round


def draw(count: int, *, histograms: bool) -> TableSet:
    """Different tables with random dims."""
    generator = np.random.default_rng(0)
    tables = []
    for table in examples.broad(tables=count, max_rows=MAX_ROWS):
        histogram = table.reuse_histogram if histograms else None
        dim = int(generator.choice(DIMS))
        tables.append(msgspec.structs.replace(table, embedding_dim=dim, reuse_histogram=histogram))
    return TableSet.of(tables)


def change(tables: TableSet, number: int) -> TableSet:
    """A tenth of the tables with other rows, for each ``number`` others."""
    return TableSet.of(
        [
            msgspec.structs.replace(table, num_embeddings=MAX_ROWS + number)
            if i % 10 == 0
            else table
            for i, table in enumerate(tables)
        ]
    )


PUBLISHED = SearchOptions(algorithm="neuroshard")
"""Without the improving of "auto", whose time does not depend on what was kept."""


class TimedPlanner(Planner):
    """Knows how long its last search took, ms."""

    search_ms = 0.0

    def search(self, *args: Any, **kwargs: Any) -> SearchOutcome:
        started = time.perf_counter()
        outcome = super().search(*args, **kwargs)
        self.search_ms = (time.perf_counter() - started) * 1e3
        return outcome


def new_planner(cost_models: str) -> TimedPlanner:
    """A planner in a process that has not planned yet."""
    reuse.expected_histogram.cache_clear()
    reuse._zipf_buckets.cache_clear()
    return TimedPlanner(CostModels.load(cost_models))


def measure(cost_models: str, tables: TableSet, cluster: Cluster, rounds: int) -> dict[str, float]:
    """Median of each column of the table."""
    times: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for number in range(rounds):
        other = change(tables, number + 1)
        times["from nothing"].append(
            new_planner(cost_models).plan(other, cluster, PUBLISHED).planning_ms
        )
        planner = new_planner(cost_models)
        planner.plan(tables, cluster, PUBLISHED)
        times["tenth changed"].append(planner.plan(other, cluster, PUBLISHED).planning_ms)
        times["of it search"].append(planner.search_ms)
        for _ in range(AGAIN):
            equal = msgspec.msgpack.decode(msgspec.msgpack.encode(other), type=TableSet)
            times["unchanged"].append(planner.plan(equal, cluster, PUBLISHED).planning_ms)
        problem = planner.problem(other, cluster)
        networks = planner.cost_models.networks_for(planner.cost_models.info.batch_size)
        started = time.perf_counter()
        _core.single_table_compute(networks, problem)
        times["tables alone"].append((time.perf_counter() - started) * 1e3)
    return {column: statistics.median(values) for column, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost-models", default="h100-sim", help="a name or a file")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print("| tables × devices | histograms | " + " | ".join(COLUMNS) + " | gain of unchanged |")
    print("|---" * (len(COLUMNS) + 3) + "|")
    for count, devices in SIZES:
        cluster = Cluster(world_size=devices, memory_bytes=MEMORY_BYTES)
        for histograms in ("measured", "assumed"):
            tables = draw(count, histograms=histograms == "measured")
            times = measure(args.cost_models, tables, cluster, args.rounds)
            print(f"| {count:,} × {devices} | {histograms} ", end="")
            print("".join(f"| {times[column]:.3g} " for column in COLUMNS), end="")
            print(f"| {times['from nothing'] / times['unchanged']:.0f}× |", flush=True)


if __name__ == "__main__":
    main()
