"""Runs that end early: budgets, loops, repairs of malformed replies that are used up; and a run that is resumed."""

from tests.recorded.permissions import REFUSED
from tests.recorded.recorded_run import RESUME, RecordedRun, Turn
from tests.recorded.repairs import ADD, ADDS, CART

FIND = "The add function is wrong: it subtracts. Find it and fix it."
VERSION = {"pyproject.toml": '[project]\nname = "ferry"\nversion = "1.2.0"\n'}

UNCHANGED = ("edit_blocks: unchanged", "final_answer: cancelled")

LIMITS: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="stop_at_max_steps",
        story="With tool lines the model guesses a file that does not exist, and has no step left to look for the right"
        " one.",
        files=ADD,
        settings={"max_steps": 1, "protocol": "text", "edit_form": "replace"},
        turns=(
            Turn(
                request=FIND,
                steps=("edit_file: not_found",),
                kind="BUDGET_STOP",
                reason="max_steps",
                message="Limit 'max_steps' exceeded: 1/1",
            ),
        ),
    ),
    RecordedRun(
        name="stop_at_max_calls_then_resumed",
        story="Nothing is read ahead. The model writes into the file of the prompt's example, twice: no such edit is"
        " made, and the first one has used up the one call. Resumed with five calls, the model searches, edits a"
        " file that it has not read, is shown it, and edits it again.",
        files=ADD,
        settings={"max_calls_per_turn": 1, "read_ahead": False},
        turns=(
            Turn(
                request=FIND,
                steps=("asked again: invalid_arguments",),
                kind="BUDGET_STOP",
                reason="max_calls_per_turn",
                message="Limit 'max_calls_per_turn' exceeded: 1/1",
            ),
            Turn(
                request=RESUME,
                settings={"max_calls_per_turn": 5},
                steps=(
                    "asked again: invalid_arguments",
                    "search_files: ok",
                    "edit_blocks: invalid_argument",
                    "edit_blocks: ok",
                    "final_answer: cancelled",
                    "edit_blocks: ok",
                    "final_answer: ok",
                ),
                message="Changed calc.py",
            ),
        ),
        calls=5,
        changed={"calc.py": ADDS},
        in_requests=("This block is the example's. Write the new text of what changes", "Go on with this task"),
    ),
    RecordedRun(
        name="stop_at_output_tokens",
        story="The reply is cut in the middle of the file, at the last token of the budget. Nothing of it is written.",
        files={"cart.py": CART},
        settings={"max_output_tokens_per_turn": 60},
        turns=(
            Turn(
                request="total in cart.py ignores the quantity of the items. Fix it.",
                steps=("read_file: ok", "asked again: truncated_reply"),
                kind="BUDGET_STOP",
                reason="max_output_tokens",
                message="Limit 'max_output_tokens_per_turn' exceeded: 60/60",
            ),
        ),
    ),
    RecordedRun(
        name="stop_at_input_tokens",
        story="The model writes into the file of the prompt's example, and then searches. A third request would not fit"
        " into the budget and is not sent.",
        files=ADD,
        settings={"max_input_tokens_per_turn": 1_500, "read_ahead": False},
        turns=(
            Turn(
                request=FIND,
                steps=("asked again: invalid_arguments", "search_files: ok"),
                kind="BUDGET_STOP",
                reason="max_input_tokens",
                message="The next call needs about 668 input tokens, and 291 are left.",
            ),
        ),
        calls=2,
    ),
    RecordedRun(
        name="healing_exhausted",
        story="As strict_manifest, but the model gets one correction for the tool that it invents. It calls it again.",
        files=VERSION,
        settings={"strict": True, "max_healing_attempts": 1},
        turns=(
            Turn(
                request="Bump the version to 1.3.0.",
                steps=("list_files: ok", *REFUSED, "asked again: unknown_tool_name"),
                kind="SYSTEM_ERROR",
                reason="healing_exhausted",
                message="The model still called a tool that does not exist after 1 retries.",
            ),
        ),
        calls=3,
    ),
    RecordedRun(
        name="edits_change_nothing",
        story="The first call, of a file outside of the workspace, has a wrong argument and is asked for again. From"
        " then on the model gives the file back as it is, until its four tries are used up.",
        files={"notes.txt": "Moved the importer to the new queue.\n"},
        turns=(
            Turn(
                request="Write the text of notes.txt into ../shared-notes.txt, in the folder above this one.",
                steps=(
                    "read_file: ok",
                    "asked again: invalid_arguments",
                    *3 * UNCHANGED,
                    "overridden: edit_blocks",
                ),
                kind="SYSTEM_ERROR",
                reason="edits_failed",
                message="No reply could be used after 4 tries.",
            ),
        ),
        calls=4,
        in_requests=("The block is identical to what 'notes.txt' already has",),
    ),
    RecordedRun(
        name="correct_code_broken",
        story="The model is asked to fix a correct function only if it is wrong. It gives the function back as it is,"
        " three times. Each time it is asked again, at last with the words that some line has to change: it breaks"
        " the function, which nothing checks.",
        files={"calc.py": ADDS},
        turns=(
            Turn(
                request="Is add in calc.py correct? Fix it if not.",
                steps=(
                    "read_file: ok",
                    *3 * UNCHANGED,
                    "overridden: edit_blocks",
                    "edit_blocks: ok",
                    "final_answer: ok",
                ),
                message="Changed calc.py; not checked",
            ),
        ),
        calls=4,
        changed={"calc.py": ADDS.replace("a + b", "a + b + 1")},
        in_requests=("Some line of add has to change.",),
    ),
    RecordedRun(
        name="value_never_given",
        story="The answer must have a value for a program. The model answers in words three times; the requests say in"
        " one line that the tool final_answer must be used, and in the next one that the answer is to be in words.",
        files={"limits.py": "MAX_BODY = 1000\nMAX_RETRIES = 3\n"},
        settings={
            "response_format": {
                "type": "object",
                "properties": {"retries": {"type": "integer"}},
                "required": ["retries"],
            }
        },
        turns=(
            Turn(
                request="What is MAX_RETRIES in limits.py?",
                steps=("read_file: ok", "asked again: invalid_answer", "asked again: invalid_answer"),
                kind="SYSTEM_ERROR",
                reason="schema_repair_exhausted",
                message="The model's answer was still not valid after 2 repairs.",
            ),
        ),
        calls=3,
        in_requests=("put the value that was asked for into its argument `value`\nAnswer in words.",),
    ),
)
