"""What measures: fused lookups of one device, all-to-alls between devices."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from neuroshard_fast.checks import one_of
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.tables import EmbeddingTable

if TYPE_CHECKING:
    from neuroshard_fast.profile.timing import TorchCompute

MeasuringBackendName = Literal["fbgemm", "embedding-bag"]

WARMUP_ITERATIONS = 5
TIMED_ITERATIONS = 10
"""Iterations before and while timing; source: the published NeuroShard benchmark."""
ALL_TO_ALLS_PER_LOOKUP = 5
"""Timed all-to-alls in place of an iteration of lookups. They vary more and take less: between processes that
share processors the median of 50 repeats to 5%, that of 10 to 15%, and a plan waits for the slowest."""


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


def choose_compute_backend(wanted: str) -> MeasuringBackendName:
    """The backend to measure with: FBGEMM for "auto" where it is installed.

    MissingDependencyError without torch, without FBGEMM where that is asked for, and where what is
    installed does not load.
    """
    one_of(wanted, "backend", ("auto", *get_args(MeasuringBackendName)))
    check_torch()
    has_fbgemm = find_spec("fbgemm_gpu") is not None
    if wanted == "fbgemm" and not has_fbgemm:
        raise MissingDependencyError(
            "fbgemm_gpu is not installed: pip install 'neuroshard-fast[profile-cpu]' (on a GPU "
            "fbgemm-gpu), or measure torch's own operators with the backend embedding-bag"
        )
    if wanted == "embedding-bag" or not has_fbgemm:
        return "embedding-bag"
    try:
        importlib.import_module("neuroshard_fast.profile.fbgemm")
    except Exception as error:  # a build for another torch or CUDA fails in many ways
        reason = " ".join(str(error).split())[:200]
        raise MissingDependencyError(
            f"fbgemm_gpu is installed but does not load ({type(error).__name__}: {reason}): install "
            "the build for this torch, or measure torch's own operators with the backend "
            "embedding-bag"
        ) from error
    return "fbgemm"


def check_torch() -> None:
    """MissingDependencyError where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingDependencyError(
            "measuring needs torch: pip install 'neuroshard-fast[profile]'"
        )


def check_tables(name: MeasuringBackendName, tables: Iterable[EmbeddingTable]) -> None:
    """InputError for the first of ``tables`` that the backend cannot train here."""
    import torch

    unusable: dict[str, tuple[str, ...]]
    if name == "embedding-bag":
        unusable = {
            "data_type": ("fp16", "int8"),
            "output_dtype": ("fp16", "bf16"),
        }
    elif torch.cuda.is_available():
        return
    else:
        unusable = {"data_type": ("int8",), "output_dtype": ("bf16",), "optimizer": ("adam",)}
    for table in tables:
        for field, values in unusable.items():
            if getattr(table, field) in values:
                raise InputError(
                    f"table {table.name!r}: {name} does not train {field} {getattr(table, field)} "
                    "on this machine; measure on a GPU with FBGEMM, or change the table"
                )
        if name == "embedding-bag" and table.is_weighted and table.pooling != "sum":
            what = "mean" if table.pooling == "mean" else "sequence"
            raise InputError(
                f"table {table.name!r}: embedding-bag has no weighted {what}; measure with FBGEMM"
            )


def compute_backend(
    name: MeasuringBackendName,
    batch_size: int,
    *,
    sets: Iterable[Sequence[EmbeddingTable]] = (),
    iterations: int = TIMED_ITERATIONS,
) -> TorchCompute:
    """The backend of that name; ``sets`` of tables that will be measured get memory set aside."""
    if name == "embedding-bag":
        from neuroshard_fast.profile.embedding_bag import EmbeddingBagCompute

        return EmbeddingBagCompute(batch_size, iterations)
    from neuroshard_fast.profile.fbgemm import FbgemmCompute

    return FbgemmCompute(batch_size, sets, iterations)
