"""The tenants file: who may use a server, and every problem of the file."""

from hypothesis import given, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants, is_name, parse_tenants, token_hash
from tests.row_tables import rows

TOKEN = "mg_0123456789012345678901234567890123456789"  # noqa: S105
HASH = token_hash(TOKEN)
ROOT = 'root = "/srv/mendgraph"\n'
BOB = "[users.bob]\ntoken_sha256 = []\n"
ANN = f'[users.ann]\ntoken_sha256 = ["{HASH}"]\n'
DOTS, SYSTEM = (ANN.replace("ann", name) for name in ('"../etc"', "system"))


def problems(text: str) -> list[str]:
    result = parse_tenants(text, "t.toml")
    assert not isinstance(result, Tenants)
    return list(map(str, result))


def tenants(text: str) -> Tenants:
    result = parse_tenants(text, "t.toml")
    assert isinstance(result, Tenants), result
    return result


def test_defaults_apply_to_each_user_without_a_setting() -> None:
    defaults = '[defaults]\nmodels = ["a", "b"]\nmax_steps = 5\nruns_at_once = 2\n'
    parsed = tenants(f'{ROOT}{defaults}{ANN}max_steps = 7\n[users.bob]\ntoken_sha256 = []\nmodel = "b"\n')
    context = AgentContext(account="ann", account_days=True, model="a", max_steps=7)
    assert parsed == Tenants(
        {
            "ann": Tenant("ann", (HASH,), context, ("a", "b"), 2),
            "bob": Tenant(
                "bob", (), AgentContext(account="bob", account_days=True, model="b", max_steps=5), ("a", "b"), 2
            ),
        },
        root="/srv/mendgraph",
    )
    assert HASH not in repr(parsed)


def test_token_belongs_to_one_user() -> None:
    parsed = tenants(f"{ROOT}{ANN}[users.bob]\ntoken_sha256 = []\n")
    assert parsed.of_token(TOKEN) is parsed.users["ann"]
    assert [parsed.of_token(token) for token in ("", HASH, TOKEN[:-1], f"{TOKEN}x", "\udcff" * 40)] == [None] * 5
    short = tenants(f'{ROOT}[users.ann]\ntoken_sha256 = ["{token_hash("secret")}"]\n')
    assert short.of_token("secret") is None


@given(st.text(max_size=80))
def test_name_must_be_usable_as_a_folder_name(name: str) -> None:
    if is_name(name):
        assert name.isascii()
        assert not set(name) & set("/\\\0 \n~")
        assert name not in {".", ".."}
        assert not name.startswith((".", "-"))


WRONG = [
    ("root = ", "t.toml:1: this is not TOML: "),
    (ROOT, "t.toml: users: Field required"),
    (f"{ROOT}[users]\n", "t.toml:2: users: Dictionary should have at least 1 item"),
    (ANN, "t.toml: root: Field required"),
    (f'root = "srv"\n{ANN}', "t.toml:1: root: String should match pattern"),
    (f"{ROOT}extra = 1\n{ANN}", "t.toml:2: extra: Extra inputs are not permitted"),
    (f"{ROOT}[users]\nann = 1\n", "t.toml:3: users.ann: Input should be an object"),
    (f"{ROOT}[defaults]\ntoken_sha256 = []\n{ANN}", "t.toml:2: defaults: a token belongs to one user"),
    (f"{ROOT}[users.ann]\n", "t.toml:2: users.ann.token_sha256: Field required"),
    (f'{ROOT}[users.ann]\ntoken_sha256 = ["{TOKEN}"]\n', "t.toml:3: users.ann.token_sha256.0: String"),
    (f'{ROOT}{ANN}[users.bob]\ntoken_sha256 = ["{HASH}"]\n', "t.toml:5: users.bob.token_sha256: this token"),
    (f"{ROOT}{SYSTEM}", "t.toml:2: users.system: 'system' cannot be a user's name"),
    (f"{ROOT}{DOTS}", "t.toml:2: users.../etc: '../etc' cannot be a user's name"),
    (f"{ROOT}{ANN}[users.Ann]\ntoken_sha256 = []\n", "t.toml:4: users.Ann: 'Ann' and 'ann' differ only in case"),
    (f'{ROOT}{ANN}workspace = "/"\n', "t.toml:4: users.ann.workspace: it cannot be set here: a request names"),
    (f"{ROOT}{ANN}max_stps = 1\n", "t.toml:4: users.ann.max_stps: Extra inputs are not permitted"),
    (f'{ROOT}{ANN}max_steps = "many"\n', "t.toml:4: users.ann.max_steps: Input should be a valid integer"),
    (f"{ROOT}{ANN}runs_at_once = 0\n", "t.toml:4: users.ann.runs_at_once: Input should be greater than or equal"),
    (f"{ROOT}{ANN}runs_at_once = true\n", "t.toml:4: users.ann.runs_at_once: Input should be a valid integer"),
    (f'{ROOT}{ANN}models = "m"\n', "t.toml:4: users.ann.models: Input should be a valid array"),
    (f"{ROOT}[defaults]\nmax_steps = 0\n{ANN}{BOB}", "t.toml:3: defaults.max_steps: Input should be greater"),
    (f'{ROOT}{ANN}models = ["m"]\nmodel = "n"\n', "t.toml:5: users.ann.model: it should be one of models, which"),
]


@rows(*WRONG)
def test_problem_is_reported_with_its_line(text: str, words: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(words)
