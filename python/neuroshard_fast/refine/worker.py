"""The process of one device that measures plans, run as a module under torchrun.

Its argument is the path of a :class:`~neuroshard_fast.refine.measure.MeasuringJob`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch.distributed as dist

from neuroshard_fast import config
from neuroshard_fast.profile.distributed import process_group, run_worker
from neuroshard_fast.profile.log import Measured
from neuroshard_fast.profile.plan_rounds import PlanRound
from neuroshard_fast.profile.plan_timer import PlanTimer
from neuroshard_fast.progress import progress_bar
from neuroshard_fast.refine.measure import MeasuringJob, open_log


def _work(job: MeasuringJob) -> None:
    """Measure as the process of one device; the first one keeps the log."""
    with process_group() as device:
        rank = dist.get_rank()
        sets = [step.placement[rank] for step in job.steps]
        timer = PlanTimer(device, job.backend, job.info.batch_size, sets=sets)

        def measure(number: int) -> PlanRound:
            step = job.steps[number]
            return timer.measure(step.placement, step.all_to_all)

        if rank:
            for number in job.order:
                measure(number)
            return
        with contextlib.closing(open_log(Path(job.folder), job.info, is_shared=True)) as log:
            done, total = log.done_and_total(len(job.steps))
            with progress_bar(total, "plans, round by round", done=done) as progress:
                for number in job.order:
                    log.add(number, _measured(measure(number)))
                    progress.update()


def _measured(round_: PlanRound) -> Measured:
    return [round_.compute_ms, round_.forward_ms, round_.backward_ms]


if __name__ == "__main__":
    run_worker(lambda: _work(config.load(sys.argv[1], MeasuringJob)))
