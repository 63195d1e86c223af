from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.json_arguments import ArgumentProblem
from mendgraph.nodes.language.text_protocol import (
    BODY_ARGUMENTS,
    BODY_BLOCK_RULE,
    Body,
    TextCall,
    extract_in_order,
    read_body,
    with_body,
    without_bodies,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, ToolInvocation

IN_DOUBT = ArgumentProblem(
    ExtractionErrorType.INVALID_ARGUMENTS,
    "It is not clear where the block after this call ends. Put ```` around a text that holds fences.",
)
WRITE = frozenset({"write_file", "edit_file", "read_file"})
BODY = (
    'Look:\ntool: write_file({"path":\n"a.py"})\n\n```python\ntool: read_file({})\n```\n'
    'tool: read_file({"path": "b"})\n'
)
NESTED = "# Use\n```sh\nls\n```\nEnd.\n"


@pytest.mark.parametrize(
    ("text", "body", "rest"),
    [
        ("```python\nx = 1\n```\nrest", "x = 1\n", "rest"),
        ("\n \t\n\r\n```\nx\n```", "x\n", ""),
        ("```\n```\nrest", "", "rest"),
        ("```\n\n```\n", "\n", ""),
        ("```\r\na\r\nb\r\n```\r\nrest", "a\r\nb\r\n", "rest"),
        ("~~~ text `x`\na\n```\n~~~\nrest", "a\n```\n", "rest"),
        ("````md\n```\na\n```\n````\nrest", "```\na\n```\n", "rest"),
        ("```\na\n`````\nrest", "a\n", "rest"),
        ("   ```\n  a\n   ```\nrest", "  a\n", "rest"),
        ("```\na\n    ```\nb\n```\nrest", "a\n    ```\nb\n", "rest"),
        ("```\n```x`y`\n```\nrest", "```x`y`\n", "rest"),
        ("```\na\fb\u2028```\n```\nrest", "a\fb\u2028```\n", "rest"),
        (f"```md\n{NESTED}```\nrest", NESTED, "rest"),
        ("```md\na\n```\nrest\ntool: read_file({})\n```\nx\n```", "a\n", "rest\ntool: read_file({})\n```\nx\n```"),
        ("```py\na\n```\nRun:\n```sh\nls\n```", "a\n", "Run:\n```sh\nls\n```"),
        ("```\ntool: read_file({})\n```\nrest", "tool: read_file({})\n", "rest"),
    ],
)
def test_a_block_keeps_its_bytes(text: str, body: str, rest: str) -> None:
    found = read_body(f"call\n{text}", 5)
    assert found is not None
    assert (found.text, f"call\n{text}"[found.end :]) == (body, rest)


@pytest.mark.parametrize("info", ["md", "Markdown title"])
def test_a_block_that_may_have_ended_in_its_middle_is_a_problem(info: str) -> None:
    start = f"```{info}\n# Use\n```\n"
    assert read_body(f"{start}ls\n```\nEnd.\n```\n", 0) == Body(IN_DOUBT, len(start))


@pytest.mark.parametrize(
    ("arguments", "name", "body", "text"),
    [
        ({"path": "a"}, "content", "x\n", "x\n"),
        ({"old_str": "a"}, "content", "x\n", "x\n"),
        ({"old_str": "a"}, "new_str", "x\n", "x"),
        ({"old_str": "a"}, "new_str", "x\n\n", "x\n"),
        ({"old_str": "a"}, "new_str", "x\r\n", "x"),
        ({"old_str": "a"}, "new_str", "", ""),
        ({"old_str": "a\n"}, "new_str", "x\n", "x\n"),
        ({"old_str": ""}, "new_str", "x\n", "x\n"),
        ({"old_str": 1}, "new_str", "x\n", "x\n"),
        ({}, "new_str", "x\n", "x\n"),
    ],
)
def test_a_replacement_ends_as_what_it_replaces(arguments: JsonMap, name: str, body: str, text: str) -> None:
    assert with_body(arguments, name, body) == {**arguments, name: text}


@given(st.text(alphabet="a \n\r\t#~\f\u2028é", max_size=40), st.sampled_from(["", "python", "md"]))
def test_any_text_without_fences_comes_through(text: str, info: str) -> None:
    content = "".join(f"{line}\n" for line in text.replace("~~~", "~~").split("\n"))
    assert read_body(f"```{info}\n{content}```\n", 0) == Body(content, len(content) + len(info) + 8)


def test_the_rule_for_the_prompt_is_one_line_and_no_call() -> None:
    assert "\n" not in BODY_BLOCK_RULE
    assert len(BODY_BLOCK_RULE) < 120
    assert extract_in_order(BODY_BLOCK_RULE, frozenset(BODY_ARGUMENTS)) == []


def test_a_block_after_a_call_gives_what_it_lacks() -> None:
    arguments = {"path": "a.py", "content": "tool: read_file({})\n"}
    raw = '{"path":\n"a.py"}'
    assert extract_in_order(BODY, WRITE) == [
        TextCall(2, "write_file", raw, ToolInvocation("write_file", arguments, 2), 7, "tool: read_file({})\n"),
        TextCall(8, "read_file", '{"path": "b"}', ToolInvocation("read_file", {"path": "b"}, 8), 8),
    ]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('tool: write_file({"path": "a", "content": "x"})', {"path": "a", "content": "x"}),
        ('tool: read_file({"path": "a"})', {"path": "a"}),
        ('tool: write_file({"path": "a"})\nas follows:', {"path": "a"}),
    ],
)
def test_a_block_that_no_call_needs_is_left_alone(call: str, arguments: dict[str, Any]) -> None:
    [found] = extract_in_order(f"{call}\n```\nbody\n```\n", WRITE)
    assert (found.outcome, found.body, found.end_line) == (ToolInvocation(found.tool, arguments, 1), None, 1)


