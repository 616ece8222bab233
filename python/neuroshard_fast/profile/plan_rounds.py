"""One round of measuring a plan."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_fast.tables import EmbeddingTable

_LEAST_MS = 1e-6

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

    def at_speeds(self, lookups: float, transfers: float) -> PlanRound:
        """What a machine of speed 1 would have taken, where this one had these speeds.

        lookups, transfers: of its lookups and of its all-to-alls. In the forward one, devices wait for the
        last to start as long as their lookups and backward all-to-alls then let them.
        """
        ready = PlanRound(
            [lookups * ms for ms in self.compute_ms],
            self.forward_ms,
            [transfers * ms for ms in self.backward_ms],
        )
        forward = [
            max(_LEAST_MS, wait + transfers * (cost - waited))
            for cost, waited, wait in zip(
                self.forward_ms, _waits(self.starts_ms), _waits(ready.starts_ms), strict=True
            )
        ]
        return PlanRound(ready.compute_ms, forward, ready.backward_ms)

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


def settled_cost(rounds: Sequence[PlanRound]) -> float:
    """What the plan of ``rounds``, at least one, would cost if every device took the medians of them, ms.

    In each round another device is the slowest by chance, and all others wait for it: the median of the
    rounds' costs has that waiting in it, this has less. Forward costs without waiting are those from the
    last start on.
    """
    transfers = [
        [cost - wait for cost, wait in zip(each.forward_ms, _waits(each.starts_ms), strict=True)]
        for each in rounds
    ]
    middle = median_round(
        [
            PlanRound(each.compute_ms, transfer, each.backward_ms)
            for each, transfer in zip(rounds, transfers, strict=True)
        ]
    )
    forward = [
        wait + transfer
        for wait, transfer in zip(_waits(middle.starts_ms), middle.forward_ms, strict=True)
    ]
    return PlanRound(middle.compute_ms, forward, middle.backward_ms).cost_ms


def _waits(starts_ms: Sequence[float]) -> list[float]:
    """How long each device waits for the last one to start."""
    return [max(starts_ms) - start for start in starts_ms]
