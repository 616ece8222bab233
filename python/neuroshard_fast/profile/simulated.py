"""SIMULATED costs: an analytic model of NVIDIA GPUs, for those who have none to measure.

Nothing here is a measurement. The model counts the bytes and warp instructions of the fused
table-batched lookup (forward, backward, optimizer update) and the bytes of both all-to-alls, and
turns them into milliseconds with published specifications. docs/simulated.md has the formulas, the
sources, the published timings that it was compared with, and what it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from neuroshard_fast.checks import whole_number
from neuroshard_fast.cluster import MAX_BATCH_SIZE, MAX_DEVICES
from neuroshard_fast.errors import InputError
from neuroshard_fast.features import OUTPUT_BYTES, output_dims
from neuroshard_fast.memory import shard_memory
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.reuse import expected_reuse
from neuroshard_fast.tables import EmbeddingTable, TableSet

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """A GPU and its place in a cluster of nodes, as published.

    description: what is simulated, in words.
    hbm_bytes_per_s: peak bandwidth of device memory.
    l2_bytes: size of the second-level cache.
    l2_bytes_per_s: peak read bandwidth of that cache.
    warp_instructions_per_s: streaming multiprocessors x 4 schedulers x boost clock.
    gpus_per_node: GPUs joined by NVLink.
    nvlink_bytes_per_s: NVLink bandwidth of a GPU in one direction.
    network_bytes_per_s: InfiniBand bandwidth of a GPU (one adapter each) in one direction.
    """

    description: str
    hbm_bytes_per_s: float
    l2_bytes: float
    l2_bytes_per_s: float
    warp_instructions_per_s: float
    gpus_per_node: int
    nvlink_bytes_per_s: float
    network_bytes_per_s: float


HARDWARE: dict[str, HardwareSpec] = {
    "a100": HardwareSpec(
        description="A100-SXM4-80GB, nodes of 8, NVLink 3, HDR InfiniBand",
        hbm_bytes_per_s=2.039e12,  # NVIDIA A100 80GB datasheet: 2,039 GB/s
        l2_bytes=40 * 2**20,  # NVIDIA A100 architecture whitepaper: 40 MB
        l2_bytes_per_s=5120 * 1.41e9,  # the same: 5,120 bytes a clock, boost clock 1,410 MHz
        warp_instructions_per_s=108 * 4 * 1.41e9,  # the same: 108 SMs of 4 schedulers
        gpus_per_node=8,  # NVIDIA DGX A100 datasheet
        nvlink_bytes_per_s=300e9,  # A100 datasheet: 600 GB/s, both directions together
        network_bytes_per_s=25e9,  # DGX A100 datasheet: 8 compute adapters of 200 Gb/s
    ),
    "h100": HardwareSpec(
        description="H100-SXM5-80GB, nodes of 8, NVLink 4, NDR InfiniBand",
        hbm_bytes_per_s=3.35e12,  # NVIDIA H100 datasheet: 3.35 TB/s
        l2_bytes=50 * 2**20,  # NVIDIA H100 architecture whitepaper: 50 MB
        # Bytes a clock are not published for H100; taken as those of A100.
        l2_bytes_per_s=5120 * 1.83e9,
        # 132 SMs (whitepaper); clock from the datasheet: 989 TFLOPS of dense BF16 are 132 SMs x
        # 4,096 operations x clock.
        warp_instructions_per_s=132 * 4 * 1.83e9,
        gpus_per_node=8,  # NVIDIA DGX H100 datasheet
        nvlink_bytes_per_s=450e9,  # H100 datasheet: 900 GB/s, both directions together
        network_bytes_per_s=50e9,  # DGX H100 datasheet: 8 compute adapters of 400 Gb/s
    ),
    "h200": HardwareSpec(
        description="H200-SXM5-141GB, nodes of 8, NVLink 4, NDR InfiniBand",
        hbm_bytes_per_s=4.8e12,  # NVIDIA H200 datasheet: 4.8 TB/s; the rest as H100
        l2_bytes=50 * 2**20,
        l2_bytes_per_s=5120 * 1.83e9,
        warp_instructions_per_s=132 * 4 * 1.83e9,
        gpus_per_node=8,
        nvlink_bytes_per_s=450e9,
        network_bytes_per_s=50e9,
    ),
}
"""Simulated GPUs by name."""

# Shares of a peak that kernels reach. HBM: 92 to 94% for streaming (ISCA 2026 paper on MTIA 300,
# section V-A, on H100 and H200), less for gathers of rows. The others are assumptions.
_HBM_SHARE = 0.85
_L2_SHARE = 0.65
_NVLINK_SHARE = 0.80
_NETWORK_SHARE = 0.80

# The A100 whitepaper: the L2 is two partitions, each caching for the SMs beside it, so that shared
# rows may lie in both.
_L2_USABLE = 0.5
_SECTOR_BYTES = 32  # unit of an L2 access (CUDA C++ best practices guide)
_HBM_ACCESS_BYTES = 64  # two sectors: smallest access to HBM

# Kernels that FBGEMM launches. Forward: bounds check, lookup. Backward: linearise indices, radix
# sort (histogram, scan, 4 passes), run-length encode (2), 2 scans, 3 clears, long segments, and
# 2 kernels that update.
_FORWARD_KERNELS = 2
_BACKWARD_KERNELS = 17
_KERNEL_SECONDS = 4.5e-6  # launch, fill and drain of one in a queue of dependent kernels; assumed

_HBM_LATENCY_SECONDS = 0.6e-6  # of one dependent access under load; assumed
_ROWS_IN_FLIGHT = 4  # rows of a bag that the forward kernel loads at a time (FBGEMM unrolls by 4)
_LANE_ELEMENTS = 128  # elements that a warp moves at a time: 32 lanes x 4

# Warp instructions: for a lookup (its index, address and accumulation), for a row written (an
# output, or twice for an updated row: it is read, and the optimizer works on it), and for every 128
# elements of either. The only calibrated constants, one set for everything: docs/simulated.md.
_INSTRUCTIONS_PER_LOOKUP = 60
_INSTRUCTIONS_PER_WRITTEN_ROW = 140
_INSTRUCTIONS_PER_VECTOR = 40

# Sort of (64-bit row, 32-bit position): 4 passes that read and write, a histogram, and the
# preparation and run-length encoding around it.
_SORT_BYTES_PER_LOOKUP = 4 * 2 * 12 + 8 + 36

# Limits of one kernel overlap, but not wholly: their p-norm, between the largest and the sum.
_OVERLAP_EXPONENT = 4.0

_COLLECTIVE_SECONDS = 15e-6  # start of a collective; order of nccl-tests at a few bytes, assumed
_NVLINK_PEER_SECONDS = 0.5e-6  # a further peer within the node; assumed
_NETWORK_PEER_SECONDS = 1.5e-6  # a further peer in another node: a message and its proxy; assumed
_BARRIER_STEP_SECONDS = 3e-6  # a step of a barrier, log2(devices) of them; assumed

_COUPLING = 0.8
"""How far an all-to-all ends for all with the slowest: messages to all peers advance together."""


@dataclass(frozen=True)
class ComputeTimes:
    """Simulated times of fused lookups, milliseconds, shape [samples] each."""

    forward_ms: Floats
    backward_ms: Floats

    @property
    def total_ms(self) -> Floats:
        """Forward, backward and update together."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class _Loads:
    """What the two passes of each table move and execute, shape [tables] each.

    Additive over the tables of a fused lookup but for ``longest_bag``, of which the largest counts.
    """

    forward_hbm_bytes: Floats
    forward_l2_bytes: Floats
    forward_instructions: Floats
    longest_bag: Floats
    sort_bytes: Floats
    backward_hbm_bytes: Floats
    backward_l2_bytes: Floats
    backward_instructions: Floats


