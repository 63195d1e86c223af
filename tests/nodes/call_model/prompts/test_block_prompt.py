from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.call_model.exchange import build_prompt
from mendgraph.nodes.call_model.prompts import block_prompt as texts
from mendgraph.nodes.call_model.prompts.block_prompt import bounded_request, estimated_tokens, without_body
from mendgraph.nodes.call_model.prompts.profiles import SMALL_STOP
from mendgraph.nodes.call_model.prompts.prompt import Prompt, describe_tool, native_tool
from mendgraph.nodes.call_model.prompts.turn_view import TurnView
from mendgraph.nodes.language.blocks import render_file
from mendgraph.nodes.language.history import settle_exchange, written_here
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
from tests.nodes.call_model.prompts.prompting import (
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
    read,
    step,
    user,
)

FRONT = built(BLOCKS, [TASK]).messages[:-1]
"""The system prompt and the examples, which are the same in every request."""


def request_of(prompt: Prompt) -> str:
    assert prompt.messages[: len(FRONT)] == FRONT
    return str(prompt.messages[-1]["content"])


def test_block_form_is_one_clean_request() -> None:
    history = [TASK, *step(read(CALC))]
    prompt = built(BLOCKS, history, temperature=0.1)
    assert prompt == Prompt(
        messages=(*FRONT, user(f"Fix calc.py\n\ncalc.py\n```python\n{CALC}```")), stop=SMALL_STOP, temperature=0.1
    )


def test_request_holds_what_is_known_now_and_never_a_failed_reply() -> None:
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
    *known, failed_in_words = request_of(built(BLOCKS, history, correction)).split("\n\n")
    assert known == [
        "Fix calc.py",
        "calc.py\n```python\nnew\n```",
        '{"matches": ["calc.py:1"]}\nThe workspace has: calc.py',
        "Already changed: util.py, main.py",
    ]
    assert "The block is not Python.\nSend it again, complete." in failed_in_words
    assert "SAID" not in failed_in_words


EVIDENCE = failed("add(1, 2) gives -1, but must give 3.", ToolErrorCode.CHECK_FAILED)


FOUND = "add(1, 2) gives -1, but must give 3."
SHOWN = f"Fix calc.py\n\ncalc.py\n```python\n{CALC}```"
HIDDEN = render_file("calc.py", CALC.replace("return a - b", "..."))
RIGHT = "add(1, 2) must give 3."
NO_PYTHON, ANSWER_WITH_ADD = "The block is not Python.", "Answer with calc.py and the new text of add."


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        (0, f"{SHOWN}\n\n{FOUND}"),
        (1, f"Fix calc.py\n\n{HIDDEN}\n\n{RIGHT}\nWrite add anew."),
        (2, f"{HIDDEN}\n\n{RIGHT}\n\nWrite the function add."),
        (3, f"{NO_PYTHON}\n\n{SHOWN}\n\nSome line of add has to change.\n{ANSWER_WITH_ADD}"),
    ],
)
def test_each_failure_makes_another_request_of_the_same_facts(failures: int, told: str) -> None:
    steps = [message for _ in range(failures) for message in step(failed(NO_PYTHON))]
    prompt = built(BLOCKS, [TASK, *ahead(read(CALC), EVIDENCE), *steps])
    assert (prompt.messages[-1]["content"], prompt.failed_tries) == (told, failures)
    alone = [{"role": "system", "content": texts.ANEW_SYSTEM}]
    assert [*prompt.messages[:-1]] == (alone if failures == 2 else [*FRONT])


