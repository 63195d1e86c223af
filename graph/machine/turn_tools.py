"""What the tools of one turn may do: names, rules, programs and checks, by the turn's context.

What follows from the context alone is computed once. What depends on the disk, such as permissions, submodules and
sandboxes, is looked up each time.
"""

import os
import posixpath
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AnyMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import user_places
from mendgraph.graph.configuration.permissions import list_permissions
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.workspace import (
    agent_files,
    denied_rules,
    executed_files,
    executed_rules,
    judged_workspace,
    open_skill,
    own_rules,
    user_skills,
)
from mendgraph.nodes.call_model.prompts.profiles import allowed_note, in_foreground, offered_tools, with_agents
from mendgraph.nodes.execute_tools.call_policy import CallPolicy, allowed_tools
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import Commands, open_commands
from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, open_checks
from mendgraph.nodes.execute_tools.evidence.runners import rules_with_runners
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.about_run import ask_user, delegate, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_skill
from mendgraph.nodes.execute_tools.tools.run_command import COMMANDS_ARE_OFF
from mendgraph.nodes.execute_tools.tools.web import SEARCH_IS_OFF, web_search
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.guard.file_rules import FileGuardrailRule, submodule_rule, writable_rule
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import is_hidden, is_refused, judge_content
from mendgraph.nodes.guard.scope import Scope, is_guarded, scope_rule
from mendgraph.nodes.language.command_lines import COMMAND_TOOL, SHELL, SHELL_TOOL, command_argv
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.language.project_notes import SkillFolder
from mendgraph.nodes.language.prompt_files import PromptFile
from mendgraph.nodes.records import Effect, JsonMap, Profile, ToolCall, ToolError, ToolErrorCode, ToolSpec
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.journal.journal import parent_of
from mendgraph.nodes.workspace.processes.git import absent_submodules
from mendgraph.nodes.workspace.store.audit_log import AuditLog
from mendgraph.nodes.workspace.store.run_folder import records_folders, run_folder, workspace_folder

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.commands.jobs import Jobs
    from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
    from mendgraph.nodes.execute_tools.network.web_search import WebSearch


_NO_PATH = "\0"
"""Stands for unknown paths of a call: no file can have this name, so guard denies the call."""


