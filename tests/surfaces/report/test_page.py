"""The page as a whole: no text of others can break it. What it says of runs is in `pages/`."""

import re
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import UNDONE
from mendgraph.graph.report.history import START, History
from mendgraph.graph.report.page import MOST_STEPS, page_view, report_html
from mendgraph.graph.report.texts import seconds_words, time_words
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import ListedRun, RunState, list_runs
from mendgraph.nodes.records import (
    Mark,
    ModelReply,
    Outcome,
    OutcomeKind,
    StopReason,
    ToolError,
    ToolErrorCode,
    Verification,
)
from mendgraph.nodes.workspace.store.database import open_file
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.extent import slow
from tests.surfaces.report.report_plays import HOSTILE, hostile_run, page
from tests.surfaces.report.visits import TEXTS, attributes, history, visit
from tests.surfaces.runs.run_plays import context, killed_run, project, run_lines, tree

ALLOWED_TAGS = frozenset(
    re.findall(
        r"\S+",
        "html head meta title style body a header p h1 h2 h3 h4 span ul ol li nav main section div dl dt dd pre code"
        " strong details summary table caption thead tbody tr th td svg desc defs marker path rect g text tspan article"
        " figure figcaption ins del i footer",
    )
)
"""What the template is made of: a tag or an attribute that is not among it came out of somebody's words."""
ALLOWED_ATTRIBUTES = frozenset(
    re.findall(
        r"\S+",
        "lang charset http-equiv content name class href id dir aria-labelledby aria-label aria-hidden focusable"
        " tabindex role viewbox preserveaspectratio x y dx width height rx d marker-end refx refy markerwidth"
        " markerheight orient markerunits scope colspan",
    )
)


