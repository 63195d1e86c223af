"""What an answer allows beside the call that was shown, and for which calls that counts."""

import shlex
from typing import Literal

import pytest

from mendgraph.nodes.guard.permissions import Matter, Permission, command_prefix, covers, matter_of, permissions_for
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolSpec

ROOT = "/home/dev/project"
WRITE = ToolSpec(name="edit_file", description="", parameters={}, effect=Effect.WRITE)
RUN = ToolSpec(name="run_command", description="", parameters={}, effect=Effect.EXECUTE)
GET = ToolSpec(name="http_get", description="", parameters={}, effect=Effect.NETWORK)
RULES = {"edit_file": "ask_before_write", "run_command": "ask_before_run", "http_get": "ask_before_network"}


def prefix(line: str) -> str | None:
    name, *arguments = shlex.split(line)
    found = command_prefix(name, arguments)
    return None if found is None else shlex.join(found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ls -la src", "ls"),
        ("cat a.py b.py", "cat"),
        ("find . -name x.py", "find"),
        ("git log -3 main", "git log"),
        ("npm run build -- --watch", "npm run build"),
        ("npm test", "npm test"),
        ("pnpm run test:unit", "pnpm run test:unit"),
        ("cargo build --release", "cargo build"),
        ("pytest -q tests", "pytest"),
    ],
)
def test_simple_command_has_its_program_and_subcommand_as_prefix(line: str, expected: str) -> None:
    assert prefix(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        *(
            "python a.py",
            "python3.12 -c 1",
            "pypy3 a.py",
            "node a.js",
            "deno run a.ts",
            "sh a",
            "bash -c ls",
            "zsh",
            "perl -e 1",
        ),
        *(
            "ruby a.rb",
            "php a.php",
            "lua a.lua",
            "awk 1 a",
            "sed e a",
            "busybox ls",
            "irb",
            "Rscript a.R",
            "java -jar a.jar",
        ),
        *(
            "env ls",
            "sudo ls",
            "xargs ls",
            "time ls",
            "nohup ls",
            "timeout 5 ls",
            "nice ls",
            "stdbuf -o0 ls",
            "setsid ls",
        ),
        *("find . -exec rm {} ;", "find . -execdir a ;", "find . -ok rm ;", "find . -delete", "find . -fprintf a b"),
        *(
            "rg --pre=sh a",
            "rg --pre sh a",
            "watch ls",
            "parallel ls",
            "ssh host",
            "docker run a",
            "gdb a",
            "vim a",
            "less a",
        ),
        *(
            "make test",
            "gmake",
            "just test",
            "rake",
            "gradle build",
            "mvn test",
            "ninja",
            "cmake --build .",
            "tox",
            "nox",
        ),
        *(
            "git -c alias.x=!ls x",
            "git -C .. log",
            "git --exec-path=. log",
            "git",
            "git bisect run ls",
            "git rebase -x ls",
        ),
        *(
            "git config alias.x y",
            "git submodule foreach ls",
            "npm exec a",
            "npm x a",
            "npx a",
            "npm run",
            "npm run -s a",
        ),
        *(
            "npm --prefix .. run build",
            "npm run-script a",
            "yarn dlx a",
            "uv run a",
            "uvx a",
            "poetry run a",
            "cargo run",
        ),
        *(
            "git grep -Osh a",
            "git fetch --upload-pack=a .",
            "npm run build --script-shell=./a",
            "go test -exec a",
            "go build -toolexec=a",
            "cargo build --config a",
            "go run .",
            "go generate",
            "dotnet exec a.dll",
            "./tool",
            "tool check",
            "rm a",
            "git LOG",
            "git log;ls",
        ),
    ],
)
def test_what_starts_other_programs_has_no_prefix(line: str) -> None:
    assert prefix(line.replace(";", r"\;")) is None


def test_program_of_the_workspace_has_no_prefix() -> None:
    call = command("./ls", "-l")
    assert matter_of(call, f"{ROOT}/ls", ROOT) == Matter(f"{ROOT}/ls", ("ls",), None)
    assert matter_of(call, "/usr/bin/ls", ROOT) == Matter("/usr/bin/ls", ("ls",), ("ls",))


def command(*argv: str) -> ToolCall:
    return ToolCall(call_id="1", tool="run_command", arguments={"argv": list(argv)}, raw_arguments="")


def offered(
    spec: ToolSpec, arguments: JsonMap, subject: str, *, rule: str = "", thread: str = "t", kept: bool = True
) -> dict[str, str]:
    call = ToolCall(call_id="1", tool=spec.name, arguments=arguments, raw_arguments="")
    matter = matter_of(call, subject, ROOT)
    place = ROOT if kept else ""
    found = permissions_for(rule or RULES[spec.name], call, spec, matter, thread=thread, workspace=place)
    return {answer: each.allows for answer, each in found.items()}


