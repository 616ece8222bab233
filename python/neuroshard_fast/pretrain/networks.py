"""The cost networks in torch, each with the data it is trained on.

Shapes and activations: NeuroShard (arXiv:2305.01868). The networks work on standardised inputs and,
in training only, on standardised costs; what is exported takes and gives plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from neuroshard_fast.cost_data import ComputeData
from neuroshard_fast.cost_models import F32, HIGH_QUANTILE
from neuroshard_fast.features import FEATURE_NAMES, FeatureKind, compute_features
from neuroshard_fast.pretrain.options import PretrainOptions

Floats = npt.NDArray[np.float64]

# Added to standard deviations, so that a feature that never varies does no harm (published value).
_STD_OFFSET = 1e-6
_LEAST_RANGE = 1e-9  # of a feature that varies; below is rounding


class Batch(NamedTuple):
    """Predicted and measured costs of some samples, ms, each [samples, outputs].

    predicted: the middle of what the network expects.
    high: what it expects :data:`HIGH_QUANTILE` of costs to stay below; None where it does not say. Its
        gradient ends at the last layer.
    typical: mean cost of measurements of the kind, such as of one batch size, [samples, 1].
    """

    predicted: Tensor
    high: Tensor | None
    measured: Tensor
    typical: Tensor


class Regression(Protocol):
    """A network together with its samples."""

    @property
    def network(self) -> nn.Module:
        """What is trained."""
        ...

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> Batch:
        """Costs of ``samples``.

        ``generator``: where given, samples are varied at random in ways that leave their costs.
        """
        ...


class Predictions(NamedTuple):
    """Predicted costs in ms, [samples, outputs]; ``high`` as in :class:`Batch`."""

    predicted: Floats
    high: Floats | None


class CostOutput(nn.Module):
    """The last layer: from hidden values to a cost, and how much dearer it may well be.

    The second does not reach the layers before, which serve the cost alone.
    """

    def __init__(self, inputs: int):
        super().__init__()
        self.cost = nn.Linear(inputs, 1)
        self.spread = nn.Linear(inputs, 1)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Cost and high cost, standardised, each of the shape of ``hidden`` but for 1 at the end."""
        cost: Tensor = self.cost(hidden)
        return cost, cost.detach() + self.spread(hidden.detach())

    def scale_spread(self, factor: float) -> None:
        """Multiply how much dearer costs may be."""
        with torch.no_grad():
            self.spread.weight.mul_(factor)
            self.spread.bias.mul_(factor)

    def export(self, cost_mean: float, cost_std: float) -> tuple[F32, F32]:
        """Weight [2, inputs] and bias [2] of a layer that gives both costs in ms."""
        rows = [
            (as_float64(layer.weight), as_float64(layer.bias)) for layer in (self.cost, self.spread)
        ]
        (weight, bias), (more_weight, more_bias) = rows
        weights = np.concatenate([weight, weight + more_weight])
        biases = np.concatenate([bias, bias + more_bias])
        return _in_ms(weights, biases, cost_mean, cost_std)


def calibrate(
    regression: Regression, output: CostOutput, groups: Sequence[npt.NDArray[np.int64]]
) -> None:
    """Scale the spread so that :data:`HIGH_QUANTILE` of the costs of samples lie below the high ones.

    groups: samples that are not trained on; what is trained on is known too well. Those of a group can be
        predicted together, and each group counts the same.
    """
    needed, weights = [], []
    for samples in groups:
        with torch.no_grad():
            predicted, high, measured, _ = regression.batch(torch.from_numpy(samples), None)
        assert high is not None  # noqa: S101 for the type checker
        above, spread = as_float64(measured - predicted), as_float64(high - predicted)
        # How often the spread a cost needs; none suffices where there is no spread.
        with np.errstate(divide="ignore", invalid="ignore"):
            without = np.where(above > 0, np.inf, -np.inf)
            needed.append(np.where(spread > 0, above / spread, without).ravel())
        weights.append(np.full(needed[-1].size, 1 / needed[-1].size))
    every, weight = np.concatenate(needed), np.concatenate(weights)
    order = np.argsort(every)
    reached = np.cumsum(weight[order]) / weight.sum()
    rounding = 1e-9  # of the sums
    enough = np.searchsorted(reached, HIGH_QUANTILE - rounding)
    factor = float(every[order][enough.clip(max=len(every) - 1)])
    if 0 < factor < np.inf:
        output.scale_spread(factor)


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


