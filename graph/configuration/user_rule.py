"""The user's own settings and prices are no files of a workspace, even where they lie in it, as in a home folder."""

import os
from functools import lru_cache
from pathlib import Path, PurePosixPath

from graph.configuration.loading import CONFIG_VARIABLE, FILE_NAME
from graph.price_files import FILE_NAME as PRICES
from nodes.call_model.prices import PRICES_VARIABLE
from nodes.execute_tools.environment.user_files import absolute_name, configuration_file
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.paths import folded_parts


def user_settings_rule(workspace: str) -> FileGuardrailRule | None:
    """What denies the user's files that lie below the workspace, a real name; None where none do."""
    usual = (configuration_file(name) for name in (FILE_NAME, PRICES))
    named = (os.environ.get(variable, "") for variable in (CONFIG_VARIABLE, PRICES_VARIABLE))
    places = [each for each in (*usual, *named) if isinstance(each, str) and each]
    return _rule(workspace, tuple(map(absolute_name, places)))


@lru_cache(maxsize=64)
def _rule(workspace: str, places: tuple[str, ...]) -> FileGuardrailRule | None:
    real = {os.path.join(os.path.realpath(os.path.dirname(each)), os.path.basename(each)) for each in places}
    real |= {os.path.realpath(each) for each in places}
    inside = [os.path.relpath(each, workspace) for each in real if each.startswith(os.path.join(workspace, ""))]
    if not inside:
        return None
    known = frozenset(folded_parts(PurePosixPath(each)) for each in inside)

    def is_users(path: Path) -> bool:
        return folded_parts(path) in known

    return FileGuardrailRule("user_settings", "The user's own settings of the agent", is_users)
