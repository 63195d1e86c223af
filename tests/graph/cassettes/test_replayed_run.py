"""Runs in a folder of their own, on a model that recites, and on one that replays strictly."""

import asyncio
from pathlib import Path

import pytest
from httpx2 import MockTransport, Response
from hypothesis import given, settings, strategies as st

from mendgraph.graph.cassettes.cassette_file import CassetteFile
from mendgraph.graph.cassettes.player import REPLAY_URL
from mendgraph.graph.cassettes.replayed_run import (
    Reciter,
    Replayer,
    RunCourse,
    TurnReplies,
    anything_goes,
    files_in,
    play,
    playground,
    streamed_reply,
    write_files,
)
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.chat_models import endpoint_chat, given_model
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.execute_tools.files.workspace import WriteFile
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    ModelReply,
    OutcomeKind,
    Profile,
    RawCall,
    StopReason,
    ToolError,
)

FILES = {"a.py": b"x = 1\n", "pkg/b.bin": b"\xff\x00"}


def course(folder: str, *turns: TurnReplies) -> RunCourse:
    context = AgentContext(workspace=folder, model="m", base_url=REPLAY_URL, evidence=False, provider_retries=1)
    requests = tuple(f"Task {number}" for number in range(len(turns)))
    return RunCourse(context, Profile(), requests, turns, (), (), (), (), (), {})


def test_what_is_recited_can_be_replayed_and_nothing_else() -> None:
    turns = (TurnReplies(), TurnReplies(replies=[ModelReply(text="Done.")]))
    with playground(FILES) as folder:
        assert isinstance(folder, str)
        asked = course(folder, *turns)
        reciter = Reciter("m", turns)
        first = play(asked, asked.context, reciter)
        assert isinstance(first, RunCourse)
        assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.SYSTEM_ERROR, OutcomeKind.FINISHED]
        assert [exchange.status for exchange in reciter.exchanges] == [200]

        cassette = CassetteFile(recorded_from="a test", exchanges=tuple(reciter.exchanges))
        alone = course(folder, turns[1])
        reciter = Reciter("m", turns[1:])
        played = play(alone, asked.context, reciter)
        replayer = Replayer(cassette := cassette.model_copy(update={"exchanges": tuple(reciter.exchanges)}))
        again = play(alone, asked.context, replayer)
        assert isinstance(played, RunCourse)
        assert isinstance(again, RunCourse)
        assert again.outcomes[0] == played.outcomes[0].model_copy(update={"usage": again.outcomes[0].usage})
        assert (replayer.player.misses, replayer.player.unplayed) == ([], [])

        strict = Replayer(cassette)
        missed = play(course(folder, TurnReplies()), asked.context.model_copy(update={"model": "other"}), strict)
        assert isinstance(missed, RunCourse)
        assert missed.outcomes[0].reason is StopReason.PROVIDER_FAILED
        assert "model" in strict.player.misses[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "ollama:m"}, "'ollama:m' names a provider, for which nobody can stand in."),
        ({"base_url": "http://llm.test:0/v1"}, "The endpoint 'http://llm.test:0/v1' is not an address: "),
    ],
)
def test_a_session_without_an_endpoint_is_not_played(settings: JsonMap, message: str, tmp_path: Path) -> None:
    asked = course(str(tmp_path), TurnReplies())
    refused = play(asked, asked.context.model_copy(update=settings), Reciter("m", asked.turns))
    assert isinstance(refused, ToolError)
    assert refused.message.startswith(f"The run cannot be played again: {message}")


def test_more_files_than_one_change_takes_are_written(tmp_path: Path) -> None:
    workspace = anything_goes(str(tmp_path))
    assert write_files(workspace, [WriteFile(f"{number}.txt", b"") for number in range(201)]) is None
    assert len(files_in(str(tmp_path), 500)) == 201


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text("abc_", min_size=1, max_size=8)
CALLS = st.lists(st.builds(RawCall, call_id=NAMES, tool=NAMES, arguments=TEXTS), max_size=3).map(tuple)
COUNTS = st.integers(1, 10_000)
REPLIES = st.builds(
    ModelReply,
    text=TEXTS,
    calls=CALLS,
    reasoning=TEXTS,
    model=NAMES,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    finish_reason=st.sampled_from([each for each in FinishReason if each is not FinishReason.REFUSAL]),
)


def read(body: bytes) -> ModelReply | None:
    answer = MockTransport(lambda _: Response(200, headers={"content-type": "text/event-stream"}, content=body))
    endpoint = Endpoint(model="m", base_url="http://llm.test/v1")
    model = given_model(endpoint_chat(endpoint, PLAIN, verify=False, transport=answer))
    call = Call(prompt=Prompt(messages=({"role": "user", "content": "a"},)), max_output_tokens=9, timeout_s=60.0)
    reply = asyncio.run(model.acomplete(call, lambda _: None))
    return (
        reply.model_copy(update={"seconds": 0.0, "allowed_tokens": 0, "provider": {}})
        if isinstance(reply, ModelReply)
        else None
    )


@settings(max_examples=30)
@given(REPLIES)
def test_a_reply_is_read_as_it_was(reply: ModelReply) -> None:
    said = streamed_reply(reply, "m", 1)
    assert (said.status, said.headers) == (200, {"content-type": "text/event-stream"})
    assert read(said.body) == reply
    assert said == streamed_reply(reply, "m", 1)


def test_reasoning_and_cache_writes_are_told_where_there_are_any() -> None:
    counts = {"input_tokens": 9, "output_tokens": 4, "cached_tokens": 5, "reasoning_tokens": 3, "cache_write_tokens": 2}
    body = streamed_reply(ModelReply(text="a", model="m", **counts), "m", 1).body.decode()
    assert '"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}' in body
    assert '"completion_tokens_details": {"reasoning_tokens": 3}' in body
    assert "details" not in streamed_reply(ModelReply(text="a", input_tokens=9), "m", 1).body.decode()
