import pytest

from mendgraph.nodes.execute_tools.secrets.keys import assignment_spans, fold

S = "x8KqqP2zz1"


def taken(text: str) -> list[str]:
    return sorted({text[start:end] for start, end in assignment_spans(text, fold(text))})


@pytest.mark.parametrize("name", ["password", "DB_PASSWORD", "clientSecret", "api-key", "x_access_token", "Cookie"])
@pytest.mark.parametrize(
    "text",
    [
        f"{{}}={S}", f"{{}}={S} next", f"  {{}}: {S}\n", f"export {{}}={S}", f"{{}} = '{S}'", f'{{}}="{S}",',
        f'{{}}: str = "{S}"', f'{{}}: Optional[str] = "{S}"', f"{{}} := `{S}`", f":{{}} => '{S}'", f'"{{}}": "{S}"',
        f'\\"{{}}\\": \\"{S}\\"', f'\\\\\\"{{}}\\\\\\": \\\\\\"{S}\\\\\\"', f'os.environ["{{}}"] = "{S}"',
        f"define('{{}}', '{S}')", f"<{{}}>{S}</a>", f"run --{{}} {S} more", f"run --{{}}={S}",
        f"one\\n--{{}} {S}\\ntwo", f"?{{}}={S}&page=2", f'f(1, {{}}=b"{S}")', f'"{{}}: {S}"', f"one\\n{{}}={S}\\ntwo",
        f"12\t{{}}={S}", f"+{{}}={S}", f"{{}} == '{S}'", f"{{}} !== '{S}'", f"if ('{S}' === {{}}) x",
        f'char {{}}[25] = "{S}";', f"{{}} ::= {S}", f"{{}} .= '{S}'", f"{{}} ??= '{S}'", f'{{}} string = "{S}"',
        f'{{}}("{S}")', f'the {{}} "{S}"', f"{{}}: >-\n  {S}\n", f"{{}}:\r\n {S}\r\nnext: a",
        f"{{}} = (\n    '{S}'\n)", f"<{{}}>\n  {S}\n</a>", f'"{{}}", default="{S}"',
    ],
)  # fmt: skip
def test_a_literal_under_a_secret_name_is_found(text: str, name: str) -> None:
    assert taken(text.replace("{}", name)) == [S]


@pytest.mark.parametrize(
    "text",
    [
        f"password >= '{S}'", f"password::{S}", f"password({S})", f"password = {S}()", f"password = {S}[0]",
        f"password = a.{S}", f"password {S}", f"password, '{S}'", f"password>{S}</a>", f"<password>{S}",
        f"password_field = '{S}'", f"max_tokens = '{S}'", f"passport = '{S}'", f"password = '{S} {S}'",
        f"password = '{S}", f"password = \"{S}'", f"x = '{S}'  # password", f"password =\n'{S}'",
        f"password:\n  {S}: a", f"password:\n  - {S}\n", f"password:\n  {S} more words\n", f"['a_token',\n '{S}']",
        f"pass `{S}`", f"PWD=/home/{S}/a", f"bypass = '{S}'", f"secretary = '{S}'", f"stop_token = '{S}'",
        f"access_key_id = '{S}'",
    ],
)  # fmt: skip
def test_what_is_no_assignment_of_a_literal_is_left(text: str) -> None:
    assert taken(text) == []


def test_ampersands_belong_to_a_value_but_not_to_a_query() -> None:
    assert taken("password = Tr0ub4dor&3") == ["Tr0ub4dor&3"]
    assert taken(f"password={S}&page_number=2") == [S]
    assert taken(f"/x?token={S}&next=/home") == taken(f"/x?a=1&token={S}#top") == taken(f"?token={S}&2") == [S]


def test_letters_that_grow_in_lower_case_move_nothing() -> None:
    text = f"İİİ PASSWORD='{S}'"
    assert len(fold(text)) == len(text)
    assert taken(text) == [S]
