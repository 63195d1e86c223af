"""Which command lines are one simple command or a list of such, and which prefixes of commands may be allowed."""

from mendgraph.nodes.language.command_lines import (
    LONGEST_LINE,
    command_argv,
    is_command_prefix,
    listed_forms,
    prefix_of,
    simple_words,
)
from mendgraph.nodes.language.command_lists import listed_commands
from tests.row_tables import rows


@rows(
    ("git log -3 HEAD~2", ["git", "log", "-3", "HEAD~2"]),
    ("  pytest tests/a.py::test_b --cov=src \n", ["pytest", "tests/a.py::test_b", "--cov=src"]),
    ("git commit -m 'one\ntwo' \"a b\" ''", ["git", "commit", "-m", "one\ntwo", "a b", ""]),
    ("'ls' 5 -5 é", ["ls", "5", "-5", "é"]),
)
def test_simple_command_is_split_into_its_words(line: str, words: list[str]) -> None:
    assert simple_words(line) == words
    assert command_argv("run_shell", {"command": line}) == words


COMPOUND = r"""
ls | wc   ls && rm a   ls || rm a   ls; rm a   ls;   ls &   ! ls   (ls)   { ls; }   if ls; then ls; fi   a() { ls; }
ls > a   ls 2>&1   cat < a   cat <<< a   A=1 ls   A=1   ls $a   ls "$a"   ls ${a}   ls $(a)   ls `a`   ls "`a`"
diff <(ls) a   ls *.py   ls a?   ls [ab]   ls {a,b}   ls ~/a   ls --a=~/b   ls a:~/b   ls a\ b   \ls   ls "a\"b"
echo $'a'   echo $"a"   ls a'b'c   ls # a   [ -f a ]   [[ -f a ]]   export A=1   unset A   cd a   eval ls   exec ls
source a   . a   command ls   builtin ls   time ls   trap ls EXIT   ls 'a   ls "a   ''   "" ls   ls "!a"   ls a^b;
"""


@rows(
    *(line for lines in COMPOUND.split("\n") for line in lines.split("   ") if line),
    "ls\nrm a",
    "ls\r",
    "cat <<E\na\nE",
    "",
)
def test_any_other_line_is_run_by_the_shell(line: str) -> None:
    assert simple_words(line) == []
    assert command_argv("run_shell", {"command": line}) == ["bash", "-c", line]


def test_long_line_is_run_by_the_shell_without_parsing() -> None:
    assert simple_words("<<E\n" * 25_000) == []
    assert simple_words(f"ls {'a' * LONGEST_LINE}") == []


@rows(
    ("npm test 2>&1 | tail -30", "npm test"),
    ("cd sub && pytest -q 'a b.py' 2>&1 | tail -n 20; echo done", "pytest -q a b.py"),
    ("ruff check . && mypy a || true", "ruff check .  mypy a"),
    ("make test >/dev/null 2>&1", "make test"),
    (r"pytest|grep -A 3 -iE '^(FAILED|E  )|\d'|sort -u|uniq -c|head -c 9|wc -l|cat", "pytest"),
    ("ls; cat a", "ls  cat a"),
    ("ls", "ls"),
)
def test_list_starts_its_commands_and_filters(line: str, commands: str) -> None:
    assert "  ".join(" ".join(words) for words in listed_commands(line)) == commands


ELSEWHERE = (
    "cd .. && ls   cd a/../.. && ls   cd /a && ls   cd - && ls   cd && ls   cd ~ && ls   cd a && ./ls   cd a b && ls"
)
FILES = """
ls | cat a   ls | head a   ls | tail 20   ls | head -n 3 a   ls | wc a   ls | sort -o a   ls | uniq - a   ls | tail -f
ls | grep x a   ls | grep -r x   ls | grep -f a x   ls | grep -e x a   ls | grep   ls | grep -x   ls | tee a   ls | sh
ls > a   ls >> a   ls < a   ls 2>a   ls >&a   ls > /dev/null/a   ls <<< a   ls |& cat
ls | head - 5   ls | tail - +5   ls >\u00a0/dev/null   make test >/dev /null   make test >/dev/null \u00a0
"""
OTHER = (
    "echo a   true   cd a   | ls   ls &   ls & ls   ls; $a   ls | $a   a=1 ls; ls   (ls)   ! ls | cat   ls 'a   ls # a"
)


@rows(
    *(line for lines in f"{ELSEWHERE}\n{FILES}\n{OTHER}".split("\n") for line in lines.split("   ") if line), "ls\nls"
)
def test_line_that_does_anything_else_is_no_list(line: str) -> None:
    assert listed_commands(line) == ()


def test_command_of_another_tool_is_not_a_command_line() -> None:
    assert command_argv("server__run", {"command": "ls"}) == []


@rows("git log", "pytest", ".venv/bin/ruff check", "npm run build", "python -m pytest")
def test_prefix_of_simple_commands_can_be_allowed(line: str) -> None:
    assert is_command_prefix(line)


@rows("python", "bash", "make", "git", "git -c a=b", "ls -l", "env ls", "git log | ls", "xargs", "npm run", "")
def test_prefix_that_could_start_other_programs_cannot_be_allowed(line: str) -> None:
    assert not is_command_prefix(line)


@rows(
    *("npm run -- lint", "cargo build -qZx", "git diff --outp=a", "git branch --edit-description", "pytest -qp x"),
    *("file -zC", "mypy --python-exec=a", "pyright --pythonpath a", "go build -ldflags=-x", "find -delete"),
)
def test_command_with_an_unsafe_option_has_no_prefix(line: str) -> None:
    assert prefix_of(simple_words(line)) is None


@rows(
    ("git log -3", "git log"),
    ("python -m pytest -q", "python -m pytest, pytest"),
    ("python3 -m mypy a.py", "python3 -m mypy, python -m mypy, mypy"),
    (".venv/bin/python -m pytest", ".venv/bin/python -m pytest, python -m pytest, .venv/bin/pytest"),
    ("venv/bin/python3 manage.py test", "venv/bin/python3 manage.py test, python manage.py test"),
    ("tools/python -m pytest", "tools/python -m pytest, tools/pytest"),
    ("/opt/python manage.py test", "/opt/python manage.py test"),
    ("python -m pytest -p a", ""),
    ("python a.py", ""),
)
def test_command_is_allowed_by_any_of_its_forms(line: str, forms: str) -> None:
    assert ", ".join(listed_forms(simple_words(line))) == forms
