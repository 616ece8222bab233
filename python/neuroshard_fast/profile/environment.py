"""What a measurement is made on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

from neuroshard_fast._version import __version__
from neuroshard_fast.cost_data import CostDataInfo
from neuroshard_fast.profile.backends import (
    ALL_TO_ALLS_PER_LOOKUP,
    TIMED_ITERATIONS,
    WARMUP_ITERATIONS,
)
from neuroshard_fast.stamps import installed_versions, utc_now

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
            if line.startswith("model name") and (name := line.partition(":")[2].strip()):
                return name
    return "unknown CPU"


def measured_info(backend: MeasuringName, rounds: int, **settings: Any) -> CostDataInfo:
    """How data measured here and now is made; ``settings`` are other fields of CostDataInfo."""
    return CostDataInfo(
        source="measured",
        backend=backend,
        hardware=hardware_name(),
        warmup=WARMUP_ITERATIONS,
        iterations=TIMED_ITERATIONS
        * (ALL_TO_ALLS_PER_LOOKUP if backend in ("gloo", "nccl") else 1),
        rounds=rounds,
        versions=installed_versions(_DISTRIBUTIONS[backend]),
        date=utc_now(),
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
        date=utc_now(),
        **settings,
    )