class TurnTools:
    """The tools of one machine under the context of one turn."""

    def __init__(self, machine: MachineTools, context: AgentContext) -> None:
        self.machine = machine
        self.context = context
        self._audit_log: AuditLog | None = None
        self._rules: tuple[FileGuardrailRule, ...] | None = None

    # --- Which tools there are

    @cached_property
    def allowed(self) -> frozenset[str] | ToolError:
        """The names of the tools that the role may use, or why the role is invalid."""
        context = self.context
        specs = self.machine.specs
        roles = self.machine.roles

        allowed = allowed_tools(context.role, roles, specs.values())
        if isinstance(allowed, ToolError):
            return allowed

        if not context.delegation:
            allowed -= self.machine.child_tools
        elif context.role in roles:  # a role of the user's has children only if it names them
            allowed -= self.machine.child_tools - set(roles[context.role])

        if context.writable_paths:  # no sandbox restricts a program to them
            allowed -= {name for name in allowed if specs[name].effect is Effect.EXECUTE}

        return allowed

    @cached_property
    def names(self) -> frozenset[str]:
        """The allowed names; none if the role is invalid."""
        if isinstance(self.allowed, ToolError):
            return frozenset()
        return self.allowed

    def usable(self) -> frozenset[str]:
        """Return the allowed tools that have what they need, so that the model may be offered them."""
        context = self.context
        usable = self.names

        if not self._may_run_programs or not isinstance(self.commands(), Commands):
            usable -= {COMMAND_TOOL}
        if SHELL_TOOL in usable and not self._has_use_of_shell():
            usable -= {SHELL_TOOL}
        if not usable & {COMMAND_TOOL, SHELL_TOOL} or not self._has_jobs():
            usable -= JOB_TOOLS
        if not context.allowed_hosts and context.mode != "ask" and not self._has_permission(NETWORK_TOOL):
            usable -= {NETWORK_TOOL}
        if context.mode == "auto":
            usable -= self.machine.need_approval
        if self.machine.search and (context.mode == "read-only" or usable.isdisjoint(self.machine.unlisted)):
            usable -= {self.machine.search.name}

        needs = {
            read_skill.name: bool(self.skills),
            remember.name: context.memory,
            ask_user.name: context.questions,
            web_search.name: not isinstance(self.search(), ToolError),
        }
        usable -= {name for name in self.machine.added if not needs[name]}
        return usable - {name for name, most in context.tool_quotas.items() if not most}

    def discovered_tools(self, messages: Sequence[AnyMessage]) -> frozenset[str]:
        """Return the names of the tools that the model has searched for in this thread."""
        search = self.machine.search
        if search is None or search.finds is None:
            return frozenset()

        names: set[str] = set()
        for message in messages:
            for call in getattr(message, "tool_calls", ()):
                if call["name"] == search.name:
                    names.update(search.finds(str(call["args"].get("query", ""))))

        return frozenset(names)

    @property
    def skills(self) -> tuple[SkillFolder, ...]:
        """The user's own skills, if this run may use them."""
        machine = self.machine
        if machine.served or not self.context.project_notes:
            return ()
        if read_skill.name not in machine.added or read_skill.name not in self.names:
            return ()

        return user_skills(self.context.workspace, machine.rules)

    @property
    def agents(self) -> Mapping[str, PromptFile]:
        """The agents that children of this run may work as, by their names."""
        machine = self.machine
        if not self.context.delegation or not self.context.project_notes or delegate.name not in self.names:
            return {}

        return agent_files(self.context.workspace, self.rules(), users=not machine.served)

    def offered(self, profile: Profile, discovered: frozenset[str] = frozenset()) -> tuple[ToolSpec, ...]:
        """Return the tools that the model of this turn is offered, by the mode, the role and the permissions.

        Those that it has `discovered` are added to the listed ones.
        """
        context = self.context
        machine = self.machine
        asks = context.mode == "ask"
        permissions = always_allowed(self.permissions())
        listed = [*context.allowed_programs]
        commands = self.commands() if context.allowed_commands else None
        if isinstance(commands, Commands):
            listed += commands.rules.commands

        programs = allowed_note("", (*listed, *permissions.get(COMMAND_TOOL, ())), asks=asks)
        hosts = (*context.allowed_hosts, *permissions.get(NETWORK_TOOL, ()))

        specs = dict(machine.specs)
        also_offered = discovered & machine.unlisted
        if context.delegation:
            also_offered |= machine.child_tools

        for name in also_offered:
            specs[name] = specs[name].model_copy(update={"offered": True})
        if context.delegation and not profile.small and self.agents:
            specs[delegate.name] = with_agents(specs[delegate.name], [*self.agents])

        usable = self.usable()
        if profile.small:  # a small model takes each tool that it sees for a hint
            usable -= {*machine.added, SHELL_TOOL, *JOB_TOOLS}
            if not context.allowed_programs:
                usable -= {COMMAND_TOOL}
            if not context.allowed_hosts:
                usable -= {NETWORK_TOOL}
        if SHELL_TOOL in usable:
            usable -= {COMMAND_TOOL}

        if not usable & JOB_TOOLS:
            for name in specs.keys() & {COMMAND_TOOL, SHELL_TOOL}:
                specs[name] = in_foreground(specs[name])

        offered = offered_tools(
            specs.values(),
            profile.edit_form,
            read_only=context.is_read_only,
            response_format=context.response_format,
            usable=usable,
            few=context.offer == "few",
            notes={
                COMMAND_TOOL: programs,
                SHELL_TOOL: programs,
                NETWORK_TOOL: allowed_note(" hosts", hosts, asks=asks),
            },
        )

        return tuple(offered)

    def unknown_tools(self) -> str:
        """Return why the context limits a tool that does not exist; "" if all exist."""
        context = self.context
        specs = self.machine.specs
        named = {*context.tool_timeouts_s, *context.tool_quotas, *context.tool_calls_per_minute}

        for name in sorted(named - set(specs)):
            suggestions = closest_names(name, specs)
            remedy = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
            return f"The context limits an unknown tool, {name!r}.{remedy}"

        return ""

    # --- What approvals allow

    def permissions(self) -> tuple[Permission, ...]:
        """Return what the user allows in every run of this workspace; nothing if the machine does not use that."""
        if self.machine.keep_permission is None:
            return ()

        permissions = list_permissions(self.context.workspace)
        return () if isinstance(permissions, ToolError) else permissions

    def _has_permission(self, tool: str) -> bool:
        return any(permission.tool == tool for permission in self.permissions())

    def policy(self, counts: dict[str, int] | None, thread: str = "") -> CallPolicy:
        """Return the quotas, rates and circuits of calls, which adds to `counts`: the calls of this turn by tool."""
        rules = self.context.calls(self.names)
        return CallPolicy(rules, self.machine.policy_memory, scope=thread, used=counts)

    def subject(self, call: ToolCall, scope: Scope, counts: dict[str, int] | None, *, listed: bool) -> str | ToolError:
        """Return what an approval of this call would allow, or why the call would still be refused.

        It allows a program by its real name, or a host; "" for other calls. With `listed` it allows nothing beside what
        the context names.
        """
        tool = self.machine.registry.get(call.tool)
        policy = self.policy(counts)
        refusal = tool and (policy.permit(tool, call.arguments) or policy.spent(tool))
        if refusal and refusal.result.error:
            return refusal.result.error

        if call.tool == web_search.name and call.tool in self.machine.added:
            search = self.search()
            return search if isinstance(search, ToolError) else search.host

        if call.tool in {COMMAND_TOOL, SHELL_TOOL}:
            return _program_of(call, self.commands(scope), listed=listed)
        if call.tool == NETWORK_TOOL:
            return _host_of(call, self.context, listed=listed)

        return _named_in(call)

    # --- Files

    @property
    def _executed_files(self) -> tuple[str, ...]:
        return executed_files(self.machine.executed_files, self.context)

    def rules(self, scope: Scope | None = None) -> tuple[FileGuardrailRule, ...]:
        """Return the file rules of the turn; with `scope` also those of what the model may change without asking.

        What MCP servers execute and submodules that are not checked out stay unchanged; run records in the workspace
        are denied. In mode "ask" a person decides about protected files, so `scope` adds nothing.
        """
        context = self.context
        if self._rules is None:  # no `cached_property`: before Python 3.12 all turns wait for one whose disk hangs
            settings_rules = own_rules(context.workspace, records_folders(), user_places())
            executed = executed_rules(context.workspace, self._executed_files)
            self._rules = (*self.machine.rules, *settings_rules, *executed)

        rules = [*self._rules]
        absent = absent_submodules(context.workspace)
        if absent:
            rules.append(submodule_rule(absent))

        rules += denied_rules(context.denied_paths)
        if context.writable_paths:
            rules.append(writable_rule(context.writable_paths))
        if scope is not None and context.mode != "ask":
            rules.append(scope_rule(scope))

        return tuple(rules)

    def workspace(self, observe: Callable[[JsonMap], None] | None = None, scope: Scope | None = None) -> Workspace:
        """Return the only access to the files of the run; calls of the model change them within a `scope`."""
        extensions = frozenset(self.context.allowed_extensions)
        return judged_workspace(self.context.workspace, self.rules(scope), observe, extensions)

    def leads_to(
        self, path: str, for_write: bool, *, observe: Callable[[JsonMap], None] | None = None
    ) -> str | ToolError:
        """Return where a path leads that is not plainly one of the workspace, or the refusal (`Workspace.leads_to`)."""
        try:
            return self.workspace(observe).leads_to(path, for_write=for_write)
        except OSError as error:
            return os_failure(error, "look at", self.context.workspace)

    def paths_of(self, call: ToolCall) -> Sequence[str]:
        """Return the paths that a call names inside of other arguments."""
        tool = self.machine.registry.get(call.tool)
        if tool is None or tool.paths_of is None:
            return ()

        try:
            return tool.paths_of(call.arguments)
        except Exception:  # noqa: BLE001 - a user's function may fail in any way, and no failure may allow a path
            return (_NO_PATH,)

    def skill(self, name: str) -> Workspace | ToolError:
        """Return the folder of a skill of the user, or why there is none of this name."""
        return open_skill(self.skills, self.machine.rules, name)

    # --- Programs

    def commands(self, scope: Scope | None = None) -> Commands | ToolError | None:
        """Return what starts programs; None if none may be started, and the error of a sandbox that does not start.

        It is the same for the same workspace, rules and `scope`, as it keeps what it has to hide. In mode "ask" a
        person may allow more programs.
        """
        context = self.context
        may_run = self._may_run_programs or context.allowed_commands
        if not may_run or context.writable_paths:
            return None

        rules = CommandRules(
            context.allowed_programs,
            context.tool_timeouts_s.get(COMMAND_TOOL, context.tool_timeout_s),
            readable=context.readable_folders,
            protected=(*records_folders(), *user_places(), *self._executed_files),
            sandbox=context.sandbox,
            commands=context.allowed_commands,
        )
        names: frozenset[str] = frozenset()
        if scope is not None:
            names = scope.names

        open_it = partial(open_commands, guarded=partial(is_guarded, scope=Scope(names)))
        opened: Commands | ToolError = self._sandbox(open_it, rules_with_runners(rules, context.workspace), names)
        if context.strict and isinstance(opened, Commands):
            return opened.read_only({}, {})

        return opened

    @property
    def _may_run_programs(self) -> bool:
        """Whether programs may be run with any arguments, at least those that a person allows."""
        context = self.context
        return bool(context.allowed_programs) or context.mode == "ask" or self._has_permission(COMMAND_TOOL)

    def _has_use_of_shell(self) -> bool:
        """Return whether this run may start a shell, or one of the listed commands."""
        context = self.context
        commands = self.commands()
        if not isinstance(commands, Commands):
            return False
        if context.mode == "ask":
            commands = commands.permitting([SHELL])

        return commands.is_runnable(SHELL) or bool(commands.rules.commands)

    def jobs(self, commands: Commands | ToolError | None, run_id: str) -> "Jobs | ToolError | None":
        """Return what runs commands that may go on in the background; None or the error that says why none may."""
        if not self.context.jobs or not isinstance(commands, Commands):
            return None

        from mendgraph.nodes.execute_tools.commands.jobs import Jobs

        if problem := Jobs.problem(commands):
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=problem)

        return self.machine.open_jobs(run_id, self.context.max_seconds or inf)

    def _has_jobs(self) -> bool:
        """Return whether commands of this run may go on in the background."""
        commands = self.commands()
        if not self.context.jobs or self.context.is_read_only or not isinstance(commands, Commands):
            return False

        from mendgraph.nodes.execute_tools.commands.jobs import Jobs

        return not Jobs.problem(commands)

    def checks(self) -> Checks | ToolError | None:
        """Return what checks the work; None if nothing does, and the error of a sandbox that does not start."""
        context = self.context
        if not (context.evidence or context.checks or context.diagnostics or context.format_edits):
            return None

        rules = CheckRules(
            context.checks,
            context.checks_timeout_s,
            readable=context.readable_folders,
            evidence=context.evidence,
            diagnostics=context.diagnostics,
            formatting=context.format_edits,
            sandbox=context.sandbox,
        )
        checks: Checks | ToolError = self._sandbox(open_checks, rules, frozenset())
        return checks

    def can_check(self) -> bool:
        """Return whether the examples of code can be run."""
        return self.context.evidence and isinstance(self.checks(), Checks)

    def _sandbox(self, open_it: Callable[..., Any], rules: CommandRules | CheckRules, names: frozenset[str]) -> Any:
        """Return the sandbox of these rules, in which no program sees what guard denies, by name or content."""
        workspace = self.context.workspace
        machine_rules = self.machine.rules

        def opened() -> Any:
            denied = self.rules()
            return open_it(
                workspace,
                rules,
                partial(is_hidden, rules=denied, root=workspace),
                partial(judge_content, rules=denied),
                refused=partial(is_refused, rules=machine_rules),
            )

        return self.machine.open_sandbox((workspace, rules, names, self.context.denied_paths), opened)

    # --- Web search

    def search(self) -> "WebSearch | ToolError":
        """Return what searches the web, or why nothing does. The service's key is read each time."""
        if self.context.web_search == "off":
            return SEARCH_IS_OFF

        from mendgraph.nodes.execute_tools.network.web_search import open_search  # what it imports takes time

        return open_search(self.context.web_search, os.environ, self.context.network())

    # --- Records

    def missing_resources(self, run_id: str) -> JsonMap:
        """Return why the run lacks resources, by the name of the event that reports each."""
        commands = None
        if self.context.allowed_programs or self.context.allowed_commands:
            commands = self.commands()

        resources = {
            "commands.unavailable": commands,
            "evidence.unavailable": self.checks(),
            "audit.unavailable": run_folder(parent_of(run_id)[0]),
            "journal.unavailable": workspace_folder(self.context.workspace),
            "web_search.unavailable": self.search() if self.context.web_search != "off" else None,
        }

        return {name: problem.message for name, problem in resources.items() if isinstance(problem, ToolError)}

    def log(self, run_id: str) -> RunLog:
        """Return the audit log of the run; one that writes nothing if the context turns it off or it has no folder."""
        if self._audit_log is None and self.context.audit:
            folder = run_folder(parent_of(run_id)[0])
            if isinstance(folder, str):
                self._audit_log = AuditLog(folder)

        return RunLog(self._audit_log, self.machine.redactor(), run_id)


