"""Random trees of links and random spellings: what is opened is inside, and is what the kernel resolves."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from tests.extent import slow
from tests.workspace.attacks.layouts import picture
from tests.workspace.files.layout import allow

OUTSIDE = b"outside"
FOLDERS = ("", "d", "d/e")
PLACES = tuple(os.path.join(folder, name) for folder in FOLDERS for name in ("l", "m", "n"))
"""A link stands at each of them."""

TARGETS = (
    *("f", "../f", "d/f", "d", "..", "../..", ".", "d/e", "../d/n", "l", "m", "n", "new", "../root", "../root/d/f"),
    *("../outside", "../../outside", "../../../outside", "../outside/d/f", "../../outside/new"),
    *("{outside}", "{outside}/d", "{outside}/f", "{root}", "{root}/d", "{root}/d/e", "{root}/m", "{root}/f"),
)
STARTS = ("l", "m", "n", "d", "d/e", "", "..", "../outside", "../root", "./l", "d/l", "d/m", "{root}", "{outside}/..")
MIDDLES = ("", "", "", "l", "m", "n", "d", "..", "root", "outside", "d/../l")
ENDS = ("f", "f", "f", "f", "d/f", "l", "m", "new", "f/")
SPELLINGS = 12
"""For each tree."""


class Example(NamedTuple):
    """The targets of the links, by place, and the requested paths."""

    targets: tuple[str, ...]
    paths: tuple[str, ...]


def example(seed: int) -> Example:
    """Every choice as likely as the next one; hypothesis, which likes small values, would follow few links."""
    some = Random(seed)
    targets = tuple(some.choice(TARGETS) for _ in PLACES)
    ways = ((some.choice(STARTS), some.choice(MIDDLES), some.choice(ENDS)) for _ in range(SPELLINGS))
    return Example(targets, tuple(os.path.join(*way) for way in ways))


EXAMPLES = st.builds(example, st.integers(0, 2**32))


@contextmanager
def built(targets: tuple[str, ...]) -> Iterator[Path]:
    """The same folders inside and outside with a file in each, and the links. A file inside says where it is."""
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder).resolve() / "root", Path(folder).resolve() / "outside"
        for below in FOLDERS:
            for top, content in ((root, os.path.join(below, "f").encode()), (outside, OUTSIDE)):
                (top / below).mkdir(parents=True, exist_ok=True)
                (top / below / "f").write_bytes(content)
        for place, target in zip(PLACES, targets, strict=True):
            (root / place).symlink_to(target.format(root=root, outside=outside))
        yield root


def spelled(root: Path, path: str) -> str:
    return path.format(root=root, outside=root.parent / "outside")


def real_file(root: Path, path: str) -> str | None:
    """The oracle: the file inside that the spelling leads to, by its real name."""
    try:
        real = os.path.realpath(os.path.normpath(root / path), strict=True)
    except OSError:
        return None
    inside = os.path.isfile(real) and real.startswith(f"{root}/") and not path.endswith("/")
    return os.path.relpath(real, root) if inside else None


@slow
@given(example=EXAMPLES)
@settings(max_examples=25)
def test_read_file_is_inside_and_is_the_one_that_the_kernel_resolves(example: Example) -> None:
    with built(example.targets) as root:
        before = picture(root.parent)
        for path in (spelled(root, path) for path in example.paths):
            result, expected = Workspace(str(root), allow).read_file(path), real_file(root, path)
            if expected is None:
                assert isinstance(result, ToolError), path
            else:
                assert result == FileContent.of(expected, expected.encode()), path
        assert picture(root.parent) == before


@slow
@given(example=EXAMPLES)
@settings(max_examples=10)
def test_written_file_is_inside_and_nothing_else_changes(example: Example) -> None:
    with built(example.targets) as root:
        for path in (spelled(root, path) for path in example.paths):
            before = picture(root.parent)
            written = Workspace(str(root), allow).write_file(path, b"new", expected_sha256="")
            changed = {name for name, seen in picture(root.parent).items() if before.get(name) != seen}
            if isinstance(written, FileContent):
                assert f"root/{written.path}" in changed, path
                above = {name for name in changed if f"root/{written.path}".startswith(f"{name}/")}
                assert changed == {f"root/{written.path}", *above}, path
            else:
                assert changed == set(), path
