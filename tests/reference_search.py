"""The method of docs/method.md in plain Python and whole numbers: slow, and exact.

With small whole numbers as weights, every cost is a whole number that fp32 holds exactly, so the
engine has to give the same plan, ties included.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Layers = list[tuple[Numbers, Numbers]]
Shard = tuple[int, int]  # table, width
Placement = list[list[int]]


def network(layers: Layers, values: Numbers) -> Numbers:
    """Affine layers, ReLU between them."""
    for k, (weight, bias) in enumerate(layers):
        values = weight @ (np.maximum(values, 0) if k else values) + bias
    return values


@dataclass
class ReferenceSearch:
    """The grid search and the beam search of docs/method.md."""

    table: Layers
    set_: Layers
    forward: Layers
    backward: Layers
    features: Numbers  # [tables, features], the dim in column 0
    output_width: list[int]  # numbers sent for each column
    bytes_per_column: list[int]
    bytes_fixed: list[int]  # in every shard of the table
    devices: int
    caps: list[int]  # of each device
    grid_steps: int
    least_widths: list[int] | None = None
    split_widths: list[int] | None = None
    pinned: list[int] | None = None  # device of each table; -1: any

    # What has been looked at, a shard being its table and width.
    sets: set[Hashable] = field(default_factory=set)  # shards that were costed together
    placements: set[Hashable] = field(default_factory=set)  # (placed so far, next shard)
    plans: set[Hashable] = field(default_factory=set)

    def compute(self, shards: list[Shard]) -> int:
        self.sets.add(tuple(sorted(shards)))
        total = np.zeros(len(self.table[-1][1]), np.int64)
        for table, width in shards:
            features = self.features[table].copy()
            features[0] = width
            total += np.maximum(network(self.table, features), 0)
        return int(network(self.set_, total)[0])

    def size(self, shard: Shard) -> int:
        return self.bytes_per_column[shard[0]] * shard[1] + self.bytes_fixed[shard[0]]

    def output_dim(self, shard: Shard) -> int:
        return self.output_width[shard[0]] * shard[1]

    def pieces(self, shard: Shard) -> int:
        """Shards that a split makes of this one; 1 where it cannot be split."""
        table, width = shard
        least = self.least_widths[table] if self.least_widths else 0
        at_once = self.split_widths[table] if self.split_widths else 0
        if self.device_of(table) >= 0:
            return 1
        if at_once:
            whole = width == self.features[table][0] and at_once >= least
            return width // at_once if whole else 1
        return 2 if width // 2 % 4 == 0 and width // 2 >= least else 1

    def kept_whole(self, shard: Shard) -> bool:
        """Whether it is for a constraint that the shard cannot be split."""
        table = shard[0]
        constrained = (
            self.device_of(table) >= 0
            or (self.least_widths is not None and self.least_widths[table] > 4)
            or (self.split_widths is not None and self.split_widths[table] > 0)
        )
        return constrained and self.pieces(shard) == 1

    def device_of(self, table: int) -> int:
        return self.pinned[table] if self.pinned else -1

    def cost(self, shards: list[Shard], placement: Placement) -> int:
        compute = np.array([self.compute([shards[s] for s in device]) for device in placement])
        dims = np.array([sum(self.output_dim(shards[s]) for s in device) for device in placement])
        backward = network(self.backward, dims)
        busy = compute + backward
        forward = network(self.forward, np.concatenate([dims, busy - busy.min()]))
        return int((busy + forward).max())

    def greedy(self, shards: list[Shard], limit: float) -> Placement | None:
        alone = [self.compute([shard]) for shard in shards]
        placement: Placement = [[] for _ in range(self.devices)]
        free = []
        for s, (table, _) in enumerate(shards):
            if self.device_of(table) >= 0:
                placement[self.device_of(table)].append(s)
            else:
                free.append(s)
        costs = [self.compute([shards[o] for o in device]) if device else 0 for device in placement]
        placed: tuple[tuple[Shard, int], ...] = ()
        for s in sorted(free, key=lambda s: alone[s])[::-1]:
            sizes = [sum(self.size(shards[o]) for o in device) for device in placement]
            dims = [sum(self.output_dim(shards[o]) for o in device) for device in placement]
            open_devices = [
                device
                for device in range(self.devices)
                if sizes[device] + self.size(shards[s]) <= self.caps[device]
                and dims[device] + self.output_dim(shards[s]) <= limit
            ]
            self.placements.add((placed, shards[s]))
            if not open_devices:
                return None
            chosen = min(open_devices, key=lambda device: (costs[device], sizes[device], device))
            placement[chosen].append(s)
            placed = (*placed, (shards[s], chosen))
            costs[chosen] = self.compute([shards[o] for o in placement[chosen]])
        self.plans.add(placed)
        return placement

    def unsplit(self) -> list[Shard]:
        return [(table, int(row[0])) for table, row in enumerate(self.features)]

    def passes(self, shards: list[Shard]) -> list[Placement | None]:
        """What the greedy pass places under each limit of the grid, ascending."""
        mean_dim = sum(self.output_dim(shard) for shard in shards) / self.devices
        steps = range(self.grid_steps)
        factors = [1.0 + i * (0.5 / (self.grid_steps - 1)) if i else 1.0 for i in steps]
        return [self.greedy(shards, factor * mean_dim) for factor in factors]

    def table_wise(self, shards: list[Shard]) -> tuple[float, Placement | None]:
        best: tuple[float, Placement | None] = (math.inf, None)
        for placement in self.passes(shards):
            if placement is not None and self.cost(shards, placement) < best[0]:
                best = (self.cost(shards, placement), placement)
        return best

    def search(self, k: int, n: int, max_length: int) -> tuple[float, list[int], Placement | None]:
        beam: list[tuple[list[int], list[Shard]]] = [([], self.unsplit())]
        cost, placement = self.table_wise(beam[0][1])
        best = (cost, beam[0][0], placement)
        for _ in range(max_length):
            scored: list[tuple[float, list[int], list[Shard]]] = []
            for splits, shards in beam:
                indices = [s for s in range(len(shards)) if not self.kept_whole(shards[s])]
                largest = sorted(indices, key=lambda s: -self.size(shards[s]))[:n]
                dearest = sorted(indices, key=lambda s: -self.compute([shards[s]]))[:n]
                for s in sorted({*largest, *dearest}):
                    table, width = shards[s]
                    pieces = self.pieces(shards[s])
                    if pieces == 1:
                        continue
                    piece = (table, width // pieces)
                    child = [*shards, *[piece] * (pieces - 1)]
                    child[s] = piece
                    cost, placement = self.table_wise(child)
                    scored.append((cost, [*splits, s], child))
                    if cost < best[0]:
                        best = (cost, [*splits, s], placement)
            scored.sort(key=lambda entry: entry[0])
            beam = [(splits, shards) for _, splits, shards in scored[:k]]
        return best
