"""Document 1, section 6: its agent loop, copied; what the document does not define comes in as arguments."""
# ruff: noqa: T201 - the loop talks to a terminal

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from mendgraph import documents
from tests.doubles.replies import Say, completion_document
from tests.specs import document_1

YOU_COLOR, ASSISTANT_COLOR, RESET_COLOR = "<you>", "<assistant>", "</>"
USAGE = (12, 5)
"""Input and output tokens of each reply."""

Tool = Callable[..., dict[str, Any]]


def run_enhanced_coding_agent_loop(
    names: Any, openai_client: Any, read_file_tool: Tool, list_files_tool: Tool, edit_file_tool: Tool
) -> None:
    """`names` is the module that has the document's functions."""
    protected_edit_tool = names.create_protected_edit_file_tool(edit_file_tool)
    enhanced_tool_registry: dict[str, Tool] = {
        "read_file": read_file_tool,
        "list_files": list_files_tool,
        "edit_file": protected_edit_tool,
    }

    known_tools = frozenset(enhanced_tool_registry.keys())

    def base_llm_caller(conversation: list[dict[str, Any]]) -> Any:
        return openai_client.chat.completions.create(model="gpt-4", messages=conversation, max_completion_tokens=2000)

    rate_limited_caller = names.create_rate_limited_llm_caller(base_llm_caller)
    healing_config = names.SelfHealingConfig(max_retries=3)

    system_prompt = get_full_system_prompt()
    conversation: list[dict[str, Any]] = [{"role": "system", "content": [{"type": "text", "text": system_prompt}]}]

    while True:
        try:
            user_input = input(f"{YOU_COLOR}You:{RESET_COLOR} ")
        except (KeyboardInterrupt, EOFError):
            print(f"\n{names.format_usage_stats(rate_limited_caller.get_usage(), names.DEFAULT_API_LIMITS)}")
            break

        rate_limited_caller.reset_turn()
        conversation.append({"role": "user", "content": [{"type": "text", "text": user_input.strip()}]})

        while True:
            healing_result = names.attempt_extraction_with_healing(
                lambda conv: rate_limited_caller(conv)["content"], conversation, known_tools, healing_config
            )

            if not healing_result.success:
                print(f"{ASSISTANT_COLOR}[Self-healing exhausted]{RESET_COLOR}")
                print(healing_result.final_response)
                break

            if not healing_result.invocations:
                print(f"{ASSISTANT_COLOR}Assistant:{RESET_COLOR}")
                print(healing_result.final_response)
                conversation.append(
                    {"role": "assistant", "content": [{"type": "text", "text": healing_result.final_response}]}
                )
                break

            for invocation in healing_result.invocations:
                tool = enhanced_tool_registry[invocation.tool_name]
                result = execute_tool(tool, invocation.tool_name, invocation.args)
                conversation.append(
                    {"role": "user", "content": [{"type": "text", "text": f"tool_result({json.dumps(result)})"}]}
                )


def get_full_system_prompt() -> str:
    return "You edit files."


def execute_tool(tool: Tool, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"tool": name, **tool(**args)}


def read_file_tool(filename: str) -> dict[str, Any]:
    return {"content": Path(filename).read_text(encoding="utf-8")}


def list_files_tool(path: str) -> dict[str, Any]:
    return {"files": sorted(entry.name for entry in Path(path).iterdir())}


def edit_file_tool(path: str, old_str: str, new_str: str) -> dict[str, Any]:
    """Replace a text."""
    file = Path(path)
    file.write_text(file.read_text(encoding="utf-8").replace(old_str, new_str), encoding="utf-8")
    return {"action": "edited"}


