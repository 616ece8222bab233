"""The method of docs/method.md in PyTorch, plainly written: an oracle for plans and for speed.

The networks are modules that load the published checkpoints and take batches, as training needs them. The
cost of a device is kept under the shards on it, so that it is predicted once however often greedy passes
make the same choices; where a step of the method asks for several costs at once, they are one batch.
Nothing here uses neuroshard_fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

BYTES_PER_ELEMENT = 4  # fp32
GIB = 2**30


class Shard(NamedTuple):
    """A shard of a table of table_configs.json. Equal shards cost the same."""

    table: int
    dim: int


@dataclass(frozen=True)
class SearchLimits:
    """Options of the search; the defaults are the published ones."""

    beam_width: int = 3
    candidates: int = 10
    max_splits: int = 10
    grid_steps: int = 11


@dataclass
class OraclePlan:
    """cost: ms, infinite if there is no placement; placement: shard indices of each device."""

    cost: float
    column_splits: list[int]
    placement: list[list[int]] | None


@dataclass
class Placement:
    """What a greedy pass leaves, device by device."""

    indices: list[list[int]]
    shards: list[tuple[Shard, ...]]
    costs: list[float]
    sizes: list[int]
    dims: list[int]


class ComputeNetwork(nn.Module):
    """From the features of all shards on a device to its compute cost."""

    mean: Tensor
    std: Tensor

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        super().__init__()
        table, pred = checkpoint["table_mlp_sizes"], checkpoint["pred_mlp_sizes"]
        self.t_hidden = affine_layers([checkpoint["num_table_features"], *table])
        self.c_hidden = affine_layers([*pred, 1])
        self.load_state_dict(checkpoint["state_dict"])
        self.register_buffer("mean", checkpoint["feature_means"])
        self.register_buffer("std", checkpoint["feature_stds"])

    def forward(self, features: Tensor, device: Tensor, devices: int) -> Tensor:
        """Costs [devices] from features [shards, features] and the device [shards] of each shard."""
        encodings = torch.relu(through(self.t_hidden, (features - self.mean) / self.std))
        sums = encodings.new_zeros(devices, encodings.shape[1]).index_add(0, device, encodings)
        return through(self.c_hidden, sums).squeeze(1)


class CommunicationNetwork(nn.Module):
    """From the dims (and start times) of all devices to their all-to-all costs."""

    mean: Tensor
    std: Tensor

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        super().__init__()
        inputs, outputs = checkpoint["num_features"], checkpoint["ndevices"]
        self.hidden = affine_layers([inputs, *checkpoint["mlp_sizes"], outputs])
        self.load_state_dict(checkpoint["state_dict"])
        self.register_buffer("mean", checkpoint["feature_means"])
        self.register_buffer("std", checkpoint["feature_stds"])

    def forward(self, x: Tensor) -> Tensor:
        """Costs [plans, devices] from features [plans, devices or 2 * devices]."""
        return through(self.hidden, (x - self.mean) / self.std)


def affine_layers(sizes: Sequence[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))


def through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Affine layers, ReLU between them."""
    for k, layer in enumerate(layers):
        x = layer(torch.relu(x) if k else x)
    return x