@pytest.mark.parametrize("task", ["Fix calc.py", "Fix it.", "Change it.", "Add none.py.", "What is it?", "Hello."])
@pytest.mark.parametrize("files", [{"calc.py": CALC}, {"calc.py": CALC, "util.py": "def low(text):\n    return 1\n"}])
@pytest.mark.parametrize("failure", ["no", "No such file: 'none.py'."])
def test_no_request_of_a_turn_is_made_twice(task: str, files: dict[str, str], failure: str) -> None:
    shown = [message for path, content in files.items() for message in step(read(content, path), path=path)]
    failing = [step(failed(failure)) * failures for failures in range(texts.LAST_TRY + 1)]
    asked = [built(BLOCKS, [HumanMessage(task), *shown, *steps]).messages for steps in failing]
    assert len({str(messages) for messages in asked}) == texts.LAST_TRY + 1


SAME = failed("The block is identical to what add in 'calc.py' already has.", ToolErrorCode.UNCHANGED)


def test_what_was_given_back_unchanged_is_asked_for_without_its_body() -> None:
    history = [HumanMessage("The sum is wrong."), *step(read(CALC)), *step(read(UTIL, "util.py"), path="util.py")]
    told = request_of(built(BLOCKS, [*history, *step(SAME)]))
    assert told == f"The sum is wrong.\n\n{render_file('util.py', UTIL)}\n\n{HIDDEN}\n\nWrite add anew."
    alone = built(BLOCKS, [*history, *step(SAME) * 2]).messages[-1]["content"]
    assert alone == f"The sum is wrong.\n\n{HIDDEN}\n\nWrite the function add."
    said = CALC.replace("return", '"""The sum."""\n    return')
    first = built(BLOCKS, [HumanMessage("The sum is wrong."), *step(read(said)), *step(SAME)]).messages
    assert (first[0]["content"], len(first)) == (texts.ANEW_SYSTEM, 2)  # what says what it does is enough
    new = [HumanMessage("The sum is wrong, and none.py is missing."), *history[1:], *step(SAME)]
    assert CALC in request_of(built(BLOCKS, new))


def test_order_that_changed_nothing_is_given_again_below_the_file_alone() -> None:
    history = [HumanMessage("Add a flag to the sum."), *step(read(UTIL, "util.py"), path="util.py"), *step(read(CALC))]
    first, second, last = (built(BLOCKS, [*history, *step(SAME) * tries]).messages for tries in (1, 2, 3))
    system, told = (
        {"role": "system", "content": texts.ANEW_SYSTEM},
        f"{render_file('calc.py', CALC)}\n\nAdd a flag to the sum.",
    )
    assert first == (system, {"role": "user", "content": told})
    assert second == (system, {"role": "user", "content": f"{told}\n\nWrite all of calc.py."})
    assert last[0] == FRONT[0]
    wrong = step(failed("With this edit add(1, 1) gives 3."))
    assert built(BLOCKS, [*history, *wrong]).messages[0] == FRONT[0]


def test_function_that_is_asked_for_alone_is_of_the_only_file_that_is_shown() -> None:
    task, files = "add is wrong.", {"util.py": UTIL, "calc.py": CALC}
    shown = [texts.shown_files(task, TurnView(files=files), failures) for failures in (0, 1, 2, 3)]
    assert shown == [tuple(files), tuple(files), ("calc.py",), tuple(files)]


def test_function_is_asked_for_alone_with_what_was_asked_before_where_there_is_room() -> None:
    before: list[AnyMessage] = [HumanMessage("Write add."), written_here("Changed calc.py.")]
    history = [*before, HumanMessage("The sum is wrong."), *step(read(CALC)), *step(SAME) * 2]
    alone = texts.block_request([READ], history, [], native=False).messages
    assert str(alone[-1]["content"]).startswith(f"Write add.\n\nThe sum is wrong.\n\n{HIDDEN}")
    most = estimated_tokens(alone)
    assert texts.block_request([READ], history, [], native=False, most_tokens=most).messages == alone
    less = texts.block_request([READ], history, [], native=False, most_tokens=most - 1).messages
    assert (less[0], HIDDEN in str(less[-1]["content"])) == (FRONT[0], False)


