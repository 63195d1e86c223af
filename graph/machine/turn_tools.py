"""What the tools of one turn may do: names, rules, programs and checks, as the turn's context says.

A turn keeps one context, so which tools its role may use is computed once. What depends on the disk, such as
permissions, submodules and sandboxes, is looked up each time: before Python 3.12 all instances of a class share the
lock of a `cached_property`, and nothing may hold it while it waits for a disk.
"""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import user_places
from mendgraph.graph.configuration.permissions import list_permissions
from mendgraph.graph.machine.machine_services import MachineTools
from mendgraph.graph.machine.workspace import (
    denied_rules,
    executed_rules,
    judged_workspace,
    open_skill,
    own_rules,
    user_skills,
)
from mendgraph.nodes.call_model.prompts.profiles import offered_tools
from mendgraph.nodes.execute_tools.call_policy import CallPolicy, allowed_tools
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import Commands, open_commands
from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, open_checks
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import parent_of
from mendgraph.nodes.execute_tools.processes.git import absent_submodules
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.execute_tools.store.run_folder import records_folders, run_folder, workspace_folder
from mendgraph.nodes.execute_tools.tools.about_run import remember
from mendgraph.nodes.execute_tools.tools.read_file import read_skill
from mendgraph.nodes.execute_tools.tools.run_command import COMMANDS_ARE_OFF
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.guard.file_rules import FileGuardrailRule, submodule_rule, writable_rule
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import is_hidden, is_refused, judge_content
from mendgraph.nodes.guard.scope import Scope, is_guarded, scope_rule
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.project_notes import SkillFolder
from mendgraph.nodes.records import Effect, JsonMap, Profile, ToolCall, ToolError, ToolErrorCode, ToolSpec, os_failure

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules


_NO_PATH = "\0"
"""Named instead of paths that nobody knows: no file can have this name, so guard denies the call."""


