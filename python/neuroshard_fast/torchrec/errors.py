"""How what is wrong reaches TorchRec's users: as its PlannerError, of a fitting type."""

from __future__ import annotations

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

from neuroshard_fast.errors import InfeasiblePlanError, InputError, NeuroShardError


class ConstraintError(InputError):
    """A constraint of a table cannot be met, or is not supported; the message names both."""


class DoesNotFitError(InfeasiblePlanError):
    """No plan keeps the memory; the message says what is in the way and what would help.

    is_memory: whether the tables are too large for all ranks together, whatever the constraints.
    """

    def __init__(self, message: str, *, is_memory: bool) -> None:
        super().__init__(message)
        self.is_memory = is_memory


def planner_error(error: NeuroShardError) -> PlannerError:
    """``error`` as TorchRec's planners raise it."""
    if isinstance(error, DoesNotFitError) and error.is_memory:
        kind = PlannerErrorType.INSUFFICIENT_STORAGE
    elif isinstance(error, (ConstraintError, InfeasiblePlanError)):
        kind = PlannerErrorType.STRICT_CONSTRAINTS
    elif isinstance(error, InputError):
        kind = PlannerErrorType.INPUT_VALIDATION
    else:
        kind = PlannerErrorType.OTHER
    return PlannerError(str(error), kind)
