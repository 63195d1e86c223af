"""The short history of a run tells of its steps what the whole one does."""

from pathlib import Path

from graph.build import build_graph
from graph.open_store import thread_config
from graph.step_history import step_history
from graph.store import Store
from nodes.records import ToolCall
from tests.graph.run_plays import cut_off, played, project

CHANNELS = ("step", "reading", "items")


def test_it_has_the_same_checkpoints_with_the_same_nodes_next(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    runs = [played(folder).thread_id, cut_off(folder)]
    store = Store(str(folder))
    for run_id in runs:
        whole = list(build_graph(store.saver).get_state_history(thread_config(run_id)))
        short = list(step_history(store.saver, run_id))
        assert len(whole) > 10
        assert [(each.config, each.next, each.values) for each in short] == [
            (each.config, each.next, {name: each.values[name] for name in CHANNELS if name in each.values})
            for each in whole
        ]
    assert {type(item) for each in short for item in each.values.get("items", ())} == {ToolCall}
    assert list(step_history(store.saver, "none")) == []
    store.close()
