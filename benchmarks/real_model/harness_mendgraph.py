"""mendgraph as a harness: it runs one task in this process, with the defaults for the embedded model.

As a program, it reads a `Request` from standard input and prints a `RunEnd`. The function that starts the embedded
model's server is replaced by one that returns the evaluation's endpoint. So the run has the profile of the embedded
model, and no other configuration than `AgentContext`.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import Field

from benchmarks.real_model.measured_run import Limits
from benchmarks.real_model.record import RunEnd
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.runs.events import Alerted, Asked, Ended, Event, Text, Traced
from mendgraph.graph.runs.run import Session
from mendgraph.graph.terminal.outcome_lines import outcome_lines
from mendgraph.nodes.call_model import local_model
from mendgraph.nodes.execute_tools.edits.asked_edits import AskedEdits
from mendgraph.nodes.language.request import Request as ReadRequest
from mendgraph.nodes.records import JsonMap, Record

NAME = "mendgraph"
SEED = 1
"""The seed of all runs. With a constant seed, the reply cache has the replies of repeated requests."""

PROMPT = "mendgraph.nodes.small_model.block_prompt"
EDITS, EVIDENCE = "mendgraph.nodes.execute_tools.edits", "mendgraph.nodes.execute_tools.evidence"
TOOLS, ANSWERS = "mendgraph.nodes.execute_tools.tools", "mendgraph.nodes.small_model.answers"
HINTS = "mendgraph.nodes.small_model.request_checks"
WITHOUT: dict[str, tuple[tuple[str, Any], ...]] = {
    "rescue": (("mendgraph.nodes.parse.written_calls.recognise", lambda *_: []),),
    "claims": ((f"{ANSWERS}._problem", lambda *_: ""),),
    "sampling": (("mendgraph.nodes.small_model.block_form.RETRY_TEMPERATURE", 0.0),),
    "anew": ((f"{PROMPT}.find_rewrite", lambda *_: None),),
    "last_line": ((f"{PROMPT}._how_to_answer", lambda *_: ""),),
    "shown_edits": ((f"{PROMPT}.EXAMPLES", ()),),
    "asked_changes": (
        (f"{TOOLS}.block_edits.read_request", lambda *_: ReadRequest()),
        (f"{EDITS}.definitions.asked_edits", lambda *_: AskedEdits()),
    ),
    "given_names": ((f"{EDITS}.asked_edits._renamed_in_block", lambda *_: {}),),
    "file_alone": (("mendgraph.nodes.small_model.rewriting._unchanged_file", lambda *_: None),),
    "expectations": ((f"{HINTS}.RequestChecks.unfinished_requests", lambda *_: []),),
    "listed_files": ((f"{HINTS}.RequestChecks.left_undone", lambda *_: ""),),
    "moves": (("mendgraph.nodes.language.request._moves", lambda *_: ()),),
    "elisions": ((f"{EDITS}.definitions.elision_in", lambda *_: ""),),
    "unasked": ((f"{EDITS}.definitions._subjects", lambda *_: frozenset()),),
    "imports": ((f"{TOOLS}.block_edits.with_imports", lambda text, *_: text),),
    "few_files": (("mendgraph.nodes.small_model.preload.few_files", lambda *_: []),),
    "examples_in_words": ((f"{EVIDENCE}.examples._in_words", lambda *_: ()),),
    "own_examples": tuple(
        (f"{place}.added_by_turn", lambda *_: frozenset())
        for place in (f"{EVIDENCE}.evidence_gate", f"{TOOLS}.checking")
    ),
    "pasted_output": (
        (f"{PROMPT}.request_parts", lambda request: (request, "")),
        ("mendgraph.nodes.small_model.preload.split_output", lambda request: (request, "")),
        ("mendgraph.nodes.language.read_ahead.split_output", lambda request: (request, "")),
    ),
    "related_files": (("mendgraph.nodes.small_model.preload.likely_files", lambda *_: ([], [])),),
}
"""Parts that no field of `AgentContext` turns off, with the functions to replace and their replacements."""

SWITCHES: tuple[tuple[str, JsonMap], ...] = (
    ("no_evidence", {"evidence": False}),
    ("no_files_first", {"read_ahead": False}),
    ("no_blocks", {"edit_form": "replace"}),
    ("one_try", {"max_failed_tries": 1}),
    *((f"no_{part}", {"without": part}) for part in WITHOUT),
)
"""The labels and options of the ablations, each of which turns one part off."""


SESSION_OPTIONS: SessionOptions = {"durability": "exit", "thread_id": "task"}
"""A second request continues the thread of the first."""


class Request(Record):
    """The request of the runner. `history` has the earlier requests and answers, which the thread contains."""

    request: str
    history: tuple[tuple[str, str], ...] = ()
    workspace: str
    base_url: str
    model: str
    files: tuple[str, ...]
    limits: Limits = Limits()
    options: dict[str, Any] = Field(default_factory=dict)


class ServedModel(Record):
    """The address and model name of the endpoint, in place of the embedded model's server."""

    base_url: str
    model: str


