"""Plans for people to look at: a table and a picture of the load of each device."""

from __future__ import annotations

import io
import os
import textwrap
from types import ModuleType

from tabulate import tabulate

from neuroshard_fast.config import as_path, write_atomically
from neuroshard_fast.errors import InputError, MissingDependencyError
from neuroshard_fast.plan import CostModelsUsed, ShardingPlan
from neuroshard_fast.units import format_bytes

_GIB = 2**30


def provenance(models: CostModelsUsed, batch_size: int) -> str:
    """Where predicted costs come from, in one line; ``batch_size`` is that planned for."""
    source = {
        "measured": f"measured on {models.hardware}",
        "simulated": f"SIMULATED {models.hardware}",
        "imported": "imported checkpoints",
    }[models.source]
    low, high = models.batch_sizes or (models.batch_size, models.batch_size)
    known = f"batch size {low}" if low == high else f"batch sizes {low} to {high}"
    text = f"cost models {models.name}: {source}, {known}"
    if not low <= batch_size <= high:
        text += f" (planned for batch size {batch_size}: the predictions are off)"
    return text


def format_plan(plan: ShardingPlan) -> str:
    """The load of each device as a table, with the summary above it."""
    rows = [
        (
            load.device,
            load.num_shards,
            format_bytes(load.memory_bytes),
            f"{load.memory_bytes / plan.memory_cap_bytes:.1%}",
            load.compute_ms,
            load.forward_comm_ms,
            load.backward_comm_ms,
            load.total_ms,
            *(() if load.high_ms is None else (load.high_ms,)),
        )
        for load in plan.devices
    ]
    headers = [
        *("device", "shards", "memory", "of cap"),
        *("compute ms", "forward ms", "backward ms", "total ms"),
        *(() if plan.high_cost_ms is None else ("high ms",)),
    ]
    table = tabulate(
        rows,
        headers=headers,
        floatfmt=".3f",
        colalign=("right",) * len(headers),
    )
    lines = [
        f"predicted cost {plan.cost_ms:.3f} ms a step of {plan.batch_size} samples on "
        f"{plan.world_size} devices "
        f"({plan.algorithm}, planned in {plan.planning_ms:.1f} ms, "
        f"{len(plan.column_splits)} column splits)",
        provenance(plan.cost_models, plan.batch_size),
    ]
    if plan.lower_bound_ms is not None:
        gap = f", {1 - plan.lower_bound_ms / plan.cost_ms:.1%} less" if plan.cost_ms > 0 else ""
        lines.append(
            f"no plan costs less than {plan.lower_bound_ms:.3f} ms{gap}, as these cost models predict"
        )
    if plan.interrupted:
        lines.append("the search was stopped: the best plan until then")
    if plan.mean_cost_ms is not None:
        lines.append(
            f"{plan.mean_cost_ms:.3f} ms on average over orders of the devices: these cost models know "
            "devices by their numbers"
        )
    if plan.high_cost_ms is not None:
        lines.append(
            f"doubt: {plan.high_cost_ms:.3f} ms if every part costs what nine of ten stay below (“high”)"
        )
    lines += [f"outside the training data: {what}" for what in plan.outside_training]
    if plan.assumed_histograms:
        lines.append(
            f"reuse histograms assumed (Zipf) for {len(plan.assumed_histograms)} of "
            f"{len({shard.table for shard in plan.shards})} tables"
        )
    return "\n".join([*lines, "", table])


def require_matplotlib() -> ModuleType:
    """``matplotlib.figure``; MissingDependencyError where it is not installed."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingDependencyError(
            "drawing needs matplotlib: pip install 'neuroshard-fast[report]'"
        ) from error
    return matplotlib.figure


def draw_plan(plan: ShardingPlan, path: str | os.PathLike[str]) -> None:
    """Draw cost and memory of each device to ``path``; its ending names the format (PNG, SVG, PDF)."""
    figure = require_matplotlib().Figure(
        figsize=(max(8.0, 0.12 * plan.world_size + 4), 7), layout="constrained"
    )
    cost_axes, memory_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    devices = [load.device for load in plan.devices]
    bottom = [0.0] * len(devices)
    for name, color, values in (
        ("compute", "#4477aa", [load.compute_ms for load in plan.devices]),
        ("backward all-to-all", "#ee6677", [load.backward_comm_ms for load in plan.devices]),
        ("forward all-to-all", "#ccbb44", [load.forward_comm_ms for load in plan.devices]),
    ):
        cost_axes.bar(devices, values, bottom=bottom, label=name, color=color)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    if plan.high_cost_ms is not None:
        high = [load.high_ms or 0.0 for load in plan.devices]
        cost_axes.scatter(devices, high, marker="_", s=60, color="black", label="high")
    cost_axes.axhline(plan.cost_ms, color="black", linewidth=0.8, linestyle="--")
    cost_axes.set_ylabel("predicted ms a step")
    cost_axes.set_ylim(0, max(plan.cost_ms, plan.high_cost_ms or 0.0) * 1.25)
    cost_axes.legend(loc="upper right", ncols=4)
    cost_axes.set_title(
        f"{plan.algorithm}: {plan.cost_ms:.3f} ms on {plan.world_size} devices\n"
        + textwrap.fill(provenance(plan.cost_models, plan.batch_size), 80),
        fontsize=10,
    )
    memory_axes.bar(devices, [load.memory_bytes / _GIB for load in plan.devices], color="#228833")
    memory_axes.axhline(
        plan.memory_cap_bytes / _GIB, color="black", linewidth=0.8, linestyle="--", label="cap"
    )
    memory_axes.set_ylabel("memory, GiB")
    memory_axes.set_xlabel("device")
    memory_axes.set_ylim(0, plan.memory_cap_bytes / _GIB * 1.3)
    memory_axes.legend(loc="upper right")
    if plan.world_size <= 32:
        memory_axes.set_xticks(devices)
    picture = io.BytesIO()
    figure.savefig(picture, format=picture_format(path), dpi=130)
    write_atomically(path, picture.getvalue())


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format that a picture of this name is written in; InputError for names of no picture."""
    suffix = as_path(path).suffix.lstrip(".").lower() or "png"
    if suffix not in ("png", "svg", "pdf"):
        raise InputError(f"{path}: pictures end in .png, .svg or .pdf")
    return suffix
