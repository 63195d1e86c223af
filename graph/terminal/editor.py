"""What a person's terminal has beside its lines: an editor, and a width."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

LARGEST = 10_000_000
"""Bytes of an edited text that are read."""


def in_editor(environment: Mapping[str, str], text: str) -> str | None:
    """The text after it was edited in `$VISUAL` or `$EDITOR`; None without one, and where it failed.

    The editor gets the terminal as it is. The file is readable for nobody else, and is removed.
    """
    from nodes.execute_tools.environment.postgres_url import STORE_URL_VARIABLE

    command = environment.get("VISUAL") or environment.get("EDITOR") or ""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words:
        return None
    seen = {name: value for name, value in {**os.environ, **environment}.items() if name != STORE_URL_VARIABLE}
    with tempfile.TemporaryDirectory(prefix="mendgraph-") as folder:
        path = Path(folder) / "arguments.json"
        path.write_text(text + "\n", encoding="utf-8")
        try:
            ended = subprocess.run([*words, str(path)], check=False, env=seen)  # noqa: S603
            if ended.returncode != 0 or path.stat().st_size > LARGEST:
                return None
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None


def columns() -> int:
    """How wide the terminal is; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns
