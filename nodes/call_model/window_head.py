"""The one message that stands for all that is no longer shown: the request to the letter, and what is known besides.

It is made once for each compaction and stored, so that what the model is shown is the same from call to call.
"""

from nodes.records import Plan, PlanStatus, Record

MOST_EARLIER = 5
"""Earlier requests of the thread that are quoted, the latest ones."""

LONGEST_EARLIER = 1_000
"""Characters of an earlier request that are quoted."""

MOST_CHANGED = 40
"""Changed files that are named, the latest ones."""

SUMMARY_TITLE = "From an automatic summary of what was before, not the person's words:"
"""Above what a model wrote in a message that otherwise speaks for the person."""

_MARKS = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class Hidden(Record):
    """What a head has to tell. `request` is None where the current request is still shown as a message of its own.

    `left_out` counts the exchanges that are neither shown nor summed up, `summary` is the text for the others.
    """

    request: str | None = None
    earlier: tuple[str, ...] = ()
    plan: Plan | None = None
    changed: tuple[str, ...] = ()
    summary: str = ""
    left_out: int = 0


def head_text(hidden: Hidden) -> str:
    """Everything that is to be told, in one text."""
    parts = ["The beginning of this conversation is not shown any more, to save room."]
    if hidden.left_out:
        exchanges = "1 exchange was" if hidden.left_out == 1 else f"{hidden.left_out} exchanges were"
        parts.append(f"{exchanges} left out without a summary; files can be read again.")
    if hidden.earlier:
        quoted = [f"- {quote_bounded(text)}" for text in hidden.earlier[-MOST_EARLIER:]]
        parts.append("\n".join(["Earlier requests:", *quoted]))
    if hidden.summary:
        parts.append(f"{SUMMARY_TITLE}\n{hidden.summary}")
    if hidden.changed:
        parts.append("Changed files: " + ", ".join(hidden.changed[-MOST_CHANGED:]))
    if hidden.plan is not None and hidden.plan.steps:
        steps = [f"{_MARKS[step.status]} {step.title}" for step in hidden.plan.steps]
        parts.append("\n".join(["The plan:", *steps]))
    if hidden.request is not None:
        parts.append(f"The request, which you are working on:\n{hidden.request}")
    return "\n\n".join(parts)


def barest(hidden: Hidden) -> Hidden:
    """Only what a run cannot go on without: the request, and that something is missing."""
    return Hidden(request=hidden.request, left_out=hidden.left_out)


def quote_bounded(text: str, longest: int = LONGEST_EARLIER) -> str:
    """The text, or its head and its tail with the number of characters between them."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    head = longest - tail
    return f"{text[:head]} [... {len(text) - longest} characters ...] {text[-tail:]}"
