"""How to search for a plan."""

from __future__ import annotations

import os
from typing import Literal, TypedDict, get_args

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, one_of, whole_number
from neuroshard_fast.errors import InputError

Algorithm = Literal[
    "auto",
    "neuroshard",
    "random",
    "size_greedy",
    "dim_greedy",
    "lookup_greedy",
    "size_lookup_greedy",
]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
SPLITTING = ("auto", "neuroshard")
"""Those that cut tables by columns."""


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a search.

    algorithm: "auto" goes on from the plan that "neuroshard", the published method, finds, or from one that
        keeps the memory where that finds none; the others are baselines. docs/search.md compares them.
    beam_width: split sequences kept from round to round, at most 4096.
    candidates: largest and dearest shards tried for a split, each so many, at most 4096.
    max_splits: rounds of the beam search, that is, the most column splits in a plan.
    grid_steps: dimension factors tried by the greedy grid search.
    threads: threads of the engine; the plan does not depend on it.
    seed: of the algorithms "auto" and "random".
    deadline_ms: how long "auto" may take, from the call to the answer; it takes all of it.
    max_evaluations: plans that "auto" evaluates to improve the one of "neuroshard"; in place of a deadline,
        where the same answer is wanted every time. Without either about twice as long as "neuroshard".
    doubt_penalty: share of the doubt of the cost models that counts as cost in the search: 0, none; 1
        searches with costs that nine of ten stay below; 10 at most.
    allow_batch_mismatch: plan although the cost models were made for another batch size.
    lower_bound: also say what no plan can cost less than, by these cost models; takes as long as planning.
    """

    schema: Literal["neuroshard/options/1"] = "neuroshard/options/1"
    algorithm: Algorithm = "auto"
    beam_width: int = 3
    candidates: int = 10
    max_splits: int = 10
    grid_steps: int = 11
    threads: int = 1
    seed: int = 0
    doubt_penalty: float = 0.0
    allow_batch_mismatch: bool = False
    deadline_ms: float | None = None
    max_evaluations: int | None = None
    lower_bound: bool = False

    def __post_init__(self) -> None:
        one_of(self.algorithm, "options: algorithm", ALGORITHMS)
        whole_number(self.beam_width, "options: beam_width", low=1, high=4096)
        whole_number(self.candidates, "options: candidates", low=1, high=4096)
        whole_number(self.max_splits, "options: max_splits", low=0, high=65536)
        whole_number(self.grid_steps, "options: grid_steps", low=1, high=65536)
        whole_number(self.threads, "options: threads", low=1, high=1024)
        whole_number(self.seed, "options: seed", low=0, high=2**63 - 1)
        if self.deadline_ms is not None:
            finite_number(self.deadline_ms, "options: deadline_ms", low=0.0, high=1e12)
        if self.max_evaluations is not None:
            whole_number(self.max_evaluations, "options: max_evaluations", low=0, high=2**62)
        for field in ("deadline_ms", "max_evaluations"):
            if getattr(self, field) is not None and self.algorithm != "auto":
                raise InputError(
                    f"options: {field} is for algorithm 'auto'; {self.algorithm!r} ends by itself"
                )
        if self.deadline_ms is not None and self.max_evaluations is not None:
            raise InputError("options: give deadline_ms or max_evaluations, not both")
        finite_number(self.doubt_penalty, "options: doubt_penalty", low=0.0, high=10.0)
        for field in ("allow_batch_mismatch", "lower_bound"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(
                    f"options: {field} must be true or false, got {getattr(self, field)!r}"
                )
        if self.lower_bound and self.deadline_ms is not None:
            raise InputError("options: lower_bound takes time of its own, beyond deadline_ms")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchOptions:
        """Read options from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the options as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)


class SearchArguments(TypedDict):
    """What the engine's searches take."""

    beam_width: int
    candidates: int
    max_splits: int
    grid_steps: int
    threads: int


def search_arguments(options: SearchOptions) -> SearchArguments:
    """What the engine's searches take of ``options``."""
    return {
        "beam_width": options.beam_width,
        "candidates": options.candidates,
        "max_splits": options.max_splits,
        "grid_steps": options.grid_steps,
        "threads": options.threads,
    }
