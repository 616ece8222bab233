"""A small DLRM that learns synthetic clicks, its tables sharded by NeuroShardPlanner.

    torchrun --standalone --nproc-per-node 2 examples/torchrec_dlrm.py

Prints the plan, the loss as it falls, and how far lookups have drifted once users' habits change half-way.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_fast.torchrec import NeuroShardPlanner, TableStats
from neuroshard_fast.torchrec.report import format_torchrec_plan

BATCH = 256  # samples a rank
STEPS = 400
DIM = 16
DENSE = 8
ROWS = {"user": 50_000, "item": 20_000, "shop": 2_000, "brand": 500, "country": 60, "device": 5}
BAGS = {"user": 1, "item": 8, "shop": 3, "brand": 2, "country": 1, "device": 1}  # mean lookups


class Dlrm(nn.Module):
    """Dense and sparse features, products of their vectors, and a last network on those."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = EmbeddingBagCollection(
            device=torch.device("meta"),  # each rank makes only what the plan gives it
            tables=[
                EmbeddingBagConfig(
                    name=f"t_{name}",
                    num_embeddings=rows,
                    embedding_dim=DIM,
                    feature_names=[name],
                    weight_init_min=-0.1,
                    weight_init_max=0.1,
                )
                for name, rows in ROWS.items()
            ],
        )
        self.dense = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, DIM))
        self.pairs = list(itertools.combinations(range(len(ROWS) + 1), 2))
        width = DIM * (len(ROWS) + 1) + len(self.pairs)
        self.over = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Scores of samples, [samples], of dense features [samples, DENSE] and lookups."""
        bags = self.sparse(sparse).to_dict()
        vectors = [self.dense(dense), *(bags[name] for name in ROWS)]
        products = [(vectors[a] * vectors[b]).sum(dim=1, keepdim=True) for a, b in self.pairs]
        scores: Tensor = self.over(torch.cat([*vectors, *products], dim=1))
        return scores.squeeze(1)


class Clicks:
    """Batches whose clicks hang on what rows and dense features are worth, which the model has to find."""

    def __init__(self, rank: int) -> None:
        worth = np.random.default_rng(0)  # the same on every rank
        self.of_rows = {name: worth.normal(size=rows) for name, rows in ROWS.items()}
        self.of_dense = worth.normal(size=DENSE)
        self.generator = np.random.default_rng([1, rank])

    def draw(self, bags: dict[str, int]) -> tuple[Tensor, KeyedJaggedTensor, Tensor]:
        """Dense features, lookups with ``bags`` as their mean lengths, and clicks of a batch."""
        dense = self.generator.normal(size=(BATCH, DENSE))
        score = 0.5 * dense @ self.of_dense
        rows, lengths = [], []
        for name, mean in bags.items():
            length = 1 + self.generator.poisson(mean - 1, BATCH)
            # Some rows are looked up far more often than others.
            found = (ROWS[name] * self.generator.random(int(length.sum())) ** 4).astype(np.int64)
            sample = np.repeat(np.arange(BATCH), length)
            score += np.bincount(sample, self.of_rows[name][found], BATCH) / np.sqrt(mean)
            rows.append(found)
            lengths.append(length)
        clicks = self.generator.random(BATCH) < 1 / (1 + np.exp(-score))
        sparse = KeyedJaggedTensor.from_lengths_sync(
            keys=list(bags),
            values=torch.from_numpy(np.concatenate(rows)),
            lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
        )
        return torch.tensor(dense).float(), sparse, torch.tensor(clicks).float()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Dlrm()
    before, after = (TableStats(model, batch_size=ranks * BATCH) for _ in range(2))

    adagrad = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": 0.1}
    sharders = [EmbeddingBagCollectionSharder(fused_params=adagrad)]
    planner = NeuroShardPlanner(batch_size=BATCH)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    if rank == 0 and planner.last_plan is not None:
        print(format_torchrec_plan(planner.last_plan, tables=True), "\n")
    trained = DistributedModelParallel(
        model, plan=plan, sharders=sharders, device=torch.device("cpu")
    )

    layers = [*model.dense.parameters(), *model.over.parameters()]
    optimizer = torch.optim.Adam(layers, lr=0.005)
    clicks, losses = Clicks(rank), torch.zeros(STEPS)
    for step in range(STEPS):
        changed = step >= STEPS // 2
        dense, sparse, labels = clicks.draw({**BAGS, "item": 16, "shop": 1} if changed else BAGS)
        (after if changed else before).observe(sparse)
        loss = nn.functional.binary_cross_entropy_with_logits(trained(dense, sparse), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)  # this trains the tables, too
        optimizer.step()
        losses[step] = loss.detach()
        if (step + 1) % 50 == 0:
            mean = losses[step - 49 : step + 1].mean()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"steps {step - 48:3} to {step + 1:3}: loss {mean.item() / ranks:.4f}")

    planned, now = before.gather(), after.gather()
    if rank == 0:
        print(f"\nHabits have changed. {now.drift(planned.table_set())}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
