"""Is one communication network for all device counts closer to the truth than the published ones?

The golden communication data has labels whose formula is known, so any number of samples can be
labelled. One shared network for each direction is trained on 3,000 samples of each of five device
counts, 15,000 in all: as many as each published network was trained on for one count. All are tested
on 15,000 samples a count, drawn as published (starts in whole ms), and near zero wait, where good
plans are: starts below 0.05 ms. The shared one is also tested on device counts that it never saw.

Prints a Markdown table and writes the figures as JSON. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import tabulate
import torch
import tqdm

from golden_models import GOLDEN_DEVICE_COUNTS, import_golden_models
from neuroshard_fast import CostModels, config
from neuroshard_fast.cost_models import F32
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.pretrain.shared_communication import (
    AllToAlls,
    SharedCommunicationRegression,
    communication_features,
)
from neuroshard_fast.pretrain.training import Split, fit
from neuroshard_fast.profile.sampling import draw_all_to_all, published_dims

Floats = npt.NDArray[np.float64]
Direction = Literal["forward", "backward"]
Predict = Callable[[Direction, Floats, Floats], Floats]

UNSEEN_DEVICE_COUNTS = (3, 6, 12, 32, 64)
BATCH_SIZE = 65536
ONE_NODE = 512  # the golden labels know no nodes
NEAR_ZERO_MS = 0.05
TEST_SEED = 10**6
CHUNK = 500  # samples predicted at once


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a network for one device count.

    mse: ms², on samples as published. near_zero_bias: mean error near zero wait, as a share of the
    mean cost there.
    """

    mse: float
    near_zero_bias: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both kinds of network for one direction and device count; no published one for unseen counts."""

    direction: Direction
    devices: int
    shared: Accuracy
    published: Accuracy | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """samples: of each device count trained on. test_samples: of each tested."""

    samples: int
    test_samples: int
    epochs: int
    seed: int
    comparisons: list[Comparison]


def golden_costs(direction: Direction, dims: Floats, starts: Floats) -> Floats:
    """The synthetic labels of the golden data, ms, [samples, devices]."""
    devices = dims.shape[1]
    base = 0.1 + BATCH_SIZE * 4 * dims * (devices - 1) / devices / 1e11 * 250
    backward: Floats = 0.7 * base.max(axis=1, keepdims=True) + 0.3 * base
    if direction == "backward":
        return backward
    forward: Floats = backward + 0.9 * (starts.max(axis=1, keepdims=True) - starts)
    return forward


def draw_training(devices: int, samples: int, seed: int) -> tuple[Floats, Floats]:
    """Dims and starts as ``neuroshard profile`` draws them."""
    drawn = [draw_all_to_all(devices, seed, sample) for sample in range(samples)]
    return np.array([x.dims for x in drawn], float), np.array([x.starts_ms for x in drawn])


def draw_test(devices: int, samples: int, seed: int) -> tuple[Floats, Floats]:
    """Dims and starts as published."""
    dims, starts = np.empty((samples, devices)), np.empty((samples, devices))
    for sample in range(samples):
        generator = np.random.default_rng([TEST_SEED, seed, sample])
        dims[sample] = published_dims(generator, devices)
        starts[sample] = generator.integers(0, generator.integers(1, 20), size=devices)
    return dims, starts - starts.min(axis=1, keepdims=True)


def perceptron(models: dict[str, F32], network: str, values: F32) -> F32:
    """The network as in docs/cost-models.md, in fp32."""
    layer = 0
    while (weight := models.get(f"{network}.{layer}.weight")) is not None:
        if layer:
            values = np.maximum(values, 0)
        values = values @ weight.T + models[f"{network}.{layer}.bias"]
        layer += 1
    return values


def published_prediction(models: CostModels) -> Predict:
    """Costs as the imported networks predict them."""
    tensors = dict(models.tensors)

    def predict(direction: Direction, dims: Floats, starts: Floats) -> Floats:
        network = f"{direction}.{dims.shape[1]}"
        inputs = np.concatenate([dims, starts], axis=1) if direction == "forward" else dims
        mean, std = (tensors[f"{network}.feature_{part}"] for part in ("mean", "std"))
        return perceptron(tensors, network, (inputs.astype(np.float32) - mean) / std).astype(float)

    return predict


def shared_prediction(tensors: dict[str, F32]) -> Predict:
    """Costs as the exported shared networks predict them."""

    def predict(direction: Direction, dims: Floats, starts: Floats) -> Floats:
        network = f"{direction}.shared"
        features = communication_features(
            dims, starts if direction == "forward" else None, BATCH_SIZE, ONE_NODE
        )
        mean, std = (tensors[f"{network}.feature_{part}"] for part in ("mean", "std"))
        own = perceptron(tensors, f"{network}.device", (features - mean) / std)
        across = np.concatenate([own.max(axis=1), own.mean(axis=1)], axis=1)[:, None]
        across = np.broadcast_to(across, (*own.shape[:2], across.shape[2]))
        head = perceptron(tensors, f"{network}.head", np.concatenate([own, across], axis=2))
        return head[:, :, 0].astype(float)

    return predict


def train(samples: int, options: PretrainOptions) -> dict[str, F32]:
    """Shared networks for both directions, trained on golden labels of the published device counts."""
    drawn = {
        devices: draw_training(devices, samples, options.seed)
        for devices in tqdm.tqdm(GOLDEN_DEVICE_COUNTS, "drawing training samples")
    }
    splits = [Split.random(samples, options.seed, samples * part) for part in range(len(drawn))]
    tensors: dict[str, F32] = {}
    torch.set_num_threads(options.threads)
    directions: tuple[Direction, ...] = ("forward", "backward")
    for direction in directions:
        torch.manual_seed(options.seed)
        parts = [
            AllToAlls(
                BATCH_SIZE,
                dims,
                starts if direction == "forward" else None,
                golden_costs(direction, dims, starts),
            )
            for dims, starts in drawn.values()
        ]
        regression = SharedCommunicationRegression(direction, parts, splits, options)
        fit(
            regression,
            splits,
            options,
            minibatch_size=options.shared_minibatch_size,
            weight_decay=0.0,
            label=f"{direction}.shared",
            progress=True,
        )
        tensors |= regression.export()
    return tensors


def accuracy(predict: Predict, direction: Direction, dims: Floats, starts: Floats) -> Accuracy:
    """Errors for dims and starts as published, and for the same dims near zero wait."""
    generator = np.random.default_rng(TEST_SEED)
    near = generator.uniform(0.0, NEAR_ZERO_MS, size=starts.shape)
    near -= near.min(axis=1, keepdims=True)
    squared = error = cost = 0.0
    for first in range(0, len(dims), CHUNK):
        chunk = slice(first, first + CHUNK)
        truth = golden_costs(direction, dims[chunk], starts[chunk])
        squared += float(((predict(direction, dims[chunk], starts[chunk]) - truth) ** 2).sum())
        truth = golden_costs(direction, dims[chunk], near[chunk])
        error += float((predict(direction, dims[chunk], near[chunk]) - truth).sum())
        cost += float(truth.sum())
    return Accuracy(mse=squared / dims.size, near_zero_bias=error / cost)


def compare(shared: Predict, published: Predict, test_samples: int, seed: int) -> list[Comparison]:
    """Both kinds for both directions and every device count."""
    comparisons = []
    counts = sorted((*GOLDEN_DEVICE_COUNTS, *UNSEEN_DEVICE_COUNTS))
    for devices in tqdm.tqdm(counts, "testing"):
        dims, starts = draw_test(devices, test_samples, seed)
        directions: tuple[Direction, ...] = ("forward", "backward")
        comparisons += [
            Comparison(
                direction=direction,
                devices=devices,
                shared=accuracy(shared, direction, dims, starts),
                published=accuracy(published, direction, dims, starts)
                if devices in GOLDEN_DEVICE_COUNTS
                else None,
            )
            for direction in directions
        ]
    return comparisons


def table(comparisons: list[Comparison]) -> str:
    """The comparisons in Markdown, forward ones first."""
    rows = []
    for each in sorted(comparisons, key=lambda x: (x.direction != "forward", x.devices)):
        published = each.published
        rows.append(
            [
                each.direction,
                f"{each.devices}" if published else f"{each.devices} (unseen)",
                f"{published.mse:.2g}" if published else "",
                f"{each.shared.mse:.2g}",
                f"{published.mse / each.shared.mse:,.0f}" if published else "",
                f"{published.near_zero_bias:+.2%}" if published else "",
                f"{each.shared.near_zero_bias:+.2%}",
            ]
        )
    headers = [
        *("direction", "devices", "MSE, published (ms²)", "MSE, shared (ms²)", "ratio"),
        *("near zero wait: bias, published", "bias, shared"),
    ]
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=3000, help="of each count trained on")
    parser.add_argument("--test-samples", type=int, default=15000, help="of each count tested")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("communication_models.json"))
    args = parser.parse_args()
    options = PretrainOptions(
        epochs=args.epochs,
        patience=args.epochs,
        seed=args.seed,
        devices_per_node=ONE_NODE,
        shared_minibatch_size=32,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "golden.safetensors"
        import_golden_models(file)
        published = published_prediction(CostModels.load(file))
    shared = shared_prediction(train(args.samples, options))
    comparisons = compare(shared, published, args.test_samples, args.seed)
    report = Report(
        samples=args.samples,
        test_samples=args.test_samples,
        epochs=args.epochs,
        seed=args.seed,
        comparisons=comparisons,
    )
    config.save(args.output, report)
    print(table(comparisons))


if __name__ == "__main__":
    main()
