"""Cost-network inference and sharding search; csrc/binding makes it from csrc/engine.

Arrays may be anything that numpy takes for an array of numbers; they are copied. Objects never change after
they are made and may be used from several threads. Everything but making objects runs without the GIL.
Costs are in milliseconds, memory in bytes. Unusable values raise ValueError, naming the argument; scalars of
the wrong type raise TypeError. Shards are numbered as in docs/method.md: the unsplit tables first,
each split appends one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

class Network:
    """A multi-layer perceptron in fp32: standardised inputs, ReLU on hidden layers."""

    def __init__(
        self,
        layers: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
        feature_mean: npt.ArrayLike | None = None,
        feature_std: npt.ArrayLike | None = None,
    ) -> None:
        """``layers``: (weight [outputs, inputs], bias [outputs]); mean and std: [inputs], std above 0."""

    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...

class SharedCommunication:
    """Communication networks that serve any number of devices; docs/cost-models.md has the features.

    forward_device, backward_device: features of a device -> channels.
    forward_head, backward_head: own channels, their maximum and their mean over the devices -> cost in ms.
    devices_per_node: devices fill nodes in their order. batch_size: samples of all devices together.
    """

    def __init__(
        self,
        forward_device: Network,
        forward_head: Network,
        backward_device: Network,
        backward_head: Network,
        *,
        devices_per_node: int,
        batch_size: int,
    ) -> None: ...

class CostNetworks:
    """The cost networks of the method.

    table: features of a shard -> encoding, ReLU also after the last layer.
    set: sum of the encodings on a device -> compute cost, one output.
    forward: by number of devices D: D dims and D relative start times -> D costs.
    backward: by the same numbers of devices D: D dims -> D costs.
    communication: in place of forward and backward.
    """

    @overload
    def __init__(
        self,
        table: Network,
        set: Network,
        forward: Mapping[int, Network],
        backward: Mapping[int, Network],
    ) -> None: ...
    @overload
    def __init__(
        self, table: Network, set: Network, communication: SharedCommunication
    ) -> None: ...
    @property
    def features(self) -> int:
        """Features of a table."""

    @property
    def device_counts(self) -> list[int] | None:
        """Numbers of devices that there are communication networks for, ascending; None for any."""

class Problem:
    """Unsplit tables, the devices that shall hold them, and what every plan has to keep."""

    def __init__(
        self,
        features: npt.ArrayLike,
        features_per_column: npt.ArrayLike,
        features_per_doubling: npt.ArrayLike,
        dims: npt.ArrayLike,
        output_width: npt.ArrayLike,
        bytes_per_column: npt.ArrayLike,
        bytes_fixed: npt.ArrayLike,
        devices: int,
        memory_bytes: int | Sequence[int] | npt.NDArray[np.int64],
        *,
        least_widths: npt.ArrayLike | None = None,
        split_widths: npt.ArrayLike | None = None,
        pinned: npt.ArrayLike | None = None,
    ) -> None:
        """A shard of ``width`` columns has the features
        ``features + features_per_column * width + features_per_doubling * log2(width)``:
        ``features`` and ``features_per_column`` are [tables, features], the third is [features].

        The other arrays are [tables]: ``dims`` columns, a multiple of 4; ``output_width`` fp32 numbers sent
        for each column; memory of a shard is ``bytes_per_column * width + bytes_fixed``.

        memory_bytes: cap of every device, or [devices].
        least_widths: [tables]; no split leaves a narrower shard. 0: any width.
        split_widths: [tables]; where it is not 0, the table is cut at once, if it is, into shards of this
            width, which must divide its dim, and these are not split again.
        pinned: [tables]; the device that holds the table, unsplit. -1: any.
        """

    @property
    def tables(self) -> int: ...
    @property
    def devices(self) -> int: ...
    @property
    def memory_bytes(self) -> list[int]:
        """Cap of each device."""

class Plan:
    """A plan with its predicted costs; made by the functions below only."""

    @property
    def cost(self) -> float:
        """The largest compute + forward + backward over the devices."""

    @property
    def column_splits(self) -> list[int]: ...
    @property
    def placement(self) -> list[list[int]]:
        """Shard indices of each device, in the order of placement."""

    @property
    def compute(self) -> list[float]: ...
    @property
    def forward(self) -> list[float]: ...
    @property
    def backward(self) -> list[float]: ...
    @property
    def dim_sums(self) -> list[float]:
        """Sum of the output dims on each device, in fp32 numbers a sample."""

    @property
    def memory_bytes(self) -> list[int]: ...

class CancelToken:
    """Stops searches that were given it, from any thread."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Stop them, now and later."""

    @property
    def is_cancelled(self) -> bool: ...

