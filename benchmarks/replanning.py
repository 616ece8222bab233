"""What does a planner save when it plans again?

Plans table sets of three sizes from nothing, after a set in which a tenth of the tables were
others, and after the same set, and prints the median ``planning_ms`` of each as a Markdown table. "From
nothing" is a new planner with cost models just loaded. Half of the rows are for tables without
reuse histograms. Half a minute on one core.
"""

from __future__ import annotations

import argparse
import statistics

import msgspec
import numpy as np

from neuroshard_fast import Cluster, CostModels, Planner, TableSet, examples, reuse

SIZES = ((50, 4), (200, 16), (1000, 128))
DIMS = (4, 8, 16, 32, 64, 128)
MAX_ROWS = 4_000_000
MEMORY_BYTES = 80 * 2**30
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


def new_planner(cost_models: str) -> Planner:
    """A planner in a process that has not planned yet."""
    reuse.expected_histogram.cache_clear()
    reuse._zipf_buckets.cache_clear()
    return Planner(CostModels.load(cost_models))


def measure(
    cost_models: str, tables: TableSet, cluster: Cluster, rounds: int
) -> tuple[float, float, float]:
    """Medians of ``planning_ms``: from nothing, after a tenth has changed, unchanged."""
    nothing, changed, again = [], [], []
    for number in range(rounds):
        other = change(tables, number + 1)
        nothing.append(new_planner(cost_models).plan(other, cluster).planning_ms)
        planner = new_planner(cost_models)
        planner.plan(tables, cluster)
        changed.append(planner.plan(other, cluster).planning_ms)
        for _ in range(AGAIN):
            equal = msgspec.msgpack.decode(msgspec.msgpack.encode(other), type=TableSet)
            again.append(planner.plan(equal, cluster).planning_ms)
    return statistics.median(nothing), statistics.median(changed), statistics.median(again)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost-models", default="h100-sim", help="a name or a file")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(
        "| tables × devices | histograms | from nothing, ms | tenth changed, ms | unchanged, ms | gain |"
    )
    print("|---|---|---|---|---|---|")
    for count, devices in SIZES:
        cluster = Cluster(world_size=devices, memory_bytes=MEMORY_BYTES)
        for histograms in (True, False):
            tables = draw(count, histograms=histograms)
            nothing, changed, again = measure(args.cost_models, tables, cluster, args.rounds)
            print(
                f"| {count} × {devices} | {'measured' if histograms else 'assumed'} | {nothing:.2f} "
                f"| {changed:.2f} | {again:.3f} | {nothing / again:.0f}× |"
            )


if __name__ == "__main__":
    main()
