"""What is planned for: devices and batch, as TorchRec's topology gives them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

from torchrec.distributed.planner.types import Topology

from neuroshard_fast.checks import shown, whole_number
from neuroshard_fast.cluster import MAX_DEVICES, MAX_MEMORY_BYTES
from neuroshard_fast.errors import InputError

COMPUTE_DEVICES = ("cpu", "cuda")


class Setting(NamedTuple):
    """Ranks and the batch of each.

    local_world_size: ranks of a host, by which devices are numbered.
    group_size: ranks with fast links among them, which TorchRec takes for a host when it plans.
    batch_size: samples a rank.
    """

    compute_device: str
    world_size: int
    local_world_size: int
    group_size: int
    batch_size: int

    @classmethod
    def of(cls, topology: Topology, batch_size: int) -> Setting:
        """The setting of a topology; InputError for devices that are not planned for, or have no caps."""
        if topology.compute_device not in COMPUTE_DEVICES:
            raise InputError(
                f"topology: compute_device {topology.compute_device!r} is not supported; "
                f"planned for are {' and '.join(COMPUTE_DEVICES)}"
            )
        for field in ("world_size", "local_world_size", "intra_group_size"):
            whole_number(getattr(topology, field), f"topology: {field}", low=1, high=MAX_DEVICES)
        for caps in (memory_caps, host_caps):
            caps(topology)
        return cls(
            compute_device=topology.compute_device,
            world_size=topology.world_size,
            local_world_size=topology.local_world_size,
            group_size=topology.intra_group_size,
            batch_size=batch_size,
        )

    @property
    def samples(self) -> int:
        """Samples a step, of all ranks together."""
        return self.batch_size * self.world_size

    @property
    def memory_kind(self) -> str:
        """Which memory the tables fill: "HBM" or "DDR"."""
        return "HBM" if self.compute_device == "cuda" else "DDR"

    @property
    def hosts(self) -> int:
        """Groups of ranks with fast links among them."""
        return max(1, self.world_size // self.group_size)

    def device(self, rank: int) -> str:
        """The device of ``rank`` on its host, as torch writes it."""
        if self.compute_device == "cpu":
            return "cpu"
        return f"{self.compute_device}:{rank % self.local_world_size}"

    def placement(self, rank: int) -> str:
        """The device of ``rank``, as TorchRec writes it."""
        return f"rank:{rank}/{self.device(rank)}"


def memory_caps(topology: Topology, source: str = "topology") -> list[int]:
    """Bytes that each rank has for tables, of the memory that they fill.

    source: of the topology, for the InputError where a cap is no finite number.
    """
    if topology.compute_device != "cuda":
        return host_caps(topology, source)
    return [
        _cap(device.storage.hbm, f"{source}: hbm_cap of rank {rank}")
        for rank, device in enumerate(topology.devices)
    ]


def host_caps(topology: Topology, source: str = "topology") -> list[int]:
    """Bytes of host memory that each rank has for tables that do not lie on its GPU."""
    return [
        _cap(device.storage.ddr, f"{source}: ddr_cap of rank {rank}")
        for rank, device in enumerate(topology.devices)
    ]


def _cap(value: Any, field: str) -> int:
    """Whole bytes, as many as cost models know of at most; reservations leave negative ones too."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not abs(value) < math.inf:
        raise InputError(f"{field} must be a finite number of bytes, got {shown(value)}")
    whole: int = math.floor(value)
    return min(whole, MAX_MEMORY_BYTES)