class AutoAnswer:
    """What the automatic search found; made by :func:`auto_search` only."""

    @property
    def plan(self) -> Plan | None: ...
    @property
    def objective(self) -> float:
        """Cost of the plan; a mean over orders of the devices where ``is_mean``. It is what was minimised."""

    @property
    def is_mean(self) -> bool: ...
    @property
    def published(self) -> float | None:
        """The same of the plan of :func:`search`; None where that finds none."""

    @property
    def impossible(self) -> str:
        """Why there can be no plan; empty where that is not known."""

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped, by ``cancel`` or an exception, before its time was over."""

    @property
    def evaluations(self) -> int:
        """Plans evaluated to improve the first one."""

    @property
    def error(self) -> BaseException | None:
        """What ended it: an exception of ``progress``, or of a signal, such as KeyboardInterrupt."""

def auto_search(
    networks: CostNetworks,
    problem: Problem,
    *,
    beam_width: int = 3,
    candidates: int = 10,
    max_splits: int = 10,
    grid_steps: int = 11,
    threads: int = 1,
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = None,
    cancel: CancelToken | None = None,
    progress: Callable[[float], object] | None = None,
) -> AutoAnswer:
    """The plan of :func:`search`, or one that keeps the memory where that finds none, improved.

    evaluations: plans evaluated for that. seconds: goes on so long. Without either, about twice as long as
        :func:`search`.
    progress: is called with the cost of better plans, at most 20 times a second, on the calling thread.
    """

def objective(
    networks: CostNetworks,
    problem: Problem,
    column_splits: Sequence[int],
    placement: Sequence[Sequence[int]],
) -> float:
    """``AutoAnswer.objective`` of any plan."""

def replan(
    networks: CostNetworks,
    problem: Problem,
    kept: Sequence[tuple[int, int, int, int, int]],
    *,
    most_moved: float,
    max_splits: int = 10,
    seed: int = 0,
    evaluations: int | None = None,
) -> tuple[Plan, float, float] | None:
    """The cheapest plan found of which no more than ``most_moved`` bytes leave the device that holds them:
    plan, ``AutoAnswer.objective`` and bytes that move. None where none was found that keeps the memory.

    kept: shards of the plan before: table, column offset, width, device (-1: lost), bytes. A table that has
        one has to have all of its columns in them; tables without are new.
    evaluations: plans evaluated to make it cheaper; None: so many as take some milliseconds.
    """

def plain_annealing(
    networks: CostNetworks,
    problem: Problem,
    column_splits: Sequence[int],
    placement: Sequence[Sequence[int]],
    *,
    seconds: float,
    max_splits: int = 10,
    seed: int = 0,
) -> tuple[float, list[int], list[list[int]], int]:
    """The best plan of a plain annealing that begins from a plan, to measure other searches by: its
    ``AutoAnswer.objective``, splits and placement, and how many plans were evaluated."""

def exhaustive_search(
    networks: CostNetworks, problem: Problem, *, max_splits: int
) -> tuple[Plan, float] | None:
    """The cheapest of all plans, and its ``AutoAnswer.objective``; None where none keeps the memory.

    It is there to measure other searches by: ValueError where a set of shards has over 1e8 placements.
    """

def lower_bound(
    networks: CostNetworks, problem: Problem, *, upper: float, max_splits: int = 10
) -> float:
    """What no plan with at most ``max_splits`` splits can have as its ``AutoAnswer.objective`` less than.

    upper: ``AutoAnswer.objective`` of a plan; the answer is never more. It holds for costs as the engine
        computes them. Memory caps and pins are not used: a plan that keeps them may have to cost more.

    The bound is useful with shared communication networks, which the shipped models have. Those of the
    published kind take devices one by one and may predict negative costs: with these it is the bound of
    compute and what intervals say of the networks, often far below 0. -inf where nothing is known, as for a
    set network, or shared networks, of another depth than two layers.
    """

def search(
    networks: CostNetworks,
    problem: Problem,
    *,
    beam_width: int = 3,
    candidates: int = 10,
    max_splits: int = 10,
    grid_steps: int = 11,
    threads: int = 1,
) -> Plan | None:
    """Beam search over column splits, greedy grid search over placements; None where it finds no plan.

    The result does not depend on ``threads``.
    """

def table_wise(
    networks: CostNetworks, problem: Problem, *, grid_steps: int = 11, threads: int = 1
) -> Plan | None:
    """Greedy grid search on the unsplit tables; None where it finds no plan."""

def evaluate(
    networks: CostNetworks,
    problem: Problem,
    column_splits: Sequence[int],
    placement: Sequence[Sequence[int]],
) -> Plan:
    """Predicted costs of a plan; memory caps are not checked. ValueError if it is not a valid plan."""

def single_table_compute(networks: CostNetworks, problem: Problem) -> npt.NDArray[np.float32]:
    """Predicted compute cost of each unsplit table alone on a device, [tables]."""

def split_shards(problem: Problem, column_splits: Sequence[int]) -> list[tuple[int, int, int]]:
    """(table, column offset, width) of each shard after the splits. ValueError for an impossible split."""

def evaluate_shards(
    networks: CostNetworks, problem: Problem, shards: Sequence[Sequence[tuple[int, int]]]
) -> Plan:
    """Predicted costs where each device holds these (table, width), whatever splits lead to them.

    Widths are multiples of 4; those of a table add up to its dim. Constraints are not checked;
    ``column_splits`` and ``placement`` of the result are empty.
    """

def greedy_baseline(problem: Problem, key: npt.ArrayLike) -> list[list[int]]:
    """Tables in descending order of ``key`` [tables], each to the device of the lowest sum of keys so far.

    Equal keys: the larger table first, then the later one. A table that fits on no device goes to the last
    one, over its cap, as in the published code: the caller checks.
    """

def random_placement(problem: Problem, seed: int) -> list[list[int]] | None:
    """A random placement of the unsplit tables within the caps, or None if many tries find none."""

def write_capture(
    networks: CostNetworks,
    problem: Problem,
    plan: Plan | None,
    *,
    beam_width: int,
    candidates: int,
    max_splits: int,
    grid_steps: int,
    threads: int,
) -> bytes:
    """A call of :func:`search` and what it returned, as a file for ``neuroshard-bench``.

    The options are those of that call. ValueError where ``plan`` does not fit the problem.
    """

def isa() -> str:
    """The instruction set in use: "avx512", "avx2", "neon" or "portable"; all give the same answers."""

def supported_isas() -> list[str]:
    """The instruction sets that can be used here, the widest first."""

def use_isa(name: str) -> None:
    """Use a supported instruction set from now on, for tests and benchmarks. ValueError for others."""
