"""The page as a whole: what it says, and what nobody's words can do to it."""

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
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.report.history import START, History
from mendgraph.graph.report.page import page_view, report_html, seconds_words, time_words
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import ListedRun, RunState
from mendgraph.nodes.execute_tools.store.database import open_file
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder_path
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
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.report.report_plays import HOSTILE, asked_run, hostile_run, page
from tests.graph.report.visits import TEXTS, attributes, history, visit
from tests.graph.runs.run_plays import EDIT, LINES, context, cut_off, played, project, tree

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


# --- What it says


def test_run_with_everything(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    run_id = asked_run(folder, require_changes=True)
    said = words(page(report_html(run_id[:8], str(folder))))
    for expected in (
        "Mend add. FINISHED answered",
        "6 steps 6 model calls",
        "What the model was told I could not use your tool call.",
        "denied by the rule workspace_boundary",
        "allowed; ask_before_write asked a person, who approved",
        "who edited the arguments and approved",
        "ask_before_write asked a person, who did not approve",
        "keep the notes",
        "- return a - b",
        "+ return a + b",
        f"mendgraph undo {run_id[:8]} --root {folder}",
        "guard calls allowed execute_tools 3",
        "heal exhausted SYSTEM_ERROR never",
    ):
        assert expected in said


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    none = report_html("", str(folder))
    assert isinstance(none, ToolError)
    assert (none.code, none.message) == (ToolErrorCode.NOT_FOUND, "There are no runs of this folder yet.")
    played(folder)
    unknown = report_html("zzz", str(folder))
    assert isinstance(unknown, ToolError)
    assert unknown.code is ToolErrorCode.NOT_FOUND
    nowhere = report_html("", str(tmp_path / "nowhere"))
    assert isinstance(nowhere, ToolError)


def test_store_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = played(folder).thread_id
    with closing(Store(str(folder))) as store, store.saver.cursor() as cursor:
        cursor.execute("UPDATE checkpoints SET checkpoint = x'00'")
    damaged = report_html(run_id, str(folder))
    assert isinstance(damaged, ToolError)
    assert damaged.code is ToolErrorCode.IO_ERROR


# --- Runs that have not finished


def test_run_that_was_cut_off(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = cut_off(folder)
    text = page(report_html(run_id, str(folder)))
    said = words(text)
    assert "It was cut off: its process ended before the turn did." in said
    assert "cut off while the model was called" in said
    assert "It was cut off in call_model" in said
    assert f"Go on from where it is mendgraph resume {run_id[:8]}" in said
    assert 'class="node node now"' in text


def test_run_that_waits_for_a_person_shows_what_it_would_do(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    with Session(context(folder, mode="ask"), model=HistoryModel((EDIT,))) as session:
        session.work("Mend add.")
    said = words(page(report_html(session.thread_id, str(folder))))
    assert "It waits for a person to decide about the calls of its last step." in said
    assert "waits for a person; ask_before_write asks for it" in said
    assert "new_str a + b" in said


def test_run_of_which_only_the_ends_were_kept_says_so(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    with Session(context(folder), model=HistoryModel(LINES), durability="exit") as session:
        session.work("Mend add.")
    said = words(page(report_html(session.thread_id, str(folder))))
    assert "Not every step was kept" in said
    assert "No step of it is kept" in said
    assert "6 model calls" in said


def test_turns_and_forks(tmp_path: Path) -> None:
    from mendgraph.graph.runs.runs import fork_run

    folder = project(tmp_path / "project")
    with Session(context(folder), model=HistoryModel((*LINES, EDIT, Say("Once more.")))) as session:
        session.work("Mend add.")
        session.work("And <i>now</i>?")
    said = words(page(report_html(session.thread_id, str(folder))))
    assert "Request 1: Mend add." in said
    assert "Request 2: And <i>now</i>?" in said
    forked = fork_run(session.thread_id, 2, str(folder))
    assert not isinstance(forked, ToolError)
    fresh = words(page(report_html(forked.run_id, str(folder))))
    assert "It was forked from another run, and has not gone on yet." in fresh
    assert f"What it has from run {session.thread_id[:8]}, up to step 2, is in that run's report." in fresh
    assert "No turn of it is kept." in fresh


# --- What it must not do


def test_nobodys_words_become_a_part_of_the_page(hostile: str) -> None:
    found = read(hostile)
    assert found.tags <= ALLOWED_TAGS
    assert found.attributes <= ALLOWED_ATTRIBUTES
    assert {link[:1] for link in found.links} == {"#"}
    assert hostile.count("<title") == 2  # the page's and the picture's
    assert hostile.count("</style>") == 1


def test_page_may_load_and_run_nothing(hostile: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', hostile)
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[A-Za-z0-9+/]{43}='; base-uri 'none'; form-action 'none'", policy
    )
    assert hostile.startswith("<!doctype html>")
    assert HOSTILE not in hostile


def test_secrets_are_taken_out_of_every_part(tmp_path: Path) -> None:
    canary = "kanarie-8471-vogel-29"
    folder = tmp_path / "project"
    hostile_run(folder, f"{canary} <b>")
    told = page(report_html("", str(folder)))
    assert canary in told  # nobody said that it is one
    assert told.count(canary) > 10
    hidden = page(report_html("", str(folder), secrets=[canary]))
    assert canary not in hidden
    assert canary[:12] not in hidden


def test_template_s_own_door_cleans_what_came_uncleaned(tmp_path: Path) -> None:
    canary = "kanarie-8471-vogel-29"
    folder = project(tmp_path / "project")
    with Session(context(folder), model=HistoryModel((Say("Fine."),)), thread_id=f"{canary} \x1b<b>") as session:
        session.work("What is it?")
    assert "\\x1b<b>" in words(page(report_html("", str(folder))))
    hidden = page(report_html("", str(folder), secrets=[canary]))  # also out of the commands that name the run
    assert canary not in hidden
    assert "[redacted secret]" in hidden


def dumped(folder: Path) -> list[str]:
    """All that is in the workspace's database."""
    with closing(open_file(workspace_folder_path(str(folder)))) as database:
        return [*database.iterdump()]


def test_nothing_is_changed(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = cut_off(folder)
    before = tree(folder)
    was = dumped(folder)
    report_html(run_id, str(folder))
    assert dumped(folder) == was
    assert tree(folder) == before


def test_run_at_work_can_be_looked_at(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    with Session(context(folder), model=HistoryModel(LINES)) as session:
        events = session.stream("Mend add.")
        while type(next(events)).__name__ != "StepDone":
            pass
        said = words(page(report_html(session.thread_id, str(folder))))
        outcome = [*events][-1]
    assert "It is at work: this page shows what was on the disk when it was made." in said
    assert type(outcome).__name__ == "Ended"


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
    """A turn of so many calls of the model."""
    called = [
        visit("call_model", "parse", after={"reply": ModelReply(text="x", model="m-1"), "step": each + 1})
        for each in range(number)
    ]
    end = visit("FINISHED", "__end__", after={"outcome": OUTCOME})
    return history(visit(START, "begin_turn"), visit("begin_turn", "call_model"), *called, end, requests=("Mend add.",))


def seen(run: ListedRun = RUN, told: History | None = None, root: str = ".") -> Any:
    return attributes(page_view(run, told or steps(2), root, TEXTS))


def commands(run: ListedRun, root: str = ".") -> list[str]:
    return [command for _, command in seen(run, root=root).commands]


def test_end_of_which_no_checkpoint_tells_is_the_one_of_the_list() -> None:
    undone = replace(RUN, kind="BUDGET_STOP", reason=UNDONE, message="Taken back.", standing=RunState.STOPPED)
    view = seen(undone)
    shown = (view.end.kind, view.end.reason, view.end.look, view.end.message.text)
    assert shown == ("BUDGET_STOP", "undone", "warn", "Taken back.")
    assert seen(replace(RUN, state="working", kind="", reason="", standing=RunState.CUT_OFF)).end is None
    assert seen(replace(RUN, kind="", reason="", standing=RunState.FORKED, parent="p" * 32, forked_at=2)).end is None


@pytest.mark.parametrize(
    ("standing", "look", "words"),
    [
        (RunState.WORKING, "calm", "It is at work: this page shows what was on the disk when it was made."),
        (RunState.ASKS, "calm", "It waits for a person to decide about the calls of its last step."),
        (RunState.CUT_OFF, "warn", "It was cut off: its process ended before the turn did."),
        (RunState.FORKED, "calm", "It was forked from another run, and has not gone on yet."),
        (RunState.FINISHED, "good", ""),
        (RunState.STOPPED, "warn", ""),
        (RunState.FAILED, "bad", ""),
    ],
)
def test_state_of_a_run_has_its_look_and_its_words(standing: RunState, look: str, words: str) -> None:
    view = seen(replace(RUN, standing=standing))
    assert (view.standing, view.look, view.standing_says) == (str(standing), look, words)


@pytest.mark.parametrize(
    ("kind", "look"),
    [(OutcomeKind.FINISHED, "good"), (OutcomeKind.BUDGET_STOP, "warn"), (OutcomeKind.SYSTEM_ERROR, "bad")],
)
def test_end_of_a_run_has_its_look(kind: OutcomeKind, look: str) -> None:
    ended = history(visit(kind.value, "__end__", after={"outcome": OUTCOME.model_copy(update={"kind": kind})}))
    (end,) = seen(told=ended).turns[0].ends
    assert (end.kind, end.look) == (kind.value, look)


def test_end_tells_which_of_the_changed_files_are_gone_and_what_was_refused() -> None:
    marks = (Mark(kind="deleted", path="a.py"), Mark(kind="tests_deleted", path="b.py"), Mark(kind="large", path="c"))
    facts = {"changed_files": ("a.py", "b.py", "c"), "marks": marks, "refused": ("refused: run_command rm a",)}
    outcome = OUTCOME.model_copy(update=facts)
    (end,) = seen(told=history(visit("FINISHED", "__end__", after={"outcome": outcome}))).turns[0].ends
    assert end.changed == ["a.py (deleted)", "b.py (deleted)", "c"]
    assert end.refused == ["refused: run_command rm a"]
    assert (end.diagnostics, end.ran, end.advice) == (["looked twice"], ["pytest: 2 tests"], "Send more.")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ["chat --run 01234567", "undo 01234567", "fork 01234567 --at 1", "runs show 01234567"]),
        ({"files": ()}, ["chat --run 01234567", "fork 01234567 --at 1", "runs show 01234567"]),
        (
            {"kind": "BUDGET_STOP", "standing": RunState.STOPPED, "files": ()},
            ["resume 01234567", "chat --run 01234567", "fork 01234567 --at 1", "runs show 01234567"],
        ),
        (
            {"state": "working", "kind": "", "standing": RunState.ASKS, "files": ()},
            ["resume 01234567", "chat --run 01234567", "fork 01234567 --at 1", "runs show 01234567"],
        ),
        (
            {"state": "working", "kind": "", "standing": RunState.WORKING, "files": ()},
            ["report 01234567 --force", "fork 01234567 --at 1", "runs show 01234567"],
        ),
    ],
)
def test_commands_of_a_page_are_those_that_its_run_allows(changed: dict[str, Any], expected: list[str]) -> None:
    assert commands(replace(RUN, **changed)) == [f"mendgraph {command}" for command in expected]
    assert commands(RUN, root="/w x")[0] == "mendgraph chat --run 01234567 --root '/w x'"


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("2026-11-21T12:00:00+00:00", "2026-11-21 12:00:00 UTC"),
        ("2026-11-21T01:30:00+02:00", "2026-11-20 23:30:00 UTC"),
        (datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=-5))), "2026-11-21 17:00:00 UTC"),
    ],
)
def test_time_on_a_page_is_utc(time: str | datetime, words: str) -> None:
    assert time_words(time) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.12, "120 ms"),
        (0.9996, "1.0 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3_780, "1 h 3 min"),
    ],
)
def test_duration_on_a_page_is_in_the_largest_unit(seconds: float, words: str) -> None:
    assert seconds_words(seconds) == words


def test_of_many_steps_the_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.report.page.MOST_STEPS", 8)
    view = seen(told=steps(20))
    (turn,) = view.turns
    assert [step.number for step in turn.steps] == [*range(13, 21)]
    assert (turn.left_out, view.steps) == (12, 20)
