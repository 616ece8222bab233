"""Measuring, or simulating, the plans of a cycle."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import msgspec

from neuroshard_fast import config
from neuroshard_fast.cost_data import CostDataInfo
from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.backends import MeasuringBackendName
from neuroshard_fast.profile.evaluation import require_measurable
from neuroshard_fast.profile.log import Measured, MeasurementLog
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound
from neuroshard_fast.profile.sampling import AllToAll

REPEAT_EVERY = 5
"""Every so many steps one is measured a second time, later in each round, for the noise floors of the
samples that are made of it."""

WORKER = "neuroshard_fast.refine.worker"


class Step(msgspec.Struct, frozen=True):
    """What is measured: the lookups of a placement, and its all-to-alls, or another in their place."""

    placement: Placement
    all_to_all: AllToAll | None = None


class MeasuringJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the measuring processes do: measure those of ``steps`` that ``order`` numbers, in turn, and
    record their rounds in the log of ``folder``."""

    folder: str
    info: CostDataInfo
    steps: list[Step]
    order: list[int]
    backend: MeasuringBackendName


def measure_steps(
    folder: Path, info: CostDataInfo, steps: list[Step], backend: MeasuringBackendName
) -> list[list[PlanRound]]:
    """The rounds of each of ``steps``, with one process a device on this machine.

    A round is taken of all steps before the next one begins. Rounds that ``folder`` has already, as
    ``rounds.txt``, are not measured again.

    info: how the steps are measured; its ``rounds`` are wanted of each, twice as many of every
        REPEAT_EVERY-th, and its ``world_size`` is that of the placements.

    InputError where the folder holds rounds that were measured in another way, another process measures
    into it, or the machine cannot measure the steps.
    """
    with contextlib.closing(open_log(folder, info)) as log:
        order = list(log.missing(len(steps)))
        if order:
            require_measurable(backend, [step.placement for step in steps], info.batch_size)
            log.share()
            _launch(
                MeasuringJob(
                    folder=str(folder), info=info, steps=steps, order=order, backend=backend
                )
            )
    with contextlib.closing(open_log(folder, info)) as log:
        if any(True for _ in log.missing(len(steps))):
            raise InputError(f"{folder}: rounds.txt was changed while plans were measured")
        for number, step in enumerate(steps):
            for fields in log.rounds[number]:
                _check(fields, step.placement, f"{folder}: rounds.txt: a round of step {number}")
        return [
            [PlanRound(*fields) for fields in log.rounds[number]] for number in range(len(steps))
        ]


def simulate_plans(plans: list[Placement], hardware: str, batch_size: int) -> list[list[PlanRound]]:
    """One round of each of ``plans`` by the analytic model of ``hardware``; others would be the same."""
    from neuroshard_fast.profile.simulated import score_devices

    costs = [score_devices(plan, hardware, batch_size) for plan in plans]
    return [
        [PlanRound(list(cost.compute_ms), list(cost.forward_comm_ms), list(cost.backward_comm_ms))]
        for cost in costs
    ]


def open_log(folder: Path, info: CostDataInfo, *, is_shared: bool = False) -> MeasurementLog:
    """The rounds of steps that were measured; arguments as of :class:`MeasurementLog`."""
    assert info.world_size is not None  # noqa: S101 for the type checker
    shape = (3, info.world_size)
    return MeasurementLog(
        folder, info, {}, is_shared=is_shared, shape=shape, repeat_every=REPEAT_EVERY
    )


def _check(fields: Measured, plan: Placement, where: str) -> None:
    compute, forward, backward = fields
    if any((cost > 0) != bool(tables) for cost, tables in zip(compute, plan, strict=True)):
        raise InputError(f"{where}: compute must be above 0 just for devices that hold tables")
    if min(*forward, *backward) <= 0:
        raise InputError(f"{where}: costs of all-to-alls must be above 0")


def _launch(job: MeasuringJob) -> None:
    from neuroshard_fast.profile import distributed

    assert job.info.world_size is not None  # noqa: S101 for the type checker
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        config.save(file, job)
        distributed.launch(job.info.world_size, WORKER, str(file))
