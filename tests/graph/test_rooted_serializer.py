from graph.context import AgentContext
from graph.rooted_serializer import RootedSerializer
from graph.state import serializer


def test_a_context_names_the_folder_where_its_run_works_now() -> None:
    rooted = RootedSerializer(serializer(), "/here")
    here, there = AgentContext(workspace="/here", model="m"), AgentContext(workspace="/there", model="m")
    assert [rooted.loads_typed(rooted.dumps_typed(each)) for each in (here, there)] == [here, here]


def test_everything_else_is_as_it_was_stored() -> None:
    rooted, plain = RootedSerializer(serializer(), "/here"), serializer()
    for value in ("/there", {"workspace": "/there"}, [1, None]):
        assert rooted.dumps_typed(value) == plain.dumps_typed(value)
        assert rooted.loads_typed(plain.dumps_typed(value)) == value
