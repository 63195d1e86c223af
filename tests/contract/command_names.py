"""The settings of a run, the command line, its exit codes and environment variables, one fact per line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.loading import ELSEWHERE
from mendgraph.graph.terminal.process_end import ExitCode, exit_code_of
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason
from tests.architecture.product import PACKAGES, sources, walk
from tests.contract.type_names import bounds_of, type_name, value_text

_VARIABLE = re.compile(r"(MENDGRAPH|OPENAI)_[A-Z_]+")


def setting_facts() -> list[str]:
    """Each field of `AgentContext` with its option, and what a folder's own file may set without the user's trust."""
    facts = []
    for name, field in sorted(AgentContext.model_fields.items()):
        setting = SETTINGS[name]
        bounds = bounds_of(field.metadata)
        kind = f"{type_name(field.annotation)}{f' ({bounds})' if bounds else ''}"
        default = value_text(field.get_default(call_default_factory=True))
        option = setting.option or "none"
        if setting.choices:
            option += f" {value_text(setting.choices)}"
        trust = setting.trust if isinstance(setting.trust, str) else value_text(setting.trust)
        files = "no settings file" if name in ELSEWHERE else f"untrusted file: {trust or 'never'}"
        facts.append(f"{name}: {kind} = {default}; option: {option}; {files}")
    return facts


# --- The command line


def command_facts() -> list[str]:
    """Each command with its arguments and options; the names of options are sorted, arguments keep their order."""
    return list(_facts_of(typer.main.get_command(cli.app), "mendgraph"))


def _facts_of(command: Any, words: str) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    yield f"{words}{' COMMAND' if commands else ''}"

    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    for parameter in (*arguments, *sorted(options, key=lambda parameter: parameter.opts)):
        yield f"{words} {_parameter_text(parameter)}"

    for name, inner in sorted(commands.items()):
        yield from _facts_of(inner, f"{words} {name}")


def _parameter_text(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = parameter.metavar or parameter.name
    else:
        names = "/".join([", ".join(parameter.opts), *parameter.secondary_opts])
        if parameter.metavar:
            names += f" {parameter.metavar}"

    is_flag = getattr(parameter, "is_flag", False)
    text = f"{names}: {'flag' if is_flag else type_name(parameter.type_descriptor.annotation)}"
    limits = [f"{name}={getattr(parameter, name)}" for name in ("min", "max") if getattr(parameter, name) is not None]
    if limits:
        text += f" ({', '.join(limits)})"
    if parameter.default is not None and parameter.default is not False:
        default = str(parameter.default) if isinstance(parameter.default, Path) else parameter.default
        text += f" = {value_text(default)}"
    notes = [note for note in ("required", "multiple", "hidden") if getattr(parameter, note, False)]
    return ", ".join([text, *notes])


# --- What a process ends with, and what it reads


def exit_code_facts() -> list[str]:
    """The exit codes by name, and the kind and the code of each reason for which a run ends."""
    facts = [f"exit code {code.value}: {name}" for name, code in ExitCode.__members__.items()]
    for reason in sorted(StopReason):
        kind = _kind_of(reason)
        code = exit_code_of(Outcome(kind=kind, reason=reason, message=""))
        facts.append(f"stop reason {reason.value}: {kind.value}, exit code {code.value}")
    return facts


def _kind_of(reason: StopReason) -> OutcomeKind:
    if reason is StopReason.ANSWERED:
        return OutcomeKind.FINISHED
    return OutcomeKind.BUDGET_STOP if reason.is_limit else OutcomeKind.SYSTEM_ERROR


def variable_facts() -> list[str]:
    """The environment variables whose names the product holds."""
    constants = (node.value for path in sources(*PACKAGES) for node in walk(path) if isinstance(node, ast.Constant))
    return sorted({text for text in constants if isinstance(text, str) and _VARIABLE.fullmatch(text)})
