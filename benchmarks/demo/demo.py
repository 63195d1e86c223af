"""The demo: a test fails, the agent repairs the bug, and the test passes. The exit code is 0 on success.

The demo runs in a temporary copy of `sample/`, with the local model and without a key. The final test is the sample's
original test, independent of the agent's changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mendgraph.graph.terminal.process_end import ExitCode

SAMPLE = Path(__file__).parent / "sample"
TASK = (
    "The test in test_cart.py fails: Cart.total in cart.py adds up the prices of the items but ignores their quantity. "
    "Fix cart.py."
)
MENDGRAPH = Path(sys.executable).parent / "mendgraph"


def main() -> int:
    """Run the demo, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("more", nargs="*", help="further arguments for mendgraph, after --")
    arguments = parser.parse_args().more

    with tempfile.TemporaryDirectory(prefix="mendgraph-demo-") as folder:
        project = Path(folder, "shop")
        shutil.copytree(SAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
        return 0 if run_demo(project, arguments) else 1


def run_demo(project: Path, arguments: list[str]) -> bool:
    """Run the demo in `project`, and return whether the bug is repaired."""
    if tests_pass(project, "1. The test fails."):
        print("The sample's test passes without a repair, so the demo cannot show anything.")
        return False
    if not prepare_model():
        return False

    print_heading(f"3. The request: {TASK}")
    start = time.monotonic()
    code = mendgraph("--root", str(project), *arguments, TASK)
    seconds = time.monotonic() - start

    shutil.copy(SAMPLE / "test_cart.py", project)
    is_repaired = tests_pass(project, "4. The test again.")
    outcome = "FINISHED" if code == ExitCode.FINISHED else f"not finished, exit code {code}"
    verb = "passes" if is_repaired else "fails"
    print_heading(f"Outcome: {outcome}; the test {verb}; {seconds:.1f} s")
    return code == ExitCode.FINISHED and is_repaired


def tests_pass(project: Path, title: str) -> bool:
    """Run the project's test without Python's environment variables."""
    print_heading(title)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    process = subprocess.run(command, cwd=project, env=environment, stderr=subprocess.STDOUT, check=False)
    return process.returncode == 0


def prepare_model() -> bool:
    """Download the weights of the local model if needed, and return whether they exist."""
    print_heading("2. The model")
    return mendgraph("model", "status") == 0 or mendgraph("model", "pull") == 0


def mendgraph(*arguments: str) -> int:
    """Run mendgraph in this terminal with the embedded model, and return its exit code."""
    environment = {**os.environ, "MENDGRAPH_MODEL": "local"}
    return subprocess.run([MENDGRAPH, *arguments], env=environment, check=False).returncode


def print_heading(text: str) -> None:
    """Print a heading, bold in a terminal."""
    if sys.stdout.isatty():
        text = f"\033[1m{text}\033[0m"
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
