"""Starting one process a device, and what those processes share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from neuroshard_fast.errors import InputError, NeuroShardError
from neuroshard_fast.profile.timing import keep_freed_memory

_TIMEOUT = timedelta(minutes=5)


def communication_backend() -> Literal["gloo", "nccl"]:
    """NCCL where there is a GPU, gloo otherwise."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def launched() -> bool:
    """Whether this process is one of several started by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(world_size: int, module: str, job: str) -> None:
    """Run ``python -m module job`` in ``world_size`` processes of this machine, by torchrun.

    InputError where each needs a GPU of its own and there are fewer; NeuroShardError when one of them
    fails: what it printed is on stderr.
    """
    if communication_backend() == "nccl" and world_size > torch.cuda.device_count():
        raise InputError(
            f"{world_size} devices wanted, but this machine has {torch.cuda.device_count()} GPUs; on "
            "several machines, start with torchrun (docs/profiling.md)"
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world_size), "-m", module, job]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent)
    try:
        status = process.wait()
    except BaseException:
        process.terminate()  # and not kill: torchrun ends its workers then
        process.wait()
        raise
    if status:
        raise NeuroShardError(
            f"a measuring process failed (exit status {status}); see its output above"
        )


def run_worker(work: Callable[[], object]) -> None:
    """Do the ``work`` of a measuring process; an error that is meant for people ends it in a line."""
    try:
        work()
    except NeuroShardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _end_with_parent() -> None:
    """Let torchrun, and with it the measuring processes, end when this process is killed."""
    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@contextlib.contextmanager
def process_group() -> Iterator[torch.device]:
    """Join the other processes; gives the device of this one."""
    backend = communication_backend()
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield device
    finally:
        dist.destroy_process_group()
