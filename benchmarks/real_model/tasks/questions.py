"""Questions about a program: they are answered, and nothing is changed."""

from benchmarks.real_model.checking import Answers, Every, Unchanged
from benchmarks.real_model.task import Task

SIZES = {
    "sizes.py": '''UNITS = {"": 1, "k": 1000, "m": 1000**2, "ki": 1024, "mi": 1024**2}


def parse_size(text):
    """Bytes in a text such as 10k or 3 Ki."""
    number = text.rstrip("kKmMiI ")
    unit = text[len(number):].strip().lower()
    return int(float(number) * UNITS[unit])
'''
}

SERVICE = {
    "app.py": """from handlers import hello
from limits import MAX_BODY


def main(request):
    return (413, "") if len(request) > MAX_BODY else hello(request)
""",
    "handlers.py": """from transport import retry_delay


def hello(request):
    return 200, f"try again in {retry_delay(1)} s" if request == "busy" else "hello"
""",
    "limits.py": """MAX_BODY = 1000
MAX_RETRIES = 3
""",
    "transport.py": '''from limits import MAX_RETRIES


def retry_delay(attempt):
    """Seconds before the next attempt."""
    return 2 ** min(attempt, MAX_RETRIES)
''',
}

CONNECT = {
    "database.py": """DEFAULTS = {"user": "app", "timeout": 5}


def connect(options):
    merged = {**DEFAULTS, **options}
    address = merged["host"] + ":" + str(merged["port"])
    return f"{merged['user']}@{address}?timeout={merged['timeout']}"
"""
}

WORKER = {
    "worker.py": """from options import Options


def run(jobs, options=None):
    options = options or Options()
    return [job(timeout=options.timeout) for job in jobs[: options.batch]]
""",
    "options.py": """from dataclasses import dataclass


@dataclass
class Options:
    batch: int = 16
    timeout: float = 45.0
    verbose: bool = False
""",
    "README.md": "# worker\n\nRuns jobs in batches.\n",
}

QUESTIONS = (
    Task(
        name="ask_parse_size",
        kind="question",
        half="held_out",
        request='What does parse_size("3 Ki") in sizes.py return? I only want to know, do not change anything.',
        files=SIZES,
        check=Every((Unchanged(SIZES), Answers((r"\b3[,_ ]?072\b",)))),
        changes=False,
        solution={},
    ),
    Task(
        name="ask_where_defined",
        kind="question",
        half="dev",
        request="In which file is retry_delay defined?",
        files=SERVICE,
        check=Every((Unchanged(SERVICE), Answers((r"\btransport\b",)))),
        changes=False,
        solution={},
    ),
    Task(
        name="ask_key_error",
        kind="question",
        half="held_out",
        request='Why does connect({"host": "db1"}) in database.py raise a KeyError? Just explain it to me.',
        files=CONNECT,
        check=Every((Unchanged(CONNECT), Answers((r"\bport\b",)))),
        changes=False,
        solution={},
    ),
    Task(
        name="ask_default_timeout",
        kind="question",
        half="dev",
        request="How many seconds does a job get at most if I call run() in worker.py without options?",
        files=WORKER,
        check=Every((Unchanged(WORKER), Answers((r"\b45\b",)))),
        changes=False,
        solution={},
    ),
)
