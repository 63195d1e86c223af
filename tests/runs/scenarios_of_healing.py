"""Scenarios in which a reply cannot be used: it is mended, asked for again, or given up."""

from mendgraph.nodes.records import OutcomeKind, StopReason
from tests.doubles.replies import Empty, Filtered, Refuse, Say, Status
from tests.runs.scenario import ANSWER, ASK, BEGIN, FINISHED, HEAL, STEP, SYSTEM_ERROR, Ends, Scenario, Turn, Use, use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, READ, TASK

NOT_JSON = ("read_file", '{"path": calc.py}')
NO_PATH = use(("read_file", {}))
COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
PRINTED = Say('```json\n{"name": "edit_file", "arguments": {"path": "calc.py", "old_str": "-", "new_str": "+"}}\n```')
BUSY = Status(429, headers={"Retry-After": "0"})
DOWN = Status(503, headers={"Retry-After": "0"})

SCENARIOS_OF_HEALING: tuple[Scenario, ...] = (
    Scenario(
        cassettes=("malformed_call_healed/text", "malformed_call_healed/native"),
        files=CALC,
        turns=(Turn(TASK, (use(NOT_JSON), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            files={"calc.py": MENDED},
            told=("- INVALID_JSON_SYNTAX: JSON parse error", "Please retry your response with the correct format."),
        ),
    ),
    Scenario(
        cassettes=("healing_exhausted/text", "healing_exhausted/native"),
        files=CALC,
        turns=(Turn(TASK, (use(NOT_JSON),) * 4),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.HEALING_EXHAUSTED,
            path=(*BEGIN, *HEAL * 4, *SYSTEM_ERROR),
            message="after 3 retries",
        ),
    ),
    Scenario(
        cassettes=("arguments_repaired/text", "arguments_repaired/native"),
        files=CALC,
        turns=(Turn(TASK, (NO_PATH, use(READ), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            files={"calc.py": MENDED},
            told=("- INVALID_ARGUMENTS: read_file: ",),
        ),
    ),
    Scenario(
        cassettes=("arguments_never_fit/text", "arguments_never_fit/native"),
        files=CALC,
        turns=(Turn(TASK, (NO_PATH,) * 3),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.SCHEMA_REPAIR_EXHAUSTED,
            path=(*BEGIN, *HEAL * 3, *SYSTEM_ERROR),
            message="after 2 repairs",
        ),
    ),
    Scenario(
        cassettes=("plan_repaired/text", "plan_repaired/native"),
        files=CALC,
        turns=(
            Turn(
                "Make a plan.",
                (
                    use(("update_plan", {"steps": [{"title": "look", "status": "started"}]})),
                    use(("update_plan", {"steps": [{"title": "look", "status": "in_progress"}]})),
                    Say("There is a plan."),
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            told=("- INVALID_ARGUMENTS: update_plan: ",),
        ),
    ),
    Scenario(
        cassettes=("unknown_tool/text", "unknown_tool/native"),
        files=CALC,
        turns=(Turn("Show me calc.py.", (use(("read_files", {"path": "calc.py"})), use(READ), Say("Here it is."))),),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            told=("- UNKNOWN_TOOL_NAME: Unknown tool 'read_files'. Available: ['delete_file', 'edit_file', ",),
        ),
    ),
    Scenario(
        cassettes=("valid_beside_malformed/text", "valid_beside_malformed/native"),
        files=CALC,
        turns=(Turn(TASK, (use(READ, ("edit_file", '{path: "calc.py"}'), EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *STEP, *ANSWER),
            verdicts=("allow", "malformed", "allow"),
            results=("ok", "invalid_argument", "ok"),
            files={"calc.py": MENDED},
            told=("INVALID_JSON_SYNTAX",),
        ),
    ),
    Scenario(
        cassettes=("call_printed_as_json/text", "call_printed_as_json/native"),
        files=CALC,
        turns=(Turn(TASK, (PRINTED, DONE)),),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP[2:], *ANSWER), verdicts=("allow",), results=("ok",), files={"calc.py": MENDED}
        ),
    ),
    Scenario(
        cassettes=("empty_reply/text", "empty_reply/native"),
        files=CALC,
        turns=(Turn(TASK, (Empty(), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            files={"calc.py": MENDED},
            told=("- EMPTY_REPLY: The reply was empty. Reply with a tool call or with an answer.",),
        ),
    ),
    Scenario(
        cassettes=("empty_for_ever/text", "empty_for_ever/native"),
        files=CALC,
        turns=(Turn(TASK, (Empty(),) * 4),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.EMPTY_REPLY,
            path=(*BEGIN, *HEAL * 4, *SYSTEM_ERROR),
            message="still empty after 3 retries",
        ),
    ),
    Scenario(
        cassettes=("reply_cut/text", "reply_cut/native"),
        files=CALC,
        turns=(
            Turn(TASK, (Use((("write_file", {"path": "new.py", "content": "half of i"}),), cut=True), use(EDIT), DONE)),
        ),
        ends=Ends(
            path=(*BEGIN, *HEAL, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            files={"calc.py": MENDED},
            told=("- TRUNCATED_REPLY: The reply was cut at the token limit. Nothing was executed.",),
        ),
    ),
    Scenario(
        cassettes=("refused/text", "refused/native"),
        files=CALC,
        turns=(Turn(TASK, (Refuse("I will not do that."),)),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.REFUSED,
            path=(*BEGIN, *HEAL, *SYSTEM_ERROR),
            message="The model refused to reply",
        ),
    ),
    Scenario(
        cassettes=("filtered/text", "filtered/native"),
        files=CALC,
        turns=(Turn(TASK, (Filtered("The fun"),)),),
        ends=Ends(kind=OutcomeKind.SYSTEM_ERROR, reason=StopReason.REFUSED, path=(*BEGIN, *HEAL, *SYSTEM_ERROR)),
    ),
    Scenario(
        cassettes=("answer_with_value/text", "answer_with_value/native"),
        files=CALC,
        context={"response_format": COUNT},
        turns=(
            Turn(
                "How many functions are in calc.py?",
                (use(READ), use(("final_answer", {"answer": "One.", "value": {"count": 1}}))),
            ),
        ),
        ends=Ends(path=(*BEGIN, *STEP, *ANSWER), verdicts=("allow",), results=("ok",), message="One."),
    ),
    Scenario(
        cassettes=("answer_repaired/text", "answer_repaired/native"),
        files=CALC,
        context={"response_format": COUNT},
        turns=(
            Turn(
                "How many functions are in calc.py?",
                (
                    Say("One."),
                    use(("final_answer", {"answer": "One.", "value": {"count": "one"}})),
                    use(READ, ("final_answer", {"answer": "One.", "value": {"count": 1}})),
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *HEAL, *HEAL, *STEP, *FINISHED),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            message="One.",
            told=("- INVALID_ANSWER: end with the tool final_answer", "value.count: 'one' is not of type 'integer'"),
        ),
    ),
    Scenario(
        cassettes=("answer_never_fits/text", "answer_never_fits/native"),
        files=CALC,
        context={"response_format": COUNT},
        turns=(Turn("How many functions are in calc.py?", (Say("One."),) * 3),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.SCHEMA_REPAIR_EXHAUSTED,
            path=(*BEGIN, *HEAL * 3, *SYSTEM_ERROR),
        ),
    ),
    Scenario(
        cassettes=("endpoint_busy/text", "endpoint_busy/native"),
        files=CALC,
        turns=(Turn(TASK, (BUSY, use(EDIT), DONE)),),
        ends=Ends(path=(*BEGIN, *STEP, *ANSWER), verdicts=("allow",), results=("ok",), files={"calc.py": MENDED}),
    ),
    Scenario(
        cassettes=("endpoint_down/text", "endpoint_down/native"),
        files=CALC,
        turns=(Turn(TASK, (DOWN,) * 3),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.PROVIDER_FAILED,
            path=(*BEGIN, ASK[0], *SYSTEM_ERROR),
            message="failed",
        ),
    ),
)
