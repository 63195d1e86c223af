"""Changes by which a folder would become a bare repository, or that would change one.

Git runs the hooks of a repository, and programs that its configuration names, as soon as somebody asks it for the
status of the folder. `.git` is denied by its name; a bare repository may have any.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.handles import status_beneath

BARE: Final = (frozenset({"HEAD", "objects", "refs"}), frozenset({"HEAD", "commondir"}))
"""Names in a folder that git takes for a repository. Source: is_git_directory and get_common_dir of git's setup.c."""

_HEAD: Final = "HEAD"
_BESIDE: Final = frozenset({"config", "objects", "refs", "commondir"})
"""Names that make a folder with a `HEAD` look like a repository."""

_DATA: Final = frozenset({"objects", "refs", "logs", "index", "packed-refs", "lfs", "hooks"})

_OWN: Final = _BESIDE | {"head", "hooks", "info", "modules", "worktrees", "logs", "packed-refs", "config.worktree"}


def is_bare_repository(names: Collection[str]) -> bool:
    """Return whether git takes a folder with these entries for a repository."""
    return any(required.issubset(names) for required in BARE)


def is_repository_data(name: str) -> bool:
    """Return whether this file of a repository holds commits, references or their history."""
    return not _DATA.isdisjoint(name.split("/"))


def repository_refusal(root_fd: int, changed: Iterable[str], new: Iterable[str]) -> ToolError | None:
    """Return the refusal of a change of these files, of which those in `new` are created, or None."""
    together = {(folder, part.casefold()) for name in new for folder, part in _steps(name)}

    for name in changed:
        for folder, part in _steps(name):
            place = part.casefold()
            if place not in _OWN:
                continue
            if any(all(_exists(root_fd, folder, name_required) for name_required in required) for required in BARE):
                return _refusal(name, f"is a part of the git repository {quoted(folder or '.')}")
            if (folder, place) not in together or _exists(root_fd, folder, part):
                continue

            if any(
                (folder, name_beside.casefold()) in together or _exists(root_fd, folder, name_beside)
                for name_beside in _beside(place)
            ):
                return _refusal(name, f"would make {quoted(folder or '.')} a git repository")

    return None


def _steps(name: str) -> Iterator[tuple[str, str]]:
    """Yield each part of the name with the folder that it is in ("" for the root)."""
    parts = name.split("/")
    for length, part in enumerate(parts):
        yield "/".join(parts[:length]), part


def _beside(place: str) -> Collection[str]:
    """Return the names with which this one would make a folder look like a repository, in lower case."""
    if place == _HEAD.casefold():
        return _BESIDE
    return (_HEAD,) if place in _BESIDE else ()


def _exists(root_fd: int, folder: str, name: str) -> bool:
    with suppress(OSError):
        status_beneath(root_fd, (*folder.split("/"), name) if folder else (name,))
        return True

    return False


def _refusal(name: str, reason: str) -> ToolError:
    message = f"Blocked by rule 'git_internal': {quoted(name)} {reason}, whose configuration and hooks git runs."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{message} Go on without this file.")
