"""Our own harness: one task's run in this process, in the default configuration, as the embedded model's user has it.

Run as a program it reads a `Request` from standard input and prints a `RunEnd`. It is the embedded model that it
asks, only that what "starts" it hands out the address of the evaluation's endpoint: so it has the embedded model's
profile, and nothing of the machine is configured otherwise than `AgentContext` says.
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
"""The same in every run, so that requests repeat and the reply cache finds them."""

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
"""Means that no field of `AgentContext` turns off, and what takes the place of what in the code without them."""

SWITCHES: tuple[tuple[str, JsonMap], ...] = (
    ("no_evidence", {"evidence": False}),
    ("no_files_first", {"read_ahead": False}),
    ("no_blocks", {"edit_form": "replace"}),
    ("one_try", {"max_failed_tries": 1}),
    *((f"no_{means}", {"without": means}) for means in WITHOUT),
)
"""What an ablation switches off, one at a time: the label of its runs, and its options."""


KEPT: SessionOptions = {"durability": "exit", "thread_id": "task"}
"""A second request goes on in the thread of the first."""


class Request(Record):
    """What the runner hands over: the user's words, where, on which endpoint, and the settings of this label.

    `said` are earlier requests and answers, which the thread holds.
    """

    request: str
    said: tuple[tuple[str, str], ...] = ()
    workspace: str
    base_url: str
    model: str
    files: tuple[str, ...]
    limits: Limits = Limits()
    options: dict[str, Any] = Field(default_factory=dict)


class ServedModel(Record):
    """What stands for the embedded model's server: an address, and the name that requests carry."""

    base_url: str
    model: str


def command() -> list[str]:
    """How this harness is started."""
    return [sys.executable, "-P", str(Path(__file__).resolve())]


def context_of(workspace: str, options: Mapping[str, Any], limits: Limits) -> AgentContext:
    """The context of a task's run. Raises pydantic's ValidationError for options that there are not."""
    settings: dict[str, Any] = {
        "workspace": workspace,
        "max_calls_per_turn": limits.calls,
        "max_seconds": limits.seconds,
        "max_output_tokens_per_call": limits.output_tokens,
        "seed": SEED,
    }
    return AgentContext(**{**settings, **{key: value for key, value in options.items() if key != "without"}})


def run(request: Request) -> RunEnd:
    """Run one task to its outcome."""
    served = ServedModel(base_url=request.base_url, model=request.model)
    started = time.monotonic()
    with (
        _without(request.options.get("without")),
        patch.object(local_model, "shared_local_server", lambda: served),
        Session(context_of(request.workspace, request.options, request.limits), **KEPT) as session,
    ):
        events = list(session.stream(request.request))
        while isinstance(events[-1], Asked):
            events += session.answer("reject")
    return end_of(events, time.monotonic() - started)


@contextmanager
def _without(means: str | None) -> Iterator[None]:
    """Turn one of the means of `WITHOUT` off."""
    with ExitStack() as stack:
        for target, replacement in WITHOUT[means] if means else ():
            stack.enter_context(patch(target, replacement))
        yield


def end_of(events: Iterable[Event], seconds: float) -> RunEnd:
    """What a run's events come to; the last one is `Ended`."""
    told: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Ended):
            outcome = event.outcome
        elif not isinstance(event, Text):
            told[name_of(event)] += 1
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
        events=dict(sorted(told.items())),
    )


def name_of(event: Event) -> str:
    """What an event is counted as: its kind, a trace event under its own name, an alert under its kind."""
    if isinstance(event, Traced):
        return event.name
    return f"alert.{event.kind}" if isinstance(event, Alerted) else type(event).__name__


if __name__ == "__main__":
    answer = run(Request.model_validate_json(sys.stdin.read()))
    print(answer.model_dump_json())
