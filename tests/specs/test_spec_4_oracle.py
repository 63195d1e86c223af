"""Our Environment beside the code of document 4: the same settings, action and arguments give the same, hooks too."""

import csv
import io
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.documents import Environment
from tests.specs import document_4

Arguments = dict[str, Any]


class Documented(document_4.Environment):
    """The document's Environment, with two corrections.

    Its text ("with 1, up to 2 total tries") wins over its loop, which makes three. A TimeoutError of the action's own
    keeps its words: since Python 3.11 the document's code takes it for one of its worker thread.
    """

    def _run_with_retries(self, action: Any, args: Arguments) -> Any:
        most, self.max_retries = self.max_retries, self.max_retries - 1
        try:
            return super()._run_with_retries(action, args)
        finally:
            self.max_retries = most

    def _run_with_timeout(self, action: Any, args: Arguments, timeout_s: float) -> Any:
        try:
            return super()._run_with_timeout(action, args, timeout_s)
        except TimeoutError as error:
            raise error.__context__ or error from None


BOTH: tuple[type[Any], type[Any]] = Environment, Documented


class Action:
    """Raises one error in each call, then returns its arguments."""

    def __init__(self, name: str, errors: tuple[BaseException, ...]) -> None:
        self.name, self._left = name, list(errors)
        self.calls: list[Arguments] = []

    def execute(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        if self._left:
            raise self._left.pop(0)
        return {"given": arguments, "list": [1, "two", None], "token": "t"}


def divide(args: Arguments) -> Arguments:
    if args["b"] == 0:
        raise ValueError("b must not be 0")
    return {"a": float(args["a"]), "b": args["b"]}


def validate_write(args: Arguments) -> Arguments:
    if not args.get("content"):
        raise ValueError("content must be non-empty")
    return args


BASE: Arguments = {"base_dir": "base"}
NET: Arguments = {"allow_net": True}
HOSTS: Arguments = {"allow_net": True, "allowed_domains": {"api.example.com", "Upper.Example.com"}}
VALIDATORS: Arguments = {"arg_validators": {"write_file": validate_write, "divide": divide}}
AT_ONCE: Arguments = {"retry_backoff_s": 0}
SECRETS: Arguments = {
    "password": "p", "client_secret": "s", "session_token": "t", "api_key": "k", "apikey": "k", "Authorization": "a",
    "bearer": "b", "user": "ann", "tokens": 3, "nested": {"list": [{"password": "p", "n": 1}]},
}  # fmt: skip
LATE = TimeoutError("late")
FILE_ACTIONS = ("read_file", "write_file", "search_in_file", "append_file")
PATHS = ("a.txt", "new/deeper/a.md", "A.TXT", "./x/../a.txt", "../a.txt", "../base-evil/a.txt", "x/../../a.txt",
         "/etc/a.txt", "a.py", "a", ".txt")  # fmt: skip
URLS: tuple[Arguments, ...] = (
    {"url": "https://api.example.com/x?q=1"}, {"url": "http://API.EXAMPLE.COM:8080/"}, {"url": "https://evil.com"},
    {"url": "https://upper.example.com"}, {"url": "https://sub.api.example.com"}, {"url": ""}, {"url": 3}, {},
)  # fmt: skip

Case = tuple[Arguments, str, Arguments, tuple[BaseException, ...]]
"""(settings, action, arguments, what the action raises one after the other)."""

EXTENSIONS: tuple[Any, ...] = (None, [], {".py"}, (".txt", ".md"))

CASES: dict[str, list[Case]] = {
    "any action": [
        ({}, "add", {"a": 1, "b": 2}, ()),
        ({}, "add", {}, ()),
        ({}, "add", {"a": 1}, (ValueError("b is missing"),)),
        ({}, "add", {"a": 1}, (RuntimeError("broken"),)),
        ({}, "add", {"a": 1}, (OSError(28, "No space left"),)),
        ({}, "add", {"a": 1}, (SystemExit("bye"),)),
        ({}, "login", SECRETS, ()),
        ({}, "login", SECRETS, (PermissionError("denied"),)),
    ],
    "paths": [
        *[(BASE, name, {"file_name": path, "content": "c"}, ()) for name in FILE_ACTIONS for path in PATHS],
        (BASE, "read_file", {"file_name": "a.txt"}, (FileNotFoundError(2, "No such file or directory", "a.txt"),)),
        (BASE, "copy_file", {"source": "../a.exe", "target": "/etc/x"}, ()),
        (BASE, "read_file", {}, ()),
        (BASE, "read_file", {"other": 1}, ()),
        ({"base_dir": "not/there"}, "write_file", {"file_name": "a.txt", "content": "c"}, ()),
        ({"base_dir": "not/there"}, "write_file", {"file_name": "../a.txt", "content": "c"}, ()),
        ({"base_dir": "not/there"}, "read_file", {"file_name": "../there-evil/a.txt"}, ()),
        ({"base_dir": ""}, "read_file", {"file_name": "../a.txt"}, ()),
        *[({}, "read_file", {"file_name": path}, ()) for path in ("a.txt", "../a.txt", "/etc/a.txt", "/etc/passwd")],
    ],
    "extensions": [
        ({**BASE, "allowed_exts": exts}, "read_file", {"file_name": name}, ())
        for exts in EXTENSIONS
        for name in ("a.exe", "a", "a.py", "a.PY", "a.txt", "a.md")
    ],
    "contents": [
        ({}, name, args, ())
        for name in ("write_file", "append_file")
        for args in ({}, {"content": 3}, {"content": None}, {"content": ""}, {"file_name": "a.txt"},
                     {"file_name": "a.py"}, {"file_name": "a.txt", "content": "c"})
    ],
    "network": [
        *[(settings, name, args, ())
          for settings in ({}, {"allowed_domains": ["api.example.com"]}, NET, HOSTS)
          for name in ("http_get", "http_post", "fetch_url")
          for args in URLS],
        (NET, "download", {"url": ""}, ()),
    ],
    "validators": [
        (VALIDATORS, "divide", {"a": 1, "b": 2}, ()),
        (VALIDATORS, "divide", {"a": 1, "b": 0}, ()),
        (VALIDATORS, "divide", {"a": 1}, ()),
        (VALIDATORS, "write_file", {"file_name": "a.txt", "content": ""}, ()),
        (VALIDATORS, "write_file", {"file_name": "a.txt", "content": "c"}, ()),
        (VALIDATORS, "write_file", {"file_name": "a.exe", "content": ""}, ()),
    ],
    "retries": [
        *[({**AT_ONCE, "max_retries": most}, name, {"file_name": "a.txt"}, (LATE,) * failures)
          for most in (0, 1, 3) for failures in (1, 2, 4) for name in ("read_file", "search_in_file", "custom")],
        *[({**AT_ONCE, **NET}, "http_get", {"url": "https://x.org"}, (LATE,) * failures) for failures in (1, 2)],
        (AT_ONCE, "custom", {}, (ConnectionError("reset"),)),
        ({**AT_ONCE, "retry_exceptions": (ConnectionError,)}, "custom", {}, (ConnectionError("reset"),)),
        ({**AT_ONCE, "retry_exceptions": (ConnectionError,)}, "custom", {}, (LATE,)),
        ({**AT_ONCE, "retry_exceptions": ()}, "custom", {}, (LATE,)),
        ({**AT_ONCE, "retry_exceptions": (ValueError, KeyError)}, "custom", {}, (KeyError("k"),)),
    ],
    "examples": [
        *[({"base_dir": "/content/docs", "allowed_exts": {".txt", ".md"}}, "read_file", {"file_name": name}, ())
          for name in ("notes.txt", "a.py", "../x.txt")],
        *[({"allow_net": True, "allowed_domains": {"api.example.com"}, "timeout_s": 5.0}, "http_get", args, ())
          for args in URLS],
        *[({"arg_validators": {"write_file": validate_write}}, "write_file",
           {"file_name": "a.txt", "content": content}, ()) for content in ("", "x")],
        *[({"max_retries": 1, "retry_backoff_s": 0.01, "retry_exceptions": (TimeoutError,)}, "fetch", {}, errors)
          for errors in ((LATE,), (LATE, LATE), (ConnectionError("reset"),))],
    ],
}  # fmt: skip

Outcome = tuple[Arguments, list[Arguments], list[Arguments], Arguments]


def shared(record: Arguments) -> Arguments:
    """What must be equal in both: the time differs, the document's retries are always 0, ours has an error type."""
    return {key: value for key, value in record.items() if key not in {"ms", "retries", "error_type"}}


def outcome_of(
    environment_type: type[Any], settings: Arguments, name: str, args: Arguments, errors: tuple[BaseException, ...]
) -> Outcome:
    """The result, the log, what the action was called with, and the caller's arguments afterwards."""
    records: list[Arguments] = []
    action, arguments = Action(name, errors), dict(args)
    result = environment_type(**settings, logger=records.append).execute_action(action, arguments)
    return shared(result), [shared(record) for record in records], action.calls, arguments


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a `base` in it, and one beside that has the same beginning."""
    for folder in ("base", "base-evil"):
        (tmp_path.resolve() / folder).mkdir()
    monkeypatch.chdir(tmp_path.resolve())
    return tmp_path.resolve()


@pytest.mark.parametrize("group", CASES)
def test_action_ends_as_in_the_document(group: str) -> None:
    """The expected result is that of the document's code."""
    assert [case for case in CASES[group] if outcome_of(Environment, *case) != outcome_of(Documented, *case)] == []


texts = st.sampled_from(["", "x", "two words", "a.txt", "../a.txt"])
values = st.recursive(
    texts | st.integers(-3, 3) | st.booleans() | st.none() | st.floats(0, 1),
    lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({}, optional={"password": texts, "note": inner}),
    max_leaves=6,
)
settings_of_it = st.sampled_from(
    [{}, BASE, {**BASE, "allowed_exts": None}, {"base_dir": "not/there"}, NET, HOSTS, VALIDATORS, {"allowed_exts": []}]
)
arguments_of_it = st.fixed_dictionaries(
    {},
    optional={
        "file_name": st.sampled_from(PATHS),
        "url": st.sampled_from([arguments.get("url", "http://a.b") for arguments in URLS]),
        "content": values,
        "b": st.integers(0, 1),
        "token": texts,
        "user": values,
    },
)
failures = st.lists(
    st.sampled_from([ValueError("v"), KeyError("k"), OSError(28, "No space left"), LATE, ConnectionError("reset")]),
    max_size=3,
)


@given(
    settings_of_it,
    st.sampled_from([*FILE_ACTIONS, "http_get", "http_post", "fetch_url", "divide", "login"]),
    arguments_of_it,
    failures,
)
def test_any_action_ends_as_in_the_document(
    settings: Arguments, name: str, args: Arguments, errors: list[BaseException]
) -> None:
    """On JSON values, with texts under the names of secrets. A timeout of what changes something is left out."""
    changing = name in {"write_file", "append_file", "http_post"}
    case = {**settings, **AT_ONCE}, name, args, tuple(error for error in errors if not (changing and error is LATE))
    assert outcome_of(Environment, *case) == outcome_of(Documented, *case)


DATABASE = sqlite3.connect(":memory:", check_same_thread=False)
CONSUMABLE: dict[str, Callable[[], Any]] = {
    "generator": lambda: (letter for letter in "ab"),
    "map": lambda: map(str, [1, 2]),
    "zip": lambda: zip([1, 2], [1, 2], strict=True),
    "text": lambda: io.StringIO("a\nb\n"),
    "csv": lambda: csv.reader(io.StringIO("a,b\nc,d")),
    "cursor": lambda: DATABASE.execute("select 1 union select 2"),
    "matches": lambda: re.finditer("a", "aa"),
    "values": {1: 2}.values,
}


@pytest.mark.parametrize("make", CONSUMABLE.values(), ids=CONSUMABLE)
def test_iterators_reach_the_action_and_the_caller_unconsumed(make: Callable[[], Any]) -> None:
    """As in the document, alone and in a map or a list: how many items are left of each."""

    class Rows:
        name = "rows"

        def execute(self, value: Any) -> Any:
            self.left = len(list(value))
            return make()

    class Nested(Rows):
        def execute(self, value: Any) -> Any:
            return [super().execute(value), {"rows": make()}]

    def remaining_items(environment_type: type[Any]) -> tuple[type[Any], list[int]]:
        environment = environment_type(logger=lambda _: None)
        action, nested = Rows(), Nested()
        alone = environment.execute_action(action, {"value": make()})["data"]
        listed, mapped = environment.execute_action(nested, {"value": make()})["data"]
        return type(alone), [action.left, nested.left, *(len(list(items)) for items in (alone, listed, mapped["rows"]))]

    assert remaining_items(Environment) == remaining_items(Documented)
    assert min(remaining_items(Environment)[1]) > 0


def test_retries_count_the_repeated_attempts() -> None:
    for most in (0, 1, 3):
        action = Action("custom", (LATE,) * 9)
        result = Environment(max_retries=most, retry_backoff_s=0).execute_action(action, {})
        assert (len(action.calls), result["retries"], result["error_type"]) == (most + 1, most, "TimeoutError")


def test_result_and_record_have_the_documents_fields_in_order() -> None:
    """Behind them stands the type of the error, which the document proposes to add."""
    failures: list[tuple[BaseException, ...]] = [(), (RuntimeError("broken"),)]
    for errors in failures:
        records: list[Arguments] = []
        ours, theirs = (
            environment_type(logger=records.append).execute_action(Action("add", errors), {})
            for environment_type in BOTH
        )
        assert list(ours) == [*theirs, "error_type"]
        assert list(records[0]) == [*records[1], "error_type"]
        assert type(ours["ms"]) is type(theirs["ms"]) is type(records[0]["ms"]) is int


def test_backoff_grows_as_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def pauses(environment_type: type[Any]) -> list[float]:
        slept: list[float] = []
        monkeypatch.setattr("time.sleep", slept.append)
        environment_type(max_retries=3, retry_backoff_s=0.5).execute_action(Action("custom", (LATE,) * 3), {})
        return slept

    assert pauses(Environment) == pauses(Documented) == [0.5, 1.0, 1.5]


def test_slow_action_ends_as_in_the_document() -> None:
    """The document's own class: its loop makes one try more than its text says."""

    class Sleeps(Action):
        def execute(self, **arguments: Any) -> Any:
            time.sleep(0.3)
            return super().execute(**arguments)

    ours = Environment(timeout_s=0.1, max_retries=0).execute_action(Sleeps("sleeps", ()), {"a": 1})
    theirs = document_4.Environment(timeout_s=0.1, max_retries=-1).execute_action(Sleeps("sleeps", ()), {"a": 1})
    assert shared(ours) == shared(theirs)
    assert ours["error"] == "Action 'sleeps' timed out after 0.1s"


def test_action_without_a_name_is_named_as_in_the_document() -> None:
    nameless: Any = object()
    ours, theirs = (
        shared(environment_type().execute_action(nameless, {"a": 1})) for environment_type in (Environment, Documented)
    )
    assert {**ours, "error": ""} == {**theirs, "error": ""}
    assert ours["action"] == "<unknown>"


# --- Subclasses-----


def prepare_args(_: Any, action_name: str, args: Arguments) -> Arguments:
    if action_name == "stop":
        raise PermissionError("stopped")
    return {**args, "by": action_name}


def run_with_retries(_: Any, action: Any, args: Arguments) -> Any:
    return ["instead", action.name, args]


def run_with_timeout(_: Any, action: Any, args: Arguments, timeout_s: float) -> Any:
    return [action.execute(**args), timeout_s]


def safe_path(_: Any, file_name: str) -> str:
    if file_name == "no":
        raise PermissionError("Not this file.")
    return f"/somewhere/{file_name}"


def check_extension(_: Any, full_path: str) -> None:
    if full_path.endswith(".txt"):
        raise PermissionError(f"No texts: {Path(full_path).name}")


def check_domain(_: Any, url: str) -> None:
    if "evil" in url:
        raise PermissionError(f"Not there: {url}")


def redact(_: Any, obj: Any) -> Any:
    return {key: value for key, value in obj.items() if key != "password"} if isinstance(obj, dict) else obj


HOOKS: list[tuple[str, Any, list[Case]]] = [
    ("_prepare_args", prepare_args, [({}, "add", {"a": 1}, ()), ({}, "stop", {"a": 1}, ())]),
    ("_run_with_retries", run_with_retries, [({}, "add", {"a": 1}, ())]),
    ("_run_with_timeout", run_with_timeout, [
        ({"timeout_s": 3}, "add", {"a": 1}, ()),
        (AT_ONCE, "custom", {}, (LATE,)),
    ]),
    ("_safe_path", safe_path, [
        (BASE, "read_file", {"file_name": "a.txt"}, ()), (BASE, "read_file", {"file_name": "no"}, ()),
    ]),
    ("_check_extension", check_extension, [
        (BASE, "read_file", {"file_name": "a.txt"}, ()), (BASE, "read_file", {"file_name": "a.exe"}, ()),
    ]),
    ("_check_domain", check_domain, [
        (HOSTS, "http_get", {"url": "https://x.org"}, ()), (NET, "http_get", {"url": "https://evil.com"}, ()),
    ]),
    ("_redact", redact, [({}, "login", {"password": "p", "api_key": "k"}, ())]),
]  # fmt: skip


@pytest.mark.parametrize(("hook", "override", "cases"), HOOKS, ids=[hook for hook, *_ in HOOKS])
def test_subclass_may_override_each_hook_of_the_document(hook: str, override: Any, cases: list[Case]) -> None:
    ours, theirs = (
        type("Own", (environment_type,), {hook: override}) for environment_type in (Environment, Documented)
    )
    for case in cases:
        assert outcome_of(ours, *case) == outcome_of(theirs, *case)
        assert outcome_of(ours, *case) != outcome_of(Environment, *case)


@pytest.mark.parametrize("environment_type", [Environment, Documented])
def test_subclass_may_redact_other_names_and_log_differently(environment_type: type[Any]) -> None:
    events: list[str] = []
    subclass: Any = type(
        "Own",
        (environment_type,),
        {"_REDACT_KEYS": re.compile("user"), "_log": lambda _, record: events.append(record["event"])},
    )
    result = subclass().execute_action(Action("login", ()), {"password": "p", "user": "ann", "n": 1})
    assert (result["args"]["user"], result["args"]["n"]) == ("***", 1)
    assert result["args"]["password"] == ("***" if environment_type is Environment else "p")
    subclass().execute_action(Action("add", (ValueError("v"),)), {})
    assert events == ["action_ok", "action_error"]


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("_prepare_args", ("read_file", {"file_name": "a.txt"})),
    ("_prepare_args", ("read_file", {"file_name": "../a.txt"})),
    ("_prepare_args", ("http_get", {"url": "https://x.org"})),
    ("_safe_path", ("a.txt",)),
    ("_safe_path", ("../a.txt",)),
    ("_check_extension", ("/x/a.md",)),
    ("_check_extension", ("/x/a.exe",)),
    ("_check_domain", ("https://api.example.com/x",)),
    ("_check_domain", ("https://evil.com",)),
    ("_redact", ({"password": "p", "list": [{"token": "t"}], "n": 1},)),
    ("_redact", (["plain"],)),
    ("_run_with_retries", (Action("custom", ()), {"a": 1})),
    ("_run_with_timeout", (Action("custom", ()), {"a": 1}, 5.0)),
]


