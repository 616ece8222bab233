"""Pre-training: from cost data to the cost networks that the planner searches with."""

from neuroshard_fast.pretrain.card import errors_table, render_card
from neuroshard_fast.pretrain.options import PretrainOptions
from neuroshard_fast.pretrain.run import pretrain

__all__ = ["PretrainOptions", "errors_table", "pretrain", "render_card"]
