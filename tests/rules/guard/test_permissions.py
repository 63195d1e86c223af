"""What an answer permits beyond the call that was shown, and which calls a permission covers."""

import shlex
from typing import Any

from mendgraph.nodes.guard.permissions import CallSubject, Permission, call_subject, covers, permissions_for
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolSpec
from tests.row_tables import rows

ROOT = "/home/dev/project"
WRITE = ToolSpec(name="edit_file", description="", parameters={}, effect=Effect.WRITE)
RUN = ToolSpec(name="run_command", description="", parameters={}, effect=Effect.EXECUTE)
GET = ToolSpec(name="http_get", description="", parameters={}, effect=Effect.NETWORK)
RULES = {"edit_file": "ask_before_write", "run_command": "ask_before_run", "http_get": "ask_before_network"}


def command(line: str) -> ToolCall:
    return ToolCall(call_id="1", tool="run_command", arguments={"argv": shlex.split(line)}, raw_arguments="")


def subject_of(line: str, program: str = "/usr/bin/git") -> CallSubject:
    return call_subject(command(line), program, ROOT)


@rows(
    ("ls -la src", "ls"),
    ("cat a.py b.py", "cat"),
    ("find . -name x.py", "find"),
    ("git log -3 main", "git log"),
    ("npm run build -- --watch", "npm run build"),
    ("npm test", "npm test"),
    ("pnpm run test:unit", "pnpm run test:unit"),
    ("cargo build --release", "cargo build"),
    ("pytest -q tests", "pytest"),
    ("python -m pytest -q tests", "python -m pytest"),
    ("python3 -m unittest -v", "python3 -m unittest"),
    ("python manage.py test shop", "python manage.py test"),
    ("make test", "make test"),
)
def test_simple_command_has_its_program_and_subcommand_as_prefix(line: str, prefix: str) -> None:
    assert subject_of(line).prefix == tuple(prefix.split())


WITHOUT_PREFIX = r"""
python a.py | python | python -m | python -m a | python -m pip | python -mpytest | python -B -m pytest
python3.12 -c 1 | pypy3 a.py | node a.js | deno run a.ts | sh a | bash -c ls | zsh | perl -e 1
ruby a.rb | php a.php | lua a.lua | awk 1 a | sed e a | busybox ls | irb | Rscript a.R | java -jar a.jar
env ls | sudo ls | xargs ls | time ls | nohup ls | timeout 5 ls | nice ls | stdbuf -o0 ls | setsid ls
find . -exec rm {} \; | find . -execdir a \; | find . -ok rm \; | find . -delete | find . -fprintf a b
rg --pre=sh a | rg --pre sh a | watch ls | parallel ls | ssh host | docker run a | gdb a | vim a | less a
python -m pytest -p a | python -m pytest -qp a | python -m mypy --python-exec=a | python ./manage.py test
python manage.py shell | python manage.py | python a.py test | python -m manage.py test | make | make a | make -f a test
make test CC=a | make test a | gmake | just test | rake | gradle build | mvn test | ninja | cmake --build . | tox | nox
git -c alias.x=!ls x | git -C .. log | git --exec-path=. log | git | git bisect run ls | git rebase -x ls
git config alias.x y | git submodule foreach ls | git grep -Osh a | git fetch --upload-pack=a . | git LOG | git log\;ls
npm exec a | npm x a | npx a | npm run | npm run -s a | npm --prefix .. run build | npm run-script a
npm run build --script-shell=./a | yarn dlx a | uv run a | uvx a | poetry run a | uv run pytest
cargo run | cargo build --config a
go test -exec a | go build -toolexec=a | go run . | go generate | dotnet exec a.dll | ./tool | tool check | rm a
"""


@rows(*(line for lines in WITHOUT_PREFIX.split("\n") for line in lines.split(" | ") if line))
def test_command_that_starts_other_programs_has_no_prefix(line: str) -> None:
    assert subject_of(line).prefix is None


def test_program_inside_the_workspace_has_a_prefix_only_if_it_is_of_an_environment() -> None:
    python = f"{ROOT}/.venv/bin/python"
    assert subject_of("python -m pytest -q", python).prefix == ("python", "-m", "pytest")
    assert subject_of("python -c x", python).prefix is None
    assert subject_of(".venv/bin/ruff check", f"{ROOT}/.venv/bin/ruff").prefix is None
    assert subject_of("./ls -l", f"{ROOT}/ls") == CallSubject(f"{ROOT}/ls", ("ls",), None)
    assert subject_of("./ls -l", "/usr/bin/ls") == CallSubject("/usr/bin/ls", ("ls",), ("ls",))


