"""The cost networks in torch, each with the data it is trained on.

Shapes and activations: NeuroShard (arXiv:2305.01868). The networks work on standardised inputs and,
in training only, on standardised costs; what is exported takes and gives plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from neuroshard_fast.cost_models import F32
from neuroshard_fast.features import PUBLISHED_FEATURES
from neuroshard_fast.pretrain.options import PretrainOptions

Floats = npt.NDArray[np.float64]

# Added to standard deviations, so that a feature that never varies does no harm (published value).
_STD_OFFSET = 1e-6


class Regression(Protocol):
    """A network together with its samples."""

    @property
    def network(self) -> nn.Module:
        """What is trained."""
        ...

    @property
    def cost_mean(self) -> float:
        """Mean measured cost of the training samples, ms."""
        ...

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Predicted and measured costs in ms of ``samples``, each [len(samples), outputs].

        ``generator``: where given, samples are varied at random in ways that leave their costs.
        """
        ...


def predicted_costs(regression: Regression, samples: npt.NDArray[np.int64]) -> Floats:
    """Costs in ms that the network predicts for ``samples`` as they are, [samples, outputs]."""
    with torch.no_grad():
        costs, _ = regression.batch(torch.from_numpy(samples), None)
    return costs.numpy().astype(np.float64)


