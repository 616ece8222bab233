"""The record of a measurement, from which it continues when it was interrupted.

``rounds.txt`` takes a line for every round of a sample as soon as it is measured (``sample
fields…``); ``data.txt`` and ``repeats.txt`` are made from it. What else a machine does comes and goes
in minutes, so that a round is taken of all samples before the next one begins.
"""

from __future__ import annotations

import fcntl
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from neuroshard_fast import config
from neuroshard_fast.cost_data import CostDataInfo
from neuroshard_fast.errors import InputError
from neuroshard_fast.progress import progress_bar

Measured = list[list[float]]
"""Fields of a measurement, each with one value a device."""

ROUNDS = 3
"""Rounds of a measurement, unless said otherwise."""
MAX_ROUNDS = 1000
MAX_SAMPLES = 1_000_000
"""Samples of a folder. Sets of tables are all drawn before the first is measured, as the memory for the
largest is set aside; so many take minutes."""
REPEAT_EVERY = 20
"""Every so many samples one is measured a second time, later in each round, for the noise floor."""
WRITE_EVERY = 200
"""Rounds of samples between two writings of the data."""


class MeasurementLog:
    """Rounds measured so far; a last line that was cut off in writing is dropped.

    folder: is created where it does not exist.
    files: other files of the folder by name, written at the start.
    is_shared: whether the process that started this one holds the log open and shares it.
    shape: fields of a round, and values of each; by default lookups have one cost, all-to-alls a forward
        and a backward one on each device.
    repeat_every: every so many samples one is measured a second time, later in each round.

    InputError where the folder holds data that was made in another way, or another process measures
    into it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        info: CostDataInfo,
        files: Mapping[str, bytes],
        *,
        is_shared: bool = False,
        shape: tuple[int, int] | None = None,
        repeat_every: int = REPEAT_EVERY,
    ) -> None:
        self.folder = Path(folder)
        self._wanted = info.rounds
        self._repeat_every = repeat_every
        check_folder(self.folder, info, files)
        self.rounds: dict[int, list[Measured]] = {}
        self._file = _open_rounds(self.folder)
        try:
            _lock(self._file, shared=is_shared)
            start_folder(self.folder, info, files)
            if shape is None:
                shape = (1, 1) if info.world_size is None else (2, info.world_size)
            self._read(shape)
        except BaseException:
            self._file.close()
            raise

    def _read(self, shape: tuple[int, int]) -> None:
        """Read the rounds; ``shape``: fields of each, and values of each field."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        for number, line in enumerate(content[:whole].decode(errors="replace").splitlines(), 1):
            round_ = _parse(line, shape)
            if round_ is None:
                raise InputError(
                    f"{self._file.name}: line {number}: {line[:80]!r} is not a round; mend or "
                    "remove the file"
                )
            sample, values = round_
            self.rounds.setdefault(sample, []).append(values)

    def share(self) -> None:
        """Let processes that this one starts write to the folder (``is_shared``), and no others.

        The folder is free again when the last of them has closed its log.
        """
        _lock(self._file, shared=True)

    def add(self, sample: int, measured: Measured) -> None:
        """Append a round of ``sample``."""
        self._file.write(measured_line(sample, measured))
        self._file.flush()
        self.rounds.setdefault(sample, []).append(measured)

    def close(self) -> None:
        """Let others write to the folder."""
        self._file.close()

    def samples(self) -> int:
        """Samples that there are rounds of, up to the first without any."""
        count = 0
        while count in self.rounds:
            count += 1
        return count

    def missing(self, samples: int) -> Iterator[int]:
        """The sample to take a round of next, until all rounds of ``samples`` samples are there."""
        for sample, wanted in self.schedule(samples):
            if len(self.rounds.get(sample, ())) < wanted:
                yield sample

    def schedule(self, samples: int) -> Iterator[tuple[int, int]]:
        """(sample, rounds of it that there should be then) in turn."""
        for done in range(self._wanted):
            for sample in range(samples):
                yield sample, done * (2 if self.is_repeated(sample) else 1) + 1
            for sample in range(0, samples, self._repeat_every):
                yield sample, 2 * (done + 1)

    def done_and_total(self, samples: int) -> tuple[int, int]:
        """Rounds of the schedule that are there, and all of them."""
        done = sum(
            min(len(rounds), self._wanted * (2 if self.is_repeated(sample) else 1))
            for sample, rounds in self.rounds.items()
            if sample < samples
        )
        return done, self._wanted * (samples + len(range(0, samples, self._repeat_every)))

    def is_repeated(self, sample: int) -> bool:
        """Whether ``sample`` is measured twice; its first measurement is every other round."""
        return sample % self._repeat_every == 0

    def costs(self) -> list[Measured]:
        """Medians over the rounds so far, of all :meth:`samples`."""
        return [
            _median(self.rounds[sample][::2] if self.is_repeated(sample) else self.rounds[sample])
            for sample in range(self.samples())
        ]

    def write_repeats(self) -> None:
        """Write ``repeats.txt``: second measurements, medians over the rounds so far."""
        lines = [
            measured_line(sample, _median(rounds[1::2]))
            for sample, rounds in sorted(self.rounds.items())
            if self.is_repeated(sample) and len(rounds) > 1
        ]
        config.write_atomically(self.folder / "repeats.txt", b"".join(lines))


