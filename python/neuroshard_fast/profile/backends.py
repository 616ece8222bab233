"""What measures: fused lookups of one device, all-to-alls between devices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal, Protocol

from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.tables import EmbeddingTable

ComputeBackendName = Literal["fbgemm", "embedding-bag", "simulated"]


class ComputeBackend(Protocol):
    """Costs of fused lookups."""

    def measure(self, tables: Sequence[EmbeddingTable]) -> float:
        """Median ms of forward, backward and update of ``tables`` on one device."""


class CommunicationBackend(Protocol):
    """Costs of all-to-alls."""

    def measure(
        self, dims: Sequence[float], starts_ms: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Forward and backward ms of each device."""


def choose_compute_backend(wanted: str, hardware: str | None = None) -> ComputeBackendName:
    """The backend to use for ``wanted``: FBGEMM for "auto" where it is installed.

    MissingDependencyError without torch, or without FBGEMM where that is asked for.
    """
    if wanted == "simulated":
        return "simulated"
    if hardware is not None:
        raise InputError("hardware is chosen for simulated data only: add --backend simulated")
    if find_spec("torch") is None:
        raise MissingDependencyError(
            "measuring needs torch: pip install 'neuroshard-fast[profile]'"
        )
    has_fbgemm = find_spec("fbgemm_gpu") is not None
    if wanted == "fbgemm" and not has_fbgemm:
        raise MissingDependencyError(
            "fbgemm_gpu is not installed: pip install 'neuroshard-fast[profile]', "
            "or measure torch's own operator with --backend embedding-bag"
        )
    if wanted == "embedding-bag" or not has_fbgemm:
        return "embedding-bag"
    return "fbgemm"


def compute_backend(
    name: ComputeBackendName,
    batch_size: int,
    *,
    memory_bytes: int = 0,
    hardware: str | None = None,
) -> ComputeBackend:
    """The backend of that name.

    memory_bytes: the most that the tables of one measurement will take.
    hardware: what to simulate.
    """
    if name == "simulated":
        from neuroshard_fast.profile.simulated import SimulatedCompute

        if hardware is None:
            raise InputError("simulated data needs --hardware")
        return SimulatedCompute(hardware, batch_size)
    if name == "embedding-bag":
        from neuroshard_fast.profile.embedding_bag import EmbeddingBagCompute

        return EmbeddingBagCompute(batch_size)
    from neuroshard_fast.profile.fbgemm import FbgemmCompute

    return FbgemmCompute(batch_size, memory_bytes)
