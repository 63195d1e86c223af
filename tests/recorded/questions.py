"""Questions, which change nothing, and questions about what was changed."""

from tests.recorded.recorded_run import RecordedRun, Turn
from tests.recorded.repairs import ADD, ADDS, EDITED

SERVICE = {
    "app.py": "from transport import retry_delay\n\n\ndef main():\n    print(retry_delay(1))\n",
    "limits.py": "MAX_BODY = 1000\nMAX_RETRIES = 3\n",
    "transport.py": 'from limits import MAX_RETRIES\n\n\ndef retry_delay(attempt):\n    """Seconds before the next'
    ' attempt."""\n    return 2 ** min(attempt, MAX_RETRIES)\n',
}

QUESTIONS: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="question",
        story="A question of general knowledge is answered; the files of the small workspace are shown for nothing.",
        files=ADD,
        turns=(
            Turn(
                request="What is a mutex? Answer in one sentence.",
                steps=("read_file: ok", "read_file: ok"),
                message="No file was changed.",
                answer="ensure that only one thread can access a shared resource at a time",
            ),
        ),
    ),
    RecordedRun(
        name="question_after_edit",
        story="The second turn asks about the first. The answer has it the wrong way round, and changes nothing.",
        files={"calc.py": ADD["calc.py"]},
        turns=(
            Turn(
                request="The add function in calc.py is wrong: it subtracts. Fix it.",
                steps=EDITED,
                message="Changed calc.py",
            ),
            Turn(
                request="What did you change in calc.py?",
                steps=("read_file: ok",),
                message="No file was changed.",
                answer="replace the `return a + b` line with `return a - b`",
            ),
        ),
        calls=2,
        changed={"calc.py": ADDS},
        in_requests=("This was asked before:\n\nThe add function in calc.py is wrong",),
    ),
    RecordedRun(
        name="question_about_long_file",
        story="The file is too long to be shown: the model reads the lines that the question is about.",
        files={"data.py": "".join(f"VALUE_{number} = {number * 7919}\n" for number in range(1_200))},
        turns=(
            Turn(
                request="What is VALUE_1199 in data.py?",
                steps=("read_file: ok",),
                message="No file was changed. Not read: data.py (except lines 1026 to 1200).",
                answer="The value of `VALUE_1199` in `data.py` is 9494881.",
            ),
        ),
        in_requests=("VALUE_1199 = 9494881",),
    ),
)