# --- What an approval allows: the program of a command, or the host of a URL, inside of the same sandbox

NETWORK_TOOL: Final = "http_get"
JOB_TOOLS: Final = frozenset({"job_output", "job_kill"})


def _program_of(call: ToolCall, commands: Commands | ToolError | None, *, listed: bool) -> str | ToolError:
    if not isinstance(commands, Commands):
        return commands or ToolError(code=ToolErrorCode.UNAVAILABLE, message=COMMANDS_ARE_OFF)

    argv = command_argv(call.tool, call.arguments)
    allowed = commands if listed else commands.permitting(argv)

    try:
        return allowed.program(argv, call.arguments.get("cwd", "."))
    except OSError as error:
        return os_failure(error, "run", argv[0])


def _host_of(call: ToolCall, context: AgentContext, *, listed: bool) -> str | ToolError:
    from mendgraph.nodes.execute_tools.network.network import refused_by_name
    from mendgraph.nodes.execute_tools.network.url_rules import judge_url, parse_url

    url = call.arguments["url"]
    if isinstance(target := parse_url(url), ToolError):
        return target

    target = judge_url(url, context.network() if listed else _rules_with(url, context))
    if isinstance(target, ToolError):
        return target

    return refused_by_name(target) or f"{target.scheme}://{target.authority}"


