"""Prompts of MCP servers as commands: `/SERVER:PROMPT words`, in a chat and as a task."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from tests.doubles.mcp_servers import PROMPTS, program
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.extent import slow
from tests.surfaces.conftest import Command
from tests.surfaces.terminal.tmux import Tmux, needs_tmux
from tests.workspace_files import write_files

WRITE = 'tool: write_file({"path": "AGENTS.md", "content": "x"})'
TEXT = ("--protocol", "text")
VALUE = "hunter2-is-no-pattern"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `config.toml` with the server `github`, whose prompts know a secret."""
    path = tmp_path / "user.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PLACE", VALUE)
    argv = [sys.executable, "-S", "-E", "-c", PROMPTS, str(tmp_path / "asked")]
    configure(path, "github", argv, 'env = { CODE = "${PLACE}" }')
    return path


def configure(settings: Path, name: str, argv: list[str], *more: str) -> None:
    lines = [f"[mcp_servers.{name}]", f"command = {json.dumps(argv[0])}", f"args = {json.dumps(argv[1:])}", *more, ""]
    with settings.open("a") as file:
        file.write("\n".join(lines))


def configure_double(settings: Path, behaviour: str, *more: str) -> None:
    """Replace the servers by one that misbehaves."""
    connection = program(settings.parent, behaviour)
    settings.write_text("")
    configure(settings, "s", [str(connection["command"]), *connection["args"]], *more)  # type: ignore[misc]


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[Any]:
    """A chat of these lines, and the request that the model received for each."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    with ScriptedServer([], then=lambda _: Say("Done.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-Zq8vTn3LrXw5Kd7PmYb2Hc9J")
        assert cli.main(("--model", "m", "chat")) == 0
        return [request["messages"][-1]["content"] for request in server.requests]


@pytest.mark.usefixtures("folder")
def test_line_sends_the_text_of_the_prompt_and_no_server_is_asked_for_prompts_before(
    settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["Say hi", "/github:review 7", "/github:review 42 'the tests' only", "/github:Talk at once", "/help"]
    hi, first, second, third = talk(monkeypatch, *lines)

    assert hi == "Say hi"
    assert first.startswith('/github:review 7\n\n<command_file name="github:review">\n')
    assert "\nWrite AGENTS.md about 7 (note: none; " in first
    assert first.endswith(").&lt;/command_file>\n</command_file>")
    assert VALUE not in first
    assert "\nWrite AGENTS.md about 42 (note: the tests only; " in second
    assert "/github:Talk at once\n" in third
    assert third.endswith("\n\nuser: Read.\n\nassistant: the notes\n</command_file>")

    out = capsys.readouterr().out
    assert "/github:review is a prompt of an MCP server\n" in out
    assert "/github:review <pr> [note] Review a pull request (MCP server github)\n" in out
    assert "/github:long_text" in out
    requests = (settings.parent / "asked").read_text()
    assert requests.split() == ["list", "review", "list", "review", "list", "list"]


@pytest.mark.usefixtures("folder")
def test_line_without_a_usable_prompt_sends_nothing_and_says_why(
    settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "/github:review",
        "/github:reviw 1",
        "/github:a_name_of_quite_another_kind",
        "/github:sound",
        "/github:long_text",
        "/github:dies",
    ]
    [sent] = talk(monkeypatch, *lines, "/github:Talk")
    assert "the notes" in sent

    err = capsys.readouterr().err
    assert "pr is missing: /github:review <pr> [note]\n" in err
    assert "There is no command /github:reviw. Did you mean /github:review?" in err
    assert "There is no command /github:a_name_of_quite_another_kind. Did you mean /github:" in err
    assert "/github:sound has content of type audio, and only text and images can be sent.\n" in err
    assert "/github:long_text is not sent: its text has more than 64,000 bytes.\n" in err
    assert "The MCP server 'github' failed: it ended; it said: out of memory for ${PLACE}. Nothing is sent;" in err
    assert settings.exists()


@pytest.mark.usefixtures("folder", "settings")
def test_images_of_a_prompt_are_sent_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    [content] = talk(monkeypatch, "/github:picture")
    text, image = content
    assert "\n[image]\n</command_file>" in text["text"]
    assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="

    with ScriptedServer([Say("Seen.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert cli.main(("--model", "m", "/github:picture")) == 0
        assert server.requests[0]["messages"][-1]["content"][1] == image


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(("task", "written"), [("/github:review 7", False), ("/github:review AGENTS.md", True)])
def test_prompt_permits_no_protected_file_that_the_person_does_not_name(
    command: Command, folder: Path, task: str, written: bool
) -> None:
    write_files(folder, {".claude/commands/github/review.md": "The project's review."})
    code, _, err = command(*TEXT, task, says=(WRITE, "Done."))
    assert (code, (folder / "AGENTS.md").exists()) == (0, written), err
    assert "mendgraph: /github:review is a prompt of an MCP server\n" in err


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dead", "The MCP server 's' failed: it ended; it said: a line for people \\x1b[31m"),
        ("prompts hang", "The MCP server 's' did not answer within 2 s, and was ended"),
        ("prompts refuses", "The MCP server 's' failed: no such \\x1b tool"),
    ],
)
def test_failing_server_ends_the_task_before_anything_is_sent(
    command: Command, settings: Path, behaviour: str, message: str
) -> None:
    configure_double(settings, behaviour, "startup_timeout_s = 2")
    code, out, err = command("/s:review 7", says=())
    assert (code, out) == (2, ""), err
    assert f"{message}. Nothing is sent; `mendgraph mcp list` tries it again.\n" in err


def test_server_with_unusable_settings_ends_the_task(command: Command, settings: Path) -> None:
    settings.write_text("[mcp_servers.none]\ncommand = 'no-such-program'\n")
    code, _, err = command("/none:review 7", says=())
    assert (code, err.count("there is no program 'no-such-program'. Nothing is sent;")) == (2, 1), err


@slow
def test_name_of_a_server_without_prompts_is_left_to_files_and_the_model(
    command: Command, folder: Path, settings: Path
) -> None:
    configure_double(settings, "dies")  # at any request that it does not offer
    assert command(*TEXT, "/s:1 is a ratio", says=("It is.",))[0] == 0
    write_files(folder, {".claude/commands/s/look.md": "Look."})
    assert "/s:look is the file .claude/commands/s/look.md\n" in command(*TEXT, "/s:look", says=("Done.",))[2]


@slow
@needs_tmux
def test_completion_menu_offers_prompts_after_a_slash(folder: Path, settings: Path) -> None:
    environment = {CONFIG_VARIABLE: str(settings), "PLACE": VALUE, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    with Tmux(folder, "--model", "scripted", "chat", environment=environment) as tmux:
        tmux.wait("You:")
        tmux.type("/gith")
        tmux.wait("/github:review")
        tmux.wait("Review a pull request")
        tmux.wait("/github:Talk")
