import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment.file_reads import OpenedFile, open_file
from nodes.execute_tools.environment.file_writes import write_file
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import DENIAL, SECRET, allow, code_of, content, no_env, sha


def test_the_judge_is_asked_about_both_names(root: Path) -> None:
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


def test_the_name_as_asked_for_is_judged_when_it_is_absolute_through_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    (root / "sub").mkdir()
    (root / "sub" / ".env").symlink_to("../a.py")
    workspace = Workspace(str(root), no_env)
    assert workspace.read_file(f"{tmp_path}/alias/a.py") == content("a.py", b"a = 1\r\n")
    assert workspace.read_file(f"{tmp_path}/alias/sub/.env") == DENIAL


def test_a_link_with_a_denied_name_is_denied_even_if_it_leads_to_a_harmless_file(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / ".env").symlink_to("../a.py")
    assert Workspace(str(root), no_env).read_file("sub/.env") == DENIAL


def test_a_denied_name_says_nothing_about_what_is_there(root: Path) -> None:
    (root / ".env").unlink()
    assert Workspace(str(root), no_env).read_file(".env") == DENIAL
    assert Workspace(str(root), no_env).exists(".env") is False


def test_the_name_of_the_handle_has_the_last_word(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_files(name: str | None) -> None:
        def answer(descriptor: int) -> str | None:
            return str(root) if os.path.samestat(os.fstat(descriptor), os.stat(root)) else name

        monkeypatch.setattr("nodes.execute_tools.environment.judged_paths.handle_name", answer)

    call_files(f"{root}/.env")
    assert workspace.read_file("a.py") == DENIAL
    assert workspace.write_file("a.py", b"", expected_sha256=sha(b"a = 1\r\n")) == DENIAL
    call_files("/moved/away")
    assert code_of(workspace.read_file("a.py")) is ToolErrorCode.CONFLICT
    call_files(None)
    assert workspace.read_file("a.py") == content("a.py", b"a = 1\r\n")


def test_a_judge_that_breaks_denies(root: Path) -> None:
    def broken(_path: str, _for_write: bool) -> ToolError | None:
        raise ZeroDivisionError

    workspace = Workspace(str(root), broken)
    assert workspace.read_file("a.py") == ToolError(
        code=ToolErrorCode.PERMISSION_DENIED,
        message="'a.py' could not be judged (ZeroDivisionError), so it is denied.",
    )
    assert list(workspace.walk()) == []


@pytest.mark.parametrize(
    ("path", "for_write", "denied"),
    [
        ("a.py", False, False),
        ("nope.py", True, False),
        (".env", False, True),
        ("new/.env", True, True),
        ("innocent.txt", False, True),
        ("out.txt", False, True),
        ("../x", True, True),
    ],
)
def test_a_path_can_be_judged_without_being_used(
    workspace: Workspace, path: str, for_write: bool, denied: bool
) -> None:
    assert (workspace.denied(path, for_write=for_write) is not None) is denied


@pytest.mark.parametrize(
    ("path", "for_write", "expected"),
    [
        ("a.py", False, None),
        ("link.py", True, None),
        ("nope/new.py", True, None),
        (".env", False, DENIAL),
        ("innocent.txt", False, DENIAL),
        ("out.txt", False, ToolErrorCode.PERMISSION_DENIED),
        ("notes.txt", False, ToolErrorCode.PERMISSION_DENIED),
        ("notes.txt", True, ToolErrorCode.PERMISSION_DENIED),
        ("link_to_notes", False, ToolErrorCode.PERMISSION_DENIED),
        ("twin.py", False, None),
        ("a.py/", False, ToolErrorCode.INVALID_ARGUMENT),
    ],
)
def test_a_file_can_be_judged_by_all_its_names_without_being_opened(
    root: Path, path: str, for_write: bool, expected: ToolError | ToolErrorCode | None
) -> None:
    os.link(root / ".env", root / "notes.txt")
    os.link(root / "a.py", root / "twin.py")
    (root / "link_to_notes").symlink_to("notes.txt")
    found = JudgedPaths(str(root), no_env).denied_file(path, for_write=for_write)
    assert (code_of(found) if isinstance(expected, ToolErrorCode) else found) == expected


def test_a_file_that_vanishes_while_it_is_judged_is_not_free(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object) -> None:
        raise FileNotFoundError(2, "")

    monkeypatch.setattr("nodes.execute_tools.environment.judged_paths.status_beneath", vanish)
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
        ("LOUD.MD", None),
        ("src/new.txt", None),
        ("a.py", not_allowed(".py")),
        ("nope.exe", not_allowed(".exe")),
        ("notes.md.EXE", not_allowed(".EXE")),
        ("notes.md.", not_allowed(".")),
        ("Makefile", not_allowed("")),
        (".md", not_allowed("")),
        ("shows.md", not_allowed(".py")),  # its real name
        ("shows.py", not_allowed(".py")),  # the name asked for
        ("x.\n", not_allowed(".\n")),
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


def test_extensions_are_for_reading_and_writing_and_not_for_directories(root: Path, text_only: JudgedPaths) -> None:
    assert open_file(text_only, "a.py") == not_allowed(".py")
    assert write_file(text_only, "new.py", b"", "") == not_allowed(".py")
    assert not (root / "new.py").exists()
    assert text_only.place("src", PathAccess.LIST_DIR) == Place("src", "src")
    assert text_only.place("a.py", PathAccess.LIST_DIR) == Place("a.py", "a.py")
    assert isinstance(write_file(text_only, "new/note.txt", b"", ""), type(content("", b"")))


def test_the_extension_of_what_was_opened_counts_as_well(
    root: Path, text_only: JudgedPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {os.stat(root).st_ino: str(root), os.stat(root / "notes.md").st_ino: f"{root}/notes.exe"}
    monkeypatch.setattr(
        "nodes.execute_tools.environment.judged_paths.handle_name", lambda fd: names[os.fstat(fd).st_ino]
    )
    assert open_file(text_only, "notes.md") == not_allowed(".exe")


def test_our_own_reading_is_free_of_extensions_but_not_of_the_judge(text_only: JudgedPaths) -> None:
    opened = open_file(text_only.of_any_extension(), "a.py")
    assert isinstance(opened, OpenedFile)
    with opened:
        assert opened.stream.read() == b"a = 1\r\n"
    assert open_file(text_only.of_any_extension(), ".env") == DENIAL
    assert open_file(text_only, "a.py") == not_allowed(".py")


def test_only_names_that_may_be_read_are_suggested(root: Path, text_only: JudgedPaths) -> None:
    (root / "notes.exe").touch()
    (root / "notes.d").mkdir()
    assert text_only.suggest("notes") == ("notes.d", "notes.md")
    assert text_only.of_any_extension().suggest("a.pyx") == text_only.suggest("a.pyx") == ()


# --- Names of what is open ---------------------------------------------------------------------------------------


def opened_as(paths: JudgedPaths, root: Path, name: str, place: Place) -> str | ToolError:
    with closing(open_root(str(root))) as top, closing(os.open(root / name, os.O_RDONLY)) as descriptor:
        return paths.opened_name(descriptor, top, place, for_write=False)


def test_a_directory_is_judged_by_its_real_name_and_has_no_extension(root: Path) -> None:
    paths = JudgedPaths(str(root), no_env, None, TEXT)
    place = Place("src", "src")
    assert opened_as(paths, root, "src", place) == "src"
    assert opened_as(paths, root, ".", place) == "."
    assert opened_as(paths, root, ".git", place) == DENIAL
    assert code_of(opened_as(paths, root, "../outside", place)) is ToolErrorCode.CONFLICT


def test_a_refused_file_is_closed_again(root: Path) -> None:
    os.link(root / ".env", root / "notes.txt")  # the fixture `root` counts the handles
    for paths in (JudgedPaths(str(root), no_env), JudgedPaths(str(root), allow)):
        opened = open_file(paths, "notes.txt")
        if isinstance(opened, OpenedFile):
            with opened:
                assert opened.stream.read() == SECRET
        else:
            assert opened.code is ToolErrorCode.PERMISSION_DENIED
