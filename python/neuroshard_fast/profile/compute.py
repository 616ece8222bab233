"""Measuring fused lookups for cost models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from neuroshard_fast import published
from neuroshard_fast.checks import MAX_SEED, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_MEMORY_BYTES
from neuroshard_fast.cost_data import COMPUTE_FOLDER, HELD_OUT_FOLDER, labelled
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.backends import check_tables, choose_compute_backend, compute_backend
from neuroshard_fast.profile.environment import measured_info, simulated_info
from neuroshard_fast.profile.host_memory import batch_bytes, check_host_memory, needed_bytes
from neuroshard_fast.profile.log import (
    MAX_ROUNDS,
    MAX_SAMPLES,
    ROUNDS,
    MeasurementLog,
    fill,
    start_folder,
)
from neuroshard_fast.profile.sampling import MOST_TABLES, TABLE_SETS, ComputeSampler, augment
from neuroshard_fast.progress import progress_bar
from neuroshard_fast.published import PublishedTable
from neuroshard_fast.tables import EmbeddingTable, TableSet

MAX_TABLES_A_SAMPLE = 10_000


def profile_compute(
    pool: TableSet,
    folder: str | os.PathLike[str],
    *,
    samples: int,
    batch_size: int,
    memory_bytes: int,
    seed: int = 0,
    rounds: int = ROUNDS,
    backend: str = "auto",
    hardware: str | None = None,
    held_out: bool = False,
    dims: Sequence[int] | None = None,
    most_tables: int = MOST_TABLES,
    label: str = "",
) -> Path:
    """Measure sets of tables of ``pool`` until ``folder``/compute holds ``samples`` samples.

    Returns that folder.

    pool: tables to draw from; each is taken with each of ``dims``, by default 4, 8, 16, … (see
        :func:`neuroshard_fast.profile.sampling.augmented_dims`).
    batch_size: samples of the global batch.
    memory_bytes: the most that the tables of a sample take.
    rounds: of each sample, some time apart.
    backend: "auto", "fbgemm" or "embedding-bag".
    hardware: what to simulate instead of measuring.
    held_out: write to ``folder``/compute_heldout: tables to test cost models on, not to train them.
    most_tables: the most that a sample has.
    label: of the conditions, such as "4096_fp16": the folder is ``folder``/compute-``label``.

    Killed and started again with the same arguments it continues; samples that are there already
    stay, also where fewer are asked for. InputError where the folder holds other data.
    """
    whole_number(samples, "samples", low=1, high=MAX_SAMPLES)
    whole_number(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
    whole_number(memory_bytes, "memory_bytes", low=1, high=MAX_MEMORY_BYTES)
    whole_number(seed, "seed", low=0, high=MAX_SEED)
    whole_number(rounds, "rounds", low=1, high=MAX_ROUNDS)
    if dims is not None and not dims:
        raise InputError("dims: at least one is wanted")
    whole_number(most_tables, "most_tables", low=1, high=MAX_TABLES_A_SAMPLE)
    tables = augment(pool, dims)
    sampler = ComputeSampler(tables, memory_bytes, seed, most_tables)
    path = Path(folder) / labelled(HELD_OUT_FOLDER if held_out else COMPUTE_FOLDER, label)
    data_types = sorted({table.data_type for table in pool})
    # One data type stands in info.json, as it did in earlier versions.
    published_tables = [
        PublishedTable.of(table, batch_size, with_data_type=len(data_types) > 1) for table in tables
    ]
    files = {"table_configs.json": published.encode_table_configs(published_tables)}
    common = {
        "batch_size": batch_size,
        "seed": seed,
        "memory_bytes": memory_bytes,
        "most_tables": most_tables,
        "sampling": TABLE_SETS,
        "data_type": ",".join(data_types),
        "optimizer": ",".join(sorted({table.optimizer for table in pool})),
    }

    drawn: list[tuple[int, ...]] = []

    def draw(total: int) -> None:
        more = range(len(drawn), total)
        with progress_bar(len(more), "sets of tables drawn") as progress:
            for sample in more:
                drawn.append(sampler.draw(sample))
                progress.update()

    def sets() -> Iterator[list[EmbeddingTable]]:
        return ([tables[table] for table in sample] for sample in drawn)

    def write_data(costs: Iterable[float]) -> None:
        published.write_compute_samples(path / "data.txt", zip(drawn, costs, strict=False))

    if hardware is not None:
        from neuroshard_fast.profile.simulated import SimulatedCompute

        simulated = SimulatedCompute(hardware, batch_size)
        draw(samples)
        costs = simulated.measure_many(tables, drawn)
        start_folder(path, simulated_info(simulated.spec.description, **common), files)
        write_data(costs.tolist())
        return path
    name = choose_compute_backend(backend)
    check_tables(name, pool)

    draw(samples)
    check_host_memory(
        needed_bytes(name, sets()) + max(batch_bytes(each, batch_size) for each in sets())
    )
    info = measured_info(name, rounds, **common)
    with contextlib.closing(MeasurementLog(path, info, files)) as log:
        if log.samples() > samples:  # there are more than were asked for
            draw(log.samples())
        measuring = compute_backend(name, batch_size, sets=sets())
        fill(
            log,
            len(drawn),
            lambda sample: [[measuring.measure([tables[table] for table in drawn[sample]])]],
            lambda measured: write_data(cost for ((cost,),) in measured),
            "compute samples",
        )
    return path
