"""Scenarios in which a reply cannot be used: it is asked for again, repaired as it is, or ends the run."""

from tests.doubles.replies import Empty, Filtered, Refuse, Say
from tests.doubles.tool_use import Use, use
from tests.scenarios.sample_repair import CALC, COUNT, DONE, EDIT, MENDED, READ, TASK
from tests.scenarios.scenario import Expectation, Scenario, Turn
from tests.vocabulary import OutcomeKind, Protocol

NOT_JSON = ("read_file", '{"path": calc.py}')
NO_PATH = use(("read_file", {}))
PRINTED = Say('```json\n{"name": "edit_file", "arguments": {"path": "calc.py", "old_str": "-", "new_str": "+"}}\n```')
FENCED = Say(
    'I change it:\n```\ntool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})\n```\nThat is all.'
)
BAD_PLAN = use(("update_plan", {"steps": [{"title": "look", "status": "started"}]}))
GOOD_PLAN = use(("update_plan", {"steps": [{"title": "look", "status": "in_progress"}]}))
UNKNOWN_TOOL = use(("read_files", {"path": "calc.py"}))
HOW_MANY = "How many functions are in calc.py?"

TEXT_ONLY = (Protocol.TEXT,)


def failed(reason: str, message: str = "") -> Expectation:
    """Expect that the run ends as a failure and changes nothing."""
    return Expectation(kind=OutcomeKind.SYSTEM_ERROR, reason=reason, message=message)


