import io
import os
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from mendgraph.graph.doctor import machine, store
from mendgraph.graph.doctor.examination import Status
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.telemetry.conftest import context


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


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = tmp_path / "root"
    folder.mkdir()
    return str(folder)


@pytest.mark.parametrize(
    ("free", "status"), [(10**7, Status.PROBLEM), (5 * 10**8, Status.WARNING), (10**12, Status.OK)]
)
def test_the_data_folder_has_room_or_not(
    free: int, status: Status, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    found = store.data()
    assert (found.status, bool(found.remedy)) == (status, status is not Status.OK)
    assert "made by the first run" in found.found
    assert not data.exists()


def test_a_file_in_the_place_of_the_data_folder_is_a_problem(data: Path) -> None:
    data.write_text("", encoding="utf-8")
    assert (store.data().status, store.data().found) == (Status.PROBLEM, f"{data} cannot be written")


def test_a_workspace_is_writable_or_only_looked_at(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.workspace(root, read_only=False).status is Status.OK
    assert store.workspace("/", read_only=False).status is Status.PROBLEM
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert store.workspace(root, read_only=False).status is Status.WARNING
    assert store.workspace(root, read_only=True).status is Status.OK


def test_the_database_is_looked_through(root: str) -> None:
    assert store.database(root).found == "no run of this folder yet"
    assert store.database("/").status is Status.OFF
    with ScriptedServer([Say("Done.")]) as server:
        run_task("Look.", context(Path(root), server.base_url))
    found = store.database(root)
    assert (found.status, "whole, 1 run, " in found.found) == (Status.OK, True)
    path = os.path.join(workspace_folder_path(root), "store.sqlite")
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 2))
    damaged = store.database(root)
    assert (damaged.status, path in damaged.remedy) == (Status.PROBLEM, True)


@pytest.mark.parametrize(
    ("statement", "said"),
    [("PRAGMA user_version = 99", "of format 99"), ("PRAGMA application_id = 7", "is not ours")],
)
def test_a_database_of_another_format_is_told(root: str, statement: str, said: str) -> None:
    from mendgraph.nodes.execute_tools.store.database import open_database

    database = open_database(str(workspace_folder(root)))
    database.execute(statement)
    database.close()
    found = store.database(root)
    assert (found.status, said in found.found) == (Status.PROBLEM, True)


def test_a_empty_store_is_looked_at(empty_store: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = store.database(root)
    assert (found.status, ", no run yet, " in found.found) == (Status.OK, True)
    with ScriptedServer([Say("Done.")]) as server:
        run_task("Look.", context(Path(root), server.base_url))
    found = store.database(root)
    assert (found.status, ", 1 run of this folder, " in found.found) == (Status.OK, True)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://somebody:plum-51-orchard@127.0.0.1:1/nowhere")
    gone = store.database(root)
    assert (gone.status, gone.found.startswith("The shared store 'nowhere' on 127.0.0.1:1 cannot be used")) == (
        Status.PROBLEM,
        True,
    )
    assert ("MENDGRAPH_STORE_URL" in gone.remedy, "plum" in repr(gone), empty_store != "") == (True, False, True)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://nowhere")
    assert store.database(root).status is Status.PROBLEM


def test_who_is_at_work_on_another_machine_is_named_with_it(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace_folder(root)
    monkeypatch.setattr(store, "lock_holder", lambda _: Owner("somebody", 7, "now", "far-away"))
    found = store.at_work(root)
    assert (found.status, found.found) == (Status.WARNING, "run somebody, process 7 on far-away, since now")
    assert found.remedy == "wait for its end, or stop it there"


def test_who_is_at_work_is_named(root: str) -> None:
    assert store.at_work(root).status is Status.OK
    lock = RunLock(str(workspace_folder(root)))
    assert lock.acquire(Owner("somebody")) is None
    with lock:
        found = store.at_work(root)
    assert (found.status, found.found.startswith(f"run somebody, process {os.getpid()}")) == (Status.WARNING, True)
    assert f"kill {os.getpid()}" in found.remedy
