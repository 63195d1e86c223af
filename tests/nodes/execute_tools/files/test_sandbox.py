import os
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_root
from mendgraph.nodes.execute_tools.files.sandbox import (
    PathAccess,
    PathSandbox,
    check_workspace,
    extension_denial,
    is_system_directory,
    malformed,
)
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace
from mendgraph.nodes.records import ToolError, ToolErrorCode

READ, WRITE, LIST = PathAccess.READ_FILE, PathAccess.WRITE_FILE, PathAccess.LIST_DIR
DENIED, INVALID, MISSING = (ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.NOT_FOUND)
SECRET = b"secret"

Form = Literal["NFC", "NFD"]


def build(base: Path) -> Path:
    """A workspace with links of each kind, and a folder outside it."""
    outside, root = base / "outside", base / "root"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret.txt").write_bytes(SECRET)
    (base / "root-evil").mkdir()
    (base / "root-evil" / "secret.txt").write_bytes(SECRET)
    (root / "src" / "deep").mkdir(parents=True)
    (root / "README.md").write_text("readme")
    (root / "src" / "calc.py").write_text("calc")
    links = {
        "file_out": outside / "secret.txt",
        "dir_out": outside,
        "new_out": outside / "new.txt",
        "etc": Path("/etc"),
        "up": Path(".."),
        "chain": Path("dir_out"),
        "src/deep/far": Path("../../../outside"),
        "file_in": Path("src/calc.py"),
        "dir_in": Path("src"),
        "absolute_in": root / "src",
        "new_in": Path("src/new.py"),
        "loop": Path("loop"),
        "ping": Path("pong"),
        "pong": Path("ping"),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build(tmp_path.resolve())


PATHS: list[tuple[str, PathAccess, str | ToolErrorCode]] = [
    # plain names
    ("README.md", READ, "README.md"),
    (".", LIST, "."),
    ("src/", LIST, "src"),
    ("src/new.py", WRITE, "src/new.py"),
    # nothing there
    ("nope.py", READ, MISSING),
    ("nope/new.py", WRITE, MISSING),
    # no path at all
    ("", READ, INVALID),
    ("a\0b", READ, INVALID),
    ("a\ud800b", READ, INVALID),
    ("README.md/", READ, INVALID),
    ("src/", WRITE, INVALID),
    ("README.md/x", READ, INVALID),
    # dots
    ("..", LIST, DENIED),
    ("../", LIST, DENIED),
    ("../outside/secret.txt", READ, DENIED),
    ("../root-evil/secret.txt", READ, DENIED),
    ("src/../../outside/secret.txt", READ, DENIED),
    ("dir_out/../README.md", READ, "README.md"),
    ("..hidden", WRITE, "..hidden"),
    # absolute names and other people's homes
    ("{root}/README.md", READ, "README.md"),
    ("/etc/hosts", READ, DENIED),
    ("/proc/self/cwd", READ, DENIED),
    ("/proc/self/root{root}/README.md", READ, DENIED),
    ("~$draft.md", WRITE, "~$draft.md"),
    # links that lead out
    ("file_out", READ, DENIED),
    ("file_out", WRITE, DENIED),
    ("dir_out/secret.txt", READ, DENIED),
    ("new_out", WRITE, DENIED),
    ("up", LIST, DENIED),
    ("up/root/README.md", READ, "README.md"),
    # links that stay
    ("file_in", READ, "src/calc.py"),
    ("dir_in/calc.py", READ, "src/calc.py"),
    ("dir_in/new.py", WRITE, "src/new.py"),
    ("new_in", WRITE, "src/new.py"),
    # links in a circle
    ("loop", READ, INVALID),
]


@pytest.mark.parametrize(("path", "access", "expected"), PATHS)
def test_where_a_path_leads(root: Path, path: str, access: PathAccess, expected: str | ToolErrorCode) -> None:
    found = PathSandbox(str(root)).resolve(path.replace("{root}", str(root)), access)
    if isinstance(expected, ToolErrorCode):
        assert isinstance(found, ToolError)
        assert found.code is expected
    else:
        assert found == os.path.normpath(root / expected)


@pytest.mark.parametrize("name", ["C:", "~old", "http:"])
def test_name_that_is_there_is_the_one_that_is_named(tmp_path: Path, name: str) -> None:
    """Whatever it means elsewhere; a repository may bring a folder of such a name."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "f.py").touch()
    files = Workspace(str(tmp_path), lambda *_: None)
    assert [entry.path for entry in files.walk() if entry.kind == "file"] == [f"{name}/f.py"]
    assert isinstance(files.read_file(f"{name}/f.py"), FileContent)
    denial = files.denied("/home/x/f.py")
    assert denial is not None
    assert denial.suggestions == (f"{name}/f.py",)
    assert isinstance(files.read_file(f"{name}/other.py"), ToolError)


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("/etc/hosts", "."),
        ("/etc/README.md/.", "README.md"),
        ("/workspace/src/calc.py", "src/calc.py"),
        ("dir_out/secret.txt", "."),
    ],
)
def test_escape_is_answered_with_a_relative_path(root: Path, path: str, suggestion: str) -> None:
    meant = "." if suggestion == "." else f"; did you mean {suggestion!r}?"
    assert PathSandbox(str(root)).resolve(path, READ) == ToolError(
        code=DENIED,
        message=f"{path!r} is outside the workspace{meant} Use a relative path under '.'.",
        suggestions=(suggestion,),
    )


def test_each_refusal_is_observed_with_root_cleaned_path_and_relation(root: Path) -> None:
    seen: list[dict[str, Any]] = []
    jail = PathSandbox(str(root), observe=seen.append)
    jail.resolve("README.md", READ)
    jail.resolve("./../outside//secret.txt", READ)
    jail.resolve("dir_out/secret.txt", READ)
    jail.resolve("src/nope", READ)
    place = {"root": str(root)}
    assert seen == [
        place
        | {
            "path": "./../outside//secret.txt",
            "clean": "../outside/secret.txt",
            "relative": "../outside/secret.txt",
            "code": "permission_denied",
        },
        place
        | {
            "path": "dir_out/secret.txt",
            "clean": "dir_out/secret.txt",
            "relative": "../outside/secret.txt",
            "code": "permission_denied",
        },
        place | {"path": "src/nope", "clean": "src/nope", "relative": "src/nope", "code": "not_found"},
    ]


@pytest.mark.parametrize("path", ["README.md/", "none/", "README.md/x", "x" * 300])
def test_name_of_the_workspace_is_in_no_message(root: Path, path: str) -> None:
    jail = PathSandbox(str(root))
    full, short = jail.resolve(f"{root}/{path}", READ), jail.resolve(path, READ)
    assert isinstance(full, ToolError)
    assert full == short


NAMES = ".. . src deep far calc.py dir_out file_out dir_in up chain loop new_out outside root secret.txt new ~ etc"
PARTS = st.sampled_from([*NAMES.split(), "", "absolute_in", "a\0", "\ud800", "{root}"])


@given(parts=st.lists(PARTS, max_size=7), access=st.sampled_from(PathAccess), absolute=st.booleans())
def test_whatever_is_resolved_lies_inside_and_opens_without_links(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], access: PathAccess, absolute: bool
) -> None:
    base = tmp_path_factory.getbasetemp().resolve() / "property"
    root = base / "root" if base.exists() else build(base)
    found = PathSandbox(str(root)).resolve("/" * absolute + "/".join(parts).replace("{root}", str(root)), access)
    if isinstance(found, ToolError):
        return
    relative = os.path.relpath(found, root)
    assert not relative.startswith("..")
    names = () if relative == "." else tuple(relative.split("/"))
    with closing(open_root(str(root))) as root_fd:
        try:
            opened = open_beneath(root_fd, names, os.O_RDONLY)
        except FileNotFoundError:
            assert access is WRITE
            return
        with closing(opened):
            assert os.path.isdir(found) or os.read(opened, 100) != SECRET


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.exe", "Extension '.exe' not allowed. Allowed: .md, .txt."),
        (".md", "Extension '' not allowed. Allowed: .md, .txt."),
        ("a.\u202edm", r"Extension '.\u202edm' not allowed. Allowed: .md, .txt."),
    ],
)
def test_another_extension_is_named_with_the_allowed_ones(name: str, message: str) -> None:
    assert extension_denial(name, {".txt", ".md"}) == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/usr", "/usr/bin", "/bin", "/sbin", "/var", "/dev", "/proc", "/proc/self", "/sys", "/boot"]
)
def test_system_directories_are_no_workspace(path: str) -> None:
    found = check_workspace(path)
    assert isinstance(found, ToolError)
    assert found.code in {DENIED, MISSING}


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library", "/private/etc", "/private/var/db"),
        *("/boot", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sys", "/usr/bin", "/run/user/0", "/dev/shm"),
    ],
)
def test_directory_of_the_system_is_known_whether_or_not_it_is_there(path: str) -> None:
    assert is_system_directory(path)


@pytest.mark.parametrize(
    "path",
    [
        *("/home/a", "/tmp/a", "/opt/a", "/etcetera", "/variable", "/srv", "/private/tmp/a"),
        *("/var/folders/a", "/private/var/folders/a", "/var/tmp/a", "/usr/src/a", "/usr/local/src/a"),
    ],
)
def test_directory_of_a_person_is_none_of_the_system(path: str) -> None:
    assert not is_system_directory(path)


@pytest.mark.parametrize(
    ("path", "is_path"),
    [
        ("a" * 255, True),
        ("a" * 256, False),
        ("é" * 127, True),
        ("é" * 128, False),
        ("é/" * 1_365 + "a", True),
        ("é/" * 1_366, False),
    ],
)
def test_names_and_paths_are_as_long_as_the_system_allows_in_bytes(path: str, is_path: bool) -> None:
    assert (malformed(path) is None) is is_path


def test_extension_is_allowed_in_any_case_and_all_are_where_none_is_named() -> None:
    assert extension_denial("a/README.MD", {".txt", ".md"}) is None
    assert extension_denial("a/b.exe", frozenset()) is None


def test_missing_workspace_is_told_with_a_remedy(tmp_path: Path) -> None:
    assert check_workspace(f"{tmp_path}/no") == ToolError(
        code=MISSING, message=f"The workspace '{tmp_path}/no' does not exist: make the folder, or name another one."
    )


@pytest.mark.parametrize(("existing", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_name_in_another_normal_form_is_the_file_that_is_there(tmp_path: Path, existing: Form, other: Form) -> None:
    name = "Größe/Über.txt"
    (tmp_path / normalize(existing, name)).parent.mkdir()
    (tmp_path / normalize(existing, name)).write_text("text")
    workspace = Workspace(str(tmp_path), lambda *_: None)

    content = workspace.read_file(normalize(other, name))
    assert isinstance(content, FileContent)
    assert content.path == normalize(existing, name)
    assert PathSandbox(str(tmp_path)).resolve(normalize(other, "Größe/new.txt"), WRITE) == str(
        tmp_path / normalize(existing, "Größe") / "new.txt"
    )