def _named_in(call: ToolCall) -> str:
    from mendgraph.nodes.execute_tools.network.url_rules import Target, parse_url

    argv = command_argv(call.tool, call.arguments)
    folder, url = (call.arguments.get(name) for name in ("cwd", "url"))
    if argv:
        name = argv[0]
        if "/" in name:
            return posixpath.normpath(posixpath.join(str(folder or "."), name))
        return name

    target = parse_url(url) if isinstance(url, str) else None
    if isinstance(target, Target):
        return f"{target.scheme}://{target.authority}"

    return str(url or "")


def approved_resources(context: AgentContext, call: ToolCall, resources: ToolContext) -> ToolContext:
    """Return what an approved call may use: beside what the context names, its own program or host."""
    if call.tool in {COMMAND_TOOL, SHELL_TOOL} and isinstance(resources.commands, Commands):
        argv = command_argv(call.tool, call.arguments)
        return replace(resources, commands=resources.commands.permitting(argv))

    if call.tool == NETWORK_TOOL:
        from mendgraph.nodes.execute_tools.network.network import Network

        return replace(resources, network=Network(_rules_with(call.arguments["url"], context)))

    return resources


def _rules_with(url: str, context: AgentContext) -> "NetworkRules":
    from mendgraph.nodes.execute_tools.network.url_rules import judge_url, parse_url

    rules = context.network()
    target = parse_url(url)
    if isinstance(target, ToolError) or not isinstance(judge_url(url, rules), ToolError):
        return rules

    return replace(rules, hosts=(*rules.hosts, target.authority))


def always_allowed(permissions: Sequence[Permission]) -> dict[str, list[str]]:
    """Return the commands and hosts that are always allowed, by the tool."""
    words = defaultdict[str, list[str]](list)
    for permission in permissions:
        words[permission.tool].append(shlex.join(permission.prefix) or permission.subject)

    return words
