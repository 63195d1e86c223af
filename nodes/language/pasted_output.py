"""Output of tests and programs that a person has pasted into a request, and the files that it speaks of."""

import re

from mendgraph.nodes.language.names import IS_TEST

_TOLD = re.compile(
    r"^(?:[ \t]*(?P<frame>[\w@+./-]*[\w@+-]\.[A-Za-z]\w*):\d+(?::\d+)?:(?=\s|$)"
    r"|[ \t]*File \"(?P<file>[^\"\n]+)\", line \d+|(?:FAILED|ERROR) (?P<test>[\w@+./-]+\.\w+)(?=::|\s|$)|E {2,}\S).*$",
    re.MULTILINE,
)
"""Lines of tracebacks and of pytest."""
_AROUND = re.compile(
    r"^(?:Traceback \(most recent call last\):|={3,} .* ={3,}$|_{3,} .* _{3,}$|[.sxX]*[FE][.FEsxX]*$"
    r"|[.FEsxX]+[ \t]+\[ *\d+%\]$|\w+(?:Error|Exception)(?::.*)?$|\d+ (?:failed|passed)\b.*$)",
    re.MULTILINE,
)
"""Lines that stand before or behind them."""
_INDENTED = re.compile(r"(?:\n[ \t]+\S.*)+")


def without_output(request: str) -> tuple[str, str]:
    """A request without the output of tests or of a program that was pasted into it, and that output, "" for none."""
    if not (told := [*_TOLD.finditer(request)]):
        return request, ""
    lines = [*told, *_AROUND.finditer(request)]
    start, end = min(line.start() for line in lines), max(line.end() for line in lines)
    if code := _INDENTED.match(request, end):
        end = code.end()
    return f"{request[:start].rstrip()}\n{request[end:].lstrip()}".strip(), request[start:end].strip("\n")


def told_paths(output: str) -> list[str]:
    """The files that pasted output speaks of, each once: tests first, then the others, the last frame's last."""
    told = [line for line in _TOLD.finditer(output) if line.lastgroup]
    paths = [line["test"] for line in told if line["test"]]
    paths += [line["frame"] or line["file"] for line in told if not line["test"]]
    last = {path.removeprefix("./"): at for at, path in enumerate(paths) if "site-packages/" not in path}
    return sorted(last, key=lambda path: (not IS_TEST.search(path), last[path]))
