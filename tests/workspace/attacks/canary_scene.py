"""Secrets planted in every input, a task that encounters them all, and everything that it writes.

No secret is written here as a whole: each is composed of pieces and is unique, so that a finding names its way out.
"""

import base64
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.runs.events import Event
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.nodes.execute_tools.registry import Tool, tool
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect
from tests.doubles.model_clock import set_clock
from tests.doubles.replies import Chunked, Reply, Say, Status
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

_SHORTEST_PART = 14
"""The shortest part of a secret, in characters, that counts as a leak."""


def _secret(name: str, *prefix: str, length: int = 36) -> str:
    """A unique key with this prefix."""
    letters = base64.b64encode(hashlib.sha512(name.encode()).digest()).decode()
    return "".join(prefix) + "".join(filter(str.isalnum, letters))[:length]


@dataclass(frozen=True)
class Planted:
    """The secrets, by the input through which a run gets them."""

    endpoint_key: str = "-".join(("quokka", "4471", "lantern", "88"))
    variable: str = "".join(("Wombat/9b2+", "Dune=7&", 'ü"x'))
    denied_file: str = "-".join(("zebra", "7731", "harbour", "19"))
    source_file: str = _secret("source_file", "gh", "p_")
    json_file: str = "".join(("x8K!", "qP2zzz", "Vw4#e"))
    request: str = _secret("request", "s", "k-ant-api03-", length=40)
    reply: str = _secret("reply", "gl", "pat-", length=20)
    streamed: str = _secret("streamed", "np", "m_")
    arguments: str = _secret("arguments", "AI", "za", length=35)
    broken_call: str = _secret("broken_call", "h", "f_", length=34)
    exception: str = _secret("exception", "git", "hub_pat_", length=40)
    endpoint_error: str = _secret("endpoint_error", "gs", "k_", length=52)
    large_result: str = _secret("large_result", "s", "k-proj-", length=40)
    plan: str = _secret("plan", "tv", "ly-dev-", length=32)
    key_block: str = _secret("key block", length=64)

    def items(self) -> Iterator[tuple[str, str]]:
        """The names and values of the secrets."""
        yield from vars(self).items()

    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        return {"OPENAI_API_KEY": self.endpoint_key, "FOO_TOKEN": self.variable}

    def key_file(self) -> str:
        """A source file with a private key of four lines in it, of which the third is the secret."""
        kind, lines = " ".join(("RSA", "PRIVATE", "KEY")), [_secret(f"line {number}", length=64) for number in range(3)]
        body = "\n".join((*lines[:2], self.key_block, lines[2]))
        return f'KEY = """-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"""\nlimit = 10\n'

    def files(self) -> dict[str, str]:
        """The files of the workspace."""
        source = f'KNOWN = "{base64.b64encode(self.endpoint_key.encode()).decode()}"\n# {self.variable}\n'
        return {
            "app.py": f'import client\n\nlimit = 10\napi = client.Client("{self.source_file}")\nretries = 3\n',
            "settings.json": json.dumps({"db": {"user": "ada", "password": self.json_file}, "limit": 10}, indent=2),
            "known.py": source,
            ".env": f"BAR={self.denied_file}\n",
        }


PLANTED = Planted()


def forms(secret: str) -> set[bytes]:
    """How a secret may occur in output, in full or in large part."""
    data = secret.encode()
    parts = {secret[start : start + _SHORTEST_PART] for start in range(max(1, len(secret) - _SHORTEST_PART + 1))}
    texts = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret))[3:-3],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
        base64.b64encode(data).decode().rstrip("=")[:-1],
        base64.urlsafe_b64encode(data).decode().rstrip("=")[:-1],
        data.hex(),
        *parts,
    }
    return {form.encode() for form in texts}


_FORMS = {name: forms(secret) for name, secret in PLANTED.items()}


def found_in(data: bytes | str) -> set[str]:
    """The names of the secrets in these bytes, with the form."""
    written = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return {name for name, encodings in _FORMS.items() if any(form in written for form in encodings)}


def bytes_below(folder: Path, but: Path) -> bytes:
    """The paths and bytes of all files in a folder except those in `but`, and the values of all databases.

    The values are read separately because a page of a database may split a text.
    """
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_relative_to(but) or not path.is_file():
            continue
        parts += [str(path).encode(), path.read_bytes()]
        if path.suffix == ".db":
            parts += database_cells(path)
    return b"\n".join(parts)


def database_cells(database: Path) -> Iterator[bytes]:
    """Each value of each row of each table."""
    opened = sqlite3.connect(database)
    try:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in opened.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - a name that the database gave us
                yield from (cell if isinstance(cell, bytes) else str(cell).encode() for cell in row)
    finally:
        opened.close()


REQUEST = f"My key is {PLANTED.request}. Raise the limit in app.py to 20."


@tool(effect=Effect.NONE)
def explode(number: int) -> str:
    """Fail with a secret in the exception."""
    raise RuntimeError(f"cannot log in {number} times with {PLANTED.exception} or {PLANTED.variable}")


@tool(effect=Effect.NONE)
def recite() -> str:
    """Return a long text with a secret in the middle."""
    filler = "".join(f"{number:06} filler\n" for number in range(6_000))
    return f"{filler}key: {PLANTED.large_result}\n{filler}"


TOOLS: tuple[Tool, ...] = (*default_tools(), explode, recite)


