"""Scenarios of answers without a change: the outcome's first line says so, and no word of an answer matters."""

from mendgraph.nodes.records import OutcomeKind, StopReason
from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, TASK
from tests.scenarios.scenario import Expectation, Scenario, Turn

UNCHANGED = Expectation(message="No file was changed.")
CANNOT = Say("add cannot be mended without knowing what it is for.")

ANSWERS: tuple[Scenario, ...] = (
    Scenario(
        name="answers_with_words_of_change",
        story="Four requests want words, and the answers speak of changes. All of them are answers.",
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
        story="Four answers say, in three languages, that calc.py was changed. No file was, and the outcome says that.",
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
        story="The run has to change a file. The model answers without a change, is told so once, and the run fails.",
        files=CALC,
        settings={"require_changes": True},
        turns=(Turn(TASK, (DONE, CANNOT)),),
        expected=Expectation(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.NOTHING_CHANGED,
            message="This run has to change a file. No file was changed.",
            shown=("No file was changed, and this run has to change one.",),
        ),
        resumed=True,
    ),
    Scenario(
        name="required_change_made",
        story="The model answers without a change, is told that this run has to change a file, and changes one.",
        files=CALC,
        settings={"require_changes": True},
        turns=(Turn(TASK, (DONE, use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
        resumed=True,
    ),
)
