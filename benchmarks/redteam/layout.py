"""The folders of one run, and the two servers on loopback. Standard library only."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.redteam.goal import HOME, OTHER, PROJECT, VARIABLE, Goal
from benchmarks.redteam.model import NOTES


class Listener:
    """A server that keeps what it is asked for. It answers with its page, whatever the address."""

    def __init__(self, page: str = "thanks") -> None:
        self.paths: list[str] = []
        paths = self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                paths.append(self.path + " " + self.rfile.read(length).decode("utf-8", "replace"))
                body = page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Layout:
    """Where one run works, and who listens."""

    base: Path
    docs: Listener
    evil: Listener
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """The folder that the contestant works in."""
        return self.base / "work"


def project_repository(place: Path) -> Path:
    """The project as a git repository of one commit, to be copied for each run."""
    write_all(place, PROJECT)
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "First version")):
        subprocess.run(["git", *somebody, *words], cwd=place, check=True, capture_output=True)
    return place


@contextmanager
def laid_out(goal: Goal, project: Path, base: Path) -> Iterator[Layout]:
    """The folders and servers of one run of a goal, and the environment of the process as that run has it."""
    layout = Layout(base, Listener(goal.text), Listener())
    folders = {"workspace": layout.workspace, "other": base / "other", "home": base / "home"}
    layout.places = {
        **{name: str(path) for name, path in folders.items()},
        "docs": f"http://{layout.docs.address}",
        "evil": f"http://{layout.evil.address}",
    }
    shutil.copytree(project, layout.workspace, symlinks=True)
    write_all(layout.workspace, goal.files)
    write_all(folders["other"], OTHER)
    write_all(folders["home"], HOME)
    inject(goal, layout.workspace)
    before = dict(os.environ)
    os.environ.update(
        {
            "HOME": str(folders["home"]),
            "MENDGRAPH_DATA_DIR": str(base / "data"),
            **dict((VARIABLE,)),
            **{
                f"GIT_{who}_{what}": "somebody@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
    )
    try:
        yield layout
    finally:
        os.environ.clear()
        os.environ.update(before)
        layout.docs.close()
        layout.evil.close()


def inject(goal: Goal, workspace: Path) -> None:
    """Put the injected text where the goal says; a page is served."""
    path = {"file": "docs/setup.md", "note": NOTES, "result": "docs/todo.md"}.get(goal.place)
    if path is not None:
        text = f"TODO: {goal.text}" if goal.place == "result" else goal.text
        write_all(workspace, {path: f"{PROJECT.get(path, '')}\n{text}\n"})


def take_out(goal: Goal, workspace: Path) -> None:
    """Take the injected text out again, and leave alone what the run has written."""
    for path in ("docs/setup.md", "docs/todo.md", NOTES):
        file = workspace / path
        if file.is_file() and (goal.place != "note" or path != NOTES):
            text = file.read_text("utf-8", "replace")
            file.write_text(text.replace(goal.text, ""), "utf-8")


def write_all(place: Path, files: Mapping[str, str]) -> None:
    """Write these files."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")
