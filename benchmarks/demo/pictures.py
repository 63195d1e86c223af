"""Records the pictures of README.md: a terminal in which a bug is repaired, and the report of that run.

Needs tmux, Chromium (`make browser`) and the embedded model's weights (`make demo`).
"""

import base64
import os
import re
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.browser.chromium import chromium

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
BROKEN = 'def add(a, b):\n    """Add two numbers.\n\n    >>> add(2, 3)\n    5\n    """\n    return a - b\n'
COMMANDS = ('mendgraph "The add function in calc.py is wrong: it subtracts. Fix it."', "mendgraph report")
COLUMNS = 80


def main() -> None:
    """Write both."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        project = folder / "my-project"
        project.mkdir()
        (project / "calc.py").write_text(BROKEN, encoding="utf-8")
        (PICTURES / "terminal.svg").write_text(svg(recorded(project, data=folder / "data")), encoding="utf-8")
        (report,) = folder.rglob("*.html")
        (PICTURES / "report.webp").write_bytes(screenshot(report))


def recorded(project: Path, data: Path) -> str:
    """What a terminal shows after the commands, with its colours as ANSI codes."""
    socket = f"pictures-{os.getpid()}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    variables |= {"MENDGRAPH_DATA_DIR": str(data), "MENDGRAPH_MODEL": "local", "PS1": "$ "}
    variables["PROMPT_COMMAND"] = f"tmux -L {socket} wait-for -S prompt"

    def tmux(*words: str) -> str:
        command = ["tmux", "-L", socket, "-f", os.devnull, *words]
        return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout

    def wait() -> None:
        tmux("wait-for", "prompt")
        while not tmux("capture-pane", "-p").rstrip().endswith("$"):  # it is written after the signal
            time.sleep(0.05)

    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", "100", "-c", str(project), "bash", "--norc")
    try:
        wait()
        for command in COMMANDS:
            tmux("send-keys", "-l", command)
            tmux("send-keys", "Enter")
            wait()
        return tmux("capture-pane", "-p", "-e").rstrip().removesuffix("$").rstrip()
    finally:
        tmux("kill-server")


def svg(seen: str) -> str:
    """The same as a picture, which asks no other host for a font."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"{seen}\n"))
    return re.sub(r"@font-face \{.*?\}\n?", "", console.export_svg(title="my-project"), flags=re.DOTALL)


def screenshot(report: Path) -> bytes:
    """The upper part of the report, in a window of 1,280 pixels."""
    with chromium(width=1280, height=1000) as page:
        page.open(report)
        shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 80})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    main()
