"""What the exit code of `mendgraph` means: one table for the code, the help text and the README. Pure."""

from enum import IntEnum

from nodes.records import OutcomeKind


class ExitCode(IntEnum):
    """How the process ended. The three terminals of the machine have a code each.

    A run that was stopped after its running step has an outcome, and so that outcome's code, whoever stopped it. What
    was ended at once, and a chat as a whole, has none: its code is that of the signal (128 and its number, as in a
    shell). STUCK is what a shell says of SIGPROF; see `graph.start`.
    """

    FINISHED = 0
    OUTPUT_CLOSED = 1
    FINDINGS = 1
    USAGE_ERROR = 2
    BUDGET_STOP = 3
    SYSTEM_ERROR = 4
    INTERNAL_ERROR = 70
    INTERRUPTED = 130
    TERMINATED = 143
    STUCK = 155


MEANINGS: dict[ExitCode, str] = {
    ExitCode.FINISHED: "FINISHED: the run gave its answer",
    ExitCode.FINDINGS: "`doctor` or `cassette` found something, a task of a `batch` did not FINISH, or nobody reads on",
    ExitCode.USAGE_ERROR: "the command line is wrong, and nothing was run",
    ExitCode.BUDGET_STOP: "BUDGET_STOP: a limit ended the run, or a person did (Ctrl-C, too), or SIGTERM",
    ExitCode.SYSTEM_ERROR: "SYSTEM_ERROR: the run failed or the command was refused, or the model is not in place",
    ExitCode.INTERNAL_ERROR: "a bug in mendgraph",
    ExitCode.INTERRUPTED: "Ctrl-C for the second time, at a question or in a batch; files are whole, old or new",
    ExitCode.TERMINATED: "SIGTERM for the second time, at a question, in a chat or batch; files are whole, old or new",
    ExitCode.STUCK: "code that nothing can interrupt kept the process busy; `mendgraph resume` goes on",
}


def exit_code_of(kind: OutcomeKind) -> ExitCode:
    """The code of a run that ended in this terminal."""
    return ExitCode[kind.value]


def exit_code_table() -> str:
    """One line for each code, in order."""
    return "\n".join(f"{code.value:>5}  {meaning}" for code, meaning in MEANINGS.items())
