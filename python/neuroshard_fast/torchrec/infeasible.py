"""Why no plan fits: what is asked and available, what is in the way, and what change would do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from neuroshard_fast.torchrec.errors import DoesNotFitError
from neuroshard_fast.torchrec.question import Question
from neuroshard_fast.torchrec.trials import Asked, Trials, table_sizes
from neuroshard_fast.units import format_bytes

_LISTED = 3


def why_none(question: Question, asked: Asked) -> DoesNotFitError:
    """The error for a question to which no plan was found."""
    trials = Trials(question, asked)
    without_one = trials.without_one()
    without_all = bool(without_one) or trials.without_all()
    lines = [
        _headline(question, "available"),
        _reservation(question, asked),
        _largest(question, trials.sizes),
        *_on_no_rank(question, trials),
        *_in_the_way(question, trials, without_one, without_all),
        _smallest_change(question, asked, trials, without_one, without_all),
    ]
    return DoesNotFitError("\n  ".join(lines), is_memory=not without_all)


def nothing_left(question: Question, reservation: object, reason: str) -> DoesNotFitError:
    """The error where the reservation leaves no memory at all; ``question`` is of what was there before."""
    lines = [
        f"reservation: {type(reservation).__name__} leaves no memory for tables: {' '.join(reason.split())}",
        _headline(question, "before the reservation"),
        _largest(question, table_sizes(question)),
        "a smaller reservation or batch_size, or more memory a rank, is what would help",
    ]
    return DoesNotFitError("\n  ".join(lines), is_memory=True)


def host_overflow(question: Question, host_bytes: Sequence[int]) -> DoesNotFitError | None:
    """The error where a plan fits the GPUs, but not the host memory that its kernels use; else None."""
    for rank, (taken, cap) in enumerate(zip(host_bytes, question.host_caps, strict=True)):
        if taken > max(0, cap):
            return DoesNotFitError(
                f"rank {rank}: tables whose compute_kernels keep them in host memory take "
                f"{format_bytes(taken)} of it, and the topology's ddr_cap leaves "
                f"{format_bytes(max(0, cap))}: allow kernel fused for some of them, or raise ddr_cap by "
                f"{format_bytes(taken - cap, round_up=True)}",
                is_memory=True,
            )
    return None


def _headline(question: Question, of_what: str) -> str:
    setting, caps = question.setting, [max(0, cap) for cap in question.caps]
    shards = [
        line.at(question.tables[number].dim)
        for line, number in zip(question.storage, question.free, strict=True)
    ]
    shards += [fixed.storage for fixed in question.fixed]
    estimate = sum(storage.estimate for storage in shards)
    training = sum(storage.training for storage in shards)
    asked = max(estimate, training)
    available = format_bytes(min(caps))
    if max(caps) != min(caps):
        available += f" to {format_bytes(max(caps))}"
    return (
        f"no plan fits {setting.world_size} ranks ({setting.compute_device}): the tables ask for "
        f"{format_bytes(asked)} of {setting.memory_kind}, {format_bytes(-(-asked // setting.world_size))} a "
        f"rank if spread evenly ({format_bytes(estimate)} by TorchRec's estimate, {format_bytes(training)} "
        f"in training); {of_what} are {available} a rank, {format_bytes(sum(caps))} in all"
    )


def _reservation(question: Question, asked: Asked) -> str:
    kept = [raw - cap for raw, cap in zip(asked.raw_caps, question.caps, strict=True)]
    rank = max(range(len(kept)), key=kept.__getitem__)
    is_hbm = question.setting.memory_kind == "HBM"
    parts = []
    # TorchRec's own messages read these attributes too.
    if share := _reserved_share(question, asked):
        parts.append(f"{share:.0%}")
    dense = getattr(asked.reservation, "_dense_storage", None)
    batches = getattr(asked.reservation, "_kjt_storage", None)
    # Those that do not count dense parameters do not reserve their figure for batches either.
    for name, storage in (("dense parameters", dense), ("batches", batches)):
        if dense is not None and storage is not None:
            parts.append(f"{name} {format_bytes(storage.hbm if is_hbm else storage.ddr)}")
    text = (
        f"reservation: {type(asked.reservation).__name__} keeps {format_bytes(max(0, kept[rank]))} of the "
        f"{format_bytes(asked.raw_caps[rank])} of rank {rank}"
    )
    return text + (f" ({', '.join(parts)})" if parts else "")


def _reserved_share(question: Question, asked: Asked) -> float:
    """The share of a device's memory that is reserved, whatever it is; TorchRec's reserve one of HBM only."""
    share = getattr(asked.reservation, "_percentage", None)
    return float(share) if share and question.setting.memory_kind == "HBM" else 0.0


def _largest(question: Question, sizes: Sequence[int]) -> str:
    numbers = sorted(range(len(sizes)), key=lambda k: -sizes[k])[:_LISTED]
    return "largest tables: " + ", ".join(
        f"{question.tables[k].fqn!r} {format_bytes(sizes[k])}" for k in numbers
    )


def _on_no_rank(question: Question, trials: Trials) -> list[str]:
    """Tables of which not even the narrowest shard fits a rank."""
    lines: list[str] = []
    most = max(question.caps)
    for index, number in enumerate(question.free):
        width = min(question.columns.least_widths[index], question.tables[number].dim)
        narrowest = question.storage[index].at(width).larger
        if narrowest > most:
            wish = trials.obstacles.get(number)
            lines.append(
                f"table {question.tables[number].fqn!r}: its narrowest shard, of {width} columns, takes "
                f"{format_bytes(narrowest)}, more than any rank has" + (f": {wish}" if wish else "")
            )
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"{len(lines) - _LISTED} more tables fit on no rank"]
    return lines


def _in_the_way(
    question: Question, trials: Trials, without_one: list[int], without_all: bool
) -> list[str]:
    numbers = without_one or (list(trials.obstacles) if without_all else [])
    if not numbers:
        return []
    shown = ", ".join(
        f"{trials.obstacles[k]} of table {question.tables[k].fqn!r}" for k in numbers[:_LISTED]
    )
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return [f"in the way: {shown}{more}"]


def _smallest_change(
    question: Question,
    asked: Asked,
    trials: Trials,
    without_one: list[int],
    without_all: bool,
) -> str:
    changes = []
    devices = trials.devices_wanted()
    if devices is not None:
        changes.append(f"{devices} more device{'s' if devices > 1 else ''} like rank 0")
    more, share = trials.bytes_wanted(), _reserved_share(question, asked)
    if more is not None and share < 1.0:
        if share:  # of what is added, too, and rounded
            more = math.ceil(more / (1.0 - share)) + 1
        changes.append(f"{format_bytes(more, round_up=True)} more a rank")
    if without_one:
        number = without_one[0]
        fqn = question.tables[number].fqn
        changes.append(f"lifting {trials.obstacles[number]} of table {fqn!r}")
    elif without_all:
        changes.append(f"lifting such constraints of all {len(trials.obstacles)} tables")
    if not changes:
        return "no number of devices, amount of memory or lifted constraint was found that would do"
    return "the smallest change that would fit: " + "; or ".join(changes)
