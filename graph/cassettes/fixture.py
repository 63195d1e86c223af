"""The value of the fixture `mendgraph_cassette`: an endpoint that is recorded, or that answers from the recording."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from mendgraph.graph.cassettes.cassette_file import (
    NAME_PATTERN,
    CassetteFile,
    context_on,
    find_environment_secret,
    scrubbed,
    settings_of,
    version,
    write,
)
from mendgraph.graph.cassettes.offline import is_loopback, only
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import REPLAY_URL, Tape, recorded, replayed
from mendgraph.graph.cassettes.servers import ForwardingServer, LoopbackServer, ReplayServer
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import first_error
from mendgraph.graph.langchain.endpoint_models import endpoint_model, served_models
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.nodes.call_model.endpoint import (
    EMBEDDED_WINDOW,
    NO_KEY,
    PLAIN,
    USUAL_URL,
    Endpoint,
    choose_served_model,
    find_endpoint,
    split_provider,
)
from mendgraph.nodes.call_model.local_model import shared_local_server
from mendgraph.nodes.execute_tools.secrets.redact import is_findable_key
from mendgraph.nodes.records import ProviderFailure, Record

_USE: Final = "pass the agent `mendgraph_cassette.context(workspace)`, or its client `mendgraph_cassette.base_url`"


class Source(Record):
    """An endpoint to record from; `origin` describes it in the cassette, without port and path."""

    base_url: str
    api_key: SecretStr
    origin: str
    settings: dict[str, str]


class MarkerArguments(BaseModel):
    """The arguments of the marker; all but `name` and `allow_hosts` are settings of `AgentContext`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(default="", pattern=f"^({NAME_PATTERN})?$")
    allow_hosts: tuple[str, ...] = Field(default=(), strict=False)
    base_url: str | None = None
    model: str | None = None
    protocol: str | None = None
    edit_form: str | None = None


def read_marker(arguments: Mapping[str, Any]) -> MarkerArguments | str:
    """Return the arguments of a test's markers, or the first problem."""
    try:
        return MarkerArguments.model_validate(arguments)
    except ValidationError as error:
        return ": ".join(filter(None, first_error(error)))


def find_source(arguments: MarkerArguments) -> Source | str:
    """Return the endpoint of the marker and the environment, or why there is none.

    Without any setting the embedded model is started.
    """
    try:
        context = AgentContext.model_validate(arguments.model_dump(exclude={"name", "allow_hosts"}, exclude_none=True))
    except ValidationError as error:
        return ": ".join(filter(None, first_error(error)))

    endpoint = find_endpoint(context.model, context.base_url, os.environ)
    if isinstance(endpoint, ProviderFailure):
        return endpoint.message
    if problem := provider_problem(endpoint.full_name):
        return problem
    if endpoint.embedded:
        return _embedded_source(context)

    model = endpoint.model or _served_model(endpoint)
    if isinstance(model, ProviderFailure):
        return model.message

    url = endpoint.base_url or USUAL_URL
    return Source(
        base_url=url.rstrip("/"),
        api_key=endpoint.api_key,
        origin=f"model at {urlsplit(url).hostname}",
        settings=settings_of(context, model, embedded=False),
    )


def provider_problem(model: str | None) -> str:
    """Return why a cassette's endpoint cannot have a model of this name, or ""."""
    provider, _ = split_provider(model or "")
    if provider in {"", "openai"}:
        return ""

    remedy = "give the chat model itself to the run in the test, as in run_task(..., model=ChatAnthropic(...))"
    return f"{model!r} names a provider, whose package knows its host by itself, and no endpoint: {remedy}"


def _embedded_source(context: AgentContext) -> Source | str:
    server = shared_local_server()
    if isinstance(server, ProviderFailure):
        return server.message

    # The server's window is smaller than that of its model's family, which a replay would assume.
    settings = settings_of(context, server.model, embedded=True, window_tokens=str(EMBEDDED_WINDOW))
    return Source(base_url=server.base_url, api_key=SecretStr(NO_KEY), origin="local model", settings=settings)


def _served_model(endpoint: Endpoint) -> str | ProviderFailure:
    """Return the only model that the endpoint serves, asking it before the recording begins."""
    model = endpoint_model(endpoint, PLAIN)
    if isinstance(model, ProviderFailure):
        return model

    served = served_models(model)
    if isinstance(served, ProviderFailure):
        return served

    return choose_served_model(served)


