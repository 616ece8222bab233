"""The engine where the system gives it fewer threads than it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Address space for so many stacks of threads, and half of one for the search itself.
PROGRAM = """
import resource
import sys
import threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from test_engine import _core, problem_arguments, small_networks


def leave_room_for(stacks):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    limit = pages * resource.getpagesize() + stacks * stack + stack // 2
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def startable_threads():
    end = threading.Event()
    threads = []
    try:
        while len(threads) < 64:
            thread = threading.Thread(target=end.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # can't start new thread
        pass
    end.set()
    for thread in threads:
        thread.join()
    return len(threads)


def plan(threads):
    problem = _core.Problem(**problem_arguments(tables=40, memory_bytes=10**6))
    plan = _core.search(small_networks(), problem, threads=threads)
    return plan.cost, plan.column_splits, plan.placement


expected = plan(1)
for stacks in (2, 0):
    leave_room_for(stacks)
    print(startable_threads(), plan(64) == expected)
"""

# The size of a thread's stack is what this limit is when its program starts.
WITH_STACKS_OF_512_MIB = 'ulimit -S -s 524288 && exec "$@"'


def test_the_plan_is_the_same_where_no_more_threads_can_be_started() -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    process = subprocess.run(
        ["/bin/sh", "-c", WITH_STACKS_OF_512_MIB, "sh", *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout == "2 True\n0 True\n"
