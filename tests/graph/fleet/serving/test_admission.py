"""Who may begin a run, and with what."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.admission import (
    TENANTS_VARIABLE,
    Admitter,
    CannotServeError,
    Locks,
    PostgresLocks,
    RunRefusedError,
    load_resolver,
    load_tenants,
    open_admitter,
    project_folder,
)
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.nodes.execute_tools.store.database import StoreError, read_url
from mendgraph.nodes.execute_tools.store.postgres import close_postgres
from mendgraph.nodes.execute_tools.store.run_folder import known_workspace_name, workspace_folder
from mendgraph.nodes.records import StopReason

ANN = Tenant("ann", (), AgentContext(account="ann", max_steps=9), runs_at_once=2)
NOBODY = refusal("Nobody knows who asks: send the header Authorization: Bearer <token>.")


class Held(Locks):
    """Locks of a test: those in `taken` are others'."""

    def __init__(self, *taken: str, broken: bool = False) -> None:
        super().__init__()
        self.names, self.broken = set(taken), broken

    def take(self, name: str) -> bool:
        if self.broken:
            raise StoreError("The database is away.")
        free = name not in self.names
        self.names.add(name)
        return free

    def leave(self, name: str) -> None:
        self.names.discard(name)
        if name.startswith("thread"):
            raise StoreError("The connection was lost.")


def test_locks_are_held_once(shared_store: str) -> None:
    shared = [PostgresLocks(read_url(shared_store)) for _ in range(2)]
    for first, second in ([Locks()] * 2, shared):
        assert (first.take("a"), second.take("a"), second.take("b")) == (True, False, True)
        assert (second.is_held("a"), second.is_held("c")) == (True, False)
        first.leave("a")
        assert second.take("a")
        second.leave("a")
        second.leave("b")
    for each in shared:
        each._locks.close()
    close_postgres()


def admitter(tmp_path: Path, locks: Held | None = None) -> Admitter:
    return Admitter(Tenants({"ann": ANN}, root="/"), lambda *_: str(tmp_path), locks or Held())


@pytest.mark.parametrize(
    "configurable",
    [
        {},
        {"langgraph_auth_user": None},
        {"langgraph_auth_user": {}},
        {"langgraph_auth_user": {"identity": "bob"}},
        {"langgraph_auth_user": {"identity": ["ann"]}},
        {"langgraph_auth_user": "ann"},
        {"user_id": "ann"},
    ],
)
def test_who_is_not_known_is_nobody(tmp_path: Path, configurable: dict[str, Any]) -> None:
    assert admitter(tmp_path).user(configurable) == NOBODY


@pytest.mark.parametrize("user", [{"identity": "ann"}, SimpleNamespace(identity="ann")])
def test_servers_say_it_in_two_ways(tmp_path: Path, user: object) -> None:
    assert admitter(tmp_path).user({"langgraph_auth_user": user}) is ANN


def test_a_turn_gets_its_context(tmp_path: Path) -> None:
    held = AgentContext(workspace=str(tmp_path.resolve()), account="ann", max_steps=3)
    assert admitter(tmp_path).admit(ANN, {"workspace": "website", "max_steps": 3}) == held
    assert admitter(tmp_path).admit(ANN, AgentContext(workspace="website", max_steps=3)) == held
    assert admitter(tmp_path).admit(ANN, {"workspace": "a/b"}) == refusal(
        "'a/b' is no project's name: workspace is one name of A-Z a-z 0-9 . _ -, and no path."
    )
    assert admitter(tmp_path).admit(ANN, None) == admitter(tmp_path).admit(ANN, {})


def test_a_turn_goes_on_with_what_is_still_allowed(tmp_path: Path) -> None:
    its, stored = admitter(tmp_path), AgentContext(account="ann", max_steps=9, workspace=str(tmp_path.resolve()))
    assert its.readmit(ANN, stored, "website") is stored
    others = stored.model_copy(update={"account": "bob"})
    assert its.readmit(ANN, others, "website") == refusal("This turn was begun by somebody else.")
    assert its.readmit(ANN, None, "website") == refusal("There is nothing to go on with: send a request.")
    said = "The server allows other things than when this turn began ({}): send a new request."
    wide, moved = (stored.model_copy(update=each) for each in ({"max_steps": 10}, {"workspace": "/elsewhere"}))
    assert its.readmit(ANN, wide, "website") == refusal(said.format("max_steps"))
    assert its.readmit(ANN, moved, "website") == refusal(said.format("workspace"))
    assert its.readmit(ANN, stored, "../x") == its.admit(ANN, {"workspace": "../x"})


def test_a_user_has_some_runs_at_once(tmp_path: Path) -> None:
    locks = Held("run 0 of ann", "thread t3")
    its = admitter(tmp_path, locks)
    first, second, third = (its.place(ANN, thread) for thread in ("t1", "t2", "t3"))
    assert first.take() is None
    assert locks.names == {"run 0 of ann", "run 1 of ann", "thread t1", "thread t3"}
    with pytest.raises(RunRefusedError, match="Another run of this thread is at work"):
        third.take()  # which says nothing of places: that would be written into the thread
    third.leave()
    said = "ann has 2 runs at work on these servers, which is the most at once."
    assert second.take() == refusal(said, StopReason.WORKSPACE_BUSY)
    second.leave()
    first.leave()
    assert locks.names == {"run 0 of ann", "thread t3"}


def test_a_place_that_was_left_is_not_taken_any_more(tmp_path: Path) -> None:
    locks = Held()
    place = admitter(tmp_path, locks).place(ANN, "t1")
    place.leave()
    assert place.take() is None
    assert locks.names == set()


