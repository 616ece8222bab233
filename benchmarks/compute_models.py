"""How well compute networks predict tables, dims and batch sizes that they were not trained on.

Trains on the folders ``compute…`` of cost data and tests on each folder ``compute_heldout…``: with
physical features and this package's training; with the published features, loss and training on the
same samples; and published once more with only the samples of the test's own batch size and data
type. Prints MAPE, its excess over the noise floor and Kendall's tau within each folder as a Markdown
table; with ``--curve`` also the error against the number of samples trained on. About ten minutes of
one core.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import tqdm
from scipy.stats import kendalltau
from tabulate import tabulate

from neuroshard_fast import config
from neuroshard_fast.cost_data import ComputeData, cost_data_folders, read_compute
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import FeatureKind, compute_features
from neuroshard_fast.pretrain import PretrainOptions
from neuroshard_fast.pretrain.networks import ComputeRegression, LookupSamples
from neuroshard_fast.pretrain.training import Split, fit
from neuroshard_fast.report import picture_format

Floats = npt.NDArray[np.float64]

PUBLISHED_EPOCHS = 200
PUBLISHED_MINIBATCH = 512
PUBLISHED_RATE = 1e-3
CURVE = (100, 300, 1000, 3000, 10000)


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Of predictions for one folder."""

    mape: float
    kendall: float


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of held-out samples; ``own_condition``: None where nothing of it is trained on."""

    folder: str
    samples: int
    noise_floor: float
    physical: Accuracy
    published: Accuracy
    own_condition: Accuracy | None


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over the folders, after training on ``samples`` samples."""

    samples: int
    mape: float
    kendall: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    hardware: str
    samples: int
    tested: list[Tested]
    curve: list[CurvePoint]


@dataclass(frozen=True)
class Trained:
    """A network and the features that it takes."""

    kind: FeatureKind
    regression: ComputeRegression

    def accuracy(self, part: ComputeData) -> Accuracy:
        """On the samples of ``part``."""
        features = compute_features(self.kind, part.tables, part.batch_size)
        predicted = self.regression.predict(features, part.samples).predicted[:, 0]
        return Accuracy(
            mape=float(np.mean(np.abs(predicted - part.costs) / part.costs)),
            kendall=float(kendalltau(predicted, part.costs).statistic),
        )


def train(
    parts: Sequence[ComputeData], options: PretrainOptions, most: int | None = None
) -> Trained:
    """With physical features, on ``most`` samples drawn at random."""
    torch.manual_seed(options.seed)
    samples = LookupSamples.of("physical", parts)
    chosen = np.random.default_rng(options.seed).permutation(len(samples.costs))[:most]
    split = Split.random(len(chosen), options.seed)
    split = Split(chosen[split.training], chosen[split.validation], chosen[split.test])
    regression = ComputeRegression("physical", samples, split.training, options)
    fit(
        regression,
        [split],
        options,
        minibatch_size=options.minibatch_size,
        weight_decay=options.weight_decay,
        label=f"physical, {len(chosen)} samples",
        progress=True,
    )
    return Trained("physical", regression)


def train_published(parts: Sequence[ComputeData], options: PretrainOptions) -> Trained:
    """Published features, squared error, minibatches and learning rate; best validation epoch."""
    torch.manual_seed(options.seed)
    samples = LookupSamples.of("published", parts)
    split = Split.random(len(samples.costs), options.seed)
    regression = ComputeRegression("published", samples, split.training, options)
    optimizer = torch.optim.Adam(regression.network.parameters(), lr=PUBLISHED_RATE)
    training, validation = torch.from_numpy(split.training), torch.from_numpy(split.validation)
    generator = torch.Generator().manual_seed(options.seed)
    best, weights = math.inf, regression.network.state_dict()

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        batch = regression.batch(chosen, None)
        return ((batch.predicted - batch.measured) ** 2).mean()

    for _ in tqdm.tqdm(range(PUBLISHED_EPOCHS), f"published, {len(samples.costs)} samples"):
        order = training[torch.randperm(len(training), generator=generator)]
        for chosen in torch.split(order, PUBLISHED_MINIBATCH):
            optimizer.zero_grad()
            torch.autograd.backward(loss(chosen))
            optimizer.step()
        with torch.no_grad():
            error = float(loss(validation))
        if error < best:
            best = error
            weights = {
                name: value.clone() for name, value in regression.network.state_dict().items()
            }
    regression.network.load_state_dict(weights)
    return Trained("published", regression)


def condition(part: ComputeData) -> tuple[int, str]:
    """Batch size and data type."""
    assert part.info is not None
    return part.info.batch_size, part.info.data_type