class TurnTools:
    """The tools of one machine under the context of one turn."""

    def __init__(self, machine: MachineTools, context: AgentContext) -> None:
        self.machine = machine
        self.context = context

    # --- Which tools there are

    @cached_property
    def allowed(self) -> frozenset[str] | ToolError:
        """The names of the tools that the role may use, or what is wrong with the role."""
        context = self.context
        specs = self.machine.specs
        roles = self.machine.roles

        allowed = allowed_tools(context.role, roles, specs.values())
        if isinstance(allowed, ToolError):
            return allowed

        if not context.delegation:
            allowed -= self.machine.child_tools
        elif context.role in roles:  # a role of the user's has children only where it names them
            allowed -= self.machine.child_tools - set(roles[context.role])

        if context.writable_paths:  # no sandbox restricts a program to them
            allowed -= {name for name in allowed if specs[name].effect is Effect.EXECUTE}

        return allowed

    @cached_property
    def names(self) -> frozenset[str]:
        """The allowed names; none where there is no such role."""
        if isinstance(self.allowed, ToolError):
            return frozenset()
        return self.allowed

    @property
    def usable(self) -> frozenset[str]:
        """The allowed tools that have what they need, so that the model is told of them."""
        context = self.context
        usable = self.names

        if not isinstance(self.commands(), Commands):
            usable -= {COMMAND_TOOL}
        if not context.allowed_hosts and context.mode != "ask" and not self._has_permission(NETWORK_TOOL):
            usable -= {NETWORK_TOOL}
        if read_skill.name in self.machine.added and not self.skills:
            usable -= {read_skill.name}
        if remember.name in self.machine.added and not context.memory:
            usable -= {remember.name}

        return usable

    @property
    def skills(self) -> tuple[SkillFolder, ...]:
        """The user's own skills, where this run may be told of them."""
        machine = self.machine
        if machine.served or not self.context.project_notes:
            return ()
        if read_skill.name not in machine.added or read_skill.name not in self.names:
            return ()

        return user_skills(self.context.workspace, machine.rules)

    def offered(self, profile: Profile) -> tuple[ToolSpec, ...]:
        """The tools that the model of this turn is told of, by the mode, the role and the permissions."""
        context = self.context
        machine = self.machine
        asks = context.mode == "ask"
        permissions = kept_words(self.permissions())
        programs = (*context.allowed_programs, *permissions.get(COMMAND_TOOL, ()))
        hosts = (*context.allowed_hosts, *permissions.get(NETWORK_TOOL, ()))

        specs = dict(machine.specs)
        if context.delegation:
            for name in machine.child_tools:
                specs[name] = specs[name].model_copy(update={"offered": True})

        usable = self.usable
        if profile.small:  # which takes each tool that it sees for a hint
            usable -= machine.added
            if not context.allowed_programs:
                usable -= {COMMAND_TOOL}
            if not context.allowed_hosts:
                usable -= {NETWORK_TOOL}

        offered = offered_tools(
            specs.values(),
            profile.edit_form,
            read_only=context.mode == "read-only",
            response_format=context.response_format,
            usable=usable,
            few=context.offer == "few",
            notes={
                COMMAND_TOOL: allowed_words("", programs, asks=asks),
                NETWORK_TOOL: allowed_words(" hosts", hosts, asks=asks),
            },
        )

        return tuple(offered)

    def unknown_tools(self) -> str:
        """What is wrong with the tools that the context names, "" where nothing is: such a limit limits no tool."""
        context = self.context
        specs = self.machine.specs
        named = {*context.tool_timeouts_s, *context.tool_quotas, *context.tool_calls_per_minute}

        for name in sorted(named - set(specs)):
            suggestions = closest_names(name, specs)
            remedy = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
            return f"The context limits a tool that there is not, {name!r}.{remedy}"

        return ""

    # --- What approvals allow

    def permissions(self) -> tuple[Permission, ...]:
        """What the user allows in every run of this workspace; nothing where the machine does not use that."""
        if self.machine.keep_permission is None:
            return ()

        permissions = list_permissions(self.context.workspace)
        return () if isinstance(permissions, ToolError) else permissions

    def _has_permission(self, tool: str) -> bool:
        return any(permission.tool == tool for permission in self.permissions())

    def policy(self, counts: dict[str, int] | None, thread: str = "") -> CallPolicy:
        """The quotas, rates and circuits of calls. `counts` are the calls of this turn by tool, which it adds to."""
        rules = self.context.calls(self.names)
        return CallPolicy(rules, self.machine.policy_memory, scope=thread, used=counts)

    def subject(self, call: ToolCall, scope: Scope, counts: dict[str, int] | None, *, listed: bool) -> str | ToolError:
        """What an approval of this call would allow (`subject_of`), or why the call would be refused all the same."""
        tool = self.machine.registry.get(call.tool)
        policy = self.policy(counts)
        refusal = tool and (policy.permit(tool, call.arguments) or policy.spent(tool))
        if refusal and refusal.result.error:
            return refusal.result.error

        return subject_of(call, self.context, lambda: self.commands(scope), listed=listed)

    # --- Files

    @property
    def _own_places(self) -> tuple[str, ...]:
        """The folders of the run records and the user's files of settings, by absolute names."""
        return (*records_folders(), *user_places())

    @property
    def _first_rules(self) -> tuple[FileGuardrailRule, ...]:
        workspace = self.context.workspace
        settings_rules = own_rules(workspace, records_folders(), user_places())
        return (*self.machine.rules, *settings_rules, *executed_rules(workspace, self.machine.executed_files))

    @property
    def _context_rules(self) -> tuple[FileGuardrailRule, ...]:
        rules = denied_rules(self.context.denied_paths)
        if self.context.writable_paths:
            rules = (*rules, writable_rule(self.context.writable_paths))

        return rules

    def rules(self, scope: Scope | None = None) -> tuple[FileGuardrailRule, ...]:
        """The file rules of the turn; with `scope` also those of what the model may change without asking.

        What MCP servers execute and submodules that are not checked out stay unchanged; run records in the workspace
        are denied. In mode "ask" a person decides about protected files, so `scope` adds nothing.
        """
        rules = self._first_rules
        absent = absent_submodules(self.context.workspace)
        if absent:
            rules = (*rules, submodule_rule(absent))

        rules = (*rules, *self._context_rules)
        if scope is not None and self.context.mode != "ask":
            rules = (*rules, scope_rule(scope))

        return rules

    def workspace(self, observe: Callable[[JsonMap], None] | None = None, scope: Scope | None = None) -> Workspace:
        """The only access to the files of the run; calls of the model change them within a `scope`."""
        extensions = frozenset(self.context.allowed_extensions)
        return judged_workspace(self.context.workspace, self.rules(scope), observe, extensions)

    def leads_to(
        self, path: str, for_write: bool, *, observe: Callable[[JsonMap], None] | None = None
    ) -> str | ToolError:
        """Where a path leads that is not plainly one of the workspace, or the refusal: see `Workspace.leads_to`."""
        try:
            return self.workspace(observe).leads_to(path, for_write=for_write)
        except OSError as error:
            return os_failure(error, "look at", self.context.workspace)

    def paths_of(self, call: ToolCall) -> Sequence[str]:
        """The paths that a call names inside of other arguments."""
        tool = self.machine.registry.get(call.tool)
        if tool is None or tool.paths_of is None:
            return ()

        try:
            return tool.paths_of(call.arguments)
        except Exception:  # noqa: BLE001 - a user's function may fail in any way, and none of them opens the way
            return (_NO_PATH,)

    def skill(self, name: str) -> Workspace | ToolError:
        """The folder of a skill of the user's, or why there is none of this name."""
        return open_skill(self.skills, self.machine.rules, name)

    # --- Programs

    def commands(self, scope: Scope | None = None) -> Commands | ToolError | None:
        """What may be started; None where nothing may, and the error of a sandbox that does not start.

        The same one for the same workspace, rules and `scope`: it remembers what it has to hide. In mode "ask" a person
        may allow more programs.
        """
        context = self.context
        may_run = context.allowed_programs or context.mode == "ask" or self._has_permission(COMMAND_TOOL)
        if not may_run or context.writable_paths:
            return None

        rules = CommandRules(
            context.allowed_programs,
            context.tool_timeouts_s.get(COMMAND_TOOL, context.tool_timeout_s),
            readable=context.readable_folders,
            protected=(*self._own_places, *self.machine.executed_files),
            sandbox=context.sandbox,
        )
        names: frozenset[str] = frozenset()
        if scope is not None:
            names = scope.names

        open_it = partial(open_commands, guarded=partial(is_guarded, scope=Scope(names)))
        opened: Commands | ToolError = self._sandbox(open_it, rules, names)
        if context.strict and isinstance(opened, Commands):
            return opened.read_only({}, {})

        return opened

    def checks(self) -> Checks | ToolError | None:
        """What the work is judged by; None where nothing is, and the error of a sandbox that does not start."""
        context = self.context
        if not context.evidence and not context.checks:
            return None

        rules = CheckRules(
            context.checks,
            context.checks_timeout_s,
            readable=context.readable_folders,
            evidence=context.evidence,
            sandbox=context.sandbox,
        )
        checks: Checks | ToolError = self._sandbox(open_checks, rules, frozenset())
        return checks

    @property
    def can_check(self) -> bool:
        """Whether the examples of code can be run."""
        return self.context.evidence and isinstance(self.checks(), Checks)

    def _sandbox(self, open_it: Callable[..., Any], rules: CommandRules | CheckRules, names: frozenset[str]) -> Any:
        """The sandbox of these rules, in which no program sees what guard denies, by name or content."""
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

    # --- Records

    def missing_resources(self, run_id: str) -> JsonMap:
        """What a run has to do without: the reasons by the name of the event that reports each."""
        commands = None
        if self.context.allowed_programs:
            commands = self.commands()

        resources = {
            "commands.unavailable": commands,
            "evidence.unavailable": self.checks(),
            "audit.unavailable": run_folder(parent_of(run_id)[0]),
            "journal.unavailable": workspace_folder(self.context.workspace),
        }

        return {name: problem.message for name, problem in resources.items() if isinstance(problem, ToolError)}

    def log(self, run_id: str) -> RunLog:
        """The audit log of the run; one that writes nothing where the context turns it off or there is no folder."""
        folder = None
        if self.context.audit:
            folder = run_folder(parent_of(run_id)[0])

        audit_log = AuditLog(folder) if isinstance(folder, str) else None
        return RunLog(audit_log, self.machine.redactor(), run_id)