def test_answers_say_what_they_allow() -> None:
    every = "edit_file on every file that no rule denies, except project configuration"
    assert offered(WRITE, {"path": "a.py"}, "") == {"approve_for_run": every}
    log = "run_command git log (/usr/bin/git) with any further arguments"
    assert offered(RUN, {"argv": ["git", "log", "-3"]}, "/usr/bin/git") == {
        "approve_prefix": log,
        "approve_for_run": "run_command git (/usr/bin/git) with any further arguments",
        "approve_always": log,
    }
    ls = "run_command ls (/usr/bin/ls) with any further arguments"
    assert offered(RUN, {"argv": ["ls", "-l"]}, "/usr/bin/ls") == {"approve_for_run": ls, "approve_always": ls}
    make = "run_command make (/usr/bin/make) with any further arguments"
    assert offered(RUN, {"argv": ["make", "x"]}, "/usr/bin/make") == {"approve_for_run": make}
    host = "http_get from the host http://b.org"
    assert offered(GET, {"url": "http://b.org/"}, "http://b.org") == {"approve_for_run": host, "approve_always": host}
    tool = ToolSpec(name="s__echo", description="", parameters={}, effect=Effect.EXECUTE)
    assert offered(tool, {"a": 1}, "", rule="ask_before_run") == {"approve_for_run": "s__echo, whatever its arguments"}


def test_where_nothing_is_kept_no_answer_allows_it() -> None:
    assert list(offered(RUN, {"argv": ["git", "log"]}, "/usr/bin/git", kept=False)) == [
        "approve_prefix",
        "approve_for_run",
    ]


@pytest.mark.parametrize("name", [f"./{'a' * 300}", "ma\u202eke"])
def test_program_whose_name_cannot_be_shown_is_asked_about_each_time(name: str) -> None:
    assert offered(RUN, {"argv": [name]}, f"/usr/bin/{name}") == {}


def test_project_configuration_and_a_run_without_a_thread_are_asked_for_each_time() -> None:
    assert offered(WRITE, {"path": "a.toml"}, "", rule="project_config") == {}
    assert offered(WRITE, {"path": "a.py"}, "", thread="") == {}


GIT: JsonMap = {"rule": "ask_before_run", "tool": "run_command", "subject": "/usr/bin/git"}


@pytest.mark.parametrize(
    ("scope", "words", "argv", "expected"),
    [
        ("thread", ("git", "log"), ("git", "log", "--all"), True),
        ("thread", ("git", "log"), ("git", "push"), False),
        ("thread", ("git", "log"), ("git", "-c", "a=b", "log"), False),
        ("thread", ("git",), ("git", "-c", "a=b", "log"), True),
        ("workspace", ("git", "log"), ("git", "log"), True),
        ("workspace", ("git",), ("git", "log"), False),
        ("workspace", ("git",), ("git", "-c", "a=b", "log"), False),
        ("thread", ("git",), ("env", "git"), False),  # another name of the same file
    ],
)
def test_permission_is_for_commands_that_begin_with_its_words(
    scope: Literal["thread", "workspace"], words: tuple[str, ...], argv: tuple[str, ...], expected: bool
) -> None:
    permission = Permission(**GIT, prefix=words, scope=scope, place="t")
    matter = matter_of(command(*argv), "/usr/bin/git", ROOT)
    assert covers(permission, "ask_before_run", "run_command", matter, "t") is expected


@pytest.mark.parametrize(
    "change", [{"rule": "x"}, {"tool": "x"}, {"subject": "/usr/local/bin/git"}, {"place": "other"}]
)
def test_permission_is_for_one_rule_tool_program_and_thread(change: JsonMap) -> None:
    permission = Permission(**{**GIT, "prefix": ("git", "log"), "place": "t", **change})
    matter = matter_of(command("git", "log"), "/usr/bin/git", ROOT)
    assert not covers(permission, "ask_before_run", "run_command", matter, "t")


def test_permission_for_a_simple_program_is_not_for_what_starts_others() -> None:
    find = Permission(
        rule="ask_before_run", tool="run_command", subject="/f", prefix=("find",), scope="workspace", place=ROOT
    )
    plain, starting = command("find", "."), command("find", ".", "-exec", "rm", "{}", ";")
    assert covers(find, "ask_before_run", "run_command", matter_of(plain, "/f", ROOT))
    assert not covers(find, "ask_before_run", "run_command", matter_of(starting, "/f", ROOT))
