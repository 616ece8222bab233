"""From a planning question to the cheapest plan that TorchRec takes."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from neuroshard_fast import _core
from neuroshard_fast.torchrec.engine import Costs, Engine
from neuroshard_fast.torchrec.hosts import host_bytes, split_by_host, without_placed
from neuroshard_fast.torchrec.packing import pack
from neuroshard_fast.torchrec.question import Devices, Question
from neuroshard_fast.torchrec.widths import bytes_on, joined, piece_counts, widths_for

_WORTHWHILE = 0.99
"""Cutting tables, and leaving shards of a table apart on one rank, takes messages, lookups and copies that
cost models do not know of: it has to gain one in a hundred."""


_PACKED = "placed by memory alone, whatever it costs: the search found no plan"
_HOSTED = (
    "tables in host memory were placed by what they take of it: the cheapest plan found takes more"
)


@dataclass(frozen=True)
class Found:
    """A plan of the searched tables.

    costs: None where there is one rank only, for which cost models have no networks.
    note: what was placed by memory alone, in a sentence; None where the search placed all.
    """

    devices: Devices
    costs: Costs | None
    note: str | None = None


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
    found = _find(question, engine, deadline)
    if found is None or _fits_hosts(question, found.devices):
        return found
    return _with_hosts_first(question, engine, deadline) or found


def _find(question: Question, engine: Engine | None, deadline: float) -> Found | None:
    room = [cap - taken for cap, taken in zip(question.caps, question.fixed_bytes(), strict=True)]
    if min(room) < 0:
        return None
    best = None
    if engine is not None and question.columns.dims:
        best = _searched(question, engine, deadline)
    if engine is not None and best is not None:
        return Found(best.devices, engine.costs(best.problem, best.devices))
    devices = pack(question.columns, room)
    if devices is None:
        return None
    if engine is None:
        return Found(devices, None)
    costs = engine.costs(engine.problem(capped=False), devices) if engine.has_tables else None
    return Found(devices, costs, _PACKED if question.columns.dims else None)


def _fits_hosts(question: Question, devices: Devices) -> bool:
    return all(
        taken <= max(0, cap)
        for taken, cap in zip(host_bytes(question, devices), question.host_caps, strict=True)
    )


def _with_hosts_first(question: Question, engine: Engine | None, deadline: float) -> Found | None:
    """Tables in host memory placed by what they take of it, the others searched; None where that fails."""
    split = split_by_host(question)
    none: Devices = [[] for _ in question.caps]
    taken = host_bytes(question, none)
    room = [cap - fixed for cap, fixed in zip(question.host_caps, taken, strict=True)]
    placed = pack(split.columns, room)
    if placed is None:
        return None
    rest = without_placed(question, split, placed)
    searched = Engine(engine.models, rest, engine.options) if engine is not None else None
    found = _find(rest, searched, deadline)
    if found is None:
        return None
    devices: Devices = [
        [
            *((split.others[table], width) for table, width in others),
            *((split.tables[table], width) for table, width in hosted),
        ]
        for others, hosted in zip(found.devices, placed, strict=True)
    ]
    costs = None
    if engine is not None:
        costs = engine.costs(engine.problem(capped=False), devices)
    return Found(devices, costs, found.note or _HOSTED)


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
