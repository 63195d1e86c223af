import pytest

from nodes.execute_tools.action_arguments import (
    ActionRules,
    check_content,
    check_domain,
    check_extension,
    named_arguments,
    names_a_folder,
)
from nodes.records import Effect, JsonMap

NET = ActionRules(allow_net=True, allowed_domains=frozenset({"api.example.com"}))


@pytest.mark.parametrize(
    ("action", "effect", "access"),
    [
        ("read_file", Effect.READ, "read_file"),
        ("search_in_file", Effect.READ, "read_file"),
        ("list_files", Effect.READ, "list_dir"),
        ("write_file", Effect.WRITE, "write_file"),
        ("append_file", Effect.WRITE, "write_file"),
        ("delete_file", Effect.WRITE, "write_file"),
        ("http_get", Effect.NETWORK, "read_file"),
        ("http_post", Effect.WRITE, "read_file"),
        ("launch_rocket", Effect.WRITE, "read_file"),
    ],
)
def test_what_an_action_does_by_its_name(action: str, effect: Effect, access: str) -> None:
    assert (ActionRules().effect(action), ActionRules().access(action)) == (effect, access)


def test_only_file_actions_name_files() -> None:
    assert ActionRules().path_fields("read_file") == ("file_name", "filename", "path", "target", "directory")
    assert ActionRules().path_fields("http_get") == ActionRules().path_fields("launch_rocket") == ()


@pytest.mark.parametrize("action", ["write_file", "append_file"])
@pytest.mark.parametrize("arguments", [{}, {"content": None}, {"content": 3}])
def test_writers_supply_content(action: str, arguments: JsonMap) -> None:
    with pytest.raises(ValueError, match=r"^Missing or invalid 'content' for write/append operation\.$"):
        check_content(action, arguments)
    check_content(action, {"content": ""})
    check_content("read_file", arguments)


def test_arguments_are_copied_under_their_names() -> None:
    given = {"a": object()}
    found = named_arguments(given)
    assert found == given
    assert found is not given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "the arguments of an action are a mapping, not NoneType"),
        ([("a", 1)], "the arguments of an action are a mapping, not list"),
        ({"a": 1, 5: 1}, "the names of arguments are texts, not int"),
    ],
)
def test_what_has_no_names_is_no_arguments(arguments: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        named_arguments(arguments)


@pytest.mark.parametrize(
    ("action", "field", "folder"),
    [
        ("move_file", "target", True),
        ("move_file", "directory", True),
        ("move_file", "path", False),
        ("delete_file", "target", False),
        ("read_file", "directory", False),
    ],
)
def test_only_what_is_moved_goes_into_a_folder(action: str, field: str, folder: bool) -> None:
    assert names_a_folder(action, field) is folder


@pytest.mark.parametrize("path", ["a.txt", "/x/A.TXT", "b.md"])
def test_allowed_kinds_of_files_pass(path: str) -> None:
    check_extension(ActionRules(allowed_exts=frozenset({".txt", ".md"})), path)


@pytest.mark.parametrize(("path", "extension"), [("a.exe", ".exe"), ("noext", ""), (".txt", ""), ("a.txt.sh", ".sh")])
def test_other_kinds_of_files_are_refused(path: str, extension: str) -> None:
    with pytest.raises(PermissionError, match=f"^Extension '{extension}' not allowed\\.$"):
        check_extension(ActionRules(allowed_exts=frozenset({".txt"})), path)
    check_extension(ActionRules(), path)


@pytest.mark.parametrize("action", ["http_get", "http_post", "fetch_url"])
def test_the_network_is_off_unless_it_is_allowed(action: str) -> None:
    with pytest.raises(PermissionError, match=r"^Network access is disabled in this Environment\.$"):
        check_domain(ActionRules(), action, {"url": "https://api.example.com"})
    check_domain(ActionRules(), "read_file", {"url": "https://api.example.com"})


@pytest.mark.parametrize("arguments", [{}, {"url": ""}, {"url": None}, {"url": 3}])
def test_going_out_needs_an_address(arguments: JsonMap) -> None:
    with pytest.raises(ValueError, match=r"^A non-empty 'url' is required\.$"):
        check_domain(NET, "http_get", arguments)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com/api.example.com",
        "https://api.example.com.evil.com",
        "https://evil.com#api.example.com",
        "https://notapi.example.com",
        "https://api.example.com@evil.com",
        "file:///etc/passwd",
        "//api.example.com",
        "api.example.com",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    with pytest.raises(PermissionError, match=r"not allowed|Only plain http"):
        check_domain(NET, "http_get", {"url": url})


@pytest.mark.parametrize(
    "url", ["https://api.example.com/x", "http://API.example.com:8080", "https://api.example.com."]
)
def test_allowed_hosts_pass(url: str) -> None:
    check_domain(NET, "http_get", {"url": url})


def test_without_a_list_any_host_passes() -> None:
    check_domain(ActionRules(allow_net=True), "http_get", {"url": "https://other.example"})