class Cassette(ABC):
    """The conversation of one test with a model, from all clients of this process.

    `recording` says that the endpoint is real. What earlier tests have learned about models is forgotten, so that each
    test sends the same requests as it does alone.
    """

    recording: bool

    def __init__(self, path: str, name: str, find: Callable[[], Source], tape: AbstractContextManager[Tape]) -> None:
        """`name` is the file's name in messages; `find` returns the endpoint once the test needs it."""
        self.path = path
        self.name = name
        self._find = find
        self._found_source: Source | None = None
        LESSONS.clear()
        self._stack = ExitStack()
        self._tape = self._stack.enter_context(tape)

    @property
    def base_url(self) -> str:
        """The endpoint for any OpenAI-compatible client in this process; its key is `api_key`."""
        self._tape.base_url = self._source.base_url
        return self._tape.base_url

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the requests depend on."""
        return dict(self._source.settings)

    @property
    def api_key(self) -> str:
        """The endpoint's key: a real one in a recording, and "not-needed" in a replay."""
        return self._source.api_key.get_secret_value()

    @property
    def model(self) -> str | None:
        """The model's name at the endpoint, None if the cassette does not name it."""
        return self.settings.get("model")

    def context(self, workspace: str | os.PathLike[str] = ".", **settings: Any) -> AgentContext:
        """Return the context of a run on this cassette; `settings` are those of `AgentContext` and take precedence.

        Evidence is off by default, since it needs bubblewrap.

        Raises:
            ValueError: the model names a provider, whose key would go to the cassette's endpoint.
        """
        if "base_url" not in settings and (problem := provider_problem(settings.get("model"))):
            raise ValueError(problem)

        return context_on(self.settings, settings, os.fspath(workspace), self.base_url)

    @contextmanager
    def serve(self) -> Iterator[LoopbackServer]:
        """Serve the cassette on loopback for an agent in another process, which needs the server's `base_url`."""
        with self._server() as server:
            self._tape.forwarded_url = server.base_url
            yield server

    def close(self) -> None:
        """Stop intercepting requests and the network."""
        self._stack.close()

    @abstractmethod
    def problem(self) -> str:
        """Return why a test that has passed fails nevertheless, or ""."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return notes for a test that has failed: an agent may have handled a refusal itself."""

    @abstractmethod
    def _server(self) -> LoopbackServer: ...

    @property
    def _source(self) -> Source:
        if self._found_source is None:
            self._found_source = self._find()

        return self._found_source


class ReplayedCassette(Cassette):
    """Answers from the file; while it is open, this process reaches no other host."""

    recording = False

    def __init__(self, path: str, name: str, cassette: CassetteFile, allow_hosts: Collection[str] = ()) -> None:
        """Block the network except for `allow_hosts` and, while the cassette is served, for this machine."""
        source = Source(
            base_url=REPLAY_URL,
            api_key=SecretStr(NO_KEY),
            origin=cassette.recorded_from,
            settings=dict(cassette.settings),
        )
        self._player = Player(cassette, name, version=version())
        super().__init__(path, name, lambda: source, replayed(self._player))
        self._blocked: list[str] = []
        self._allowed = frozenset(allow_hosts)
        self._stack.enter_context(only(self._is_allowed, self._explain))

    def problem(self) -> str:
        """Return the first request that was not recorded, or the exchanges that were not requested."""
        if self._player.misses:
            return self._player.misses[0]

        unplayed = self._player.unplayed
        if not unplayed:
            return ""

        total = len(self._player.cassette.exchanges)
        lines = "".join(f"\n  {line}" for line in unplayed)
        return (
            f"{self._player.played} of {total} exchanges of {self.name} were asked for; nobody asked for:{lines}\n"
            "If the agent is meant to ask for less, record again with `pytest --mendgraph-record`."
        )

    def notes(self) -> list[str]:
        """Return the requests that were not recorded, and the hosts that were blocked."""
        return [*self._player.misses, *self._blocked]

    def _server(self) -> LoopbackServer:
        return ReplayServer(self._player)

    def _is_allowed(self, host: str) -> bool:
        return host in self._allowed or (bool(self._tape.forwarded_url) and is_loopback(host))

    def _explain(self, host: str) -> str:
        message = (
            f"the test tried to reach {host!r} while {self.name} is replayed: give the client "
            "`mendgraph_cassette.base_url`, or name the host in the marker's `allow_hosts`"
        )
        if message not in self._blocked:
            self._blocked.append(message)

        return message


class RecordedCassette(Cassette):
    """Forwards to a real endpoint; the file is written once the test has passed."""

    recording = True

    def __init__(self, path: str, name: str, find: Callable[[], Source]) -> None:
        super().__init__(path, name, find, recorded(scrub=self._scrub))

    def problem(self) -> str:
        """Write the file; return why it was not written, or ""."""
        exchanges = self._tape.exchanges
        if not exchanges:
            return f"nothing was said to a model, so {self.name} was not written: {_USE}"

        environment = dict(os.environ)
        origin = f"model at {self._tape.host}"
        settings = {"mendgraph": version()}

        if self._found_source is not None:
            environment = {name: value for name, value in environment.items() if value != self.api_key}
            # Otherwise a client has asked the host of its own configuration.
            if self._tape.host == urlsplit(self._found_source.base_url).hostname:
                origin = self._found_source.origin
                settings = self.settings

        secret = find_environment_secret(exchanges, environment)
        if secret:
            return (
                f"{secret}, so {self.name} was not written: keep it out of the prompt and of what the agent reads, or"
                " unset the variable where it is no secret, and record again"
            )

        cassette = CassetteFile(recorded_from=origin, settings=settings, exchanges=exchanges)
        failure = write(self.path, cassette)
        if failure is not None:
            return failure.message

        return ""

    def notes(self) -> list[str]:
        """Return the note that nothing was written."""
        return [f"{self.name} was not written, because the test failed"]

    def _server(self) -> LoopbackServer:
        return ForwardingServer(self.base_url, self.api_key)

    def _scrub(self, body: bytes) -> bytes:
        secrets = []
        if self._found_source is not None and is_findable_key(self.api_key):
            secrets.append(self.api_key)

        return scrubbed(body, secrets)
