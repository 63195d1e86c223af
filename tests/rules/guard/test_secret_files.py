import random
from pathlib import Path, PurePosixPath

from hypothesis import given, settings, strategies as st

from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    KEY_FILES,
    PACKAGE_LOGINS,
    SENSITIVE_FILES,
    SETTINGS,
    FileGuardrailRule,
    WorkspacePath,
    check_file_guardrails,
    is_unsuspicious,
    judged_by_content,
    plain_path,
    secret_content,
    usual_name,
)
from mendgraph.nodes.guard.policy import judge_content, judge_path
from mendgraph.nodes.records import CONTENT_BYTES
from tests.row_tables import rows

COPIES = """
.aws.bak/credentials .ssh.old/config .id_rsa.swp id_rsa.bak.old .kube~/x a.kdbx.orig .ssh .KUBE/readme .bash_history
.config/git/credentials terraform.tfstate.1700000000.backup .vscode/sftp.json .mozilla/firefox/x/cert9.db
"""


def test_copies_and_folders_of_secrets_are_neither_read_nor_written() -> None:
    """The other names are in `guarded_names.toml`."""
    for name in COPIES.split():
        assert not check_file_guardrails(Path(name)).allowed, name
        assert judge_path(name, for_write=True, rules=DEFAULT_GUARDRAIL_RULES) is not None, name
        assert judge_path(name, for_write=False, rules=DEFAULT_GUARDRAIL_RULES) is not None, name


PATTERNS = (*KEY_FILES.patterns, *SENSITIVE_FILES.patterns, *PACKAGE_LOGINS.patterns)
FOLDERS = ("", "src/", "a/b.c/")


@settings(max_examples=30)
@given(st.sampled_from(PATTERNS), st.sampled_from(FOLDERS), st.text("abc_1-", min_size=1, max_size=5), st.randoms())
def test_every_pattern_matches_in_any_folder_and_case_and_for_backups(
    pattern: str, folder: str, letters: str, chance: random.Random
) -> None:
    name = pattern.rstrip("/").replace("*", letters) + ("/x" if pattern.endswith("/") else "")
    written = "".join(chance.choice([letter.lower(), letter.upper()]) for letter in name)
    for file_name in (written, f"{written}~", f"{written}.bak"):
        assert not check_file_guardrails(Path(folder + file_name)).allowed


