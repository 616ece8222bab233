"""The training loop."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuroshard_fast.cost_models import HIGH_QUANTILE
from neuroshard_fast.errors import InputError
from neuroshard_fast.pretrain.networks import Batch, Regression
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.progress import progress_bar

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Sample indices: 80% to train on, 10% to choose the best epoch by, 10% to report errors on."""

    training: Indices
    validation: Indices
    test: Indices

    @classmethod
    def random(cls, samples: int, seed: int, first: int = 0) -> Split:
        """Split ``samples`` samples, numbered from ``first`` on, at random."""
        order = first + np.random.default_rng(seed).permutation(samples)
        training, validation = samples * 8 // 10, samples * 9 // 10
        return cls(order[:training], order[training:validation], order[validation:])

    @classmethod
    def joined(cls, splits: Sequence[Split], repeats: Sequence[int]) -> Split:
        """One of all ``splits``, each repeated so often in an epoch."""
        each = [split.repeated(count) for split, count in zip(splits, repeats, strict=True)]
        return cls(
            np.concatenate([split.training for split in each]),
            np.concatenate([split.validation for split in each]),
            np.concatenate([split.test for split in each]),
        )

    def repeated(self, count: int) -> Split:
        """The same, each sample to train on ``count`` times an epoch, and as often to validate."""
        return Split(np.tile(self.training, count), np.tile(self.validation, count), self.test)


def fit(
    regression: Regression,
    splits: Sequence[Split],
    options: PretrainOptions,
    *,
    minibatch_size: int,
    weight_decay: float,
    label: str,
    progress: bool,
) -> None:
    """Train the network and leave it with the weights of its best validation epoch.

    splits: samples of different ones do not share a minibatch, and of all the validation error is the
        mean; an epoch takes all minibatches in a random order.

    Adam with decoupled weight decay; the learning rate rises evenly over the first 5% of the steps and
    then falls along a cosine.

    InputError as soon as the validation error is not finite, also where it was before: what was best
    until then is no trained network.
    """
    generator = torch.Generator().manual_seed(options.seed)
    training = [torch.from_numpy(split.training) for split in splits]
    validation = [torch.from_numpy(split.validation) for split in splits]
    optimizer = torch.optim.AdamW(
        regression.network.parameters(), lr=options.learning_rate, weight_decay=weight_decay
    )
    steps = options.epochs * sum(math.ceil(len(samples) / minibatch_size) for samples in training)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))

    best, best_epoch = math.inf, 0
    best_weights = copy.deepcopy(regression.network.state_dict())
    with progress_bar(options.epochs, label, unit="epoch", disable=not progress) as bar:
        for epoch in range(options.epochs):
            for samples in _minibatches(training, minibatch_size, generator):
                optimizer.zero_grad()
                batch = regression.batch(samples, generator)
                torch.autograd.backward(_loss(batch) + _high_loss(batch))
                optimizer.step()
                schedule.step()
            with torch.no_grad():
                error = statistics.fmean(
                    float(_loss(regression.batch(samples, None))) for samples in validation
                )
            if not math.isfinite(error):
                raise InputError(
                    f"{label}: training diverged: its error is not finite after epoch {epoch + 1}; "
                    f"lower learning_rate ({options.learning_rate:g}) or weight_decay "
                    f"({weight_decay:g}), or mend the costs in data.txt"
                )
            if error < best:
                best, best_epoch = error, epoch
                best_weights = copy.deepcopy(regression.network.state_dict())
            bar.set_postfix_str(f"validation error {best:.4f}", refresh=False)
            bar.update()
            if epoch - best_epoch >= options.patience:
                break
    regression.network.load_state_dict(best_weights)


def _minibatches(
    training: Sequence[Tensor], size: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """All samples in minibatches of one part of ``training`` each, in a random order."""
    minibatches = [
        samples
        for part in training
        for samples in torch.split(part[torch.randperm(len(part), generator=generator)], size)
    ]
    if len(training) == 1:
        yield from minibatches  # they are in a random order
        return
    for index in torch.randperm(len(minibatches), generator=generator).tolist():
        yield minibatches[index]


def _rate(step: int, steps: int) -> float:
    """The learning rate at ``step`` of ``steps``, as a share of its peak."""
    rising = max(1, steps // 20)
    if step < rising:
        return (step + 1) / rising
    return 0.5 + 0.5 * math.cos(math.pi * (step - rising) / max(1, steps - rising))


def _loss(batch: Batch) -> Tensor:
    """Mean absolute error, relative to each cost plus relative to the typical cost.

    The first term alone neglects dear samples, which decide a plan's cost; the second alone
    neglects cheap ones. Squares, as published, would follow outliers of the measurement.
    """
    error = (batch.predicted - batch.measured).abs()
    return (error / _scale(batch)).mean() + (error / batch.typical).mean()


def _high_loss(batch: Batch) -> Tensor:
    """Quantile loss, relative to each cost: least where HIGH_QUANTILE of costs lie below the high one."""
    if batch.high is None:
        return batch.predicted.new_zeros(())
    above = (batch.measured - batch.high) / _scale(batch)
    return torch.maximum(HIGH_QUANTILE * above, (HIGH_QUANTILE - 1) * above).mean()


def _scale(batch: Batch) -> Tensor:
    """Each cost, as it is predicted.

    Of a noisy measurement the low values would count more if errors were relative to what was measured, and
    predictions would come out too low: by some 10% where measurements repeat to 30%. The bounds
    are for the first steps, when predictions may be anything.
    """
    return batch.predicted.detach().clamp(batch.measured / 3, batch.measured * 3)
