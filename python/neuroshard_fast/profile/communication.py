"""Measuring all-to-alls for cost models.

Run as a module under torchrun this is one of the measuring processes; its argument is a
:class:`CommunicationJob` as JSON.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from neuroshard_fast import config, published
from neuroshard_fast.checks import MAX_SEED, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES
from neuroshard_fast.cost_data import CostDataInfo, communication_folder, labelled
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.backends import check_torch
from neuroshard_fast.profile.environment import measured_info, simulated_info
from neuroshard_fast.profile.log import (
    MAX_ROUNDS,
    MAX_SAMPLES,
    ROUNDS,
    Measured,
    MeasurementLog,
    fill,
    start_folder,
)
from neuroshard_fast.profile.sampling import ALL_TO_ALLS, AllToAll, draw_all_to_all

if TYPE_CHECKING:
    import torch

_STOP = -1


class CommunicationJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the measuring processes do: fill ``folder`` up to ``samples`` samples at least.

    is_shared: whether the process that starts them shares its log of the folder.
    """

    folder: str
    info: CostDataInfo
    samples: int
    is_shared: bool


def profile_communication(
    folder: str | os.PathLike[str],
    *,
    devices: int,
    samples: int,
    batch_size: int,
    seed: int = 0,
    rounds: int = ROUNDS,
    hardware: str | None = None,
    label: str = "",
) -> Path | None:
    """Measure all-to-alls between ``devices`` until ``folder``/comm_``devices`` holds ``samples``.

    Returns that folder; None in a process of torchrun that is not the first, and may not see it.

    batch_size: samples of the global batch.
    rounds: of each sample, some time apart.
    hardware: what to simulate instead of measuring.
    label: of the conditions; the folder is ``folder``/comm_``devices``-``label``.

    Starts one process a device on this machine, unless torchrun has started this process as one of
    them. Killed and started again with the same arguments it continues; samples that are there
    already stay, also where fewer are asked for. InputError where the folder holds other data.
    """
    whole_number(devices, "devices", low=2, high=MAX_DEVICES)
    whole_number(samples, "samples", low=1, high=MAX_SAMPLES)
    whole_number(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
    whole_number(seed, "seed", low=0, high=MAX_SEED)
    whole_number(rounds, "rounds", low=1, high=MAX_ROUNDS)
    path = Path(folder) / labelled(communication_folder(devices), label)
    settings = {
        "batch_size": batch_size,
        "seed": seed,
        "world_size": devices,
        "sampling": ALL_TO_ALLS,
    }
    if hardware is not None:
        from neuroshard_fast.profile.simulated import SimulatedCommunication

        simulated = SimulatedCommunication(hardware, devices, batch_size)
        info = simulated_info(simulated.spec.description, **settings)
        drawn = _draw(devices, seed, range(samples))
        costs = simulated.measure_many([x.dims for x in drawn], [x.starts_ms for x in drawn])
        start_folder(path, info, {})
        _write_data(path, drawn, map(list, zip(*(field.tolist() for field in costs), strict=True)))
        return path
    check_torch()
    from neuroshard_fast.profile import distributed

    info = measured_info(distributed.communication_backend(), rounds, **settings)
    launched = distributed.launched()
    job = CommunicationJob(folder=str(path), info=info, samples=samples, is_shared=not launched)
    if launched:
        return path if _work(job) == 0 else None
    # Opened here too, so that what is wrong with it shows before any process starts.
    with contextlib.closing(MeasurementLog(path, info, {})) as log:
        log.share()
        distributed.launch(devices, __name__, config.encode(job).decode())
    return path


def _draw(devices: int, seed: int, samples: Iterable[int]) -> list[AllToAll]:
    return [draw_all_to_all(devices, seed, sample) for sample in samples]


def _write_data(path: Path, drawn: list[AllToAll], measured: Iterable[Measured]) -> None:
    published.write_communication_samples(
        path / "data.txt",
        [(x.dims, x.starts_ms, fw, bw) for x, (fw, bw) in zip(drawn, measured, strict=True)],
    )


def _work(job: CommunicationJob) -> int:
    """The first process keeps the log and says which sample all measure next; returns the rank."""
    import torch.distributed as dist

    from neuroshard_fast.profile.all_to_all import TorchAllToAll
    from neuroshard_fast.profile.distributed import process_group

    info = job.info
    with process_group() as device:
        if dist.get_world_size() != info.world_size:
            raise InputError(
                f"{info.world_size} devices wanted, but torchrun started {dist.get_world_size()}"
            )
        backend = TorchAllToAll(device, info.batch_size, info.iterations)

        def measure(sample: int) -> Measured:
            drawn = draw_all_to_all(dist.get_world_size(), info.seed, sample)
            return list(backend.measure(drawn.dims, drawn.starts_ms))

        if dist.get_rank():
            while (sample := _agree(_STOP, device)) != _STOP:
                measure(sample)
            return dist.get_rank()
        path = Path(job.folder)
        drawn: list[AllToAll] = []

        def write_data(measured: list[Measured]) -> None:
            more = range(len(drawn), len(measured))
            drawn.extend(_draw(dist.get_world_size(), info.seed, more))
            _write_data(path, drawn, measured)

        log = MeasurementLog(path, info, {}, is_shared=job.is_shared)
        with contextlib.closing(log):
            fill(
                log,
                max(job.samples, log.samples()),
                lambda sample: measure(_agree(sample, device)),
                write_data,
                f"all-to-alls of {info.world_size}",
            )
        _agree(_STOP, device)
        return 0


def _agree(sample: int, device: torch.device) -> int:
    """The ``sample`` that the first process says."""
    import torch
    import torch.distributed as dist

    said = torch.tensor([sample], device=device)
    dist.broadcast(said, src=0)
    return int(said)


if __name__ == "__main__":
    from neuroshard_fast.profile.distributed import run_worker

    job = config.decode(sys.argv[1].encode(), CommunicationJob, "job")
    run_worker(lambda: _work(job))
