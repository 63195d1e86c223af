"""Importing any module does nothing: no file, no socket, no process, no thread, no look at the environment.

Only what our own module-level code does counts, not what a library does on its own import: the module whose body
runs nearest to the event is the one that did it. (pydantic looks at the environment for each class that it builds:
a look counts only where it is our own line that looks.)
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.architecture.product import PACKAGES, ROOT, module_name, sources

COMPILES_ON_IMPORT = "graph/agent.py"
"""What langgraph.json names has to be a compiled graph."""

WATCHER = r"""
import importlib, json, os, sys, threading

import pydantic

pydantic.create_model("First")  # pydantic looks for its plugins on disk when the first class is built

FORBIDDEN = (
    "open", "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "os.mkdir",
    "os.remove", "os.rename", "os.rmdir", "os.listdir", "os.scandir", "os.chmod", "os.chdir", "os.link", "os.symlink",
    "os.putenv", "os.unsetenv", "shutil.", "tempfile.", "glob.", "sqlite3.",
)
root, *modules = sys.argv[1:]
seen = []


def is_ours(file):
    return file.startswith(root + os.sep) and ".venv" not in file


def culprit(frame):
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return None
        if frame.f_code.co_name == "<module>":
            return os.path.relpath(name, root) if is_ours(name) else None
        frame = frame.f_back
    return None


def note(event, what):
    module = culprit(sys._getframe(2))
    if module:
        seen.append(f"{module}: {event} {what}")


def watch(event, args):
    if event.startswith(FORBIDDEN) and importing:
        note(event, str(args[:1]))


plain_getitem = os._Environ.__getitem__


def watched_getitem(self, key):
    asker = sys._getframe(1)
    while asker.f_code.co_filename in ("<frozen os>", "<frozen _collections_abc>", os.__file__):
        asker = asker.f_back
    if importing and is_ours(asker.f_code.co_filename):
        note("os.environ", repr(key))
    return plain_getitem(self, key)


plain_start = threading.Thread.start


def watched_start(self):
    if importing:
        note("thread", self.name)
    return plain_start(self)


os._Environ.__getitem__ = watched_getitem
threading.Thread.start = watched_start
importing = True
sys.addaudithook(watch)
for module in modules:
    importlib.import_module(module)
importing = False
print(json.dumps(seen))
"""


def imported(root: Path, modules: list[str]) -> list[str]:
    """What these modules of `root` did while they were imported, in a fresh interpreter."""
    command = [sys.executable, "-B", "-c", WATCHER, str(root), *modules]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_product_has_no_effect() -> None:
    modules = [module_name(path) for path in sources(*PACKAGES) if path != COMPILES_ON_IMPORT]
    assert imported(ROOT, modules) == []


def test_import_with_an_effect_is_detected(tmp_path: Path) -> None:
    busy = {
        "opens": ("open('x.txt', 'w')", "open"),
        "starts": ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        "asks": ("import os; os.environ.get('HOME')", "os.environ"),
        "threads": ("import threading; threading.Thread(target=int).start()", "thread"),
    }
    for name, (body, _) in busy.items():
        (tmp_path / f"{name}.py").write_text(f"{body}\n", encoding="utf-8")
    seen = imported(tmp_path, list(busy))
    for name, (_, event) in busy.items():
        assert any(line.startswith(f"{name}.py: {event} ") for line in seen), name
