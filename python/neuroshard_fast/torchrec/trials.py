"""What would fit if the question were another: on more ranks, with more memory, with constraints lifted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.planner.types import ParameterConstraints

from neuroshard_fast.torchrec.constraints import COLUMN_WISE, TABLE_WISE, Choice
from neuroshard_fast.torchrec.packing import pack
from neuroshard_fast.torchrec.question import Question, pose

_MOST_SECONDS = 2.0  # other ranks wait for the error
_MOST_TRIED = 24  # constraints that are lifted one by one, of the largest tables
_MOST_TIMES_DEVICES = 8
_FINE = 0.01  # of the memory that is missing, to which it is told
_LEAST_BYTES = 2**20


@dataclass(frozen=True)
class Asked:
    """What a question was made from besides the tables.

    constraints: of each table. raw_caps: bytes of each rank before the reservation.
    keep_row_statistics, uneven_columns: options of the planner.
    serves: whether the cost models plan for so many ranks.
    """

    constraints: Sequence[ParameterConstraints | None]
    reservation: Any
    raw_caps: list[int]
    keep_row_statistics: bool
    uneven_columns: bool
    serves: Callable[[int], bool]


class Trials:
    """Tries changes of one question, for a few seconds at most; then nothing fits any more.

    obstacles: what of the user's wishes keeps a table from being cut into any columns, by its number.
    sizes: memory of each table, in all its shards as they stand.
    """

    def __init__(self, question: Question, asked: Asked) -> None:
        self._question = question
        self._asked = asked
        self._deadline = time.monotonic() + _MOST_SECONDS
        self.obstacles = _obstacles(question, asked)
        self.sizes = table_sizes(question)

    def without_one(self) -> list[int]:
        """Tables, the largest first, of which lifting the one obstacle would do."""
        lifted = self._lifted()
        largest = sorted(lifted, key=lambda number: -self.sizes[number])[:_MOST_TRIED]
        return [number for number in largest if self._fits(choices={number: lifted[number]})]

    def without_all(self) -> bool:
        """Whether lifting every obstacle would do."""
        lifted = self._lifted()
        return bool(lifted) and self._fits(choices=lifted)

    def devices_wanted(self) -> int | None:
        """How many more ranks would do; None where no number was found that cost models serve."""
        setting = self._question.setting
        by_host = any(choice.layout == "table_row_wise" for choice in self._question.choices)
        step = setting.group_size if by_host else 1

        def fit(steps: int) -> bool:
            return self._fits(world_size=setting.world_size + steps * step)

        steps = 1
        while not fit(steps):
            steps *= 2
            if steps * step > _MOST_TIMES_DEVICES * setting.world_size or self._is_late():
                return None
        low, high = steps // 2, steps  # so many do not, or are none
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fit(middle) else (middle, high)
        most = _MOST_TIMES_DEVICES * setting.world_size // step
        served = (n * step for n in range(high, most + 1) if self._serves(n * step))
        # Outputs take more memory the more ranks there are, so that more may fit less.
        return next((more for more in served if more == high * step or fit(more // step)), None)

    def bytes_wanted(self) -> int | None:
        """How many bytes more on every rank would do, to one in a hundred; None where none would."""
        high = sum(self.sizes) + max(0, -min(self._question.caps))
        if not self._fits(more_bytes=high):
            return None
        low = 0
        while high - low > max(_LEAST_BYTES, _FINE * high) and not self._is_late():
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(more_bytes=middle) else (middle, high)
        return high

    def _serves(self, more: int) -> bool:
        return self._asked.serves(self._question.setting.world_size + more)

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _lifted(self) -> dict[int, Choice]:
        """The choices of tables with an obstacle, without it."""
        found = {number: _free_choice(self._question, number) for number in self.obstacles}
        return {number: choice for number, choice in found.items() if choice is not None}

    def _fits(
        self,
        *,
        choices: Mapping[int, Choice] | None = None,
        world_size: int | None = None,
        more_bytes: int = 0,
    ) -> bool:
        """Whether tables fit with choices changed, on more ranks like the first, or with more memory."""
        if self._is_late():
            return False
        question = self._question
        ranks = world_size or question.setting.world_size
        added = ranks - question.setting.world_size
        changed = list(question.choices)
        for number, choice in (choices or {}).items():
            changed[number] = choice
        posed = pose(
            question.tables,
            changed,
            question.lookups,
            question.setting._replace(world_size=ranks),
            [cap + more_bytes for cap in question.caps + question.caps[:1] * added],
            question.host_caps + question.host_caps[:1] * added,
            uneven_columns=self._asked.uneven_columns,
        )
        room = [cap - taken for cap, taken in zip(posed.caps, posed.fixed_bytes(), strict=True)]
        columns = posed.columns
        least = sum(columns.bytes_of(table, dim) for table, dim in enumerate(columns.dims))
        return min(room) >= 0 and least <= sum(room) and pack(columns, room) is not None


def _obstacles(question: Question, asked: Asked) -> dict[int, str]:
    found = {}
    entries = zip(question.tables, question.choices, asked.constraints, strict=True)
    for number, (table, choice, constraint) in enumerate(entries):
        types = () if constraint is None else tuple(constraint.sharding_types or ())
        if choice.layout != "columns" or (types and choice.column_type is None):
            found[number] = f"constraint sharding_types ({', '.join(types)})"
        elif asked.keep_row_statistics and table.optimizer.of_whole_rows:
            found[number] = "keep_row_statistics"
        elif choice.may_split and choice.least_width > 4:
            found[number] = f"constraint min_partition ({choice.least_width} columns)"
    return found


def _free_choice(question: Question, number: int) -> Choice | None:
    """The table's choice with nothing in the way; None where its sharder does not offer that."""
    choice, offer = question.choices[number], question.tables[number].offer
    kernel = choice.kernel if choice.layout == "columns" else "fused"
    if (
        not {TABLE_WISE, COLUMN_WISE} <= set(offer.types)
        or kernel not in offer.kernels[COLUMN_WISE]
    ):
        return None
    return Choice(
        layout="columns",
        whole_type=TABLE_WISE,
        column_type=COLUMN_WISE,
        may_split=True,
        kernel=kernel,
        least_width=4,
        whole_is_columns=False,
        carried=choice.carried,
    )


def table_sizes(question: Question) -> list[int]:
    """Memory of each table, in all its shards as they stand, bytes."""
    sizes = [0] * len(question.tables)
    for line, number in zip(question.storage, question.free, strict=True):
        sizes[number] = line.at(question.tables[number].dim).larger
    for fixed in question.fixed:
        sizes[fixed.table] += fixed.storage.larger
    return sizes
