"""What a measurement was made on, and how far it has come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neuroshard_fast.errors import MissingDependencyError

_DISTRIBUTIONS = {
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


def versions(backend: str) -> dict[str, str]:
    """Versions of the installed libraries that ``backend`` measures."""
    found = {}
    for name in _DISTRIBUTIONS[backend]:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@contextlib.contextmanager
def progress_bar(done: int, total: int, what: str) -> Iterator[Any]:
    """A bar on stderr that shows ``done`` of ``total``; ``update()`` adds one."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "profiling shows its progress with tqdm: pip install 'neuroshard-fast[profile]'"
        ) from error
    with tqdm(initial=done, total=total, desc=what, mininterval=1.0) as bar:
        yield bar
