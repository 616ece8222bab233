"""What is planned for: devices and batch, as TorchRec's topology gives them."""

from __future__ import annotations

from typing import NamedTuple

from torchrec.distributed.planner.types import Topology

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
        """The setting of a topology; InputError for devices that are not planned for."""
        if topology.compute_device not in COMPUTE_DEVICES:
            raise InputError(
                f"topology: compute_device {topology.compute_device!r} is not supported; "
                f"planned for are {' and '.join(COMPUTE_DEVICES)}"
            )
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

    def placement(self, rank: int) -> str:
        """The device of ``rank``, as TorchRec writes it."""
        if self.compute_device == "cpu":
            return f"rank:{rank}/cpu"
        return f"rank:{rank}/{self.compute_device}:{rank % self.local_world_size}"


def memory_caps(topology: Topology) -> list[int]:
    """Bytes that each rank has for tables, of the memory that they fill."""
    on_cuda = topology.compute_device == "cuda"
    return [device.storage.hbm if on_cuda else device.storage.ddr for device in topology.devices]


def host_caps(topology: Topology) -> list[int]:
    """Bytes of host memory that each rank has for tables that do not lie on its GPU."""
    return [device.storage.ddr for device in topology.devices]
