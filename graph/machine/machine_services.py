"""What outlives the turns of one machine: its tools with their policy, and its models with their connections."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ensure_config
from langgraph.config import get_stream_writer

from mendgraph.graph.configuration.loading import load_prices
from mendgraph.graph.configuration.permissions import keep_permission
from mendgraph.graph.langchain.wrapped_models import is_configurable, run_models
from mendgraph.graph.machine.redaction import CurrentRedactor, WrittenLiterals
from mendgraph.graph.machine.workspace import WorkspaceRecords
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.graph.telemetry.spans import OBSERVER, RunSpan
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import GuardedModel
from mendgraph.nodes.call_model.prompts.prompt import ShownMessages
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.call_model.window import StandIns
from mendgraph.nodes.execute_tools.call_policy import WITHOUT_CHANGE, BreakerConfig, PolicyMemory, breakers_by_name
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, Validator
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.secrets.text_parts import RedactedStream
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import final_answer, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_file, read_skill
from mendgraph.nodes.guard.file_rules import FileGuardrailRule
from mendgraph.nodes.parse.answers import ResponseFormat
from mendgraph.nodes.records import Effect, JsonMap, ProviderFailure, ToolError

if TYPE_CHECKING:
    from mendgraph.graph.langchain.chat_models import ChatModels
    from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

MOST_SANDBOXES = 64
"""Sandboxes that are reused by later turns of the same workspace and rules."""


class MachineTools:
    """Holds the tools and the state that turns share. Nothing is opened before a turn needs it."""

    def __init__(
        self,
        tools: Sequence[Tool] | None,
        rules: tuple[FileGuardrailRule, ...],
        roles: Mapping[str, Collection[str]],
        secrets: Iterable[str],
        response_format: ResponseFormat | None = None,
        *,
        arg_validators: Mapping[str, Validator] | None = None,
        served: bool = False,
        kept_permissions: bool = False,
    ) -> None:
        """`roles` are lists of tool names, `secrets` values that are never shown.

        `arg_validators` check the arguments of single tools after their schema. With `kept_permissions` the answer
        "approve_always" is stored in the user's settings and applies to later runs. A `served` machine does not list
        the skills of the user who serves it. `read_skill`, where there is a `read_file`, and `remember` are added
        unless a tool of the user has that name.
        """
        self.response_format = response_format
        self.rules = rules
        self.roles = dict(roles)
        self.served = served
        self.keep_permission = keep_permission if kept_permissions else None
        self.redactor = CurrentRedactor(secrets).now
        self.literals = WrittenLiterals(self.redactor)
        self.records = WorkspaceRecords()
        self.policy_memory = PolicyMemory(monotonic_s, BreakerConfig())

        machine_tools = default_tools() if tools is None else tuple(tools)
        names = {tool.name for tool in machine_tools}
        self.added: set[str] = set()
        for tool in (read_skill, remember):
            if tool.name in names or (tool is read_skill and read_file.name not in names):
                continue

            machine_tools = (*machine_tools, tool)
            self.added.add(tool.name)

        if final_answer.name not in names:
            machine_tools = (*machine_tools, replace(final_answer, offered=False))

        self.registry = ActionRegistry(machine_tools, arg_validators)
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        self.child_tools: set[str] = set()
        self.executed_files: tuple[str, ...] = ()
        self._names_by_effect: dict[Effect, set[str]] = {effect: set() for effect in Effect}
        self._parallel: set[str] = set()
        self._has_remote_tools = False
        self._default_ids = {id(tool) for tool in default_tools()}
        self._servers: dict[str, McpServers] = {}
        self._sandboxes: dict[tuple[object, ...], Any] = {}

        for tool in machine_tools:
            self._add(tool)

    def _add(self, tool: Tool) -> None:
        """Note what the tool is, so that turns need not look at all tools."""
        self._names_by_effect[tool.effect].add(tool.name)
        self._has_remote_tools = self._has_remote_tools or tool.remote
        if tool.child:
            self.child_tools.add(tool.name)
        if tool.executes:
            self.executed_files = tuple(dict.fromkeys((*self.executed_files, *tool.executes)))

        # The default tools that read files take a moment and run in order, so that their trace is in order.
        changes_nothing = tool.effect in WITHOUT_CHANGE or tool.effect is Effect.NETWORK
        waits = tool.name not in self.added and (tool.effect is Effect.NETWORK or id(tool) not in self._default_ids)
        if changes_nothing and waits and not tool.terminal and not tool.child:
            self._parallel.add(tool.name)

    def tools_with_effect(self, *effects: Effect) -> frozenset[str]:
        """The names of the tools with one of these effects."""
        names: set[str] = set()
        for effect in effects:
            names |= self._names_by_effect[effect]

        return frozenset(names)

    def schema_of(self, name: str) -> JsonMap:
        """The JSON schema of a tool's arguments; empty where there is no such tool."""
        spec = self.specs.get(name)
        return {} if spec is None else spec.parameters

    def may_run_in_parallel(self, name: str) -> bool:
        """Whether calls of this tool may run while others do."""
        return name in self._parallel

    def open_sandbox(self, key: tuple[object, ...], open_it: Callable[[], Any]) -> Any:
        """The sandbox that was opened under this key, or the one that `open_it` returns; an error is not reused."""
        if key in self._sandboxes:
            return self._sandboxes[key]

        sandbox = open_it()
        if not isinstance(sandbox, ToolError):
            if len(self._sandboxes) >= MOST_SANDBOXES:
                self._sandboxes.clear()

            self._sandboxes[key] = sandbox

        return sandbox

    def mcp_servers(self, run_id: str) -> "McpServers | None":
        """The MCP servers of a thread, which its children share; none is started before it is called."""
        if not self._has_remote_tools:
            return None

        from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

        return self._servers.setdefault(parent_of(run_id)[0], McpServers())

    def end_servers(self, run_id: str | None = None) -> None:
        """End the MCP servers of a thread, or of all threads."""
        if run_id is None:
            threads = [*self._servers]
        else:
            threads = [parent_of(run_id)[0]]

        for thread in threads:
            servers = self._servers.pop(thread, None)
            if servers is not None:
                servers.close()


