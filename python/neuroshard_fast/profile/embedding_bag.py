"""Measuring lookups with torch's own operators, for machines without FBGEMM: table after table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from neuroshard_fast.profile.backends import TIMED_ITERATIONS
from neuroshard_fast.profile.timing import Step, TorchCompute
from neuroshard_fast.tables import EmbeddingTable

_LEARNING_RATE = 1e-3


class EmbeddingBagCompute(TorchCompute):
    """``torch.nn.EmbeddingBag`` (``torch.nn.Embedding`` for sequences) with a sparse optimizer."""

    def __init__(self, batch_size: int, iterations: int = TIMED_ITERATIONS) -> None:
        super().__init__(batch_size, iterations)
        # Said so, or torch warns that it is.
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]

    def prepare(self, tables: Sequence[EmbeddingTable]) -> Step:
        steps = [self._table(table) for table in tables]

        def step() -> None:
            for run in steps:
                run()

        return step

    def _table(self, table: EmbeddingTable) -> Step:
        lookups = self._lookups.of_table(table)
        index = torch.from_numpy(lookups.indices).to(self.device)
        starts = torch.from_numpy(lookups.ends).to(self.device).roll(1)
        starts[0] = 0
        shape = (table.num_embeddings, table.embedding_dim)
        # Written to, so that its rows do not all lie in the one page of zeros.
        weight = nn.Parameter(torch.full(shape, 0.5, device=self.device))
        update = _updater(table, weight)
        factors = torch.ones(index.numel(), device=self.device) if table.is_weighted else None

        def forward() -> torch.Tensor:
            if table.pooling == "none":
                return nn.functional.embedding(index, weight, sparse=True)
            return nn.functional.embedding_bag(
                index,
                weight,
                starts,
                mode=table.pooling,
                sparse=True,
                per_sample_weights=factors,
            )

        gradient = torch.full_like(forward(), 1e-3)

        def step() -> None:
            torch.autograd.backward(forward(), gradient)
            update()
            weight.grad = None

        return step


def _updater(table: EmbeddingTable, weight: nn.Parameter) -> Step:
    if table.optimizer == "rowwise_adagrad":
        return _rowwise_adagrad(weight)
    optimizer: torch.optim.Optimizer
    if table.optimizer == "sgd":
        optimizer = torch.optim.SGD([weight], lr=_LEARNING_RATE)
    elif table.optimizer == "adagrad":
        optimizer = torch.optim.Adagrad([weight], lr=_LEARNING_RATE)
    else:
        optimizer = torch.optim.SparseAdam([weight], lr=_LEARNING_RATE)

    def update() -> None:
        optimizer.step()

    return update


def _rowwise_adagrad(weight: nn.Parameter) -> Step:
    """torch has no such optimizer: one sum of squares a row."""
    state = torch.full((len(weight),), 0.5, device=weight.device)

    @torch.no_grad()
    def update() -> None:
        if weight.grad is None:
            return
        gradient = weight.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state.index_add_(0, rows, values.square().mean(1))
        steps = values / state[rows].sqrt().add_(1e-8).unsqueeze(1)
        weight.index_add_(0, rows, steps, alpha=-_LEARNING_RATE)

    return update
