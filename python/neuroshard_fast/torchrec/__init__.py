"""A planner that TorchRec users swap in for ``EmbeddingShardingPlanner``.

Importing it needs TorchRec 1.8; the rest of the package does not.
"""

from __future__ import annotations

import importlib
import warnings

from neuroshard_fast.errors import MissingDependencyError

try:
    # FBGEMM warns of each optional operator that its build lacks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _name in ("torch", "fbgemm_gpu", "torchrec.distributed.planner"):
            importlib.import_module(_name)
except ImportError as error:
    raise MissingDependencyError(
        f"planning for TorchRec needs TorchRec 1.8, and here {error.name or error} is missing: install "
        "torch, the build of FBGEMM that fits it (fbgemm-gpu for CUDA, fbgemm-gpu-cpu without), then "
        "pip install tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath and "
        "pip install --no-deps torchrec==1.8.0 (without --no-deps it takes the CUDA build of FBGEMM)"
    ) from error

from neuroshard_fast.torchrec.drift import DriftReport, TableDrift
from neuroshard_fast.torchrec.plan import RankLoad, TablePlan, TableShard, TorchRecPlan
from neuroshard_fast.torchrec.planner import NeuroShardPlanner
from neuroshard_fast.torchrec.predict import Prediction
from neuroshard_fast.torchrec.report import format_torchrec_plan
from neuroshard_fast.torchrec.reuse_plan import check_plan
from neuroshard_fast.torchrec.stats import TableStats

__all__ = [
    "DriftReport",
    "NeuroShardPlanner",
    "Prediction",
    "RankLoad",
    "TableDrift",
    "TablePlan",
    "TableShard",
    "TableStats",
    "TorchRecPlan",
    "check_plan",
    "format_torchrec_plan",
]