EDIT: JsonMap = {"path": "a.py"}
EVERY = "edit_file on every file that no rule denies, except project configuration"
LOG, ANY_GIT, LS, MAKE = (
    f"run_command {words} (/usr/bin/{words.split()[0]}) with any further arguments"
    for words in ("git log", "git", "ls", "make")
)
HOST = "http_get from the host http://b.org"
ECHO = ToolSpec(name="s__echo", description="", parameters={}, effect=Effect.EXECUTE)
EXACTLY = "run_command make test (/usr/bin/make)"
MAKE_TEST = {"approve_prefix": EXACTLY, "approve_for_run": MAKE, "approve_always": EXACTLY}
ALL_GIT = {"approve_prefix": LOG, "approve_for_run": ANY_GIT, "approve_always": LOG}


@rows(
    (WRITE, EDIT, "", {}, {"approve_for_run": EVERY}),
    (WRITE, EDIT, "", {"rule": "project_config"}, {}),
    (WRITE, EDIT, "", {"thread": ""}, {}),
    (RUN, {"argv": ["git", "log", "-3"]}, "/usr/bin/git", {}, ALL_GIT),
    (RUN, {"argv": ["git", "log"]}, "/usr/bin/git", {"workspace": ""}, {**ALL_GIT, "approve_always": None}),
    (RUN, {"argv": ["ls", "-l"]}, "/usr/bin/ls", {}, {"approve_for_run": LS, "approve_always": LS}),
    (RUN, {"argv": ["make", "x"]}, "/usr/bin/make", {}, {"approve_for_run": MAKE}),
    (RUN, {"argv": ["make", "test"]}, "/usr/bin/make", {}, MAKE_TEST),
    *((RUN, {"argv": [name]}, f"/usr/bin/{name}", {}, {}) for name in (f"./{'a' * 300}", "ma\u202eke")),
    (GET, {"url": "http://b.org/"}, "http://b.org", {}, {"approve_for_run": HOST, "approve_always": HOST}),
    (ECHO, {"a": 1}, "", {"rule": "ask_before_run"}, {"approve_for_run": "s__echo, whatever its arguments"}),
)
def test_answer_states_what_it_permits(
    spec: ToolSpec, arguments: JsonMap, subject: str, settings: JsonMap, allowed: dict[str, str | None]
) -> None:
    call = ToolCall(call_id="1", tool=spec.name, arguments=arguments, raw_arguments="")
    where: dict[str, Any] = {"thread": "t", "workspace": ROOT, **settings}
    rule = where.pop("rule", RULES.get(spec.name, ""))
    offered = permissions_for(rule, call, spec, call_subject(call, subject, ROOT), **where)
    expected = [(answer, text) for answer, text in allowed.items() if text]
    assert [(answer, permission.allows) for answer, permission in offered.items()] == expected


@rows(
    ({"prefix": ("git", "log")}, "git log --all", True),
    ({"prefix": ("git", "log")}, "git push", False),
    ({"prefix": ("git", "log")}, "git -c a=b log", False),
    ({"prefix": ("git",)}, "git -c a=b log", True),
    ({"prefix": ("git",)}, "env git", False),  # another name of the same file
    ({"prefix": ("git", "log"), "scope": "workspace"}, "git log", True),
    ({"prefix": ("git",), "scope": "workspace"}, "git log", False),
    ({"prefix": ("git",), "scope": "workspace"}, "git -c a=b log", False),
    ({"prefix": ("git", "log"), "rule": "x"}, "git log", False),
    ({"prefix": ("git", "log"), "tool": "x"}, "git log", False),
    ({"prefix": ("git", "log"), "subject": "/usr/local/bin/git"}, "git log", False),
    ({"prefix": ("git", "log"), "place": "other"}, "git log", False),
)
def test_permission_is_bound_to_rule_tool_program_thread_and_prefix(fields: JsonMap, line: str, covered: bool) -> None:
    git: JsonMap = {"rule": "ask_before_run", "tool": "run_command", "subject": "/usr/bin/git", "place": "t"}
    assert covers(Permission(**{**git, **fields}), "ask_before_run", "run_command", subject_of(line), "t") is covered


def test_permission_for_a_simple_program_does_not_cover_starting_others() -> None:
    find = Permission(
        rule="ask_before_run", tool="run_command", subject="/f", prefix=("find",), scope="workspace", place=ROOT
    )
    assert covers(find, "ask_before_run", "run_command", subject_of("find .", "/f"))
    assert not covers(find, "ask_before_run", "run_command", subject_of(r"find . -exec rm {} \;", "/f"))