def test_of_what_checks_speak_of_nothing_else_is_shown() -> None:
    history = [HumanMessage("Fix it."), *ahead(read(UTIL, "util.py"), read(CALC), EVIDENCE)]
    assert request_of(built(BLOCKS, history)) == f"Fix it.\n\n{render_file('calc.py', CALC)}\n\n{FOUND}"


def test_question_is_asked_without_a_word_of_edits() -> None:
    history = [HumanMessage("What does calc.py do?"), *step(read(CALC))]
    system, asked = built(BLOCKS, history).messages
    assert system["content"] == texts.QUESTION_SYSTEM
    assert asked["content"] == f"{render_file('calc.py', CALC)}\n\nWhat does calc.py do?"
    nothing_shown = built(BLOCKS, history[:1]).messages[0]["content"]
    assert "read_file" in str(nothing_shown)
    again = built(BLOCKS, [*history, *step(failed("no"))])
    assert str(again.messages[-1]["content"]).endswith("do?\n\nno\nAnswer in words.")


def test_new_test_goes_beside_those_that_are_there() -> None:
    shown = [
        *step(read("x", "tests/test_a.py"), path="tests/test_a.py"),
        *step(read(CALC, "src/calc.py"), path="src/calc.py"),
    ]
    told = request_of(built(BLOCKS, [HumanMessage("write a test for add"), *shown]))
    path = "tests/test_calc.py"
    assert told.endswith(f"There is no {path} yet.\n\nAnswer with {path} and its whole text.")


UTIL = "def low(text):\n    return text\n"


@pytest.mark.parametrize(
    ("task", "files", "last"),
    [
        ("Change add.", {"calc.py": CALC, "util.py": UTIL}, "Answer with calc.py and the new text of add."),
        (
            "Change add and low.",
            {"calc.py": CALC, "util.py": UTIL},
            "Answer with the path of the file and the new text of ",
        ),
        ("Fix it.", {"calc.py": CALC}, "Answer with calc.py and the new text of what changes."),
        ("Hello.", {"calc.py": CALC}, "Answer in words."),
    ],
)
def test_after_a_failure_the_last_line_says_how_to_answer(task: str, files: dict[str, str], last: str) -> None:
    shown = [message for path, content in files.items() for message in step(read(content, path), path=path)]
    for correction in ([], [Correction(reply="x", prompt="Send it again.")]):
        steps = step(failed(NO_PYTHON)) if not correction else []
        told = request_of(built(BLOCKS, [HumanMessage(task), *shown, *steps], *correction))
        failure, _, line = told.rpartition("\n\n")[2].rpartition("\n")
        assert (failure, line.startswith(last)) == (correction[0].prompt if correction else NO_PYTHON, True)
    assert "Answer" not in request_of(built(BLOCKS, [HumanMessage(task), *shown]))


def test_file_that_is_named_and_not_there_is_to_be_made() -> None:
    history = [HumanMessage("Create colors.md with red in it."), *step(read(CALC))]
    told = f"Create colors.md with red in it.\n\n{render_file('calc.py', CALC)}\n\nThere is no colors.md yet."
    assert request_of(built(BLOCKS, history)) == told
    asked = request_of(built(BLOCKS, history, Correction(reply="x", prompt="Send it again.")))
    assert asked == f"{told}\n\nSend it again.\nAnswer with colors.md and its whole text."
    made = request_of(built(BLOCKS, [*history, *step(edited("colors.md"))]))
    assert "There is no" not in made


def test_search_in_vain_changes_what_is_asked() -> None:
    history = [HumanMessage("Fix the cli."), *step(ToolResult.success(entries=["src/"]))]
    first = built(BLOCKS, history)
    vain = built(BLOCKS, [*history, *step(ToolResult.success(matches=[]))])
    assert (first.failed_tries, vain.failed_tries) == (0, 1)
    told = "The search has found nothing.\nAnswer with the path of the file and the new text of what changes."
    assert request_of(vain) == f"{request_of(first)}\n\n{told}"


