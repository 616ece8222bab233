"""The card of cost models: what they are, how they were made, how good they are."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from neuroshard_fast.cost_models import CostModels, CostModelsInfo, HeldOutError

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
                f"- Batch size: {info.batch_size:,} samples, all devices together",
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
            "measurements of one sample; empty where nothing was measured twice. Kendall: rank "
            "correlation tau-b. Held out “samples”: new sets of tables that training knows; "
            "“tables”: samples made up only of tables that training never saw.",
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
                    *("folder", "samples", "tables", "source", "backend"),
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
                info.batch_size,
                *(_worst_error(info, network) for network in ("compute", "forward", "backward")),
            ]
        )
    headers = ["name", "source", "hardware", "device counts", "batch size"]
    errors = [f"{network} MAPE / Kendall" for network in ("compute", "forward", "backward")]
    return _table(rows, [*headers, *errors], "simple")


def errors_table(info: CostModelsInfo, style: str = "simple") -> str:
    """The errors on held-out data, a network and test set a line; ``style`` as in tabulate."""
    return _table(
        [_error_row(error) for error in info.errors],
        [
            "network",
            "devices",
            "held out",
            "samples",
            "MAPE",
            "noise floor",
            "Kendall",
            "MSE (ms²)",
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
        trained_on = sorted({error.devices for error in models.info.errors if error.devices})
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


def _error_row(error: HeldOutError) -> list[str | int | None]:
    return [
        error.network,
        error.devices,
        error.held_out,
        error.samples,
        f"{error.mape:.2%}",
        "" if error.noise_floor is None else f"{error.noise_floor:.2%}",
        "" if error.kendall is None else f"{error.kendall:.4f}",
        f"{error.mse:.3g}",
    ]


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(rows: list[list[str | int | None]], headers: list[str], style: str = "github") -> str:
    return tabulate(rows, headers, tablefmt=style, missingval="", disable_numparse=True)
