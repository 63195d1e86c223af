"""What `mendgraph doctor` finds, one check after the other, and all at once."""

import hashlib
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.runs.run import run_task
from mendgraph.graph.terminal import doctor as checks
from mendgraph.graph.terminal.doctor import Finding, Status, examine, made
from mendgraph.nodes.call_model.weights import WeightsSpec
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder_path
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.telemetry.conftest import context
from tests.sandboxes import set_sandbox_problem


def test_this_machine_can_run_mendgraph() -> None:
    assert checks.packages().found.startswith("mendgraph ")
    assert checks.ripgrep().found.startswith("ripgrep ")


@pytest.mark.parametrize(("problem", "status"), [(None, Status.OK), ("it does not start", Status.WARNING)])
def test_sandbox_is_tried(problem: str | None, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, problem)
    found = checks.sandbox("auto")
    assert (found.status, bool(found.remedy)) == (status, status is Status.WARNING)


def test_search_program_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ripgrep_path", lambda: "false")
    assert checks.ripgrep().status is Status.WARNING


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
    ("free", "status"),
    [
        (0, Status.PROBLEM),
        (10**8 - 1, Status.PROBLEM),
        (10**8, Status.WARNING),
        (10**9 - 1, Status.WARNING),
        (10**9, Status.OK),
    ],
)
def test_data_folder_has_room_or_not(free: int, status: Status, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    found = checks.data()
    assert (found.status, bool(found.remedy)) == (status, status is not Status.OK)
    assert "made by the first run" in found.found
    assert not data.exists()


def test_file_in_the_place_of_the_data_folder_is_a_problem(data: Path) -> None:
    data.write_text("", encoding="utf-8")
    assert (checks.data().status, checks.data().found) == (Status.PROBLEM, f"{data} cannot be written")


def test_workspace_is_writable_or_only_looked_at(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.workspace(root, read_only=False).status is Status.OK
    assert checks.workspace("/", read_only=False).status is Status.PROBLEM
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert checks.workspace(root, read_only=False).status is Status.WARNING
    assert checks.workspace(root, read_only=True).status is Status.OK


def test_database_is_looked_through(root: str) -> None:
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


@pytest.mark.usefixtures("empty_store")
def test_shared_store_is_looked_at(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks.database(root)
    assert (found.status, ": PostgreSQL " in found.found) == (Status.OK, True)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://somebody:plum-51-orchard@127.0.0.1:1/nowhere")
    gone = checks.database(root)
    assert gone.status is Status.PROBLEM
    assert gone.found.startswith("The shared store 'nowhere' on 127.0.0.1:1 cannot be used")
    assert ("MENDGRAPH_STORE_URL" in gone.remedy, "plum" in repr(gone)) == (True, False)
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://nowhere")
    assert checks.database(root).status is Status.PROBLEM


# --- The model

KEY = {"OPENAI_API_KEY": "k"}
CONTENT = b"weights"


@pytest.mark.parametrize(
    ("settings", "environment", "status", "said"),
    [
        ({}, {}, Status.OK, "the embedded local model: nothing else is set"),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, Status.OK, "with no key: OPENAI_BASE_URL set"),
        ({"model": "m"}, KEY, Status.OK, "m at https://api.openai.com/v1 with a key from OPENAI_API_KEY"),
        ({"model": "m"}, {**KEY, "OPENAI_BASE_URL": "http://x.example/v1"}, Status.WARNING, "a key from"),
        ({"model": "m"}, {}, Status.PROBLEM, "no model can be chosen"),
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


def test_provider_is_judged_with_the_settings_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    azure = {"model": "azure_openai:gpt-5"}
    asked = checks.choice({**azure, "model_kwargs": {"api_version": "2025-04-01-preview"}}, {})
    assert (asked.status, "AzureChatOpenAI" in asked.found) == (Status.OK, True)
    assert checks.choice(azure, {}).status is Status.PROBLEM
    thinks = checks.choice({"model": "ollama:qwen3:8b", "reasoning_effort": "low"}, {})
    assert (thinks.status, thinks.remedy.split(":")[0]) == (Status.PROBLEM, "ChatOllama has no reasoning_effort")


def test_endpoint_is_asked_what_it_serves() -> None:
    with ScriptedServer() as server:
        url = {"base_url": server.base_url}
        listed = checks.answer(url, {})
        other = checks.answer({**url, "model": "other"}, {})
    assert (listed.status, listed.found) == (Status.OK, "it answers, and serves scripted")
    assert (other.status, "does not list other" in other.found, other.remedy[-8:]) == (Status.WARNING, True, "scripted")


def test_endpoint_that_is_not_there_is_a_problem() -> None:
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
    monkeypatch.setattr(checks, "find_spec", lambda _: True)
    return place


def test_weights_that_are_not_there_are_a_problem_only_where_they_are_wanted(path: Path) -> None:
    wanted, other = (checks.weights(each, KEY) for each in ({"model": "local"}, {"model": "m"}))
    assert [wanted.status, other.status] == [Status.PROBLEM, Status.OFF]
    assert "model pull" in wanted.remedy
    assert str(path) in wanted.found


@pytest.mark.parametrize(
    ("content", "status", "said"), [(CONTENT, Status.OK, "size is right"), (b"we", Status.PROBLEM, "2 of 7 bytes")]
)
def test_weights_have_to_have_their_size(path: Path, content: bytes, status: Status, said: str) -> None:
    path.write_bytes(content)
    found = checks.weights({}, {})
    assert (found.status, said in found.found) == (status, True)
    assert sorted(each.name for each in path.parent.iterdir()) == ["w.gguf"]


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


def test_environment_that_no_client_can_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://h.example")
    found = checks.answer({"base_url": "https://h.example/v1", "model": "m"}, KEY)
    assert (found.status, "HTTPS_PROXY" in found.found) == (Status.PROBLEM, True)


def test_what_runs_the_tests_of_the_project_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.tests(str(tmp_path)) == Finding(Status.OFF, f"no test runner was found (looked for {LOOKED_FOR})")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    (tmp_path / ".venv/lib/python3.12/site-packages/pytest").mkdir(parents=True)
    assert checks.tests(str(tmp_path)) == Finding(Status.OK, "pytest in .venv")
    (tmp_path / "Cargo.toml").touch()
    monkeypatch.setenv("PATH", "")
    found = checks.tests(str(tmp_path))
    assert (found.status, found.found) == (Status.WARNING, "pytest in .venv; cargo test (without cargo)")


# --- All at once

NAMES = [
    *("packages", "model", "endpoint", "embedded model", "sandbox", "tests", "ripgrep"),
    *("workspace", "data folder", "run database", "configuration"),
]


def by_name(found: tuple[Finding, ...]) -> dict[str, Finding]:
    return {each.name: each for each in found}


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_looking_makes_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, root = tmp_path / "data", tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(data))
    found = by_name(examine(str(root), {"model": "m", "base_url": "http://127.0.0.1:9/v1"}, offline=True))
    assert list(found) == NAMES
    assert (found["endpoint"].status, found["endpoint"].found) == (Status.OFF, "not asked (--offline)")
    assert found["run database"].status is Status.OFF
    assert tree(tmp_path) == ["root"]


def test_one_check_that_breaks_or_hangs_leaves_the_others() -> None:
    hang = threading.Event()

    def hanging() -> Finding:
        hang.wait(60)
        return Finding(Status.OK, "")

    def leaving() -> Finding:
        raise SystemExit(3)

    fine = Finding(Status.OK, "so")
    found = made({"late": hanging, "left": leaving, "fine": lambda: fine}, 0.5)
    hang.set()
    assert [each.status for each in found] == [Status.PROBLEM, Status.PROBLEM, Status.OK]
    assert found[0].found == "no answer within 0.5 s"
    assert "SystemExit" in found[1].found


def test_secrets_are_in_no_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "hunter2-hunter2-hunter2"
    monkeypatch.setenv("SOME_API_KEY", word)
    finding = Finding(Status.PROBLEM, f"found {word}", f"remove {word}")
    monkeypatch.setattr(checks, "packages", lambda: finding)
    packages = by_name(examine(str(tmp_path), {"model": "local"}, offline=True))["packages"]
    assert (packages.found, packages.remedy) == ("found [redacted secret]", "remove [redacted secret]")


def test_secrets_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "hunter2-hunter2-hunter2"
    monkeypatch.setenv("OPENAI_API_KEY", word)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:9/{word}/v1")
    found = examine(str(tmp_path), {"model": "m"}, offline=True)
    assert word not in repr(found)
    assert "a key from OPENAI_API_KEY" in by_name(found)["model"].found


def test_configuration_is_used_and_its_problems_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "config.toml"
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(own))
    own.write_text('model = "from-file"\nbase_url = "http://127.0.0.1:9/v1"\n', encoding="utf-8")
    found = by_name(examine(str(tmp_path), {}, offline=True))
    assert "from-file at http://127.0.0.1:9/v1" in found["model"].found
    assert (found["configuration"].status, os.path.basename(found["configuration"].found)) == (Status.OK, "config.toml")
    own.write_text("modle = 1\n", encoding="utf-8")
    wrong = by_name(examine(str(tmp_path), {}, offline=True))["configuration"]
    assert wrong.status is Status.PROBLEM
    assert "modle" in wrong.found
