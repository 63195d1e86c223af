"""Values that follow from a preset or a model's family: limits that finish a task, and the profile of a turn."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mendgraph.nodes.call_model.prompts.profiles import ModelProfile
from mendgraph.nodes.records import EditForm, Profile, Protocol

HOSTED: Mapping[str, Any] = {
    "max_calls_per_turn": 60,
    "max_calls_per_session": 180,  # and two resumed turns
    "max_input_tokens_per_session": 3_000_000,  # a prompt of 4,000 tokens that grows by 1,500 with each of 60 calls
    "max_output_tokens_per_session": 200_000,
    "max_output_tokens_per_call": 16_384,  # a file of some 1,600 lines, or the thoughts of a reasoning model
    "jobs": True,
}
"""The terminal's limits for hosted models, which are enough to finish a task."""

_PYTHON_CHECKS = ("pytest", "ruff check", "ruff format", "mypy", "pyright")

CHECK_COMMANDS: tuple[str, ...] = (
    *_PYTHON_CHECKS,
    *(f"{folder}/bin/{command}" for folder in (".venv", "venv") for command in _PYTHON_CHECKS),
    *("cargo build", "cargo check", "cargo clippy", "cargo fmt", "cargo test", "go build", "go test", "go vet"),
    *("python -m unittest", "python manage.py test", "make test"),
    *("npm test", "npm run build", "npm run lint", "npm run test", "pnpm test", "yarn test"),
)
"""The commands with which a model checks its work: what formats, builds, lints and tests. They run project code."""

UNATTENDED: Mapping[str, Any] = {
    **HOSTED,
    "mode": "auto",
    "allowed_commands": CHECK_COMMANDS,
    "evidence": True,
    "require_checks": True,
    "max_seconds": 3_600.0,
    "tool_timeout_s": 120.0,
    "checks_timeout_s": 300.0,
}
"""The fields that `AgentContext.unattended` sets: limits for one task on a hosted model."""


def with_dots(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return the extensions of files as `.py`. Raises ValueError for one that is none."""
    names = tuple(f".{extension.removeprefix('.').lower()}" for extension in extensions)
    for name in names:
        if not re.fullmatch(r"\.[^./\s]+", name):
            raise ValueError(f"{name!r} is not an extension: use forms such as .py or .md, without inner dots")

    return names


def choose_profile(family: ModelProfile, protocol: str, edit_form: str, *, embedded: bool, reasoning: bool) -> Profile:
    """Return the profile of a turn; "auto" for the protocol or the form of edits is the default of the family."""
    chosen_protocol = family.protocol if protocol == "auto" else Protocol(protocol)
    default_form = EditForm.BLOCKS if family.small else EditForm.REPLACE
    form = default_form if edit_form == "auto" else EditForm(edit_form)
    may_step_down = edit_form == "auto" and (family.small or chosen_protocol is Protocol.TEXT)

    return Profile(
        protocol=chosen_protocol,
        edit_form=form,
        embedded=embedded,
        small=family.small,
        steps_down=may_step_down and form is EditForm.REPLACE,
        reasoning=reasoning,
    )
