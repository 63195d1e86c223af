"""The URL of the shared store: which database, and never its password."""

import pytest

from nodes.execute_tools.environment import shared_url as module
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.shared_url import is_shared, read_url, shared_url

VARIABLE = "MENDGRAPH_STORE_URL"
WORD = "-".join(("plum", "51@", "orchard"))


@pytest.mark.parametrize("empty", [None, "", "  "])
def test_without_the_variable_nothing_is_shared(empty: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if empty is not None:
        monkeypatch.setenv(VARIABLE, empty)
    assert (is_shared(), shared_url()) == (False, None)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u@db.example:5433/runs", "'runs' on db.example:5433"),
        ("postgres://u:w@db.example/runs", "'runs' on db.example"),
        ("postgresql:///runs?host=%2Frun%2Fpg", "'runs' on /run/pg"),
        ("postgresql://u@/?dbname=runs", "'runs' on this machine"),
        ("postgresql://somebody@h", "'somebody' on h"),
        ("postgresql://h", "'?' on h"),
        ("postgresql://u@h/a%0Ab\x1b[2J", "'a\\nb\\x1b[2J' on h"),
    ],
)
def test_it_is_called_by_its_database_and_host(url: str, name: str) -> None:
    assert read_url(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{WORD.replace('@', '%40')}@h/runs",
        f"postgresql://h/runs?user=u&password={WORD.replace('@', '%40')}",
        f"postgresql://h/runs?sslpassword={WORD.replace('@', '%40')}",
        f"postgresql://{WORD.replace('@', '%40')}:{WORD.replace('@', '%40')}@h",
    ],
)
def test_its_password_is_in_no_form_of_it_that_is_shown(url: str) -> None:
    found = read_url(url)
    assert found.secrets[0] in {WORD, WORD.replace("@", "%40")}
    for text in (found.name, repr(found), found.clean(f"failed for {WORD} and {WORD.replace('@', '%40')}")):
        assert (WORD in text, WORD.replace("@", "%40") in text) == (False, False)
    assert found.clean("one\n\ttwo\x1b[2J three") == "one two [2J three"


@pytest.mark.parametrize("url", ["mysql://u:{}@h/d", "{}", "host=h password={}", "sqlite:///{}", "://{}"])
def test_what_is_no_url_of_postgresql_is_refused_without_a_word_of_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url.format(WORD))
    with pytest.raises(StoreError) as caught:
        shared_url()
    assert str(caught.value) == (
        "MENDGRAPH_STORE_URL is no URL of a PostgreSQL database: write postgresql://user:password@host:5432/database,"
        " or remove the variable."
    )


@pytest.mark.parametrize("url", ["postgresql://u:p@ss/{}:x@h:port/d", "postgresql://u:{}@[h/d"])
def test_what_cannot_be_taken_apart_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        read_url(url.format(WORD))
    assert "cannot be read: write postgresql://" in str(caught.value)
    assert WORD not in str(caught.value)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://h/d")
    for modules in (("no_such_module",), ("no_such_module.inner",)):
        monkeypatch.setattr(module, "_MODULES", modules)
        with pytest.raises(StoreError) as caught:
            shared_url()
        assert str(caught.value) == (
            "MENDGRAPH_STORE_URL names a PostgreSQL database, and what speaks to one is not installed:"
            " pip install 'mendgraph[postgres]'."
        )
