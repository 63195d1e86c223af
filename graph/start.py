"""Where the command begins: it loads the rest, so that Ctrl-C has an answer from the first moment on."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

STUCK_S: Final = 30.0
"""Seconds of processor time without one moment for Python after which the process ends: reading one huge JSON document
takes several. And half a second more for each processor: threads that do not keep the interpreter's lock may use them
all between two beats."""
_BEAT_S: Final = 0.25


def main() -> int:
    """Run the command `mendgraph`, and return its exit code; 130 for a Ctrl-C that nobody else has heard."""
    try:
        with ended_when_stuck():
            from mendgraph.graph import cli

            return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("\nmendgraph: stopped by you (Ctrl-C)\n")
        return 130


@contextmanager
def ended_when_stuck() -> Iterator[None]:
    """Inside, code of C that keeps the interpreter's lock cannot keep the process: SIGPROF ends it, exit code 155.

    No handler of Python's, no thread and no deadline works while such code runs. So the kernel counts: a thread winds
    its timer up again and again, and when it no longer can, the timer ends the process, after faulthandler has told on
    standard error where each thread was. The timer counts processor time: a process that is stopped, or that waits,
    does not age.
    """
    if signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:  # somebody measures this process
        yield
        return

    over = threading.Event()
    seconds = STUCK_S + (os.cpu_count() or 1) / 2

    def beat() -> None:
        while not over.wait(_BEAT_S):
            signal.setitimer(signal.ITIMER_PROF, seconds)

    with suppress(OSError, RuntimeError, ValueError):  # without a standard error it ends in silence
        faulthandler.register(signal.SIGPROF, chain=True)

    beating = threading.Thread(target=beat, name="mendgraph-beat", daemon=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # code that is stuck before the first beat ends as well
    beating.start()

    try:
        yield
    finally:
        over.set()
        beating.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)
