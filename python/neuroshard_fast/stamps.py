"""When data or cost models were made, and with what."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def utc_now() -> str:
    """The time now, ISO 8601, UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of those of ``distributions`` that are installed."""
    versions = {}
    for name in distributions:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