# --- What an approval allows: the program that a command names, or the host of a URL, inside of the same sandbox

COMMAND_TOOL: Final = "run_command"
NETWORK_TOOL: Final = "http_get"


def subject_of(
    call: ToolCall, context: AgentContext, commands: Callable[[], Commands | ToolError | None], *, listed: bool
) -> str | ToolError:
    """What an approval of this call would allow: a program by its real name, or a host; "" for other calls.

    It is the error of a call that would be refused all the same. With `listed` an approval allows nothing beside what
    the context names.
    """
    if call.tool == COMMAND_TOOL:
        return _program_of(call, commands(), listed=listed)
    if call.tool == NETWORK_TOOL:
        return _host_of(call, context, listed=listed)

    return _named_in(call)


def _program_of(call: ToolCall, commands: Commands | ToolError | None, *, listed: bool) -> str | ToolError:
    if not isinstance(commands, Commands):
        return commands or ToolError(code=ToolErrorCode.UNAVAILABLE, message=COMMANDS_ARE_OFF)

    name = call.arguments["argv"][0]
    allowed = commands if listed else commands.permitting(name)

    try:
        return allowed.program(name, call.arguments.get("cwd", "."))
    except OSError as error:
        return os_failure(error, "run", name)


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

    argv, folder, url = (call.arguments.get(name) for name in ("argv", "cwd", "url"))
    if isinstance(argv, list) and argv:
        name = str(argv[0])
        if "/" in name:
            return posixpath.normpath(posixpath.join(str(folder or "."), name))
        return name

    target = parse_url(url) if isinstance(url, str) else None
    if isinstance(target, Target):
        return f"{target.scheme}://{target.authority}"

    return str(url or "")


