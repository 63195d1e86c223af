import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files import sandbox
from mendgraph.nodes.execute_tools.files.sandbox import HardLinks, JudgedPaths, PathAccess, Place
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.layout import DENIAL, SECRET, code_of, content, no_env, sha


def test_judge_is_asked_about_both_names(root: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def judge(path: str, for_write: bool) -> ToolError | None:
        asked.append((path, for_write))
        return None

    workspace = Workspace(str(root), judge)
    workspace.read_file("./src/../link.py")
    assert dict.fromkeys(asked) == dict.fromkeys([("link.py", False), ("src/b.py", False)])
    asked.clear()
    workspace.write_file("new/file.py", b"", expected_sha256="")
    assert dict.fromkeys(asked) == dict.fromkeys([("new/file.py", True)])
    asked.clear()
    workspace.list_directory(".")
    assert dict.fromkeys(asked) == dict.fromkeys([(".", False)])


def test_name_of_the_handle_has_the_last_word(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_files(name: str | None) -> None:
        def answer(descriptor: int) -> str | None:
            return str(root) if os.path.samestat(os.fstat(descriptor), os.stat(root)) else name

        monkeypatch.setattr("mendgraph.nodes.execute_tools.files.handles.handle_name", answer)

    call_files(f"{root}/.env")
    assert workspace.read_file("a.py") == DENIAL
    assert workspace.write_file("a.py", b"", expected_sha256=sha(b"a = 1\r\n")) == DENIAL
    call_files("/moved/away")
    assert code_of(workspace.read_file("a.py")) is ToolErrorCode.CONFLICT
    call_files(None)
    assert workspace.read_file("a.py") == content("a.py", b"a = 1\r\n")


def test_judge_that_breaks_denies(root: Path) -> None:
    def broken(_path: str, _for_write: bool) -> ToolError | None:
        raise ZeroDivisionError

    workspace = Workspace(str(root), broken)
    assert workspace.read_file("a.py") == ToolError(
        code=ToolErrorCode.PERMISSION_DENIED,
        message="'a.py' could not be judged (ZeroDivisionError), so it is denied.",
    )
    assert list(workspace.walk()) == []


@pytest.mark.parametrize(
    ("path", "for_write", "expected"),
    [
        ("a.py", False, None),
        ("nope/new.py", True, None),
        (".env", False, DENIAL),
        ("innocent.txt", False, DENIAL),
        ("notes.txt", False, ToolErrorCode.PERMISSION_DENIED),
        ("link_to_notes", False, ToolErrorCode.PERMISSION_DENIED),
        ("twin.py", False, None),
        ("a.py/", False, ToolErrorCode.INVALID_ARGUMENT),
    ],
)
def test_file_can_be_judged_by_all_its_names_without_being_opened(
    root: Path, path: str, for_write: bool, expected: ToolError | ToolErrorCode | None
) -> None:
    os.link(root / ".env", root / "notes.txt")
    os.link(root / "a.py", root / "twin.py")
    (root / "link_to_notes").symlink_to("notes.txt")
    found = JudgedPaths(str(root), no_env).denied_file(path, for_write=for_write)
    assert (code_of(found) if isinstance(expected, ToolErrorCode) else found) == expected


def test_file_that_vanishes_while_it_is_judged_is_not_free(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object) -> None:
        raise FileNotFoundError(2, "")

    monkeypatch.setattr("mendgraph.nodes.execute_tools.files.handles.status_beneath", vanish)
    assert code_of(JudgedPaths(str(root), no_env).denied_file("a.py")) is ToolErrorCode.NOT_FOUND


# --- Extensions ------------------------------------------------------------------------------------------------

TEXT = frozenset({".md", ".txt"})


def not_allowed(extension: str) -> ToolError:
    message = f"Extension {extension!r} not allowed. Allowed: .md, .txt."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


@pytest.fixture
def text_only(root: Path) -> JudgedPaths:
    (root / "notes.md").write_bytes(b"notes")
    (root / "LOUD.MD").write_bytes(b"loud")
    (root / "Makefile").touch()
    (root / "shows.md").symlink_to("a.py")
    (root / "shows.py").symlink_to("notes.md")
    return JudgedPaths(str(root), no_env, None, TEXT)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("notes.md", None),
        ("src/new.txt", None),
        ("a.py", not_allowed(".py")),
        ("Makefile", not_allowed("")),
        (".md", not_allowed("")),
        ("shows.md", not_allowed(".py")),  # its real name
        ("shows.py", not_allowed(".py")),  # the name asked for
        (".env", DENIAL),
    ],
)
@pytest.mark.parametrize("access", [PathAccess.READ_FILE, PathAccess.WRITE_FILE])
def test_only_files_of_the_allowed_extensions_have_a_place(
    text_only: JudgedPaths, path: str, access: PathAccess, expected: ToolError | None
) -> None:
    found = text_only.place(path, access)
    assert (None if isinstance(found, Place) else found) == expected
    assert text_only.denied_file(path, for_write=access is PathAccess.WRITE_FILE) == expected


