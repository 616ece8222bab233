"""One round of measuring a plan."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_fast.tables import EmbeddingTable

Placement = list[list[EmbeddingTable]]
"""The tables of each device; a shard is its table with the shard's width as ``embedding_dim``."""


@dataclass(frozen=True)
class PlanRound:
    """What the step of a plan took in one round, ms, a value for each device in the lists."""

    compute_ms: list[float]
    forward_ms: list[float]
    backward_ms: list[float]

    @property
    def cost_ms(self) -> float:
        """Cost of the plan: the largest sum of the three."""
        return max(map(sum, zip(self.compute_ms, self.forward_ms, self.backward_ms, strict=True)))

    @property
    def starts_ms(self) -> list[float]:
        """When each device started its forward all-to-all, after the first of them."""
        return forward_starts(self.compute_ms, self.backward_ms)


def forward_starts(compute_ms: Sequence[float], backward_ms: Sequence[float]) -> list[float]:
    """When the devices start the forward all-to-all, after the first, ms: as soon as their compute and
    backward communication let them."""
    ready = [compute + wait for compute, wait in zip(compute_ms, backward_ms, strict=True)]
    return [ms - min(ready) for ms in ready]


def median_round(rounds: Sequence[PlanRound]) -> PlanRound:
    """Medians over ``rounds``, at least one, of what each device took."""
    return PlanRound(
        *(
            [statistics.median(values) for values in zip(*part, strict=True)]
            for part in (
                [each.compute_ms for each in rounds],
                [each.forward_ms for each in rounds],
                [each.backward_ms for each in rounds],
            )
        )
    )