LITERAL = "hunter" + "22x"
KEY = "-----BEGIN " + "PRIVATE KEY-----\\nMIIE\\n"
ACCOUNT = f'{{\n  "type": "service_account",\n  "private_key": "{KEY}",\n  "client_email": "a@b.c"\n}}\n'
CLUSTER = "apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n    token: " + LITERAL + "\n"
SECRET = [
    *((name, f"//registry.npmjs.org/:_authToken={LITERAL}\n") for name in (".npmrc", "app/.NPMRC", ".npmrc.bak")),
    (".npmrc", f"save-exact=true\n_auth={LITERAL}\n"),
    (".yarnrc", f'"//registry.npmjs.org/:_authToken" "{LITERAL}"\n'),
    (".yarnrc.yml", f'npmScopes:\n  me:\n    npmAuthToken: "{LITERAL}"\n'),
    (".pypirc", f"[pypi]\nusername = __token__\npassword = {LITERAL}\n"),
    ("pip.conf", f"[global]\nindex-url = https://me:{LITERAL}@pypi.example.com/simple\n"),
    ("gradle.properties", f"org.gradle.jvmargs=-Xmx2g\nmavenPassword={LITERAL}\n"),
    ("key.properties", "storePassword=abc\n"),
    ("NuGet.Config", f'<add key="ClearTextPassword" value="{LITERAL}" />'),
    ("prod.tfvars", f'region = "eu"\ndb_password = "{LITERAL}"\n'),
    (".hg/hgrc", f"[auth]\nfoo.password = {LITERAL}\n"),
    ("gradle.properties", "#" * CONTENT_BYTES),
    *((name, ACCOUNT) for name in ("sa.json", "keys/prod.json", "sa", "sa.txt", "sa.json.bak")),
    ("all.json", f"[{ACCOUNT}, {ACCOUNT}]"),
    ("adc.json", f'{{"client_id": "a", "client_secret": "{LITERAL}", "refresh_token": "{LITERAL}"}}'),
    ("docker.json", '{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6aHVudGVy"}}}'),
    *((name, CLUSTER) for name in ("kubeconfig", "cluster.yaml", "admin.conf")),
    *((name, "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n") for name in ("deploy_key", "key.txt", "KEY")),
    ("me.asc", "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n"),
    ("keys.txt", "# public key: age1x\nAGE-SECRET-" + "KEY-1" + "Q" * 58),
]
HARMLESS = [
    (".npmrc", "//registry.npmjs.org/:_authToken = ${NPM_TOKEN}\n"),
    ("dev.tfvars", 'manage_master_user_password = true\ndb_password      = ""\n'),
    (".pypirc", "[pypi]\npassword = %(PASSWORD)s\n"),
    ("nuget.config", '<add key="ClearTextPassword" value="%PAT%" />'),
    ("skaffold.yaml", "apiVersion: skaffold/v2\nkind: Config\nbuild:\n  token: abc\n"),
    (".npmrc", "registry=https://registry.example.com\nsave-exact=true\nalways-auth=true\n"),
    (".yarnrc.yml", "nodeLinker: node-modules\nnpmAuthToken: ${NPM_TOKEN:-}\n"),
    (".pypirc", "[distutils]\nindex-servers = pypi\n[pypi]\nrepository = https://upload.pypi.org/legacy/\n"),
    ("gradle.properties", "org.gradle.jvmargs=-Xmx2g\ntokenizerVersion=1.2\nandroid.useTokens=true\npassword=\n"),
    (".m2/settings.xml", "<server><id>a</id><password>${env.PASSWORD}</password></server>"),
    ("dev.tfvars", 'region = "eu"\nkms_key_id = "arn:aws:kms:eu:1:key/2"\nssh_public_key = "ssh-ed25519 AAAA"\n'),
    ("schema.json", '{"type": "service_account", "private_key": {"type": "string"}}'),
    ("openapi.json", '{"client_secret": {"type": "string"}, "refresh_token": {"type": "string"}}'),
    ("kubeconfig", "kind: Config\nusers:\n- user:\n    token: ${TOKEN}\n"),
    ("docs.txt", "A key begins with -----BEGIN " + "PRIVATE KEY-----.\n"),
    ("me.asc", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"),
]


@rows(*SECRET)
def test_secret_is_recognized_by_file_content(name: str, text: str) -> None:
    assert judged_by_content(name)
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert secret_content(PurePosixPath(name), text.encode(encoding)[:CONTENT_BYTES]) is not None, encoding


@rows(*HARMLESS)
def test_settings_and_documents_without_secrets_are_ordinary_files(name: str, text: str) -> None:
    assert secret_content(PurePosixPath(name), text.encode()) is None
    assert judge_path(name, for_write=False, rules=DEFAULT_GUARDRAIL_RULES) is None


def test_content_is_judged_for_documents_but_not_for_code() -> None:
    names = (".hidden", "a", "a.json", "a.txt", "a.yaml", "a.yml", "a.asc", "a.conf", "a.cfg", "a.config")
    code = ("test_keys.py", "a.ts", "README.md", "id_rsa.pub")
    assert [name for name in (*names, *code) if judged_by_content(name)] == [*names]


def test_content_is_judged_only_by_the_rule_for_sensitive_files() -> None:
    judge = judge_content("sa.json", DEFAULT_GUARDRAIL_RULES)
    assert judge is not None
    denial = judge(ACCOUNT.encode())
    assert denial is not None
    assert "sa.json holds the key of a Google service account" in denial.message
    settings_judge = judge_content("dev.tfvars", DEFAULT_GUARDRAIL_RULES)
    assert settings_judge is not None
    assert settings_judge(b'db_password = "hunter2hunter2"\n') is not None
    custom = FileGuardrailRule("sensitive_config", "Mine", lambda path: ".docker" not in path.parts)
    assert judge_content("sa.json", (custom,)) is not None
    assert judge_content("sa.json", tuple(rule for rule in DEFAULT_GUARDRAIL_RULES if rule.name != custom.name)) is None


@given(st.sampled_from(SETTINGS.patterns), st.binary(max_size=200))
def test_any_bytes_can_be_judged(name: str, data: bytes) -> None:
    secret_content(PurePosixPath(name.replace("*", "a")), data)


LISTED = (*KEY_FILES.patterns, *SENSITIVE_FILES.patterns, *PACKAGE_LOGINS.patterns, *SETTINGS.patterns)
PARTS = st.one_of(
    st.sampled_from([part.replace("*", "a") for pattern in LISTED for part in pattern.split("/") if part]),
    st.sampled_from(
        [".env", "prod.env", ".env.local", ".ENV_x", ".git", "GIT~1", "etc", "..", ".", "", "a.py", "README"]
    ),
    st.text(st.sampled_from("aE.nvgit~1/\\ -_\t\u00ad\u212a\uff0e"), max_size=6),
)
ENDS = st.sampled_from(
    ["", "", "~", ".bak", ".BACKUP", ".old", ".swp", ".orig", ".save", ".tmp", ".", " ", "/", "\u200b"]
)
NAMES = st.builds(
    lambda parts, ends, join, upper: join.join(
        f"{p.upper() if upper else p}{e}" for p, e in zip(parts, ends, strict=False)
    ),
    st.lists(PARTS, min_size=1, max_size=4),
    st.lists(ENDS, min_size=4, max_size=4),
    st.sampled_from(["/", "/", "//", "\\", "/./"]),
    st.booleans(),
)


@given(NAMES)
def test_name_that_a_default_rule_blocks_is_suspicious(name: str) -> None:
    path = WorkspacePath(name)
    assert usual_name(name) in {None, plain_path(path)}
    assert not is_unsuspicious(name) or check_file_guardrails(path).allowed


@rows("src/app.py", "node_modules/x/index.js", "docs/Read Me.md", ".venv/lib/python3.11/site-packages/a/__init__.py")
def test_ordinary_name_needs_no_rule(name: str) -> None:
    assert is_unsuspicious(name)
