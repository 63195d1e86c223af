"""Where Studio shows the fields of its form."""

from graph.context import AgentContext
from graph.form_places import PLACES, place_fields
from graph.routes import NODES


def test_fields_are_placed_at_nodes_that_there_are() -> None:
    schema = AgentContext.model_json_schema()["properties"]
    placed = {name: tuple(field["langgraph_nodes"]) for name, field in schema.items()}
    assert placed == {name: PLACES.get(name, ("call_model",)) for name in AgentContext.model_fields}
    assert {node for nodes in placed.values() for node in nodes} < set(NODES)


def test_no_place_is_for_a_field_that_is_gone() -> None:
    assert set(PLACES) - set(AgentContext.model_fields) == set()


def test_a_schema_without_fields_stays_as_it_is() -> None:
    schema = {"type": "string"}
    place_fields(schema)
    assert schema == {"type": "string"}
