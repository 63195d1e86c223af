"""The sample is worth its bytes as long as checkpoints look like it."""

import zlib
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph.build import build_graph
from graph.context import AgentContext
from graph.state import serializer
from graph.typical_checkpoint import typical_checkpoint
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel


def test_it_can_be_stored_and_fits_into_the_window_of_zlib() -> None:
    kind, data = serializer().dumps_typed(typical_checkpoint())
    assert kind == "msgpack"
    assert 1_000 < len(data) < 32_768
    assert serializer().dumps_typed(typical_checkpoint())[1] == data


def test_with_it_checkpoints_are_compressed_to_half_of_what_zlib_alone_makes_of_them(tmp_path: Any) -> None:
    sizes: list[tuple[int, int]] = []
    serde = serializer()
    dictionary = serde.dumps_typed(typical_checkpoint())[1]

    def watch(checkpoint: Any) -> None:
        data, packer = serde.dumps_typed(checkpoint)[1], zlib.compressobj(zdict=dictionary)
        sizes.append((len(packer.compress(data) + packer.flush()), len(zlib.compress(data))))

    class Saver(InMemorySaver):
        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            watch(checkpoint)
            return super().put(config, checkpoint, metadata, new_versions)

    machine = build_graph(Saver(), model=ScriptedModel([], then=Say("Done.")))
    request: Any = {"messages": [HumanMessage("Hi.")]}
    machine.invoke(request, {"configurable": {"thread_id": "t"}}, context=AgentContext(workspace=str(tmp_path)))
    assert len(sizes) == 6
    assert sum(ours for ours, _ in sizes) < sum(plain for _, plain in sizes) / 2