class LookupSamples(NamedTuple):
    """Costs of sets of tables; several :class:`~neuroshard_fast.cost_data.ComputeData` in a row.

    features: of the tables, [tables, features]. sets: row numbers of it, one tuple a sample.
    costs, typical: ms, [samples]; the second as in :class:`Batch`.
    """

    features: F32
    sets: Sequence[Sequence[int]]
    costs: Floats
    typical: Floats

    @classmethod
    def of(cls, kind: FeatureKind, parts: Sequence[ComputeData]) -> LookupSamples:
        """All samples of ``parts``, in their order."""
        sets: list[tuple[int, ...]] = []
        tables = 0
        for part in parts:
            sets += [tuple(tables + table for table in sample) for sample in part.samples]
            tables += len(part.tables)
        return cls(
            np.concatenate([compute_features(kind, x.tables, x.batch_size) for x in parts]),
            sets,
            np.concatenate([part.costs for part in parts]),
            np.concatenate([np.full(len(part.costs), part.costs.mean()) for part in parts]),
        )


class ComputeRegression:
    """Cost of a set of tables: a network for each table, their sum, a network for the sum.

    training: the samples that costs are standardised over.

    Samples repeat the tables of a pool many times over, and a network could learn these by heart. With
    the published features it is kept from recognising them by rows and reuse histograms that vary: what
    costs hardly depend on when it changes a little, unlike the dimension and the pooling factor.
    """

    def __init__(
        self,
        kind: FeatureKind,
        samples: LookupSamples,
        training: npt.NDArray[np.int64],
        options: PretrainOptions,
    ):
        features = samples.features.astype(np.float64)
        self.mean, self.std = _statistics(features)
        first, *rest = options.table_sizes
        self.network = nn.ModuleDict(
            {
                "table": make_layers([features.shape[1], first, *rest], relu_at_end=True),
                "set": make_layers([options.table_sizes[-1], *options.set_sizes], relu_at_end=True),
                "output": CostOutput(options.set_sizes[-1]),
            }
        )
        if kind == "physical":
            # What never varied is not learnt, and stays without effect where it is different.
            constant = np.ptp(features, axis=0) < _LEAST_RANGE
            self.std[constant] = 1.0
            with torch.no_grad():
                first_layer(self.network["table"]).weight[:, torch.from_numpy(constant)] = 0.0
        self.cost_mean, self._cost_std = cost_statistics(samples.costs[training])
        jittered = [
            kind == "published" and name not in ("dim", "pooling_factor")
            for name in FEATURE_NAMES[kind]
        ]
        self._zero = torch.from_numpy(self.mean / self.std)
        # No more than the spread of the feature itself, lest the nearly constant drown in it.
        self._jitter = torch.tensor(jittered) * self._zero.abs().reciprocal().clamp(
            max=options.feature_jitter
        )
        self._tables = self._standardise(samples.features)
        self._sets = _Sets(samples.sets)
        self._costs = torch.from_numpy(samples.costs.astype(np.float32))[:, None]
        self._typical = torch.from_numpy(samples.typical.astype(np.float32))[:, None]

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> Batch:
        tables, owners = self._sets.select(samples)
        inputs = self._tables[tables]
        if generator is not None and bool(self._jitter.any()):
            # What varies is the plain feature, which is the standardised one plus its zero, times std.
            factors = torch.exp(self._jitter * torch.randn(inputs.shape, generator=generator))
            inputs = (inputs + self._zero) * factors - self._zero
        predicted = self._predict(inputs, owners, len(samples))
        return Batch(*predicted, self._costs[samples], self._typical[samples])

    def predict(self, features: F32, sets: Sequence[Sequence[int]]) -> Predictions:
        """Costs in ms, [samples, 1], of sets of any tables with these ``features``."""
        with torch.no_grad():
            tables, owners = _Sets(sets).select(torch.arange(len(sets)))
            costs = self._predict(self._standardise(features)[tables], owners, len(sets))
        return Predictions(*(as_float64(each) for each in costs))

    @property
    def output(self) -> CostOutput:
        """The last layer."""
        output = self.network["output"]
        assert isinstance(output, CostOutput)  # noqa: S101 for the type checker
        return output

    def export(self) -> dict[str, F32]:
        """The tensors, by their names in a file of cost models."""
        output = self.output.export(self.cost_mean, self._cost_std)
        return {
            "compute.feature_mean": self.mean,
            "compute.feature_std": self.std,
            **export_layers("compute.table", self.network["table"]),
            **export_layers("compute.set", self.network["set"], output),
        }

    def _standardise(self, features: F32) -> Tensor:
        return torch.from_numpy((features - self.mean) / self.std)

    def _predict(self, tables: Tensor, owners: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Costs of ``samples`` sets of tables; ``owners``: the set that each of ``tables`` is in."""
        encoded = self.network["table"](tables)
        sums = encoded.new_zeros(samples, encoded.shape[1]).index_add(0, owners, encoded)
        cost, high = self.network["output"](self.network["set"](sums))
        return cost * self._cost_std + self.cost_mean, high * self._cost_std + self.cost_mean


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
        self._typical = torch.full((1, 1), self.cost_mean)
        values = np.concatenate(inputs, axis=1).astype(np.float32)
        self._inputs = torch.from_numpy((values - self.mean) / self.std)
        self._costs = torch.from_numpy(costs.astype(np.float32))

    def batch(self, samples: Tensor, generator: torch.Generator | None) -> Batch:
        inputs, costs = self._inputs[samples], self._costs[samples]
        if generator is not None:
            order = self._renumbered(len(samples), generator)
            costs = costs.gather(1, order)
            quantities = range(0, inputs.shape[1], self.devices)
            inputs = inputs.gather(1, torch.cat([order + first for first in quantities], dim=1))
        standardised: Tensor = self.network(inputs)
        predicted = standardised * self._cost_std + self.cost_mean
        return Batch(predicted, None, costs, self._typical)

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

    def predict(self, samples: npt.NDArray[np.int64]) -> Predictions:
        """Costs of ``samples``, [samples, D]."""
        return predicted_costs(self, samples)

    def export(self) -> dict[str, F32]:
        """The tensors, by their names in a file of cost models."""
        return {
            f"{self._name}.feature_mean": self.mean,
            f"{self._name}.feature_std": self.std,
            **export_layers(self._name, self.network[:-1], self._last_layer()),
        }

    def _last_layer(self) -> tuple[F32, F32]:
        last = self.network[-1]
        assert isinstance(last, nn.Linear)  # noqa: S101 for the type checker
        return _in_ms(
            as_float64(last.weight), as_float64(last.bias), self.cost_mean, self._cost_std
        )


def _in_ms(weight: Floats, bias: Floats, cost_mean: float, cost_std: float) -> tuple[F32, F32]:
    """A last layer that takes over the standardisation of the costs."""
    scaled_bias = bias * cost_std + cost_mean
    return (weight * cost_std).astype(np.float32), scaled_bias.astype(np.float32)


def predicted_costs(regression: Regression, samples: npt.NDArray[np.int64]) -> Predictions:
    """What the network predicts for ``samples`` as they are."""
    with torch.no_grad():
        batch = regression.batch(torch.from_numpy(samples), None)
    return Predictions(
        as_float64(batch.predicted), None if batch.high is None else as_float64(batch.high)
    )


def as_float64(tensor: Tensor) -> Floats:
    return tensor.detach().numpy().astype(np.float64)


def first_layer(layers: nn.Module) -> nn.Linear:
    first = next(iter(layers.children()))
    assert isinstance(first, nn.Linear)  # noqa: S101 for the type checker
    return first


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
    name: str, layers: nn.Module, last: tuple[F32, F32] | None = None
) -> dict[str, F32]:
    """Weights and biases of each layer, and of ``last`` after them."""
    exported = [
        (as_float64(module.weight).astype(np.float32), as_float64(module.bias).astype(np.float32))
        for module in layers.modules()
        if isinstance(module, nn.Linear)
    ]
    if last is not None:
        exported.append(last)
    tensors = {}
    for layer, (weight, bias) in enumerate(exported):
        tensors[f"{name}.{layer}.weight"] = weight
        tensors[f"{name}.{layer}.bias"] = bias
    return tensors