def test_which_argument_a_block_gives_can_be_said() -> None:
    text = "tool: read_file({})\n~~~\na.py\n~~~"
    assert extract_in_order(text, WRITE, {"read_file": "path"}) == [
        TextCall(1, "read_file", "{}", ToolInvocation("read_file", {"path": "a.py\n"}, 1), 4, "a.py\n")
    ]
    assert extract_in_order(BODY, WRITE, {})[0].body is None


def test_a_block_without_its_end_is_an_error_of_its_call() -> None:
    text = 'tool: write_file({"path": "a"})\n```\nx\ntool: read_file({"path": "b"})\n'
    details = "The block after this call has no closing fence. Send the call again, with the whole block."
    error = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 1, 'tool: write_file({"path": "a"})', details)
    assert extract_in_order(text, WRITE) == [TextCall(1, "write_file", '{"path": "a"}', error, 4)]


@pytest.mark.parametrize(
    ("call", "fenced"),
    [
        ("tool: write_file({path})", False),
        ("tool: write_file", False),
        ('tool: create_file({"path": "a"})', False),
        ('tool: write_file({"path": a, "content": "x"})', True),
        ("tool: read_file({path})", True),
        ("```\ntool: write_file({path})\n```", True),
    ],
)
def test_the_block_after_a_broken_call_is_content_where_the_call_may_lack_it(call: str, fenced: bool) -> None:
    text = f'{call}\n```\ntool: read_file({{"path": "a"}})\n```\ntool: read_file({{"path": "b"}})'
    broken, *others = extract_in_order(text, WRITE)
    assert isinstance(broken.outcome, ExtractionError)
    assert broken.outcome.details.endswith("the calls in it did not run.") is not fenced
    paths = [each.outcome.args["path"] for each in others if isinstance(each.outcome, ToolInvocation)]
    assert paths == (["a", "b"] if fenced else ["b"])


@pytest.mark.parametrize(
    ("text", "body", "lines"),
    [
        ('```\ntool: write_file({"path": "a"})\n```\n\n```py\ntool: x\n```\ntool: read_file({})', "tool: x\n", [2, 8]),
        ('````\ntool: write_file({"path": "a"})\n```py\ntool: x\n```\n````\ntool: read_file({})', "tool: x\n", [2, 7]),
        ('```\ntool: write_file({"path": "a"})\n```\nSo:\n```\ntool: read_file({})\n```', None, [2, 6]),
        ('```\ntool: write_file({"path": "a"})', None, [2]),
    ],
)
def test_a_call_in_a_fence_takes_the_next_block(text: str, body: str | None, lines: list[int]) -> None:
    calls = extract_in_order(text, WRITE)
    assert [call.line_number for call in calls] == lines
    assert (calls[0].body, calls[0].fences[0][:3]) == (body, "```")


def test_without_bodies_all_lines_keep_their_numbers() -> None:
    expected = 'Look:\ntool: write_file({"path":\n\n\n\n\n\ntool: read_file({"path": "b"})\n'
    assert without_bodies(BODY, extract_in_order(BODY, WRITE)) == expected
    assert without_bodies("a\n\x0cb", extract_in_order("a\n\x0cb", WRITE)) == "a\n\x0cb"
    text = 'tool: read_file({"path": "a\u2028b"})\n```\nx\n```'
    assert without_bodies(text, extract_in_order(text, WRITE)) == 'tool: read_file({"path": "a\u2028\n```\nx\n```'


@given(
    st.lists(
        st.sampled_from(
            [
                'tool: write_file({"path": "a"})',
                "tool: read_file({})",
                "```",
                "```py",
                "````",
                "~~~",
                "x",
                "",
                "calc.py",
            ]
        ),
        max_size=12,
    )
)
def test_calls_and_their_blocks_stand_one_after_the_other(lines: list[str]) -> None:
    text = "\n".join(lines)
    calls = extract_in_order(text, WRITE)
    ends = [0]
    for call in calls:
        assert ends[-1] < call.line_number <= call.end_line <= len(text.splitlines())
        ends.append(call.end_line)
    assert without_bodies(text, calls).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "{call}\nThe text:\n```md\n# X\ntool: read_file({{}})\n```",
        "{call}\n    ```md\n# X\ntool: read_file({{}})\n    ```",
        "```\n{call}\n```\nwith\n```md\n# X\ntool: read_file({{}})\n```",
        "```\n{call}\n# X\ntool: read_file({{}})\n```",
    ],
)
def test_a_text_in_the_wrong_place_is_no_call(text: str) -> None:
    [call] = extract_in_order(text.format(call='tool: write_file({"path": "a"})'), WRITE)
    assert "content is missing. The block after it" in getattr(call.outcome, "details", "")
