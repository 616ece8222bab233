"""Measuring plans with torch.distributed, one process a device."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from neuroshard_fast.features import output_dims
from neuroshard_fast.profile.all_to_all import TorchAllToAll
from neuroshard_fast.profile.backends import (
    ALL_TO_ALLS_PER_LOOKUP,
    TIMED_ITERATIONS,
    WARMUP_ITERATIONS,
    MeasuringBackendName,
    compute_backend,
)
from neuroshard_fast.profile.plan_rounds import Placement, PlanRound, forward_starts
from neuroshard_fast.profile.sampling import AllToAll
from neuroshard_fast.profile.timing import out_of_memory_named
from neuroshard_fast.tables import EmbeddingTable

_TURN_ITERATIONS = 2
"""Timed iterations of a device before it is the next one's turn. A machine whose speed drifts is then equally
fast for all devices of a plan, which otherwise wait for whichever was measured in a slow moment."""


class PlanTimer:
    """Measures plans with a process group; every process calls ``measure`` with the same plan.

    sets: what this process will hold, plan by plan; memory for it is set aside.
    iterations: timed iterations of lookups a round, of which the median is taken, and
        ALL_TO_ALLS_PER_LOOKUP times as many of all-to-alls.
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
        self._network = TorchAllToAll(device, batch_size, ALL_TO_ALLS_PER_LOOKUP * iterations)

    def measure(self, plan: Placement, all_to_all: AllToAll | None = None) -> PlanRound:
        """A round: the compute of one device after the other while the rest is idle, in turns of a few
        iterations, then the backward all-to-all, then the forward one with the devices starting when
        what was just measured lets them.

        all_to_all: to be measured in place of the plan's.
        """
        compute = self._network.gather(self._measure_compute(plan[dist.get_rank()]))
        dims = output_dims(plan) if all_to_all is None else all_to_all.dims
        backward = self._network.measure_backward(dims)
        starts = forward_starts(compute, backward) if all_to_all is None else all_to_all.starts_ms
        return PlanRound(compute, self._network.measure_forward(dims, starts), backward)

    def _measure_compute(self, tables: Sequence[EmbeddingTable]) -> float:
        """Median ms of ``tables``, those of this process, which takes turns with the others."""
        times: list[float] = []
        with out_of_memory_named():
            step = self._compute.prepare(tables) if tables else None
            for done in range(0, self._compute.iterations, _TURN_ITERATIONS):
                warmup = 1 if done else WARMUP_ITERATIONS
                timed = min(_TURN_ITERATIONS, self._compute.iterations - done)
                for turn in range(dist.get_world_size()):
                    dist.barrier()
                    if step is not None and turn == dist.get_rank():
                        times += self._compute.times(step, warmup, timed)
        return statistics.median(times) if times else 0.0
