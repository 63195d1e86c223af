"""Names are swapped for links that lead out, between the check of a tool and its effect.

Beside each tool runs a control that checks a real name and then opens it. The race counts only once the control has
lost it 200 times; the tools must not lose it once.
"""

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.edit_file import edit_file
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.search_files import glob_files, list_files, search_files
from mendgraph.nodes.execute_tools.tools.write_file import append_file, delete_file, move_file, write_file
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.records import ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.workspace.attacks.swapper import CANARY, INSIDE, ONLY_OUTSIDE, OUTSIDE, build, swapping

LOSSES = 10
ROUNDS = 3
"""Each tool runs at least as often."""
MOST_GO_WELL = 12
"""So many of the operations have to go well at least once: a tool that refuses everything shows nothing."""
PATIENCE_S = 120.0
"""On a host on which the control loses more slowly than that, the race cannot be shown."""

CONTROLS = ("door/f.txt", "leaf.txt")
FAIR = frozenset(
    {
        ToolErrorCode.PERMISSION_DENIED,
        ToolErrorCode.CONFLICT,
        ToolErrorCode.NOT_FOUND,
        ToolErrorCode.INVALID_ARGUMENT,  # what is a link and a file in turn can look like a circle of links
    }
)

Operation = Callable[[ToolContext, int], ToolOutput]


def call(tool: Tool, **arguments: Any) -> Operation:
    """The tool with these arguments; `{turn}` in them is the number of the round."""

    def run(context: ToolContext, turn: int) -> ToolOutput:
        formatted = {key: str(value).format(turn=turn) for key, value in arguments.items()}
        output: ToolOutput = tool.s(context, **formatted)
        return output

    return run


OPERATIONS: dict[str, Operation] = {
    "read door": call(read_file, path="door/f.txt"),
    "read leaf": call(read_file, path="leaf.txt"),
    "create": call(write_file, path="door/{turn}.txt", content="MARK new\n"),
    "create below": call(write_file, path="door/new/{turn}.txt", content="MARK new\n"),
    "replace door": call(write_file, path="door/f.txt", content="MARK fine {turn}\n"),
    "replace leaf": call(write_file, path="leaf.txt", content="MARK fine {turn}\n"),
    "edit door": call(edit_file, path="door/f.txt", old_str="MARK fine", new_str="MARK fine, {turn}"),
    "edit leaf": call(edit_file, path="leaf.txt", old_str="MARK fine", new_str="MARK fine, {turn}"),
    "append door": call(append_file, path="door/f.txt", content="MARK more\n"),
    "append leaf": call(append_file, path="leaf.txt", content="MARK more\n"),
    "move out of door": call(move_file, path="door/f.txt", target="moved/{turn}.txt"),
    "move into door": call(move_file, path="still.txt", target="door/{turn}.txt"),
    "delete door": call(delete_file, path="door/f.txt"),
    "delete leaf": call(delete_file, path="leaf.txt"),
    "list": call(list_files, path="door"),
    "glob": call(glob_files, pattern="*.txt"),
    "glob door": call(glob_files, pattern="*.txt", path="door"),
    "search": call(search_files, pattern="MARK"),
    "search door": call(search_files, pattern="MARK", path="door"),
    "search leaf": call(search_files, pattern="MARK", path="leaf.txt"),
}


class Inside:
    """The real directory `door`, whatever its current name, through a handle that was opened before the race."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = os.open(root / "door", os.O_RDONLY | os.O_DIRECTORY)

    def put(self) -> None:
        """`f.txt` as it was in the beginning and nothing else, and what a tool may move."""
        for name in set(os.listdir(self._folder)) - {"f.txt", "new"}:
            os.unlink(name, dir_fd=self._folder)
        descriptor = os.open("f.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self._folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(INSIDE)
        shutil.rmtree(self._root / "moved", ignore_errors=True)
        (self._root / "still.txt").write_bytes(INSIDE)

    def close(self) -> None:
        os.close(self._folder)


def control_losses(root: str, name: str) -> int:
    """How often a guard that checks a real name and then opens it reveals the file outside, in 20 attempts.

    Now and then it is held up in between: on a busy host the swapper has no core of its own, and hardly ever comes in.
    """
    return sum(checked_then_opened(f"{root}/{name}", root, late=attempt % 5 == 0) == OUTSIDE for attempt in range(20))


def checked_then_opened(path: str, root: str, *, late: bool) -> bytes:
    with suppress(OSError):
        if os.path.realpath(path).startswith(f"{root}/"):
            if late:
                time.sleep(0.0001)
            with open(path, "rb") as file:
                return file.read()
    return b""


def state_of(outside: Path) -> dict[str, Any]:
    """Everything that a change would alter; a temporary name changes the folder's times."""
    paths = [outside, *sorted(outside.rglob("*"))]
    return {
        str(path): (
            status.st_ino,
            status.st_mode,
            status.st_nlink,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        for path in paths
        for status in [path.lstat()]
    }


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The workspace; nothing beside it may have changed in the end, and no handle may be open."""
    base = tmp_path.resolve()
    root = build(base)
    before, handles = state_of(base / "outside"), os.listdir("/dev/fd")
    yield root
    assert state_of(base / "outside") == before
    assert os.listdir("/dev/fd") == handles


def test_no_tool_follows_a_name_that_is_swapped_for_a_link(root: Path) -> None:
    workspace = Workspace(str(root), partial(judge_path, rules=DEFAULT_GUARDRAIL_RULES))
    digest = hashlib.sha256(INSIDE).hexdigest()
    context = ToolContext(workspace, dict.fromkeys(("door/f.txt", "door-link/f.txt", "leaf.txt"), digest))
    inside, lost, went_well = Inside(root), Counter[str](), Counter[str]()
    start, turn = time.monotonic(), 0
    try:
        with swapping(root):
            while turn < ROUNDS or min(lost[name] for name in CONTROLS) < LOSSES or len(went_well) < MOST_GO_WELL:
                for name, operation in OPERATIONS.items():
                    for control in CONTROLS:
                        lost[control] += control_losses(str(root), control)
                    inside.put()
                    output = operation(context, turn)
                    assert of_outside(output) == set(), (name, output)
                    assert output.result.error is None or output.result.error.code in FAIR, (name, output)
                    went_well.update([name] * output.result.ok)
                turn += 1
                assert time.monotonic() - start < PATIENCE_S, f"no race in time: {turn=}, {lost=}, {went_well=}"
    finally:
        inside.close()


def of_outside(output: ToolOutput) -> set[str]:
    """The content from outside that occurs anywhere in the output."""
    text = repr(output)
    return {word for word in (CANARY, ONLY_OUTSIDE) if word in text}
