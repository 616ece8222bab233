"""The devices that hold the tables."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import whole_number

MAX_DEVICES = 65536
MAX_MEMORY_BYTES = 2**60
MAX_BATCH_SIZE = 2**31


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identical devices that share the tables model-parallel.

    world_size: number of devices.
    memory_bytes: memory a device has for tables and their optimizer state.
    batch_size: samples of one global batch; None takes what the cost models were made for.
    """

    schema: Literal["neuroshard/cluster/1"] = "neuroshard/cluster/1"
    world_size: int
    memory_bytes: int
    batch_size: int | None = None

    def __post_init__(self) -> None:
        whole_number(self.world_size, "cluster: world_size", low=1, high=MAX_DEVICES)
        whole_number(self.memory_bytes, "cluster: memory_bytes", low=1, high=MAX_MEMORY_BYTES)
        if self.batch_size is not None:
            whole_number(self.batch_size, "cluster: batch_size", low=1, high=MAX_BATCH_SIZE)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read a cluster from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cluster as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)
