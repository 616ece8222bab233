"""How well predicted costs agree with other costs of the same plans."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted costs against true (or measured) ones, plan by plan; gaps are shares of the true cost.

    mean_gap, worst_gap: mean and largest |predicted - true| / true.
    bias: mean of (predicted - true) / true.
    kendall, spearman: rank correlations, tau-b and rho; None where one side has but one value.
    """

    mean_gap: float
    worst_gap: float
    bias: float
    kendall: float | None
    spearman: float | None

    @classmethod
    def of(cls, predicted: Sequence[float], true: Sequence[float]) -> Agreement:
        """Of at least one pair of costs; the true ones above 0."""
        a, b = np.array(predicted, float), np.array(true, float)
        relative = (a - b) / b
        return cls(
            mean_gap=float(np.abs(relative).mean()),
            worst_gap=float(np.abs(relative).max()),
            bias=float(relative.mean()),
            kendall=kendall(a, b),
            spearman=spearman(a, b),
        )


def differences_of_repeats(repeats: Floats) -> Floats:
    """How far each measurement of a sample is from the mean of its others, relative to that mean.

    repeats: [measurements, …], two measurements or more; so is the result.
    """
    others = (repeats.sum(axis=0) - repeats) / (len(repeats) - 1)
    return np.asarray(np.abs(repeats - others) / others)


def noise_floor(rounds: Sequence[Sequence[float]]) -> float | None:
    """How well measurements repeat, as a fraction; None where nothing was measured twice.

    As in :mod:`neuroshard_fast.cost_data`: the mean of ``abs(x - m) / m`` over all rounds ``x`` of all
    samples, ``m`` being the mean of the sample's other rounds.

    rounds: costs of each sample, above 0.
    """
    differences = [
        differences_of_repeats(costs) for costs in map(np.array, rounds) if len(costs) > 1
    ]
    return float(np.concatenate(differences).mean()) if differences else None


def kendall(a: Floats, b: Floats) -> float | None:
    """Kendall's tau-b of two arrays of shape [n]; None where one of them is constant."""
    concordant = untied_a = untied_b = 0
    for k in range(1, len(a)):
        signs_a, signs_b = np.sign(a[:k] - a[k]), np.sign(b[:k] - b[k])
        concordant += int(signs_a @ signs_b)
        untied_a += int(np.count_nonzero(signs_a))
        untied_b += int(np.count_nonzero(signs_b))
    return concordant / (untied_a * untied_b) ** 0.5 if untied_a and untied_b else None


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman's rho of two arrays of shape [n]; None where one of them is constant."""
    ranks = [x - x.mean() for x in (_ranks(a), _ranks(b))]
    size = float((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])) ** 0.5
    return float(ranks[0] @ ranks[1]) / size if size else None


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, order, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[order])
