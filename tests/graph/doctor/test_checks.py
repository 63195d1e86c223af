import hashlib
import io
import os
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.doctor import checks
from mendgraph.graph.doctor.findings import Status
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.call_model.weights import WeightsSpec
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.telemetry.conftest import context


def script(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_this_machine_can_run_mendgraph() -> None:
    assert checks.packages().found.startswith("mendgraph ")
    assert checks.ripgrep().found.startswith("ripgrep ")


def test_packages_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["pydantic>=99", "no-such-package>=1", "vcrpy>=99; extra == 'cassettes'"]
    monkeypatch.setattr(checks, "distribution", lambda _: SimpleNamespace(requires=needs, version="1"))
    found = checks.packages()
    assert found.status is Status.PROBLEM
    assert "pydantic" in found.found
    assert found.found.endswith("is not >=99; no-such-package is not installed")


def test_a_mendgraph_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(checks, "distribution", missing)
    assert checks.packages().status is Status.PROBLEM


@pytest.mark.parametrize(("problem", "status"), [(None, Status.OK), ("it does not start", Status.WARNING)])
def test_the_sandbox_is_tried(problem: str | None, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "sandbox_problem", lambda: problem)
    found = checks.sandbox()
    assert (found.status, bool(found.remedy)) == (status, status is Status.WARNING)


def test_a_search_program_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ripgrep_path", lambda: str(script(tmp_path, "rg", "exit 3")))
    assert checks.ripgrep().status is Status.WARNING


def test_without_git_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{script(tmp_path, 'git', 'echo git version 2.1').parent}")
    assert checks.git().found == "git version 2.1"
    script(tmp_path, "git", "exit 1")
    assert checks.git().status is Status.OFF


def test_a_terminal_that_cannot_show_everything_is_told() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    good = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert [checks.terminal(each, {}).status for each in (plain, good)] == [Status.WARNING, Status.OK]
    assert checks.terminal(good, {}).found == "no terminal (a pipe or a file), utf-8, no colours"


def test_extras_are_named_with_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "EXTRAS", {"one": ("json", "this"), "two": ("no_such.module", "that")})
    found = checks.extras()
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
    found = checks.data()
    assert (found.status, bool(found.remedy)) == (status, status is not Status.OK)
    assert "made by the first run" in found.found
    assert not data.exists()


def test_a_file_in_the_place_of_the_data_folder_is_a_problem(data: Path) -> None:
    data.write_text("", encoding="utf-8")
    assert (checks.data().status, checks.data().found) == (Status.PROBLEM, f"{data} cannot be written")


def test_a_workspace_is_writable_or_only_looked_at(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.workspace(root, read_only=False).status is Status.OK
    assert checks.workspace("/", read_only=False).status is Status.PROBLEM
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert checks.workspace(root, read_only=False).status is Status.WARNING
    assert checks.workspace(root, read_only=True).status is Status.OK


def test_the_database_is_looked_through(root: str) -> None:
    assert checks.database(root).found == "no run of this folder yet"
    assert checks.database("/").status is Status.OFF
    with ScriptedServer([Say("Done.")]) as server:
        run_task("Look.", context(Path(root), server.base_url))
    found = checks.database(root)
    assert (found.status, "whole, 1 run, " in found.found) == (Status.OK, True)
    path = os.path.join(workspace_folder_path(root), "store.sqlite")
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 2))
    damaged = checks.database(root)
    assert (damaged.status, path in damaged.remedy) == (Status.PROBLEM, True)


@pytest.mark.parametrize(
    ("statement", "said"),
    [("PRAGMA user_version = 99", "is not one of this version")],
)
def test_a_database_of_another_format_is_told(root: str, statement: str, said: str) -> None:
    from mendgraph.nodes.execute_tools.store.database import open_database

    database = open_database(str(workspace_folder(root)))
    database.execute(statement)
    database.close()
    found = checks.database(root)
    assert (found.status, said in found.found) == (Status.PROBLEM, True)


