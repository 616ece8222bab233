"""The engine against the method in plain Python, where arithmetic is exact and ties are many."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from neuroshard_fast import _core
from neuroshard_fast.features import ShardFeatures
from reference_search import Layers, ReferenceSearch


def random_layers(random: np.random.Generator, *sizes: int, low: int) -> Layers:
    return [
        (random.integers(low, 3, (outputs, inputs)), random.integers(0, 3, outputs))
        for inputs, outputs in itertools.pairwise(sizes)
    ]


def engine_arguments(reference: ReferenceSearch) -> tuple[_core.CostNetworks, _core.Problem]:
    networks = _core.CostNetworks(
        _core.Network(reference.table),
        _core.Network(reference.set_),
        {reference.devices: _core.Network(reference.forward)},
        {reference.devices: _core.Network(reference.backward)},
    )
    problem = _core.Problem(
        **ShardFeatures.with_width(reference.features.astype(np.float32), 0)._asdict(),
        dims=reference.features[:, 0],
        output_width=np.array(reference.output_width),
        bytes_per_column=np.array(reference.bytes_per_column),
        bytes_fixed=np.array(reference.bytes_fixed),
        devices=reference.devices,
        memory_bytes=reference.caps,
        least_widths=reference.least_widths,
        split_widths=reference.split_widths,
        pinned=reference.pinned,
    )
    return networks, problem


def random_case(seed: int) -> tuple[ReferenceSearch, dict[str, int]]:
    """A small problem and the options of its search."""
    random = np.random.default_rng(seed)
    tables = int(random.integers(1, 9))
    devices = int(random.integers(1, 4))
    dims = 4 * 2 ** random.integers(0, 4, tables)
    output_width = random.integers(0, 4, tables)
    bytes_per_column = random.integers(1, 4, tables)
    bytes_fixed = random.integers(0, 9, tables)
    sizes = dims * bytes_per_column + bytes_fixed
    largest = int(sizes.max())
    fair_share = int(sizes.sum()) // devices
    # From too little for the largest table to enough for everything.
    cap = int(random.integers(min(largest // 2, fair_share), 2 * fair_share + largest))
    reference = ReferenceSearch(
        table=random_layers(random, 3, 4, 3, low=-1),
        set_=random_layers(random, 3, 4, 1, low=0),
        forward=random_layers(random, 2 * devices, 3, devices, low=0),
        backward=random_layers(random, devices, 3, devices, low=0),
        features=np.column_stack([dims, random.integers(0, 3, (tables, 2))]),
        output_width=output_width.tolist(),
        bytes_per_column=bytes_per_column.tolist(),
        bytes_fixed=bytes_fixed.tolist(),
        devices=devices,
        caps=[cap] * devices,
        grid_steps=int(random.choice([1, 2, 5, 11])),
    )
    options = {
        "beam_width": int(random.integers(1, 4)),
        "candidates": int(random.integers(1, 6)),
        "max_splits": int(random.integers(1, 4)),
        "grid_steps": reference.grid_steps,
    }
    return reference, options


def constrained_case(seed: int) -> tuple[ReferenceSearch, dict[str, int]]:
    """The same with caps that differ, and some of the other constraints."""
    reference, options = random_case(seed)
    random = np.random.default_rng(1000 + seed)
    tables = len(reference.features)
    cap = reference.caps[0]
    reference.caps = random.integers(cap // 2, 2 * cap, reference.devices).tolist()
    dims = reference.features[:, 0]
    if random.random() < 0.5:
        reference.least_widths = random.choice([0, 4, 8, 12, 16], tables).tolist()
    if random.random() < 0.5:
        divisors = dims // 2 ** random.integers(0, 3, tables)
        reference.split_widths = np.where(divisors % 4 == 0, divisors, 0).tolist()
    if random.random() < 0.7:
        pinned = np.where(
            random.random(tables) < 0.3, random.integers(0, reference.devices, tables), -1
        )
        for table, device in enumerate(pinned.tolist()):
            if device >= 0:
                reference.caps[device] += reference.size((table, int(dims[table])))
        reference.pinned = pinned.tolist()
    return reference, options


@pytest.mark.parametrize("case", [random_case, constrained_case])
@pytest.mark.parametrize("seed", range(40))
def test_engine_gives_the_plan_of_the_written_out_method(
    seed: int, case: Callable[[int], tuple[ReferenceSearch, dict[str, int]]]
) -> None:
    reference, options = case(seed)
    cost, splits, placement = reference.search(
        options["beam_width"], options["candidates"], options["max_splits"]
    )
    networks, problem = engine_arguments(reference)
    result = _core.search(networks, problem, **options, threads=1 + seed % 3)
    if placement is None:
        assert result is None
    else:
        assert result is not None
        assert (result.cost, result.column_splits, result.placement) == (cost, splits, placement)
