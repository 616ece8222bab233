"""Measuring the all-to-alls of pooled embeddings with torch.distributed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from neuroshard_fast.profile.backends import WARMUP_ITERATIONS
from neuroshard_fast.profile.timing import out_of_memory_named

_WATCHED_SECONDS = 2e-4
"""The clock is watched for so long before a start: sleeping alone is 0.08 to 0.1 ms late, this 0.002.
Not longer, as devices may share their processors, and who watches holds the others up."""


def wait_until(start: float) -> None:
    """Return when ``time.perf_counter()`` is at ``start``."""
    asleep = start - time.perf_counter() - _WATCHED_SECONDS
    if asleep > 0:
        time.sleep(asleep)
    while time.perf_counter() < start:
        pass


class TorchAllToAll:
    """All-to-alls of a process group; every process calls ``measure`` with the same arguments.

    Device r looks up its columns for the whole batch, [batch_size, dims[r]] fp32, and needs all
    columns for its share of the batch, [local_batch, sum(dims)]; gradients go the other way.
    """

    def __init__(self, device: torch.device, batch_size: int, iterations: int) -> None:
        self._device = device
        self._iterations = iterations
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        share, more = divmod(batch_size, self._world_size)
        self._local_batch = [share + (rank < more) for rank in range(self._world_size)]
        self._buffers = [torch.empty(0, device=device), torch.empty(0, device=device)]

    def measure(
        self, dims: Sequence[float], starts_ms: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Forward and backward ms of each device: medians over the timed iterations.

        Forward is from the device's own start, ``starts_ms`` after the first, until all have
        finished; backward from a common start until the device itself has finished.
        """
        backward = self.measure_backward(dims)
        return self.measure_forward(dims, starts_ms), backward

    def measure_forward(self, dims: Sequence[float], starts_ms: Sequence[float]) -> list[float]:
        """Forward ms of each device."""
        columns, share, (by_share, by_owner) = self._tensors(dims)

        def once(timed: bool) -> float:
            start = time.perf_counter()
            if timed:  # no need to wait while warming up
                start += starts_ms[self._rank] / 1e3
                wait_until(start)
            dist.all_to_all_single(share, columns, by_owner, by_share)
            self._synchronize()
            dist.barrier()
            self._synchronize()
            return (time.perf_counter() - start) * 1e3

        return self._medians(once)

    def measure_backward(self, dims: Sequence[float]) -> list[float]:
        """Backward ms of each device."""
        columns, share, (by_share, by_owner) = self._tensors(dims)

        def once(_timed: bool) -> float:
            begin = time.perf_counter()
            dist.all_to_all_single(columns, share, by_share, by_owner)
            self._synchronize()
            return (time.perf_counter() - begin) * 1e3

        return self._medians(once)

    def _tensors(
        self, dims: Sequence[float]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[list[int], list[int]]]:
        """Own columns of the whole batch, all columns of the own share; the parts of each by rank."""
        by_share = [round(rows * dims[self._rank]) for rows in self._local_batch]
        by_owner = [round(self._local_batch[self._rank] * dim) for dim in dims]
        sizes = (sum(by_share), sum(by_owner))
        with out_of_memory_named():
            for k, size in enumerate(sizes):
                if self._buffers[k].numel() < size:
                    self._buffers[k] = torch.ones(size, device=self._device)
        columns, share = (buffer[:size] for buffer, size in zip(self._buffers, sizes, strict=True))
        return columns, share, (by_share, by_owner)

    def _medians(self, once: Callable[[bool], float]) -> list[float]:
        times = []
        for iteration in range(WARMUP_ITERATIONS + self._iterations):
            dist.barrier()
            self._synchronize()
            times.append(once(iteration >= WARMUP_ITERATIONS))
        return self.gather(statistics.median(times[WARMUP_ITERATIONS:]))

    def gather(self, own: float) -> list[float]:
        """What each device has for ``own``."""
        value = torch.tensor([own], dtype=torch.float64, device=self._device)
        values = [torch.empty_like(value) for _ in range(self._world_size)]
        dist.all_gather(values, value)
        return [float(value) for value in values]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
