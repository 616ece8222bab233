"""Loading files of ``torch.save`` without running anything that they hold."""

from __future__ import annotations

import importlib
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

from neuroshard_fast.errors import InputError, MissingDependencyError


def import_torch(path: str | os.PathLike[str]) -> Any:
    """The module torch, which the file at ``path`` needs."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: this kind of file needs torch: pip install 'neuroshard-fast[pretrain]'"
        ) from error


def load_torch(
    path: str | os.PathLike[str], *, source: str | os.PathLike[str], mmap: bool = False
) -> Any:
    """What ``torch.save`` wrote, tensors on the CPU; with ``mmap``, on disk until they are used.

    source: the file to name in errors, where ``path`` is a temporary one.
    InputError where the file is damaged, or holds more than tensors and plain containers of them.
    """
    torch = import_torch(source)
    try:
        if not Path(path).stat().st_size:
            raise InputError(f"{source}: is empty: not a file of torch.save")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are refused below
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{source}: does not fit in memory") from None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        # What torch says is not passed on: it advises to run what the file holds.
        raise InputError(
            f"{source}: not a file of tensors of torch.save: it is damaged, or holds more than tensors "
            "and plain containers of them"
        ) from error
    except Exception as error:  # torch and pickle raise almost anything on a damaged file
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{source}: not a file of tensors of torch.save ({type(error).__name__}: {reason})"
        ) from error
