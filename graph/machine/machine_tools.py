"""The tools of one machine, and what outlives its turns: circuits and rates, sandboxes, MCP servers and records."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mendgraph.graph.configuration.permissions import keep_permission
from mendgraph.graph.machine.redaction import CurrentRedactor, WrittenLiterals
from mendgraph.graph.machine.workspace import WorkspaceRecords
from mendgraph.nodes.execute_tools.call_policy import WITHOUT_CHANGE, BreakerConfig, PolicyMemory
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, Validator
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import remember
from mendgraph.nodes.execute_tools.tools.read_file import read_file, read_skill
from mendgraph.nodes.guard.file_rules import FileGuardrailRule
from mendgraph.nodes.parse.answers import ResponseFormat
from mendgraph.nodes.records import Effect, JsonMap, ToolError

if TYPE_CHECKING:
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
        optional = (read_skill, remember) if read_file.name in names else (remember,)
        added = [tool for tool in optional if tool.name not in names]
        self.added = {tool.name for tool in added}
        self.registry = ActionRegistry((*machine_tools, *added), arg_validators)
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        self.child_tools = {tool.name for tool in machine_tools if tool.child}
        self.executed_files = tuple(dict.fromkeys(name for tool in machine_tools for name in tool.executes))

        self._names_by_effect: dict[Effect, set[str]] = {effect: set() for effect in Effect}
        for spec in self.specs.values():
            self._names_by_effect[spec.effect].add(spec.name)

        self._parallel = _parallel_tools(machine_tools)
        self._has_remote_tools = any(tool.remote for tool in machine_tools)
        self._servers: dict[str, McpServers] = {}
        self._sandboxes: dict[tuple[object, ...], Any] = {}

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


def _parallel_tools(tools: Sequence[Tool]) -> set[str]:
    """Tools that wait for something and change nothing in the workspace.

    The default tools that read files take a moment and run in order, so that their trace is in order.
    """
    quick = {id(tool) for tool in default_tools() if tool.effect is not Effect.NETWORK}
    parallel = set()

    for tool in tools:
        changes_nothing = tool.effect in WITHOUT_CHANGE or tool.effect is Effect.NETWORK
        if changes_nothing and not tool.terminal and not tool.child and id(tool) not in quick:
            parallel.add(tool.name)

    return parallel