def script(protocol: Protocol) -> list[Reply]:
    """The replies of a complete task with a secret in each input."""
    steps: list[Use] = [
        use(
            ("read_file", {"path": "app.py"}),
            ("read_file", {"path": "settings.json"}),
            ("read_file", {"path": "known.py"}),
            ("read_file", {"path": ".env"}),
            ("list_files", {}),
        ),
        use(("search_files", {"pattern": "Client|password|KNOWN|Wombat|zebra"}), ("glob_files", {"pattern": "*"})),
        use(
            ("edit_file", {"path": "app.py", "old_str": "limit = 10", "new_str": "limit = 20"}),
            ("edit_file", {"path": "app.py", "old_str": "retries = 3", "new_str": "retries = 4"}),
            ("edit_file", {"path": "settings.json", "old_str": '"limit": 10', "new_str": '"limit": 20'}),
            ("edit_file", {"path": "app.py", "old_str": "limit = 11", "new_str": "limit = 21"}),
        ),
        use(
            ("write_file", {"path": "new.py", "content": f'a = "{PLANTED.arguments}"\nb = "{PLANTED.endpoint_key}"\n'}),
            ("search_files", {"pattern": PLANTED.variable}),
            ("read_file", {"path": f"{PLANTED.arguments}.txt"}),
            ("update_plan", {"steps": [{"title": f"Use {PLANTED.plan}", "status": "pending"}]}),
        ),
        use(("read_file", f'{{"path": {PLANTED.broken_call}}}')),
        use(("no_tool", {"key": PLANTED.reply}), ("explode", {"number": 1})),
        use(("recite", {})),
        use(("read_file", {"path": "@result/1", "start_line": 5_990, "limit": 30})),
    ]
    failing = Status(500, {"error": {"message": f"upstream said {PLANTED.endpoint_error}", "type": "x", "code": None}})
    thinking = f"I was told {PLANTED.reply} and {PLANTED.endpoint_key}."
    messages = [message_of(step, protocol) for step in steps]
    work: list[Reply] = [replace(message, text=f"{thinking}\n{message.text}".rstrip()) for message in messages]
    last = Chunked(Say(f"The limit is 20 now. I used {PLANTED.streamed} and {PLANTED.variable} for it."), 5)
    return [work[0], failing, *work[1:], last]


@dataclass
class Scene:
    """A workspace with secrets, and the outputs of runs in it."""

    folder: Path
    places: dict[str, bytes | str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The workspace."""
        return self.folder / "root"

    def leaks(self) -> dict[str, set[str]]:
        """The secrets in each output; outputs without secrets are left out."""
        secrets = {place: found_in(data) for place, data in self.places.items()}
        return {place: names for place, names in secrets.items() if names}

    def note_files(self, place: str = "all files") -> None:
        """Collect all files that were written: the log, the stored results, the databases, anything else."""
        self.places[place] = bytes_below(self.folder, but=self.root)

    def note_requests(self, server: ScriptedServer) -> None:
        """Collect what was sent to the endpoint, except its own key in a header."""
        self.places["requests"] = json.dumps(server.requests, ensure_ascii=False)

    def note_result(self, events: Sequence[Event], result: RunResult) -> None:
        """Collect what a run returned to its caller, and the files that it wrote."""
        self.places["events"] = "\n".join(map(repr, events))
        self.places["outcome"] = repr(result.outcome) + result.outcome.model_dump_json()
        self.places["messages"] = repr(result.messages)
        self.places["changes and plan"] = repr((result.changes, result.plan))
        runs = self.folder / "data" / "runs"
        self.places["kept results"] = b"".join(path.read_bytes() for path in runs.rglob("results-*/*"))
        self.note_files()

    def run(self, *messages: str | dict[str, Any], model: Any = None, **settings: Any) -> RunResult:
        """A session whose thread is in a database: a text is a request, a map answers what the run asks."""
        context = AgentContext(workspace=str(self.root), max_calls_per_turn=50, **settings)
        events: list[Event] = []
        with closing(sqlite3.connect(self.folder / "thread.db", check_same_thread=False)) as database:
            saver = SqliteSaver(database, serde=serializer())
            with Session(context, tools=TOOLS, model=model, checkpointer=saver) as session:
                for message in messages:
                    more = session.stream(message) if isinstance(message, str) else session.answer(message)
                    events += more
                result = session.result()
            self.note_files("database")

        self.note_result(events, result)
        if isinstance(model, ScriptedModel):
            self.places["prompts"] = repr(model.calls)
        return result


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene in which a run writes all files below one folder."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    for name, value in PLANTED.environment().items():
        monkeypatch.setenv(name, value)
    set_clock(monkeypatch)
    write_files(tmp_path / "root", PLANTED.files())
    return Scene(tmp_path)


@pytest.fixture
def no_redaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: runs without redaction."""
    redact = "mendgraph.nodes.execute_tools.secrets.redact"
    without: dict[str, Any] = {
        **dict.fromkeys((f"{redact}.Redactor.{name}" for name in ("value", "content", "text", "final")), _unchanged),
        f"{redact}.Redactor.spans": lambda *_, **__: [],
        f"{redact}.Redactor.pending": lambda _, text: len(text),
        f"{redact}.forms_of": lambda _: (),
        "mendgraph.graph.langchain.failures._without_secrets": lambda text, _: text,
        "mendgraph.graph.cassettes.recorder.scrubbed": lambda body, _keys=(): body,
    }
    for name, replacement in without.items():
        monkeypatch.setattr(name, replacement)


def _unchanged(_: Redactor, value: Any) -> Any:
    return value
