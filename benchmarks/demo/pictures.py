"""Record the pictures of README.md: a terminal with the repair of a bug, and the report of that run.

Requires tmux, Chromium (`make browser`) and the weights of the embedded model (`make demo`).
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
    """Write both pictures."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        project = folder / "my-project"
        project.mkdir()
        (project / "calc.py").write_text(BROKEN, encoding="utf-8")

        screen = run_commands(project, data=folder / "data")
        (PICTURES / "terminal.svg").write_text(svg(screen), encoding="utf-8")

        (report,) = folder.rglob("*.html")
        (PICTURES / "report.webp").write_bytes(screenshot(report))


def run_commands(project: Path, data: Path) -> str:
    """Run the commands in a terminal, and return its content with ANSI colour codes."""
    socket = f"pictures-{os.getpid()}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    variables |= {"MENDGRAPH_DATA_DIR": str(data), "MENDGRAPH_MODEL": "local", "PS1": "$ "}
    variables["PROMPT_COMMAND"] = f"tmux -L {socket} wait-for -S prompt"

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-L", socket, "-f", os.devnull, *arguments]
        return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout

    def wait() -> None:
        tmux("wait-for", "prompt")
        while not tmux("capture-pane", "-p").rstrip().endswith("$"):  # bash writes the prompt after the signal
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


def svg(screen: str) -> str:
    """Return the content of the terminal as a picture without external fonts."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"{screen}\n"))
    picture = console.export_svg(title="my-project")
    return re.sub(r"@font-face \{.*?\}\n?", "", picture, flags=re.DOTALL)


def screenshot(report: Path) -> bytes:
    """Return a screenshot of the upper part of the report, 1,280 pixels wide."""
    with chromium(width=1280, height=1000) as page:
        page.open(report)
        shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 80})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    main()
