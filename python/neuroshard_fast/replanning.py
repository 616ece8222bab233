"""Planning again when tables or devices have changed, with few bytes moved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, shown, whole_number
from neuroshard_fast.cluster import MAX_MEMORY_BYTES, Cluster
from neuroshard_fast.errors import InputError
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.tables import TableSet

SWEEP = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the bytes that survive, to which a sweep limits what moves."""

Kept = tuple[int, int, int, int, int]
"""A shard as the engine takes it: table, column offset, width, device or -1, bytes."""


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Columns that a device needs and does not hold.

    source: device of the plan before that holds them, by its number there; None for those of lost devices and
        of new tables, which come from elsewhere.
    num_bytes: of what the plan before says of the shard; those of a new table as it is now.
    """

    table: str
    column_offset: int
    width: int
    source: int | None
    device: int
    num_bytes: int


class Replan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan made from an earlier one.

    moves: what goes from device to device, and what comes from elsewhere, in the order of ``plan.shards``.
    moved_bytes: that go from device to device, no more than ``max_moved_bytes``, None being no limit.
    restored_bytes: of lost devices. new_bytes: of new tables.
    """

    schema: Literal["neuroshard/replan/1"] = "neuroshard/replan/1"
    plan: ShardingPlan
    moves: tuple[Move, ...]
    moved_bytes: int
    restored_bytes: int
    new_bytes: int
    max_moved_bytes: int | None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Replan:
        """Read it from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)


class Before:
    """The plan before as a new problem sees it.

    lost_devices: devices of the plan before that are gone; the others are numbered anew in their order, and
    what else the cluster has is new. InputError where that cannot be.
    """

    def __init__(
        self,
        previous: ShardingPlan,
        tables: TableSet,
        cluster: Cluster,
        lost_devices: Iterable[int],
    ) -> None:
        if not isinstance(previous, ShardingPlan):
            raise InputError(f"previous: a ShardingPlan is wanted, got {shown(previous)}")
        if isinstance(lost_devices, (str, bytes)) or not isinstance(lost_devices, Iterable):
            raise InputError(
                f"lost_devices must be a list of device numbers, got {shown(lost_devices)}"
            )
        lost = {
            whole_number(device, "lost_devices", low=0, high=previous.world_size - 1)
            for device in lost_devices
        }
        left = [device for device in range(previous.world_size) if device not in lost]
        if len(left) > cluster.world_size:
            raise InputError(
                f"cluster: world_size is {cluster.world_size}, but {len(left)} devices of the previous plan "
                "are left: name those that are gone in lost_devices"
            )
        self._number = {device: number for number, device in enumerate(left)}
        self._tables = {table.name: number for number, table in enumerate(tables)}
        self._shards: dict[str, list[tuple[int, int, int, int]]] = {}
        for shard in previous.shards:
            self._shards.setdefault(shard.table, []).append(
                (shard.column_offset, shard.width, shard.device, shard.memory_bytes)
            )
        for name in list(self._shards):
            number = self._tables.get(name)
            if number is None or self._is_another(name, tables[number].embedding_dim):
                del self._shards[name]  # removed, or so different that it begins anew

    def _is_another(self, name: str, dim: int) -> bool:
        """Whether the table had another dim; InputError where its columns are not all there."""
        end = 0
        for offset, width, _, _ in sorted(self._shards[name]):
            if offset != end:
                raise InputError(f"previous: table {name!r}: shards do not meet at column {end}")
            end += width
        return end != dim

    def kept(self) -> list[Kept]:
        """Its shards as the engine takes them."""
        return [
            (self._tables[name], offset, width, self._number.get(device, -1), size)
            for name, shards in self._shards.items()
            for offset, width, device, size in shards
        ]

    def surviving_bytes(self) -> int:
        """Bytes that devices still hold."""
        return sum(size for _, _, _, device, size in self.kept() if device >= 0)

    def moves(self, plan: ShardingPlan) -> list[Move]:
        """What devices need of ``plan`` and do not hold."""
        found = []
        for shard in plan.shards:
            before = self._shards.get(shard.table)
            if before is None:
                found.append(
                    Move(
                        table=shard.table,
                        column_offset=shard.column_offset,
                        width=shard.width,
                        source=None,
                        device=shard.device,
                        num_bytes=shard.memory_bytes,
                    )
                )
                continue
            for offset, width, device, size in before:
                begin = max(offset, shard.column_offset)
                columns = min(offset + width, shard.column_offset + shard.width) - begin
                if columns <= 0 or self._number.get(device) == shard.device:
                    continue
                found.append(
                    Move(
                        table=shard.table,
                        column_offset=begin,
                        width=columns,
                        source=device if device in self._number else None,
                        device=shard.device,
                        num_bytes=round(size * columns / width),
                    )
                )
        return found

    def replan_of(self, plan: ShardingPlan, max_moved_bytes: int | None) -> Replan:
        """``plan`` with what moves."""
        moves = self.moves(plan)
        return Replan(
            plan=plan,
            moves=tuple(moves),
            moved_bytes=sum(move.num_bytes for move in moves if move.source is not None),
            restored_bytes=sum(
                move.num_bytes
                for move in moves
                if move.source is None and move.table in self._shards
            ),
            new_bytes=sum(move.num_bytes for move in moves if move.table not in self._shards),
            max_moved_bytes=max_moved_bytes,
        )


def checked_limit(max_moved_bytes: int | None) -> int | None:
    """The limit on what moves."""
    if max_moved_bytes is None:
        return None
    return whole_number(max_moved_bytes, "max_moved_bytes", low=0, high=MAX_MEMORY_BYTES)


def checked_shares(shares: Sequence[float]) -> list[float]:
    """Shares of the surviving bytes, ascending."""
    if isinstance(shares, (str, bytes)) or not isinstance(shares, Sequence) or not shares:
        raise InputError(f"shares must be a list of numbers from 0 to 1, got {shown(shares)}")
    return sorted({finite_number(share, "shares", low=0.0, high=1.0) for share in shares})
