"""Scenarios of answers without a change: the outcome's first line says so, and no word of an answer matters."""

from tests.doubles.replies import Say, Think
from tests.doubles.tool_use import use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.scenarios.scenario import Expectation, Scenario, Turn
from tests.vocabulary import OutcomeKind, Protocol

UNCHANGED = Expectation(message="No file was changed.")
CANNOT = Say("add cannot be mended without knowing what it is for.")
CLAIM = "I have fixed it."
BACK = ("edit_file", {"path": "calc.py", "old_str": "a + b", "new_str": "a - b"})
THOUGHT = Think("Hm. So.")
ALOUD = Say('<think>\nI could say:\ntool: delete_file({"path": "calc.py"})\n</think>\n\nAll is well.')

ANSWERS: tuple[Scenario, ...] = (
    Scenario(
        name="answers_that_mention_changes",
        story="Four requests ask for text, and the answers mention changes. All of them are accepted.",
        files=CALC,
        turns=(
            Turn(
                "Plan how to split calc.py into modules. Do not change any file.",
                (Say("I've moved the database part to the end, as it depends on the others. 1. models 2. calc"),),
            ),
            Turn(
                "Planifie la refonte de calc.py sans rien modifier.",
                (Say("I have replaced the first idea by a simpler one: keep one module."),),
            ),
            Turn(
                "Draft a commit message for the change of calc.py that I made.",
                (Say("I've fixed the wording: 'calc: sum all items'"),),
            ),
            Turn(
                "Give me three names for the function add.",
                (Say("I have removed the ugly ones: amount, sum_of, grand_total."),),
            ),
        ),
        expected=UNCHANGED,
    ),
    Scenario(
        name="answers_that_claim_a_change",
        story="Four answers say, in three languages, that calc.py was changed. No file was changed, and the outcome"
        " says so.",
        files=CALC,
        turns=(
            Turn("add in calc.py is too slow.", (Say("calc.py now uses math.fsum, all tests are green."),)),
            Turn("Two digits please.", (Say("add rounds to two digits from now on; I adapted calc.py accordingly."),)),
            Turn("Mach add in calc.py schneller.", (Say("Erledigt: calc.py ist geändert und alle Tests laufen."),)),
            Turn("Corrige add dans calc.py.", (Say("J'ai corrigé calc.py."),)),
        ),
        expected=UNCHANGED,
    ),
    Scenario(
        name="required_change_missing",
        story="The run must change a file. The model answers without a change, gets one correction, and the run fails.",
        files=CALC,
        settings={"require_changes": True},
        turns=(Turn(TASK, (DONE, CANNOT)),),
        expected=Expectation(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason="nothing_changed",
            message="This run has to change a file. No file was changed.",
            in_requests=("No file was changed, and this run has to change one.",),
        ),
        resumed=True,
    ),
    Scenario(
        name="required_change_made",
        story="The model answers without a change, is told that this run must change a file, and changes one.",
        files=CALC,
        settings={"require_changes": True},
        turns=(Turn(TASK, (DONE, use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
        resumed=True,
    ),
    Scenario(
        name="changes_that_cancel_out",
        story="The run must change a file. The model changes one and changes it back, so the run fails.",
        files=CALC,
        settings={"require_changes": True},
        turns=(Turn(TASK, (use(READ), use(EDIT, BACK, ("final_answer", {"answer": CLAIM})))),),
        expected=Expectation(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason="nothing_changed",
            message="This run has to change a file, and its changes cancel out. No file was changed.",
        ),
    ),
    Scenario(
        name="change_required_in_read_only_mode",
        story="A read-only run cannot be required to change a file. It is refused before anything is spent.",
        files=CALC,
        settings={"require_changes": True, "mode": "read-only"},
        turns=(Turn(TASK),),
        expected=Expectation(kind=OutcomeKind.SYSTEM_ERROR, reason="invalid_request", message="read-only"),
    ),
    Scenario(
        name="claim_of_a_small_model",
        story="A small model says three times that it has fixed the file, and is told twice that nothing was changed."
        " A claim never fails a run.",
        files=CALC,
        settings={"model": "qwen2.5-coder:1.5b", "read_ahead": True},
        turns=(Turn("Fix calc.py", (Say(CLAIM),) * 3),),
        expected=Expectation(
            message="No file was changed.",
            in_requests=("No file was changed, so what this answer says has not happened.",),
        ),
        protocols=(Protocol.TEXT,),
    ),
    Scenario(
        name="reply_with_only_thoughts",
        story="A reply that contains only thoughts is not usable. The model is asked to answer or to call a tool, and"
        " answers.",
        files=CALC,
        turns=(Turn("Is all well?", (THOUGHT, Say("All is well."))),),
        expected=Expectation(
            message="All is well.",
            in_requests=(
                "THOUGHT_ONLY_REPLY: The reply was only thought",
                "You only thought. Now answer, or make the tool call.",
            ),
        ),
    ),
    Scenario(
        name="only_thoughts_until_exhausted",
        story="Four replies contain only thoughts. The run gives up.",
        files=CALC,
        turns=(Turn("Is all well?", (THOUGHT,) * 4),),
        expected=Expectation(
            kind=OutcomeKind.SYSTEM_ERROR, reason="empty_reply", message="The model still only thought"
        ),
    ),
    Scenario(
        name="call_in_a_thought",
        story="A thought contains a call that deletes a file. It does not run and is not in the history.",
        files=CALC,
        turns=(Turn("Is all well?", (ALOUD,)),),
        expected=Expectation(message="All is well."),
    ),
)