class _Sets:
    """Sets of tables of differing sizes, one after the other in one tensor."""

    def __init__(self, sets: Sequence[Sequence[int]]):
        self._sizes = torch.tensor([len(tables) for tables in sets])
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._tables = torch.tensor([table for tables in sets for table in tables])

    def select(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """All tables of the ``chosen`` sets, and for each its set, as a position in ``chosen``."""
        sizes = self._sizes[chosen]
        owners = torch.arange(len(chosen)).repeat_interleave(sizes)
        shifts = self._starts[chosen] - (sizes.cumsum(0) - sizes)
        return self._tables[torch.arange(len(owners)) + shifts[owners]], owners


class ComputeRegression:
    """Cost of a set of tables: a network for each table, their sum, a network for the sum.

    features: of the tables, [tables, 20]. samples: indices into them. costs: ms, [samples].
    training: the samples that costs are standardised over.

    Samples repeat the tables of a pool many times over, and a network could learn these by heart. It
    is kept from recognising them by rows and reuse histograms that vary: what costs hardly depend on
    when it changes a little, unlike the dimension and the pooling factor.
    """

    def __init__(
        self,
        features: F32,
        samples: Sequence[Sequence[int]],
        costs: Floats,
        training: npt.NDArray[np.int64],
        options: PretrainOptions,
    ):
        self.mean, self.std = _statistics(features.astype(np.float64))
        self.network = nn.ModuleDict(
            {
                "table": make_layers([features.shape[1], *options.table_sizes], relu_at_end=True),
                "set": make_layers(
                    [options.table_sizes[-1], *options.set_sizes, 1], relu_at_end=False
                ),
            }
        )
        self.cost_mean, self._cost_std = cost_statistics(costs[training])
        varies = np.array([name not in ("dim", "pooling_factor") for name in PUBLISHED_FEATURES])
        self._zero = torch.from_numpy(self.mean / self.std)
        # No more than the spread of the feature itself, lest the nearly constant drown in it.
        self._jitter = torch.from_numpy(varies) * self._zero.abs().reciprocal().clamp(
            max=options.feature_jitter
        )
        self._tables = self._standardise(features)
        self._sets = _Sets(samples)
        self._costs = torch.from_numpy(costs.astype(np.float32))[:, None]

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        tables, owners = self._sets.select(samples)
        inputs = self._tables[tables]
        if generator is not None:
            # What varies is the plain feature, which is the standardised one plus its zero, times std.
            factors = torch.exp(self._jitter * torch.randn(inputs.shape, generator=generator))
            inputs = (inputs + self._zero) * factors - self._zero
        return self._predict(inputs, owners, len(samples)), self._costs[samples]

    def predict(self, features: F32, samples: Sequence[Sequence[int]]) -> Floats:
        """Costs in ms, [samples], of sets of any tables."""
        with torch.no_grad():
            tables, owners = _Sets(samples).select(torch.arange(len(samples)))
            costs = self._predict(self._standardise(features)[tables], owners, len(samples))
        return costs[:, 0].numpy().astype(np.float64)

    def export(self) -> dict[str, F32]:
        """The tensors, by their names in a file of cost models."""
        return {
            "compute.feature_mean": self.mean,
            "compute.feature_std": self.std,
            **export_layers("compute.table", self.network["table"]),
            **export_layers("compute.set", self.network["set"], self.cost_mean, self._cost_std),
        }

    def _standardise(self, features: F32) -> Tensor:
        return torch.from_numpy((features - self.mean) / self.std)

    def _predict(self, tables: Tensor, owners: Tensor, samples: int) -> Tensor:
        """Costs of ``samples`` sets of tables; ``owners``: the set that each of ``tables`` is in."""
        encoded = self.network["table"](tables)
        sums = encoded.new_zeros(samples, encoded.shape[1]).index_add(0, owners, encoded)
        standardised: Tensor = self.network["set"](sums)
        return standardised * self._cost_std + self.cost_mean


class CommunicationRegression:
    """Costs of an all-to-all on each of D devices.

    name: "forward.D" or "backward.D".
    inputs: arrays [samples, D], one a quantity: dims, or dims and start times.
    costs: ms, [samples, D].
    training: the samples to standardise over.

    Devices are alike, so samples are trained on with their devices renumbered at random, those
    of a node together: what is learnt from one device holds for all, and how a plan numbers its
    devices hardly matters.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Floats],
        costs: Floats,
        training: npt.NDArray[np.int64],
        options: PretrainOptions,
    ):
        self.devices = costs.shape[1]
        self._name = name
        self._devices_per_node = options.devices_per_node
        statistics = [_statistics(values[training].reshape(-1, 1)) for values in inputs]
        self.mean = np.concatenate([mean.repeat(self.devices) for mean, _ in statistics])
        self.std = np.concatenate([std.repeat(self.devices) for _, std in statistics])
        width = len(inputs) * self.devices
        self.network = make_layers(
            [width, *options.communication_sizes, self.devices], relu_at_end=False
        )
        self.cost_mean, self._cost_std = cost_statistics(costs[training])
        values = np.concatenate(inputs, axis=1).astype(np.float32)
        self._inputs = torch.from_numpy((values - self.mean) / self.std)
        self._costs = torch.from_numpy(costs.astype(np.float32))

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        inputs, costs = self._inputs[samples], self._costs[samples]
        if generator is not None:
            order = self._renumbered(len(samples), generator)
            costs = costs.gather(1, order)
            quantities = range(0, inputs.shape[1], self.devices)
            inputs = inputs.gather(1, torch.cat([order + first for first in quantities], dim=1))
        standardised: Tensor = self.network(inputs)
        return standardised * self._cost_std + self.cost_mean, costs

    def _renumbered(self, samples: int, generator: torch.Generator) -> Tensor:
        """For each sample the devices in another order, [samples, D]; nodes stay together."""
        node = torch.arange(self.devices) // self._devices_per_node
        nodes = int(node[-1]) + 1
        if self.devices % self._devices_per_node == 0:
            order_of_nodes = torch.rand(samples, nodes, generator=generator).argsort(dim=1)
        else:
            order_of_nodes = torch.arange(nodes).expand(samples, nodes)
        within = torch.rand(samples, self.devices, generator=generator)
        return (order_of_nodes[:, node] + within).argsort(dim=1)

    def predict(self, samples: npt.NDArray[np.int64]) -> Floats:
        """Costs in ms of ``samples``, [samples, D]."""
        return predicted_costs(self, samples)

    def export(self) -> dict[str, F32]:
        """The tensors, by their names in a file of cost models."""
        return {
            f"{self._name}.feature_mean": self.mean,
            f"{self._name}.feature_std": self.std,
            **export_layers(self._name, self.network, self.cost_mean, self._cost_std),
        }


def make_layers(sizes: Sequence[int], *, relu_at_end: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(modules if relu_at_end else modules[:-1]))


def _statistics(values: Floats) -> tuple[F32, F32]:
    """Mean and standard deviation (unbiased where there are two or more) of each column."""
    unbiased = 1 if len(values) > 1 else 0
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=unbiased) + _STD_OFFSET
    return mean.astype(np.float32), std.astype(np.float32)


def cost_statistics(costs: Floats) -> tuple[float, float]:
    mean = float(costs.mean())
    # Costs that never vary leave the scale to the mean, so that steps keep a sensible size.
    return mean, float(costs.std()) or mean


def export_layers(
    name: str, layers: nn.Module, cost_mean: float = 0.0, cost_std: float = 1.0
) -> dict[str, F32]:
    """Weights and biases of each layer; the last takes over the standardisation of the costs."""
    linear = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    weights = [module.weight.detach().numpy().astype(np.float64) for module in linear]
    biases = [module.bias.detach().numpy().astype(np.float64) for module in linear]
    weights[-1] = weights[-1] * cost_std
    biases[-1] = biases[-1] * cost_std + cost_mean
    tensors = {}
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        tensors[f"{name}.{layer}.weight"] = weight.astype(np.float32)
        tensors[f"{name}.{layer}.bias"] = bias.astype(np.float32)
    return tensors
