import os
from pathlib import Path

from pydantic import BaseModel

from nodes.execute_tools.cache import LARGEST_READ_AGAIN, ToolCache
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from nodes.execute_tools.tools.read_file import read_file
from nodes.records import Effect, ToolError, ToolErrorCode


class Nothing(BaseModel):
    pass


def make(name: str, *, cacheable: bool = True) -> Tool:
    return Tool(name, "d", Nothing, Effect.READ, lambda *_: ToolOutput.ok(), cacheable=cacheable)


ONE, TWO = make("one"), make("two")
FAILED = ToolOutput.failed(ToolError(code=ToolErrorCode.IO_ERROR, message="m"))


def test_the_key_is_the_tool_and_the_exact_text() -> None:
    cache = ToolCache()
    assert cache.store(ONE, '{"x":1}', ToolOutput.ok(a=1)) is True
    assert cache.get(ONE, '{"x":1}') == ToolOutput.ok(a=1)
    assert cache.get(ONE, '{ "x":1 }') is None
    assert cache.get(TWO, '{"x":1}') is None


def test_failures_and_what_is_not_cacheable_are_not_kept() -> None:
    cache = ToolCache()
    assert cache.store(ONE, "", FAILED) is False
    assert cache.store(make("three", cacheable=False), "", ToolOutput.ok()) is False
    assert cache.get(ONE, "") is None


def test_everything_can_be_forgotten() -> None:
    cache = ToolCache()
    cache.store(ONE, "", ToolOutput.ok())
    cache.clear()
    assert cache.get(ONE, "") is None


# --- In a later step, when another program may have changed the workspace

RAW = '{"filename": "link.py"}'


class Step:
    """A workspace of one file, which is read by its link, and a cache that holds what was read."""

    def __init__(self, root: Path, content: str = "a = 1\n") -> None:
        self.root, self.cache = root, ToolCache()
        (root / "a.py").write_text(content)
        (root / "link.py").symlink_to("a.py")
        self.begin()
        output: ToolOutput = read_file.s(ToolContext(self.workspace), path="link.py")
        assert self.cache.store(read_file, RAW, output)

    def begin(self, settings: object = "the same", *denied: str) -> None:
        why = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="m")
        self.workspace = Workspace(str(self.root), lambda path, _: why if path in denied else None)
        self.cache.begin_step(self.workspace, settings)

    def served(self) -> bool:
        return self.cache.get(read_file, RAW) is not None


def test_a_read_is_served_while_its_path_leads_to_the_same_bytes(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.begin()
    assert step.served()
    before = os.stat(tmp_path / "a.py")
    (tmp_path / "a.py").write_text("a = 2\n")
    os.utime(tmp_path / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not step.served()
    (tmp_path / "a.py").write_text("a = 1\n")
    assert step.served()
    (tmp_path / "b.py").write_text("a = 1\n")
    (tmp_path / "link.py").unlink()
    assert not step.served()
    (tmp_path / "link.py").symlink_to("b.py")
    assert not step.served()


def test_a_read_that_would_be_denied_now_is_not_served(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.begin("the same", "a.py")
    assert not step.served()


def test_a_read_under_other_settings_is_forgotten(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.begin("others")
    step.begin()
    assert not step.served()


def test_a_file_that_is_too_large_to_be_read_again_is_not_served(tmp_path: Path) -> None:
    assert not Step(tmp_path, "x" * LARGEST_READ_AGAIN + "\n").served()


def test_what_names_no_file_is_served_in_its_step_alone(tmp_path: Path) -> None:
    cache = ToolCache()
    cache.begin_step(Workspace(str(tmp_path), lambda *_: None), None)
    cache.store(ONE, "{}", ToolOutput.ok(a=1))
    assert cache.get(ONE, "{}") == ToolOutput.ok(a=1)
    cache.begin_step(Workspace(str(tmp_path), lambda *_: None), None)
    assert cache.get(ONE, "{}") is None


def test_the_oldest_is_forgotten_when_it_is_full() -> None:
    cache = ToolCache(most=2)
    for raw in ("a", "b", "c"):
        cache.store(ONE, raw, ToolOutput.ok(raw=raw))
    assert [cache.get(ONE, raw) for raw in ("a", "b", "c")] == [None, ToolOutput.ok(raw="b"), ToolOutput.ok(raw="c")]