def test_a_empty_store_is_looked_at(empty_store: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks.database(root)
    assert (found.status, ", 0 runs of this folder, " in found.found) == (Status.OK, True)
    with ScriptedServer([Say("Done.")]) as server:
        run_task("Look.", context(Path(root), server.base_url))
    found = checks.database(root)
    assert (found.status, ", 1 run of this folder, " in found.found) == (Status.OK, True)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://somebody:plum-51-orchard@127.0.0.1:1/nowhere")
    gone = checks.database(root)
    assert (gone.status, gone.found.startswith("The shared store 'nowhere' on 127.0.0.1:1 cannot be used")) == (
        Status.PROBLEM,
        True,
    )
    assert ("MENDGRAPH_STORE_URL" in gone.remedy, "plum" in repr(gone), empty_store != "") == (True, False, True)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://nowhere")
    assert checks.database(root).status is Status.PROBLEM


def test_who_is_at_work_on_another_machine_is_named_with_it(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace_folder(root)
    monkeypatch.setattr(checks, "lock_holder", lambda _: Owner("somebody", 7, "now", "far-away"))
    found = checks.at_work(root)
    assert (found.status, found.found) == (Status.WARNING, "run somebody, process 7 on far-away, since now")
    assert found.remedy == "wait for its end, or stop it there"


def test_who_is_at_work_is_named(root: str) -> None:
    assert checks.at_work(root).status is Status.OK
    lock = RunLock(str(workspace_folder(root)))
    assert lock.acquire(Owner("somebody")) is None
    with lock:
        found = checks.at_work(root)
    assert (found.status, found.found.startswith(f"run somebody, process {os.getpid()}")) == (Status.WARNING, True)
    assert f"kill {os.getpid()}" in found.remedy


# --- The model

KEY = {"OPENAI_API_KEY": "k"}
CONTENT = b"weights"


@pytest.mark.parametrize(
    ("settings", "environment", "status", "said"),
    [
        ({}, {}, Status.OK, "the embedded local model: nothing else is set"),
        ({"model": "local"}, KEY, Status.OK, "the embedded local model: options or configuration name it"),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, Status.OK, "with no key: OPENAI_BASE_URL set"),
        ({"model": "m"}, KEY, Status.OK, "m at https://api.openai.com/v1 with a key from OPENAI_API_KEY"),
        ({"base_url": "https://x.example/v1"}, {}, Status.WARNING, "with no key"),
        ({"model": "m"}, {**KEY, "OPENAI_BASE_URL": "http://x.example/v1"}, Status.WARNING, "a key from"),
        ({"model": "m"}, {}, Status.PROBLEM, "no model can be chosen"),
        ({}, KEY, Status.PROBLEM, "no model can be chosen"),
        ({"model": "anthropic:claude-sonnet-4-5"}, {}, Status.WARNING, "ChatAnthropic with no key"),
        ({"model": "perplexity:sonar"}, {}, Status.PROBLEM, "perplexity:sonar cannot be used"),
    ],
)
def test_what_a_run_would_use_and_why(
    settings: dict[str, Any], environment: dict[str, str], status: Status, said: str
) -> None:
    found = checks.choice(settings, environment)
    assert (found.status, said in found.found) == (status, True)
    assert bool(found.remedy) == (status is not Status.OK)


def test_a_provider_is_judged_with_the_settings_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    azure = {"model": "azure_openai:gpt-5"}
    asked = checks.choice({**azure, "model_kwargs": {"api_version": "2025-04-01-preview"}}, {})
    assert (asked.status, "AzureChatOpenAI" in asked.found) == (Status.OK, True)
    assert checks.choice(azure, {}).status is Status.PROBLEM
    thinks = checks.choice({"model": "ollama:qwen3:8b", "reasoning_effort": "low"}, {})
    assert (thinks.status, thinks.remedy.split(":")[0]) == (Status.PROBLEM, "ChatOllama has no reasoning_effort")


def test_an_endpoint_is_asked_with_the_settings_of_the_run() -> None:
    with ScriptedServer() as server:
        found = checks.answer({"base_url": server.base_url, "model_kwargs": {"top_logprobs": "many"}}, {})
    assert (found.status, "top_logprobs" in found.found) == (Status.PROBLEM, True)
    assert found.remedy == "correct the setting that this names"


def test_an_endpoint_is_asked_what_it_serves() -> None:
    with ScriptedServer() as server:
        url = {"base_url": server.base_url}
        listed = checks.answer(url, {})
        other = checks.answer({**url, "model": "other"}, {})
    assert (listed.status, listed.found) == (Status.OK, "it answers, and serves scripted")
    assert (other.status, "does not list other" in other.found, other.remedy[-8:]) == (Status.WARNING, True, "scripted")


def test_an_endpoint_that_is_not_there_is_a_problem() -> None:
    found = checks.answer({"base_url": "http://127.0.0.1:9/v1", "model": "m"}, KEY)
    assert (found.status, "cannot be reached" in found.found) == (Status.PROBLEM, True)
    assert "--model local" in found.remedy


@pytest.mark.parametrize(("settings", "environment"), [({"model": "local"}, {}), ({"model": "m"}, {})])
def test_nobody_is_asked_where_there_is_no_endpoint(settings: dict[str, Any], environment: dict[str, str]) -> None:
    assert checks.answer(settings, environment).status is Status.OFF


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    spec = WeightsSpec("w.gguf", "w", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "", ())
    place = tmp_path / "w.gguf"
    monkeypatch.setattr(checks, "embedded_weights", lambda: spec)
    monkeypatch.setattr(checks, "weights_path", lambda: str(place))
    monkeypatch.setattr(checks, "_has_module", lambda _: True)
    return place


def test_weights_that_are_not_there_are_a_problem_only_where_they_are_wanted(path: Path) -> None:
    wanted, other = (checks.weights(each, KEY, deep=False) for each in ({"model": "local"}, {"model": "m"}))
    assert [wanted.status, other.status] == [Status.PROBLEM, Status.OFF]
    assert "model pull" in wanted.remedy
    assert str(path) in wanted.found


@pytest.mark.parametrize(
    ("content", "deep", "status", "said"),
    [
        (CONTENT, False, Status.OK, "size is right"),
        (CONTENT, True, Status.OK, "SHA-256 is right"),
        (b"WEIGHTS", False, Status.OK, "size is right"),
        (b"WEIGHTS", True, Status.PROBLEM, "damaged"),
        (b"we", False, Status.PROBLEM, "2 of 7 bytes"),
    ],
)
def test_weights_are_looked_at_as_closely_as_is_asked(
    path: Path, content: bytes, deep: bool, status: Status, said: str
) -> None:
    path.write_bytes(content)
    found = checks.weights({}, {}, deep=deep)
    assert (found.status, said in found.found) == (status, True)
    assert sorted(each.name for each in path.parent.iterdir()) == ["w.gguf"]


def test_weights_without_a_server_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(CONTENT)
    monkeypatch.setattr(checks, "_has_module", lambda _: False)
    assert "xllamacpp" in checks.weights({}, {}, deep=False).found


def test_what_an_endpoint_refuses_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = [
        ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="no"),
        ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no list"),
        ["a", "b"],
    ]
    monkeypatch.setattr(checks, "_served", lambda *_: said.pop(0))
    refused, listless, several = (checks.answer({"base_url": "http://127.0.0.1:9/v1"}, KEY) for _ in range(3))
    assert (refused.status, refused.remedy) == (Status.PROBLEM, "set OPENAI_API_KEY to a key that it takes")
    assert (listless.status, "lists no models" in listless.found) == (Status.WARNING, True)
    assert (several.status, several.remedy) == (Status.PROBLEM, "choose one with --model")


def test_an_environment_that_no_client_can_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://h.example")
    found = checks.answer({"base_url": "https://h.example/v1", "model": "m"}, KEY)
    assert (found.status, "HTTPS_PROXY" in found.found) == (Status.PROBLEM, True)
