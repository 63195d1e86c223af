"""Private names of LangGraph are used in one module; this fails when LangGraph renames one or makes it public."""

import langgraph.checkpoint.serde.types as serde_types
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.state import CompiledStateGraph

from tests.architecture.product import sources, text_of

ALLOWED = "graph/machine/langgraph_private.py"
NAMES = ("_DeltaSnapshot", "__pregel_", "_resolve_checkpointer", "_unpack_ext_hook", "_allowed_msgpack_modules")


@pytest.mark.parametrize("name", NAMES)
def test_private_name_is_used_in_one_module_of_the_machine(name: str) -> None:
    assert [path for path in sources("graph/machine") if name in text_of(path)] == [ALLOWED]


def test_private_names_of_langgraph_are_not_public_yet() -> None:
    assert hasattr(serde_types, "_DeltaSnapshot")
    assert not hasattr(serde_types, "DeltaSnapshot")
    assert hasattr(CompiledStateGraph, "_resolve_checkpointer")
    assert not hasattr(CompiledStateGraph, "resolve_checkpointer")
    assert hasattr(JsonPlusSerializer(), "_unpack_ext_hook")
    assert JsonPlusSerializer().with_msgpack_allowlist([("a", "b")])._allowed_msgpack_modules is True  # issue 7695