def test_without_a_lock_nobody_begins(tmp_path: Path) -> None:
    place = admitter(tmp_path, Held(broken=True)).place(ANN, "t1")
    with pytest.raises(RunRefusedError, match=r"The database is away\."):
        place.take()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "ann" / "website").mkdir(parents=True)
    (tmp_path / "root" / "bob" / "secret").mkdir(parents=True)
    (tmp_path / "root" / "ann" / "file").touch()
    (tmp_path / "root" / "ann" / "linked").symlink_to(tmp_path / "root" / "bob" / "secret")
    (tmp_path / "root" / "eve").symlink_to(tmp_path / "root" / "bob")
    return tmp_path / "root"


def test_a_project_is_a_folder_below_its_user(root: Path) -> None:
    resolver = load_resolver(Tenants({}, root=str(root)))
    assert project_folder(resolver, "ann", "website") == str(root.resolve() / "ann" / "website")


@pytest.mark.parametrize(
    ("user", "project"), [("ann", "secret"), ("ann", "file"), ("ann", "linked"), ("eve", "secret")]
)
def test_what_is_no_folder_of_the_user_is_not_there(root: Path, user: str, project: str) -> None:
    resolver = load_resolver(Tenants({}, root=str(root)))
    found = project_folder(resolver, user, project)
    assert found == refusal(f"There is no project {project}. Ask the people who run this server for it.")


@pytest.mark.parametrize("name", ["../bob/secret", "/etc", "a/b", "..", "-x", "a\0b", "a\nb", "x" * 65])
def test_a_path_is_no_name(root: Path, name: str) -> None:
    found = project_folder(load_resolver(Tenants({}, root=str(root))), "ann", name)
    assert not isinstance(found, str)
    assert "is no project's name" in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize("name", [None, "", ".", 7])
def test_a_request_names_a_project(root: Path, name: object) -> None:
    found = project_folder(load_resolver(Tenants({}, root=str(root))), "ann", name)
    assert not isinstance(found, str)
    assert found.message.startswith("The request names no project")


def test_a_function_may_find_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(user: str, project: str) -> str | None:
        known = {"website": str(root / user / "website"), "no-folder": str(root / "none"), "relative": "."}
        return known[project] if project != "none" else None

    monkeypatch.setitem(sys.modules, "company_folders", module := ModuleType("company_folders"))
    module.find = find  # type: ignore[attr-defined]
    resolver = load_resolver(Tenants({}, resolver="company_folders:find"))
    assert project_folder(resolver, "ann", "website") == str(root.resolve() / "ann" / "website")
    said = {
        "none": "There is no project none. Ask the people who run this server for it.",
        "unknown": "The server's resolver failed for the project unknown (KeyError).",
        "no-folder": "The server's resolver gave no folder for the project no-folder.",
        "relative": "The server's resolver gave no folder for the project relative.",
    }
    assert {name: project_folder(resolver, "ann", name) for name in said} == {
        name: refusal(message) for name, message in said.items()
    }


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        (Tenants({}, root="/no/such"), "root: there is no folder '/no/such': make it, or name another one"),
        (Tenants({}, resolver="json:nothing"), r"resolver: json:nothing cannot be loaded \(AttributeError: "),
        (Tenants({}, resolver="no_such_module:find"), r"cannot be loaded \(ModuleNotFoundError: No module named"),
        (Tenants({}, resolver="json:__name__"), "resolver: json:__name__ is no function of a user and a project"),
    ],
)
def test_a_resolver_that_is_none_is_said_at_the_start(tenants: Tenants, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_resolver(tenants)


def test_a_project_has_its_name_in_the_shared_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://nobody@nowhere/none")
    resolver = load_resolver(Tenants({}, root=str(root)))
    folder = project_folder(resolver, "ann", "website")
    assert isinstance(folder, str)
    records = workspace_folder(folder)
    assert isinstance(records, str)
    assert known_workspace_name(records) == "ann/website"
    other = project_folder(lambda *_: folder, "bob", "website")
    assert not isinstance(other, str)
    assert "cannot be called 'bob/website' as well" in other.message


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test opens it anew."""
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))


def test_the_file_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    admitter = open_admitter()
    assert list(admitter.tenants.users) == ["ann"]
    assert type(admitter.locks) is Locks
    monkeypatch.delenv(TENANTS_VARIABLE)
    assert open_admitter() is admitter


def test_without_a_file_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotServeError, match=r"^Name the file with the server's users in MENDGRAPH_TENANTS\.$"):
        load_tenants()
    monkeypatch.setenv(TENANTS_VARIABLE, "/no/such/file")
    with pytest.raises(CannotServeError, match=r"^Cannot read '/no/such/file': .* MENDGRAPH_TENANTS names it\.$"):
        load_tenants()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[users.ann]\n", r"tenants.toml: resolver: say where projects.* \(and 1 more problems\)$"),
        ('root = "/no/such"\n[users.ann]\ntoken_sha256 = []\n', "^root: there is no folder '/no/such'"),
        ('resolver = "json:none"\n[users.ann]\ntoken_sha256 = []\n', "^resolver: json:none cannot be loaded"),
    ],
)
def test_what_is_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str) -> None:
    write(monkeypatch, tmp_path, text)
    with pytest.raises(CannotServeError, match=said) as refused:
        open_admitter()
    assert "\n" not in str(refused.value)


def test_a_store_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://secret@host/db")
    with pytest.raises(CannotServeError, match="MENDGRAPH_STORE_URL is no URL of a PostgreSQL database"):
        open_admitter()
