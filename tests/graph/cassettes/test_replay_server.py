import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from graph.cassettes.cassette_file import CassetteFile, Exchange
from graph.cassettes.player import Player
from graph.cassettes.recording_server import RecordingServer
from graph.cassettes.replay_server import MISSED, ReplayServer
from graph.context import AgentContext
from graph.run import run_task
from tests.doubles.scripted_server import Say, ScriptedServer

BODY: Any = {"messages": [{"role": "user", "content": "a"}]}


def cassette(*answers: bytes) -> CassetteFile:
    fields: Any = {"method": "POST", "path": "/v1/chat/completions", "request": json.dumps(BODY).encode()}
    headers = {"content-type": "text/plain", "retry-after": "3"}
    exchanges = tuple(Exchange(status=429, headers=headers, response=each, **fields) for each in answers)
    return CassetteFile(recorded_from="x", exchanges=exchanges)


def port_of(server: ReplayServer) -> int:
    return int(server.base_url.removesuffix("/v1").rpartition(":")[2])


def ask(server: ReplayServer, **more: Any) -> httpx2.Response:
    return httpx2.post(f"{server.base_url}/chat/completions", json={**BODY, **more})


def test_the_server_answers_what_was_recorded_and_refuses_what_was_not() -> None:
    with ReplayServer(cassette(b"a", b"b")) as server:
        heard, missed = ask(server), ask(server, seed=1)
        listed = httpx2.get(f"{server.base_url}/models")
    assert (heard.status_code, heard.content, heard.headers["retry-after"]) == (429, b"a", "3")
    error = {"message": server.misses[0], "type": "cassette", "code": "not_recorded", "param": None}
    assert (missed.status_code, missed.json()) == (MISSED, {"error": error})
    assert missed.headers["x-should-retry"] == "false"
    assert "seed: not recorded, sent 1" in server.misses[0]
    assert (listed.status_code, len(server.misses), server.unplayed) == (MISSED, 2, 1)


def test_a_second_server_goes_on_where_the_first_has_ended() -> None:
    player = Player(cassette(b"a", b"b"), "c.yaml")
    said = []
    for _ in range(2):
        with ReplayServer(player) as server:
            said.append(ask(server).text)
    assert (said, server.unplayed) == (["a", "b"], 0)


@pytest.mark.parametrize("length", ["", "x", "-1", "²"])
def test_a_body_of_unknown_length_is_refused(length: str) -> None:
    with (
        ReplayServer(cassette()) as server,
        socket.create_connection(("127.0.0.1", int(server.base_url[17:-3]))) as line,
    ):
        line.sendall(f"POST /v1/a HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        assert line.recv(100).startswith(b"HTTP/1.1 411 ")


def test_a_client_that_goes_away_is_let_go(capfd: pytest.CaptureFixture[str]) -> None:
    with ReplayServer(cassette(b"x" * 8_000_000, b"b")) as server:
        with socket.create_connection(("127.0.0.1", port_of(server))) as line:
            body = json.dumps(BODY).encode()
            host = f"127.0.0.1:{port_of(server)}"
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            line.sendall(head.encode() + body)
            assert line.recv(12) == b"HTTP/1.1 429"
        assert ask(server).text == "b"
    assert capfd.readouterr().err == ""


def test_the_agent_does_not_ask_again_for_what_was_not_recorded(tmp_path: Path) -> None:
    with ReplayServer(cassette()) as server:
        context = AgentContext(workspace=str(tmp_path), model="m", base_url=server.base_url, evidence=False)
        result = run_task("Say hello.", context)
    assert (result.outcome.kind, len(server.misses)) == ("SYSTEM_ERROR", 1)
    assert result.outcome.usage["total_calls"] <= 1
    assert "was not recorded in the cassette" in result.outcome.message


def test_the_command_in_another_process_is_recorded_and_replayed(tmp_path: Path) -> None:
    """The real command, on its real client: recorded through the proxy, replayed in a fresh folder."""
    say = [Say('tool: edit_file({"path":"calc.py","old_str":"a - b","new_str":"a + b"})'), Say("add now adds.")]
    with ScriptedServer(say) as upstream, RecordingServer(upstream.base_url, "key") as recorder:
        live = mend(tmp_path / "live", recorder.base_url)
    heard = CassetteFile(recorded_from="x", exchanges=tuple(recorder.exchanges))
    with ReplayServer(heard) as server:
        replayed = mend(tmp_path / "replay", server.base_url)
    assert (server.misses, server.unplayed, len(heard.exchanges)) == ([], 0, 2)
    assert live == replayed == (0, "def add(a, b):\n    return a + b\n")


def mend(folder: Path, base_url: str) -> tuple[int, str]:
    """Let `mendgraph` repair calc.py in a new folder; its exit code, and the file."""
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n", encoding="utf-8")
    options = ["--model", "scripted", "--base-url", base_url, "--protocol", "text"]
    command = [
        str(Path(sys.executable).parent / "mendgraph"),
        *options,
        "The add function in calc.py is wrong. Fix it.",
    ]
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder)
    return done.returncode, (folder / "calc.py").read_text(encoding="utf-8")
