from pathlib import Path

import pytest

from mendgraph.graph.configuration.loading import load_prices
from mendgraph.nodes.call_model.prices import Price, PriceList, find_price
from mendgraph.nodes.records import ToolError, ToolErrorCode

MINE = '[mine]\n"gpt-4o" = { input = 1, output = 2 }\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setattr("platformdirs.user_config_dir", lambda name, appauthor: str(folder))  # noqa: ARG005
    return folder


def price(name: str) -> Price | None:
    prices = load_prices()
    assert isinstance(prices, PriceList)
    return find_price(prices, name)


@pytest.mark.usefixtures("config")
def test_without_a_file_of_the_users_the_shipped_prices_hold() -> None:
    assert price("gpt-4o") == Price(input=2.5, output=10.0, cached_input=1.25)
    assert price("gpt-9") is None


def test_the_users_file_replaces_single_prices(config: Path) -> None:
    (config / "prices.toml").write_text(MINE, encoding="utf-8")
    assert price("gpt-4o") == Price(input=1, output=2)
    assert price("gpt-4o-mini") == Price(input=0.15, output=0.6, cached_input=0.075)


def test_a_named_file_is_read_instead(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config / "prices.toml").write_text("broken", encoding="utf-8")
    (tmp_path / "other.toml").write_text(MINE, encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_PRICES", str(tmp_path / "other.toml"))
    assert price("gpt-4o") == Price(input=1, output=2)


def test_a_named_file_has_to_be_there(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config / "prices.toml").write_text(MINE, encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_PRICES", "/none.toml")
    message = (
        "Cannot read '/none.toml': there is no such file or directory. Mend what MENDGRAPH_PRICES says, or leave it"
        " empty."
    )
    assert load_prices() == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def test_a_broken_file_is_an_error(config: Path) -> None:
    path = config / "prices.toml"
    path.write_text("[mine]\nx = 5", encoding="utf-8")
    message = (
        f"The price list {str(path)!r} cannot be used: 'x' in [mine] has to be a table like"
        " { input = 2.5, output = 10.0 }. Mend it, or move it away."
    )
    assert load_prices() == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    path.unlink()
    path.mkdir()
    message = f"Cannot read {str(path)!r}: it is a directory, and a file is needed."
    assert load_prices() == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_user_without_a_home_has_the_shipped_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str, appauthor: bool) -> str:
        raise RuntimeError(name, appauthor)

    monkeypatch.setattr("platformdirs.user_config_dir", homeless)
    assert price("gpt-4o") == Price(input=2.5, output=10.0, cached_input=1.25)
