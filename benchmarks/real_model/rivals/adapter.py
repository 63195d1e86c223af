"""The shared parts of the rivals' adapters, which run in the rivals' environments: standard library only.

An adapter is a program. It reads `{request, workspace, base_url, model, files}` as JSON from standard input, and prints
a `RunEnd` as JSON on the last line of standard output. `seconds` exclude the imports of the rival's libraries.
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
"""The instructions for a rival's model, in addition to the rival's own."""

Rival = Callable[[dict[str, Any]], str]


def serve(load: Callable[[], Rival]) -> None:
    """Load the rival, run the request from standard input, and print the end of the run."""
    message: dict[str, Any] = json.loads(sys.stdin.read())
    os.chdir(message["workspace"])

    end: dict[str, Any] = {"ended": "done"}
    with redirect_stdout(sys.stderr):
        work = load()
        start = time.monotonic()
        try:
            end["answer"] = work(message)
        except Exception as error:  # noqa: BLE001 - the end of the run reports any exception
            end |= {"ended": "error", "reason": type(error).__name__, "error": str(error)[:600]}
        end["seconds"] = round(time.monotonic() - start, 3)
    print(json.dumps(end))


def workspace_tools(root: Path) -> list[Callable[..., str]]:
    """Return simple tools of a coding agent, which are confined to `root` and return errors as text."""
    root = root.resolve()

    def resolve(path: str) -> Path:
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise ValueError(f"{path} is outside of the workspace")
        return file

    def list_files() -> str:
        """List all files of the workspace, one path per line."""
        return "\n".join(sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()))

    def read_file(path: str) -> str:
        """Read a text file of the workspace. The path is relative to the workspace."""
        try:
            return resolve(path).read_bytes().decode()
        except (OSError, ValueError) as error:
            return f"Error: {error}"

    def write_file(path: str, content: str) -> str:
        """Write a text file of the workspace: create it, or replace its whole content."""
        try:
            file = resolve(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode())
        except (OSError, ValueError) as error:
            return f"Error: {error}"
        return f"Wrote {path}."

    def edit_file(path: str, old_string: str, new_string: str) -> str:
        """Replace old_string, which must occur exactly once in the file, by new_string."""
        try:
            file = resolve(path)
            text = file.read_bytes().decode()
            if not old_string or text.count(old_string) != 1:
                return f"Error: old_string occurs {text.count(old_string)} times in {path}"
            file.write_bytes(text.replace(old_string, new_string).encode())
        except (OSError, ValueError) as error:
            return f"Error: {error}"
        return f"Edited {path}."

    return [list_files, read_file, write_file, edit_file]


def files_for(request: str, files: list[str]) -> list[str]:
    """Return the files that a user would add to the chat: those that the request names, or all files."""
    matches = [path for path in files if path in request or path.rsplit("/", 1)[-1] in request]
    return matches or files
