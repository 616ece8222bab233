"""Communication networks that serve any number of devices, against their definition in NumPy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from neuroshard_fast import _core

Floats = npt.NDArray[np.float64]
BATCH_SIZE = 4096


@dataclass(frozen=True)
class Layers:
    """A multi-layer perceptron with random weights."""

    weights: list[Floats]
    biases: list[Floats]
    mean: Floats | None = None
    std: Floats | None = None

    @classmethod
    def random(cls, generator: np.random.Generator, *sizes: int, features: bool = False) -> Layers:
        pairs = list(itertools.pairwise(sizes))
        return cls(
            [generator.normal(size=(o, i)).astype(np.float32) / np.sqrt(i) for i, o in pairs],
            [generator.normal(size=o).astype(np.float32) for _, o in pairs],
            generator.normal(size=sizes[0]).astype(np.float32) if features else None,
            generator.uniform(0.5, 2.0, sizes[0]).astype(np.float32) if features else None,
        )

    def network(self) -> _core.Network:
        return _core.Network(list(zip(self.weights, self.biases, strict=True)), self.mean, self.std)

    def __call__(self, values: Floats) -> Floats:
        if self.mean is not None and self.std is not None:
            values = (values - self.mean) / self.std
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight.T.astype(float) + bias
            if layer + 1 < len(self.weights):
                values = np.maximum(values, 0.0)
        return values


@dataclass(frozen=True)
class Shared:
    """Random networks of both directions."""

    forward: tuple[Layers, Layers]
    backward: tuple[Layers, Layers]
    devices_per_node: int

    @classmethod
    def random(cls, seed: int, devices_per_node: int, *, head: tuple[int, ...] = (12,)) -> Shared:
        generator = np.random.default_rng(seed)
        return cls(
            (
                Layers.random(generator, 8, 9, 5, features=True),
                Layers.random(generator, 15, *head, 1),
            ),
            (
                Layers.random(generator, 7, 9, 3, features=True),
                Layers.random(generator, 9, *head, 1),
            ),
            devices_per_node,
        )

    def networks(self) -> _core.SharedCommunication:
        return _core.SharedCommunication(
            self.forward[0].network(),
            self.forward[1].network(),
            self.backward[0].network(),
            self.backward[1].network(),
            devices_per_node=self.devices_per_node,
            batch_size=BATCH_SIZE,
        )

    def costs(self, dims: Floats, compute: Floats) -> tuple[Floats, Floats]:
        """Forward and backward costs by definition, [devices] each, ms."""
        devices = len(dims)
        node = np.arange(devices) // self.devices_per_node
        size = np.bincount(node)[node]
        in_node = np.bincount(node, weights=dims)[node]
        per_dim = BATCH_SIZE * 4 / devices / 1e6
        features = [
            per_dim * (size - 1) * dims,
            per_dim * (devices - size) * dims,
            per_dim * (in_node - dims),
            per_dim * (dims.sum() - in_node),
            size - 1.0,
            devices - size + 0.0,
            np.full(devices, np.log2(devices)),
        ]
        backward = self._evaluate(self.backward, np.stack(features, axis=1))
        busy = compute + backward
        starts = busy - busy.min()
        forward = np.stack([*features, starts.max() - starts], axis=1)
        return self._evaluate(self.forward, forward), backward

    @staticmethod
    def _evaluate(networks: tuple[Layers, Layers], features: Floats) -> Floats:
        device, head = networks
        channels = device(features)
        everyone = np.concatenate([channels.max(axis=0), channels.mean(axis=0)])
        inputs = np.concatenate([channels, np.tile(everyone, (len(channels), 1))], axis=1)
        return np.asarray(head(inputs)[:, 0])


def cost_networks(communication: _core.SharedCommunication) -> _core.CostNetworks:
    generator = np.random.default_rng(0)
    return _core.CostNetworks(
        Layers.random(generator, 3, 6, 4).network(),
        Layers.random(generator, 4, 5, 1).network(),
        communication,
    )


def problem(tables: int, devices: int) -> _core.Problem:
    generator = np.random.default_rng(tables)
    return _core.Problem(
        features=generator.normal(size=(tables, 3)),
        features_per_column=np.tile([0.0, 1.0, 0.0], (tables, 1)),
        features_per_doubling=np.zeros(3),
        dims=generator.choice([8, 16, 32, 64], tables),
        output_width=np.ones(tables),
        bytes_per_column=np.full(tables, 10),
        bytes_fixed=np.zeros(tables, np.int64),
        devices=devices,
        memory_bytes=10**9,
    )


@pytest.mark.parametrize("head", [(), (12,), (7, 33)])
@pytest.mark.parametrize("devices_per_node", [1, 3, 4, 100])
@pytest.mark.parametrize("devices", [1, 2, 4, 7, 33])
def test_costs_are_those_of_the_definition(
    devices: int, devices_per_node: int, head: tuple[int, ...]
) -> None:
    shared = Shared.random(devices, devices_per_node, head=head)
    placement = [list(range(device, 40, devices)) for device in range(devices)]
    plan = _core.evaluate(cost_networks(shared.networks()), problem(40, devices), [], placement)
    forward, backward = shared.costs(np.array(plan.dim_sums), np.array(plan.compute))
    np.testing.assert_allclose(plan.backward, backward, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(plan.forward, forward, rtol=2e-5, atol=2e-5)


def test_renumbering_the_devices_of_a_node_and_the_nodes_changes_nothing() -> None:
    networks = cost_networks(Shared.random(1, 4).networks())
    placement = [list(range(device, 40, 8)) for device in range(8)]
    plan = _core.evaluate(networks, problem(40, 8), [], placement)
    order = [6, 4, 7, 5, 1, 0, 2, 3]  # the second node first, each in another order
    renumbered = _core.evaluate(networks, problem(40, 8), [], [placement[i] for i in order])
    assert renumbered.cost == pytest.approx(plan.cost, rel=1e-5)
    np.testing.assert_allclose(renumbered.forward, np.array(plan.forward)[order], rtol=1e-4)
    # Between nodes it does matter who is where.
    mixed = _core.evaluate(networks, problem(40, 8), [], placement[::2] + placement[1::2])
    assert mixed.cost != pytest.approx(plan.cost, rel=1e-5)


@pytest.mark.parametrize("isa", _core.supported_isas())
def test_plans_are_the_same_for_every_instruction_set_and_number_of_threads(isa: str) -> None:
    networks = cost_networks(Shared.random(2, 4).networks())
    wanted = _core.search(networks, problem(30, 12))
    assert wanted is not None
    before = _core.isa()
    _core.use_isa(isa)
    try:
        for threads in (1, 3):
            plan = _core.search(networks, problem(30, 12), threads=threads)
            assert plan is not None
            assert (plan.cost, plan.column_splits, plan.placement) == (
                wanted.cost,
                wanted.column_splits,
                wanted.placement,
            )
    finally:
        _core.use_isa(before)


def test_unsuitable_networks_are_refused_by_name() -> None:
    generator = np.random.default_rng(0)

    def network(*sizes: int, features: bool = False) -> _core.Network:
        return Layers.random(generator, *sizes, features=features).network()

    def shared(**changes: object) -> _core.SharedCommunication:
        arguments: dict[str, object] = {
            "forward_device": network(8, 5),
            "forward_head": network(15, 4, 1),
            "backward_device": network(7, 5),
            "backward_head": network(15, 4, 1),
            "devices_per_node": 8,
            "batch_size": 64,
        }
        return _core.SharedCommunication(**{**arguments, **changes})  # type: ignore[arg-type]

    shared()
    for name, wrong, message in (
        ("forward_device", network(7, 5), "forward_device: the network must have 8 inputs"),
        ("backward_device", network(8, 5), "backward_device: the network must have 7 inputs"),
        ("forward_head", network(14, 1), "forward_head: the network must have 15 inputs"),
        ("backward_head", network(15, 2), "backward_head: the network must have one output"),
        (
            "forward_head",
            network(15, 1, features=True),
            "forward_head: the network must have one output and no statistics",
        ),
        ("devices_per_node", 0, "devices_per_node must be at least 1, got 0"),
        ("batch_size", -1, "batch_size must be at least 1, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            shared(**{name: wrong})
