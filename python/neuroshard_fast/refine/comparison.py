"""Predicted costs of a cycle against measured ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from neuroshard_fast.agreement import noise_floor
from neuroshard_fast.checks import finite_number, whole_number

_MAX_SAMPLES = 10**9


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicted against measured costs, all as fractions.

    samples: how many were compared. Their measured cost is the median over their rounds.
    bias: mean of ``(predicted - measured) / measured``.
    bias_error: standard error of it, from how it varies over the samples; None for a single one.
    mape: mean of the absolute values.
    noise_floor: how well measurements repeat: each round of a sample is compared with the mean ``m`` of
        the sample's other rounds; it is the mean of ``abs(round - m) / m``. None where nothing was
        measured twice.
    """

    samples: int
    bias: float
    bias_error: float | None
    mape: float
    noise_floor: float | None

    def __post_init__(self) -> None:
        whole_number(self.samples, "samples", low=1, high=_MAX_SAMPLES)
        finite_number(self.bias, "bias", low=-1e12, high=1e12)
        finite_number(self.mape, "mape", low=0.0, high=1e12)
        for field in ("bias_error", "noise_floor"):
            if getattr(self, field) is not None:
                finite_number(getattr(self, field), field, low=0.0, high=1e12)

    def is_within(self, target_bias: float, target_mape: float) -> bool:
        """Whether the bias is within ``target_bias`` and the MAPE within :meth:`most_mape`."""
        most = self.most_mape(target_bias, target_mape)
        return abs(self.bias) <= target_bias and self.mape <= most

    def most_mape(self, target_bias: float, target_mape: float) -> float:
        """``target_mape`` noise floors.

        Without a noise floor ``target_bias`` takes its place: simulated costs repeat exactly.
        """
        return target_mape * (target_bias if self.noise_floor is None else self.noise_floor)


def compare(predicted: Sequence[float], rounds: Sequence[Sequence[float]]) -> Comparison:
    """``predicted`` costs of samples, at least one, against the costs of their ``rounds``, above 0."""
    errors = [
        (cost - statistics.median(each)) / statistics.median(each)
        for cost, each in zip(predicted, rounds, strict=True)
    ]
    return Comparison(
        samples=len(errors),
        bias=statistics.fmean(errors),
        bias_error=statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else None,
        mape=statistics.fmean(map(abs, errors)),
        noise_floor=noise_floor(rounds),
    )
