import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.path_shape import LONGEST_NAME, extension_denial, malformed, names_no_file
from nodes.records import ToolError, ToolErrorCode


def invalid(message: str, *suggestions: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "The path is empty: name a file or directory of the workspace."),
        (" \t\n", "The path is empty: name a file or directory of the workspace."),
        ("a\0b", r"The path 'a\x00b' contains a NUL character."),
        ("a\ud800", r"The path 'a\ud800' is not valid Unicode text."),
        ("x" * 256, f"The path '{'x' * 200}...' is too long: 255 bytes a name, 4096 in all."),
        ("ä" * 128, f"The path '{'ä' * 128}' is too long: 255 bytes a name, 4096 in all."),
        ("a/" * 2_100, f"The path '{'a/' * 100}...' is too long: 255 bytes a name, 4096 in all."),
    ],
)
def test_what_is_no_path(path: str, message: str) -> None:
    assert malformed(path) == invalid(message)


@pytest.mark.parametrize(
    "path", ["a", "..", "/", "a b", "a\nb", "\u202e", "x" * 255, "-rf", "~", "C:\\x", "a/" * 2_000]
)
def test_what_is_a_path_however_odd(path: str) -> None:
    assert malformed(path) is None


@pytest.mark.parametrize("path", ["a/", "a//", "a/.", "a/b/", "../", "./", "/"])
def test_a_slash_at_the_end_names_no_file(path: str) -> None:
    assert names_no_file(path, "a") == invalid(f"The path {path!r} names a directory, and a file is needed.", "a")


@pytest.mark.parametrize("path", ["a", ".", "a.", "a/.b", "..."])
def test_other_names_may_be_files(path: str) -> None:
    assert names_no_file(path, "a") is None


@given(path=st.text(max_size=LONGEST_NAME * 2))
def test_whatever_is_a_path_can_be_handed_to_the_system(path: str) -> None:
    if malformed(path) is None:
        assert b"\0" not in path.encode()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("a.md", {".md"}), ("b/a.MD", {".txt", ".md"}), ("a.exe", set()), ("a.tar.gz", {".gz"}), ("a", {""})],
)
def test_an_allowed_extension_is_no_reason(name: str, allowed: set[str]) -> None:
    assert extension_denial(name, allowed) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.exe", "Extension '.exe' not allowed. Allowed: .md, .txt."),
        ("a.md.exe", "Extension '.exe' not allowed. Allowed: .md, .txt."),
        ("dir.md/a", "Extension '' not allowed. Allowed: .md, .txt."),
        (".md", "Extension '' not allowed. Allowed: .md, .txt."),
        ("a.md ", "Extension '.md ' not allowed. Allowed: .md, .txt."),
        ("a.\uff4dd", "Extension '.\uff4dd' not allowed. Allowed: .md, .txt."),
        ("a.\u202edm", r"Extension '.\u202edm' not allowed. Allowed: .md, .txt."),
    ],
)
def test_another_extension_is_named_with_the_allowed_ones(name: str, message: str) -> None:
    assert extension_denial(name, {".txt", ".md"}) == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
