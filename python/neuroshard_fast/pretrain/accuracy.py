"""How good predictions are."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from neuroshard_fast.cost_models import HeldOut, HeldOutError
from neuroshard_fast.errors import InputError
from neuroshard_fast.pretrain.networks import Predictions

Floats = npt.NDArray[np.float64]


def held_out_error(
    network: str,
    held_out: HeldOut,
    predicted: Predictions,
    measured: Floats,
    noise_floor: float | None,
    *,
    part: str,
    devices: int | None = None,
) -> HeldOutError:
    """Compare predicted and measured costs in ms, [samples, outputs].

    part: the folder of cost data that the samples are from.
    devices: of the samples, where the network serves any number of them.

    InputError where a prediction is not finite.
    """
    costs = predicted.predicted
    if not np.isfinite(costs).all():
        raise InputError(
            f"{network}: training diverged: predictions for held-out {held_out} are not finite; lower "
            "learning_rate or weight_decay"
        )
    kendall = float(kendalltau(costs.ravel(), measured.ravel()).statistic)
    return HeldOutError(
        network=network,
        devices=devices,
        held_out=held_out,
        samples=len(measured),
        part=part,
        mape=float(np.mean(np.abs(costs - measured) / measured)),
        kendall=None if math.isnan(kendall) else kendall,
        mse=float(np.mean((costs - measured) ** 2)),
        noise_floor=noise_floor,
        bias=float(np.mean((costs - measured) / measured)),
        coverage=None if predicted.high is None else float(np.mean(measured <= predicted.high)),
    )
