"""What runs the tests of a project; the environments are folders that look like real ones."""

import base64
import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules, readable_folders
from mendgraph.nodes.execute_tools.evidence.runners import find_all_runners, find_runners, rules_with_runners
from tests.row_tables import rows

PACKAGE = {"scripts": {"test": "node --test"}}


class Places:
    """A workspace, and a home with an interpreter."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.root, self.home = folder / "shop", folder / "home"
        patch.setenv("HOME", str(self.home))
        self.python = self.home / ".pyenv/versions/3.12"
        for name in ("bin/python3.12", "lib/python3.12/os.py"):
            self.put(self.python / name)
        self.root.mkdir(parents=True)

    def renewed(self, number: int) -> "Places":
        """Other ones, for another row of a table."""
        return Places(self.folder / f"row{number}", self.patch)

    def put(self, path: Path, text: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, folder: Path, has_pytest: bool = True, home: Path | None = None) -> Path:
        self.put(folder / "pyvenv.cfg", f"home = {home or self.python}/bin\nversion = 3.12\n")
        self.put(folder / "bin/python")
        self.put(folder / f"lib/python3.12/site-packages/{'pytest' if has_pytest else 'wheel'}/__init__.py")
        return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Places(tmp_path.resolve(), monkeypatch)


def mark(root: Path, kind: str) -> str:
    """The hash in the names of the environments that belong to this folder."""
    return base64.urlsafe_b64encode(hashlib.new(kind, os.fsencode(root)).digest()).decode()[:8]


@rows(".venv", "venv", ".tox/py312", ".nox/tests")
def test_environment_in_the_workspace_is_found(name: str, places: Places) -> None:
    places.environment(places.root / ".venv", has_pytest=False)
    places.environment(places.root / name)
    runners = find_runners(str(places.root))
    assert (runners.pytest, runners.summary) == (name, f"pytest in {name}")
    assert runners.pythons[0] == f"{places.root}/{name}/bin/python"
    assert runners.readable == (str(places.python),)


@rows(
    (".cache/pypoetry/virtualenvs/shop-{}-py3.12", "sha256"),
    (".local/share/pdm/venvs/shop-{}-3.12", "md5"),
    (".local/share/hatch/env/virtual/shop/{}/shop", "sha256"),
    (".local/share/hatch/env/.internal/hatch-test.py3.12/shop/{}/hatch-test.py3.12", "sha256"),
)
def test_environment_of_a_tool_outside_the_workspace_is_found(place: str, kind: str, places: Places) -> None:
    environment = places.environment(places.home / place.format(mark(places.root, kind)))
    places.environment(places.home / place.format("AAAAAAAA"))
    runners = find_runners(str(places.root))
    assert (runners.pytest, runners.readable) == (str(environment), (str(environment), str(places.python)))


def test_activated_environment_is_used(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = places.environment(places.home / "envs/shop")
    assert find_runners(str(places.root)).readable == ()
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    assert find_runners(str(places.root)).pytest == str(folder)
    places.environment(places.home)
    monkeypatch.setenv("VIRTUAL_ENV", str(places.home))
    assert find_runners(str(places.root)).readable == ()


def test_workspace_files_cannot_make_other_folders_readable(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work/src/key", "work/x/go"):
        places.put(places.home / name)
    places.put(places.root / "go.mod")
    (places.root / "bin").mkdir()
    (places.root / "bin/go").symlink_to(places.home / "work/x/go")
    monkeypatch.setenv("PATH", f"{places.root}/bin:bin")
    monkeypatch.chdir(places.root)
    private = places.environment(places.home / "private")
    places.put(private / "lib/python3.12/os.py")
    places.environment(places.root / "venv", home=private)
    places.environment(places.root / ".tox/nul", home=Path("/a\0b"))
    places.environment(places.root / ".tox/py", home=places.home / ".pyenv/versions/3.12/../../../private")
    (places.root / ".tox/link").symlink_to(private)
    (places.root / ".venv").symlink_to(private)
    (places.root / ".pdm-python").write_text(f"{private}/bin/python")
    (places.root / "package.json").symlink_to(places.home / "package.json")
    (places.home / "package.json").write_text(json.dumps(PACKAGE))
    runners = find_runners(str(places.root))
    assert (runners.readable, runners.summary) == ((), "pytest in venv; go test ./... (without go)")


@rows(("/", ".cargo"), ("{home}/..", ".cargo"), ("{folder}/rust", "../rust"), ("relative", ".cargo"), (None, ".cargo"))
def test_folders_of_a_tool_are_where_its_variables_say(
    value: str | None, folder: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.put(places.root / "Cargo.toml")
    for name in (".cargo", "../rust"):
        places.put(places.home / name / "bin/cargo")
    monkeypatch.delenv("RUSTUP_HOME", raising=False)
    monkeypatch.delenv("CARGO_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("CARGO_HOME", value.format(home=places.home, folder=places.folder))

    runners = find_runners(str(places.root))
    cargo = os.path.realpath(places.home / folder)
    assert (runners.readable, runners.env["CARGO_HOME"]) == ((f"{cargo}/bin",), cargo)


@rows("auto", "container")
def test_commands_see_and_start_what_the_checks_do(
    sandbox: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that no command sees has no variable, and a container may have a network."""
    for name in ("RUSTUP_HOME", "CARGO_HOME", "GOPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    places.put(places.root / "Cargo.toml")
    places.put(places.home / ".cargo/bin/cargo")
    places.environment(places.root / ".venv")
    rules = rules_with_runners(CommandRules(readable=("/usr/share",), sandbox=sandbox), str(places.root))
    assert rules.readable == ("/usr/share", str(places.python), f"{places.home}/.cargo/bin")
    assert rules.pythons[0] == f"{places.root}/.venv/bin/python"
    variables = dict(rules.variables)
    assert {name for name, value in variables.items() if value.startswith("/")} == {"CARGO_HOME"}
    assert ("CARGO_NET_OFFLINE" in variables) is (sandbox == "auto")


def test_environment_of_the_project_goes_before_the_activated_one_except_for_pytest(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = places.environment(places.root / ".venv", has_pytest=False)
    activated = places.environment(places.home / "envs/other")
    monkeypatch.setenv("VIRTUAL_ENV", str(activated))
    runners = find_runners(str(places.root))
    pythons = [f"{inside}/bin/python", f"{activated}/bin/python", f"{places.root}/venv/bin/python"]
    assert list(runners.pythons) == pythons
    assert list(runners.pytest_pythons) == [pythons[1], pythons[0], pythons[2]]


def test_environment_in_a_folder_that_no_command_may_read_is_left_out(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        environment = places.environment(Path(folder) / "other")
        monkeypatch.setenv("VIRTUAL_ENV", str(environment))
        rules = rules_with_runners(CommandRules(), str(places.root))
        assert rules.readable == (str(places.python),)
        assert isinstance(readable_folders(rules), tuple)


def test_installation_that_contains_the_home_is_not_readable(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    python = places.home / "uv/python/3.12"
    places.put(python / "lib/python3.12/os.py")
    places.environment(places.root / ".venv", home=python)
    monkeypatch.setenv("XDG_DATA_HOME", str(places.home))
    assert find_runners(str(places.root)).readable == (str(python),)
    monkeypatch.setenv("HOME", str(python / "home"))
    assert find_runners(str(places.root)).readable == ()


@rows(
    ({"package.json": PACKAGE}, "npm test", ""),
    ({"package.json": PACKAGE, "yarn.lock": ""}, "yarn test", "yarn"),
    ({"package.json": {**PACKAGE, "devDependencies": {"jest": "1"}}, "pnpm-lock.yaml": ""}, "pnpm test", "pnpm"),
    ({"package.json": {**PACKAGE, "dependencies": {"x": "1"}}}, "npm test", "node_modules"),
    ({"package.json": {**PACKAGE, "dependencies": {"x": "1"}}, "node_modules/x/index.js": ""}, "npm test", ""),
    ({"package.json": {"scripts": {"test": 'echo "Error: no test specified" && exit 1'}}}, "", ""),
    ({"package.json": [1]}, "", ""),
    ({"Cargo.toml": ""}, "cargo test", "cargo"),
    ({"go.mod": ""}, "go test ./...", "go"),
    ({"Makefile": "all: test\ntest: all\n\ttrue\n"}, "make test", ""),
    ({"Makefile": "test := 1\n"}, "", ""),
    ({"manage.py": "import django\n"}, "python manage.py test", ""),
    ({"manage.py": "import flask\n"}, "", ""),
    (
        {"manage.py": "import django\n", ".venv/bin/python": "", ".venv/lib/p/site-packages/pytest_django/a.py": ""},
        "",
        "",
    ),
)
def test_test_command_of_a_project_is_found(
    files: dict[str, Any], command: str, lacks: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        places.put(places.root / name, content if isinstance(content, str) else json.dumps(content))
    node = places.home / ".nvm/versions/node/v20"
    for name in ("node", "npm", "make"):
        places.put(node / f"bin/{name}")
    places.put(node / "lib/node_modules/npm/index.js")
    monkeypatch.setenv("PATH", str(node / "bin"))
    runners = find_runners(str(places.root))
    assert [(runner.name, runner.lacks) for runner in runners.commands] == ([(command, lacks)] if command else [])
    readable = (str(node / "bin"), str(node / "lib/node_modules")) if command[:4] in {"npm ", "yarn", "pnpm"} else ()
    assert runners.readable == readable


# --- Projects in folders


def put_two_projects(places: Places) -> None:
    """Put a project in Python and one in JavaScript into the workspace, each in a folder of its own."""
    places.put(places.root / "backend/pyproject.toml")
    places.environment(places.root / "backend/.venv")
    places.put(places.root / "web/package.json", json.dumps({**PACKAGE, "dependencies": {"x": "1"}}))
    places.put(places.root / "node_modules/x/index.js")
    places.put(places.root / "pnpm-lock.yaml")
    for name in ("npm", "pnpm", "make"):
        places.put(places.home / "bin" / name)
    places.patch.setenv("PATH", str(places.home / "bin"))


@rows(
    ("backend/app", "backend", "backend/.venv", ""),
    ("backend", "backend", "backend/.venv", ""),
    ("web/src/parts", "", "", "pnpm test in web"),
    ("", "", "", ""),
)
def test_nearest_project_has_the_runners_of_a_file(
    folder: str, python: str, environment: str, command: str, places: Places
) -> None:
    put_two_projects(places)
    runners = find_runners(str(places.root), folder)
    assert (runners.folder, runners.pytest) == (python, environment)
    assert [runner.summary for runner in runners.commands] == ([command] if command else [])


def test_command_of_a_nearer_folder_replaces_those_for_the_same_files(places: Places) -> None:
    put_two_projects(places)
    places.put(places.root / "package.json", json.dumps(PACKAGE))
    places.put(places.root / "Makefile", "test:\n\ttrue\n")
    runners = find_runners(str(places.root), "web/src")
    assert [runner.name for runner in runners.commands] == ["pnpm test in web", "make test"]
    covered = ("web/a.ts", "web/src/a.js", "website/a.js", "a.js", "web/a.c")
    assert [runners.commands[0].covers(path) for path in covered] == [True, True, False, False, False]
    assert [runners.commands[1].covers(path) for path in covered] == [False, False, False, False, True]


def test_commands_can_start_the_pythons_of_all_projects(places: Places) -> None:
    put_two_projects(places)
    for name in ("node_modules/y", "backend/.venv/z", "a/b/too_deep", ".hidden"):
        places.put(places.root / name / "pyproject.toml")
    rules = rules_with_runners(CommandRules(), str(places.root))
    assert f"{places.root}/backend/.venv/bin/python" in rules.pythons
    assert str(places.python) in rules.readable
    found = [runners.summary for runners in find_all_runners(str(places.root))]
    assert found == ["", "pytest in backend/.venv", "pnpm test in web"]


def test_environment_of_the_repository_that_holds_the_workspace_is_found(places: Places) -> None:
    (places.root / ".git").mkdir()
    environment = places.environment(places.root / ".venv")
    (places.root / "backend").mkdir()
    assert find_runners(str(places.root / "backend")).pytest == str(environment)
    (places.root / "backend/.git").mkdir()
    assert find_runners(str(places.root / "backend")).pytest == ""
