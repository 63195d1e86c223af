"""An approved call runs, inside of the same sandbox; one that would be refused all the same is refused at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.runs.events import Asked, Ended, Event
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.records import JsonMap
from tests.nodes.execute_tools.network.loopback_servers import Listener, http_answer
from tests.runs.approval_play import asked, last, session
from tests.sandboxes import needs_sandbox, set_sandbox_problem


def command(*argv: str, **arguments: str) -> str:
    return f"tool: run_command({json.dumps({'argv': argv, **arguments})})"


def page(url: str) -> str:
    return f"tool: http_get({json.dumps({'url': url})})"


def results(now: Session) -> list[JsonMap]:
    """The results of all calls, in order."""
    told = [each.text for each in now.result().messages if "tool_result(" in each.text]
    lines = [line for text in told for line in text.splitlines() if line.startswith("tool_result(")]
    return [json.loads(line.removeprefix("tool_result(").removesuffix(")")) for line in lines]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("remember\n", encoding="utf-8")
    (folder / ".env").write_text("TOKEN=swordfish\n", encoding="utf-8")
    return folder


@needs_sandbox
@pytest.mark.parametrize("listed", [(), ("ls",)])
def test_an_approved_program_runs_and_the_next_call_is_asked_about(root: Path, listed: tuple[str, ...]) -> None:
    cat = command("cat", "note.txt")
    with session(root, cat, cat, "Done.", allowed_programs=listed) as now:
        (call,) = asked(now.stream("Look"))
        assert (call["rule"], call["preview"]["text"]) == ("ask_before_run", "cat note.txt")
        assert len(asked(now.answer("approve"))) == 1
        assert isinstance(last(now.answer("reject")), Ended)
        first, second = results(now)
    assert (first["data"]["exit_code"], first["data"]["stdout"]) == (0, "remember\n")
    assert second["error"]["code"] == "permission_denied"


@needs_sandbox
def test_an_approval_does_not_widen_the_sandbox(root: Path) -> None:
    outside = root.parent / "outside.txt"
    outside.write_text("private", encoding="utf-8")
    with session(root, command("cat", ".env", "note.txt", str(outside)), "Done.") as now:
        asked(now.stream("Look"))
        last(now.answer("approve"))
        [result] = results(now)
    assert result["data"]["stdout"] == "remember\n"
    assert result["data"]["exit_code"] == 1


@needs_sandbox
def test_an_edited_command_runs_the_program_of_the_edit(root: Path) -> None:
    with session(root, command("ls"), command("ls"), "Done.") as now:
        asked(now.stream("Look"))
        edit = {"action": "edit", "arguments": {"argv": ["cat", "note.txt"]}}
        asked(now.answer({"decisions": {"0": edit}}))
        edit = {"action": "edit", "arguments": {"argv": ["no-such-program"]}}
        last(now.answer({"decisions": {"0": edit}}))
        first, second = results(now)
    assert first["data"]["stdout"] == "remember\n"
    assert second["error"]["code"] == "not_found"


def test_an_approved_host_is_asked_and_no_other(root: Path) -> None:
    with Listener(http_answer(b"hello", content_type="text/plain")) as listener:
        url = f"http://127.0.0.1:{listener.port}/"
        with session(root, page(url), page(url), "Done.", allowed_private_hosts=("127.0.0.1",)) as now:
            (call,) = asked(now.stream("Look"))
            assert (call["rule"], call["arguments"]) == ("ask_before_network", {"url": url})
            asked(now.answer("approve"))
            last(now.answer("reject"))
            first, second = results(now)
    assert (first["data"]["status"], first["data"]["text"]) == (200, "hello")
    assert second["error"]["code"] == "permission_denied"


REFUSED: dict[str, tuple[str, JsonMap, str]] = {
    "not installed": (command("no-such-program"), {}, "is not installed where commands can see it"),
    "not visible": (command("/root/bin/tool"), {}, "no command sees this file"),
    "a denied file": (command("./.env"), {}, "no command sees this file"),
    "no program": (command("./note.txt"), {}, "is no program"),
    "no folder": (command("ls", cwd="nowhere"), {}, "nowhere"),
    "a role without programs": (command("ls"), {"role": "editor"}, "role"),
    "writable paths": (command("ls"), {"writable_paths": ("a.txt",)}, "role"),
    "a quota of none": (command("ls"), {"tool_quotas": {"run_command": 0}}, "quota"),
    "a secret's mark": (command("echo", "[redacted secret]"), {}, "stands for a secret"),
    "no URL": (page("docs.python.org"), {}, "is no absolute URL"),
    "a private address": (page("http://10.0.0.1/"), {}, "is private"),
    "this machine": (page("http://localhost:8000/"), {}, "is private"),
    "a file that is not read": ('tool: write_file({"path": "note.txt", "content": "x"})', {}, "was not read yet"),
    "text that is not there": (
        'tool: edit_file({"path": "note.txt", "old_str": "gone", "new_str": "x"})',
        {},
        "note.txt",
    ),
}


@needs_sandbox
@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_would_be_refused_is_refused_without_a_question(root: Path, case: str) -> None:
    reply, settings, reason = REFUSED[case]
    with session(root, reply, "I could not.", **settings) as now:
        events: list[Event] = list(now.stream("Look"))
        [result] = results(now)
    assert not any(isinstance(each, Asked) for each in events)
    assert reason in json.dumps(result)


def test_where_no_sandbox_starts_no_program_is_asked_about(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, "none is here")
    with session(root, command("ls"), "I could not.") as now:
        events: list[Any] = list(now.stream("Look"))
        [result] = results(now)
    assert not any(isinstance(each, Asked) for each in events)
    assert result["error"]["code"] == "unavailable"