def command() -> list[str]:
    """Return the command that starts this harness."""
    return [sys.executable, "-P", str(Path(__file__).resolve())]


def context_of(workspace: str, options: Mapping[str, Any], limits: Limits) -> AgentContext:
    """Return the context of a run.

    Raises:
        pydantic.ValidationError: An option is unknown or invalid.
    """
    settings: dict[str, Any] = {
        "workspace": workspace,
        "max_calls_per_turn": limits.calls,
        "max_seconds": limits.seconds,
        "max_output_tokens_per_call": limits.output_tokens,
        "seed": SEED,
    }
    settings |= {name: value for name, value in options.items() if name != "without"}
    return AgentContext(**settings)


def run(request: Request) -> RunEnd:
    """Run one task and return its end."""
    model = ServedModel(base_url=request.base_url, model=request.model)
    context = context_of(request.workspace, request.options, request.limits)
    start = time.monotonic()

    with (
        _turn_off(request.options.get("without")),
        patch.object(local_model, "shared_local_server", lambda: model),
        Session(context, **SESSION_OPTIONS) as session,
    ):
        events = list(session.stream(request.request))
        while isinstance(events[-1], Asked):
            events += session.answer("reject")
    return end_of(events, time.monotonic() - start)


@contextmanager
def _turn_off(part: str | None) -> Iterator[None]:
    """Turn one of the parts in `WITHOUT` off."""
    replacements = WITHOUT[part] if part else ()
    with ExitStack() as stack:
        for target, replacement in replacements:
            stack.enter_context(patch(target, replacement))
        yield


def end_of(events: Iterable[Event], seconds: float) -> RunEnd:
    """Return the end of a run. The last event is `Ended`."""
    counts: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Ended):
            outcome = event.outcome
        elif not isinstance(event, Text):
            counts[name_of(event)] += 1

    return RunEnd(
        ended=outcome.kind.value,
        reason=outcome.reason.value,
        answer=outcome.answer,
        error="" if outcome.answer else " ".join((outcome.message, *outcome.diagnostics)),
        first_line=next(iter(outcome_lines(outcome))).text,
        checked=outcome.verified.kind,
        seconds=round(seconds, 3),
        healed=int(outcome.usage.get("replies_asked_again", 0)),
        rescued=int(outcome.usage.get("replies_rescued", 0)),
        events=dict(sorted(counts.items())),
    )


def name_of(event: Event) -> str:
    """Return the name under which an event is counted."""
    if isinstance(event, Traced):
        return event.name
    if isinstance(event, Alerted):
        return f"alert.{event.kind}"
    return type(event).__name__


if __name__ == "__main__":
    end = run(Request.model_validate_json(sys.stdin.read()))
    print(end.model_dump_json())
