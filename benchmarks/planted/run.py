"""Plant each fault of faults.toml in a copy of the checkout, and require that its test file fails.

Each test file first runs without a fault, and has to pass. The exit code is 1 if a fault is not noticed.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from benchmarks.planted.faults import Fault, read_faults, select_faults

ROOT: Final = Path(__file__).parents[2]
TIME_LIMIT_S: Final = 600
FAILED_TEST: Final = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
HANGING_TEST: Final = re.compile(r"^\++ Timeout \++$", re.MULTILINE)
"""What pytest-timeout prints before it ends the process. That is a failure as well."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run of one test file. `failing_test` is the first test that failed, "" for none."""

    is_success: bool
    failing_test: str
    last_line: str


@dataclass(frozen=True)
class Verdict:
    """Whether the tests notice a fault: `detail` is the first test that fails, or what happens instead."""

    fault: Fault
    noticed: bool
    detail: str


class Checkout:
    """A copy of the tracked files in `folder`, with an environment that imports the product from the copy alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._controls: dict[str, RunResult] = {}
        self._copy_files()
        self._make_environment()

    def judge(self, fault: Fault) -> Verdict:
        """Run the fault's test file without the fault, then with it."""
        if fault.test not in self._controls:
            self._controls[fault.test] = self._run_tests(fault.test)
        control = self._controls[fault.test]
        if not control.is_success:
            detail = f"without the fault: {control.failing_test or control.last_line}"
            return Verdict(fault, noticed=False, detail=detail)

        file = self.folder / fault.file
        original = file.read_text(encoding="utf-8")
        faulty = fault.plant(original)
        compile(faulty, fault.file, "exec")
        self._write(file, faulty)
        try:
            run = self._run_tests(fault.test, "-x")
        finally:
            self._write(file, original)

        return Verdict(fault, noticed=bool(run.failing_test), detail=run.failing_test or run.last_line)

    def _copy_files(self) -> None:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listing.stdout.split("\0"):
            source = ROOT / name
            if not name or not os.path.lexists(source):
                continue
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)

    def _make_environment(self) -> None:
        """Make `.venv` in the copy. It shares the installed packages, except the link to this checkout."""
        environment = self.folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = Path(sys.prefix, "lib", version, "site-packages")
        paths = f"{self.folder}\n{packages}\n"
        Path(environment, "lib", version, "site-packages", "copy.pth").write_text(paths, encoding="utf-8")

        scripts = environment / "bin"
        for script in Path(sys.prefix, "bin").iterdir():
            target = scripts / script.name
            if script.name == "mendgraph":
                text = script.read_text(encoding="utf-8").replace(sys.prefix, str(environment))
                target.write_text(text, encoding="utf-8")
                target.chmod(0o755)
            elif not target.exists():
                target.symlink_to(script)

        code = "import mendgraph.nodes.records as records; print(records.__file__)"
        imported = subprocess.run(
            [scripts / "python", "-P", "-c", code], cwd="/", check=True, capture_output=True, text=True
        ).stdout
        if not imported.startswith(f"{self.folder}/"):
            raise RuntimeError(f"the tests would import {imported.strip()}")

    def _run_tests(self, file: str, *options: str) -> RunResult:
        command = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *options, file]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return RunResult(is_success=False, failing_test="", last_line=f"no end within {TIME_LIMIT_S} s")

        failing_test = ""
        if match := FAILED_TEST.search(output):
            failing_test = match[1]
        elif HANGING_TEST.search(output):
            failing_test = "a test does not end"
        lines = output.strip().splitlines() or [f"exit code {process.returncode}"]
        return RunResult(process.returncode == 0, failing_test, lines[-1])

    @staticmethod
    def _write(file: Path, text: str) -> None:
        """Write a source file and remove its byte code, which may have the same time and size."""
        file.write_text(text, encoding="utf-8")
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def print_table(verdicts: Sequence[Verdict]) -> None:
    """Print one row for each fault, and how many are noticed."""
    rows = [("fault", "test file", "noticed", "first failing test")]
    for verdict in verdicts:
        test = verdict.detail.removeprefix(f"{verdict.fault.test}::")
        rows.append((verdict.fault.name, verdict.fault.test, "yes" if verdict.noticed else "NO", test))

    for row in rows:
        print("| " + " | ".join(row) + " |")
    count = sum(verdict.noticed for verdict in verdicts)
    print(f"\n{count} of {len(verdicts)} faults are noticed")


def main(arguments: Sequence[str]) -> int:
    """Judge the selected faults, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a fault's name, file or test (all faults)")
    words = parser.parse_args(arguments).words
    faults = select_faults(read_faults(), words)
    if not faults:
        print(f"no fault contains {' or '.join(words)}", file=sys.stderr)
        return 2

    verdicts = []
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        checkout = Checkout(Path(folder).resolve())
        for fault in faults:
            verdict = checkout.judge(fault)
            verdicts.append(verdict)
            print(f"{len(verdicts)} of {len(faults)}: {verdict.noticed} {fault.name}", file=sys.stderr, flush=True)

    print_table(verdicts)
    return 0 if all(verdict.noticed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
