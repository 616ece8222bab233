"""``data.txt`` of the published cost data: measured sets of tables, and measured all-to-alls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number
from neuroshard_fast.errors import InputError
from neuroshard_fast.published.text import columns_of_lines, numbers

Floats = npt.NDArray[np.float64]

_LARGEST = 1e12  # of any dim or time; more is a mistake
_COMMUNICATION_COLUMNS = ("dims", "starts", "fw_costs", "bw_costs")


def read_compute_samples(
    path: str | os.PathLike[str], num_tables: int
) -> tuple[list[tuple[int, ...]], Floats]:
    """Table ids of every sample, and its cost in ms, shape [samples].

    ``num_tables`` is the number of tables in the ``table_configs.json`` beside it.
    """
    samples: list[tuple[int, ...]] = []
    costs: list[float] = []
    for where, (ids_text, cost_text) in columns_of_lines(path, ("ids", "cost")):
        ids = tuple(numbers(ids_text, int, f"{where}: ids"))
        for id_ in ids:
            if not 0 <= id_ < num_tables:
                raise InputError(
                    f"{where}: ids: {id_} is not a table: there are 0 to {num_tables - 1}"
                )
        cost = numbers(cost_text, float, f"{where}: cost")
        if len(cost) != 1:
            raise InputError(f"{where}: cost: one number wanted, got {len(cost)}")
        _check(cost, f"{where}: cost")
        samples.append(ids)
        costs += cost
    return samples, np.array(costs)


def read_communication_samples(
    path: str | os.PathLike[str],
) -> tuple[Floats, Floats, Floats, Floats]:
    """Output dims, start times, forward and backward costs in ms, each [samples, devices]."""
    rows: list[list[list[float]]] = []
    for where, texts in columns_of_lines(path, _COMMUNICATION_COLUMNS):
        row: list[list[float]] = []
        for name, text in zip(_COMMUNICATION_COLUMNS, texts, strict=True):
            values = numbers(text, float, f"{where}: {name}")
            devices = len(rows[0][0]) if rows else len(row[0]) if row else len(values)
            if len(values) != devices:
                raise InputError(f"{where}: {name}: {devices} devices wanted, got {len(values)}")
            _check(values, f"{where}: {name}")
            row.append(values)
        rows.append(row)
    dims, starts, forward, backward = np.array(rows).transpose(1, 0, 2)
    return dims, starts, forward, backward


def write_compute_samples(
    path: str | os.PathLike[str], samples: Iterable[tuple[Sequence[int], float]]
) -> None:
    """Write table ids and cost in ms, one sample a line."""
    lines = [f"{','.join(map(str, ids))} {cost:.6f}\n" for ids, cost in samples]
    config.write_atomically(path, "".join(lines).encode())


def write_communication_samples(
    path: str | os.PathLike[str],
    samples: Iterable[tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]],
) -> None:
    """Write dims, start times, forward and backward costs in ms, one sample a line."""
    lines = [
        " ".join(
            [",".join(f"{dim:.15g}" for dim in sample[0])]
            + [",".join(f"{value:.6f}" for value in values) for values in sample[1:]]
        )
        + "\n"
        for sample in samples
    ]
    config.write_atomically(path, "".join(lines).encode())


def _check(values: list[float], where: str) -> None:
    for value in values:
        finite_number(value, where, low=0.0, high=_LARGEST)
