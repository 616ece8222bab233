"""Measuring fused lookups for cost models."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from neuroshard_fast import published
from neuroshard_fast.checks import whole_number
from neuroshard_fast.cost_data import CostDataInfo, table_configs
from neuroshard_fast.profile.backends import choose_compute_backend, compute_backend
from neuroshard_fast.profile.environment import hardware_name, versions
from neuroshard_fast.profile.log import ROUNDS, Measured, MeasurementLog, fill, start_folder
from neuroshard_fast.profile.sampling import ComputeSampler, augment
from neuroshard_fast.tables import TableSet

WARMUP_ITERATIONS = 5
TIMED_ITERATIONS = 10


def profile_compute(
    pool: TableSet,
    folder: str | os.PathLike[str],
    *,
    samples: int,
    batch_size: int,
    memory_bytes: int,
    seed: int = 0,
    backend: str = "auto",
    hardware: str | None = None,
) -> None:
    """Measure sets of tables of ``pool`` until ``folder``/compute holds ``samples`` samples.

    pool: tables to draw from; each is taken with dims 4, 8, … 128.
    batch_size: samples of the global batch.
    memory_bytes: the most that the tables of a sample take.
    backend: "auto", "fbgemm", "embedding-bag" or "simulated"; the last for ``hardware``.

    Killed and started again with the same arguments it continues. InputError where the folder holds
    other data.
    """
    whole_number(samples, "samples", low=1, high=10**9)
    whole_number(batch_size, "batch_size", low=1, high=2**31)
    name = choose_compute_backend(backend, hardware)
    simulated = name == "simulated"
    tables = augment(pool)
    sampler = ComputeSampler(tables, memory_bytes, seed)
    info = CostDataInfo(
        source="simulated" if simulated else "measured",
        backend=name,
        hardware=hardware if simulated and hardware else hardware_name(),
        batch_size=batch_size,
        seed=seed,
        warmup=0 if simulated else WARMUP_ITERATIONS,
        iterations=1 if simulated else TIMED_ITERATIONS,
        rounds=1 if simulated else ROUNDS,
        memory_bytes=memory_bytes,
        data_type=",".join(sorted({table.data_type for table in pool})),
        optimizer=",".join(sorted({table.optimizer for table in pool})),
        versions={} if simulated else versions(name),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    path = Path(folder) / "compute"
    files = {"table_configs.json": table_configs(tables, batch_size)}
    measuring = compute_backend(name, batch_size, memory_bytes=memory_bytes, hardware=hardware)

    def measure(sample: int) -> Measured:
        return [[measuring.measure([tables[table] for table in sampler.draw(sample)])]]

    def write_data(measured: list[Measured]) -> None:
        published.write_compute_samples(
            path / "data.txt",
            [(sampler.draw(sample), cost) for sample, ((cost,),) in enumerate(measured)],
        )

    if simulated:
        start_folder(path, info, files)
        write_data([measure(sample) for sample in range(samples)])
    else:
        fill(MeasurementLog(path, info, files), samples, measure, write_data, "compute samples")
