"""Requests with more than text: unsupported content is refused, and the thread continues afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from mendgraph import AgentContext, build_graph
from tests.doubles.replies import Message, Say, Status
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.vocabulary import Protocol

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
VIDEO = {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}


class RecordingModel(BaseChatModel):
    """A chat model that records what it was sent of the last request."""

    _seen: list[Any] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "seeing"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self._seen.append([message.content for message in messages if isinstance(message, HumanMessage)])
        return ChatResult(generations=[ChatGeneration(message=AIMessage("I see."))])


def outcome_of(graph: Any, context: AgentContext, *content: Any) -> Any:
    return graph.invoke({"messages": [HumanMessage(list(content))]}, THREAD, context=context)["outcome"]


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    return AgentContext(workspace=str(tmp_path))


def test_thread_continues_after_an_image_that_its_model_does_not_accept(context: AgentContext) -> None:
    model = RecordingModel(profile={"image_inputs": False})
    graph = build_graph(InMemorySaver(), model=model)
    outcome = outcome_of(graph, context, "What is it?", IMAGE)
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "invalid_request")
    assert "'image', which RecordingModel does not take" in outcome.message
    assert outcome_of(graph, context, "Hello.").kind == "FINISHED"
    note = {"type": "text", "text": "[image, not shown: the model does not take it]"}
    assert model._seen == [[["What is it?", note], ["Hello."]]]


def test_video_is_sent_to_a_model_with_an_unknown_profile(context: AgentContext) -> None:
    model = RecordingModel()
    assert outcome_of(build_graph(model=model), context, "What is it?", VIDEO).kind == "FINISHED"
    assert model._seen == [[["What is it?", VIDEO]]]


def test_video_is_refused_for_an_openai_compatible_endpoint(context: AgentContext) -> None:
    with ScriptedServer(then=lambda _: Say("I see.")) as server:
        named = context.model_copy(update={"model": "m", "base_url": server.base_url})
        graph = build_graph(InMemorySaver())
        outcome = outcome_of(graph, named, "What is it?", VIDEO)
        assert outcome.reason == "invalid_request"
        assert "'video'" in outcome.message
        assert outcome_of(graph, named, "Hello.").kind == "FINISHED"
    assert len(server.requests) == 1


PICTURE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}


@tool
def picture() -> list[Any]:
    """Take a picture."""
    return [{"type": "text", "text": "Taken."}, PICTURE]


def refuse_images(body: dict[str, Any], status: int, message: str) -> Message | Status:
    """A model without images: it refuses any request that has one."""
    if "image_url" in json.dumps(body["messages"]):
        return Status(status, {"error": {"message": message}})
    if body["messages"][-1]["role"] == "user":
        return message_of(use(("picture", {})), Protocol.NATIVE)
    return Say("It is taken.")


REFUSALS = ((400, "Invalid value."), (404, "No endpoints take image input."), (500, "image input is not supported"))


@slow
@pytest.mark.parametrize(("status", "message"), REFUSALS)
def test_image_of_a_tool_is_omitted_after_the_models_first_refusal(
    context: AgentContext, status: int, message: str
) -> None:
    with ScriptedServer(then=lambda body: refuse_images(body, status, message)) as server:
        named = context.model_copy(update={"model": f"m{status}", "base_url": server.base_url})
        graph = build_graph(InMemorySaver(), tools=[picture])
        assert outcome_of(graph, named, "Take one.").kind == "FINISHED"
        assert len(server.requests) == 3
        assert "[image, not shown: the model does not take it]" in json.dumps(server.requests[-1]["messages"])
        assert outcome_of(graph, named, "Take another.").kind == "FINISHED"
    assert len(server.requests) == 5  # it is not tried again


def test_refused_image_of_the_request_ends_the_run(context: AgentContext) -> None:
    with ScriptedServer(then=lambda body: refuse_images(body, 400, "Invalid value.")) as server:
        named = context.model_copy(update={"model": "blind", "base_url": server.base_url})
        outcome = outcome_of(build_graph(tools=[picture]), named, "What is it?", IMAGE)
    assert (outcome.kind, len(server.requests)) == ("SYSTEM_ERROR", 1)
    assert "The request contains images or files, which this model may not accept." in outcome.message
