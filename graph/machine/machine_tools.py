"""The tools of a machine, with the state that its turns share: policies, journals, sandboxes and MCP servers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from mendgraph.graph.configuration.permissions import keep_permission
from mendgraph.graph.machine.options import MachineOptions, read_response_format, with_defaults
from mendgraph.graph.machine.redaction import CurrentRedactor, WrittenLiterals
from mendgraph.graph.machine.workspace import WorkspaceRecords
from mendgraph.nodes.execute_tools.call_policy import WITHOUT_CHANGE, BreakerConfig, PolicyMemory
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import ask_user, final_answer, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_file, read_skill
from mendgraph.nodes.execute_tools.tools.web import web_search
from mendgraph.nodes.records import Effect, JsonMap, ToolError
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.journal.journal import parent_of

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.commands.jobs import Jobs
    from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

MOST_SANDBOXES = 64
"""Sandboxes that are reused by later turns of the same workspace and rules."""


class MachineTools:
    """The tools of one machine. Nothing is opened before a turn needs it."""

    def __init__(self, options: MachineOptions, *, served: bool = False, kept_permissions: bool = False) -> None:
        """With `kept_permissions` the answer "approve_always" is stored in the user's settings for later runs.

        A `served` machine does not list the skills of the user who serves it. `read_skill` (beside `read_file`),
        `remember`, `ask_user` and `web_search` are added unless a tool of the user has that name.
        """
        options = with_defaults(options)
        self.response_format = read_response_format(options)
        self.rules = tuple(options["rules"])
        self.roles = dict(options["roles"])
        self.served = served
        self.keep_permission = keep_permission if kept_permissions else None
        self.redactor = CurrentRedactor(options["secrets"]).now
        self.literals = WrittenLiterals(self.redactor)
        self.records = WorkspaceRecords()
        self.policy_memory = PolicyMemory(monotonic_s, BreakerConfig())
        self._servers: dict[str, McpServers] = {}
        self._jobs: dict[str, Jobs] = {}
        self._sandboxes: dict[tuple[object, ...], Any] = {}

        defaults = default_tools()
        user_tools = options["tools"]
        all_tools = [*(defaults if user_tools is None else cast("Sequence[Tool]", user_tools))]
        names = {tool.name for tool in all_tools}
        own_tools = [remember, ask_user, web_search]
        if read_file.name in names:
            own_tools.append(read_skill)

        added = [tool for tool in own_tools if tool.name not in names]
        all_tools += added
        self.added = {tool.name for tool in added}
        if final_answer.name not in names:
            all_tools.append(replace(final_answer, offered=False))

        self.registry = ActionRegistry(all_tools, options["arg_validators"])
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        self._all_tools = tuple(all_tools)
        self.child_tools: set[str] = {tool.name for tool in all_tools if tool.child}
        self.executed_files = tuple({file: None for tool in all_tools for file in tool.executes})
        self._has_remote_tools = any(map(attrgetter("remote"), all_tools))
        self.parallel: set[str] = set()
        """The names of the tools whose calls may run beside others."""
        own = {id(tool) for tool in (*defaults, *added)}

        for tool in all_tools:
            # Our tools that only read files take a moment, and run in order so that their trace is in order.
            waits = tool.effect is Effect.NETWORK or (tool.effect in WITHOUT_CHANGE and id(tool) not in own)
            if waits and not tool.child and not tool.terminal:
                self.parallel.add(tool.name)

    @cached_property
    def need_approval(self) -> frozenset[str]:
        """The names of the tools whose calls run only if a person approves them."""
        return frozenset([tool.name for tool in self._all_tools if tool.approval == "required"])

    @cached_property
    def granted(self) -> frozenset[str]:
        """The names of the tools that run without an approval."""
        return frozenset([tool.name for tool in self._all_tools if tool.approval == "granted"])

    @cached_property
    def search(self) -> Tool | None:
        """The tool that searches the others, if there is one."""
        return next((tool for tool in self._all_tools if tool.finds), None)

    @cached_property
    def unlisted(self) -> frozenset[str]:
        """The names of the tools that a model has to search for."""
        return frozenset([tool.name for tool in self._all_tools if tool.remote and not tool.offered])

    def tools_with_effect(self, *effects: Effect) -> frozenset[str]:
        """Return the names of the tools with one of these effects."""
        return frozenset([name for name, spec in self.specs.items() if spec.effect in effects])

    def schema_of(self, name: str) -> JsonMap:
        """Return the JSON schema of a tool's arguments; empty for an unknown tool."""
        spec = self.specs.get(name)
        return {} if spec is None else spec.parameters

    def open_sandbox(self, key: tuple[object, ...], open_it: Callable[[], Any]) -> Any:
        """Return the sandbox with this key, which `open_it` opens once; an error is not kept."""
        if key in self._sandboxes:
            return self._sandboxes[key]

        sandbox = open_it()
        if not isinstance(sandbox, ToolError):
            if len(self._sandboxes) >= MOST_SANDBOXES:
                self._sandboxes.clear()

            self._sandboxes[key] = sandbox

        return sandbox

    def jobs(self, run_id: str) -> "Jobs | None":
        """Return the jobs of a run's turn; None if it has none."""
        return self._jobs.get(run_id)

    def open_jobs(self, run_id: str, longest_s: float) -> "Jobs":
        """Return the jobs of a run's turn; new ones end after `longest_s` seconds."""
        from mendgraph.nodes.execute_tools.commands.jobs import LONGEST_S, Jobs

        return self._jobs.setdefault(run_id, Jobs(min(longest_s, LONGEST_S)))

    def end_jobs(self, run_id: str | None = None) -> None:
        """End the jobs of a run, or of all runs."""
        for name in [*self._jobs] if run_id is None else [run_id]:
            jobs = self._jobs.pop(name, None)
            if jobs is not None:
                jobs.end()

    def mcp_servers(self, run_id: str) -> "McpServers | None":
        """Return the MCP servers of a thread, which its children share; each starts at its first call."""
        if not self._has_remote_tools:
            return None

        from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

        return self._servers.setdefault(parent_of(run_id)[0], McpServers())

    def end_servers(self, run_id: str | None = None) -> None:
        """End the MCP servers of a thread, or of all threads."""
        threads = [*self._servers] if run_id is None else [parent_of(run_id)[0]]
        for thread in threads:
            servers = self._servers.pop(thread, None)
            if servers is not None:
                servers.close()