# --- Names of what is open ---------------------------------------------------------------------------------------


def denied(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def unknown(name: str, reason: str) -> ToolError:
    return denied(
        f"{name!r} has other names (hard links), and whether one is denied cannot be told: {reason}. Go on without it."
    )


def ask(links: HardLinks, root: Path, name: str, *, for_write: bool = False) -> ToolError | None:
    return links.denial(name, lambda: os.stat(root / name, follow_symlinks=False), for_write=for_write)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that a workspace is gone through."""
    made: list[str] = []
    real: Any = sandbox._linked_files

    def watched(root: str) -> Any:
        made.append(root)
        return real(root)

    monkeypatch.setattr(sandbox, "_linked_files", watched)
    return made


@pytest.mark.parametrize(
    ("of", "name"), [(".env", "notes.txt"), (".git/config", "src/deep/er/notes.txt"), (".env", "src/.hidden")]
)
def test_hard_link_to_a_denied_file_can_neither_be_read_nor_written(root: Path, of: str, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.link(root / of, root / name)
    workspace = Workspace(str(root), no_env)
    refusal = denied(f"{name!r} is the same file as {of!r}, which is denied. Go on without it.")
    assert workspace.read_file(name) == refusal
    assert workspace.open_file(name) == refusal
    assert workspace.write_file(name, b"x", expected_sha256=sha(SECRET)) == refusal
    assert ((root / of).read_bytes(), (root / name).read_bytes()) == (SECRET, SECRET)


def test_losing_control_without_the_rule_the_content_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(root / ".env", root / "notes.txt")
    monkeypatch.setattr(HardLinks, "denial", lambda *_, **__: None)
    assert Workspace(str(root), no_env).read_file("notes.txt") == content("notes.txt", SECRET)


@pytest.mark.parametrize("first_denied", [False, True])
def test_link_that_is_made_later_is_found_as_well(root: Path, looks: list[str], first_denied: bool) -> None:
    os.link(root / "a.py", root / "b.py")
    if first_denied:
        os.link(root / ".env", root.parent / "elsewhere")  # so it has several names from the beginning
    workspace = Workspace(str(root), no_env)
    assert isinstance(workspace.read_file("b.py"), FileContent)
    os.link(root / ".env", root / "notes.txt")
    assert code_of(workspace.read_file("notes.txt")) is ToolErrorCode.PERMISSION_DENIED
    os.rename(root / "notes.txt", root / "moved.txt")
    assert code_of(workspace.read_file("moved.txt")) is ToolErrorCode.PERMISSION_DENIED
    os.link(root / "a.py", root / ".git" / "a")
    assert code_of(workspace.read_file("b.py")) is ToolErrorCode.PERMISSION_DENIED
    assert len(looks) == 4


def test_where_not_every_name_can_be_known_the_file_is_denied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(root / "a.py", root / "b.py")
    monkeypatch.setattr(sandbox, "MOST_FILES", 3)
    reason = "the workspace cannot be gone through ([Errno 0] it is too large)"
    assert ask(HardLinks(str(root), no_env), root, "b.py") == unknown("b.py", reason)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fwalk", lambda *_, onerror, **__: onerror(PermissionError(13, "no")))
    assert ask(HardLinks(str(root), no_env), root, "b.py") is not None
    monkeypatch.setattr(os, "fwalk", lambda *_, onerror, **__: onerror(FileNotFoundError(2, "")) or ())
    assert ask(HardLinks(str(root), no_env), root, "b.py") == unknown("b.py", "it is not where it was a moment ago")


def test_second_name_that_a_new_file_has_for_a_moment_is_no_reason(root: Path, looks: list[str]) -> None:
    answers = [os.stat(root / "a.py")]
    os.link(root / "a.py", root / ".a.tmp")
    answers.append(os.stat(root / "a.py"))
    (root / ".a.tmp").unlink()
    links = HardLinks(str(root), no_env)
    assert links.denial("a.py", answers.pop, for_write=False) is None
    assert (answers, looks) == ([], [str(root)])