def permitted(context: AgentContext, call: ToolCall, using: ToolContext) -> ToolContext:
    """What an approved call may use: beside what the context names, its own program or host."""
    if call.tool == COMMAND_TOOL and isinstance(using.commands, Commands):
        return replace(using, commands=using.commands.permitting(call.arguments["argv"][0]))

    if call.tool == NETWORK_TOOL:
        from mendgraph.nodes.execute_tools.network.network import Network

        return replace(using, network=Network(_rules_with(call.arguments["url"], context)))

    return using


def _rules_with(url: str, context: AgentContext) -> "NetworkRules":
    from mendgraph.nodes.execute_tools.network.url_rules import judge_url, parse_url

    rules = context.network()
    target = parse_url(url)
    if isinstance(target, ToolError) or not isinstance(judge_url(url, rules), ToolError):
        return rules

    return replace(rules, hosts=(*rules.hosts, target.authority))


def kept_words(permissions: Sequence[Permission]) -> dict[str, list[str]]:
    """The commands and hosts that are allowed for good, by the tool."""
    words = defaultdict[str, list[str]](list)
    for permission in permissions:
        words[permission.tool].append(shlex.join(permission.prefix) or permission.subject)

    return words


def allowed_words(what: str, allowed: Sequence[str], *, asks: bool) -> str:
    """What the description of a tool says of the programs or hosts that a run allows."""
    if not asks:
        return f"Allowed{what}: {', '.join(allowed)}."
    return f"Allowed{what}: {', '.join(allowed) or 'none'}; for others a person is asked."