class _Tags(HTMLParser):
    """Every tag and attribute of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in {"href", "src", "action"}}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> _Tags:
    parser = _Tags()
    parser.feed(text)
    return parser


def words(text: str) -> str:
    """What the page says, on one line."""
    return " ".join(" ".join(read(re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)).text).split())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile") / "<b>project"
    hostile_run(folder)
    return page(report_html("", str(folder)))


def test_report_without_a_run_is_an_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    none = report_html("", str(folder))
    assert none == ToolError(code=ToolErrorCode.NOT_FOUND, message="This folder has no runs yet.")
    run_lines(folder)
    unknown = report_html("zzz", str(folder))
    assert isinstance(unknown, ToolError)
    assert unknown.code is ToolErrorCode.NOT_FOUND
    assert isinstance(report_html("", str(tmp_path / "nowhere")), ToolError)


# --- Runs that have not finished


@slow
def test_report_of_an_interrupted_run_changes_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = killed_run(folder)

    def everything() -> list[Any]:
        with closing(open_file(workspace_folder_path(str(folder)))) as database:
            return [tree(folder), *database.iterdump()]

    before = everything()
    assert 'class="node node now"' in page(report_html(run_id, str(folder)))
    assert everything() == before


# --- Safety of the page


def test_texts_never_become_markup_and_the_page_loads_nothing(hostile: str) -> None:
    elements = read(hostile)
    assert elements.tags <= ALLOWED_TAGS
    assert elements.attributes <= ALLOWED_ATTRIBUTES
    assert {link[:1] for link in elements.links} == {"#"}
    assert hostile.count("<title") == 2  # the page's and the picture's
    assert hostile.count("</style>") == 1
    assert hostile.startswith("<!doctype html>")
    assert HOSTILE not in hostile
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', hostile)
    style = r"style-src 'sha256-[A-Za-z0-9+/]{43}='"
    assert re.fullmatch(rf"default-src 'none'; {style}; base-uri 'none'; form-action 'none'", policy)


def test_secrets_are_redacted_everywhere(tmp_path: Path) -> None:
    canary = "kanarie-8471-vogel-29"
    folder = tmp_path / "project"
    hostile_run(folder, f"{canary} <b>")
    with Session(context(folder), model=HistoryModel((Say("Fine."),)), thread_id=f"{canary} \x1b<b>") as session:
        session.work("What is it?")
    runs = list_runs(str(folder))
    assert not isinstance(runs, ToolError)
    assert "\\x1b<b>" in words(page(report_html("", str(folder))))
    for run in runs:  # the newer one has it in the commands that name the run
        html = page(report_html(run.run_id, str(folder)))
        assert html.count(canary) > (1 if run is runs[0] else 10)  # it was not declared as a secret
        hidden = page(report_html(run.run_id, str(folder), secrets=[canary]))
        assert (canary[:12] in hidden, "[redacted secret]" in hidden) == (False, True)


RUN = ListedRun(
    run_id="0123456789abcdef0123456789abcdef",
    task="Mend add.",
    created="2026-11-21T12:00:00+00:00",
    updated="2026-11-21T12:05:00+00:00",
    turns=1,
    request="Mend add.",
    state="ended",
    kind="FINISHED",
    reason="answered",
    message="It adds.",
    answer="It adds.",
    changed=("a.py",),
    stored_context=AgentContext(workspace="/w", model="m", max_steps=7, seed=3).model_dump_json(),
    durability="sync",
    parent="",
    forked_at=None,
    standing=RunState.FINISHED,
    files=("a.py",),
)
OUTCOME = Outcome(
    kind=OutcomeKind.FINISHED,
    reason=StopReason.ANSWERED,
    message="It adds.",
    diagnostics=("looked twice",),
    value={"n": 1},
    changed_files=("a.py",),
    verified=Verification(kind="passed", ran=("pytest: 2 tests",)),
    how_to_go_on="Send more.",
)


def steps(number: int) -> History:
    """A turn with this many model calls."""
    called = [
        visit("call_model", "parse", after={"reply": ModelReply(text="x", model="m-1"), "step": step + 1})
        for step in range(number)
    ]
    end = visit("FINISHED", "__end__", after={"outcome": OUTCOME})
    return history(visit(START, "begin_turn"), visit("begin_turn", "call_model"), *called, end, requests=("Mend add.",))


def page_fields(run: ListedRun = RUN, history: History | None = None, root: str = ".") -> Any:
    return attributes(page_view(run, history or steps(2), root, TEXTS))


STANDINGS = {
    RunState.WORKING: ("calm", "It is working: this page shows its state when the page was written."),
    RunState.ASKS: ("calm", "It waits for a person to approve the calls of its last step."),
    RunState.CUT_OFF: ("warn", "It was cut off: its process ended before the turn did."),
    RunState.FORKED: ("calm", "It was forked from another run, and has not continued yet."),
    RunState.FINISHED: ("good", ""),
    RunState.STOPPED: ("warn", ""),
    RunState.FAILED: ("bad", ""),
}
LOOKS = {OutcomeKind.FINISHED: "good", OutcomeKind.BUDGET_STOP: "warn", OutcomeKind.SYSTEM_ERROR: "bad"}


def end_of(**facts: Any) -> Any:
    """How a turn with this outcome ended, as the page shows it."""
    outcome = OUTCOME.model_copy(update=facts)
    (end,) = (
        page_fields(history=history(visit(outcome.kind.value, "__end__", after={"outcome": outcome}))).turns[0].ends
    )
    return end


def test_every_state_and_outcome_has_a_style_and_a_sentence() -> None:
    views = {standing: page_fields(replace(RUN, standing=standing)) for standing in STANDINGS}
    assert {standing: (view.look, view.standing_says) for standing, view in views.items()} == STANDINGS
    assert {kind: end_of(kind=kind).look for kind in LOOKS} == LOOKS
    undone = replace(RUN, kind="BUDGET_STOP", reason=UNDONE, message="Taken back.", standing=RunState.STOPPED)
    end = page_fields(undone).end  # of which no checkpoint tells
    assert (end.kind, end.reason, end.look, end.message.text) == ("BUDGET_STOP", "undone", "warn", "Taken back.")
    assert page_fields(replace(RUN, state="working", kind="", reason="", standing=RunState.CUT_OFF)).end is None

    marks = (Mark(kind="deleted", path="a.py"), Mark(kind="tests_deleted", path="b.py"), Mark(kind="large", path="c"))
    refused = ("refused: run_command rm a",)
    end = end_of(changed_files=("a.py", "b.py", "c"), marks=marks, refused=refused)
    assert (end.changed, end.refused) == (["a.py (deleted)", "b.py (deleted)", "c"], [*refused])
    assert (end.diagnostics, end.ran, end.advice) == (["looked twice"], ["pytest: 2 tests"], "Send more.")


AT_WORK = {"state": "working", "kind": "", "files": ()}
COMMANDS: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, ["chat --run 01234567", "undo 01234567"]),
    ({"files": ()}, ["chat --run 01234567"]),
    (
        {"kind": "BUDGET_STOP", "standing": RunState.STOPPED, "files": ()},
        ["resume 01234567", "chat --run 01234567"],
    ),
    ({**AT_WORK, "standing": RunState.ASKS}, ["resume 01234567", "chat --run 01234567"]),
    ({**AT_WORK, "standing": RunState.WORKING}, ["report 01234567 --force"]),
)


def test_page_shows_the_commands_that_its_run_allows() -> None:
    always = ["fork 01234567 --at 1", "runs show 01234567"]
    for changed, expected in COMMANDS:
        commands = [command for _, command in page_fields(replace(RUN, **changed)).commands]
        assert commands == [f"mendgraph {command}" for command in (*expected, *always)]
    assert page_fields(root="/w x").commands[0][1] == "mendgraph chat --run 01234567 --root '/w x'"


TIMES: dict[str | datetime, str] = {
    "2026-11-21T12:00:00+00:00": "2026-11-21 12:00:00 UTC",
    "2026-11-21T01:30:00+02:00": "2026-11-20 23:30:00 UTC",
    datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=-5))): "2026-11-21 17:00:00 UTC",
}
DURATIONS = {
    0: "0 ms",
    0.0004: "0.4 ms",
    0.12: "120 ms",
    0.9996: "1.0 s",
    59.9: "59.9 s",
    59.96: "1 min 0 s",
    125: "2 min 5 s",
    3_780: "1 h 3 min",
}


def test_times_are_utc_and_durations_in_the_largest_unit() -> None:
    assert {time: time_words(time) for time in TIMES} == TIMES
    assert {seconds: seconds_words(seconds) for seconds in DURATIONS} == DURATIONS


@slow
def test_only_the_last_steps_are_shown_if_there_are_many() -> None:
    view = page_fields(history=steps(MOST_STEPS + 12))
    (turn,) = view.turns
    assert [step.number for step in turn.steps] == [*range(13, MOST_STEPS + 13)]
    assert (turn.left_out, view.steps) == (12, MOST_STEPS + 12)
