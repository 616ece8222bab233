"""How to search for a plan."""

from __future__ import annotations

import os
from typing import Literal, get_args

import msgspec

from neuroshard_fast import config
from neuroshard_fast.checks import finite_number, one_of, whole_number
from neuroshard_fast.errors import InputError

Algorithm = Literal[
    "neuroshard", "random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"
]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a search; the defaults are those of the published method.

    algorithm: "neuroshard" or one of the baselines.
    beam_width: split sequences kept from round to round, at most 4096.
    candidates: largest and dearest shards tried for a split, each so many, at most 4096.
    max_splits: rounds of the beam search, that is, the most column splits in a plan.
    grid_steps: dimension factors tried by the greedy grid search.
    threads: threads of the engine; the plan does not depend on it.
    seed: seed of the algorithm "random".
    doubt_penalty: share of the doubt of the cost models that counts as cost in the search: 0, none; 1
        searches with costs that nine of ten stay below; 10 at most.
    allow_batch_mismatch: plan although the cost models were made for another batch size.
    """

    schema: Literal["neuroshard/options/1"] = "neuroshard/options/1"
    algorithm: Algorithm = "neuroshard"
    beam_width: int = 3
    candidates: int = 10
    max_splits: int = 10
    grid_steps: int = 11
    threads: int = 1
    seed: int = 0
    doubt_penalty: float = 0.0
    allow_batch_mismatch: bool = False

    def __post_init__(self) -> None:
        one_of(self.algorithm, "options: algorithm", ALGORITHMS)
        whole_number(self.beam_width, "options: beam_width", low=1, high=4096)
        whole_number(self.candidates, "options: candidates", low=1, high=4096)
        whole_number(self.max_splits, "options: max_splits", low=0, high=65536)
        whole_number(self.grid_steps, "options: grid_steps", low=1, high=65536)
        whole_number(self.threads, "options: threads", low=1, high=1024)
        whole_number(self.seed, "options: seed", low=0, high=2**63 - 1)
        finite_number(self.doubt_penalty, "options: doubt_penalty", low=0.0, high=10.0)
        if not isinstance(self.allow_batch_mismatch, bool):
            raise InputError(
                f"options: allow_batch_mismatch must be true or false, got {self.allow_batch_mismatch!r}"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchOptions:
        """Read options from JSON or YAML."""
        return config.load(path, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the options as JSON or YAML, chosen by the name of ``path``."""
        config.save(path, self)
