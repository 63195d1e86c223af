from pydantic import BaseModel

from nodes.execute_tools.cache import ToolCache
from nodes.execute_tools.registry import Tool, ToolOutput
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


def test_the_oldest_is_forgotten_when_it_is_full() -> None:
    cache = ToolCache(most=2)
    for raw in ("a", "b", "c"):
        cache.store(ONE, raw, ToolOutput.ok(raw=raw))
    assert [cache.get(ONE, raw) for raw in ("a", "b", "c")] == [None, ToolOutput.ok(raw="b"), ToolOutput.ok(raw="c")]
