"""The demo: a failing test, the agent at work on its cause, the test passing. Exit code 0 says that it worked.

Everything happens in a copy of `sample/` in a temporary folder, with the local model and no key. What passes in the
end is the sample's own test, whatever the agent may have done to the copy's.
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
    """Run the demo; 0 if the bug is repaired, 1 otherwise."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("more", nargs="*", help="more arguments for mendgraph, after --")
    more = options.parse_args().more
    with tempfile.TemporaryDirectory(prefix="mendgraph-demo-") as folder:
        project = Path(folder, "shop")
        shutil.copytree(SAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
        return 0 if repaired(project, more) else 1


def repaired(project: Path, more: list[str]) -> bool:
    """Show the whole story in `project`; whether it ends well."""
    if tests_pass(project, "1. The test fails."):
        print("The sample's test passes before anything was done: there is nothing to show.")
        return False
    if not model_is_there():
        return False
    heading(f"3. The agent is asked: {TASK}")
    started = time.monotonic()
    code = mendgraph("--root", str(project), *more, TASK)
    seconds = time.monotonic() - started
    shutil.copy(SAMPLE / "test_cart.py", project)
    passed = tests_pass(project, "4. The test again.")
    outcome = "FINISHED" if code == ExitCode.FINISHED else f"not finished, exit code {code}"
    heading(f"Outcome: {outcome}; the test {'passes' if passed else 'fails'}; {seconds:.1f} s")
    return code == ExitCode.FINISHED and passed


def tests_pass(project: Path, title: str) -> bool:
    """Run the project's test with the outer world's Python, as its owner would."""
    heading(title)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    return subprocess.run(command, cwd=project, env=environment, stderr=subprocess.STDOUT, check=False).returncode == 0


def model_is_there() -> bool:
    """Fetch the local model's weights if this machine has none; whether they are there in the end."""
    heading("2. The model")
    return mendgraph("model", "status") == 0 or mendgraph("model", "pull") == 0


def mendgraph(*arguments: str) -> int:
    """Run our command on this terminal with the embedded model, whatever keys are set; its exit code."""
    environment = {**os.environ, "MENDGRAPH_MODEL": "local"}
    return subprocess.run([MENDGRAPH, *arguments], env=environment, check=False).returncode


def heading(text: str) -> None:
    """A line that stands out from what the commands print."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