class SimulatedCompute:
    """The fused lookup of a set of tables on a simulated GPU; deterministic, without noise.

    ``hardware`` is a name in HARDWARE or a spec of one's own; ``batch_size`` the global batch.
    """

    def __init__(self, hardware: str | HardwareSpec, batch_size: int) -> None:
        self.spec = _spec(hardware)
        self.batch_size = _batch_size(batch_size)

    def measure(self, tables: Sequence[EmbeddingTable]) -> float:
        """Milliseconds of forward, backward and update of the fused lookup of ``tables``.

        InputError where there are none.
        """
        return float(self.measure_many(tables, [range(len(tables))])[0])

    def measure_many(
        self, tables: Sequence[EmbeddingTable], samples: Sequence[Sequence[int]]
    ) -> Floats:
        """As :meth:`measure` for many sets: each sample lists indices into ``tables``, repeatedly
        where a table occurs more than once.

        Shape [samples]. InputError for an empty sample or an index out of range.
        """
        return self.measure_parts(tables, samples).total_ms

    def measure_parts(
        self, tables: Sequence[EmbeddingTable], samples: Sequence[Sequence[int]]
    ) -> ComputeTimes:
        """As :meth:`measure_many`, with the two passes apart."""
        flat, starts = _flatten(samples, len(tables))
        return self._times(self._loads(tables), flat, starts)

    def _times(
        self, loads: _Loads, flat: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> ComputeTimes:
        spec = self.spec

        def total(values: Floats) -> Floats:
            return np.add.reduceat(values[flat], starts)

        hbm = _HBM_SHARE * spec.hbm_bytes_per_s
        l2 = _L2_SHARE * spec.l2_bytes_per_s
        rounds = np.maximum.reduceat(loads.longest_bag[flat], starts) / _ROWS_IN_FLIGHT
        forward = _FORWARD_KERNELS * _KERNEL_SECONDS + _overlapped(
            total(loads.forward_hbm_bytes) / hbm,
            total(loads.forward_l2_bytes) / l2,
            total(loads.forward_instructions) / spec.warp_instructions_per_s,
            rounds * _HBM_LATENCY_SECONDS,
        )
        backward = _BACKWARD_KERNELS * _KERNEL_SECONDS + total(loads.sort_bytes) / hbm
        backward += _overlapped(
            total(loads.backward_hbm_bytes) / hbm,
            total(loads.backward_l2_bytes) / l2,
            total(loads.backward_instructions) / spec.warp_instructions_per_s,
        )
        return ComputeTimes(1e3 * forward, 1e3 * backward)

    def _loads(self, tables: Sequence[EmbeddingTable]) -> _Loads:
        rows = np.array([table.num_embeddings for table in tables], float)
        dim = np.array([table.embedding_dim for table in tables], float)
        pooling_factor = np.array([table.pooling_factor for table in tables])
        lookups = self.batch_size * pooling_factor
        bags = self.batch_size * np.array([len(table.features) for table in tables], float)
        pooled = np.array([table.pooling != "none" for table in tables])
        weighted = np.array([table.is_weighted for table in tables])
        outputs = np.where(pooled, bags, lookups)
        output_row = dim * np.array([OUTPUT_BYTES[table.output_dtype] for table in tables], float)
        # Bytes of a row as memory.py counts them for all: weights alone, and with optimizer state.
        memory = [shard_memory(table).of_width(table.embedding_dim) for table in tables]
        bare = [
            shard_memory(msgspec.structs.replace(table, optimizer="sgd")).of_width(
                table.embedding_dim
            )
            for table in tables
        ]
        row = np.array(bare, float) / rows
        state = np.array(memory, float) / rows - row

        histograms = np.array([table.histogram(self.batch_size) for table in tables])
        distinct_by_bin, counts = expected_reuse(rows, lookups, histograms)
        distinct = distinct_by_bin.sum(axis=1)
        usable_l2 = _L2_USABLE * self.spec.l2_bytes
        missed = _missed_repeats(distinct_by_bin, counts, row, usable_l2)

        moving = _INSTRUCTIONS_PER_VECTOR * dim / _LANE_ELEMENTS
        lookup_instructions = _INSTRUCTIONS_PER_LOOKUP + moving
        written_instructions = _INSTRUCTIONS_PER_WRITTEN_ROW + moving
        index_bytes = lookups * np.where(weighted, 12.0, 8.0) + bags * 8.0
        output_bytes = outputs * output_row

        # Gradient rows are read in the order of the sorted indices: once each from memory, and
        # again where the gradients of the table do not fit the cache.
        first_reads = np.minimum(lookups, outputs)
        kept = np.minimum(1.0, usable_l2 / np.maximum(output_bytes, 1.0))
        gradient_reads = first_reads + (lookups - first_reads) * (1.0 - kept)
        stored = _rounded(row, _HBM_ACCESS_BYTES) + _rounded(state, _HBM_ACCESS_BYTES)
        touched = 2.0 * distinct * stored
        return _Loads(
            forward_hbm_bytes=index_bytes
            + (distinct + missed) * _rounded(row, _HBM_ACCESS_BYTES)
            + output_bytes,
            forward_l2_bytes=index_bytes + lookups * _rounded(row, _SECTOR_BYTES) + output_bytes,
            forward_instructions=lookups * lookup_instructions + outputs * written_instructions,
            longest_bag=np.where(pooled, pooling_factor, np.minimum(pooling_factor, 1.0)),
            sort_bytes=lookups * _SORT_BYTES_PER_LOOKUP,
            backward_hbm_bytes=8.0 * lookups
            + gradient_reads * _rounded(output_row, _HBM_ACCESS_BYTES)
            + touched,
            backward_l2_bytes=lookups * _rounded(output_row, _SECTOR_BYTES) + touched,
            backward_instructions=lookups * lookup_instructions
            + 2.0 * distinct * written_instructions,
        )


class SimulatedCommunication:
    """Both all-to-alls of pooled embeddings among ``world_size`` simulated GPUs; deterministic.

    Device ``r`` holds the tables that produce ``dims[r]`` fp32 numbers for each sample of the
    global batch, and trains on its share of the samples. Devices fill nodes in order.
    """

    def __init__(self, hardware: str | HardwareSpec, world_size: int, batch_size: int) -> None:
        self.spec = _spec(hardware)
        self.world_size = whole_number(world_size, "world_size", low=2, high=MAX_DEVICES)
        self.batch_size = _batch_size(batch_size)

    def measure(
        self, dims: Sequence[float], starts_ms: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Forward and backward milliseconds of each device.

        dims: output dimension of each device, in fp32 numbers a sample; starts_ms: start offset of
        each in the forward all-to-all. Forward: from a device's own start to the end of a barrier
        of all, waiting for late devices included. Backward: from a common start to its own finish.
        """
        forward, backward = self.measure_many([dims], [starts_ms])
        return forward[0].tolist(), backward[0].tolist()

    def measure_many(self, dims: npt.ArrayLike, starts_ms: npt.ArrayLike) -> tuple[Floats, Floats]:
        """As :meth:`measure` for many samples: arrays of shape [samples, world_size], all four."""
        output_dims = self._checked(dims, "dims")
        starts = self._checked(starts_ms, "starts_ms")
        if output_dims.shape != starts.shape:
            raise InputError(
                "dims and starts_ms must hold the same number of samples, got "
                f"{len(output_dims)} and {len(starts)}"
            )
        own = self._own_ms(output_dims)
        barrier = 1e3 * _BARRIER_STEP_SECONDS * math.ceil(math.log2(self.world_size))
        end = (starts + own).max(axis=1, keepdims=True) + barrier
        slowest = own.max(axis=1, keepdims=True)
        return end - starts, own + _COUPLING * (slowest - own)

    def _own_ms(self, dims: Floats) -> Floats:
        """What each device needs to exchange its messages with peers that are all ready."""
        spec, world = self.spec, self.world_size
        node = np.arange(world) // spec.gpus_per_node
        node_size = np.bincount(node).astype(float)
        inside = node_size[node] - 1.0
        outside = world - node_size[node]
        # Every device sends (forward) or gets (backward) a message of its own dimension to each
        # peer, and gets or sends one of each peer's dimension.
        bytes_per_dim = 4.0 * self.batch_size / world
        in_node = np.add.reduceat(dims, np.flatnonzero(np.diff(node, prepend=-1)), axis=1)[:, node]
        total = dims.sum(axis=1, keepdims=True)
        nvlink = bytes_per_dim * np.maximum(inside * dims, in_node - dims)
        network = bytes_per_dim * np.maximum(outside * dims, total - in_node)
        latency = (
            _COLLECTIVE_SECONDS + inside * _NVLINK_PEER_SECONDS + outside * _NETWORK_PEER_SECONDS
        )
        # The two kinds of link work at the same time.
        seconds = latency + np.maximum(
            nvlink / (_NVLINK_SHARE * spec.nvlink_bytes_per_s),
            network / (_NETWORK_SHARE * spec.network_bytes_per_s),
        )
        return np.asarray(1e3 * seconds)

    def _checked(self, values: npt.ArrayLike, field: str) -> Floats:
        expected = f"{field} must be {self.world_size} numbers a sample, one for each device"
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise InputError(expected) from error
        if array.dtype.kind not in "iuf":
            raise InputError(expected)
        if array.ndim != 2 or array.shape[1] != self.world_size:
            raise InputError(f"{expected}, got an array of shape {list(array.shape)}")
        if not np.isfinite(array).all() or (array < 0).any():
            raise InputError(f"{field} must be finite numbers of at least 0")
        return array.astype(float)


@dataclass(frozen=True)
class PlanCost:
    """Simulated cost of a finished plan, milliseconds; a value for each device in the tuples."""

    compute_ms: tuple[float, ...]
    backward_comm_ms: tuple[float, ...]
    forward_comm_ms: tuple[float, ...]

    @property
    def total_ms(self) -> tuple[float, ...]:
        """Sum of the three, for each device."""
        parts = zip(self.compute_ms, self.backward_comm_ms, self.forward_comm_ms, strict=True)
        return tuple(sum(device) for device in parts)

    @property
    def cost_ms(self) -> float:
        """Cost of the plan: the largest total."""
        return max(self.total_ms)


def score_devices(
    devices: Sequence[Sequence[EmbeddingTable]], hardware: str | HardwareSpec, batch_size: int
) -> PlanCost:
    """Simulated cost of a placement: for each device the tables that it holds, a shard being its
    table with the shard's width as ``embedding_dim``.

    As a real step is measured: compute of each device (0 for an empty one); the backward
    all-to-all; the forward one with devices starting ``compute + backward`` apart, less the
    smallest; cost is the largest sum. InputError for fewer than two devices.
    """
    compute = SimulatedCompute(hardware, batch_size)
    communication = SimulatedCommunication(hardware, len(devices), batch_size)
    compute_ms = [compute.measure(tables) if tables else 0.0 for tables in devices]
    dims = output_dims(devices)
    _, backward = communication.measure(dims, [0.0] * len(devices))
    ready = [ms + wait for ms, wait in zip(compute_ms, backward, strict=True)]
    forward, _ = communication.measure(dims, [ms - min(ready) for ms in ready])
    return PlanCost(tuple(compute_ms), tuple(backward), tuple(forward))


def score_plan(
    plan: ShardingPlan, tables: TableSet, hardware: str | HardwareSpec, batch_size: int
) -> PlanCost:
    """Simulated cost of ``plan`` for ``tables``; InputError where it is not a plan of these."""
    return score_devices(plan.tables_by_device(tables), hardware, batch_size)


def _spec(hardware: str | HardwareSpec) -> HardwareSpec:
    if isinstance(hardware, HardwareSpec):
        return hardware
    if not isinstance(hardware, str) or hardware not in HARDWARE:
        raise InputError(f"hardware must be one of {', '.join(HARDWARE)}, got {hardware!r}")
    return HARDWARE[hardware]


def _batch_size(value: int) -> int:
    return whole_number(value, "batch_size", low=1, high=MAX_BATCH_SIZE)


def _flatten(
    samples: Sequence[Sequence[int]], tables: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All indices one after another, and where each sample starts."""
    lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    if not lengths.size or not lengths.all():
        raise InputError("a simulated lookup needs at least one table in every sample")
    flat = np.fromiter((index for sample in samples for index in sample), np.int64, lengths.sum())
    if flat.min() < 0 or flat.max() >= tables:
        raise InputError(f"samples must hold table indices between 0 and {tables - 1}")
    return flat, np.cumsum(lengths) - lengths


def _missed_repeats(
    distinct: Floats, counts: Floats, row_bytes: Floats, cache_bytes: float
) -> Floats:
    """Lookups of rows looked up before that still go to memory, shape [tables].

    The cache keeps the rows that occur most often: bins fill it from the last to the first.
    """
    wanted = (distinct * row_bytes[:, None])[:, ::-1]
    room = np.clip(cache_bytes - (np.cumsum(wanted, axis=1) - wanted), 0.0, None)
    kept = np.minimum(1.0, room / np.maximum(wanted, 1e-9))[:, ::-1]
    repeats = distinct * np.maximum(counts - 1.0, 0.0)
    return np.asarray((repeats * (1.0 - kept)).sum(axis=1))


def _rounded(size: Floats, unit: int) -> Floats:
    return np.asarray(np.ceil(size / unit) * unit)


def _overlapped(*seconds: Floats) -> Floats:
    stacked = np.stack(seconds)
    return np.asarray((stacked**_OVERLAP_EXPONENT).sum(axis=0) ** (1.0 / _OVERLAP_EXPONENT))
