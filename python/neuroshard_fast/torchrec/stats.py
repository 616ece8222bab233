"""Statistics of a model's batches: what tables look up, for the planner to plan with."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_fast.checks import finite_number, shown, whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import EmbeddingTable, TableSet
from neuroshard_fast.torchrec.drift import DriftReport, compare
from neuroshard_fast.torchrec.table_counts import CheckedBatch, TableCounts, tables_of_module

SHARE = 0.01
"""Of the time between two calls, what counting may take where nothing else is said. A step may become longer
by more than that: counting leaves the caches with other contents."""

_MOST_CREDIT_S = 0.05
"""Time that is saved up at most: a long pause is not followed by a slow step."""
_FIRST_PACE_S = 1e-7  # a lookup, until one has been timed
_FIXED_LOOKUPS = 1000  # a table takes as long to count as so many more lookups

_Places = dict[str, tuple[CheckedBatch, int]]
"""For each feature its batch, and its number in there."""


class TableStats:
    """Collects rows, lengths and reuse of a model's tables from the batches that it trains on.

    Call :meth:`observe` with the batches of every step. Counting takes a small share of the time: in each
    step so many tables are counted, in turn, as there is time for, and memory stays within 128 KiB a table.
    :meth:`save` writes a table set that the planner reads.

    tables: the model, before it is sharded, or the tables themselves.
    batch_size: samples of a step over all ranks, which reuse of rows is counted in: where a rank sees a
        part of them, it joins as many batches as make up a step. None where every call is a whole step.
    share: of the time between calls, what counting may take at most; 1 counts every batch.
    clock: gives the time, s.

    InputError where the model has no tables, or one that a table set cannot describe.
    """

    def __init__(
        self,
        tables: nn.Module | TableSet,
        *,
        batch_size: int | None = None,
        share: float = SHARE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if batch_size is not None:
            whole_number(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE)
        if not isinstance(tables, (nn.Module, TableSet)):
            raise InputError(f"a model or a TableSet is wanted, got a {type(tables).__name__}")
        if not callable(clock):
            raise InputError(f"clock must be a function that gives the time, got {shown(clock)}")
        found = tables_of_module(tables) if isinstance(tables, nn.Module) else list(tables)
        self.batch_size = batch_size
        self.share = finite_number(share, "share", low=1e-6, high=1.0)
        # The next to be counted first.
        self._tables = OrderedDict((table.name, TableCounts(table)) for table in found)
        self._features = {feature.name for table in found for feature in table.features}
        self._clock = clock
        self._ended: float | None = None
        self._credit_s = 0.0
        self._wanted_s = 0.0  # credit that the next table takes; looking at a batch takes some, too
        self._pace_s = _FIRST_PACE_S

    def observe(self, *batches: KeyedJaggedTensor) -> tuple[str, ...]:
        """Count a step, given all of its batches; the names of the tables that there was time for.

        Features of no table are passed over. Tensors on the host are counted fastest. InputError, naming
        the feature, for rows that a table does not have, lengths or offsets that do not fit the rows, and
        features that come twice, as far as there was time to look; then nothing of the step is counted.
        """
        started = self._clock()
        if self._ended is not None:
            self._credit_s += self.share * (started - self._ended)
            self._credit_s = min(self._credit_s, _MOST_CREDIT_S)
        try:
            for batch in batches:
                if not isinstance(batch, KeyedJaggedTensor):
                    raise InputError(
                        f"observe takes KeyedJaggedTensors, got a {type(batch).__name__}"
                    )
                if batch.variable_stride_per_key():
                    raise InputError(
                        "observe: batches whose features have different numbers of samples are not supported"
                    )
            if self.share == 1.0 or (self._credit_s > 0.0 and self._credit_s >= self._wanted_s):
                return self._count_in_turn(batches, started)
            return ()
        finally:
            self._ended = self._clock()
            self._credit_s -= self._ended - started

    def _count_in_turn(
        self, batches: Sequence[KeyedJaggedTensor], started: float
    ) -> tuple[str, ...]:
        """Names of the tables that there is time for, all of them counted."""
        places = self._places(batches)
        counted: dict[str, TableCounts] = {}  # copies: the next table may turn out to be wrong
        now = self._clock()
        looked_s, self._wanted_s = now - started, 0.0
        for table, counts in self._tables.items():
            found = {name: places[name] for name in counts.features if name in places}
            if not found:
                continue
            size = _FIXED_LOOKUPS + sum(
                batch.ends[number + 1] - batch.ends[number] for batch, number in found.values()
            )
            # What takes longer than can be saved up for is counted all the same, and paid off later.
            cost_s = min(self._pace_s * size, _MOST_CREDIT_S - looked_s)
            if self.share < 1.0 and self._credit_s - (now - started) < cost_s:
                self._wanted_s = min(looked_s + cost_s, _MOST_CREDIT_S)
                break
            lookups = {
                name: batch.lookups(name, number, counts.table)
                for name, (batch, number) in found.items()
            }
            counted[table] = counts.copy()
            counted[table].add(lookups, self.batch_size)
            before, now = now, self._clock()
            self._pace_s = 0.5 * (self._pace_s + (now - before) / size)
        for table, counts in counted.items():
            self._tables[table] = counts
            self._tables.move_to_end(table)
        return tuple(counted)

    def _places(self, batches: Sequence[KeyedJaggedTensor]) -> _Places:
        """Where the features of tables are, of batches that have samples."""
        places: _Places = {}
        for batch in batches:
            keys = batch.keys()
            if not isinstance(keys, (list, tuple)) or not all(isinstance(k, str) for k in keys):
                raise InputError(
                    f"observe: keys of a batch must be a list of feature names, got {shown(keys)}"
                )
            used = [(number, key) for number, key in enumerate(keys) if key in self._features]
            if not used:
                continue
            checked = CheckedBatch(batch, used[0][1])
            if not checked.samples:
                continue
            for number, key in used:
                if key in places:
                    raise InputError(
                        f"feature {key!r}: it comes twice in one step; give each feature of a step once"
                    )
                places[key] = checked, number
        return places

    def merge(self, other: TableStats) -> None:
        """Count what ``other``, of the same tables, has counted; reuse in its complete steps only.

        InputError where the tables or the batch size are others.
        """
        if not isinstance(other, TableStats):
            raise InputError(f"TableStats are wanted, got a {type(other).__name__}")
        if other.batch_size != self.batch_size:
            raise InputError(
                f"statistics of batch sizes {self.batch_size} and {other.batch_size} cannot be merged"
            )
        self._merge(dict(other._tables))

    def _merge(self, others: dict[str, TableCounts]) -> None:
        for name in sorted(self._tables.keys() | others.keys()):
            own, other = self._tables.get(name), others.get(name)
            if own is None or other is None or own.table != other.table:
                raise InputError(f"statistics of other tables cannot be merged: {name!r} differs")
        for name, counts in others.items():
            self._tables[name].merge(counts)

    def gather(self, process_group: dist.ProcessGroup | None = None) -> TableStats:
        """Statistics of all ranks together, on every rank, which all have to call this.

        process_group: of the ranks; None for all of them. InputError, on all ranks, where they differ in
        tables or batch size.
        """
        if not dist.is_initialized():
            raise InputError("gather needs torch.distributed.init_process_group first")
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise InputError(
                "process_group must be a torch.distributed group that this rank is in, or None for all "
                f"ranks, got {shown(process_group)}"
            )
        parts: list[tuple[int | None, dict[str, TableCounts]] | None]
        parts = [None] * dist.get_world_size(process_group)
        own = (self.batch_size, dict(self._tables))
        dist.all_gather_object(parts, own, group=process_group)
        known = [part for part in parts if part is not None]
        batch_size, first = known[0]
        together = TableStats(
            TableSet.of([counts.table for counts in first.values()]),
            batch_size=batch_size,
            share=self.share,
            clock=self._clock,
        )
        for size, tables in known:
            if size != batch_size:
                raise InputError(
                    f"statistics of batch sizes {batch_size} and {size} cannot be gathered"
                )
            together._merge(tables)
        return together

    def unseen(self) -> tuple[str, ...]:
        """Tables of which a feature was not in any batch that was counted; no table set has them."""
        return tuple(name for name, counts in self._tables.items() if not counts.samples)

    def rows_seen(self) -> dict[str, float]:
        """For each table its distinct rows in all that was counted: about 2% off above 4,096."""
        return {name: counts.rows.distinct for name, counts in self._tables.items()}

    def samples_seen(self) -> dict[str, int]:
        """For each table the samples counted."""
        return {name: counts.samples for name, counts in self._tables.items()}

    def table_set(self) -> TableSet:
        """What was counted, as the planner takes it, in the order of names.

        A feature's pooling factor is its mean number of lookups a sample. A histogram is the mean over
        steps of distinct rows by how often a step looks them up; it is None, to be assumed, before
        ``batch_size`` samples were counted. InputError where no table was counted at all.
        """
        described = [self._tables[name].described() for name in sorted(self._tables)]
        tables: list[EmbeddingTable] = [table for table in described if table is not None]
        if not tables:
            raise InputError(
                "no table was counted yet: observe batches that have its features, in the loop of a training "
                "or with share=1.0, which passes none over for want of time"
            )
        return TableSet.of(tables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`table_set` as JSON or YAML, chosen by the name of ``path``; whole or not at all."""
        self.table_set().save(path)

    def drift(
        self,
        planned: TableSet | str | os.PathLike[str],
        *,
        threshold: float = 1.2,
        least_samples: int = 1000,
    ) -> DriftReport:
        """How far what was counted is from the statistics that a plan was made with.

        planned: those statistics, or their file.
        threshold: a table has drifted where pooling factors, distinct rows a step or lookups a row have
            changed by more than this factor.
        least_samples: tables with fewer samples counted are not judged.
        """
        if not isinstance(planned, (TableSet, str, os.PathLike)):
            raise InputError(
                f"planned: a TableSet or its file is wanted, got a {type(planned).__name__}"
            )
        if not isinstance(planned, TableSet):
            planned = TableSet.load(planned)
        steps = {
            name: counts.step_samples / counts.steps
            for name, counts in self._tables.items()
            if counts.steps
        }
        return compare(
            planned,
            self.table_set(),
            samples=self.samples_seen(),
            step_samples=steps,
            threshold=threshold,
            least_samples=least_samples,
        )
