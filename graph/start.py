"""The entry point of the command. It loads the rest inside a handler for Ctrl-C."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

STUCK_S: Final = 30.0
"""Seconds of processor time without any Python code running, after which the process ends.

Parsing a huge JSON document takes several. Half a second is added for each processor: threads without the interpreter's
lock may use all of them.
"""

_BEAT_S: Final = 0.25


def main() -> int:
    """Run the command `mendgraph` and return its exit code; 130 for a Ctrl-C that was not handled."""
    try:
        with ended_when_stuck():
            from mendgraph.graph import cli

            return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("\nmendgraph: stopped by you (Ctrl-C)\n")
        return 130


@contextmanager
def ended_when_stuck() -> Iterator[None]:
    """Inside, C code that holds the interpreter's lock for too long ends the process with SIGPROF, exit code 155.

    No Python signal handler, thread or deadline works while such code runs, so the kernel counts: a thread resets an
    interval timer again and again. If it cannot, the timer ends the process, after faulthandler has written the stacks
    of all threads to standard error. The timer counts processor time: a stopped or waiting process is not ended.
    """
    if signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:  # a profiler uses the signal
        yield
        return

    stopped = threading.Event()
    seconds = STUCK_S + (os.cpu_count() or 1) / 2

    def beat() -> None:
        while not stopped.wait(_BEAT_S):
            signal.setitimer(signal.ITIMER_PROF, seconds)

    with suppress(OSError, RuntimeError, ValueError):  # without standard error there are no stacks
        faulthandler.register(signal.SIGPROF, chain=True)

    thread = threading.Thread(target=beat, name="mendgraph-beat", daemon=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # for code that is stuck before the first beat
    thread.start()

    try:
        yield
    finally:
        stopped.set()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)
