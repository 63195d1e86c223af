"""Which user may start a run, and with which context."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.admission import (
    TENANTS_VARIABLE,
    CannotServeError,
    Locks,
    RunRefusedError,
    RunSlot,
    open_admitter,
    project_folder,
)
from mendgraph.nodes.records import StopReason
from mendgraph.nodes.workspace.store.database import StoreError, read_url
from mendgraph.nodes.workspace.store.postgres import close_postgres
from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, known_workspace_name, workspace_folder
from tests.extent import slow
from tests.surfaces.serving.memory_locks import ANN, MemoryLocks, admitter

NOBODY = refusal("The request names no known user: send the header Authorization: Bearer <token>.")
STORE_URL = "postgresql://nobody@nowhere/none"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "root"
    (path / "ann" / "website").mkdir(parents=True)
    (path / "bob" / "secret").mkdir(parents=True)
    (path / "ann" / "file").touch()
    (path / "ann" / "linked").symlink_to(path / "bob" / "secret")
    (path / "eve").symlink_to(path / "bob")
    return path


def test_only_the_server_names_the_user(tmp_path: Path) -> None:
    strangers: list[dict[str, Any]] = [
        {},
        *({"langgraph_auth_user": user} for user in (None, {}, {"identity": "bob"}, {"identity": ["ann"]}, "ann")),
        {"user_id": "ann"},
    ]
    its = admitter(tmp_path)
    assert [its.user(stranger) for stranger in strangers] == [NOBODY] * len(strangers)
    for user in ({"identity": "ann"}, SimpleNamespace(identity="ann")):
        assert its.user({"langgraph_auth_user": user}) is ANN


def test_turn_gets_its_context_and_continues_with_what_is_still_allowed(root: Path) -> None:
    folder, its = str(root / "ann" / "website"), admitter(root)
    admitted = AgentContext(workspace=folder, account="ann", max_steps=3)
    assert its.admit(ANN, {"workspace": "website", "max_steps": 3}) == admitted
    assert its.admit(ANN, AgentContext(workspace="website", max_steps=3)) == admitted
    assert its.admit(ANN, None) == its.admit(ANN, {})

    stored = AgentContext(account="ann", max_steps=9, workspace=folder)
    assert its.readmit(ANN, stored) is stored
    words = "The server allows other things than when this turn began ({}): send a new request."
    for change, refused in (
        ({"account": "bob"}, refusal("Somebody else started this turn.")),
        ({"max_steps": 10}, refusal(words.format("max_steps"))),
        ({"workspace": "/elsewhere/website"}, refusal(words.format("workspace"))),
        ({"workspace": str(root / "ann" / "gone")}, its.admit(ANN, {"workspace": "gone"})),
    ):
        assert its.readmit(ANN, stored.model_copy(update=change)) == refused
    assert its.readmit(ANN, None) == refusal("There is nothing to continue: send a request.")


def test_concurrent_runs_of_a_user_are_limited(tmp_path: Path) -> None:
    locks = MemoryLocks("run 0 of ann", "thread t3")
    its = admitter(tmp_path, locks=locks)
    first, second, third = (RunSlot(its.locks, ANN, thread) for thread in ("t1", "t2", "t3"))
    assert first.take() is None
    assert locks.names == {"run 0 of ann", "run 1 of ann", "thread t1", "thread t3"}
    with pytest.raises(RunRefusedError, match="Another run of this thread is working"):
        third.take()  # the message names no slots: it would be written into the thread
    third.release()
    words = "ann has 2 runs working on these servers, which is the maximum."
    assert second.take() == refusal(words, StopReason.WORKSPACE_BUSY)
    second.release()
    assert second.take() is None  # a released slot is free again
    first.release()
    assert locks.names == {"run 0 of ann", "thread t3"}


@slow
def test_lock_has_one_holder(shared_store: str) -> None:
    first, second = (Locks(read_url(shared_store)) for _ in range(2))
    assert (first.take("a"), second.take("a"), second.take("b")) == (True, False, True)
    assert (second.is_held("a"), second.is_held("c")) == (True, False)
    first.release("a")
    assert second.take("a")
    close_postgres()


def test_run_does_not_begin_if_the_lock_is_unavailable() -> None:
    class Away(MemoryLocks):
        def take(self, _name: str) -> bool:
            raise StoreError("The database is away.")

        def release(self, _name: str) -> None:
            raise StoreError("The connection was lost.")

    with pytest.raises(RunRefusedError, match=r"The database is away\."):
        RunSlot(Away(), ANN, "t1").take()


def test_project_is_a_folder_below_its_user(root: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, object, str]] = [
        *(("ann", name, f"There is no project {name}. Ask") for name in ("secret", "file", "linked", "none")),
        ("eve", "secret", "There is no project secret."),
        *(("ann", name, "is not the name of a project:") for name in ("../bob/secret", "/etc", "a/b", "..")),
        *(("ann", name, "is not the name of a project:") for name in ("-x", "a\0b", "a\nb", "x" * 65)),
        *(("ann", name, "The request names no project") for name in (None, "", ".", 7)),
    ]
    assert project_folder(str(root), "ann", "website") == str(root / "ann" / "website")
    for user, project, words in rows:
        with subtests.test(project=project):
            refused = project_folder(str(root), user, project)
            assert not isinstance(refused, str)
            assert (words in refused.message, "\n" in refused.message) == (True, False)


def test_project_has_its_name_in_the_shared_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", STORE_URL)
    folder = project_folder(str(root), "ann", "website")
    assert isinstance(folder, str)
    records = workspace_folder(folder)
    assert isinstance(records, str)
    assert known_workspace_name(records) == "ann/website"
    (root / "ann" / "other").mkdir()
    workspace = workspace_folder(str(root / "ann" / "other"))
    assert isinstance(workspace, str)
    assert give_workspace_name(workspace, "bob/website") is None
    other = project_folder(str(root), "ann", "other")
    assert not isinstance(other, str)
    assert "cannot be called 'ann/other' as well" in other.message


# --- The file of users


@pytest.fixture(autouse=True)
def clear_admitter() -> Iterator[None]:
    """Each test opens its own."""
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def test_tenants_file_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", STORE_URL)
    (tmp_path / "tenants.toml").write_text(f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    monkeypatch.setenv(TENANTS_VARIABLE, str(tmp_path / "tenants.toml"))
    opened = open_admitter()
    assert list(opened.tenants.users) == ["ann"]
    monkeypatch.delenv(TENANTS_VARIABLE)
    assert open_admitter() is opened


USERS = "[users.ann]\ntoken_sha256 = []\n"


def test_server_without_users_or_a_store_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    file = tmp_path / "tenants.toml"
    rows: list[tuple[str | None, str]] = [
        (None, r"^Cannot read '.*tenants.toml': .* MENDGRAPH_TENANTS names it\.$"),
        ("[users.ann]\n", r"tenants.toml: root: Field required \(and 1 more problems\)$"),
        (f'root = "/no/such"\n{USERS}', "^root: there is no folder '/no/such'"),
        (f'root = "{tmp_path}"\n{USERS}', "MENDGRAPH_STORE_URL is not a PostgreSQL URL"),
    ]
    with pytest.raises(CannotServeError, match=r"^Name the file with the server's users in MENDGRAPH_TENANTS\.$"):
        open_admitter()
    monkeypatch.setenv(TENANTS_VARIABLE, str(file))
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://secret@host/db")
    for text, words in rows:
        with subtests.test(words=words):
            if text is not None:
                file.write_text(text)
            with pytest.raises(CannotServeError, match=words) as refused:
                open_admitter()
            assert "\n" not in str(refused.value)
            assert "secret" not in str(refused.value)
