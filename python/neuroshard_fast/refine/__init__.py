"""Refining cost models where they will be used: on plans that a search proposes with them."""

from neuroshard_fast.refine.comparison import Comparison
from neuroshard_fast.refine.options import RefineOptions
from neuroshard_fast.refine.report import cycles_table, draw_cycles
from neuroshard_fast.refine.run import Refinement, refine
from neuroshard_fast.refine.state import Cycle

__all__ = [
    "Comparison",
    "Cycle",
    "RefineOptions",
    "Refinement",
    "cycles_table",
    "draw_cycles",
    "refine",
]
