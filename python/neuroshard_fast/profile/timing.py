"""Timing of a training step on one device: warm-up, a cold cache, medians."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from neuroshard_fast.errors import InputError
from neuroshard_fast.profile.backends import TIMED_ITERATIONS, WARMUP_ITERATIONS
from neuroshard_fast.profile.lookups import LookupCache
from neuroshard_fast.tables import EmbeddingTable

Step = Callable[[], None]

_FLUSH_BYTES = 64 * 2**20
"""Read between iterations: more than the second-level cache of A100, H100 and H200 (40 and 50 MiB). A
last-level cache larger than that, as some server processors have, keeps what still fits beside it."""


class TorchCompute(ABC):
    """Lookups of the tables of one device, timed with the cache flushed before every step.

    batch_size: samples of the global batch.
    iterations: timed iterations of a measurement.
    """

    def __init__(self, batch_size: int, iterations: int = TIMED_ITERATIONS) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.iterations = iterations
        if self.device.type == "cpu":
            torch.set_num_threads(1)
            keep_freed_memory()
        self._flush = torch.ones(_FLUSH_BYTES // 4, device=self.device)
        self._lookups = LookupCache(batch_size)

    @abstractmethod
    def prepare(self, tables: Sequence[EmbeddingTable]) -> Step:
        """Forward, backward and update of ``tables``, at least one, ready to run."""

    def measure(self, tables: Sequence[EmbeddingTable]) -> float:
        """Median milliseconds of a step of ``tables``; 0 without tables."""
        if not tables:
            return 0.0
        with out_of_memory_named():
            step = self.prepare(tables)
            return statistics.median(self.times(step, WARMUP_ITERATIONS, self.iterations))

    def times(self, step: Step, warmup: int, iterations: int) -> list[float]:
        """Milliseconds of each of ``iterations`` of ``step``, after ``warmup`` more."""
        return [self._once(step) for _ in range(warmup + iterations)][warmup:]

    def _once(self, step: Step) -> float:
        # Reading evicts what the last step left without leaving written lines to be stored back.
        self._flush.sum()
        if self.device.type == "cuda":
            begin, end = _event(), _event()
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize(self.device)
            return float(begin.elapsed_time(end))
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def out_of_memory_named() -> Iterator[None]:
    """InputError where the memory of a GPU does not suffice."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise InputError(
            "what is measured takes more memory than this GPU has left: measure smaller sets of "
            "tables (--memory of neuroshard profile) or a smaller batch"
        ) from error


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, so that a step does not fault its buffers in again.

    By default large buffers go back to the system or not depending on what was allocated before,
    which would make a sample's time depend on the samples measured earlier in the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX in malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)
