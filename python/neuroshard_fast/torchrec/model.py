"""The tables of a model, found as TorchRec's enumerator finds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torchrec.distributed.planner.shard_estimators import _get_optimizer_multipler
from torchrec.distributed.planner.utils import build_sharder_data, sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import DataType as TorchRecDataType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import DataType, Pooling
from neuroshard_fast.torchrec.optimizers import OptimizerState, optimizer_state

Kind = Literal["bags", "sequence"]
KINDS: tuple[Kind, ...] = ("bags", "sequence")

_DATA_TYPES: dict[Any, tuple[torch.dtype, DataType]] = {
    TorchRecDataType.FP32: (torch.float32, "fp32"),
    TorchRecDataType.FP16: (torch.float16, "fp16"),
}
_POOLING: dict[Any, Pooling] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean"}
_SUPPORTED = (
    EmbeddingBagCollection,
    EmbeddingCollection,
    FusedEmbeddingBagCollection,
    FeatureProcessedEmbeddingBagCollection,
)


@dataclass(frozen=True)
class Offer:
    """What a sharder offers on one kind of device, asked for once.

    types: sharding types. kernels: compute kernels of each of them.
    data: what TorchRec's estimators need of the sharder. fused_params: empty where it has none.
    """

    sharder: Any
    types: tuple[str, ...]
    kernels: dict[str, tuple[str, ...]]
    data: Any
    fused_params: dict[str, Any]

    @classmethod
    def of(cls, sharder: Any, compute_device: str) -> Offer:
        """What ``sharder`` offers on ``compute_device``."""
        types = tuple(sharder.sharding_types(compute_device))
        return cls(
            sharder=sharder,
            types=types,
            kernels={
                type_: tuple(sharder.compute_kernels(type_, compute_device)) for type_ in types
            },
            data=build_sharder_data(sharder),
            fused_params=dict(getattr(sharder, "fused_params", None) or {}),
        )

    @property
    def name(self) -> str:
        """Of the sharder's class."""
        return type(self.sharder).__name__


class ModelTable(NamedTuple):
    """A table of a model.

    fqn: path of its module and its name, joined by a dot; unique.
    kind: "bags" are pooled, of a "sequence" every row that is looked up comes out.
    optimizer: fused into the backward pass.
    estimate_factor: its state as TorchRec estimates it, in bytes for each byte of weights.
    parameter: the unsharded weights, perhaps on the meta device. module: as in the model.
    """

    fqn: str
    path: str
    name: str
    rows: int
    dim: int
    data_type: DataType
    features: tuple[str, ...]
    pooling: Pooling
    is_weighted: bool
    kind: Kind
    optimizer: OptimizerState
    estimate_factor: float
    parameter: Any
    module: nn.Module
    offer: Offer


