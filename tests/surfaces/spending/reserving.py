"""Makes calls under a cap until it is told to, and dies: `python -m tests.surfaces.spending.reserving FOLDER NAME`.

It begins with a line of its input, once it has said that it is ready. It settles every second call with what was
reserved, and tells each that it was given leave for. At its end it is killed, with what it has not written.
"""

import os
import signal
import sys

from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits, Used
from mendgraph.nodes.records import StopCause, StopReason
from tests.surfaces.spending.spending_entries import Clock, entry

TRIES = 15
CAP = RunLimits(account="batch/race", max_tokens_per_account=2_050, max_cost_usd_per_account=100.0)


def main(folder: str, name: str) -> None:
    store, call = SpendingStore(folder, Clock()), entry(name)
    store.newest()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number in range(TRIES):
        answer = store.reserve(call, CAP)
        sys.stdout.write(f"{answer.reason if isinstance(answer, StopCause) else answer}\n")
        if isinstance(answer, StopCause) and answer.reason is not StopReason.ACCOUNT_LIMIT:
            sys.stderr.write(f"{answer.message}\n")
        if isinstance(answer, int) and number % 2:
            store.settle(
                answer,
                Used(calls=1, input_tokens=call.input_tokens, output_tokens=call.output_tokens, cost_usd=call.cost_usd),
            )
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
