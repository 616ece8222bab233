"""The card of cost models: what they are, how they were made, how good they are."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from neuroshard_fast.cost_models import (
    HIGH_QUANTILE,
    CostModels,
    CostModelsInfo,
    HeldOutError,
    TrainingData,
)

_SOURCES = {
    "measured": "Measured on hardware.",
    "simulated": "**Simulated**: all costs come from an analytic model of the hardware, none was "
    "measured.",
    "imported": "Imported: what the costs were measured on is not recorded.",
}


def render_card(models: CostModels) -> str:
    """The card of ``models`` in Markdown."""
    info = models.info
    parts = [
        f"# Cost models {info.name}",
        _SOURCES[info.source],
        "\n".join(
            [
                f"- Hardware: {info.hardware}",
                f"- Batch size: {_batch_sizes(info)}",
                f"- Device counts: {_counts(models)}",
                *(
                    f"- {network}: layers {_sizes(models, network)}"
                    for network in _networks(models)
                ),
            ]
        ),
    ]
    if info.errors:
        parts += [
            "## Error on held-out data",
            errors_table(info, "github"),
            "MAPE: mean absolute percentage error. Noise floor: the same between repeated "
            "measurements of one sample; empty where nothing was measured twice. Bias: what predictions are "
            "too high by, on average. Kendall: rank correlation tau-b. Coverage: share of the costs that lie "
            f"below the predicted high cost, {HIGH_QUANTILE:.0%} of them if it is right. Held out “samples”: "
            "new sets of tables that training knows; “tables”: samples made up only of tables that training "
            "never saw; “plans”: new plans that a search proposed.",
        ]
    if info.data:
        parts += [
            "## Data",
            _table(
                [
                    [
                        part.part,
                        part.samples,
                        part.tables,
                        None if part.batch_size is None else f"{part.batch_size:,}",
                        part.data_type,
                        part.source,
                        part.backend,
                        part.seed,
                        part.rounds,
                        part.date,
                        _versions(part.versions),
                    ]
                    for part in info.data
                ],
                [
                    *(
                        "folder",
                        "samples",
                        "tables",
                        "batch size",
                        "data type",
                        "source",
                        "backend",
                    ),
                    *("seed", "rounds", "date", "versions"),
                ],
            ),
            "Rounds: how often each sample was measured, its cost being the median; empty where that "
            "is not recorded.",
        ]
        if info.source == "measured":
            parts.append("On a CPU, a device is a process with one thread.")
    if info.training:
        parts += [
            "## Training",
            f"```\n{info.training.command}\n```",
            f"Seed {info.training.seed}; {info.training.date}; "
            f"{_versions(info.training.versions)}.",
        ]
    return "\n\n".join(parts) + "\n"


def models_table(models: Sequence[CostModels]) -> str:
    """One line for each of ``models``: what they are and their errors on held-out data."""
    rows: list[list[str | int | None]] = []
    for each in models:
        info = each.info
        rows.append(
            [
                info.name,
                info.source.upper() if info.source == "simulated" else info.source,
                info.hardware,
                _counts(each),
                " to ".join(f"{size:,}" for size in dict.fromkeys(info.batch_sizes)),
                *(_worst_error(info, network) for network in ("compute", "forward", "backward")),
            ]
        )
    headers = ["name", "source", "hardware", "device counts", "batch size"]
    errors = [f"{network} MAPE / Kendall" for network in ("compute", "forward", "backward")]
    return _table(rows, [*headers, *errors], "simple")


def errors_table(info: CostModelsInfo, style: str = "simple") -> str:
    """The errors on held-out data, a network and test set a line; ``style`` as in tabulate."""
    parts = {part.part: part for part in info.data}
    return _table(
        [_error_row(error, parts.get(error.part)) for error in info.errors],
        [
            *("network", "data", "batch size", "data type", "devices", "held out", "samples"),
            *("MAPE", "noise floor", "bias", "Kendall", "coverage", "MSE (ms²)"),
        ],
        style,
    )


def _networks(models: CostModels) -> list[str]:
    """The networks whose sizes a card names; those of all device counts are alike."""
    if models.is_shared:
        shared = [
            f"{way}.shared.{part}" for way in ("forward", "backward") for part in ("device", "head")
        ]
        return ["compute.table", "compute.set", *shared]
    first = (
        [f"{way}.{models.device_counts[0]}" for way in ("forward", "backward")]
        if models.device_counts
        else []
    )
    return ["compute.table", "compute.set", *first]


def _sizes(models: CostModels, network: str) -> str:
    layers = models.layers(network)
    return " → ".join(map(str, [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]))


def _counts(models: CostModels) -> str:
    if models.is_shared:
        trained_on = models.info.trained_on.device_counts if models.info.trained_on else ()
        known = f"trained on {', '.join(map(str, trained_on))}; " if trained_on else ""
        return f"any ({known}nodes of {models.info.devices_per_node})"
    return ", ".join(map(str, models.device_counts)) or "none"


def _worst_error(info: CostModelsInfo, network: str) -> str:
    """Error of the network (of all device counts and test sets, the largest)."""
    errors = [error for error in info.errors if error.network.split(".")[0] == network]
    if not errors:
        return "unknown"
    worst = max(errors, key=lambda error: error.mape)
    kendall = "" if worst.kendall is None else f" / {worst.kendall:.3f}"
    return f"{worst.mape:.1%}{kendall}"


def _error_row(error: HeldOutError, part: TrainingData | None) -> list[str | int | None]:
    return [
        error.network,
        error.part,
        None if part is None or part.batch_size is None else f"{part.batch_size:,}",
        None if part is None else part.data_type,
        error.devices,
        error.held_out,
        error.samples,
        f"{error.mape:.2%}",
        "" if error.noise_floor is None else f"{error.noise_floor:.2%}",
        "" if error.bias is None else f"{error.bias:+.2%}",
        "" if error.kendall is None else f"{error.kendall:.4f}",
        "" if error.coverage is None else f"{error.coverage:.1%}",
        f"{error.mse:.3g}",
    ]


def _batch_sizes(info: CostModelsInfo) -> str:
    low, high = info.batch_sizes
    text = f"{info.batch_size:,} samples, all devices together"
    return text if low == high else f"{low:,} to {high:,}; where nothing else is said {text}"


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(rows: list[list[str | int | None]], headers: list[str], style: str = "github") -> str:
    return tabulate(rows, headers, tablefmt=style, missingval="", disable_numparse=True)
