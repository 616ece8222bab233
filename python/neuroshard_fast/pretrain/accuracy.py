"""How good predictions are."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from neuroshard_fast.cost_models import HeldOutError
from neuroshard_fast.errors import InputError

Floats = npt.NDArray[np.float64]


def held_out_error(
    network: str,
    held_out: Literal["samples", "tables"],
    predicted: Floats,
    measured: Floats,
    noise_floor: float | None,
    *,
    devices: int | None = None,
) -> HeldOutError:
    """Compare predicted and measured costs in ms, [samples] or [samples, devices].

    devices: of the samples, where the network serves any number of them.

    InputError where a prediction is not finite.
    """
    if not np.isfinite(predicted).all():
        raise InputError(
            f"{network}: training diverged: predictions for held-out {held_out} are not finite; lower "
            "learning_rate or weight_decay"
        )
    kendall = float(kendalltau(predicted.ravel(), measured.ravel()).statistic)
    return HeldOutError(
        network=network,
        devices=devices,
        held_out=held_out,
        samples=len(measured),
        mape=float(np.mean(np.abs(predicted - measured) / measured)),
        kendall=None if math.isnan(kendall) else kendall,
        mse=float(np.mean((predicted - measured) ** 2)),
        noise_floor=noise_floor,
    )
