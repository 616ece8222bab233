"""How long planning takes with shared networks and physical features, against the published kind.

Plans the same tables on the same devices with cost models of the published kind (imported from the
published implementation) and with others, without and with a doubt penalty, in turn; prints median
planning times in ms and their ratios as a Markdown table. A minute or two.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import msgspec
import numpy as np
from tabulate import tabulate

from neuroshard_fast import Cluster, CostModels, Planner, SearchOptions, TableSet
from neuroshard_fast.published import read_table_configs

GOLDEN = Path(__file__).parent.parent / "tests/golden"
PROBLEMS = ((50, 4), (200, 16), (1000, 128))
DIMS = (4, 8, 16, 32, 64, 128)
MEMORY_BYTES = 80 * 2**30


def draw(tables: int, seed: int) -> TableSet:
    """Tables of the public DLRM data with random dims."""
    pool = read_table_configs(GOLDEN / "table_configs.json").table_set(dim=4)
    generator = np.random.default_rng([seed, tables])
    chosen = generator.choice(len(pool), size=tables, replace=tables > len(pool))
    dims = generator.choice(DIMS, size=tables)
    return TableSet.of(
        [
            msgspec.structs.replace(pool[int(k)], name=f"{number}", embedding_dim=int(dim))
            for number, (k, dim) in enumerate(zip(chosen, dims, strict=True))
        ]
    )


def measure(published: CostModels, new: CostModels, rounds: int, seed: int) -> list[list[str]]:
    """A row of the table for each problem."""
    batch_size = published.info.batch_size
    kinds = (
        (published, SearchOptions(algorithm="neuroshard")),
        (new, SearchOptions(algorithm="neuroshard")),
        (new, SearchOptions(algorithm="neuroshard", doubt_penalty=1.0)),
    )
    rows = []
    for tables, devices in PROBLEMS:
        cluster = Cluster(world_size=devices, memory_bytes=MEMORY_BYTES, batch_size=batch_size)
        times: list[list[float]] = [[] for _ in kinds]
        for number in range(rounds):
            problem = draw(tables, seed + number)
            for turn in range(-1, len(kinds)):  # the first is for the caches
                which = (number + turn) % len(kinds)
                models, options = kinds[which]
                planning_ms = Planner(models).plan(problem, cluster, options).planning_ms
                if turn >= 0:
                    times[which].append(planning_ms)
        medians = [statistics.median(kind) for kind in times]
        ratios = [
            statistics.median(own / base for own, base in zip(kind, times[0], strict=True))
            for kind in times[1:]
        ]
        rows.append(
            [
                f"{tables:,} × {devices}",
                *(f"{median:.3g}" for median in medians),
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--published", required=True, help="cost models of the published kind, a file"
    )
    parser.add_argument("--cost-models", default="h100-sim")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    published, new = CostModels.load(args.published), CostModels.load(args.cost_models)
    headers = ["tables × devices", "published, ms", "new, ms", "new with doubt, ms"]
    headers += ["new / published", "with doubt / published"]
    print(tabulate(measure(published, new, args.rounds, args.seed), headers, tablefmt="github"))


if __name__ == "__main__":
    main()
