"""`mendgraph cassette ...` at the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from mendgraph.graph import cli
from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, render
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.runs.run_plays import EDIT, project

Run = Callable[..., tuple[int, str, str]]
COMMAND = Path(sys.executable).parent / "mendgraph"
EXCHANGE = Exchange(
    method="POST", path="/v1/chat/completions", request=b'{"said": 1}', status=200, headers={}, response=b"hi"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is the current folder."""
    path = project(tmp_path / "work")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(cli, "_session_options", lambda: {"model": ScriptedModel([EDIT, Say("Done.")])})
    monkeypatch.setenv("COLUMNS", "400")

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert folder.is_dir()
    return called


def cassette(folder: Path, *exchanges: Exchange) -> Path:
    path = folder / "one.yaml"
    path.write_text(render(CassetteFile(recorded_from="a test", exchanges=exchanges)), encoding="utf-8")
    return path


def test_a_run_becomes_a_test(run: Run, folder: Path) -> None:
    assert run("--no-evidence", "--protocol", "native", "Mend add.")[0] == 0
    run_id = json.loads(run("runs", "--json")[1])[0]["run_id"]
    os.chdir(folder.parent)
    root = ("--root", str(folder))
    code, out, err = run("cassette", "from-run", run_id[:6], "--name", "mended", "-o", "checks", *root)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"wrote {folder}/checks/test_mended.py"
    assert out.splitlines()[1] == f"wrote {folder}/cassettes/checks/test_mended/mended.yaml"
    assert "2 exchanges, 1 file, ends FINISHED (answered)" in out
    assert out.endswith(f"; replay it with: pytest --rootdir {folder} {folder}/checks/test_mended.py\n")
    (folder / "pytest.ini").touch()
    code, out, err = run("cassette", "from-run", run_id, "--name", "other", "--json", *root)
    assert (code, json.loads(out)["name"]) == (0, "other")
    assert json.loads(out)["command"] == f"pytest {folder}/tests/test_other.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("from-run",), "Missing argument 'RUN'"),
        (("from-run", "nothing"), "There is no run 'nothing' in this workspace"),
        (("serve", "nowhere.yaml"), "there is no cassette nowhere.yaml"),
        (("serve", "calc.py"), "calc.py is"),
        (("serve", "calc.py", "--port", "70000"), "less than or equal to 65535"),
        (("sing",), "No such command 'sing'"),
        (("from-run", "x", "--max-calls", "3"), "--max-calls is for new runs"),
    ],
)
def test_a_mistake_is_one_line(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("cassette", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_the_address_of_another_api_is_for_its_client(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.terminal.run_commands.until_stopped", lambda announce: announce())
    file = cassette(folder, EXCHANGE.model_copy(update={"path": "/v1/messages"}))
    assert "until Ctrl-C; give its address to the client\n" in run("cassette", "serve", str(file))[1]


def test_a_port_that_is_taken_is_told(run: Run, folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run("cassette", "serve", str(cassette(folder, EXCHANGE)), "--port", str(port))
    assert (code, err) == (4, f"mendgraph: port {port} cannot be taken: Address already in use\n")


def test_a_cassette_is_served_until_it_is_stopped(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(COMMAND), "cassette", "serve", str(cassette(folder, EXCHANGE)), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as served:
        assert served.stdout is not None
        announced = served.stdout.readline()
        url = announced.strip().rpartition("OPENAI_BASE_URL=")[2]
        assert url == f"http://127.0.0.1:{port}/v1"
        asked = Request(f"{url}/chat/completions", data=EXCHANGE.request)  # noqa: S310 - loopback
        with urlopen(asked, timeout=10) as answer:  # noqa: S310 - loopback
            assert answer.read() == b"hi"
        served.send_signal(signal.SIGTERM)
        out, err = served.communicate(timeout=20)
    assert (served.returncode, out.splitlines()[-1], err) == (0, "0 exchanges not played, 0 requests refused", "")
