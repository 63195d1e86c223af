from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.call_model.prompts.profiles import SMALL_STOP
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.chat_messages import describe_tool, native_tool
from mendgraph.nodes.language.history import machine_message, settle_exchange
from mendgraph.nodes.records import (
    CallResult,
    Correction,
    EditForm,
    Effect,
    JsonMap,
    ModelReply,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from mendgraph.nodes.small_model import block_prompt as texts
from mendgraph.nodes.small_model.block_prompt import estimated_tokens
from mendgraph.nodes.small_model.blocks import render_file
from mendgraph.nodes.small_model.examples import BLOCKS_SYSTEM, NATIVE_BLOCKS_SYSTEM, QUESTION_SYSTEM, REWRITE_SYSTEM
from mendgraph.nodes.small_model.rewriting import LAST_TRY, without_body
from mendgraph.nodes.small_model.turn_view import TurnView
from tests.row_tables import rows
from tests.rules.call_model.prompts.prompting import (
    BLOCKS,
    CALC,
    NATIVE,
    NATIVE_BLOCKS,
    READ,
    TASK,
    TEXT,
    assistant,
    built,
    edited,
    failed,
    offered,
    prompt_of,
    read,
    step,
    user,
)

FRONT = built(BLOCKS, [TASK]).messages[:-1]
"""The system prompt and the examples, which are the same in every request."""


def request_of(prompt: Prompt) -> str:
    assert prompt.messages[: len(FRONT)] == FRONT
    return str(prompt.messages[-1]["content"])


def request_for(task: str, *steps: list[AnyMessage], before: Sequence[AnyMessage] = ()) -> str:
    """The request for a task after these steps."""
    history = [*before, HumanMessage(task), *(message for step in steps for message in step)]
    return request_of(built(BLOCKS, history))


def reading_step(path: str = "calc.py", text: str = CALC) -> list[AnyMessage]:
    """The step in which a file was read."""
    return step(read(text, path), path=path)


UTIL = "def low(text):\n    return text\n"
FILE, UTIL_FILE = render_file("calc.py", CALC), render_file("util.py", UTIL)


def test_block_form_is_one_clean_request() -> None:
    request = user(f"Fix calc.py\n\ncalc.py\n```python\n{CALC}```")
    expected = Prompt(messages=(*FRONT, request), stop=SMALL_STOP, temperature=0.1)
    assert built(BLOCKS, [TASK, *reading_step()], temperature=0.1) == expected


def test_request_has_the_current_facts_and_no_failed_reply() -> None:
    history = [
        TASK,
        *step(read("old"), text="SAID"),
        *step(ToolResult.success(matches=["calc.py:1"]), text="SAID"),
        *step(ToolResult.success(entries=["calc.py"]), text="SAID"),
        *step(edited("util.py"), text="SAID"),
        *step(edited("main.py"), text="SAID"),
        *step(failed("The block is not Python."), text="SAID"),
        *step(read("new"), text="SAID"),
    ]
    correction = Correction(reply="SAID badly", prompt="Send it again, complete.")
    *facts, failed_in_words = request_of(built(BLOCKS, history, correction)).split("\n\n")
    assert facts == [
        "Fix calc.py",
        "calc.py\n```python\nnew\n```",
        '{"matches": ["calc.py:1"]}\nThe workspace has: calc.py',
        "Already changed: util.py, main.py",
    ]
    assert "The block is not Python.\nSend it again, complete." in failed_in_words
    assert "SAID" not in failed_in_words


FOUND = "add(1, 2) gives -1, but must give 3."
EVIDENCE = failed(FOUND, ToolErrorCode.CHECK_FAILED)
SHOWN = f"Fix calc.py\n\n{FILE}"
HIDDEN = render_file("calc.py", CALC.replace("return a - b", "..."))
RIGHT = "add(1, 2) must give 3."
NO_PYTHON, ANSWER_WITH_ADD = "The block is not Python.", "Answer with calc.py and the new text of add."


@rows(
    (0, f"{SHOWN}\n\n{FOUND}"),
    (1, f"Fix calc.py\n\n{HIDDEN}\n\n{RIGHT}\nWrite add anew."),
    (2, f"{HIDDEN}\n\n{RIGHT}\n\nWrite the function add."),
    (3, f"{NO_PYTHON}\n\n{SHOWN}\n\nSome line of add has to change.\n{ANSWER_WITH_ADD}"),
)
def test_each_failure_changes_the_request_but_not_its_facts(failures: int, request: str) -> None:
    steps = [message for _ in range(failures) for message in step(failed(NO_PYTHON))]
    prompt = built(BLOCKS, [TASK, *ahead(read(CALC), EVIDENCE), *steps])
    assert (prompt.messages[-1]["content"], prompt.failed_tries) == (request, failures)
    alone = [{"role": "system", "content": REWRITE_SYSTEM}]
    assert [*prompt.messages[:-1]] == (alone if failures == 2 else [*FRONT])


@rows("Fix calc.py", "Fix it.", "Change it.", "Add none.py.", "What is it?", "Hello.")
@rows([reading_step()], [reading_step(), reading_step("util.py", "def low(text):\n    return 1\n")])
@rows("no", "No such file: 'none.py'.")
def test_no_request_of_a_turn_is_repeated(failure: str, files: list[list[AnyMessage]], task: str) -> None:
    history = [HumanMessage(task), *(message for step in files for message in step)]
    tries = range(LAST_TRY + 1)
    requests = [built(BLOCKS, [*history, *step(failed(failure)) * failures]).messages for failures in tries]
    assert len({str(messages) for messages in requests}) == len(tries)


SAME = failed("The block is identical to what add in 'calc.py' already has.", ToolErrorCode.UNCHANGED)


def test_unchanged_block_is_asked_for_again_without_its_body() -> None:
    task, files = "The sum is wrong.", (reading_step(), reading_step("util.py", UTIL))
    assert request_for(task, *files, step(SAME)) == f"{task}\n\n{UTIL_FILE}\n\n{HIDDEN}\n\nWrite add anew."
    alone = built(BLOCKS, [HumanMessage(task), *files[0], *step(SAME) * 2]).messages[-1]["content"]
    assert alone == f"{task}\n\n{HIDDEN}\n\nWrite the function add."
    documented = CALC.replace("return", '"""The sum."""\n    return')
    first = built(BLOCKS, [HumanMessage(task), *reading_step(text=documented), *step(SAME)]).messages
    assert (first[0]["content"], len(first)) == (REWRITE_SYSTEM, 2)  # a text that says what to do is enough
    assert CALC in request_for("The sum is wrong, and none.py is missing.", *files, step(SAME))


def test_order_without_effect_is_repeated_below_its_file() -> None:
    history = [HumanMessage("Add a flag to the sum."), *reading_step("util.py", UTIL), *reading_step()]
    first, second, last = (built(BLOCKS, [*history, *step(SAME) * tries]).messages for tries in (1, 2, 3))
    system, request = {"role": "system", "content": REWRITE_SYSTEM}, f"{FILE}\n\nAdd a flag to the sum."
    assert first == (system, user(request))
    assert second == (system, user(f"{request}\n\nWrite all of calc.py."))
    assert last[0] == FRONT[0]
    wrong = step(failed("With this edit add(1, 1) gives 3."))
    assert built(BLOCKS, [*history, *wrong]).messages[0] == FRONT[0]


def test_single_function_is_asked_of_the_only_shown_file() -> None:
    view = TurnView(files={"util.py": UTIL, "calc.py": CALC})
    files = [texts.shown_files("add is wrong.", view, failures) for failures in (0, 1, 2, 3)]
    assert files == [("util.py", "calc.py"), ("util.py", "calc.py"), ("calc.py",), ("util.py", "calc.py")]


def bounded(history: Sequence[AnyMessage], most_tokens: int | None) -> list[JsonMap]:
    return list(texts.block_request([READ], history, [], native=False, most_tokens=most_tokens).messages)


def test_single_function_request_includes_the_earlier_request_if_it_fits() -> None:
    before: list[AnyMessage] = [HumanMessage("Write add."), machine_message("Changed calc.py.")]
    history = [*before, HumanMessage("The sum is wrong."), *reading_step(), *step(SAME) * 2]
    alone = bounded(history, None)
    assert str(alone[-1]["content"]).startswith(f"Write add.\n\nThe sum is wrong.\n\n{HIDDEN}")
    assert bounded(history, estimated_tokens(alone)) == alone
    less = bounded(history, estimated_tokens(alone) - 1)
    assert (less[0], HIDDEN in str(less[-1]["content"])) == (FRONT[0], False)


def test_long_earlier_request_is_shown_by_its_first_lines() -> None:
    lines = "".join(f"{number} is the number of this line.\n" for number in range(1_000))
    history = [
        HumanMessage(f"Make it.\n{lines}"),
        machine_message("Done."),
        HumanMessage("It fails."),
        *ahead(read(CALC)),
    ]
    complete = bounded(history, None)
    longer, fewer = (
        str(prompt[-1]["content"]) for prompt in (complete, bounded(history, estimated_tokens(complete) - 100))
    )
    assert longer.startswith("This was asked before:\n\nMake it.\n0 is")
    assert texts.EARLIER_LIMIT > len(longer) - 200 > len(fewer) > texts.EARLIER_LIMIT - 1_000
    assert fewer.endswith(f" line.\n\nNow:\n\nIt fails.\n\n{FILE}")


def test_only_the_file_with_failing_checks_is_shown() -> None:
    assert request_for("Fix it.", ahead(read(UTIL, "util.py"), read(CALC), EVIDENCE)) == f"Fix it.\n\n{FILE}\n\n{FOUND}"


def test_question_prompt_does_not_mention_edits() -> None:
    history = [HumanMessage("What does calc.py do?"), *reading_step()]
    system, question = built(BLOCKS, history).messages
    assert system["content"] == QUESTION_SYSTEM
    assert question["content"] == f"{FILE}\n\nWhat does calc.py do?"
    assert "read_file" in str(built(BLOCKS, history[:1]).messages[0]["content"])
    again = built(BLOCKS, [*history, *step(failed("no"))])
    assert str(again.messages[-1]["content"]).endswith("do?\n\nno\nAnswer in words.")


@rows(
    ("Change add.", [reading_step(), reading_step("util.py", UTIL)], "Answer with calc.py and the new text of add."),
    (
        "Change add and low.",
        [reading_step(), reading_step("util.py", UTIL)],
        "Answer with the path of the file and the new text of ",
    ),
    ("Fix it.", [reading_step()], "Answer with calc.py and the new text of what changes."),
    ("Hello.", [reading_step()], "Answer in words."),
    ("Create colors.md with red in it.", [reading_step()], "Answer with colors.md and its whole text."),
)
def test_last_line_after_a_failure_says_how_to_answer(task: str, files: list[list[AnyMessage]], last: str) -> None:
    history = [HumanMessage(task), *(message for step in files for message in step)]
    failure = request_of(built(BLOCKS, [*history, *step(failed(NO_PYTHON))]))
    correction = request_of(built(BLOCKS, history, Correction(reply="x", prompt="Send it again.")))
    for request, problem in ((failure, NO_PYTHON), (correction, "Send it again.")):
        reason, _, line = request.rpartition("\n\n")[2].rpartition("\n")
        assert (reason, line.startswith(last)) == (problem, True)
    assert "Answer" not in request_for(task, *files)


def test_named_file_that_does_not_exist_is_to_be_created() -> None:
    task, missing = "Create colors.md with red in it.", "There is no colors.md yet."
    assert request_for(task, reading_step()) == f"{task}\n\n{FILE}\n\n{missing}"
    assert missing not in request_for(task, reading_step(), step(edited("colors.md")))
    existing = reading_step("src/calc.py")
    assert "There is no" not in request_for("Fix calc.py.", existing)
    assert "There is no calc.py yet." in request_for("Copy src/calc.py to calc.py.", existing)
    new_test = request_for("write a test for add", reading_step("tests/test_a.py", "x"), existing)
    path = "tests/test_calc.py"
    assert new_test.endswith(f"There is no {path} yet.\n\nAnswer with {path} and its whole text.")


@rows((ToolErrorCode.NOT_FOUND, True), (ToolErrorCode.INVALID_ARGUMENT, False), (ToolErrorCode.CANCELLED, True))
def test_existing_file_that_cannot_be_read_is_not_called_missing(code: ToolErrorCode, is_missing: bool) -> None:
    call = ToolCall(call_id="c", tool="read_file", arguments={}, raw_arguments="{}")
    result = CallResult(call_id="c", tool="read_file", result=failed("'prices.json' is a binary file.", code))
    reading = settle_exchange(ModelReply(text="tool: read_file({})"), [call], [result], Protocol.TEXT)
    request = request_for("Set the price in prices.json to 5.", reading)
    assert ("There is no prices.json yet." in request) is is_missing
    assert ("'prices.json' is a binary file." in request) is not is_missing


def test_failed_search_changes_the_request() -> None:
    listed, vain = step(ToolResult.success(entries=["src/"])), step(ToolResult.success(matches=[]))
    note = "The search has found nothing.\nAnswer with the path of the file and the new text of what changes."
    assert request_for("Fix the cli.", listed, vain) == f"{request_for('Fix the cli.', listed)}\n\n{note}"


def ahead(*results: ToolResult) -> list[AnyMessage]:
    """The step made before the first model call."""
    tools = ["run_checks" if result is EVIDENCE else "read_file" for result in results]
    done = [CallResult(call_id=f"a{at}", tool=tools[at], result=result) for at, result in enumerate(results)]
    calls = [ToolCall(call_id=call.call_id, tool=call.tool, arguments={}, raw_arguments="{}") for call in done]
    return settle_exchange(ModelReply(text="x", preloaded=True), calls, done, Protocol.TEXT)


@rows(*Protocol)
def test_earlier_turns_are_shown_without_calls(protocol: Protocol) -> None:
    history = [
        HumanMessage("What is here?"),
        *step(ToolResult.success(entries=["calc.py"]), protocol),
        AIMessage("A calculator."),
        TASK,
        *step(read(CALC)),
    ]
    prompt = built(BLOCKS, history)
    assert prompt.messages[len(FRONT) : -1] == (user("What is here?"), assistant("A calculator."))
    assert request_of(prompt).startswith("Fix calc.py\n\ncalc.py\n")


OUTPUT = """calc_test.py:5: in test_add
    assert add(1, 2) == 3
calc.py:2: in add
    return a - b
E   assert -1 == 3"""
PASTED = f"""F      [100%]
=== FAILURES ===
{OUTPUT}
=== short test summary info ===
FAILED calc_test.py::test_add - assert -1 == 3"""
BEFORE = "Write add(a, b) in calc.py. It adds."


AGAIN = f"This was asked before:\n\n{BEFORE}\n\nNow:\n\n"


@rows("Changed calc.py.", "SYSTEM_ERROR (checks_failed): It is wrong.\nDone: no step.")
def test_second_try_starts_with_the_first_request_and_ends_with_the_failure(answer: str) -> None:
    first = [HumanMessage(BEFORE), *step(edited("calc.py"), text="x"), machine_message(answer)]
    for words, order in (("\n\nFix calc.py.", "Fix calc.py."), ("", "Fix this.")):
        request = request_for(PASTED + words, ahead(read(CALC)), before=first)
        assert request == f"{AGAIN}{order}\n\n{FILE}\n\nF      [100%]\n=== FAILURES ===\n{OUTPUT}"
    third = [*first, HumanMessage(PASTED), machine_message(answer)]
    assert request_for("It still fails.", before=third) == f"{AGAIN}It still fails."
    assert request_for("Create colors.md.", before=first).startswith("Create colors.md.")
    more = request_for("Now add a flag in calc.py.", before=first)
    assert more.startswith(f"{AGAIN}Now add a flag in calc.py.")
    other = [*first, HumanMessage("Create colors.md."), machine_message("Done.")]
    assert request_for("It is empty.", before=other) == AGAIN.replace(BEFORE, "Create colors.md.") + "It is empty."
    elsewhere = request_for(f"{PASTED}\n\nFix low in util.py.", before=first)
    assert elsewhere.startswith(f"{AGAIN}Fix low in util.py.")


def test_pasted_output_is_separated_from_the_words_around_it() -> None:
    doubt = "calc.py:2: in add\nE   ValueError: what?"
    assert request_for(f"It fails:\n{doubt}", ahead(read(CALC))) == f"It fails:\n\n{FILE}\n\n{doubt}"
    system, question = built(BLOCKS, [HumanMessage(f"Why is this?\n{doubt}"), *ahead(read(CALC))]).messages
    assert system["content"] == QUESTION_SYSTEM
    assert str(question["content"]).endswith(f"```\n\nWhy is this?\n{doubt}")
    summary = "F      [100%]\n=== short test summary info ===\nFAILED calc_test.py::test_add - assert -1 == 3"
    assert request_for(summary) == f"Fix this.\n\n{summary}"
    lines = [f"E   {number:05}" for number in range(1_000)]
    assert request_for("\n".join(lines)).splitlines()[2:] == lines[: 2_000 // len(f"{lines[0]}\n")]


@rows((1, 1, 0.0, 0.0), (1, 2, 0.0, 0.8), (0, 3, 1.2, 1.2))
def test_small_model_is_sampled_at_its_last_try(
    failures: int, corrections: int, given_temperature: float, expected: float
) -> None:
    history = [TASK, *(message for _ in range(failures) for message in step(failed("no")))]
    repairs = [Correction(reply="x", prompt="y")] * corrections
    for profile in (BLOCKS, NATIVE_BLOCKS):
        prompt = built(profile, history, *repairs, temperature=given_temperature)
        assert (prompt.temperature, prompt.failed_tries) == (expected, failures + corrections)
    for profile in (TEXT, NATIVE, BLOCKS.model_copy(update={"small": False})):
        assert built(profile, history, *repairs, temperature=given_temperature).temperature == given_temperature


def test_block_form_lists_only_indispensable_tools() -> None:
    custom = ToolSpec(name="deploy", description="Deploy it.", parameters={}, effect=Effect.NONE)
    owed = offered(EditForm.BLOCKS, {"type": "integer"})
    more = f"{BLOCKS_SYSTEM}\nMore tools, called in the same way:\n"
    for specs, system in (
        (offered(EditForm.BLOCKS), BLOCKS_SYSTEM),
        ([READ, custom], f"{more}- deploy({{}}): Deploy it."),
        (owed, f"{more}{describe_tool(owed[-1])}"),
    ):
        assert prompt_of(BLOCKS, specs, [TASK]).messages[0]["content"] == system


def test_native_block_form_sends_the_same_request_with_read_tools() -> None:
    history = [TASK, *step(read(CALC)), *step(failed("no"))]
    text, native = built(BLOCKS, history, temperature=0.1), built(NATIVE_BLOCKS, history, temperature=0.1)
    system = {"role": "system", "content": NATIVE_BLOCKS_SYSTEM}
    assert native == Prompt(
        messages=(system, *text.messages[1:]), tools=(native_tool(READ),), temperature=0.1, failed_tries=1
    )


def test_block_form_request_is_bounded() -> None:
    text = "x = 1\n" * 200
    history: list[AnyMessage] = [HumanMessage("Hello"), AIMessage("Good day."), TASK]
    history += [message for path in ("a.py", "b.py", "calc.py") for message in step(read(text, path))]
    complete = bounded(history, None)
    size = estimated_tokens(complete)
    assert bounded(history, size) == complete
    assert [message["content"] for message in complete[-3:-1]] == ["Hello", "Good day."]
    assert bounded(history, size - 1) == [*complete[:-3], complete[-1]]
    parts = [render_file("b.py", text), render_file("calc.py", text), "Not shown, for want of room: a.py."]
    assert bounded(history, size - 200)[-1]["content"] == "\n\n".join(["Fix calc.py", *parts])
    assert bounded(history, 0)[-1]["content"] == "Fix calc.py\n\nNot shown, for want of room: a.py, b.py, calc.py."


CALC_TEXT = "def add(a, b):\n    return a - b\n\n\ndef mean(values):\n    return add(*values) / 2\n"
SHAPES = "class Square:\n    def area(self):\n        return self.side\n\n\nasync def draw(shape):\n    pass\n"


DOCUMENTED = '''\
import math


@cached
def area(
    radius: float,
) -> float:  # in square metres
    """Say how large it is.

    >>> area(0)
    0.0
    """
    # the whole circle
    return math.pi * radius


PI = 3
'''


@rows(
    (CALC_TEXT, "add", CALC_TEXT.replace("return a - b", "...")),
    (
        DOCUMENTED,
        "area",
        DOCUMENTED[: DOCUMENTED.index("    # the")] + "    ...\n" + DOCUMENTED[DOCUMENTED.index("\n\nPI") :],
    ),
    ("x = 'é'\ndef f():\n    'é'\n    return 'é'\n", "f", "x = 'é'\ndef f():\n    'é'\n    ...\n"),
)
def test_function_body_is_left_out_and_its_documentation_kept(text: str, name: str, hidden: str) -> None:
    assert without_body(text, name) == hidden


@rows(
    (CALC_TEXT, "total"),
    (SHAPES, "Square"),
    ("def f(): return 1\n", "f"),
    (f"{CALC_TEXT}\n\ndef add(a):\n    pass\n", "add"),
    ("def f():\n    x = '\0'\n", "f"),
    ("def f():\n    'Only words.'\n", "f"),
)
def test_file_without_one_removable_body_is_not_shortened(text: str, name: str) -> None:
    assert without_body(text, name) is None
