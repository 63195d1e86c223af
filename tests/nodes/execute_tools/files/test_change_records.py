"""What the journal speaks of: words that are stored, and a recorder that keeps its promise."""

from mendgraph.nodes.execute_tools.files.change_records import ChangeState


def test_the_words_for_states_are_a_storage_format() -> None:
    assert [state.value for state in ChangeState] == ["intended", "done", "undone", "reverted", "foreign"]
