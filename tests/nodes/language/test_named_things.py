import pytest
from hypothesis import given, strategies as st

from nodes.language.names import named_identifiers, named_paths, names_elsewhere


@pytest.mark.parametrize(
    ("request_text", "names"),
    [
        ("In which file is retry_delay defined?", ["retry_delay"]),
        ("What does `parse` return, and HttpClient?", ["parse", "HttpClient"]),
        ("median([1, 2]) gives 2, and median is wrong.", ["median"]),
        ("camelCase and MAX_SIZE in src/my_file.py", ["camelCase", "MAX_SIZE"]),
        ("The tests fail. JSON is fine.", []),
        ("`len()` of it", ["len"]),
        ("", []),
    ],
)
def test_a_name_in_code_looks_like_one(request_text: str, names: list[str]) -> None:
    assert named_identifiers(request_text) == names


@pytest.mark.parametrize(
    ("request_text", "paths"),
    [
        ("Write a module words.py.", ["words.py"]),
        ("Fix ./src/a.py and 'my notes.md', then src/a.py", ["my notes.md", "src/a.py", "notes.md"]),
        ("Nothing here", []),
    ],
)
def test_paths_are_found_where_they_stand(request_text: str, paths: list[str]) -> None:
    assert named_paths(request_text) == paths


@given(st.text(max_size=300))
def test_each_is_named_once_and_stands_in_the_request(text: str) -> None:
    for found in (named_paths(text), named_identifiers(text)):
        assert len(found) == len(set(found))
        assert all(name in text for name in found)


@pytest.mark.parametrize(
    ("path", "elsewhere"),
    [
        *((path, True) for path in ("~", "~/a.py", "~bob/a.py", "C:\\a.py", "c:/a.py", "\\\\host\\a.py", "file:/a")),
        *((path, True) for path in ("file:///a.py", "https://example.com/a.py", "vscode-vfs://github/a.py")),
        *((path, False) for path in ("", ".", "a.py", "/a.py", "a~", "~a.py", "a/~/b", "./~/a.py", "./C:/a.py")),
        *((path, False) for path in ("a:b", "src/a:/b", "a\\b", "\\a", "12:30/x", "@result/1")),
    ],
)
def test_what_names_another_place_by_its_form(path: str, elsewhere: bool) -> None:
    assert names_elsewhere(path) is elsewhere
