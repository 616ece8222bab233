"""Measuring plans with torch.distributed, one process a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from neuroshard_fast.features import output_dims
from neuroshard_fast.profile.all_to_all import TorchAllToAll
from neuroshard_fast.profile.backends import (
    TIMED_ITERATIONS,
    MeasuringBackendName,
    compute_backend,
)
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound, forward_starts
from neuroshard_fast.profile.sampling import AllToAll
from neuroshard_fast.tables import EmbeddingTable


class PlanTimer:
    """Measures plans with a process group; every process calls ``measure`` with the same plan.

    sets: what this process will hold, plan by plan; memory for it is set aside.
    iterations: timed iterations of each part of a round, of which the median is taken.
    """

    def __init__(
        self,
        device: torch.device,
        backend: MeasuringBackendName,
        batch_size: int,
        *,
        sets: Iterable[Sequence[EmbeddingTable]],
        iterations: int = TIMED_ITERATIONS,
    ) -> None:
        self._compute = compute_backend(backend, batch_size, sets=sets, iterations=iterations)
        self._network = TorchAllToAll(device, batch_size, iterations)

    def measure(self, plan: Placement, all_to_all: AllToAll | None = None) -> PlanRound:
        """A round: the compute of one device after the other while the rest is idle, then the backward
        all-to-all, then the forward one, with the devices starting when what was just measured lets them.

        all_to_all: to be measured in place of the plan's.
        """
        own = 0.0
        for turn in range(dist.get_world_size()):
            dist.barrier()
            if turn == dist.get_rank():
                own = self._compute.measure(plan[turn])
        compute = self._network.gather(own)
        dims = output_dims(plan) if all_to_all is None else all_to_all.dims
        backward = self._network.measure_backward(dims)
        starts = forward_starts(compute, backward) if all_to_all is None else all_to_all.starts_ms
        return PlanRound(compute, self._network.measure_forward(dims, starts), backward)
