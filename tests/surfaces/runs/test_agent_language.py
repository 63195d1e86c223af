"""Spec 4's agent language: the prompt of a memory, and the invocations of a reply."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from mendgraph import Effect, ToolContext, tool
from mendgraph.documents import ActionRegistry, AgentLanguage, Environment, ExtractionErrorType, Invocation, Memory
from tests.vocabulary import JsonMap


@tool(effect=Effect.READ)
def read_file(context: ToolContext, file_name: str) -> str:  # noqa: ARG001 - a tool's shape
    """Read a file."""
    raise AssertionError


LANGUAGE = AgentLanguage(ActionRegistry([read_file]), goals=["Be brief."])
READ = Invocation("read_file", {"file_name": "notes.txt"}, terminal=False)


def memory_of(request: str) -> Memory:
    memory = Memory()
    memory.add(HumanMessage(request))
    return memory


def test_prompt_holds_goals_actions_and_the_memory() -> None:
    system, request = LANGUAGE.construct(memory_of("Read the notes"))
    assert system["role"] == "system"
    for part in ('- read_file({"file_name": string}): Read a file.', "- final_answer(", "Goals:\n- Be brief."):
        assert part in system["content"]
    assert request == {"role": "user", "content": "Read the notes"}


def answer(text: str, **more: None) -> Invocation:
    return Invocation("final_answer", {"answer": text, **more}, terminal=True)


CALL = 'tool: read_file({"file_name": "notes.txt"})'
REPLIES = {
    CALL: [READ],
    f"{CALL}\n{CALL}": [READ, READ],
    '{"tool": "read_file", "args": {"file_name": "notes.txt"}}': [READ],
    '{"tool": "read_file", "args": {"file_name": "notes.txt"}, "terminal": false}': [READ],
    '{"terminal": true, "args": {"file_name": "notes.txt"}, "tool": "read_file"}': [READ._replace(terminal=True)],
    '{"tool": "final_answer", "args": {"answer": "hello"}, "terminal": true}': [answer("hello", value=None)],
    "The notes say hello.": [answer("The notes say hello.")],
    'tool: final_answer({"answer": "hello"})': [answer("hello", value=None)],
}


def test_reply_is_parsed_into_invocations() -> None:
    for reply, invocations in REPLIES.items():
        understood = LANGUAGE.parse(reply)
        assert (understood.invocations, understood.errors) == (invocations, []), reply


def test_unreadable_call_is_an_error_beside_readable_ones() -> None:
    understood = LANGUAGE.parse('tool: read_file({"file_name": "notes.txt"})\ntool: nope({})')
    assert understood.invocations == [READ]
    assert [error.error_type for error in understood.errors] == [ExtractionErrorType.UNKNOWN_TOOL_NAME]


def test_unreadable_reply_is_asked_for_once_more() -> None:
    cut = 'tool: read_file({"file_name"'
    for replies, invocations, request_count in (
        ([CALL], [READ], 1),
        ([cut, CALL], [READ], 2),
        ([cut, cut, "no"], [], 2),
    ):
        requests: list[list[JsonMap]] = []
        waiting = iter(replies)

        def model(messages: list[JsonMap], requests: Any = requests, waiting: Any = waiting) -> str:
            requests.append(messages)
            return str(next(waiting))

        understood = LANGUAGE.ask(model, memory_of("Read the notes"))
        assert (understood.invocations, len(requests)) == (invocations, request_count)
        assert bool(understood.errors) is not bool(invocations)
        assert ("MISSING_CLOSING_PAREN" in str(requests[-1][-1]["content"])) is (request_count == 2)


def test_loop_of_spec_4_runs_with_agent_language_environment_and_memory(tmp_path: Path) -> None:
    class Reading:
        name = "read_file"

        def execute(self, file_name: str) -> str:
            return Path(file_name).read_text()

    def replies() -> Iterator[str]:
        yield 'tool: read_file({"file_name": "notes.txt"})'
        yield 'tool: read_file({"file_name": "gone.txt"})\ntool: nope({})'
        yield "The notes say hello."

    (tmp_path / "notes.txt").write_text("hello")
    environment, memory = Environment(base_dir=str(tmp_path)), memory_of("Read the notes")
    waiting, terminal = replies(), False
    while not terminal:
        understood = LANGUAGE.ask(lambda _: next(waiting), memory)
        terminal = any(invocation.terminal for invocation in understood.invocations)
        results = (
            []
            if terminal
            else [environment.execute_action(Reading(), invocation.args) for invocation in understood.invocations]
        )
        memory.add(*LANGUAGE.exchange(understood, results))
    texts = [message.text for message in memory.messages]
    assert texts[2] == 'tool_result({"tool":"read_file","ok":true,"data":{"value":"hello"}})'
    assert "No such file" in texts[4].splitlines()[0]
    assert "Unknown tool 'nope'" in texts[4].splitlines()[1]
    assert texts[5] == "The notes say hello."
