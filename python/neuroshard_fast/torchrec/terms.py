"""On which terms a planner plans: what its user gave it, and the questions that models become on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    StorageReservation,
    Topology,
)
from torchrec.distributed.types import ModuleSharder

from neuroshard_fast.checks import shown
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import InputError
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.torchrec.constraints import check_fields, choose, given_fields, is_excluded
from neuroshard_fast.torchrec.engine import serves
from neuroshard_fast.torchrec.infeasible import nothing_left
from neuroshard_fast.torchrec.lookups import Statistics, TableLookups, table_lookups
from neuroshard_fast.torchrec.model import ModelTable, find_tables
from neuroshard_fast.torchrec.notes import listed
from neuroshard_fast.torchrec.question import Question, pose
from neuroshard_fast.torchrec.setting import Setting, host_caps, memory_caps
from neuroshard_fast.torchrec.trials import Asked

Sharders = Sequence[ModuleSharder[nn.Module]]
_TO_AGREE = ("rows", "dim", "data_type", "features", "pooling", "is_weighted", "kind")


class FoundTables(NamedTuple):
    """The tables of a model to plan, names of those excluded by device groups, and notes on both."""

    tables: list[ModelTable]
    excluded: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Terms:
    """Checked arguments of a planner, as it documents them."""

    topology: Topology
    setting: Setting
    reservation: StorageReservation
    constraints: dict[str, ParameterConstraints]
    statistics: Statistics
    keep_row_statistics: bool
    uneven_columns: bool

    def find(self, module: nn.Module, sharders: Sharders | None) -> FoundTables:
        """The tables of ``module``; ConstraintError where a constraint of one has no sound values."""
        everything = find_tables(module, sharders, self.setting.compute_device)
        tables: list[ModelTable] = []
        excluded: list[str] = []
        for table in everything:
            constraint = self.constraints.get(table.name)
            if constraint is not None:
                check_fields(constraint, f"table {table.fqn!r}")
            if is_excluded(constraint, self.setting):
                excluded.append(table.fqn)
            else:
                tables.append(table)
        unknown = self.constraints.keys() - {table.name for table in everything}
        notes = []
        if unknown:
            notes.append(
                f"constraints name tables that the model has not: {listed(sorted(map(shown, unknown)))}"
            )
        return FoundTables(tables, excluded, notes)

    def lookups(self, table: ModelTable) -> TableLookups:
        """What a batch looks up in ``table``."""
        return table_lookups(
            table,
            self.constraints.get(table.name),
            self.statistics.of_table(table),
            self.setting.batch_size,
        )

    def question(self, tables: list[ModelTable], module: nn.Module, sharders: Sharders) -> Question:
        """What to plan for ``tables`` of ``module``, in the memory that the reservation leaves."""
        choices = [
            choose(
                table,
                self.constraints.get(table.name),
                self.setting,
                keep_row_statistics=self.keep_row_statistics,
            )
            for table in tables
        ]
        # First, as a reservation counts with constraints as they are.
        lookups = [self.lookups(table) for table in tables]
        refusal, source = None, f"storage_reservation: {type(self.reservation).__name__}.reserve()"
        try:
            reserved = self.reservation.reserve(
                topology=self.topology,
                batch_size=self.setting.batch_size,
                module=module,
                sharders=list(sharders),
                constraints=self.constraints or None,
            )
        except PlannerError as error:
            reserved, refusal = self.topology, str(error)
        except Exception as error:  # the user's code raises what it likes
            raise PlannerError(
                f"{source} raised {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        self._require_same_devices(reserved, source)
        question = pose(
            tables,
            choices,
            lookups,
            self.setting,
            memory_caps(reserved, source),
            host_caps(reserved, source),
            uneven_columns=self.uneven_columns,
        )
        if refusal is not None:
            raise nothing_left(question, self.reservation, refusal)
        return question

    def given(self, module: nn.Module, sharders: Sharders | None) -> dict[str, str]:
        """Devices, batch, model and constraints, by name, that all ranks of a training have to share."""
        found, setting = self.find(module, sharders), self.setting
        items: dict[str, object] = {
            "topology: compute_device": setting.compute_device,
            "topology: world_size": setting.world_size,
            "topology: local_world_size": setting.local_world_size,
            "topology: intra_group_size": setting.group_size,
            "batch_size": setting.batch_size,
        }
        kinds = {"ddr_cap": host_caps(self.topology)}
        if setting.compute_device == "cuda":
            kinds["hbm_cap"] = memory_caps(self.topology)
        for kind, caps in kinds.items():
            items |= {f"topology: {kind} of device {rank}": cap for rank, cap in enumerate(caps)}
        items |= {f"table {fqn!r}": "of another device group" for fqn in found.excluded}
        for table in found.tables:
            where = f"table {table.fqn!r}"
            items[where] = "planned"
            items |= {f"{where}: {field}": getattr(table, field) for field in _TO_AGREE}
            constraint = self.constraints.get(table.name)
            if constraint is not None:
                given = given_fields(constraint, where)
                items |= {f"{where}: constraint {name}": value for name, value in given.items()}
        return {name: str(value) for name, value in items.items()}

    def asked(
        self, tables: Sequence[ModelTable], models: CostModels, options: SearchOptions
    ) -> Asked:
        """What the question of ``tables`` came from, for the error where nothing fits."""
        return Asked(
            constraints=[self.constraints.get(table.name) for table in tables],
            reservation=self.reservation,
            raw_caps=memory_caps(self.topology),
            keep_row_statistics=self.keep_row_statistics,
            uneven_columns=self.uneven_columns,
            serves=lambda ranks: serves(models, ranks, self.setting.batch_size, options),
        )

    def _require_same_devices(self, reserved: object, source: str) -> None:
        if not isinstance(reserved, Topology):
            raise InputError(f"{source} must return a Topology, got a {type(reserved).__name__}")
        for field in ("compute_device", "world_size"):
            wanted, got = getattr(self.topology, field), getattr(reserved, field)
            if got != wanted:
                raise InputError(
                    f"{source} must return a Topology of {field} {wanted}, got one of {got}"
                )
