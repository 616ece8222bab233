"""What a user may choose of pre-training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from neuroshard_fast.checks import finite_number, one_of, whole_number
from neuroshard_fast.cluster import MAX_DEVICES
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import FeatureKind

CommunicationKind = Literal["shared", "per-count"]

_SIZES = ("table_sizes", "set_sizes", "device_sizes", "head_sizes", "communication_sizes")
_MAX_LAYERS = 64
_MAX_WIDTH = 16384


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """How the networks are trained.

    epochs: passes over the training samples; the learning rate falls to zero over them.
    patience: stop once the validation error has not improved for so many epochs.
    minibatch_size: samples a step of the optimizer.
    shared_minibatch_size: the same for the shared communication network; a sample of it has as many costs
        as devices.
    learning_rate: of Adam, at its peak.
    weight_decay: of the compute network (decoupled, as in AdamW).
    features: what the compute network sees of a table: "physical" (any batch size and data type) or
        "published" (one of each).
    feature_jitter: relative spread by which the rows and the reuse histogram of every table vary from
        one sample of a training step to the next; with the published features.
    proposed_share: of the samples trained on, how many are of plans that a search proposed, if there are any.
    seed: of the split, the initial weights and the order of the batches.
    threads: of torch.
    table_sizes: outputs of the table network's layers.
    set_sizes: outputs of the hidden layers of the network behind the sum.
    communication: one network for any number of devices ("shared"), or one for each ("per-count", as
        published).
    device_sizes: outputs of the layers that the shared network has for each device.
    head_sizes: outputs of the hidden layers of the shared network behind them.
    communication_sizes: outputs of the hidden layers of the networks of one device count.
    devices_per_node: devices joined by the fast links of a node; they are numbered node by node.

    The sizes are the published ones (NeuroShard, arXiv:2305.01868); the training is not: minibatches
    of 512, learning rate 1e-3 throughout, no decay. docs/cost-models.md says what the change gains.
    """

    epochs: int = 200
    patience: int = 200
    minibatch_size: int = 32
    shared_minibatch_size: int = 16
    learning_rate: float = 3e-3
    weight_decay: float = 0.3
    features: FeatureKind = "physical"
    feature_jitter: float = 0.4
    proposed_share: float = 0.3
    seed: int = 0
    threads: int = 1
    table_sizes: tuple[int, ...] = (128, 32)
    set_sizes: tuple[int, ...] = (64,)
    communication: CommunicationKind = "shared"
    device_sizes: tuple[int, ...] = (16, 8)
    head_sizes: tuple[int, ...] = (32,)
    communication_sizes: tuple[int, ...] = (128, 64, 32, 16)
    devices_per_node: int = 8

    def __post_init__(self) -> None:
        whole_number(self.epochs, "epochs", low=1, high=1_000_000)
        whole_number(self.patience, "patience", low=1, high=1_000_000)
        whole_number(self.minibatch_size, "minibatch_size", low=1, high=1_000_000)
        whole_number(self.shared_minibatch_size, "shared_minibatch_size", low=1, high=1_000_000)
        finite_number(self.learning_rate, "learning_rate", low=1e-9, high=10.0)
        finite_number(self.weight_decay, "weight_decay", low=0.0, high=100.0)
        finite_number(self.feature_jitter, "feature_jitter", low=0.0, high=10.0)
        one_of(self.features, "features", get_args(FeatureKind))
        finite_number(self.proposed_share, "proposed_share", low=0.0, high=0.99)
        whole_number(self.seed, "seed", low=0, high=2**31 - 1)
        whole_number(self.threads, "threads", low=1, high=1024)
        whole_number(self.devices_per_node, "devices_per_node", low=1, high=MAX_DEVICES)
        one_of(self.communication, "communication", get_args(CommunicationKind))
        for field in _SIZES:
            sizes = getattr(self, field)
            if not 1 <= len(sizes) <= _MAX_LAYERS:
                raise InputError(
                    f"{field} must name 1 to {_MAX_LAYERS} layer sizes, got {len(sizes)}"
                )
            for size in sizes:
                whole_number(size, field, low=1, high=_MAX_WIDTH)
