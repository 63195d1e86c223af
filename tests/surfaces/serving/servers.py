"""Some server processes on one PostgreSQL, as `mendgraph serve` starts them, for the tests that are their clients.

Each has a data folder of its own, as on two machines; they share the database and the projects' folders. Both are ended
by their process ids.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, in_protocol
from tests.postgres import fresh_database
from tests.surfaces.serving.studio import START_S, free_port
from tests.vocabulary import JsonMap, Protocol

if TYPE_CHECKING:
    from langgraph_sdk.client import SyncLangGraphClient

USERS = ("ann", "bob", "cleo")
MISSING = "the server's engine is missing: uv sync --extra serve"
SECRET = "key-of-the-servers-0123456789"  # noqa: S105
"""What the servers' endpoint is asked with."""


def token(user: str) -> str:
    return f"a-token-that-{user}-alone-knows-0123456789"


class Model(ScriptedServer):
    """One endpoint for all tests: each test sets its replies."""

    def say(self, *replies: Use | Reply) -> None:
        self.say_next(*(in_protocol(reply, Protocol.NATIVE) for reply in replies))


@dataclass
class Server:
    """One process; it may be killed and started again, at the same address."""

    folder: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(encoding="utf-8")

    def begin(self) -> None:
        """Start it; it answers some seconds later."""
        program = "import sys; from mendgraph.graph.start import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "serve"]
        data = {"MENDGRAPH_DATA_DIR": str(self.folder / "data")}
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=self.folder,
                env={**os.environ, **self.environment, **data},
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Return when it answers."""
        assert self.process is not None
        wait_for(self._is_ready, lambda: f"the server did not start:\n{self.log}")

    def kill(self) -> None:
        """Kill it, like a power failure."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As an operator ends it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.url}/health") as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False


@dataclass(frozen=True)
class Servers:
    """They, the model that all ask, the folder with the users' projects, and a client for each user and server."""

    instances: tuple[Server, ...]
    model: Model
    root: Path
    clients: dict[tuple[str, str], "SyncLangGraphClient"]
    database: str

    @property
    def first(self) -> Server:
        return self.instances[0]

    @property
    def second(self) -> Server:
        return self.instances[1]

    def client(self, user: str, server: Server) -> "SyncLangGraphClient":
        from langgraph_sdk import get_sync_client

        key = (user, server.url)
        if key not in self.clients:
            self.clients[key] = get_sync_client(url=server.url, headers={"Authorization": f"Bearer {token(user)}"})
        return self.clients[key]

    def project(self, user: str, name: str, files: Mapping[str, str]) -> Path:
        """A project of this user."""
        folder = self.root / user / name
        folder.mkdir(parents=True)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
        return folder

    def ask(self, user: str, server: Server, thread: str, request: str | None, **context: Any) -> JsonMap:
        """One turn, to its end; None resumes an interrupted one."""
        turn_input: Any = None if request is None else {"messages": [{"role": "user", "content": request}]}
        ended: Any = self.client(user, server).runs.wait(
            thread, "mendgraph", input=turn_input, context=context or None, raise_error=False
        )
        return dict(ended)

    def thread(self, user: str, server: Server) -> str:
        return str(self.client(user, server).threads.create()["thread_id"])

    def state(self, user: str, server: Server, thread: str) -> Any:
        return self.client(user, server).threads.get_state(thread)


def wait_for(is_so: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Wait until the condition is true."""
    latest = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < latest, otherwise()
        time.sleep(0.05)


def tenants_text(root: Path, base_url: str) -> str:
    """The file of the servers' users: bob may have one run at once, and read alone."""
    of_user = {"bob": 'runs_at_once = 1\nmode = "read-only"\nmax_tokens_per_day = 20_000\n'}
    users = [
        f'[users.{user}]\ntoken_sha256 = ["{sha256(token(user).encode()).hexdigest()}"]\n{of_user.get(user, "")}'
        for user in USERS
    ]
    defaults = f'base_url = "{base_url}"\nmodels = ["m", "n"]\nevidence = false\nread_ahead = false\nmax_steps = 9\n'
    return "\n".join([f'root = "{root}"\n\n[defaults]\n{defaults}', *users])


@contextmanager
def start_servers(folder: Path, database: str, names: Sequence[str] = ("first", "second")) -> Iterator[Servers]:
    """All servers, and what they need."""
    root = folder / "projects"
    root.mkdir()
    with Model() as model:
        tenants = folder / "tenants.toml"
        tenants.write_text(tenants_text(root, model.base_url), encoding="utf-8")
        environment = {"MENDGRAPH_TENANTS": str(tenants), "MENDGRAPH_STORE_URL": database, "OPENAI_API_KEY": SECRET}
        for name in names:
            (folder / name).mkdir()
        servers = Servers(tuple(Server(folder / name, environment) for name in names), model, root, {}, database)
        try:
            for server in servers.instances:
                server.begin()
            for server in servers.instances:
                server.wait()
            yield servers
        finally:
            for client in servers.clients.values():
                client.http.client.close()
            for server in servers.instances:
                server.end()


@pytest.fixture(scope="session")
def servers(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The two servers of a process, on a database of their own."""
    if find_spec("aegra_api") is None or find_spec("greenlet") is None:
        pytest.skip(MISSING)
    with fresh_database(postgres) as url, start_servers(tmp_path_factory.mktemp("servers"), url) as running:
        yield running