def compare(
    parts: Sequence[ComputeData], held_out: Sequence[ComputeData], options: PretrainOptions
) -> list[Tested]:
    """All three on each folder of held-out samples."""
    ours, published = train(parts, options), train_published(parts, options)
    own: dict[tuple[int, str], Trained] = {}
    tested = []
    for part in held_out:
        same = [each for each in parts if condition(each) == condition(part)]
        if same and condition(part) not in own:
            own[condition(part)] = train_published(same, options)
        in_condition = own.get(condition(part))
        if part.noise_floor is None:
            raise InputError(f"{part.name}: nothing was measured twice: no noise floor")
        tested.append(
            Tested(
                folder=part.name,
                samples=len(part.costs),
                noise_floor=part.noise_floor,
                physical=ours.accuracy(part),
                published=published.accuracy(part),
                own_condition=None if in_condition is None else in_condition.accuracy(part),
            )
        )
    return tested


def learning_curve(
    parts: Sequence[ComputeData], held_out: Sequence[ComputeData], options: PretrainOptions
) -> list[CurvePoint]:
    """Errors against samples; the samples are drawn from all folders alike."""
    total = sum(len(part.costs) for part in parts)
    points = []
    for most in [*(count for count in CURVE if count < total), total]:
        # As many steps for few samples as for many, as far as that makes sense.
        epochs = min(1000, max(options.epochs, options.epochs * total // (4 * most)))
        trained = train(parts, replace(options, epochs=epochs), most)
        each = [trained.accuracy(part) for part in held_out]
        points.append(
            CurvePoint(
                samples=most,
                mape=float(np.mean([accuracy.mape for accuracy in each])),
                kendall=float(np.mean([accuracy.kendall for accuracy in each])),
            )
        )
    return points


def format_report(report: Report) -> str:
    """Markdown."""
    rows = []
    for test in report.tested:
        floor = test.noise_floor
        own = test.own_condition
        rows.append(
            [
                test.folder.removeprefix("compute_heldout").removeprefix("-"),
                test.samples,
                f"{floor:.2%}",
                f"{test.physical.mape:.2%}",
                f"{test.published.mape:.1%}",
                "" if own is None else f"{own.mape:.2%}",
                _excess_ratio(test.physical, test.published, floor),
                "" if own is None else _excess_ratio(test.physical, own, floor),
                f"{test.physical.mape / floor:.2f}",
                f"{test.physical.kendall:.3f}",
                f"{test.published.kendall:.3f}",
                "" if own is None else f"{own.kendall:.3f}",
            ]
        )
    headers = [
        *("held out", "samples", "noise floor", "MAPE", "published", "published, own condition"),
        *("excess / published", "excess / own", "MAPE / floor"),
        *("Kendall", "published", "own"),
    ]
    parts = [tabulate(rows, headers, tablefmt="github", disable_numparse=True)]
    if report.curve:
        curve = [[f"{x.samples:,}", f"{x.mape:.2%}", f"{x.kendall:.3f}"] for x in report.curve]
        headers = ["samples", "mean MAPE", "mean Kendall"]
        parts.append(tabulate(curve, headers, tablefmt="github", disable_numparse=True))
    return "\n\n".join(parts)


def _excess_ratio(ours: Accuracy, other: Accuracy, floor: float) -> str:
    """Excess over the noise floor against that of ``other``; nothing where that has none."""
    return (
        "" if other.mape <= floor else f"{max(0.0, ours.mape - floor) / (other.mape - floor):.2f}"
    )


def draw(report: Report, path: Path) -> None:
    """The learning curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([x.samples for x in report.curve], [100 * x.mape for x in report.curve], "o-")
    floor = 100 * float(np.mean([test.noise_floor for test in report.tested]))
    axes.axhline(floor, color="black", linestyle="--", linewidth=0.8, label="noise floor")
    axes.set_xscale("log")
    axes.set_xlabel("sets of tables measured")
    axes.set_ylabel("mean error on unseen tables, %")
    axes.set_ylim(0)
    axes.set_title(f"Compute network, {report.hardware}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, format=picture_format(path), dpi=130)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with compute… and compute_heldout… folders")
    parser.add_argument("-o", "--output", type=Path, required=True, help="results as JSON")
    parser.add_argument("--curve", type=Path, help="picture of the error against samples")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    options = PretrainOptions(epochs=args.epochs, seed=args.seed)
    torch.set_num_threads(options.threads)
    folders = cost_data_folders(args.data)
    parts = [read_compute(path) for path in folders.compute]
    held_out = [read_compute(path) for path in folders.held_out]
    report = Report(
        hardware=parts[0].info.hardware if parts[0].info is not None else "unknown",
        samples=sum(len(part.costs) for part in parts),
        tested=compare(parts, held_out, options),
        curve=learning_curve(parts, held_out, options) if args.curve else [],
    )
    config.save(args.output, report)
    if args.curve:
        draw(report, args.curve)
    print(format_report(report))


if __name__ == "__main__":
    main()
