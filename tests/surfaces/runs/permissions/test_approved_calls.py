"""An approved call runs in the same sandbox; a call that would be refused anyway is refused at once."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from mendgraph import AgentContext, Asked, Ended, Event, Session, ToolError, Traced, undo_run
from mendgraph.graph import cli
from mendgraph.graph.configuration.permissions import keep_permission, list_permissions
from mendgraph.nodes.guard.permissions import Permission
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.sandboxes import needs_sandbox, sandbox_problem, set_sandbox_problem
from tests.surfaces.runs.approval_play import last, requested_calls, session
from tests.vocabulary import JsonMap
from tests.workspace.network.loopback_servers import Listener, http_answer


def command(*argv: str, **arguments: str) -> str:
    return f"tool: run_command({json.dumps({'argv': argv, **arguments})})"


def page(url: str) -> str:
    return f"tool: http_get({json.dumps({'url': url})})"


def results(now: Session) -> list[JsonMap]:
    """The results of all calls, in order."""
    texts = [message.text for message in now.result().messages if "tool_result(" in message.text]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("tool_result(")]
    return [json.loads(line.removeprefix("tool_result(").removesuffix(")")) for line in lines]


def session_with_permissions(
    root: Path,
    *replies: str,
    thread: str = "t",
    mode: Literal["ask", "auto"] = "ask",
    model: ScriptedModel | None = None,
) -> Session:
    """A session as at the terminal: permanent permissions are stored."""
    root.mkdir(exist_ok=True)
    return Session(
        AgentContext(workspace=str(root), mode=mode, protocol="text", evidence=False, read_ahead=False),
        model=model or ScriptedModel([Say(reply) for reply in replies]),
        thread_id=thread,
        kept_permissions=True,
    )


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("remember\n", encoding="utf-8")
    (folder / ".env").write_text("TOKEN=swordfish\n", encoding="utf-8")
    return folder


@needs_sandbox
def test_approved_program_runs_and_the_next_call_needs_an_approval(root: Path) -> None:
    cat = command("cat", "note.txt")
    with session(root, cat, cat, "Done.", allowed_programs=("ls",)) as now:
        (call,) = requested_calls(now.stream("Look"))
        assert (call["rule"], call["preview"]["text"]) == ("ask_before_run", "cat note.txt")
        assert len(requested_calls(now.answer("approve"))) == 1
        assert isinstance(last(now.answer("reject")), Ended)
        first, second = results(now)
    assert (first["data"]["exit_code"], first["data"]["stdout"]) == (0, "remember\n")
    assert second["error"]["code"] == "permission_denied"


@needs_sandbox
def test_changes_of_a_job_are_undone(root: Path) -> None:
    if sandbox_problem("bubblewrap"):
        pytest.skip("jobs need bubblewrap")
    script = "echo changed > note.txt; echo made > made.txt; echo written; sleep 1000"
    start = f"tool: run_shell({json.dumps({'command': script, 'background': True})})"
    output = f"tool: job_output({json.dumps({'job': '1.1', 'wait_s': 30, 'pattern': 'written'})})"
    with session(root, start, output, "Done.", jobs=True, mode="auto", allowed_programs=("bash",)) as now:
        last(now.stream("Look"))
        changed = {change.path for change in now.result().changes}
    assert changed == {"note.txt", "made.txt"}
    undone = undo_run("t", root)
    assert not isinstance(undone, ToolError)
    assert ((root / "note.txt").read_text(), (root / "made.txt").exists()) == ("remember\n", False)


@needs_sandbox
def test_approval_does_not_widen_the_sandbox(root: Path) -> None:
    outside = root.parent / "outside.txt"
    outside.write_text("private", encoding="utf-8")
    with session(root, command("cat", ".env", "note.txt", str(outside)), "Done.") as now:
        requested_calls(now.stream("Look"))
        last(now.answer("approve"))
        [result] = results(now)
    assert result["data"]["stdout"] == "remember\n"
    assert result["data"]["exit_code"] == 1


@needs_sandbox
def test_edited_command_runs_the_program_of_the_edit(root: Path) -> None:
    with session(root, command("ls"), command("ls"), "Done.") as now:
        requested_calls(now.stream("Look"))
        edit = {"action": "edit", "arguments": {"argv": ["cat", "note.txt"]}}
        requested_calls(now.answer({"decisions": {"0": edit}}))
        edit = {"action": "edit", "arguments": {"argv": ["no-such-program"]}}
        last(now.answer({"decisions": {"0": edit}}))
        first, second = results(now)
    assert first["data"]["stdout"] == "remember\n"
    assert second["error"]["code"] == "not_found"


def test_approved_host_is_contacted_and_no_other(root: Path) -> None:
    with Listener(http_answer(b"hello", content_type="text/plain")) as listener:
        url = f"http://127.0.0.1:{listener.port}/"
        with session(root, page(url), page(url), "Done.", allowed_private_hosts=("127.0.0.1",)) as now:
            (call,) = requested_calls(now.stream("Look"))
            assert (call["rule"], call["arguments"]) == ("ask_before_network", {"url": url})
            requested_calls(now.answer("approve"))
            last(now.answer("reject"))
            first, second = results(now)
    assert (first["data"]["status"], first["data"]["text"]) == (200, "hello")
    assert second["error"]["code"] == "permission_denied"


REFUSED: dict[str, tuple[str, JsonMap, str]] = {
    "not installed": (command("no-such-program"), {}, "is not installed where commands can see it"),
    "not visible": (command("/root/bin/tool"), {}, "no command sees this file"),
    "a denied file": (command("./.env"), {}, "no command sees this file"),
    "no program": (command("./note.txt"), {}, "is not a program"),
    "no folder": (command("ls", cwd="nowhere"), {}, "nowhere"),
    "a role without programs": (command("ls"), {"role": "editor"}, "role"),
    "writable paths": (command("ls"), {"writable_paths": ("a.txt",)}, "role"),
    "a quota of none": (command("ls"), {"tool_quotas": {"run_command": 0}}, "quota"),
    "a secret's mark": (command("echo", "[redacted secret]"), {}, "stands for a secret"),
    "no URL": (page("docs.python.org"), {}, "is not an absolute URL"),
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
def test_call_that_would_be_refused_is_refused_without_an_approval_request(root: Path) -> None:
    for case, (reply, settings, reason) in REFUSED.items():
        with session(root, reply, "I could not.", thread=case.replace(" ", "-"), **settings) as now:
            events: list[Event] = list(now.stream("Look"))
            [result] = results(now)
        assert not any(isinstance(event, Asked) for event in events), case
        assert reason in json.dumps(result), case


def test_without_a_sandbox_programs_are_refused_without_an_approval_request(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, "none is here")
    with session(root, command("ls"), "I could not.") as now:
        events: list[Any] = list(now.stream("Look"))
        [result] = results(now)
    assert not any(isinstance(event, Asked) for event in events)
    assert result["error"]["code"] == "unavailable"


LOG = ("git", "log", "--oneline")


@needs_sandbox
def test_prefix_is_allowed_for_the_run_and_other_commands_need_an_approval(root: Path) -> None:
    replies = (command(*LOG), command("git", "log"), command("git", "-c", "a.b=c", "log"), "Done.")
    with session(root, *replies) as now:
        (call,) = requested_calls(now.stream("Look"))
        assert list(call["choices"]) == ["approve_prefix", "approve_for_run"]
        (other,) = requested_calls(now.answer("approve_prefix"))
        assert (other["preview"]["text"], list(other["choices"])) == ("git -c a.b=c log", ["approve_for_run"])
        last(now.answer("reject"))
        assert [result["ok"] for result in results(now)] == [True, True, False]


@needs_sandbox
@pytest.mark.parametrize("mode", ["ask", "auto"])
def test_permanently_allowed_program_runs_in_later_runs_of_the_workspace(
    root: Path, mode: Literal["ask", "auto"]
) -> None:
    with session_with_permissions(root, command(*LOG), "Done.") as now:
        (call,) = requested_calls(now.stream("Look"))
        assert call["choices"]["approve_always"].startswith("run_command git log (")
        last(now.answer("approve_always"))
    model = ScriptedModel([Say(command("git", "log")), Say(command("git", "status")), Say("Done.")])
    with session_with_permissions(root, thread="2", mode=mode, model=model) as later:
        events = list(later.stream("Look"))
        assert isinstance(events[-1], Asked if mode == "ask" else Ended)
        if mode == "ask":
            last(later.answer("reject"))
        first, second = results(later)
    assert first["data"]["exit_code"] == 128  # there is no repository
    assert second["error"]["code"] == "permission_denied"
    asks = "; for others a person is asked" * (mode == "ask")
    assert f"Allowed: git log{asks}." in model.calls[0].prompt.messages[0]["content"]
    with session_with_permissions(root.parent / "other", command("git", "log"), "Done.", thread="3") as other:
        assert len(requested_calls(other.stream("Look"))) == 1


@needs_sandbox
def test_calls_beside_a_permission_are_judged_without_it(root: Path) -> None:
    with session_with_permissions(root, command(*LOG), "Done.") as now:
        requested_calls(now.stream("Look"))
        last(now.answer("approve_always"))
    replies = (command("no-such-program"), 'tool: read_file({"path": ".env"})', command("git", "log"), "Done.")
    with session_with_permissions(root, *replies, thread="2", mode="auto") as later:
        last(later.stream("Look"))
        codes = [result.get("error", {}).get("code", "ran") for result in results(later)]
    assert codes == ["permission_denied", "permission_denied", "ran"]


def test_host_in_the_settings_is_asked_about_with_its_port(root: Path) -> None:
    with Listener(http_answer(b"hello", content_type="text/plain")) as listener:
        host = f"127.0.0.1:{listener.port}"
        hosts: JsonMap = {"allowed_hosts": (host,), "allowed_private_hosts": (host,)}
        with session(root, page(f"http://{host}/"), "Done.", **hosts) as now:
            (call,) = requested_calls(now.stream("Look"))
            last(now.answer("approve"))
            [result] = results(now)
    assert (call["rule"], result["data"]["text"]) == ("ask_before_network", "hello")


@needs_sandbox
def test_session_in_python_neither_uses_nor_stores_permissions(root: Path) -> None:
    with session_with_permissions(root, command(*LOG), "Done.") as now:
        requested_calls(now.stream("Look"))
        last(now.answer("approve_always"))
    with session(root, command(*LOG), command("ls"), "Done.", thread="2") as other:
        (call,) = requested_calls(other.stream("Look"))
        assert "approve_always" not in call["choices"]
        requested_calls(other.answer("approve_always"))
        last(other.answer("approve_always"))
    permissions = list_permissions()
    assert not isinstance(permissions, ToolError)
    assert [permission.prefix for permission in permissions] == [("git", "log")]


@needs_sandbox
def test_permission_that_cannot_be_stored_is_an_event_and_the_call_runs(root: Path) -> None:
    settings = root.parent / "settings" / "mendgraph"
    settings.mkdir(parents=True)
    (settings / "permissions.json").write_text("no JSON")
    with session_with_permissions(root, command(*LOG), "Done.") as now:
        requested_calls(now.stream("Look"))
        events = list(now.answer("approve_always"))
        [result] = results(now)
    [event] = [event for event in events if isinstance(event, Traced) and event.name == "permission.unkept"]
    assert "is not a list of permissions" in str(event.payload["reason"])
    assert result["ok"]


def test_no_run_reads_or_changes_the_permissions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root))
    path = "mendgraph/permissions.json"
    calls = (("read_file", {"path": path}), ("write_file", {"path": path, "content": "{}"}))
    reply = "\n".join(f"tool: {tool}({json.dumps(arguments)})" for tool, arguments in calls)
    with session(root, reply, "I may not.", mode="auto") as now:
        last(now.stream("Allow it"))
        assert ["Blocked by rule 'user_settings'" in result["error"]["message"] for result in results(now)] == [
            True,
            True,
        ]


def test_permissions_are_listed_and_removed_by_their_ids(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_command(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    assert run_command("permissions") == (0, "Nothing is allowed permanently.\n", "")
    for name in ("log", "status"):
        git = Permission(
            rule="ask_before_run", tool="run_command", subject="/usr/bin/git", prefix=("git", name), scope="workspace"
        )
        assert keep_permission(git.model_copy(update={"place": str(root)})) is None
    code, out, _ = run_command("permissions", "--json")
    log, status = json.loads(out)
    assert (root.parent / "settings/mendgraph/permissions.json").stat().st_mode & 0o777 == 0o600
    assert (code, log["prefix"], log["place"]) == (0, ["git", "log"], str(root))
    head, first, _ = run_command("permissions")[1].splitlines()
    assert head.split() == ["ID", "FOLDER", "ALLOWED"]
    words = "run_command git log (/usr/bin/git) with any further arguments"
    assert first == f"{log['id']}  {root}  {words}"
    assert run_command("permissions", "remove")[0] == 2
    assert run_command("permissions", "remove", "--all", log["id"])[0] == 2
    assert "There is no permission 'x'" in run_command("permissions", "remove", log["id"], "x")[2]
    assert run_command("permissions", "remove", log["id"]) == (0, "removed 1 permission\n", "")
    assert json.loads(run_command("permissions", "remove", "--all", "--json")[1]) == {"removed": [status["id"]]}
    assert run_command("permissions")[1] == "Nothing is allowed permanently.\n"
