"""Every saver that the machine uses, against LangGraph's conformance suite for checkpointers."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from mendgraph.graph.machine.serializer import own_saver
from mendgraph.graph.persistence.store import Store

DONE: dict[str, tuple[int, list[str]]] = {
    "put": (17, []),
    "put_writes": (10, []),
    "get_tuple": (10, []),
    "list": (16, []),
    "delete_thread": (5, []),
}
"""How many of the suite's tests pass for each capability, and which fail."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "delete_for_runs": (["run"],),
    "prune": (["thread"],),
    "copy_thread": ("thread", "copy"),
}
"""What no saver of LangGraph's own does either, and how it is asked for.

The first two take checkpoints out of the middle of a thread, whose growing channels are made of the writes at their
ancestors: a run is forgotten whole, with its journal (`Store.delete`). A copy of the checkpoints alone would be a run
without record and journal: `fork` makes one with both.
"""

Made = Callable[[], AsyncGenerator[Any, None]]


def check_conformance(make_saver: Made) -> None:
    """Assert that each capability exists, or is declared as missing."""

    async def all_of_it() -> None:
        report = await validate(checkpointer_test(name="ours")(make_saver))
        results = {
            name: (result.tests_passed, result.failures) for name, result in report.results.items() if result.detected
        }
        assert results == DONE
        assert report.results.keys() - results.keys() == REFUSED.keys()
        async for saver in make_saver():
            for name, arguments in REFUSED.items():
                with pytest.raises(NotImplementedError):
                    await getattr(saver, f"a{name}")(*arguments)

    asyncio.run(all_of_it())


def test_saver_of_a_workspace_passes_langgraphs_conformance_suite(any_store: str, tmp_path: Path) -> None:  # noqa: ARG001 - with both
    async def make_saver() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        with closing(Store(str(tmp_path))) as store:
            yield store.saver

    check_conformance(make_saver)


async def in_memory() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
    yield own_saver(InMemorySaver())


async def in_a_file() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
    async with AsyncSqliteSaver.from_conn_string(":memory:") as lent:
        yield own_saver(lent)


@pytest.mark.parametrize("make_saver", [in_memory, in_a_file])
def test_users_saver_with_our_serializer_passes_langgraphs_conformance_suite(make_saver: Made) -> None:
    check_conformance(make_saver)
