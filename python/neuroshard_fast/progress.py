"""How far long work has come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from neuroshard_fast.errors import MissingDependencyError


@contextlib.contextmanager
def progress_bar(
    total: int, what: str, *, done: int = 0, unit: str = "it", disable: bool = False
) -> Iterator[Any]:
    """A bar on stderr that shows ``done`` of ``total``; its ``update(n=1)`` adds to what is done.

    MissingDependencyError where tqdm is not installed, before any work.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "long work shows its progress with tqdm: pip install 'neuroshard-fast[profile]'"
        ) from error
    with tqdm(
        initial=done,
        total=total,
        desc=what,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=1.0,
        disable=disable,
    ) as bar:
        yield bar
