"""The table: layouts and spellings, with what has to come of each operation.

Source: the layouts of Go's tests of os.Root, the things of their rootMultiTest in each spelling, and ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.nodes.execute_tools.attacks.controls import (
    Control,
    always_fails,
    expands_outside,
    makes_outside,
    opens_inside,
    opens_outside,
    reads_secret,
    waits,
)
from tests.nodes.execute_tools.attacks.outcomes import (
    DENIED,
    INVALID,
    MISSING,
    Outcome,
    directory_at,
    file_at,
    new_secret_at,
    no_file_at,
    nothing_at,
    refused,
    secret_at,
    secret_by_hard_link,
    with_slash,
)


@dataclass(frozen=True)
class Row:
    """One spelling in one layout; `made` are the directories that a new file brings with it."""

    path: str
    lines: tuple[str, ...]
    outcome: Outcome
    control: Control | None = None
    made: tuple[str, ...] = ()


OUT, NO_PATH = refused(DENIED), refused(INVALID)

KINDS: dict[str, tuple[tuple[str, ...], Outcome, Control | None, Control | None]] = {
    # what b is: its lines, what comes of it, and the controls without and with a slash at its end
    "a file": (("b",), file_at("b"), None, always_fails),
    "a directory": (("b/f",), directory_at("b", "b/f"), None, None),
    "nothing": ((), nothing_at("b"), always_fails, always_fails),
    "a link to a file": (("b => f", "f"), file_at("f"), None, always_fails),
    "a link to a directory": (("b => d", "d/f"), directory_at("d", "d/f"), None, None),
    "a link to nothing": (("b => new",), nothing_at("new"), None, None),
    "a link to a file outside": (("b => ../outside/secret.txt",), OUT, opens_outside, always_fails),
    "a link to a directory outside": (("b => ../outside",), OUT, opens_outside, opens_outside),
    "a link to nothing outside": (("b => ../outside/new",), OUT, makes_outside, always_fails),
    "a link to the directory above": (("b => ..",), OUT, opens_outside, opens_outside),
    "a link to itself": (("b => b",), refused(INVALID), always_fails, always_fails),
    "a link to a denied file": (
        ("b => .env", ".env!"),
        secret_at(".env"),
        reads_secret,
        always_fails,
    ),
    "a hard link to a denied file": ((".env!", "b == .env"), secret_by_hard_link("b"), reads_secret, always_fails),
    "a hard link to an allowed file": (("f", "b == f"), file_at("b"), None, always_fails),
    "a pipe": (("b|",), no_file_at("b"), waits, always_fails),
    "a socket": (("b%",), no_file_at("b"), waits, always_fails),
}
SPELLINGS = ("b", "./b", ".//b", "DIR/../b", "DIR/./../b", "../root/b", "{root}/b", "/{root}/b", "DIR/../../root/b")
SLASHED = ("b/", "b//", "b/.", "{root}/b/", "DIR/../b/")


def spelled_rows() -> Iterator[tuple[str, Row]]:
    """Each kind of thing under each spelling."""
    for kind, (lines, outcome, control, slashed) in KINDS.items():
        for spelling in SPELLINGS:
            yield f"{spelling} is {kind}", Row(spelling, (*lines, "DIR/"), outcome, control)
        for spelling in SLASHED:
            yield f"{spelling} is {kind}", Row(spelling, (*lines, "DIR/"), with_slash(outcome), slashed)


LONG = "d" * 247
DEEP = "/".join("abcdefghijklmnopqrs")
DEEP_LINES = tuple(
    line
    for length in range(0, len(DEEP) + 1, 2)
    for line in (f"{DEEP[:length]}{LONG}/", f"{DEEP[: length + 1]} => {LONG}")
)
"""Nineteen links, each to a directory with a long name: the real path is too long to be spelled."""

NAMED_ROWS: dict[str, Row] = {
    # --- dots and slashes
    "nested": Row("a/b/c", ("a/b/c",), file_at("a/b/c")),
    "single dots": Row("./a/./b/./c", ("a/b/c",), file_at("a/b/c")),
    "dots that come back": Row("a/../a/b/../../a/b/../b/c", ("a/b/c",), file_at("a/b/c")),
    "dots after nothing": Row("nope/../f", ("f",), file_at("f")),
    "dots after a file": Row("f/../f", ("f",), file_at("f")),
    "dots after a link are read as text": Row("a/../f", ("a => b/c", "b/c/", "f"), file_at("f")),
    "dots before a link": Row("b/../a/f", ("a => b/c", "b/c/f"), file_at("b/c/f")),
    "the workspace": Row(".", ("f",), directory_at(".", "f")),
    "the workspace, with a slash": Row("./", ("f",), with_slash(directory_at(".", "f"))),
    "the workspace, absolute": Row("{root}", ("f",), directory_at(".", "f")),
    "the workspace from within": Row("a/..", ("a/",), directory_at(".", "a")),
    "above": Row("..", (), OUT, opens_outside),
    "above, with a slash": Row("../", (), OUT, opens_outside),
    "above from within": Row("a/../../", ("a/",), OUT, opens_outside),
    "beside": Row("../outside/secret.txt", (), OUT, opens_outside),
    "beside from within": Row("a/../../outside/secret.txt", ("a/",), OUT, opens_outside),
    "beside, new": Row("../outside/new", (), OUT, makes_outside),
    "beside, nothing there": Row("../nope/new", (), OUT, always_fails),
    "far above": Row("../" * 40 + "{outside}/secret.txt", (), OUT, opens_outside),
    "dots that are names": Row("...", (), nothing_at("...")),
    "dots that begin a name": Row("..hidden", (), nothing_at("..hidden")),
    "dots in brackets": Row("[...slug].ts", ("[...slug].ts",), file_at("[...slug].ts")),
    "backslashes": Row("..\\f", ("f",), nothing_at("..\\f")),
    "backslashes to the system": Row("..\\..\\etc", (), new_secret_at("..\\..\\etc"), always_fails),
    # --- absolute names
    "absolute": Row("{outside}/secret.txt", (), OUT, opens_outside),
    "absolute directory": Row("{outside}", (), OUT, opens_outside),
    "absolute, new": Row("{outside}/new", (), OUT, makes_outside),
    "absolute by the way of the root": Row("{root}/../outside/secret.txt", (), OUT, opens_outside),
    "absolute with the root's prefix": Row("{root}-evil/secret.txt", (), OUT, opens_outside),
    "the system": Row("/etc/passwd", (), OUT, opens_outside),
    "the system, two slashes": Row("//etc/passwd", (), OUT, opens_outside),
    "the root of all": Row("/", (), with_slash(OUT), opens_outside),
    "home": Row("~", (), OUT, expands_outside),
    "new at home": Row("~/new", (), OUT, expands_outside),
    "a name like home": Row("~root", (), nothing_at("~root")),
    # --- /proc and /dev
    "proc root": Row("/proc/self/root{outside}/secret.txt", (), OUT, opens_outside),
    "proc root to the inside": Row("/proc/self/root{root}/f", ("f",), OUT, opens_inside),
    "proc cwd": Row("/proc/self/cwd", (), OUT, opens_outside),
    "proc handle": Row("/proc/self/fd/{fd}", (), OUT, opens_outside),
    "proc environment": Row("/proc/self/environ", (), OUT, opens_outside),
    "dev handle": Row("/dev/fd/{fd}", (), OUT, opens_outside),
    "standard input": Row("/dev/stdin", (), OUT, opens_outside),
    "device": Row("/dev/zero", (), OUT, opens_outside),
    "link to proc root": Row("l", ("l => /proc/self/root{outside}/secret.txt",), OUT, opens_outside),
    "link to proc root and back": Row("l", ("f", "l => /proc/self/root{root}/f"), file_at("f")),
    "link to proc cwd": Row("l", ("l => /proc/self/cwd",), OUT, opens_outside),
    "link to a handle": Row("l", ("l => /proc/self/fd/{fd}",), OUT, opens_outside),
    "link to a device": Row("l", ("l => /dev/zero",), OUT, opens_outside),
    "link to standard input": Row("l", ("l => /dev/stdin",), OUT, opens_outside),
    "link to a pipe outside": Row("l", ("l => ../outside/pipe",), OUT, opens_outside),
    # --- links
    "link that ends in a slash": Row("l/f", ("d/f", "l => d/"), file_at("d/f")),
    "link that ends in a dot": Row("l/f", ("d/f", "l => d/."), file_at("d/f")),
    "link above, with a slash": Row("l", ("l => ../",), OUT, opens_outside),
    "link two above": Row("d/l", ("d/l => ../../",), OUT, opens_outside),
    "link above and back": Row("l/root/f", ("l => ..", "f"), file_at("f")),
    "link above and beside": Row("l/outside/secret.txt", ("l => ..",), OUT, opens_outside),
    "absolute link": Row("l", ("l => {root}/f", "f"), file_at("f")),
    "absolute link to a directory": Row("l/f", ("l => {root}/d", "d/f"), file_at("d/f")),
    "link over the root": Row("l", ("l => ../root/f", "f"), file_at("f")),
    "link chain": Row(
        "l",
        ("l => a/b/c/f", "a/b => e", "a/e => ../g", "g => h/i/j", "h/i/j => ..", "h/c/f"),
        file_at("h/c/f"),
    ),
    "link chain out": Row("l", ("l => a/b/secret.txt", "a/b => e", "a/e => ../../outside"), OUT, opens_outside),
    "three links out": Row("1", ("1 => 2", "2 => 3", "3 => ../outside/secret.txt"), OUT, opens_outside),
    "more links than the kernel follows": Row(
        "0", (*(f"{n} => {n + 1}" for n in range(60)), "60"), file_at("60"), always_fails
    ),
    "two links in a circle": Row("l", ("l => m", "m => l"), NO_PATH, always_fails),
    "below a circle": Row("l/f", ("l => l",), NO_PATH, always_fails),
    "below a link out": Row("l/secret.txt", ("l => ../outside",), OUT, opens_outside),
    "far below a link out": Row("l/dir/deep.txt", ("l => {outside}",), OUT, opens_outside),
    "new below a link out": Row("l/new", ("l => ../outside",), OUT, makes_outside),
    "new below new below a link out": Row("l/a/new", ("l => ../outside",), OUT, always_fails),
    "a link out below a link in": Row("l/m/secret.txt", ("l => d", "d/m => ../../outside"), OUT, opens_outside),
    "through a path that is too long": Row(
        f"{DEEP}/l/secret.txt", (*DEEP_LINES, f"{DEEP}/l => {'../' * 20}outside"), NO_PATH, opens_outside
    ),
    # --- new files
    "new below new": Row(
        "a/b/c", (), nothing_at("a/b/c").but({"resolve to write": MISSING}), always_fails, ("a", "a/b")
    ),
    "a misspelling": Row("note.txt", ("notes.txt",), nothing_at("note.txt").but({"suggest": ("notes.txt",)})),
    "a misspelled secret": Row(".en", (".env!",), nothing_at(".en")),
    "below a file": Row("f/x", ("f",), NO_PATH, always_fails),
    "far below a file": Row("f/x/y", ("f",), NO_PATH, always_fails),
    # --- names that are no names, and names that are
    "empty": Row("", ("f",), NO_PATH),
    "blank": Row(" \t", (), NO_PATH, always_fails),
    "NUL": Row("f\0", ("f",), NO_PATH, always_fails),
    "NUL and more": Row("f\0/../f", ("f",), NO_PATH, always_fails),
    "lone surrogate": Row("f\ud800", (), NO_PATH, always_fails),
    "255 bytes": Row("x" * 255, (), nothing_at("x" * 255)),
    "256 bytes": Row("x" * 256, (), NO_PATH, always_fails),
    "300 bytes": Row("d/" + "x" * 300, ("d/",), NO_PATH, always_fails),
    "256 bytes of 128 letters": Row("\u00e4" * 128, (), NO_PATH, always_fails),
    "5000 bytes": Row("a/" * 2500, (), NO_PATH, always_fails),
    "newline": Row("a\nb", ("a\nb",), file_at("a\nb")),
    "escape sequence": Row("\x1b[31mred", (), nothing_at("\x1b[31mred")),
    "right to left": Row("a\u202egnp.py", ("a\u202egnp.py",), file_at("a\u202egnp.py")),
    "an option": Row("-rf", ("-rf",), file_at("-rf")),
    "a space at the end": Row("f ", ("f",), nothing_at("f ").but({"suggest": ("f",)})),
    "a glob": Row("*", ("f",), nothing_at("*")),
    "a drive": Row("C:\\x", (), OUT, always_fails),
    "a drive with slashes": Row("C:/x", (), OUT, always_fails),
    "a share": Row("\\\\host\\x", (), OUT, always_fails),
    "a URL": Row("file://{outside}/secret.txt", (), OUT, always_fails),
    "another's home": Row("~root/.profile", (), OUT, always_fails),
    "a folder that is called like a home": Row("./~root/f", ("~root/f",), file_at("~root/f")),
    # --- guard
    "env": Row(".env", (".env!",), secret_at(".env"), reads_secret),
    "env, not there": Row(".env", (), new_secret_at(".env"), always_fails),
    "env by dots": Row("d/../.env", (".env!", "d/"), secret_at(".env"), reads_secret),
    "env, absolute": Row("{root}/.env", (".env!",), secret_at(".env"), reads_secret),
    "env over the root": Row("../root/.env", (".env!",), secret_at(".env"), reads_secret),
    "env below": Row("a/b/.env", ("a/b/.env!",), secret_at("a/b/.env"), reads_secret),
    "env with a slash": Row(
        ".env/",
        (".env!",),
        secret_at(".env").but({"resolve to read": INVALID, "resolve to write": INVALID}),
        always_fails,
    ),
    "env in capitals": Row(".ENV", (".ENV!",), secret_at(".ENV"), reads_secret),
    "env with a dot": Row(".env.", (".env.!",), secret_at(".env."), reads_secret),
    "env with a space": Row(".env ", (".env !",), secret_at(".env "), reads_secret),
    "env with a zero width space": Row(".e\u200bnv", (".e\u200bnv!",), secret_at(".e\u200bnv"), reads_secret),
    "env in full width": Row(
        ".\uff45\uff4e\uff56", (".\uff45\uff4e\uff56!",), secret_at(".\uff45\uff4e\uff56"), reads_secret
    ),
    "env behind a backslash": Row("d\\.env", ("d\\.env!",), secret_at("d\\.env"), reads_secret),
    "env backup": Row(".env~", (".env~!",), secret_at(".env~"), reads_secret),
    "env as a directory": Row(".env/x", (".env!",), NO_PATH, always_fails),
    "env template": Row(
        ".env.example",
        (".env.example",),
        file_at(".env.example").but({"create": DENIED, "replace": DENIED, "denied for writing": DENIED}),
    ),
    "key": Row("server.key", ("server.key!",), secret_at("server.key"), reads_secret),
    "credentials": Row("credentials.json", ("credentials.json!",), secret_at("credentials.json"), reads_secret),
    "git": Row(".git", (".git/config!",), secret_at(".git")),
    "git config": Row(".git/config", (".git/config!",), secret_at(".git/config"), reads_secret),
    "git config in capitals": Row(".GIT/config", (".GIT/config!",), secret_at(".GIT/config"), reads_secret),
    "git by its short name": Row("git~1/config", ("git~1/config!",), secret_at("git~1/config"), reads_secret),
    "git config with zero width": Row(
        ".g\u200dit/config", (".g\u200dit/config!",), secret_at(".g\u200dit/config"), reads_secret
    ),
    "new hook": Row(".git/hook", (".git/",), new_secret_at(".git/hook"), always_fails),
    "git of a submodule": Row("sub/.git/config", ("sub/.git/config!",), secret_at("sub/.git/config"), reads_secret),
    "link to git": Row("d/config", (".git/config!", "d => .git"), secret_at(".git/config"), reads_secret),
    "link to env over the root": Row("l", (".env!", "l => ../root/.env"), secret_at(".env"), reads_secret),
    "link chain to env": Row("l", (".env!", "l => m", "m => {root}/.env"), secret_at(".env"), reads_secret),
    "harmless file, denied name": Row(".env", ("f", ".env => f"), secret_at("f")),
    # --- hard links
    "hard link to git": Row(
        "d/n.txt", (".git/config!", "d/n.txt == .git/config"), secret_by_hard_link("d/n.txt"), reads_secret
    ),
    "hard link of a hard link": Row("m", (".env!", "l == .env", "m == l"), secret_by_hard_link("m"), reads_secret),
    "link to a hard link": Row("m", (".env!", "l == .env", "m => l"), secret_by_hard_link("l"), reads_secret),
    "hard link to a key far below": Row(
        "l", ("a/b/c/d/e/f.pem!", "l == a/b/c/d/e/f.pem"), secret_by_hard_link("l"), reads_secret
    ),
    "hard link to a template": Row(
        "l", (".env.example", "l == .env.example"), file_at("l").but({"replace": DENIED, "denied for writing": DENIED})
    ),
    "hard link to a file outside": Row("l", ("l == {outside}/library.py",), file_at("l")),
}
ROWS = {**dict(spelled_rows()), **NAMED_ROWS}
