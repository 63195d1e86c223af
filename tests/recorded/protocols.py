"""The other ways to talk to the model: tool lines with old and new strings, and native calls.

A model of this size gets neither unless a person sets it: it repeats calls, invents results, and makes no native calls.
"""

from tests.recorded.changes import SETTINGS
from tests.recorded.questions import SERVICE
from tests.recorded.recorded_run import RecordedRun, Turn
from tests.recorded.repairs import ADD, ADDS
from tests.vocabulary import JsonMap

TASK = "The add function in calc.py is wrong: it subtracts. Fix it."
FIND = "The add function is wrong: it subtracts. Find it and fix it."
TOOL_LINES: JsonMap = {"protocol": "text", "edit_form": "replace"}
NATIVE_CALLS: JsonMap = {"protocol": "native", "edit_form": "replace"}
GUESSES = ("edit_file: not_found", "list_files: not_found", "glob_files: ok")

PROTOCOLS: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="loop_overridden",
        story="The model guesses src/add.js, lists src, searches for src/add.js, and does all of that three times. The"
        " machine refuses the third search from then on. The model answers with the words of the request, which is"
        " no change, and its ten calls are used up.",
        files=ADD,
        settings=TOOL_LINES,
        turns=(
            Turn(
                request=FIND,
                steps=(*3 * GUESSES, "overridden: glob_files", "asked again: unfounded_claim"),
                kind="BUDGET_STOP",
                reason="max_calls_per_turn",
                message="Limit 'max_calls_per_turn' exceeded: 10/10",
            ),
        ),
        calls=10,
        in_requests=(
            "glob_files on '.' was called 3 times with the same arguments. It is refused until a file changes",
        ),
    ),
    RecordedRun(
        name="result_invented_then_loop",
        story="The model invents a result instead of a call: the reply counts as empty and is asked for again. Then it"
        " reads the file over and over, as the request says; the fourth read ends the run.",
        files=SERVICE,
        settings=TOOL_LINES,
        turns=(
            Turn(
                request="Read limits.py again and again until MAX_RETRIES is 5.",
                steps=(
                    "read_file: ok",
                    "asked again: empty_reply",
                    "read_file: ok",
                    "read_file: ok",
                    "overridden: read_file",
                    "read_file denied by loop_override",
                    "read_file: loop_override",
                ),
                kind="SYSTEM_ERROR",
                reason="loop_persisted",
                message="The same call was made 4 times with the same arguments: read_file on 'limits.py'.",
            ),
        ),
        calls=4,
        in_requests=("EMPTY_REPLY: The reply was empty.",),
    ),
    RecordedRun(
        name="edit_repeated_after_success",
        story="The first edit fixes the bug. The model goes on: it writes the same file, edits what is no longer there,"
        " and copies the suggestions of the error into the arguments, which is asked for again. In the end it"
        " answers, and the file holds the first edit.",
        files=ADD,
        settings=TOOL_LINES,
        turns=(
            Turn(
                request=TASK,
                steps=(
                    "read_file: ok",
                    "edit_file: ok",
                    "write_file: invalid_argument",
                    "edit_file: invalid_argument",
                    "asked again: invalid_arguments",
                    "edit_file: invalid_argument",
                    "read_file: ok",
                    "edit_file: ok",
                    "write_file: ok",
                    "update_plan: ok",
                ),
                message="Changed calc.py",
                answer="now correctly implemented as it adds two numbers",
            ),
        ),
        calls=10,
        changed={"calc.py": ADDS},
        in_requests=("edit_file: suggestions: unknown argument",),
    ),
    RecordedRun(
        name="native_call_printed_as_json",
        story="Offered native calls, the model prints the call as JSON in a code fence instead. The machine reads it as"
        " it is. The answer then tells the person to make the edit that was made.",
        files=ADD,
        settings=NATIVE_CALLS,
        turns=(
            Turn(
                request=TASK,
                steps=("read_file: ok", "repaired: edit_file", "edit_file: ok"),
                message="Changed calc.py",
                answer="you can run the `edit_file` function to update the file",
            ),
        ),
        calls=2,
        changed={"calc.py": ADDS},
    ),
    RecordedRun(
        name="native_call_quoted",
        story="The model prints the call in a code fence and explains it, before and after: that is an answer, whose"
        " call does not run. The outcome says so.",
        files=SERVICE,
        settings=NATIVE_CALLS,
        turns=(
            Turn(
                request="In which file is retry_delay defined?",
                message="No file was changed. The answer quotes a tool call, which did not run.",
                answer="I will use the `search_files` function",
            ),
        ),
    ),
    RecordedRun(
        name="claim_without_change",
        story="The model makes a plan, marks it as done, and says so. It is met with the fact that no file was changed,"
        " twice. It admits that, and does not do the work.",
        files={"settings.json": SETTINGS},
        settings=NATIVE_CALLS,
        turns=(
            Turn(
                request="Set timeout_s in settings.json to 30.",
                steps=(
                    "read_file: ok",
                    "repaired: update_plan",
                    "update_plan: ok",
                    "asked again: unfounded_claim",
                    "asked again: unfounded_claim",
                    "repaired: final_answer",
                    "final_answer: ok",
                ),
                message="No file was changed.",
                answer="No file was changed, so the plan has not been updated",
            ),
        ),
        calls=4,
        in_requests=("No file was changed, so what this answer says has not happened.",),
    ),
)
