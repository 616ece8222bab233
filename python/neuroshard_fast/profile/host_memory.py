"""Memory in which tables are measured on a CPU.

FBGEMM's tables lie in arenas that are kept from one set of tables to the next: one for the weights of
each type and one for optimizer state.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from neuroshard_fast.errors import InputError
from neuroshard_fast.features import OUTPUT_BYTES
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.profile.backends import MeasuringBackendName
from neuroshard_fast.tables import EmbeddingTable
from neuroshard_fast.units import format_bytes

Arena = tuple[Literal["weights", "state"], Literal["fp32", "fp16"]]
"""What lies in it, and the type of its elements."""

_ELEMENT_BYTES = {"fp32": 4, "fp16": 2}


def arena_elements(tables: Iterable[EmbeddingTable]) -> Counter[Arena]:
    """Elements of each arena that ``tables`` fill together."""
    filled: Counter[Arena] = Counter()
    for table in tables:
        elements = table.num_embeddings * table.embedding_dim
        filled["weights", "fp16" if table.data_type == "fp16" else "fp32"] += elements
        if table.optimizer == "adagrad":
            filled["state", "fp32"] += elements
        elif table.optimizer == "rowwise_adagrad":
            filled["state", "fp32"] += table.num_embeddings
    return filled


def largest_arenas(sets: Iterable[Sequence[EmbeddingTable]]) -> Counter[Arena]:
    """Elements of arenas that can hold each of ``sets``, one at a time."""
    largest: Counter[Arena] = Counter()
    for tables in sets:
        largest |= arena_elements(tables)
    return largest


def needed_bytes(name: MeasuringBackendName, sets: Iterable[Sequence[EmbeddingTable]]) -> int:
    """Memory that one process needs for weights and optimizer state to measure ``sets`` in turn."""
    if name == "fbgemm":
        arenas = largest_arenas(sets)
        return sum(_ELEMENT_BYTES[type_] * count for (_, type_), count in arenas.items())
    return max(
        (sum(shard_memory(t).of_width(t.embedding_dim) for t in tables) for tables in sets),
        default=0,
    )


def batch_bytes(tables: Iterable[EmbeddingTable], batch_size: int) -> int:
    """The least memory that a step of ``tables`` takes besides them.

    Indices and ends of bags, int64, and the gradients of the vectors looked up.
    """
    total = 0.0
    for table in tables:
        lookups = batch_size * table.pooling_factor
        bags = batch_size * len(table.features)
        vectors = lookups if table.pooling == "none" else bags
        width = table.embedding_dim * OUTPUT_BYTES[table.output_dtype]
        total += 8 * (lookups + bags) + vectors * width
    return int(total)


def check_host_memory(needed: int) -> None:
    """InputError where measuring needs more bytes of memory than this machine has left.

    Of GPUs, torch says so itself when it allocates.
    """
    import torch

    if torch.cuda.is_available():
        return
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:") and int(line.split()[1]) * 1024 < needed:
                raise InputError(
                    f"measuring takes {format_bytes(needed)} for tables and a batch of lookups, more "
                    "memory than is available here; scale the tables or the batch down"
                )