def find_tables(
    module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None, compute_device: str
) -> list[ModelTable]:
    """The tables of all modules of ``module`` that a sharder is for, module by module.

    A module of a sharder's type is taken whole: nothing is looked for within. ``sharders`` are TorchRec's
    default ones where None. InputError for what cannot be planned, by name.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module: a torch.nn.Module is wanted, got a {type(module).__name__}")
    sharders = get_default_sharders() if sharders is None else sharders
    for sharder in sharders if isinstance(sharders, Collection) else [sharders]:
        if not isinstance(sharder, ModuleSharder):
            raise InputError(
                f"sharders: ModuleSharders of TorchRec are wanted, got a {type(sharder).__name__}"
            )
    by_type = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    offers: dict[str, Offer] = {}
    tables: list[ModelTable] = []
    queue: deque[tuple[str, nn.Module]] = deque([("", module)])
    while queue:
        path, child = queue.popleft()
        type_name = sharder_name(type(child))
        sharder = by_type.get(type_name)
        if sharder is None:
            queue.extend(
                (f"{path}.{name}" if path else name, below)
                for name, below in child.named_children()
            )
            continue
        _require_supported(path, child)
        if type_name not in offers:
            offers[type_name] = Offer.of(sharder, compute_device)
        tables.extend(_tables_of(path, child, offers[type_name]))
    _require_unique(tables)
    return tables


def _require_supported(path: str, module: nn.Module) -> None:
    if not isinstance(module, _SUPPORTED):
        # In full: quantised collections have the names of those that are not.
        raise InputError(
            f"module {path or '(the model itself)'}: {sharder_name(type(module))} is not supported; "
            f"supported are {', '.join(type_.__name__ for type_ in _SUPPORTED)}. Plan it with TorchRec's "
            "planner, or leave its sharder out of sharders to have it replicated"
        )


def _tables_of(path: str, module: nn.Module, offer: Offer) -> Iterator[ModelTable]:
    parameters = offer.sharder.shardable_parameters(module)
    if not parameters:
        return
    collection: Any = module
    if isinstance(module, FeatureProcessedEmbeddingBagCollection):
        collection = module._embedding_bag_collection
    kind: Kind = "sequence" if isinstance(module, EmbeddingCollection) else "bags"
    if kind == "sequence":
        configs, is_weighted = collection.embedding_configs(), False
    else:
        configs, is_weighted = collection.embedding_bag_configs(), bool(collection.is_weighted())
    by_name = {config.name: config for config in configs}
    optimizer_class, fused_params = None, offer.fused_params
    if isinstance(module, FusedEmbeddingBagCollection):
        optimizer_class, fused_params = module.optimizer_type(), {}
    for name, parameter in parameters.items():
        fqn = f"{path}.{name}" if path else name
        config = by_name.get(name)
        if config is None:
            raise InputError(f"table {fqn!r}: its module has no configuration of that name")
        rows, dim = parameter.shape
        classes = getattr(parameter, "_optimizer_classes", None)
        yield ModelTable(
            fqn=fqn,
            path=path,
            name=name,
            rows=rows,
            dim=_checked_dim(dim, fqn),
            data_type=_data_type(config, parameter, fqn),
            features=tuple(config.feature_names or [name]),
            pooling="none" if kind == "sequence" else _pooling(config, fqn),
            is_weighted=is_weighted,
            kind=kind,
            optimizer=optimizer_state(parameter, optimizer_class, fused_params, f"table {fqn!r}"),
            estimate_factor=(
                _get_optimizer_multipler(classes[0], parameter.shape) if classes else 0.0
            ),
            parameter=parameter,
            module=module,
            offer=offer,
        )


def _checked_dim(dim: int, fqn: str) -> int:
    if dim < 4 or dim % 4:
        raise InputError(
            f"table {fqn!r}: embedding_dim is {dim}; FBGEMM's fused operators want a multiple of 4"
        )
    return dim


def _data_type(config: Any, parameter: Any, fqn: str) -> DataType:
    if getattr(config, "use_virtual_table", False):
        raise InputError(f"table {fqn!r}: use_virtual_table is not supported")
    dtype, data_type = _DATA_TYPES.get(config.data_type, (None, None))
    # The module makes half-precision weights of every type that it does not know.
    if data_type is None or parameter.dtype != dtype:
        raise InputError(
            f"table {fqn!r}: data type {config.data_type} with weights of {parameter.dtype} is not "
            "supported; supported are FP32 and FP16"
        )
    return data_type


def _pooling(config: Any, fqn: str) -> Pooling:
    if config.pooling not in _POOLING:
        raise InputError(f"table {fqn!r}: pooling {config.pooling} is not supported")
    return _POOLING[config.pooling]


def _require_unique(tables: Sequence[ModelTable]) -> None:
    if len({table.fqn for table in tables}) < len(tables):
        seen: set[str] = set()
        for table in tables:
            if table.fqn in seen:
                raise InputError(f"table {table.fqn!r}: two tables have this name")
            seen.add(table.fqn)