class TorchOracle:
    """Plans for devices of one number and memory cap with the networks of one set of checkpoints."""

    def __init__(self, golden: Path, devices: int, memory_bytes: int, limits: SearchLimits) -> None:
        def load(name: str) -> dict[str, Any]:
            checkpoint: dict[str, Any] = torch.load(golden / "models" / name, weights_only=True)
            return checkpoint

        self.compute = ComputeNetwork(load("compute.pt"))
        self.forward = CommunicationNetwork(load(f"comm_{devices}_fw.pt"))
        self.backward = CommunicationNetwork(load(f"comm_{devices}_bw.pt"))
        self.configs: list[dict[str, float]] = json.loads(
            (golden / "table_configs.json").read_bytes()
        )
        self.devices = devices
        self.memory_bytes = memory_bytes
        self.limits = limits
        self.known_features: dict[Shard, Tensor] = {}
        self.known_costs: dict[tuple[Shard, ...], float] = {(): self.empty_cost()}

    def empty_cost(self) -> float:
        nothing = torch.empty(0, len(self.compute.mean))
        cost: Tensor = self.compute(nothing, torch.empty(0, dtype=torch.int64), 1)
        return cost.item()

    def features(self, shard: Shard) -> Tensor:
        """[features], in the order in which their names sort."""
        if shard not in self.known_features:
            config = {**self.configs[shard.table], "dim": shard.dim}
            self.known_features[shard] = torch.tensor([float(config[n]) for n in sorted(config)])
        return self.known_features[shard]

    def size(self, shard: Shard) -> int:
        return int(self.configs[shard.table]["row"]) * shard.dim * BYTES_PER_ELEMENT

    def compute_costs(self, devices: Sequence[tuple[Shard, ...]]) -> list[float]:
        """Compute cost of each device, given by its shards; what was never seen before is one batch."""
        new = list({shards for shards in devices if shards not in self.known_costs})
        if new:
            features = [self.features(shard) for shards in new for shard in shards]
            device = [position for position, shards in enumerate(new) for _ in shards]
            costs = self.compute(torch.stack(features), torch.tensor(device), len(new))
            self.known_costs.update(zip(new, costs.tolist(), strict=True))
        return [self.known_costs[shards] for shards in devices]

    def plan_costs(self, placements: Sequence[Placement]) -> list[float]:
        """Cost of each finished plan, in one call of each network."""
        compute = torch.tensor(
            self.compute_costs([shards for p in placements for shards in p.shards])
        )
        dims = torch.tensor([placement.dims for placement in placements], dtype=torch.float32)
        backward = self.backward(dims)
        busy = compute.view(-1, self.devices).double() + backward.double()
        starts = (busy - busy.amin(1, keepdim=True)).float()
        forward = self.forward(torch.cat([dims, starts], 1))
        costs: list[float] = (busy + forward.double()).amax(1).tolist()
        return costs

    def greedy(self, shards: list[Shard], order: list[int], limit: float) -> Placement | None:
        """One greedy pass under a limit on the dim of a device; None where a shard finds no device."""
        everywhere = range(self.devices)
        placed = Placement(
            indices=[[] for _ in everywhere],
            shards=[() for _ in everywhere],
            costs=[0.0 for _ in everywhere],
            sizes=[0 for _ in everywhere],
            dims=[0 for _ in everywhere],
        )
        for index in order:
            shard = shards[index]
            size = self.size(shard)
            open_devices = [
                (placed.costs[device], placed.sizes[device], device)
                for device in everywhere
                if placed.sizes[device] + size <= self.memory_bytes
                and placed.dims[device] + shard.dim <= limit
            ]
            if not open_devices:
                return None
            _, _, device = min(open_devices)
            placed.indices[device].append(index)
            placed.shards[device] += (shard,)
            placed.sizes[device] += size
            placed.dims[device] += shard.dim
            placed.costs[device] = self.compute_costs([placed.shards[device]])[0]
        return placed

    def table_wise(self, shards: list[Shard]) -> tuple[float, list[list[int]] | None]:
        """Cost and placement of the greedy grid search."""
        alone = self.compute_costs([(shard,) for shard in shards])
        order = sorted(range(len(shards)), key=lambda index: alone[index])[::-1]
        mean_dim = sum(shard.dim for shard in shards) / self.devices
        steps = self.limits.grid_steps
        factors = [1.0 + i * (0.5 / (steps - 1)) for i in range(steps)] if steps > 1 else [1.0]
        passes = [self.greedy(shards, order, factor * mean_dim) for factor in factors]
        placements = [placement for placement in passes if placement is not None]
        if not placements:
            return math.inf, None
        costs = self.plan_costs(placements)
        best = costs.index(min(costs))
        return costs[best], placements[best].indices

    def candidates(self, shards: list[Shard]) -> list[int]:
        """The largest shards and those dearest alone that can be split."""
        alone = self.compute_costs([(shard,) for shard in shards])
        sizes = [self.size(shard) for shard in shards]
        indices = range(len(shards))
        largest = sorted(indices, key=lambda index: -sizes[index])[: self.limits.candidates]
        dearest = sorted(indices, key=lambda index: -alone[index])[: self.limits.candidates]
        return [i for i in sorted({*largest, *dearest}) if shards[i].dim // 2 % 4 == 0]

    @torch.inference_mode()
    def search(self, shards: list[Shard]) -> OraclePlan:
        """The cheapest plan of the beam search over column splits."""
        beam: list[tuple[list[int], list[Shard]]] = [([], shards)]
        cost, placement = self.table_wise(shards)
        best = OraclePlan(cost, [], placement)
        for _ in range(self.limits.max_splits):
            scored: list[tuple[float, list[int], list[Shard]]] = []
            for splits, parent in beam:
                for index in self.candidates(parent):
                    half = Shard(parent[index].table, parent[index].dim // 2)
                    child = [*parent[:index], half, *parent[index + 1 :], half]
                    cost, placement = self.table_wise(child)
                    scored.append((cost, [*splits, index], child))
                    if cost < best.cost:
                        best = OraclePlan(cost, [*splits, index], placement)
            scored.sort(key=lambda entry: entry[0])
            beam = [(splits, child) for _, splits, child in scored[: self.limits.beam_width]]
        return best


@dataclass(frozen=True)
class GoldenCase:
    """A task of tests/golden/tasks with its search and its right answer."""

    shards: list[Shard]
    devices: int
    memory_bytes: int
    limits: SearchLimits
    plan: dict[str, Any] | None


def read_golden_case(golden: Path, tasks: str, line: int) -> GoldenCase:
    """The task on a line, from 0, of a golden task file."""
    folder = golden / "tasks" / tasks
    columns = (folder / "data.txt").read_text().splitlines()[line].split()
    ids, dims = ([int(number) for number in column.split(",")] for column in columns)
    expected = json.loads((folder / "expected.json").read_bytes())
    search = expected["search"]
    return GoldenCase(
        shards=[Shard(*shard) for shard in zip(ids, dims, strict=True)],
        devices=expected["ndevices"],
        memory_bytes=math.floor(expected["max_mem_gb"] * GIB),
        limits=SearchLimits(
            beam_width=search["k"],
            candidates=search["n"],
            max_splits=search["max_length"],
            grid_steps=search["search_steps"],
        ),
        plan=expected["tasks"][line]["plan"],
    )
