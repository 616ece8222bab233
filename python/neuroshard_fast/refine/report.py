"""Cycles of refining for people to look at: a table and a picture."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from tabulate import tabulate

from neuroshard_fast.config import write_atomically
from neuroshard_fast.refine.comparison import Comparison
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.refine.state import Cycle
from neuroshard_fast.report import picture_format, require_matplotlib


def cycles_table(cycles: Sequence[Cycle], options: RefineOptions, style: str = "simple") -> str:
    """A cycle a line; ``style`` as in tabulate."""
    headers = (
        *("cycle", "plans", "bias", "MAPE", "noise floor", "MAPE / floor", "agrees"),
        *(
            "settled bias",
            "compute bias",
            "forward bias",
            "backward bias",
            "baselines' bias",
            "lookup speed",
            "all-to-all speed",
            "minutes",
        ),
    )
    rows = [_row(number, cycle, options) for number, cycle in enumerate(cycles, 1)]
    return tabulate(rows, headers, tablefmt=style, disable_numparse=True)


def draw_cycles(
    cycles: Sequence[Cycle], options: RefineOptions, title: str, path: str | os.PathLike[str]
) -> None:
    """Draw bias and MAPE of the proposed plans, cycle by cycle, to ``path``: PNG, SVG or PDF."""
    numbers = range(1, len(cycles) + 1)
    proposed = [cycle.proposed for cycle in cycles]
    figure = require_matplotlib().Figure(figsize=(8, 7), layout="constrained")
    bias_axes, mape_axes = figure.subplots(2, 1, sharex=True)
    bias_axes.axhspan(
        -100 * options.target_bias,
        100 * options.target_bias,
        color="#228833",
        alpha=0.15,
        label="target",
    )
    bias_axes.axhline(0.0, color="black", linewidth=0.8)
    bias_axes.errorbar(
        numbers,
        [100 * each.bias for each in proposed],
        yerr=[100 * (each.bias_error or 0.0) for each in proposed],
        color="#4477aa",
        marker="o",
        capsize=3,
        label="bias, ± its standard error",
    )
    bias_axes.set_ylabel("bias, %")
    bias_axes.set_title(title, fontsize=10)
    mape_axes.plot(
        numbers, [100 * each.mape for each in proposed], color="#4477aa", marker="o", label="MAPE"
    )
    mape_axes.plot(
        numbers,
        [100 * each.most_mape(options.target_bias, options.target_mape) for each in proposed],
        color="#228833",
        linestyle="--",
        marker="_",
        label="target",
    )
    mape_axes.set_ylabel("MAPE, %")
    mape_axes.set_ylim(bottom=0.0)
    mape_axes.set_xlabel("cycle")
    mape_axes.set_xticks(numbers)
    for axes in (bias_axes, mape_axes):
        axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format=picture_format(path), dpi=130)
    write_atomically(path, picture.getvalue())


def _row(number: int, cycle: Cycle, options: RefineOptions) -> list[str]:
    proposed = cycle.proposed
    agrees = proposed.is_within(options.target_bias, options.target_mape)
    floor = proposed.noise_floor
    parts = (cycle.settled, cycle.compute, cycle.forward, cycle.backward)
    return [
        str(number),
        str(proposed.samples),
        _bias(proposed),
        f"{proposed.mape:.2%}",
        "" if floor is None else f"{floor:.2%}",
        "" if not floor else f"{proposed.mape / floor:.2f}",
        "yes" if agrees else "no",
        *(f"{each.bias:+.1%}" for each in parts),
        "" if cycle.baselines is None else _bias(cycle.baselines),
        *(
            "" if speed is None else f"{speed:.2f}"
            for speed in (cycle.lookup_speed, cycle.transfer_speed)
        ),
        f"{cycle.seconds / 60:.1f}",
    ]


def _bias(comparison: Comparison) -> str:
    error = comparison.bias_error
    return f"{comparison.bias:+.2%}" + ("" if error is None else f" ± {error:.2%}")
