"""Makes calls under a cap, and dies: `python -m tests.surfaces.spending.reserving FOLDER NAME ...`.

Each name is a process of its own, a fork of this one: its imports take half a second. They begin together. Each settles
every second call with what was reserved, and writes to FOLDER/NAME.answers which it was given leave for. At its end it
is killed, with what it has not written. The program prints the exit codes of the processes.
"""

import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.records import StopCause, StopReason
from tests.surfaces.spending.spending_entries import Clock, as_reserved, entry

TRIES = 15
CAP = RunLimits(account="batch/race", max_tokens_per_account=2_050, max_cost_usd_per_account=100.0)


def reserve_and_die(folder: str, name: str, start: Barrier) -> None:
    store, call = SpendingStore(folder, Clock()), entry(name)
    store.newest()
    start.wait()

    with Path(folder, f"{name}.answers").open("w", encoding="utf-8") as answers:
        for number in range(TRIES):
            answer = store.reserve(call, CAP)
            answers.write(f"{answer.reason if isinstance(answer, StopCause) else answer}\n")
            if isinstance(answer, StopCause) and answer.reason is not StopReason.ACCOUNT_LIMIT:
                sys.stderr.write(f"{answer.message}\n")
            if isinstance(answer, int) and number % 2:
                store.settle(answer, as_reserved(call))

    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, *names: str) -> None:
    forking = multiprocessing.get_context("fork")
    start = forking.Barrier(len(names))
    processes = [forking.Process(target=reserve_and_die, args=(folder, name, start)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.stdout.write(json.dumps([process.exitcode for process in processes]))


if __name__ == "__main__":
    main(*sys.argv[1:])
