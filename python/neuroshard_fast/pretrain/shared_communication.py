"""One communication network for any number of devices, in torch.

It does not know how devices are numbered: what it says of a device depends on that device, and on
mean and maximum over all devices of what it makes of each. Device counts it was not trained on are
as good as others, as long as they lie between those it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from neuroshard_fast.cost_models import F32
from neuroshard_fast.pretrain.networks import (
    Batch,
    CostOutput,
    Predictions,
    cost_statistics,
    export_layers,
    first_layer,
    make_layers,
    predicted_costs,
)
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.pretrain.training import Split

Floats = npt.NDArray[np.float64]

_LEAST_RANGE = 1e-6  # of a feature that varies: a byte, a nanosecond; below is rounding
_PEERS = slice(4, 7)  # features that say how many peers there are


@dataclass(frozen=True)
class AllToAlls:
    """Samples of one device count and batch size; all arrays [samples, devices].

    batch_size: samples of the global batch.
    dims: columns of each device. starts: ms; None for the backward all-to-all. costs: ms.
    """

    batch_size: int

    dims: Floats
    starts: Floats | None
    costs: Floats


def communication_features(
    dims: Floats, starts: Floats | None, batch_size: int, devices_per_node: int
) -> F32:
    """What the network knows of each device, [samples, devices, 7], or 8 with ``starts``.

    MB (1e6 bytes) that the device sends within its node and to other nodes, and gets from both; peers
    of both kinds; log2 of the device count; and how long it waits for the last device to start, ms.

    dims: columns of each device, in fp32 numbers a sample of the batch, [samples, devices].
    starts: ms, of the same shape; None for the backward all-to-all.
    """
    devices = dims.shape[1]
    node = np.arange(devices) // devices_per_node
    node_size = np.bincount(node)[node]
    in_node = np.add.reduceat(dims, np.flatnonzero(np.diff(node, prepend=-1)), axis=1)[:, node]
    total = dims.sum(axis=1, keepdims=True)
    megabytes = batch_size * 4 / devices / 1e6  # that one column exchanges with one peer
    features = [
        megabytes * dims * (node_size - 1),
        megabytes * dims * (devices - node_size),
        megabytes * (in_node - dims),
        megabytes * (total - in_node),
        np.broadcast_to(node_size - 1.0, dims.shape),
        np.broadcast_to(devices - node_size + 0.0, dims.shape),
        np.full_like(dims, math.log2(devices)),
    ]
    if starts is not None:
        features.append(starts.max(axis=1, keepdims=True) - starts)
    return np.stack(features, axis=2).astype(np.float32)


class SharedCommunicationNetwork(nn.Module):
    """[samples, devices, features] to standardised costs and high costs, each [samples, devices]."""

    def __init__(self, features: int, options: PretrainOptions):
        super().__init__()
        self.device = make_layers([features, *options.device_sizes], relu_at_end=False)
        channels = options.device_sizes[-1]
        self.head = make_layers([3 * channels, *options.head_sizes], relu_at_end=True)
        self.output = CostOutput(options.head_sizes[-1])

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.device(features)
        across = torch.cat([encoded.amax(dim=1), encoded.mean(dim=1)], dim=1)
        # The first layer's product with what is the same for all devices is taken only once.
        first = first_layer(self.head)
        channels = encoded.shape[2]
        own, shared = first.weight[:, :channels], first.weight[:, channels:]
        hidden = encoded @ own.T + nn.functional.linear(across, shared, first.bias)[:, None]
        cost, high = self.output(self.head[1:](hidden))
        return cost[:, :, 0], high[:, :, 0]


class SharedCommunicationRegression:
    """Costs of all-to-alls of several device counts and batch sizes, by one network.

    direction: "forward" or "backward".
    samples: each part of one device count; numbered on from one part to the next.
    splits: of the samples of each part, in the same numbering.
    """

    def __init__(
        self,
        direction: str,
        samples: Sequence[AllToAlls],
        splits: Sequence[Split],
        options: PretrainOptions,
    ):
        self._name = f"{direction}.shared"
        self._features: list[Tensor] = []
        self._costs: list[Tensor] = []
        self._typical: list[Tensor] = []
        self._first: list[int] = []
        training: list[F32] = []
        costs: list[Floats] = []
        first = 0
        for part, split in zip(samples, splits, strict=True):
            features = communication_features(
                part.dims, part.starts, part.batch_size, options.devices_per_node
            )
            self._features.append(torch.from_numpy(features))
            self._costs.append(torch.from_numpy(part.costs.astype(np.float32)))
            self._typical.append(torch.full((1, 1), float(part.costs.mean())))
            self._first.append(first)
            chosen = split.training - first
            training.append(features[chosen].reshape(-1, features.shape[2]))
            costs.append(part.costs[chosen])
            first += len(part.costs)
        self.mean, self.std, varies = _statistics(training)
        mean, std = torch.from_numpy(self.mean), torch.from_numpy(self.std)
        self._features = [(part - mean) / std for part in self._features]
        self.network = SharedCommunicationNetwork(len(self.mean), options)
        # What never varies is not learnt, and stays without effect. Numbers of peers begin without, lest
        # the network has whims between the few device counts that it is trained on.
        without_effect = ~varies
        without_effect[_PEERS] = True
        with torch.no_grad():
            first_layer(self.network.device).weight[:, torch.from_numpy(without_effect)] = 0.0
        # Each part counts the same, however many devices it has costs of.
        statistics = [cost_statistics(part) for part in costs]
        self._cost_mean, self._cost_std = (float(np.mean(x)) for x in zip(*statistics, strict=True))

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> Batch:
        """``samples``: of one part."""
        part = int(np.searchsorted(self._first, int(samples[0]), side="right")) - 1
        chosen = samples - self._first[part]
        predicted, high = (
            standardised * self._cost_std + self._cost_mean
            for standardised in self.network(self._features[part][chosen])
        )
        return Batch(predicted, high, self._costs[part][chosen], self._typical[part])

    def predict(self, samples: npt.NDArray[np.int64]) -> Predictions:
        """Costs of ``samples`` of one part, [samples, devices]."""
        return predicted_costs(self, samples)

    @property
    def output(self) -> CostOutput:
        """The last layer."""
        return self.network.output

    def export(self) -> dict[str, F32]:
        """The tensors, by their names in a file of cost models."""
        output = self.output.export(self._cost_mean, self._cost_std)
        return {
            f"{self._name}.feature_mean": self.mean,
            f"{self._name}.feature_std": self.std,
            **export_layers(f"{self._name}.device", self.network.device),
            **export_layers(f"{self._name}.head", self.network.head, output),
        }


def _statistics(parts: Sequence[F32]) -> tuple[F32, F32, npt.NDArray[np.bool_]]:
    """Mean and standard deviation of each feature, and whether it varies at all.

    Every part, [samples, features], counts the same. The standard deviation of what does not vary is 1.
    """
    mean = np.mean([part.mean(axis=0, dtype=np.float64) for part in parts], axis=0)
    variance = np.mean([((part - mean) ** 2).mean(axis=0) for part in parts], axis=0)
    extremes = np.concatenate([[part.min(axis=0), part.max(axis=0)] for part in parts])
    varies = np.ptp(extremes, axis=0) > _LEAST_RANGE
    std = np.where(varies, np.sqrt(variance), 1.0)
    return mean.astype(np.float32), std.astype(np.float32), varies
