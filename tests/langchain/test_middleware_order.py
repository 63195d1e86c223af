"""mendgraph's middleware together: each keeps its promise in every order, and one order is documented."""

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import (
    BudgetMiddleware,
    EvidenceMiddleware,
    ExactlyOnceMiddleware,
    FileRulesMiddleware,
    HealingMiddleware,
    LoopGuardMiddleware,
    RedactionMiddleware,
)
from tests.doubles.replies import Empty
from tests.doubles.scripted_server import Reply, Say, ScriptedServer
from tests.extent import LEVEL, sampled
from tests.langchain.coders import THREAD, coder, reply_with_calls, run_turn
from tests.sandboxes import needs_sandbox

KEY: Final = "ghp_0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"
WORD: Final = "hunter2-hunter2-hunter2"
TEST: Final = "from calc import add\n\n\ndef test_zero():\n    assert add(2, 0) == 2\n"
MOST_CALLS, MOST_TOKENS = 12, 400

MAKE: Final[dict[str, Callable[[Path], Any]]] = {
    "RedactionMiddleware": lambda _: RedactionMiddleware(),
    "FileRulesMiddleware": lambda root: FileRulesMiddleware(root=str(root)),
    "LoopGuardMiddleware": lambda _: LoopGuardMiddleware(),
    "ExactlyOnceMiddleware": ExactlyOnceMiddleware,
    "EvidenceMiddleware": lambda root: EvidenceMiddleware(str(root)),
    "HealingMiddleware": lambda _: HealingMiddleware(),
    "BudgetMiddleware": lambda _: BudgetMiddleware(
        max_calls_per_turn=MOST_CALLS, max_output_tokens_per_call=MOST_TOKENS
    ),
}
"""In the documented order."""

PAGE_STACK: Final = ("FileRulesMiddleware", "LoopGuardMiddleware", "EvidenceMiddleware", "BudgetMiddleware")
FIRST_PLACES: Final = len(MAKE) if LEVEL else 2


def some_orders_of_all() -> Iterator[tuple[str, ...]]:
    """Orders in which each middleware is first once, forwards or backwards; in `make test` one of each direction."""
    names = tuple(MAKE)
    for place in range(FIRST_PLACES):
        turned = names[place:] + names[:place]
        yield turned if place % 2 else turned[::-1]


def code(value: str) -> str:
    return f"def add(a, b):\n    return {value}\n"


def read(path: str) -> Reply:
    return reply_with_calls(("read_file", {"path": path}))


def save(value: str) -> Reply:
    return reply_with_calls(("save", {"edits": [{"filePath": "calc.py", "text": code(value)}]}))


def script(names: tuple[str, ...]) -> list[Reply]:
    """A turn in which each middleware has something to do."""
    replies: list[Reply] = []
    if "FileRulesMiddleware" in names:
        replies.append(read(".env"))
    if "RedactionMiddleware" in names:
        replies.append(read("notes.txt"))
    if "HealingMiddleware" in names:
        replies.append(Empty())
    replies += [save("a * b"), Say("Done.")]
    if "EvidenceMiddleware" in names:
        replies += [save("a + b"), Say("Now it adds.")]
    return replies


@sampled
@needs_sandbox
@pytest.mark.parametrize(
    ("names", "loop"),
    [(PAGE_STACK, False), (PAGE_STACK[::-1], True), *((names, False) for names in some_orders_of_all())],
)
def test_middleware_keeps_its_promise_in_every_order(names: tuple[str, ...], loop: bool, tmp_path: Path) -> None:
    files = {"calc.py": code("a - b"), "test_calc.py": TEST, ".env": f"VALUE={WORD}\n", "notes.txt": f"{KEY}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    replies = script(names)

    with ScriptedServer(replies) as server:
        saver = InMemorySaver()
        agent = coder(server, tmp_path, *(MAKE[name](tmp_path) for name in names), checkpointer=saver)
        state = run_turn(agent, "Repair add in calc.py: it has to add.", loop)
        spending: dict[str, Any] = agent.get_state(THREAD).values["mendgraph_budget"]["spending"]
        assert state["messages"][-1].text == "Now it adds."
        assert state["verified"]["kind"] == "passed"
        assert len(server.requests) == spending["usage"][0] == len(replies)
        assert WORD not in str(server.requests)
        if "RedactionMiddleware" in names:
            assert KEY not in str(server.requests) + str(state["messages"])

        server.requests.clear()
        server.say_next(*[read("calc.py")] * 9)
        last = run_turn(agent, "What does it say?", loop)["messages"][-1]
        assert last.text.startswith("The same call was made 4 times")
        assert len(server.requests) == 4

    numbers = count(1)
    with ScriptedServer(then=lambda _: read(f"file_{next(numbers)}.txt")) as server:
        for number in range(1, MOST_CALLS + 1):
            (tmp_path / f"file_{number}.txt").write_text("Nothing.\n", encoding="utf-8")
        agent = coder(server, tmp_path, *(MAKE[name](tmp_path) for name in names), checkpointer=saver)
        last = run_turn(agent, "Read all files.", loop)["messages"][-1]
        assert last.text == f"Limit 'max_calls_per_turn' exceeded: {MOST_CALLS}/{MOST_CALLS}"
        assert len(server.requests) == MOST_CALLS
        assert {request["max_completion_tokens"] for request in server.requests} == {MOST_TOKENS}


def test_example_and_list_on_the_page_have_the_same_order() -> None:
    page = (Path(__file__).parents[2] / "docs/middleware.md").read_text(encoding="utf-8")
    block = re.search(r"middleware=\[\n(.*?)\n    \],", page, re.DOTALL)
    assert block is not None
    assert tuple(re.findall(r"(\w+Middleware)\(", block[1])) == PAGE_STACK
    assert re.findall(r"^\d\. `(\w+Middleware)`", page, re.MULTILINE) == list(MAKE)
