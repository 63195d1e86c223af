"""No command changes, replaces or makes the settings of mendgraph. Skipped where no sandbox starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.protected_settings import SET_ASIDE, kept_settings
from nodes.execute_tools.environment.settings_files import SETTINGS_FILE, read_settings_file
from nodes.records import ToolError
from tests.nodes.execute_tools.environment.command_place import Place, command_place

TEXT = 'mode = "ask"\n'


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path) as made:
        yield made


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith(".mendgraph"))


@pytest.mark.parametrize(
    "attack",
    [
        f"echo evil > {SETTINGS_FILE}",
        f"echo evil >> {SETTINGS_FILE}",
        f"rm -f {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}",
        f"mv {SETTINGS_FILE} x; echo evil > {SETTINGS_FILE}",
        f"echo evil > x; mv -f x {SETTINGS_FILE}",
        f"ln -f {SETTINGS_FILE} x; echo evil > x",
        f"ln -sf a {SETTINGS_FILE}",
        f"chmod 777 {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}",
        "echo evil > other-name",
    ],
)
def test_settings_stay_as_they_are(place: Place, attack: str) -> None:
    path = place.root / SETTINGS_FILE
    path.write_text(TEXT)
    os.link(path, place.root / "other-name")
    assert TEXT in place.says(f"cat {SETTINGS_FILE}; {attack}")
    assert (path.read_text(), path.is_symlink(), names(place.root)) == (TEXT, False, [SETTINGS_FILE])


@pytest.mark.parametrize(
    "attack",
    [f"{make} {SETTINGS_FILE}" for make in ("echo evil >", "ln -s src/a.py", "mkdir", "mkfifo")],
)
def test_settings_that_a_command_makes_are_set_aside_and_told(place: Place, attack: str) -> None:
    result = place.result("sh", "-c", attack)
    assert result.exit_code == 0
    assert names(place.root) == [SET_ASIDE]
    assert read_settings_file(str(place.root)) is None


def test_made_settings_are_told(place: Place) -> None:
    result = place.result("sh", "-c", f"echo x > {SETTINGS_FILE}; mkdir sub; echo x > sub/{SETTINGS_FILE}")
    assert result.made_denied == (SETTINGS_FILE, f"sub/{SETTINGS_FILE}")


def test_a_link_cannot_be_made_into_settings(place: Place) -> None:
    (place.root / SETTINGS_FILE).symlink_to("src/a.py")
    place.result("sh", "-c", f"rm {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}")
    assert names(place.root) == [SET_ASIDE]


def test_what_stands_in_the_place_of_settings_cannot_be_replaced(place: Place) -> None:
    (place.root / SETTINGS_FILE).mkdir()
    place.result("sh", "-c", f"rmdir {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}")
    assert isinstance(read_settings_file(str(place.root)), ToolError)
    (place.root / "sub").mkdir()
    os.mkfifo(place.root / "sub" / SETTINGS_FILE)
    place.result("sh", "-c", f"cd sub; rm -f {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}")
    assert isinstance(read_settings_file(str(place.root / "sub")), ToolError)


def test_a_command_sees_no_placeholder_and_leaves_none(place: Place) -> None:
    assert SETTINGS_FILE not in place.says("ls -a")
    assert names(place.root) == []


def test_what_is_there_before_is_not_set_aside(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(TEXT)
    with closing(open_root(str(tmp_path))) as root, kept_settings(root):
        (tmp_path / "new").write_text("an editor's")
        (tmp_path / "new").rename(tmp_path / SETTINGS_FILE)
    assert (names(tmp_path), (tmp_path / SETTINGS_FILE).read_text()) == ([SETTINGS_FILE], "an editor's")