MALFORMED: tuple[Scenario, ...] = (
    Scenario(
        name="malformed_call_healed",
        story="The arguments of a call are not JSON. The correction says what is wrong, and the next reply is a valid"
        " call. Afterwards the history contains neither the bad reply nor the correction.",
        files=CALC,
        turns=(Turn(TASK, (use(NOT_JSON), use(EDIT), DONE)),),
        expected=Expectation(
            files={"calc.py": MENDED},
            in_requests=(
                "- INVALID_JSON_SYNTAX: JSON parse error",
                "Please retry your response with the correct format.",
            ),
        ),
        resumed=True,
    ),
    Scenario(
        name="healing_exhausted",
        story="Four replies in a row are malformed. After three corrections the run gives up.",
        files=CALC,
        turns=(Turn(TASK, (use(NOT_JSON),) * 4),),
        expected=failed("healing_exhausted", "after 3 retries"),
        resumed=True,
    ),
    Scenario(
        name="healed_at_the_last_try",
        story="Three malformed replies in a row are corrected, and the fourth reply is a valid call.",
        files=CALC,
        turns=(Turn(TASK, (use(NOT_JSON), use(NOT_JSON), use(NOT_JSON), use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
    Scenario(
        name="each_malformed_tool_line",
        story="Each way in which a `tool:` line can be malformed has its own error, with details.",
        files=CALC,
        turns=tuple(
            Turn(f"Try {text!r}.", (Say(text), Say("Sorry.")))
            for text in ("tool: read_file", "tool: (", "tool: xyzzy(", "tool: read_file(", "tool: read_file(x)")
        ),
        expected=Expectation(
            in_requests=(
                "- MISSING_OPENING_PAREN: Missing '(' in tool invocation: 'read_file'",
                "- EMPTY_TOOL_NAME: Tool name is empty",
                "- UNKNOWN_TOOL_NAME: Unknown tool 'xyzzy'. Available: [",
                "- MISSING_CLOSING_PAREN: Missing closing ')' in: ",
                "- INVALID_JSON_SYNTAX: JSON parse error: Expecting value at position 0. JSON: 'x'",
                'tool: TOOL_NAME({"param": "value"})',
            ),
        ),
        protocols=TEXT_ONLY,
    ),
    Scenario(
        name="tool_line_in_a_code_fence",
        story="A `tool:` line is a call wherever it stands, also in a code fence between sentences.",
        files=CALC,
        turns=(Turn(TASK, (FENCED, DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
        protocols=TEXT_ONLY,
    ),
    Scenario(
        name="arguments_repaired",
        story="A call lacks a required argument. The correction names it.",
        files=CALC,
        turns=(Turn(TASK, (NO_PATH, use(READ), use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("- INVALID_ARGUMENTS: read_file: ",)),
    ),
    Scenario(
        name="arguments_never_valid",
        story="Arguments that do not match their schema are corrected twice, not three times.",
        files=CALC,
        turns=(Turn(TASK, (NO_PATH,) * 3),),
        expected=failed("schema_repair_exhausted", "after 2 repairs"),
    ),
    Scenario(
        name="plan_repaired",
        story="A plan with a status that does not exist is corrected twice. The history keeps only the valid plan.",
        files=CALC,
        turns=(Turn("Make a plan.", (BAD_PLAN, BAD_PLAN, GOOD_PLAN, Say("There is a plan."))),),
        expected=Expectation(in_requests=("- INVALID_ARGUMENTS: update_plan: ",)),
    ),
    Scenario(
        name="plan_never_valid",
        story="A plan that does not match its schema is corrected twice, like any arguments.",
        files=CALC,
        turns=(Turn("Make a plan.", (BAD_PLAN,) * 3),),
        expected=failed("schema_repair_exhausted", "INVALID_ARGUMENTS"),
    ),
    Scenario(
        name="unknown_tool",
        story="The model calls a tool that does not exist. The correction lists those that do.",
        files=CALC,
        turns=(Turn("Show me calc.py.", (UNKNOWN_TOOL, use(READ), Say("Here it is."))),),
        expected=Expectation(
            in_requests=("- UNKNOWN_TOOL_NAME: Unknown tool 'read_files'. Available: ['delete_file', 'edit_file', ",),
        ),
    ),
    Scenario(
        name="unknown_tool_until_exhausted",
        story="The model keeps calling a tool that does not exist. The run ends, and its diagnostics name the error.",
        files=CALC,
        turns=(Turn("Show me calc.py.", (UNKNOWN_TOOL,) * 4),),
        expected=failed("healing_exhausted", "UNKNOWN_TOOL_NAME: Unknown tool 'read_files'"),
    ),
    Scenario(
        name="malformed_call_between_valid_ones",
        story="Of three calls in one reply the second is malformed. The others run, and each gets its result.",
        files=CALC,
        turns=(Turn(TASK, (use(READ, ("edit_file", '{path: "calc.py"}'), EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("INVALID_JSON_SYNTAX",)),
        resumed=True,
    ),
    Scenario(
        name="call_printed_as_json",
        story="The model prints its call as JSON in a code fence. The call is read without a correction.",
        files=CALC,
        turns=(Turn(TASK, (PRINTED, DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
    Scenario(
        name="reply_cut",
        story="The token limit cuts a reply in the middle of a call. No call of it runs.",
        files=CALC,
        turns=(
            Turn(TASK, (Use((("write_file", {"path": "new.py", "content": "half of i"}),), cut=True), use(EDIT), DONE)),
        ),
        expected=Expectation(
            files={"calc.py": MENDED},
            in_requests=("- TRUNCATED_REPLY: The reply was cut at the token limit. Nothing was executed.",),
        ),
    ),
)

WITHOUT_CALLS: tuple[Scenario, ...] = (
    Scenario(
        name="empty_reply",
        story="An empty reply gets a correction.",
        files=CALC,
        turns=(Turn(TASK, (Empty(), use(EDIT), DONE)),),
        expected=Expectation(
            files={"calc.py": MENDED},
            in_requests=("- EMPTY_REPLY: The reply was empty. Reply with a tool call or with an answer.",),
        ),
    ),
    Scenario(
        name="empty_replies_until_exhausted",
        story="The model sends four empty replies.",
        files=CALC,
        turns=(Turn(TASK, (Empty(),) * 4),),
        expected=failed("empty_reply", "still empty after 3 retries"),
    ),
    Scenario(
        name="reply_refused",
        story="The model refuses. A correction would not change that, so the run ends.",
        files=CALC,
        turns=(Turn(TASK, (Refuse("I will not do that."),)),),
        expected=failed("refused", "The model refused to reply"),
    ),
    Scenario(
        name="reply_filtered",
        story="The content filter of the endpoint ends the reply, and with it the run.",
        files=CALC,
        turns=(Turn(TASK, (Filtered("The fun"),)),),
        expected=failed("refused"),
    ),
)

ANSWERS_WITH_VALUES: tuple[Scenario, ...] = (
    Scenario(
        name="answer_with_value",
        story="The run asks for a value of a JSON schema. The model gives it with the tool `final_answer`.",
        files=CALC,
        settings={"response_format": COUNT},
        turns=(Turn(HOW_MANY, (use(READ), use(("final_answer", {"answer": "One.", "value": {"count": 1}})))),),
        expected=Expectation(message="One."),
    ),
    Scenario(
        name="answer_repaired",
        story="An answer without the value and one with an invalid value are corrected. The third one comes with a"
        " call, which runs first.",
        files=CALC,
        settings={"response_format": COUNT},
        turns=(
            Turn(
                HOW_MANY,
                (
                    Say("One."),
                    use(("final_answer", {"answer": "One.", "value": {"count": "one"}})),
                    use(READ, ("final_answer", {"answer": "One.", "value": {"count": 1}})),
                ),
            ),
        ),
        expected=Expectation(
            message="One.",
            in_requests=(
                "- INVALID_ANSWER: end with the tool final_answer",
                "value.count: 'one' is not of type 'integer'",
            ),
        ),
    ),
    Scenario(
        name="answer_without_the_value",
        story="The model never gives the value. After two repairs the run gives up.",
        files=CALC,
        settings={"response_format": COUNT},
        turns=(Turn(HOW_MANY, (Say("One."),) * 3),),
        expected=failed("schema_repair_exhausted"),
    ),
)

UNUSABLE_REPLIES = (*MALFORMED, *WITHOUT_CALLS, *ANSWERS_WITH_VALUES)
