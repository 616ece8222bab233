"""The answers that a planner keeps from call to call."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from neuroshard_fast import config
from neuroshard_fast.cluster import Cluster
from neuroshard_fast.options import SearchOptions
from neuroshard_fast.plan import ShardingPlan
from neuroshard_fast.tables import TableSet

MAX_ANSWERS = 64
MAX_BYTES = 64 * 2**20

# How much larger a plan is in memory than encoded, at most.
_OBJECT_SIZE = 4


@dataclass(frozen=True)
class Answer:
    """The answer to a planning problem: a plan, or the reason why there is none."""

    plan: ShardingPlan | None
    why_none: str


def question_key(tables: TableSet, cluster: Cluster, options: SearchOptions) -> bytes:
    """A digest of a planning problem's values: equal problems have equal ones, others different ones."""
    encoded = msgspec.msgpack.encode((tables, cluster, options), enc_hook=config.plain)
    return hashlib.blake2b(encoded, digest_size=32).digest()


class Answers:
    """Bounded memory for answers, the least recently used going first; for any number of threads.

    At most ``max_answers`` of them, of at most ``max_bytes`` together, names of tables included; one
    that is larger alone is not kept.
    """

    def __init__(self, max_answers: int = MAX_ANSWERS, max_bytes: int = MAX_BYTES):
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[Answer, int]] = (
            OrderedDict()
        )  # answers and their bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> Answer | None:
        """The answer kept under ``key``."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, key: bytes, answer: Answer) -> None:
        """Keep ``answer`` under ``key``, in place of one that is kept there."""
        size = _OBJECT_SIZE * len(
            msgspec.msgpack.encode((answer.plan, answer.why_none), enc_hook=config.plain)
        )
        with self._lock:
            _, old_size = self._kept.pop(key, (None, 0))
            self._kept[key] = (answer, size)
            self._bytes += size - old_size
            while len(self._kept) > self._max_answers or self._bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed
