"""Planning on one rank for all: the others get the plan, or the error, never a wait."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

from neuroshard_fast.errors import NeuroShardError
from neuroshard_fast.torchrec.errors import planner_error

T = TypeVar("T")

_LEADER = 0


class _Refusal(NamedTuple):
    """A PlannerError on its way to other ranks."""

    message: str
    kind: PlannerErrorType


def plan_for_all(
    group: dist.ProcessGroup, make: Callable[[], T], given: Callable[[], Mapping[str, str]]
) -> T:
    """What ``make`` returns on the first rank of ``group``, on every rank of it.

    given: what all ranks have to have alike, by name.
    Where they differ in that, or one of both raises, every rank raises the same PlannerError; an interrupt
    goes on as one on its own rank. All ranks of the group have to call this.
    """
    several = dist.get_world_size(group) > 1
    if several:
        _require_alike(group, given)
    answer: Any = None
    raised: BaseException | None = None
    made: T | None = None
    if dist.get_rank(group) == _LEADER:
        try:
            made = make()
            # Pickled here: what cannot be sent has to end as an error of all, too.
            answer = pickle.dumps(made)
        except BaseException as error:  # interrupts too: the others wait
            raised, answer = error, _refusal(error, _LEADER)
    if several:
        box = [answer]
        dist.broadcast_object_list(box, group=group, group_src=_LEADER)
        answer = box[0]
    if isinstance(answer, _Refusal):
        _fail(answer, raised)
    if made is not None:
        return made
    received: T = pickle.loads(answer)  # noqa: S301 - by a rank of the same training
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


def _require_alike(group: dist.ProcessGroup, given: Callable[[], Mapping[str, str]]) -> None:
    """Ranks tell a hash each, or their error; all that they were given only where hashes differ."""
    own: Mapping[str, str] = {}
    raised: BaseException | None = None
    told: bytes | _Refusal
    try:
        own = given()
        told = hashlib.sha256(repr(sorted(own.items())).encode()).digest()
    except BaseException as error:  # interrupts too: the others wait
        raised, told = error, _refusal(error, dist.get_rank(group))
    all_told = _gathered(group, told)
    refusal = next((each for each in all_told if isinstance(each, _Refusal)), None)
    if refusal is not None:
        _fail(refusal, raised)
    if len(set(all_told)) == 1:
        return
    of_leader, *others = _gathered(group, dict(own))
    for rank, of_rank in enumerate(others, start=1):
        for name in (*of_leader, *of_rank):
            theirs, ours = (items.get(name, "not there") for items in (of_rank, of_leader))
            if theirs != ours:
                raise PlannerError(
                    f"collective_plan: rank {rank} was given something else than rank {_LEADER}: {name} is "
                    f"{theirs}, on rank {_LEADER} {ours}",
                    PlannerErrorType.INPUT_VALIDATION,
                )


def _gathered(group: dist.ProcessGroup, own: object) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def _fail(refusal: _Refusal, raised: BaseException | None) -> NoReturn:
    """raised: by this rank; an interrupt goes on, now that the others know."""
    if raised is not None and not isinstance(raised, Exception):
        raise raised
    raise PlannerError(*refusal) from raised


def _refusal(error: BaseException, rank: int) -> _Refusal:
    """Message and type that every rank raises it with."""
    if isinstance(error, NeuroShardError):
        error = planner_error(error)
    if isinstance(error, PlannerError):
        message = str(error) if rank == _LEADER else f"rank {rank}: {error}"
        return _Refusal(message, error.error_type)
    text = " ".join(str(error).split()) or "no message"
    return _Refusal(
        f"planning failed on rank {rank}: {type(error).__name__}: {text}", PlannerErrorType.OTHER
    )
