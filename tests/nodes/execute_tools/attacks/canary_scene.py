"""A workspace full of secrets, a piece of work that meets them all, and everything that is written meanwhile."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.events import Event
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.nodes.execute_tools.registry import Tool, tool
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, Protocol
from tests.doubles.model_clock import set_clock
from tests.doubles.replies import Chunked, Message, Reply, Say, Status
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.nodes.execute_tools.attacks.canaries import PLANTED, everything_below, leaks
from tests.workspace_files import write_files

PROTOCOLS = [Protocol.TEXT, Protocol.NATIVE]
REQUEST = f"My key is {PLANTED.request}. Raise the limit in app.py to 20."


@tool(effect=Effect.NONE)
def explode(number: int) -> str:
    """Fail with a secret in the exception."""
    raise RuntimeError(f"cannot log in {number} times with {PLANTED.exception} or {PLANTED.variable}")


@tool(effect=Effect.NONE)
def recite() -> str:
    """Give back a long text with a secret in the middle of it."""
    filler = "".join(f"{number:06} filler\n" for number in range(6_000))
    return f"{filler}key: {PLANTED.large_result}\n{filler}"


TOOLS: tuple[Tool, ...] = (*default_tools(), explode, recite)


def script(protocol: Protocol) -> list[Reply]:
    """A whole piece of work, with something secret on each way on which it can come in."""
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
    work: list[Reply] = [with_text(message_of(step, protocol), thinking) for step in steps]
    last = Chunked(Say(f"The limit is 20 now. I used {PLANTED.streamed} and {PLANTED.variable} for it."), 5)
    return [work[0], failing, *work[1:], last]


def with_text(message: Message, words: str) -> Message:
    """The same message with words before its calls."""
    text = f"{words}\n{message.text}".rstrip()
    return Message(text=text, calls=message.calls, finish_reason=message.finish_reason, usage=message.usage)


@dataclass
class Scene:
    """A workspace with secrets in it, and beside it everything that runs write."""

    folder: Path
    places: dict[str, bytes | str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The workspace."""
        return self.folder / "root"

    def leaks(self) -> dict[str, set[str]]:
        """Where which secrets were found."""
        return leaks(self.places)

    def take_files(self) -> None:
        """Take in all files that were written: the log, the kept results, the databases, whatever else."""
        runs = self.folder / "data" / "runs"
        self.places["log"] = b"".join(path.read_bytes() for path in runs.rglob("audit.jsonl*"))
        self.places["kept results"] = b"".join(path.read_bytes() for path in runs.rglob("results-*/*"))
        self.places["all files"] = everything_below(self.folder, but=self.root)


def new_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene in which all that a run writes goes below one folder."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    for name, value in PLANTED.environment().items():
        monkeypatch.setenv(name, value)
    set_clock(monkeypatch)
    write_files(tmp_path / "root", PLANTED.files())
    return Scene(tmp_path)


def without_redaction(patch: pytest.MonkeyPatch) -> None:
    """The control: everything is as it is, but nothing is ever taken out."""
    for name in ("value", "content", "text", "final"):
        patch.setattr(Redactor, name, lambda _, given: given)
    patch.setattr(Redactor, "spans", lambda *_, **__: [])
    patch.setattr(Redactor, "pending", lambda _, text: len(text))
    patch.setattr("mendgraph.nodes.execute_tools.secrets.redact.forms_of", lambda _: ())
    patch.setattr("mendgraph.graph.langchain.failures._without_secrets", lambda text, _: text)


def over_a_database(scene: Scene, protocol: Protocol, base_url: str) -> tuple[list[Event], RunResult]:
    """The events and the end of a session whose thread is in a database on the disk."""
    context = AgentContext(
        workspace=str(scene.root), base_url=base_url, model="m", protocol=protocol.value, max_calls_per_turn=50
    )
    with closing(sqlite3.connect(scene.folder / "thread.db", check_same_thread=False)) as database:
        saver = SqliteSaver(database, serde=serializer())
        with Session(context, tools=TOOLS, checkpointer=saver) as session:
            events = list(session.stream(REQUEST))
            result = session.result()
        scene.places["database"] = everything_below(scene.folder, but=scene.root)
    return events, result


def note_requests(scene: Scene, server: ScriptedServer) -> None:
    """What the endpoint was sent, but for the key that it is owed in a header."""
    scene.places["requests"] = json.dumps(server.requests, ensure_ascii=False)


def note_result(scene: Scene, events: list[Event], result: RunResult) -> None:
    """What a run gave back to its caller, and the files that it wrote."""
    scene.places["events"] = "\n".join(map(repr, events))
    scene.places["outcome"] = repr(result.outcome) + result.outcome.model_dump_json()
    scene.places["messages"] = repr(result.messages)
    scene.places["changes and plan"] = repr((result.changes, result.plan))
    scene.take_files()
