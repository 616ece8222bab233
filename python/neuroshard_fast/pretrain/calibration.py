"""A picture of how right predictions and their doubts are on held-out samples."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from neuroshard_fast.config import write_atomically
from neuroshard_fast.cost_models import HIGH_QUANTILE, CostModelsInfo
from neuroshard_fast.pretrain.networks import Predictions
from neuroshard_fast.report import picture_format, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_GROUPS = 10
_FEWEST = 20  # samples of a group
_MOST_POINTS = 4000
_COLOURS = {"compute": "#4477aa", "backward": "#ee6677", "forward": "#ccbb44"}


class HeldOutSamples(NamedTuple):
    """Predicted and measured costs of a folder, ms, [samples, outputs]."""

    network: str
    predicted: Predictions
    measured: Floats


def draw_calibration(
    held_out: Sequence[HeldOutSamples], info: CostModelsInfo, path: str | os.PathLike[str]
) -> None:
    """Draw predicted against measured costs, and doubt against what it should have been.

    For the second, samples with about the same doubt (how far the high cost lies above the expected
    one, relative to it) are grouped; what it should have been is the HIGH_QUANTILE of how far their
    measured costs lie above. MissingDependencyError without matplotlib.
    """
    figure = require_matplotlib().Figure(figsize=(11, 5), layout="constrained")
    costs, doubts = figure.subplots(1, 2)
    for network, colour in _COLOURS.items():
        own = [each for each in held_out if each.network.split(".")[0] == network]
        if not own:
            continue
        predicted = np.concatenate([each.predicted.predicted.ravel() for each in own])
        measured = np.concatenate([each.measured.ravel() for each in own])
        shown = np.random.default_rng(0).permutation(len(predicted))[:_MOST_POINTS]
        costs.scatter(
            measured[shown], predicted[shown], s=3, alpha=0.4, color=colour, label=network
        )
        high = [each.predicted.high for each in own]
        spreads = [x.ravel() for x in high if x is not None]
        if len(spreads) == len(own):
            _draw_doubts(doubts, predicted, np.concatenate(spreads), measured, network, colour)
    for axes, what in (
        (costs, "cost, ms"),
        (doubts, f"doubt: {HIGH_QUANTILE:.0%} are less above, %"),
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high_end = (pick(*axes.get_xlim(), *axes.get_ylim()) for pick in (min, max))
        axes.plot([low, high_end], [low, high_end], color="black", linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        axes.set_title(what)
    costs.set_xlabel({"simulated": "SIMULATED", "measured": "measured"}.get(info.source, "actual"))
    costs.set_ylabel("predicted")
    doubts.set_xlabel("predicted")
    doubts.set_ylabel("found on held-out samples")
    simulated = "SIMULATED " if info.source == "simulated" else ""
    figure.suptitle(f"{info.name}: {simulated}{info.hardware}", fontsize=10, wrap=True)
    picture = io.BytesIO()
    figure.savefig(picture, format=picture_format(path), dpi=90)
    write_atomically(path, picture.getvalue())


def _draw_doubts(
    axes: Axes, predicted: Floats, high: Floats, measured: Floats, network: str, colour: str
) -> None:
    doubt = (high - predicted) / predicted
    above = (measured - predicted) / predicted
    order = np.argsort(doubt)
    groups = np.array_split(order, max(1, min(_GROUPS, len(order) // _FEWEST)))
    points = [(doubt[group].mean(), np.quantile(above[group], HIGH_QUANTILE)) for group in groups]
    shown = 100 * np.array([point for point in points if min(point) > 0])
    if len(shown):
        axes.plot(shown[:, 0], shown[:, 1], "o-", markersize=4, color=colour, label=network)