def test_hook_behaves_as_in_the_document() -> None:
    def ended(environment_type: type[Any], hook: str, arguments: tuple[Any, ...]) -> tuple[Any, str]:
        environment = environment_type(base_dir="base", allowed_domains={"api.example.com"})
        try:
            return getattr(environment, hook)(*arguments), ""
        except (PermissionError, ValueError) as error:
            return type(error).__name__, str(error)

    assert [call for call in CALLS if ended(Environment, *call) != ended(Documented, *call)] == []


# --- Live attributes


def wait_three_seconds(environment: Any) -> None:
    """Let each attempt return its timeout."""
    environment.timeout_s, environment._run_with_timeout = 3, lambda _, __, timeout_s: timeout_s


CHANGES: list[tuple[str, Callable[[Any], Any], Case]] = [
    ("base_dir", lambda env: setattr(env, "base_dir", None), (BASE, "read_file", {"file_name": "../a.txt"}, ())),
    ("allowed_exts", lambda env: env.allowed_exts.add(".py"), (BASE, "read_file", {"file_name": "a.py"}, ())),
    ("allow_net", lambda env: setattr(env, "allow_net", True), ({}, "http_get", {"url": "https://x.org"}, ())),
    ("allowed_domains", lambda env: env.allowed_domains.add("x.org"),
     (HOSTS, "http_get", {"url": "https://x.org"}, ())),
    ("timeout_s", wait_three_seconds, ({}, "custom", {}, ())),
    ("max_retries", lambda env: setattr(env, "max_retries", 2),
     (AT_ONCE, "custom", {}, (LATE,) * 2)),
    ("retry_exceptions", lambda env: setattr(env, "retry_exceptions", (KeyError,)),
     (AT_ONCE, "custom", {}, (KeyError("k"),))),
    ("arg_validators", lambda env: env.arg_validators.update(divide=divide), ({}, "divide", {"a": 1, "b": 0}, ())),
    ("logger", lambda env: setattr(env, "logger", None), ({}, "add", {}, ())),
]  # fmt: skip


@pytest.mark.parametrize(("attribute", "change", "case"), CHANGES, ids=[attribute for attribute, *_ in CHANGES])
def test_later_change_of_an_attribute_takes_effect(attribute: str, change: Callable[[Any], Any], case: Case) -> None:
    assert attribute in vars(Documented())

    def changed(environment_type: type[Any]) -> type[Any]:
        class Changed(environment_type):  # type: ignore[misc]
            def __init__(self, **settings: Any) -> None:
                super().__init__(**settings)
                change(self)

        return Changed

    ours, theirs = outcome_of(changed(Environment), *case), outcome_of(changed(Documented), *case)
    assert ours == theirs
    assert ours != outcome_of(Environment, *case)