def test_file_that_is_named_without_its_folder_is_there() -> None:
    there = step(read(CALC, "src/calc.py"), path="src/calc.py")
    assert "There is no" not in request_of(built(BLOCKS, [HumanMessage("Fix calc.py."), *there]))
    both = request_of(built(BLOCKS, [HumanMessage("Copy src/calc.py to calc.py."), *there]))
    assert "There is no calc.py yet." in both


def ahead(*results: ToolResult) -> list[AnyMessage]:
    """The step that was made before the model was asked."""
    tools = ["run_checks" if result is EVIDENCE else "read_file" for result in results]
    done = [CallResult(call_id=f"a{at}", tool=tools[at], result=result) for at, result in enumerate(results)]
    calls = [ToolCall(call_id=each.call_id, tool=each.tool, arguments={}, raw_arguments="{}") for each in done]
    return settle_exchange(ModelReply(text="x", preloaded=True), calls, done, Protocol.TEXT)


@pytest.mark.parametrize("protocol", Protocol)
def test_earlier_turns_are_told_in_words_alone(protocol: Protocol) -> None:
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


@pytest.mark.parametrize("answer", ["Changed calc.py.", "SYSTEM_ERROR (checks_failed): It is wrong.\nDone: no step."])
@pytest.mark.parametrize(("words", "said"), [("\n\nFix calc.py.", "Fix calc.py."), ("", "Fix this.")])
def test_second_try_is_asked_with_the_first_request_and_what_fails_comes_last(
    answer: str, words: str, said: str
) -> None:
    first = [
        HumanMessage(BEFORE),
        *step(edited("calc.py"), text=f"calc.py\n```python\n{CALC}```"),
        written_here(answer),
    ]
    told = request_of(built(BLOCKS, [*first, HumanMessage(PASTED + words), *ahead(read(CALC))]))
    now = f"{said}\n\n{render_file('calc.py', CALC)}\n\nF      [100%]\n=== FAILURES ===\n{OUTPUT}"
    assert told == f"This was asked before:\n\n{BEFORE}\n\nNow:\n\n{now}"
    third = [*first, HumanMessage(PASTED), written_here(answer), HumanMessage("It still fails.")]
    assert request_of(built(BLOCKS, third)) == f"This was asked before:\n\n{BEFORE}\n\nNow:\n\nIt still fails."
    assert request_of(built(BLOCKS, [*first, HumanMessage("Create colors.md.")])).startswith("Create colors.md.")
    more = request_of(built(BLOCKS, [*first, HumanMessage("Now add a flag in calc.py.")]))
    assert more.startswith(f"This was asked before:\n\n{BEFORE}\n\nNow:\n\nNow add a flag in calc.py.")
    other = [*first, HumanMessage("Create colors.md."), written_here("Done."), HumanMessage("It is empty.")]
    assert request_of(built(BLOCKS, other)) == "This was asked before:\n\nCreate colors.md.\n\nNow:\n\nIt is empty."
    elsewhere = request_of(built(BLOCKS, [*first, HumanMessage(f"{PASTED}\n\nFix low in util.py.")]))
    assert elsewhere.startswith(f"This was asked before:\n\n{BEFORE}\n\nNow:\n\nFix low in util.py.")


