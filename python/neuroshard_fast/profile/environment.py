"""What a measurement was made on, and how far it has come."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from neuroshard_fast._version import __version__
from neuroshard_fast.cost_data import CostDataInfo
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.profile.backends import TIMED_ITERATIONS, WARMUP_ITERATIONS
from neuroshard_fast.units import format_bytes

MeasuringName = Literal["fbgemm", "embedding-bag", "gloo", "nccl"]

_DISTRIBUTIONS: dict[MeasuringName, tuple[str, ...]] = {
    "fbgemm": ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu"),
    "embedding-bag": ("torch",),
    "gloo": ("torch",),
    "nccl": ("torch",),
}


def hardware_name() -> str:
    """The GPU, or the processor where there is none."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown CPU"


def measured_info(backend: MeasuringName, rounds: int, **settings: Any) -> CostDataInfo:
    """How data measured here and now is made; ``settings`` are other fields of CostDataInfo."""
    versions = {}
    for name in _DISTRIBUTIONS[backend]:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return CostDataInfo(
        source="measured",
        backend=backend,
        hardware=hardware_name(),
        warmup=WARMUP_ITERATIONS,
        iterations=TIMED_ITERATIONS,
        rounds=rounds,
        versions=versions,
        date=_now(),
        **settings,
    )


def simulated_info(hardware: str, **settings: Any) -> CostDataInfo:
    """How data simulated for ``hardware`` is made: once, as it does not vary."""
    return CostDataInfo(
        source="simulated",
        backend="simulated",
        hardware=hardware,
        warmup=0,
        iterations=1,
        versions={"neuroshard-fast": __version__},
        date=_now(),
        **settings,
    )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def check_host_memory(needed_bytes: int) -> None:
    """InputError where measuring needs more memory than this machine has left.

    Of GPUs, torch says so itself when it allocates.
    """
    import torch

    if torch.cuda.is_available():
        return
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:") and int(line.split()[1]) * 1024 < needed_bytes:
                raise InputError(
                    f"measuring takes {format_bytes(needed_bytes)} of tables, more memory than is "
                    "available here; scale the tables down"
                )


@contextlib.contextmanager
def progress_bar(done: int, total: int, what: str, *, disable: bool = False) -> Iterator[Any]:
    """A bar on stderr that shows ``done`` of ``total``; ``update()`` adds one."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "profiling shows its progress with tqdm: pip install 'neuroshard-fast[profile]'"
        ) from error
    with tqdm(initial=done, total=total, desc=what, mininterval=1.0, disable=disable) as bar:
        yield bar
