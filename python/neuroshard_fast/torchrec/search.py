"""From a planning question to the cheapest plan that TorchRec takes."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from neuroshard_fast import _core
from neuroshard_fast.torchrec.engine import Costs, Engine
from neuroshard_fast.torchrec.packing import pack
from neuroshard_fast.torchrec.question import Devices, Question
from neuroshard_fast.torchrec.widths import bytes_on, joined, piece_counts, widths_for

_WORTHWHILE = 0.99
"""Cutting tables, and leaving shards of a table apart on one rank, takes messages, lookups and copies that
cost models do not know of: it has to gain one in a hundred."""


@dataclass(frozen=True)
class Found:
    """A plan of the searched tables.

    costs: None where there is one rank only, for which cost models have no networks.
    is_packed: whether it was placed by memory alone, the search having found nothing.
    """

    devices: Devices
    costs: Costs | None
    is_packed: bool


@dataclass(frozen=True)
class _Candidate:
    problem: _core.Problem
    devices: Devices
    cost: float


def find_plan(question: Question, engine: Engine | None, deadline: float) -> Found | None:
    """The cheapest plan found; None where none keeps the memory.

    engine: None for one rank. deadline: of ``time.monotonic()``, after which no further widths of
        collections are tried.
    """
    room = [cap - taken for cap, taken in zip(question.caps, question.fixed_bytes(), strict=True)]
    if min(room) < 0:
        return None
    best = None
    if engine is not None and question.columns.dims:
        best = _searched(question, engine, deadline)
    if engine is not None and best is not None:
        return Found(best.devices, engine.costs(best.problem, best.devices), False)
    devices = pack(question.columns, room)
    if devices is None:
        return None
    if engine is None:
        return Found(devices, None, False)
    costs = engine.costs(engine.problem(capped=False), devices) if engine.has_tables else None
    return Found(devices, costs, bool(question.columns.dims))


def _searched(question: Question, engine: Engine, deadline: float) -> _Candidate | None:
    """The best of: no table cut; pooled tables cut; collections too, each into so many pieces."""
    columns = question.columns
    best: _Candidate | None = None
    best_extent = 0
    whole = engine.problem(columns.dims)
    cuts = (
        (min(pieces, 2), pieces, engine.problem(*widths_for(columns, pieces)))
        for pieces in piece_counts(columns, question.setting.world_size)
    )
    for extent, pieces, problem in itertools.chain([(0, 1, whole)], cuts):
        if best is not None and time.monotonic() > deadline:
            break
        found = engine.search(problem)
        if found is None:
            continue
        candidate = _finished(question, engine, problem, found[0], found[1], pieces)
        if candidate is None:
            continue
        if best is None or candidate.cost < best.cost * (
            _WORTHWHILE if extent > best_extent else 1.0
        ):
            best, best_extent = candidate, extent
    return best


def _finished(
    question: Question,
    engine: Engine,
    problem: _core.Problem,
    devices: Devices,
    cost: float,
    pieces: int,
) -> _Candidate | None:
    """A plan of the search with its shards joined, unless that is dearer; None where it keeps no memory."""
    columns = question.columns
    together = joined(devices, columns, pieces)
    if all(sorted(a) == sorted(b) for a, b in zip(devices, together, strict=True)):
        return _Candidate(problem, devices, cost)
    taken = zip(bytes_on(together, columns), question.fixed_bytes(), question.caps, strict=True)
    if any(searched + fixed > cap for searched, fixed, cap in taken):
        return None
    best = _Candidate(problem, together, engine.cost(problem, together))
    if best.cost * _WORTHWHILE <= cost:
        return best
    for rank, shards in enumerate(devices):
        for table in dict.fromkeys(table for table, _ in shards):
            widths = [width for other, width in shards if other == table]
            # TorchRec shows the shards that a rank has of a table as one matrix.
            if columns.collections[table] >= 0 or len(widths) == 1 or len(set(widths)) > 1:
                continue
            trial = [list(on) for on in best.devices]
            trial[rank] = [shard for shard in trial[rank] if shard[0] != table]
            trial[rank] += [(table, width) for width in widths]
            trial_cost = engine.cost(problem, trial)
            if trial_cost < best.cost * _WORTHWHILE:
                best = _Candidate(problem, trial, trial_cost)
    return best