# --- Models

MOST_OTHERS: Final = 16
"""Chat models of hooks and of configs whose connections stay open."""

_OF_LANGGRAPH: Final = ("__", "thread_id", "checkpoint_", "langgraph_", "graph_id", "assistant_id", "run_id")
"""Prefixes of LangGraph's own entries of a config, which choose no model."""


class MachineModels:
    """Connects one machine to its models. Nothing is connected, opened or read before it is needed."""

    def __init__(
        self, model: Runnable[Any, Any] | str | None, redactor: Callable[[], Redactor], stop: StopRequest | None
    ) -> None:
        """`model` answers all calls, or is the name of the one that does; `stop` is how a run may be ended early."""
        self.chat_model: Runnable[Any, Any] | None = None
        self.model_name: str | None = None
        if isinstance(model, str):
            self.model_name = model
        else:
            self.chat_model = model

        self.stop = stop or StopRequest()
        self.book = SpendingStore()
        self.messages = ShownMessages()
        self.stand_ins: StandIns = {}

        self._redactor = redactor
        self._is_configurable = is_configurable(model)
        self._breaker_of = breakers_by_name(BreakerConfig(), monotonic_s)
        self._others: list[tuple[object, ChatModels]] = []

    @property
    def run_chat_model(self) -> Any:
        """The user's chat model as the run's config chooses it; None where there is only a name."""
        if self.chat_model is None:
            return None
        return run_models(self.chat_model, self._config())[0].chat

    @property
    def connections(self) -> "ChatModels":
        """The connections of this run's models."""
        config = self._config()
        if not config:
            return self._default_connections

        return self.connections_of(self.chat_model, config)

    @cached_property
    def _default_connections(self) -> "ChatModels":
        """Made when the first turn begins: langchain-openai takes half a second to import."""
        from mendgraph.graph.langchain.chat_models import ChatModels

        models = () if self.chat_model is None else run_models(self.chat_model)
        return ChatModels(lambda: os.environ, models)

    def _config(self) -> Any:
        """What the run's config chooses of a configurable model."""
        if not self._is_configurable:
            return {}

        configurable = ensure_config().get("configurable") or {}
        chosen = {name: value for name, value in configurable.items() if not name.startswith(_OF_LANGGRAPH)}
        return {"configurable": chosen} if chosen else {}

    def connections_of(self, chat: Any, config: Any = None) -> "ChatModels":
        """The connections of another chat model, or of what a config chooses, which stay open.

        Raises TypeError: it is no chat model, and nothing that a run can honour.
        """
        from mendgraph.graph.langchain.chat_models import ChatModels

        for other, models in self._others:
            if other is chat or (config and other == config):
                return models

        models = ChatModels(lambda: os.environ, run_models(chat, config or ensure_config()))
        self._others = [*self._others, (config or chat, models)][-MOST_OTHERS:]
        return models

    @cached_property
    def prices(self) -> ledger.PriceList | ToolError:
        """The price list, or why it cannot be read."""
        return load_prices()

    def listed_price(self, name: str) -> ledger.Price | None:
        """What the price list says of a model, None where it says nothing or cannot be read."""
        if isinstance(self.prices, ToolError):
            return None
        return ledger.find_price(self.prices, name)

    def services(self, limits: ledger.RunLimits, tell: Callable[[str, JsonMap], None]) -> CallServices:
        """How calls are made; text and waits go to whoever streams the run with mode "custom"."""
        write = get_stream_writer()

        def on_text(text: str) -> None:
            write({"type": "text", "text": text})

        def on_wait(seconds: float, reason: str) -> None:
            write({"type": "waiting", "seconds": seconds, "reason": reason})

        connect = partial(self._connect, OBSERVER.get())
        ready = partial(connect, waiting=False)
        return CallServices(connect, on_text, on_wait, tell, self.book, limits, self.stop, ready)

    def connect_to(self, models: "ChatModels") -> Callable[..., Any]:
        """What connects to these models, in place of the run's, for `CallServices.connect`."""
        return partial(self._connect, OBSERVER.get(), models=models)

    def _connect(
        self,
        observer: RunSpan | None,
        choice: ModelChoice,
        models: "ChatModels | None" = None,
        *,
        waiting: bool = True,
    ) -> Any:
        has_chat_model = models is not None or self.chat_model is not None
        connection = (models or self.connections).connect(choice, waiting=waiting)
        if connection is None or isinstance(connection, ProviderFailure):
            return connection

        redactor = self._redactor()
        # A literal that the model itself calls a password is no secret of ours; it may be the fixture of a test.
        # It runs as it is written; `WrittenLiterals` keeps it out of what is stored.
        breaker = self._breaker_of(choice.breaker_key)
        model = GuardedModel(connection, breaker, redactor.unnamed, partial(RedactedStream, redactor))

        if observer:
            return observer.model(model, choice, is_users=has_chat_model)

        return model

    def close(self) -> None:
        """Close the connections that were opened for sync calls, and the spending book."""
        for models in self._all_connections():
            models.close()

        self.book.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, those for sync calls, and the spending book."""
        for models in self._all_connections():
            await models.aclose()

        self.book.close()

    def _all_connections(self) -> "list[ChatModels]":
        models = [models for _, models in self._others]
        if "_default_connections" in self.__dict__:
            return [self._default_connections, *models]
        return models