Play = Callable[..., list[dict[str, Any]]]
"""Plays the loop with what the person types and what the model replies; the requests that the model got."""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """In a folder with two files, with OpenAI's own client on a transport that stays in this process."""
    monkeypatch.chdir(tmp_path)

    def played(typed: list[str], *replies: str, names: Any = documents) -> list[dict[str, Any]]:
        Path("calc.py").write_text("x = 1\n", encoding="utf-8")
        Path(".env").write_text("KEY=1\n", encoding="utf-8")
        requests: list[dict[str, Any]] = []
        lines = iter(typed)

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(json.loads(request.content))
            reply = Say(replies[min(len(requests), len(replies)) - 1], USAGE)
            return httpx.Response(200, json=completion_document(reply, requests[-1], len(requests)))

        def typing(prompt: str) -> str:
            print(prompt)
            line = next(lines, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", typing)
        with httpx.Client(transport=httpx.MockTransport(answer)) as transport:
            client = OpenAI(api_key="none", base_url="http://model.invalid/v1", max_retries=0, http_client=transport)
            run_enhanced_coding_agent_loop(names, client, read_file_tool, list_files_tool, edit_file_tool)
        return requests

    return played


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def usage(calls: int, in_turn: int) -> str:
    tokens = f"  Input Tokens: {12 * calls}/100000\n  Output Tokens: {5 * calls}/50000\n"
    return f"\nAPI Usage Stats:\n  Calls: {calls}/100\n  Turn Calls: {in_turn}/10\n{tokens}"


READ = 'tool: read_file({"filename": "calc.py"})'
BROKEN = 'tool: edit_file({path: "calc.py"})'
TYPES = "<you>You:</> \n"
EXHAUSTED = "<assistant>[Self-healing exhausted]</>\n"
EDITS = (
    'tool: edit_file({"path": "calc.py", "old_str": "1", "new_str": "2"})\n'
    'tool: edit_file({"path": ".env", "old_str": "1", "new_str": "2"})\n'
    'tool: list_files({"path": "."})'
)


def test_tools_run_and_their_results_are_sent_back(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """The edit of `.env` is blocked and told like any result; the others run, in order."""
    first, second, third = play(["  Make x 2. "], READ, EDITS, "Done.")
    opening = [message("system", "You edit files."), message("user", "Make x 2.")]
    read = message("user", 'tool_result({"tool": "read_file", "content": "x = 1\\n"})')
    assert first == {"model": "gpt-4", "messages": opening, "max_completion_tokens": 2000}
    assert second["messages"] == [*opening, read]
    blocked = {
        "tool": "edit_file",
        "path": str(Path(".env").resolve()),
        "action": "blocked",
        "reason": "security_guardrail",
        "violations": [{"rule": "env_file", "description": "Environment variable files"}],
    }
    assert third["messages"] == [
        *(*opening, read),
        message("user", 'tool_result({"tool": "edit_file", "action": "edited"})'),
        message("user", f"tool_result({json.dumps(blocked)})"),
        message("user", 'tool_result({"tool": "list_files", "files": [".env", "calc.py"]})'),
    ]
    assert Path("calc.py").read_text(encoding="utf-8") == "x = 2\n"
    assert Path(".env").read_text(encoding="utf-8") == "KEY=1\n"
    assert capsys.readouterr().out == f"<you>You:</> \n<assistant>Assistant:</>\nDone.\n<you>You:</> \n{usage(3, 3)}"


def test_malformed_call_is_healed(play: Play) -> None:
    """The failed reply and the corrective prompt are seen by the next call alone; the conversation stays without."""
    requests = play(["Go."], BROKEN, READ, "Done.")
    opening, healing, after = (request["messages"] for request in requests)
    assert healing[:-1] == [*opening, message("assistant", BROKEN)]
    prompt = healing[-1]["content"][0]["text"]
    assert prompt.startswith("I could not parse your tool invocation. Please fix the following issues:\n")
    assert "- INVALID_JSON_SYNTAX: JSON parse error: Expecting property name" in prompt
    assert '  tool: TOOL_NAME({"param": "value"})' in prompt
    assert after[:-1] == opening
    assert after[-1]["content"][0]["text"].startswith("tool_result(")


@pytest.mark.parametrize(
    ("typed", "replies", "requests", "output"),
    [
        ([], [], 0, f"{TYPES}{usage(0, 0)}"),
        (["Go."], [BROKEN], 4, f"{TYPES}{EXHAUSTED}{BROKEN}\n{TYPES}{usage(4, 4)}"),
        (["Go.", "Go on."], [READ], 20, f"{TYPES}{EXHAUSTED}\n" * 2 + f"{TYPES}{usage(20, 10)}"),
    ],
    ids=["interrupted", "healing exhausted", "limit of calls of a turn"],
)
def test_turn_ends_with_a_message_and_the_session_with_its_usage(
    play: Play, capsys: pytest.CaptureFixture[str], typed: list[str], replies: list[str], requests: int, output: str
) -> None:
    """Where no call may be made there is no content to read; the next turn has calls again."""
    assert len(play(typed, *replies)) == requests
    assert capsys.readouterr().out == output


def test_session_has_many_turns(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers stay in the conversation, the counts of a turn begin anew, those of the session go on."""
    requests = play(["One.", "Two."], "First.", "Second.")
    assert requests[1]["messages"] == [
        *(
            message("system", "You edit files."),
            message("user", "One."),
            message("assistant", "First."),
            message("user", "Two."),
        )
    ]
    assert capsys.readouterr().out.endswith(usage(2, 1))


@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        (["  Make x 2. "], (READ, EDITS, "Done.")),
        (["Go."], (BROKEN, READ, "Done.")),
        (["Go.", "Go on."], (BROKEN,)),
        (["One.", "Two.", ""], ("First.", READ, BROKEN, EDITS, "Second.", "Third.")),
        ([], ()),
    ],
    ids=["edits", "healed", "healing exhausted", "turns", "interrupted"],
)
def test_session_matches_that_of_the_documents_functions(
    play: Play, capsys: pytest.CaptureFixture[str], typed: list[str], replies: tuple[str, ...]
) -> None:
    """The same requests, and the same words on the terminal."""
    ours = play(typed, *replies), capsys.readouterr().out
    theirs = play(typed, *replies, names=document_1), capsys.readouterr().out
    assert ours == theirs
