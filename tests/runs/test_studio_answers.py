"""A person in Studio: answers to a question, of each kind and from each page; leaving it open; cancelling a run."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Say
from tests.runs.playing import changed_files, write_files
from tests.runs.scenario import use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, TASK
from tests.runs.studio import Studio, told

pytestmark = pytest.mark.studio

NEW: tuple[str, JsonMap] = ("write_file", {"path": "new.txt", "content": "one\n"})
OTHER = {"path": "new.txt", "content": "two\n"}
BOTH = {"calc.py": MENDED, "new.txt": "one\n"}
STOPPED = ("BUDGET_STOP", "cancelled")
FINISHED = ("FINISHED", "answered")


ANSWERS: tuple[tuple[Any, dict[str, str], tuple[str, str]], ...] = (
    ("approve", BOTH, FINISHED),
    ("approve_for_run", BOTH, FINISHED),
    ("reject", {}, FINISHED),
    ("stop", {}, STOPPED),
    ("no such word", {}, FINISHED),
    ({"decisions": {"0": {"action": "approve"}, "1": {"action": "reject"}}}, {"calc.py": MENDED}, FINISHED),
    ({"decisions": {"1": {"action": "edit", "arguments": OTHER}}}, {"new.txt": "two\n"}, FINISHED),
    ({"decisions": [{"type": "approve"}, {"type": "approve"}]}, BOTH, FINISHED),
    ([{"type": "accept", "args": None}], BOTH, FINISHED),
    ([{"type": "ignore", "args": None}], {}, FINISHED),
)
"""What a person answers to `edit_file` and `write_file`, the files that are changed by then, and how the run ends."""


def test_each_answer_does_what_it_says(studio: Studio, tmp_path: Path) -> None:
    """All at once, as several people at one server; nothing is changed before the answer."""

    def play(number: int) -> tuple[Any, Any, tuple[str, str]]:
        folder, thread = tmp_path / str(number), studio.thread()
        write_files(folder, CALC)
        with told(use(EDIT, NEW), DONE) as model:
            studio.run(thread, folder, model, input=studio.request(TASK), context={"mode": "ask"})
            asked = [call["tool"] for call in studio.question(thread)["calls"]]
            before, answer = changed_files(folder, CALC), ANSWERS[number][0]
            ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": answer})
        outcome = ended["outcome"]
        return (before, asked), changed_files(folder, CALC), (outcome["kind"], outcome["reason"])

    with ThreadPoolExecutor(len(ANSWERS)) as people:
        played = list(people.map(play, range(len(ANSWERS))))
    asked: Any = ({}, ["edit_file", "write_file"])
    assert played == [(asked, files, ends) for _, files, ends in ANSWERS]
    assert studio.complaints() == []


def test_a_question_that_nobody_answers_is_dropped_by_the_next_message(studio: Studio, tmp_path: Path) -> None:
    """So it is by "Mark as Resolved" in a chat page, which sends the thread to its end."""
    write_files(tmp_path, CALC)
    thread = studio.thread()
    with told(use(EDIT), Say("Good.")) as model:
        studio.run(thread, tmp_path, model, input=studio.request(TASK), context={"mode": "ask"})
        assert len(studio.question(thread)["calls"]) == 1
        ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"goto": "__end__"})
        assert ended["outcome"] is None
        last = studio.run(thread, tmp_path, model, input=studio.request("Leave it."))
    assert (last["outcome"]["answer"], changed_files(tmp_path, CALC)) == ("Good.", {})
    assert studio.complaints() == []


def test_a_run_that_is_cancelled_in_a_tool_leaves_files_whole_and_the_thread_usable(
    studio: Studio, tmp_path: Path
) -> None:
    write_files(tmp_path, CALC)
    thread = studio.thread()
    with slow_site(studio.site_port) as (url, asked, released), ThreadPoolExecutor(1) as person:
        calls = use(NEW, ("http_get", {"url": url}), EDIT)
        host = url.removeprefix("http://").rstrip("/")
        context = {"allowed_hosts": [host], "allowed_private_hosts": [host], "offer": "all"}
        with told(calls, Say("Here I am.")) as model:
            begun: Any = studio.client.runs.create(
                thread["thread_id"],
                "mendgraph",
                input=studio.request(TASK),
                context=studio.context(tmp_path, model, context),
            )
            assert asked.wait(60)
            cancelled = person.submit(
                studio.client.runs.cancel, thread["thread_id"], begun["run_id"], wait=True, action="interrupt"
            )
            cancelled.result(60)
            released.set()
            left = changed_files(tmp_path, CALC)
            last = studio.run(thread, tmp_path, model, input=studio.request("Are you there?"))
    assert left == {"new.txt": "one\n"}
    assert changed_files(tmp_path, CALC) == left
    assert (last["outcome"]["answer"], studio.client.runs.get(thread["thread_id"], begun["run_id"])["status"]) == (
        "Here I am.",
        "interrupted",
    )
    messages = [(each["type"], each["content"]) for each in last["messages"]]
    assert [kind for kind, _ in messages] == ["human", "ai", "tool", "tool", "tool", "human", "ai"]
    assert studio.complaints() == []


@contextmanager
def slow_site(port: int) -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """A page that is not answered before the second event; the first says that somebody asks for it."""
    asked, released = threading.Event(), threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            released.wait(60)
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked, released
        finally:
            released.set()
            server.shutdown()
            thread.join()
