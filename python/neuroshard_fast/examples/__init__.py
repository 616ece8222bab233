"""Table sets to try things on: public, synthetic like public data, and production-like."""

from neuroshard_fast.examples.broad import broad
from neuroshard_fast.examples.dlrm import DlrmLike, dlrm_like
from neuroshard_fast.examples.mlperf import mlperf_dlrm_dcnv2
from neuroshard_fast.examples.production import production_like
from neuroshard_fast.examples.tasks import draw_task

__all__ = [
    "DlrmLike",
    "broad",
    "dlrm_like",
    "draw_task",
    "mlperf_dlrm_dcnv2",
    "production_like",
]