def test_what_is_asked_of_pasted_output_is_said_by_the_words_around_it() -> None:
    doubt = "calc.py:2: in add\nE   ValueError: what?"
    told = request_of(built(BLOCKS, [HumanMessage(f"It fails:\n{doubt}"), *ahead(read(CALC))]))
    assert told == f"It fails:\n\n{render_file('calc.py', CALC)}\n\n{doubt}"
    system, asked = built(BLOCKS, [HumanMessage(f"Why is this?\n{doubt}"), *ahead(read(CALC))]).messages
    assert system["content"] == texts.QUESTION_SYSTEM
    assert str(asked["content"]).endswith(f"```\n\nWhy is this?\n{doubt}")
    summary = "F      [100%]\n=== short test summary info ===\nFAILED calc_test.py::test_add - assert -1 == 3"
    assert request_of(built(BLOCKS, [HumanMessage(summary)])) == f"Fix this.\n\n{summary}"
    lines = [f"E   {number:05}" for number in range(1_000)]
    long = request_of(built(BLOCKS, [HumanMessage("\n".join(lines))]))
    assert long.splitlines()[2:] == lines[: 2_000 // len(f"{lines[0]}\n")]


def test_of_a_long_earlier_request_the_first_lines_are_told() -> None:
    lines = "".join(f"{number} is the number of this line.\n" for number in range(1_000))
    history = [HumanMessage(f"Make it.\n{lines}"), written_here("Done."), HumanMessage("It fails."), *ahead(read(CALC))]
    whole = texts.block_request([READ], history, [], native=False)
    less = texts.block_request([READ], history, [], native=False, most_tokens=estimated_tokens(whole.messages) - 100)
    told, fewer = (str(each.messages[-1]["content"]) for each in (whole, less))
    assert told.startswith("This was asked before:\n\nMake it.\n0 is")
    assert texts.EARLIER_LIMIT > len(told) - 200 > len(fewer) > texts.EARLIER_LIMIT - 1_000
    assert fewer.endswith(f" line.\n\nNow:\n\nIt fails.\n\n{render_file('calc.py', CALC)}")


@pytest.mark.parametrize(
    ("failures", "corrections", "given_temperature", "expected"), [(1, 1, 0.0, 0.0), (1, 2, 0.0, 0.8), (0, 3, 1.2, 1.2)]
)
def test_at_its_last_try_a_small_model_is_sampled(
    failures: int, corrections: int, given_temperature: float, expected: float
) -> None:
    history = [TASK, *(message for _ in range(failures) for message in step(failed("no")))]
    asked = [Correction(reply="x", prompt="y")] * corrections
    for profile in (BLOCKS, NATIVE_BLOCKS):
        prompt = built(profile, history, *asked, temperature=given_temperature)
        assert (prompt.temperature, prompt.failed_tries) == (expected, failures + corrections)
    for profile in (TEXT, NATIVE, BLOCKS.model_copy(update={"small": False})):
        assert built(profile, history, *asked, temperature=given_temperature).temperature == given_temperature


def test_block_form_tells_only_of_tools_that_a_model_cannot_do_without() -> None:
    own = ToolSpec(name="deploy", description="Deploy it.", parameters={}, effect=Effect.NONE)
    told = {
        "usual": offered(EditForm.BLOCKS),
        "own": [READ, own],
        "owed": offered(EditForm.BLOCKS, {"type": "integer"}),
    }
    systems = {
        name: str(build_prompt(BLOCKS, specs, [TASK], (), 0.0).messages[0]["content"]) for name, specs in told.items()
    }
    more = f"{texts.BLOCKS_SYSTEM}\nMore tools, called in the same way:\n"
    assert systems == {
        "usual": texts.BLOCKS_SYSTEM,
        "own": f"{more}- deploy({{}}): Deploy it.",
        "owed": f"{more}{describe_tool(told['owed'][-1])}",
    }


# --- In the native protocol


def test_in_the_native_protocol_the_same_is_asked_with_two_tools_to_look_with() -> None:
    history = [TASK, *step(read(CALC)), *step(failed("no"))]
    text, native = built(BLOCKS, history, temperature=0.1), built(NATIVE_BLOCKS, history, temperature=0.1)
    system = {"role": "system", "content": texts.NATIVE_BLOCKS_SYSTEM}
    assert native == Prompt(
        messages=(system, *text.messages[1:]), tools=(native_tool(READ),), temperature=0.1, failed_tries=1
    )


def test_request_in_block_form_is_bounded() -> None:
    text = "x = 1\n" * 200
    history: list[AnyMessage] = [HumanMessage("Hello"), AIMessage("Good day."), TASK]
    history += [message for path in ("a.py", "b.py", "calc.py") for message in step(read(text, path))]

    def bounded(most_tokens: int | None) -> list[JsonMap]:
        return list(texts.block_request([READ], history, [], native=False, most_tokens=most_tokens).messages)

    whole = bounded(None)
    size = estimated_tokens(whole)
    assert bounded(size) == whole
    assert [message["content"] for message in whole[-3:-1]] == ["Hello", "Good day."]
    assert bounded(size - 1) == [*whole[:-3], whole[-1]]
    shown = [render_file("b.py", text), render_file("calc.py", text), "Not shown, for want of room: a.py."]
    assert bounded(size - 200)[-1]["content"] == "\n\n".join(["Fix calc.py", *shown])
    assert bounded(0)[-1]["content"] == "Fix calc.py\n\nNot shown, for want of room: a.py, b.py, calc.py."


SHORT_TASK = "Fix b.py"
FILES = {"a.py": "a" * 300, "b.py": "b" * 300, "c.py": "c" * 300, "d.py": "d" * 300}
FOUND_TEXT = ("f" * 300,)


def told(view: TurnView, left_out: Sequence[str]) -> str:
    """What is shown, in the sizes that it has, and what is not."""
    return "".join([SHORT_TASK, *view.files.values(), *view.found, *(f"-{path}" for path in left_out)])


@pytest.mark.parametrize(
    ("tokens", "shown"), [(503, "a b c d f"), (404, "b d f -a.py -c.py"), (0, "-a.py -c.py -d.py -b.py")]
)
def test_what_the_task_needs_least_goes_first(tokens: int, shown: str) -> None:
    text = bounded_request(SHORT_TASK, TurnView(files=FILES, found=FOUND_TEXT), told, tokens)
    files = "".join(name * 300 for name in shown.split() if len(name) == 1)
    assert text == SHORT_TASK + files + "".join(name for name in shown.split() if len(name) > 1)


CALC_TEXT = "def add(a, b):\n    return a - b\n\n\ndef mean(values):\n    return add(*values) / 2\n"
SHAPES = "class Square:\n    def area(self):\n        return self.side\n\n\nasync def draw(shape):\n    pass\n"


DOCUMENTED = '''\
"""Numbers."""

import math


@cached
def area(
    radius: float,
) -> float:  # in square metres
    """Say how large it is.

    >>> area(0)
    0.0
    """
    if radius < 0:
        return 0.0

    # the whole circle
    return math.pi * radius


PI = 3
'''


@pytest.mark.parametrize(
    ("text", "name", "hidden"),
    [
        (CALC_TEXT, "add", CALC_TEXT.replace("return a - b", "...")),
        (
            DOCUMENTED,
            "area",
            DOCUMENTED[: DOCUMENTED.index("    if ")] + "    ...\n" + DOCUMENTED[DOCUMENTED.index("\n\nPI") :],
        ),
        ("x = 'é'\ndef f():\n    'é'\n    return 'é'\n", "f", "x = 'é'\ndef f():\n    'é'\n    ...\n"),
    ],
)
def test_body_is_left_out_and_the_documentation_kept(text: str, name: str, hidden: str) -> None:
    assert without_body(text, name) == hidden


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CALC_TEXT, "total"),
        (SHAPES, "Square"),
        ("def f(): return 1\n", "f"),
        (f"{CALC_TEXT}\n\ndef add(a):\n    pass\n", "add"),
        ("def f():\n    x = '\0'\n", "f"),
        ("def f():\n    'Only words.'\n", "f"),
    ],
)
def test_file_in_which_no_one_body_can_be_left_out_is_not_shown_in_part(text: str, name: str) -> None:
    assert without_body(text, name) is None
