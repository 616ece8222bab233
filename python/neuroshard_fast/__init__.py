"""Plan which embedding tables, and which of their columns, go on which device."""

from neuroshard_fast._core import CancelToken
from neuroshard_fast._version import __version__
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.cost_models import CostModels
from neuroshard_fast.errors import (
    InfeasiblePlanError,
    InputError,
    MissingDependencyError,
    NeuroShardError,
)
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import CostModelsUsed, DeviceLoad, Shard, ShardingPlan
from neuroshard_fast.planner import Planner
from neuroshard_fast.replanning import Move, Replan
from neuroshard_fast.tables import EmbeddingTable, Feature, TableSet

__all__ = [
    "CancelToken",
    "Cluster",
    "CostModels",
    "CostModelsUsed",
    "DeviceLoad",
    "EmbeddingTable",
    "Feature",
    "InfeasiblePlanError",
    "InputError",
    "MissingDependencyError",
    "Move",
    "NeuroShardError",
    "Planner",
    "Replan",
    "SearchOptions",
    "Shard",
    "ShardingPlan",
    "TableSet",
    "__version__",
]
