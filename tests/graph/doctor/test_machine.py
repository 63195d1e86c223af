import io
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from mendgraph.graph.doctor import machine
from mendgraph.graph.doctor.examination import Status
from mendgraph.nodes.execute_tools.files import openat2


def script(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_this_machine_can_run_mendgraph() -> None:
    checks = (machine.packages, machine.ripgrep)
    assert [check().status for check in checks] == [Status.OK] * len(checks)
    assert machine.packages().found.startswith("mendgraph ")
    assert machine.ripgrep().found.startswith("ripgrep ")


def test_packages_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["pydantic>=99", "no-such-package>=1", "vcrpy>=99; extra == 'cassettes'"]
    monkeypatch.setattr(machine, "distribution", lambda _: SimpleNamespace(requires=needs, version="1"))
    found = machine.packages()
    assert found.status is Status.PROBLEM
    assert "pydantic" in found.found
    assert found.found.endswith("is not >=99; no-such-package is not installed")


def test_a_mendgraph_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(machine, "distribution", missing)
    assert machine.packages().status is Status.PROBLEM


@pytest.mark.parametrize(("problem", "status"), [(None, Status.OK), ("it does not start", Status.WARNING)])
def test_the_sandbox_is_tried(problem: str | None, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "sandbox_problem", lambda: problem)
    found = machine.sandbox()
    assert (found.status, bool(found.remedy)) == (status, status is Status.WARNING)


@pytest.mark.parametrize(("there", "status"), [(True, Status.OK), (False, Status.WARNING)])
def test_the_kernels_walk_is_told(there: bool, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat2, "available", lambda: there)
    assert machine.handles().status is status


def test_a_search_program_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = script(tmp_path, "rg", "exit 3")
    monkeypatch.setattr(machine, "ripgrep_path", lambda: str(broken))
    assert machine.ripgrep().found == f"{broken} does not run"
    monkeypatch.setattr(machine, "ripgrep_path", lambda: None)
    assert (machine.ripgrep().status, machine.ripgrep().found) == (Status.WARNING, "not found")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (
            'case "$1" in --version) echo git version 2.1;; *) exit 0;; esac',
            Status.OK,
            "git version 2.1; this folder is a ",
        ),
        (
            'case "$1" in --version) echo git version 2.1;; *) exit 9;; esac',
            Status.OK,
            "git version 2.1; this folder is no",
        ),
        ("exit 1", Status.WARNING, "does not run"),
    ],
)
def test_git_is_asked(body: str, status: Status, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{script(tmp_path, 'git', body).parent}:/usr/bin:/bin")
    found = machine.git(str(tmp_path))
    assert found.status is status
    assert said in found.found


def test_without_git_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.git(str(tmp_path)).status is Status.OFF


def test_a_terminal_that_cannot_show_everything_is_told() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    good = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert [machine.terminal(each, {}).status for each in (plain, good)] == [Status.WARNING, Status.OK]
    assert machine.terminal(good, {}).found == "no terminal (a pipe or a file), utf-8, no colours"


def test_extras_are_named_with_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "EXTRAS", {"one": ("json", "this"), "two": ("no_such.module", "that")})
    found = machine.extras()
    assert (found.status, found.found) == (Status.OFF, "installed: one; not installed: two (that)")
