"""What an approval allows: the program that a command names, or the host of a URL, inside of the same sandbox.

A person is asked only about a call that an approval lets run. What the sandbox hides stays hidden, and of private
addresses only those may be asked that the user has named.
"""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.execute_tools.commands.commands import Commands
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.run_command import COMMANDS_ARE_OFF
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.records import ToolCall, ToolError, ToolErrorCode, os_failure

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules

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
