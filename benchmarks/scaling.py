"""How does planning time grow with tables and devices?

Plans 50 to 5,000 tables for 4 to 512 devices with the default search on one thread, fits power laws,
prints them and a table of the times, and draws the times. About two minutes.

Every combination with at least four tables a device is planned; with fewer, hardly any plan keeps the
limits of the grid. Tables are drawn at random from the golden ones. Of the networks only the communication
ones depend on the number of devices, and trained ones end at 128, so random ones of the published sizes are
taken for every number; the compute network is the golden one. A device has twice its share of
all memory, or room for two of the largest table.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import tabulate
import tqdm

from golden_models import GOLDEN, import_golden_models
from neuroshard_fast import Cluster, CostModels, Planner, TableSet, _core, config
from neuroshard_fast.published import read_table_configs

TABLES = (50, 100, 200, 500, 1000, 2000, 5000)
DEVICES = (4, 8, 16, 32, 64, 128, 256, 512)
TABLES_PER_DEVICE = 4
DIMS = (4, 8, 16, 32, 64, 128)
LARGE = 30_000  # tables × devices from which on a fit is made of its own
COMMUNICATION_SIZES = (128, 64, 32, 16)  # hidden layers, docs/cost-models.md
SECONDS = 2.0  # a small problem is planned again until this has passed


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """Median time of a plan, of so many made."""

    tables: int
    devices: int
    repeats: int
    median_ms: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Exponents that describe times best (least squares in logarithms).

    tables, devices: of time ~ tables^a × devices^b. product: of time ~ (tables × devices)^c.
    """

    tables: float
    devices: float
    product: float

    def __str__(self) -> str:
        return (
            f"tables^{self.tables:.2f} × devices^{self.devices:.2f}, "
            f"or (tables × devices)^{self.product:.2f}"
        )


class Report(msgspec.Struct, kw_only=True):
    """Times, and power laws fitted to all of them and to those of large problems."""

    isa: str
    times: list[Time]
    all: Fit
    large: Fit


def random_communication(
    generator: np.random.Generator, name: str, inputs: int, devices: int
) -> dict[str, npt.NDArray[np.float32]]:
    """An untrained network of the published sizes."""
    tensors = {
        f"{name}.feature_mean": np.zeros(inputs, np.float32),
        f"{name}.feature_std": np.full(inputs, 1000.0, np.float32),
    }
    sizes = (inputs, *COMMUNICATION_SIZES, devices)
    for k, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        weight = generator.normal(scale=fan_in**-0.5, size=(fan_out, fan_in))
        tensors[f"{name}.{k}.weight"] = weight.astype(np.float32)
        tensors[f"{name}.{k}.bias"] = np.zeros(fan_out, np.float32)
    return tensors


def cost_models(generator: np.random.Generator) -> CostModels:
    """The golden compute network, random communication networks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.safetensors"
        import_golden_models(path)
        golden = CostModels.load(path)
    tensors = {name: t for name, t in golden.tensors.items() if name.startswith("compute.")}
    for devices in DEVICES:
        tensors |= random_communication(generator, f"forward.{devices}", 2 * devices, devices)
        tensors |= random_communication(generator, f"backward.{devices}", devices, devices)
    return CostModels(msgspec.structs.replace(golden.info, name="scaling"), tensors)


def draw_tables(generator: np.random.Generator, count: int) -> TableSet:
    """Golden tables with random dims."""
    pool = read_table_configs(GOLDEN / "table_configs.json")
    ids = generator.integers(len(pool), size=count)
    dims = generator.choice(DIMS, size=count)
    return TableSet.of(
        [
            pool[int(id_)].with_dim(int(dim), f"table_{index}")
            for index, (id_, dim) in enumerate(zip(ids, dims, strict=True))
        ]
    )


def plan_time(planner: Planner, tables: TableSet, devices: int) -> Time:
    """Time the engine on one problem."""
    sizes = [4 * table.num_embeddings * table.embedding_dim for table in tables]
    memory = 2 * max(sum(sizes) // devices, max(sizes))
    problem = planner.problem(tables, Cluster(world_size=devices, memory_bytes=memory))
    times_ms: list[float] = []
    while sum(times_ms) < SECONDS * 1e3:
        started = time.perf_counter()
        plan = _core.search(
            planner.cost_models.networks_for(planner.cost_models.info.batch_size), problem
        )
        times_ms.append((time.perf_counter() - started) * 1e3)
        if plan is None:
            raise SystemExit(f"{len(tables)} tables on {devices} devices: no plan")
    return Time(
        tables=len(tables),
        devices=devices,
        repeats=len(times_ms),
        median_ms=float(np.median(times_ms)),
    )


def fit(times: list[Time]) -> Fit:
    """Power laws through ``times``."""
    milliseconds = np.log([time.median_ms for time in times])
    tables = np.log([time.tables for time in times])
    devices = np.log([time.devices for time in times])
    ones = np.ones(len(times))
    both = np.linalg.lstsq(np.column_stack([ones, tables, devices]), milliseconds)[0]
    product = np.linalg.lstsq(np.column_stack([ones, tables + devices]), milliseconds)[0]
    return Fit(tables=float(both[1]), devices=float(both[2]), product=float(product[1]))


def format_report(report: Report) -> str:
    """Times by tables (rows) and devices (columns) as a Markdown table."""
    by_size = {
        (time.tables, time.devices): f"{float(f'{time.median_ms:.3g}'):,g}" for time in report.times
    }
    rows = [
        [f"{tables:,}", *(by_size.get((tables, devices), "") for devices in DEVICES)]
        for tables in TABLES
    ]
    header = ("tables", *(f"{devices} devices" for devices in DEVICES))
    return tabulate.tabulate(rows, header, tablefmt="github", disable_numparse=True)


def plot(report: Report, path: Path) -> None:
    """Times over tables × devices, a line for each number of devices."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for devices in DEVICES:
        times = [time for time in report.times if time.devices == devices]
        axes.loglog(
            [time.tables * time.devices for time in times],
            [time.median_ms for time in times],
            marker="o",
            markersize=4,
            label=f"{devices} devices",
        )
    low, high = (bound(t.tables * t.devices for t in report.times) for bound in (min, max))
    center = np.exp(np.mean([np.log(t.median_ms / (t.tables * t.devices)) for t in report.times]))
    axes.loglog([low, high], [center * low, center * high], "k:", label="linear")
    axes.set_xlabel("tables × devices")
    axes.set_ylabel("planning time, ms, one thread")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--plot", type=Path, help="picture of the times")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = np.random.default_rng(args.seed)
    planner = Planner(cost_models(generator))
    sets = {count: draw_tables(generator, count) for count in TABLES}
    sizes = [
        (tables, devices)
        for tables, devices in itertools.product(TABLES, DEVICES)
        if tables >= TABLES_PER_DEVICE * devices
    ]
    times = [
        plan_time(planner, sets[tables], devices)
        for tables, devices in tqdm.tqdm(sizes, leave=False)
    ]
    large = [time for time in times if time.tables * time.devices >= LARGE]
    report = Report(isa=_core.isa(), times=times, all=fit(times), large=fit(large))
    config.save(args.output, report)
    print(format_report(report))
    print(f"\nms, one thread, {report.isa}; grows as {report.all}")
    print(f"from {LARGE:,} tables × devices on as {report.large}")
    if args.plot:
        plot(report, args.plot)


if __name__ == "__main__":
    main()
