"""Planning on one rank for all: the others get the plan, or the error, never a wait."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

T = TypeVar("T")

_LEADER = 0


def plan_for_all(group: dist.ProcessGroup, make: Callable[[], T]) -> T:
    """What ``make`` returns on the first rank of ``group``, on every rank of it.

    Where it raises, every rank raises the same PlannerError. All ranks of the group have to call this.
    """
    is_leader = dist.get_rank(group) == _LEADER
    answer: Any = None
    cause: Exception | None = None
    made: T | None = None
    if is_leader:
        try:
            made = make()
            # Pickled here: what cannot be sent has to end as an error of all, too.
            answer = ("plan", pickle.dumps(made))
        except Exception as error:
            cause = error
            answer = ("error", *_as_planner_error(error))
    if dist.get_world_size(group) > 1:
        box = [answer]
        dist.broadcast_object_list(box, group=group, group_src=_LEADER)
        answer = box[0]
    if answer[0] == "error":
        _, message, kind = answer
        raise PlannerError(message, kind) from cause
    if made is not None:
        return made
    received: T = pickle.loads(answer[1])  # noqa: S301 - by a rank of the same training
    return received


def require_ranks(group: dist.ProcessGroup, planned: int) -> None:
    """PlannerError where ``group`` has other than ``planned`` ranks."""
    ranks = dist.get_world_size(group)
    if ranks != planned:
        raise PlannerError(
            f"collective_plan: the process group has {ranks} ranks, the topology {planned}; 2D parallel "
            "training (DMPCollection), where they differ, is not supported",
            PlannerErrorType.INPUT_VALIDATION,
        )


def _as_planner_error(error: Exception) -> tuple[str, PlannerErrorType]:
    """Message and type that every rank raises it with."""
    if isinstance(error, PlannerError):
        return str(error), error.error_type
    text = " ".join(str(error).split()) or "no message"
    return (
        f"planning failed on rank {_LEADER}: {type(error).__name__}: {text}",
        PlannerErrorType.OTHER,
    )
