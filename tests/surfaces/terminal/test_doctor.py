"""What `mendgraph doctor` finds: each check alone, and all of them."""

import os
import shutil
import threading
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.langchain import endpoint_models
from mendgraph.graph.runs.run import run_task
from mendgraph.graph.terminal import doctor as checks
from mendgraph.graph.terminal.doctor import Finding, Machine, Status, examine, run_checks
from mendgraph.nodes.call_model.weights import embedded_weights, weights_path
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.extent import slow
from tests.sandboxes import set_sandbox_problem
from tests.surfaces.telemetry.conftest import context

HERE = Machine(".", {})


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that all is kept in, which is not there yet."""
    folder = tmp_path / "data"
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


# --- Programs and folders


@pytest.mark.parametrize(("problem", "status"), [(None, Status.OK), ("it does not start", Status.WARNING)])
def test_sandbox_is_checked(problem: str | None, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, problem)
    finding = checks.sandbox(Machine("", {}))
    assert (finding.status, bool(finding.remedy)) == (status, status is Status.WARNING)


def test_data_folder_must_be_writable_and_have_free_space(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {
        0: Status.PROBLEM,
        10**8 - 1: Status.PROBLEM,
        10**8: Status.WARNING,
        10**9 - 1: Status.WARNING,
        10**9: Status.OK,
    }
    free = iter(room)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    findings = [checks.data(HERE) for _ in room]
    assert [finding.status for finding in findings] == [*room.values()]
    assert [bool(finding.remedy) for finding in findings] == [True, True, True, True, False]
    assert ("the first run creates it" in findings[0].found, data.exists()) == (True, False)
    data.write_text("", encoding="utf-8")
    assert (checks.data(HERE).status, checks.data(HERE).found) == (Status.PROBLEM, f"{data} is not writable")


def test_run_database_is_checked(root: Path) -> None:
    assert checks.run_database(Machine(str(root), {})).found == "no run of this folder yet"
    assert checks.run_database(Machine("/", {})).status is Status.OFF
    with ScriptedServer([Say("Done.")]) as server:
        run_task("Look.", context(root, server.base_url))
    finding = checks.run_database(Machine(str(root), {}))
    assert (finding.status, "intact, 1 run, " in finding.found) == (Status.OK, True)
    path = Path(workspace_folder_path(str(root)), "store.sqlite")
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + b"\xff" * half)
    damaged = checks.run_database(Machine(str(root), {}))
    assert (damaged.status, str(path) in damaged.remedy) == (Status.PROBLEM, True)


@slow
@pytest.mark.usefixtures("empty_store")
def test_shared_store_is_checked(root: Path) -> None:
    finding = checks.run_database(Machine(str(root), {}))
    assert (finding.status, ": PostgreSQL " in finding.found) == (Status.OK, True)


def test_unusable_shared_store_is_a_problem(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://somebody:plum-51-orchard@127.0.0.1:1/nowhere")
    gone = checks.run_database(Machine(str(root), {}))
    assert gone.status is Status.PROBLEM
    assert gone.found.startswith("The shared store 'nowhere' on 127.0.0.1:1 cannot be used")
    assert ("MENDGRAPH_STORE_URL" in gone.remedy, "plum" in repr(gone)) == (True, False)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://nowhere")
    assert checks.run_database(Machine(str(root), {})).status is Status.PROBLEM


def test_test_runner_of_the_project_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(str(tmp_path), {})
    remedy = "name a command with --check 'COMMAND' or `checks` in .mendgraph.toml"
    text = f"no test runner was found (looked for {LOOKED_FOR})"
    assert checks.tests(machine) == Finding(Status.OFF, text, remedy)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    (tmp_path / ".venv/lib/python3.12/site-packages/pytest").mkdir(parents=True)
    assert checks.tests(machine) == Finding(Status.OK, "pytest in .venv")
    (tmp_path / "Cargo.toml").touch()
    monkeypatch.setenv("PATH", "")
    finding = checks.tests(machine)
    assert (finding.status, finding.found) == (Status.WARNING, "pytest in .venv; cargo test (without cargo)")


# --- The model

KEY = {"OPENAI_API_KEY": "k"}
CHOICES: tuple[tuple[dict[str, Any], dict[str, str], Status, str], ...] = (
    ({}, {}, Status.OK, "the embedded model (no other model is set)"),
    ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, Status.OK, "with no key; chosen by OPENAI_BASE_URL"),
    ({"model": "m"}, KEY, Status.OK, "m at https://api.openai.com/v1 with a key from OPENAI_API_KEY"),
    ({"model": "m"}, {**KEY, "OPENAI_BASE_URL": "http://x.example/v1"}, Status.WARNING, "a key from"),
    ({"model": "m"}, {}, Status.PROBLEM, "no model can be chosen"),
    ({"model": "anthropic:claude-sonnet-4-5"}, {}, Status.WARNING, "ChatAnthropic with no key"),
    ({"model": "perplexity:sonar"}, {}, Status.PROBLEM, "perplexity:sonar cannot be used"),
    ({"model": "azure_openai:gpt-5"}, {}, Status.PROBLEM, "azure_openai:gpt-5 cannot be used"),
    (
        {"model": "azure_openai:gpt-5", "model_kwargs": {"api_version": "2025-04-01-preview"}},
        *({}, Status.OK, "AzureChatOpenAI"),
    ),
    ({"model": "ollama:qwen3:8b", "reasoning_effort": "low"}, {}, Status.PROBLEM, "ollama:qwen3:8b cannot be used"),
)


def test_selected_model_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    for settings, environment, status, words in CHOICES:
        finding = checks.choice(Machine("", settings, environment))
        assert (finding.status, words in finding.found) == (status, True), (settings, environment, finding)
        assert bool(finding.remedy) == (status is not Status.OK), (settings, environment, finding)


def test_endpoint_is_asked_for_its_models() -> None:
    with ScriptedServer() as server:
        url = {"base_url": server.base_url}
        listed = checks.answer(Machine("", url, {}))
        other = checks.answer(Machine("", {**url, "model": "other"}, {}))
    assert (listed.status, listed.found) == (Status.OK, "it answers, and serves scripted")
    assert (other.status, "does not list other" in other.found, other.remedy[-8:]) == (Status.WARNING, True, "scripted")
    for settings in ({"model": "local"}, {"model": "m"}):  # without an endpoint no request is sent
        assert checks.answer(Machine("", settings, {})).status is Status.OFF


def test_unreachable_endpoint_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = checks.answer(Machine("", {"base_url": "http://127.0.0.1:9/v1", "model": "m"}, KEY))
    assert (finding.status, "cannot be reached" in finding.found) == (Status.PROBLEM, True)
    assert "--model local" in finding.remedy
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://h.example")
    finding = checks.answer(Machine("", {"base_url": "https://h.example/v1", "model": "m"}, KEY))
    assert (finding.status, "HTTPS_PROXY" in finding.found) == (Status.PROBLEM, True)


def test_refusal_of_an_endpoint_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="no"),
        ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no list"),
        ["a", "b"],
    ]
    monkeypatch.setattr(endpoint_models, "served_models", lambda _: answers.pop(0))
    refused, listless, several = (
        checks.answer(Machine("", {"base_url": "http://127.0.0.1:9/v1"}, KEY)) for _ in range(3)
    )
    assert (refused.status, refused.remedy) == (Status.PROBLEM, "set OPENAI_API_KEY to a valid key")
    assert (listless.status, "lists no models" in listless.found) == (Status.WARNING, True)
    assert (several.status, several.remedy) == (Status.PROBLEM, "choose one with --model")


def test_weights_must_be_complete_if_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_MODEL_DIR", str(tmp_path))
    path = Path(weights_path())
    chosen, other = (checks.weights(Machine("", settings, KEY)) for settings in ({"model": "local"}, {"model": "m"}))
    assert (chosen.status, other.status) == (Status.PROBLEM, Status.OFF)
    assert ("model pull" in chosen.remedy, str(path) in chosen.found) == (True, True)
    path.write_bytes(b"we")
    cut = checks.weights(HERE)
    assert (cut.status, "2 of 1,117,320,768 bytes" in cut.found) == (Status.PROBLEM, True)
    os.truncate(path, embedded_weights().size_bytes)
    weights = checks.weights(HERE)
    assert weights.status is (Status.OK if find_spec("xllamacpp") else Status.PROBLEM)


# --- All checks

NAMES = [
    *("packages", "model", "endpoint", "embedded model", "sandbox", "tests", "ripgrep"),
    *("workspace", "data folder", "run database", "configuration"),
]


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_doctor_changes_nothing_and_shows_no_secret(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = "hunter2-hunter2-hunter2"
    monkeypatch.setenv("OPENAI_API_KEY", word)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:9/{word}/v1")
    monkeypatch.setenv("MENDGRAPH_CONFIG", "")
    findings = by_name(examine(str(root), {"model": "m"}, offline=True))
    assert list(findings) == NAMES
    assert findings["packages"].found.startswith("mendgraph ")
    assert findings["ripgrep"].found.startswith("ripgrep ")
    assert (findings["endpoint"].status, findings["endpoint"].found) == (Status.OFF, "not checked (--offline)")
    assert (findings["run database"].status, findings["workspace"].status) == (Status.OFF, Status.OK)
    assert ("a key from OPENAI_API_KEY" in findings["model"].found, word in repr(findings)) == (True, False)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert by_name(examine("/", {"model": "m"}, offline=True))["workspace"].status is Status.PROBLEM


def test_check_that_raises_or_hangs_does_not_affect_the_others() -> None:
    hang = threading.Event()

    def hanging(_: Machine) -> Finding:
        hang.wait(60)
        return Finding(Status.OK, "")

    def leaving(_: Machine) -> Finding:
        raise SystemExit(3)

    fine = Finding(Status.OK, "so")
    findings = run_checks({"late": hanging, "left": leaving, "fine": lambda _: fine}, HERE, 0.5)
    hang.set()
    assert [finding.status for finding in findings] == [Status.PROBLEM, Status.PROBLEM, Status.OK]
    assert findings[0].found == "the check did not end within 0.5 s"
    assert "SystemExit" in findings[1].found


def test_configuration_is_used_and_its_problems_are_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users_file = root.parent / "config.toml"
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(users_file))
    users_file.write_text('model = "from-file"\nbase_url = "http://127.0.0.1:9/v1"\n', encoding="utf-8")
    findings = by_name(examine(str(root), {}, offline=True))
    assert "from-file at http://127.0.0.1:9/v1" in findings["model"].found
    assert (findings["configuration"].status, findings["configuration"].found) == (Status.OK, str(users_file))
    users_file.write_text("modle = 1\n", encoding="utf-8")
    wrong = by_name(examine(str(root), {}, offline=True))["configuration"]
    assert (wrong.status, "modle" in wrong.found) == (Status.PROBLEM, True)
