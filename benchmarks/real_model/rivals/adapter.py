"""What the adapters of all rivals have in common. Runs in a rival's environment: the standard library alone.

An adapter is a program: `{request, workspace, base_url, model, files}` as JSON on standard input, a `RunEnd` as JSON
on the last line of standard output. `seconds` count from the moment at which the rival's libraries are loaded.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

KEY = "not-needed"
OUTPUT_TOKENS = 800
MODEL_CALLS = 12
INSTRUCTIONS = (
    "You are a coding agent: read and change the files of the user's workspace with your tools until the user's "
    "request is done, then answer the user."
)
"""The one sentence that a rival's model is told; what else it is told is the rival's own."""

Rival = Callable[[dict[str, Any]], str]


def serve(load: Callable[[], Rival]) -> None:
    """Load the rival, let it work on the request of standard input, and print how that ended."""
    asked: dict[str, Any] = json.loads(sys.stdin.read())
    os.chdir(asked["workspace"])
    end: dict[str, Any] = {"ended": "done"}
    with redirect_stdout(sys.stderr):
        work = load()
        started = time.monotonic()
        try:
            end["answer"] = work(asked)
        except Exception as error:  # noqa: BLE001 - whatever a rival raises is how its run ended
            end |= {"ended": "error", "reason": type(error).__name__, "error": str(error)[:600]}
        end["seconds"] = round(time.monotonic() - started, 3)
    print(json.dumps(end))


def workspace_tools(root: Path) -> list[Callable[..., str]]:
    """The tools of a coding agent as one writes them in an afternoon: confined to `root`, errors as text."""
    root = root.resolve()

    def inside(path: str) -> Path:
        place = (root / path).resolve()
        if not place.is_relative_to(root):
            raise ValueError(f"{path} is outside of the workspace")
        return place

    def list_files() -> str:
        """List all files of the workspace, one path per line."""
        return "\n".join(sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()))

    def read_file(path: str) -> str:
        """Read a text file of the workspace. The path is relative to the workspace."""
        try:
            return inside(path).read_bytes().decode()
        except (OSError, ValueError) as error:
            return f"Error: {error}"

    def write_file(path: str, content: str) -> str:
        """Write a text file of the workspace: create it, or replace its whole content."""
        try:
            place = inside(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode())
        except (OSError, ValueError) as error:
            return f"Error: {error}"
        return f"Wrote {path}."

    def edit_file(path: str, old_string: str, new_string: str) -> str:
        """Replace old_string, which must occur exactly once in the file, by new_string."""
        try:
            place = inside(path)
            text = place.read_bytes().decode()
            if not old_string or text.count(old_string) != 1:
                return f"Error: old_string occurs {text.count(old_string)} times in {path}"
            place.write_bytes(text.replace(old_string, new_string).encode())
        except (OSError, ValueError) as error:
            return f"Error: {error}"
        return f"Edited {path}."

    return [list_files, read_file, write_file, edit_file]


def files_for(request: str, files: list[str]) -> list[str]:
    """The files that a user would put into the chat: those that the request names, all where it names none."""
    named = [path for path in files if path in request or path.rsplit("/", 1)[-1] in request]
    return named or files
