"""State of the optimizers that FBGEMM fuses into the backward pass.

Source: ``SplitTableBatchedEmbeddingBagsCodegen.split_optimizer_states`` of fbgemm-gpu 1.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

from neuroshard_fast.checks import shown
from neuroshard_fast.errors import InputError
from neuroshard_fast.tables import Optimizer


class OptimizerState(NamedTuple):
    """What an optimizer keeps of a shard, in bytes.

    name: FBGEMM's.
    of_whole_rows: whether the step of an element depends on other columns of its row, so that a table
        split by columns trains otherwise.
    trained_as: the optimizer among those that cost models know whose memory traffic is like its own.
    """

    name: str
    bytes_per_element: int
    bytes_per_row: int
    of_whole_rows: bool
    trained_as: Optimizer


_STATES = {
    state.name: state
    for state in (
        OptimizerState("none", 0, 0, False, "sgd"),
        OptimizerState("sgd", 0, 0, False, "sgd"),
        OptimizerState("exact_sgd", 0, 0, False, "sgd"),
        OptimizerState("exact_adagrad", 4, 0, False, "adagrad"),
        OptimizerState("row_wise_adagrad", 0, 4, True, "rowwise_adagrad"),
        OptimizerState("exact_row_wise_adagrad", 0, 4, True, "rowwise_adagrad"),
        OptimizerState("ema_in_place_row_wise_adagrad", 0, 4, True, "rowwise_adagrad"),
        OptimizerState("ensemble_row_wise_adagrad", 4, 4, True, "adagrad"),
        OptimizerState("adam", 8, 0, False, "adam"),
        OptimizerState("partial_row_wise_adam", 4, 4, True, "adam"),
        # The step is scaled by norms of rows.
        OptimizerState("lamb", 8, 0, True, "adam"),
        OptimizerState("partial_row_wise_lamb", 4, 4, True, "adam"),
        OptimizerState("lars_sgd", 4, 0, True, "adagrad"),
    )
}
_DEFAULT = _STATES["exact_sgd"]  # of FBGEMM's operator where nothing is said
_COUNTED_MODES = ("COUNTER", "COWCLIP")
_COUNTERS_BYTES = 8  # of a row: its last iteration and how often it was looked up


def optimizer_state(
    parameter: Any,
    optimizer_class: type[Any] | None,
    fused_params: Mapping[str, Any],
    where: str,
) -> OptimizerState:
    """State of the optimizer that TorchRec will fuse for ``parameter``.

    Its own (``_optimizer_classes``) comes before that of its module, ``optimizer_class``, and both before
    the sharder's ``fused_params``. InputError, beginning with ``where``, for an optimizer whose state is
    not known.
    """
    classes = getattr(parameter, "_optimizer_classes", None)
    if classes is None and optimizer_class is None and not fused_params:
        return _DEFAULT
    options = dict(fused_params)
    if classes and classes[0] is not None:
        optimizer_class = classes[0]
        options.pop("optimizer", None)
        options.update((getattr(parameter, "_optimizer_kwargs", None) or [{}])[0])
    given = options.get("optimizer")
    if given is None and optimizer_class is not None:
        try:
            given = optimizer_type_to_emb_opt_type(optimizer_class)
        except ValueError as error:
            raise InputError(
                f"{where}: TorchRec cannot fuse optimizer {optimizer_class.__name__}"
            ) from error
    if given is None:
        return _DEFAULT
    name = str(getattr(given, "value", given))
    if name not in _STATES:
        raise InputError(
            f"{where}: the state of optimizer {shown(name)} is not known; known are "
            f"{', '.join(_STATES)}"
        )
    state = _STATES[name]
    mode = options.get("weight_decay_mode")
    if name == "exact_row_wise_adagrad" and getattr(mode, "name", None) in _COUNTED_MODES:
        return state._replace(bytes_per_row=state.bytes_per_row + _COUNTERS_BYTES)
    return state