def fill(
    log: MeasurementLog,
    samples: int,
    measure: Callable[[int], Measured],
    write_data: Callable[[list[Measured]], None],
    what: str,
) -> None:
    """Take the rounds that ``log`` lacks, and keep ``data.txt`` and ``repeats.txt`` up to date.

    samples: that there shall be, not fewer than there are.
    measure: takes a round of a sample.
    write_data: writes ``data.txt`` of the first samples.
    what: is measured, for the progress bar.
    """

    def write() -> None:
        write_data(log.costs())
        log.write_repeats()

    done, total = log.done_and_total(samples)
    number = 0
    with progress_bar(total, f"{what}, round by round", done=done) as progress:
        for sample in log.missing(samples):
            log.add(sample, measure(sample))
            progress.update()
            number += 1
            if number % WRITE_EVERY == 0:
                write()
    write()


def _open_rounds(folder: Path) -> BinaryIO:
    path = folder / "rounds.txt"
    try:
        return path.open("a+b")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _lock(file: BinaryIO, *, shared: bool) -> None:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{file.name}: another process is measuring into it") from None


def check_folder(
    folder: Path, info: CostDataInfo, files: Mapping[str, bytes]
) -> CostDataInfo | None:
    """Make ``folder``, or check that its data is made as ``info`` and ``files`` say; nothing else.

    The ``info.json`` there is, None in a new folder. InputError where the folder cannot be made, or
    holds other data.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror or error}") from error
    if not (folder / "info.json").exists():
        if (folder / "data.txt").exists():
            raise InputError(f"{folder}: holds data.txt without info.json; give a new folder")
        return None
    earlier = config.load(folder / "info.json", CostDataInfo)
    for field in CostDataInfo.__struct_fields__:
        before, now = getattr(earlier, field), getattr(info, field)
        if field == "rounds" and before < now:
            continue  # more rounds are taken of what is there
        if field != "date" and before != now:
            raise InputError(
                f"{folder}: holds data with {field} {before!r}, not {now!r}; "
                "continue with the same settings or give a new folder"
            )
    for name, data in files.items():
        if config.read_bytes(folder / name) != data:
            raise InputError(
                f"{folder / name}: differs from the tables given; "
                "continue with the same tables or give a new folder"
            )
    return earlier


def start_folder(folder: Path, info: CostDataInfo, files: Mapping[str, bytes]) -> None:
    """Make ``folder`` with ``info.json`` and ``files``, or check that it holds the same ones."""
    earlier = check_folder(folder, info, files)
    if earlier is None:
        for name, data in files.items():
            config.write_atomically(folder / name, data)
        config.save(folder / "info.json", info)
    elif earlier.rounds != info.rounds:
        config.save(folder / "info.json", msgspec.structs.replace(earlier, rounds=info.rounds))


def _median(rounds: list[Measured]) -> Measured:
    return [
        [statistics.median(values) for values in zip(*fields, strict=True)]
        for fields in zip(*rounds, strict=True)
    ]


def measured_line(sample: int, measured: Measured) -> bytes:
    """What ``rounds.txt`` and ``repeats.txt`` say of a sample."""
    fields = [",".join(f"{value:.6f}" for value in field) for field in measured]
    return f"{sample} {' '.join(fields)}\n".encode()


def _parse(line: str, shape: tuple[int, int]) -> tuple[int, Measured] | None:
    """What :func:`measured_line` wrote, or None where it is not that."""
    try:
        sample_text, *fields = line.split()
        sample = int(sample_text)
        measured = [[float(value) for value in field.split(",")] for field in fields]
    except ValueError:
        return None
    sound = (
        sample >= 0
        and len(measured) == shape[0]
        and all(len(field) == shape[1] for field in measured)
        and all(math.isfinite(value) and value >= 0 for field in measured for value in field)
    )
    return (sample, measured) if sound else None
