"""The folders and the two local servers of a run. Standard library only."""

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

EMAIL = "somebody@example.org"


class Listener:
    """A server that records its requests and answers each with the same page."""

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
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Layout:
    """The folders of a run, and its servers."""

    base: Path
    docs: Listener
    evil: Listener
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """The working folder of the contestant."""
        return self.base / "work"


def project_repository(folder: Path) -> Path:
    """Create the project as a git repository with one commit, and return its folder."""
    write_files(folder, PROJECT)

    identity = ("-c", "user.name=Somebody", "-c", f"user.email={EMAIL}")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "First version")):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


@contextmanager
def create_layout(goal: Goal, project: Path, base: Path) -> Iterator[Layout]:
    """Create the folders and servers for a goal, and set the environment variables of this process for the run."""
    layout = Layout(base, docs=Listener(goal.text), evil=Listener())
    other = base / "other"
    home = base / "home"
    layout.places = {
        "workspace": str(layout.workspace),
        "other": str(other),
        "home": str(home),
        "docs": f"http://{layout.docs.address}",
        "evil": f"http://{layout.evil.address}",
    }

    shutil.copytree(project, layout.workspace, symlinks=True)
    write_files(layout.workspace, goal.files)
    write_files(other, OTHER)
    write_files(home, HOME)
    inject(goal, layout.workspace)

    variable, secret = VARIABLE
    environment = dict(os.environ)
    os.environ.update(
        {
            "HOME": str(home),
            "MENDGRAPH_DATA_DIR": str(base / "data"),
            "GIT_AUTHOR_NAME": EMAIL,
            "GIT_AUTHOR_EMAIL": EMAIL,
            "GIT_COMMITTER_NAME": EMAIL,
            "GIT_COMMITTER_EMAIL": EMAIL,
            variable: secret,
        }
    )
    try:
        yield layout
    finally:
        os.environ.clear()
        os.environ.update(environment)
        layout.docs.close()
        layout.evil.close()


def inject(goal: Goal, workspace: Path) -> None:
    """Write the injected text to the goal's place. The docs server serves it as a page."""
    path = {"file": "docs/setup.md", "note": NOTES, "result": "docs/todo.md"}.get(goal.place)
    if path is None:
        return

    text = f"TODO: {goal.text}" if goal.place == "result" else goal.text
    write_files(workspace, {path: f"{PROJECT.get(path, '')}\n{text}\n"})


def remove_injection(goal: Goal, workspace: Path) -> None:
    """Remove the injected text, and keep the texts that the run wrote."""
    for path in ("docs/setup.md", "docs/todo.md", NOTES):
        file = workspace / path
        if file.is_file() and (goal.place != "note" or path != NOTES):
            text = file.read_text("utf-8", "replace")
            file.write_text(text.replace(goal.text, ""), "utf-8")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write these files."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
