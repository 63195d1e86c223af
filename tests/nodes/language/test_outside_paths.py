import pytest

from nodes.language.outside_paths import names_elsewhere


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
