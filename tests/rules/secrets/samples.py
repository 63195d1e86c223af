"""Texts with and without secrets for the tests of redaction. A `~` splits each key, so that scanners find none."""

MIXED = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA4bC6dE8fG0hJ2kL4mN6pQ8rS0tU2vW4xY6zA8bC0dE2fG4hJ6kL8mN0pQ2rS4tU6"
LOWER = "a3d5f7h9k1m3p5r7t9v1x3z4b6d8f0h2k4m6p8r0t2v4x6z8"
UPPER = LOWER.upper()
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
BASE64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"


def joined(sample: str) -> str:
    """The sample without `~`."""
    return sample.replace("~", "")


_SHAPES = [
    f"s~k-{MIXED[:48]}", f"s~k-proj-{MIXED[:30]}_{MIXED[3:40]}-{MIXED[:20]}",
    f"s~k-ant-api03-{MIXED[:40]}_{MIXED[5:40]}-AA", f"s~k-or-v1-{HEX}", f"s~k-svcacct-{MIXED[:60]}",
    f"gs~k_{MIXED[:52]}", f"xa~i-{MIXED[:80]}", f"pp~lx-{MIXED[:48]}", f"nv~api-{MIXED[:64]}", f"r~8_{MIXED[:37]}",
    f"tv~ly-dev-{MIXED[:32]}", f"ls~v2_pt_{HEX[:32]}_{HEX[:10]}", f"h~f_{MIXED[:34]}", f"AI~za{MIXED[:35]}",
    f"A~Q.{MIXED[:50]}", f"ya~29.{MIXED[:60]}", f"GOC~SPX-{MIXED[:28]}", f"AK~IA{UPPER[:16]}", f"AS~IA{UPPER[3:19]}",
    f"{MIXED[:3]}8~Q~{MIXED[:34]}".replace("8~Q~", "8Q\x00"), f"{MIXED[:52]}JQ~QJ99{MIXED[:32]}",
    f"gh~p_{MIXED[:36]}", f"gh~o_{MIXED[:36]}", f"gh~s_{MIXED[:36]}", f"git~hub_pat_{MIXED[:22]}_{MIXED[:59]}",
    f"gl~pat-{MIXED[:20]}", f"gl~ptt-{HEX[:40]}", f"np~m_{MIXED[:36]}", f"py~pi-AgEIcHlwaS5vcmc{MIXED[:70]}",
    f"ruby~gems_{HEX[:48]}", f"dckr~_pat_{MIXED[:27]}", f"xo~xb-123456789012-1234567890123-{MIXED[:24]}",
    f"xo~xp-123456789012-123456789012-123456789012-{HEX[:32]}", f"xa~pp-1-A{UPPER[:10]}-1234567890123-{HEX}",
    f"s~k_live_{MIXED[:24]}", f"r~k_test_{MIXED[:24]}", f"wh~sec_{MIXED[:32]}", f"S~K{HEX[:32]}",
    f"S~G.{MIXED[:22]}.{MIXED[:43]}", f"key~-{HEX[:32]}", f"{HEX[:32]}~-us12", f"xkey~sib-{HEX}-{MIXED[:16]}",
    f"123456789:~AA{MIXED[:33]}", f"do~p_v1_{HEX}", f"sh~pat_{HEX[:32]}", f"sq~0atp-{MIXED[:22]}",
    f"hv~s.{MIXED[:95]}", f"da~pi{HEX[:32]}", f"dp~.pt.{MIXED[:43]}", f"gls~a_{MIXED[:32]}_{HEX[:8]}",
    f"NR~AK-{UPPER[:27]}", f"PM~AK-{HEX[:24]}-{HEX[:34]}", f"pu~l-{HEX[:40]}", f"AT~ATT3{MIXED[:90]}",
    f"lin~_api_{MIXED[:40]}", f"fi~gd_{MIXED[:40]}", f"psc~ale_tkn_{MIXED[:43]}", f"sb~p_{HEX[:40]}",
    f"sn~tryu_{HEX}", f"AGE-SECRET-~KEY-1{UPPER[:48]}{UPPER[:10]}", f"{MIXED[:14]}.at~lasv1.{MIXED[:64]}",
    f"ey~JhbGciOiJIUzI1NiJ9.ey~JzdWIiOiIxMjM0NTYifQ.{MIXED[:43]}", f"LS0tLS1CRUdJTi~BSU0Eg{MIXED}==",
    f"b3BlbnNzaC1r~ZXktdjE{MIXED}", f"A~3-{UPPER[:6]}-{UPPER[:11]}-{UPPER[:5]}-{UPPER[5:10]}-{UPPER[:5]}",
    f"p8~e-{MIXED[:32]}", f"pa~t{MIXED[:14]}.{HEX}", f"pa~t.{MIXED[:22]}.{MIXED[:24]}.{MIXED[:20]}",
    f"AK~Cp{MIXED[:69]}", f"cm~Vmd{MIXED[:59]}", f"sc~_{LOWER[:12]}.{LOWER[:5]}.acc-{LOWER[:14]}.{LOWER[:40]}",
    f"bedrock-api~-key-{MIXED[:60]}", f"A3~TX{UPPER[:16]}", f"4b~1d{MIXED[:38]}",
    f"CLO~JARS_{LOWER[:48]}{LOWER[:12]}", f"v1~.0-{HEX[:24]}-{HEX}{HEX}{HEX[:18]}", f"duf~fel_live_{MIXED[:43]}",
    f"EZ~AK{MIXED[:54]}", f"EA~AM{MIXED}{MIXED[:10]}", f"EA~AA{MIXED[:60]}", f"FLW~SECK_TEST-{HEX[:32]}",
    f"fo~1_{MIXED[:43]}", f"fm~2_{MIXED}{MIXED[:10]}", f"fio~-u-{MIXED[:64]}", f"ey~JrIjoi{MIXED}",
    f"HR~KU-AA{MIXED[:58]}", f"api_~org_{'aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH'}", f"ic~o-{MIXED[:32]}",
    f"s-s4~t2ud-{HEX}", f"ZX~lKhbGciOiJIUzI1NiJ9{MIXED}", f"AP~I-{UPPER[:26]}", f"pn~u_{MIXED[:36]}",
    f"rd~me_{LOWER[:48]}{LOWER[:22]}", f"tk~-us-{MIXED[:48]}", f"sm~_pat_{MIXED[:16]}", f"ship~po_live_{HEX[:40]}",
    f"sg~p_{HEX[:40]}", f"NR~JS-{HEX[:19]}", f"NR~II-{MIXED[:32]}", f"{MIXED[:6]}_{MIXED[:29]}~_mmk",
    f"sha256\x00{MIXED[:43]}", f"s~.{MIXED[:24]}", f"MTA4NzY1NDMyMTA5ODc2NTQz.~GAbCdE.{MIXED[:38]}",
]  # fmt: skip
KEYS = [joined(sample).replace("\x00", "~") for sample in _SHAPES]
"""Keys of providers, one of each shape."""

PARTS = [
    ("Authorization: Bearer ", MIXED[:30], ""), ('-H "Authorization: token ', HEX[:40], '"'),
    ("Authorization: Basic ", "dXNlcjpodW50ZXIyaHVudGVy", "\n"), ("https://", f"me:{MIXED[:9]}", "@example.org/x"),
    ("postgres://", f"app:{MIXED[:9]}", "@db:5432/x"), ("redis://", f":{MIXED[:9]}", "@host"),
    ("https://", MIXED[:40], "@git.example.org/a.git"),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=", f"{MIXED[:86]}==", ";EndpointSuffix=x"),
    ("Endpoint=sb://a.example.org/;SharedAccessKey=", f"{MIXED[:43]}=", ""),
    ("Server=db;User Id=sa;Password=", "Zq!12xw", ";Encrypt=true"), ("Password=", "Zq!12xw", ";Server=db"),
    ("https://a.example.org/c?sv=2024&sig=", f"{MIXED[:43]}%3D", "&se=1"),
    ("https://hooks.slack.com/services/", f"T{UPPER[:8]}/B{UPPER[:8]}/{MIXED[:24]}", ""),
    ("machine a login me password ", "s3cr3t!", "\n"),
    ('{"auths": {"r.io": {"auth": "', "dXNlcjpodW50ZXIyaHVudGVy", '"}}}'),
    ("Cookie: theme=dark; session_id=", MIXED[:32], "; a=b"), ("OPENAI_API_KEY=", "abcdefgh12", " next"),
    ("export DB_PASSWORD=", "hunter2hunter2", "\n"), ("db_password: ", "hunter2hunter2", ""),
    ("password = ", "Tr0ub4dor&3", "\n"), ("   12\tSECRET_KEY=", HEX, "\n"), ("+API_TOKEN=", MIXED[:20], ""),
    ('password = "', "hunter2hunter2", '"'), ("api_key: str = '", MIXED[:20], "'"),
    ('const accessToken: string = "', MIXED[:20], '";'), ('connect(user="me", password="', "P@ssw0rd99x", '")'),
    ('{"password": "', "hunter2hunter2", '"}'), ('{\\"password\\": \\"', "hunter2hunter2", '\\"}'),
    ("{'client_secret': '", MIXED[:24], "'}"), ('os.environ["AUTH_TOKEN"] = "', MIXED[:24], '"'),
    ("define('DB_PASSWORD', '", "x8K!qP2zzz", "');"), ("<password>", "x8K!qP2zzz", "</password>"),
    ("deploy --token ", MIXED[:20], " --dry-run"), ("deploy --token=", MIXED[:20], " --dry-run"),
    ("GET /v1?api_key=", MIXED[:20], "&page=2"), ('curl -H "X-Api-Key: ', MIXED[:20], '" https://a.test'),
    ("aws_secret_access_key = ", "wJalrXUtnF/K7MDENG+bPxRfiCY3x9zQ2LmT5vWs", "\n"),
    ("//registry.npmjs.org/:_authToken=", "123e4567-e89b-12d3-a456-426614174000", "\n"),
    ("password: b'", "x8K!qP2zzz", "'"), (":secret_token => '", MIXED[:24], "'"),
    ("2026-01-01 INFO login user=bob password=", "hunter2hunter2", " host=a"),
    ("line one\\nAPI_KEY=", "abcdefgh12", "\\nline"), ("postgres://", "me:p@ss1", "@db"),
    ("Bearer ", "abcdef0123456789", ""), ("bearer\t", "abcdef0123456789", ""),
    ("'Authorization': 'ApiKey ", MIXED[:20], "'"), ("Basic ", "dXNlcjpwYXNzd29yZA==", ""),
    ("Cookie: a=b; PHPSESSID=", MIXED[:26], "; c"),
]  # fmt: skip
"""The text before a secret, the secret, and the text after it."""


def _block(kind: str, body: str) -> str:
    return f"-----BEGIN {kind}PRIVATE KEY-----{body}-----END {kind}PRIVATE KEY-----"


BLOCKS = [
    _block("RSA ", f"\n{BASE64}\n{BASE64[::-1]}\n{BASE64[:20]}==\n"),
    _block("", f"\\n{BASE64}\\n{BASE64[:9]}\\n"),
    _block("OPENSSH ", f"\r\n{BASE64}\r\n"),
    _block("EC ", f"\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{HEX[:32]}\n\n{BASE64}\n"),
    _block("PGP ", f"\nVersion: GnuPG v2\n\n{BASE64}\n=aB3d\n").replace("KEY--", "KEY BLOCK--"),
    _block("", f"\n  2\t{BASE64}\n  3\t{BASE64}\n  4\t"),
    _block("", f'\\n"\n    "{BASE64}\\n"\n    "{BASE64}\\n"\n    "'),
    _block("", "\nMIIcanary0123\n"),
    f"-----BEGIN PRIVATE KEY-----\n{BASE64}\n{BASE64[:30]}",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN",
]
"""Private keys, complete and cut, with escaped, numbered and quoted lines."""

BENIGN = [
    "", "token = tokenizer.next_token()", "password = getpass.getpass()", "self.token = token_stream",
    "secret: str = Field(default='', repr=False)", "api_key=settings.api_key", "api_key=settings.api_key2,",
    "if token == Token.EOF:", 'PASSWORD_RESET_URL = "/reset"', '"password": "string"',
    '{"type": "object", "properties": {"password": {"type": "string", "format": "password"}}}',
    '{"max_tokens": 1234567890, "tokenizer": "cl100k_base", "token_count": 12}',
    "usage: prompt_tokens=1234567890 completion_tokens=12", "token = get_token(request)",
    "password = passwords[index]", "def reset_password(user): ...", "secret: str",
    "def f(token: Token2Type, password: str | None = None) -> None:", 'SECRET_KEY = os.environ["SECRET_KEY"]',
    'api_key = os.getenv("OPENAI_API_KEY", "")', "password=$DB_PASSWORD", "password: ${DB_PASSWORD}",
    "token: ${{ secrets.GITHUB_TOKEN }}", 'password = "changeme"', 'password = "your-password-here"',
    'token = "test-token-123"', 'api_key = "YOUR_API_KEY_1234"', 'password = "password123"',
    'secret = "<your secret 1>"', 'token = "xxxxxxxxxxxxxxxx"', 'print("password: %s" % password)',
    'f"token={token}&password={password2}"', 'token_url = "https://auth.example.org/oauth2/token"',
    'tokenUrl: "api/v1/login/access-token"',
    'PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]', 'password_encoder = "pbkdf2_sha256"',
    'token_pattern = r"(?u)\\b\\w\\w+\\b"', 'token = r"[-!#$%&*+.^_`|~0-9a-zA-Z]+"',
    'password_field = "#login-password2"', 'cookie_name = "session_v2_id1"',
    'headers = {"Authorization": f"Bearer {token}"}', "Authorization: Bearer your-token-here",
    'secret_name = "projects/12/secrets/db-pass1"', 'credentials = "/etc/app/credentials.json"',
    'token = "access_token_v2"', 'auth_plugin = "caching_sha2_password"', "SECRET_LENGTH = 1234567890",
    "password=None, token=False, secret=12345678", "token = 192.168.100.200",
    'password = "Enter your password, at least 8 characters!"', "assert password != other_password1",
    "postgres://user:password@localhost/db", "postgres://postgres:postgres@localhost/db",
    "postgres://{user}:{password}@{host}/db", "https://example.org:8080/a@b", "git@github.com:me/project.git",
    "the bearer of news", "Bearer authentication, basic authentication12", "a.b.c",
    "task-oriented-programming-language", "sk-learn-is-a-library-of-python", "sk-container-id-100",
    "sk-ecdsa-sha2-nistp256@openssh.com", "hf_hub_download_with_cache_dir", "npm_config_registry_and_more_of_it",
    'PREFIXES = ("sk-", "ghp_", "AKIA", "xoxb-", "eyJ", "hf_")',
    joined('re.compile(r"gh~p_[A-Za-z0-9]{36}|AK~IA[A-Z0-9]{16}")'),
    'if "-----BEGIN PRIVATE KEY-----" in text: raise ConfigurationErrorWithAVeryLongNameIndeedYes("no keys")',
    'pem = "-----BEGIN RSA PRIVATE KEY-----\\n" + body + "\\n-----END RSA PRIVATE KEY-----"',
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\n" + BASE64 + "\n-----END CERTIFICATE-----", "d41d8cd98f00b204e9800998ecf8427e",
    "commit 3870020" + HEX[:33], HEX, "sha512:" + HEX + HEX, f'{{"sha256": "{HEX}", "file": "token.py"}}',
    f"--hash=sha256:{HEX}", '"integrity": "sha512-' + MIXED[:86] + '=="', "123e4567-e89b-12d3-a456-426614174000",
    'src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="',
    "| a | b |\n|-----|-----|\n", "def password(self) -> SecretStr: return SecretStr(self._password)",
    "    token: OAuth2Token", 'token = "Bearer " + token2', "password = password2", "token=secrets.token_urlsafe(32)",
    "if (token=readToken1()) {", "var token=e.target.value1;", "--token <your-token>",
    "AWS_ACCESS_KEY_ID=<id> AWS_SECRET_ACCESS_KEY=<key>", joined("gh~p_") + "x" * 36, joined("xgh~p_") + MIXED[:36],
    joined("gl~pat-your-token-goes-here"), joined("s~k-ant-api03-...") + "1234567890",
    joined("s~k-your-api-key-goes-here"),
    "Basic YToAAWJjZGVm",  # a, a colon and signs that cannot be printed
    "Basic authentication",
]  # fmt: skip
"""Harmless texts that must stay unchanged, because a model edits them."""

_FILE_NAMES = """
    .env.example .env.sample secrets.py secret_manager.py token.py tokens.json tokenizer.json tokenizer_config.json
    tokenization_utils.py password.html password_reset_form.html reset_password.py test_password_hashers.py
    credentials.md credentials_provider.go api_key.md api-keys.tsx ApiKeyService.java private_key.rst
    public_key.pem id_rsa.pub authorization.ts bearer.py cookie_jar.rb cookies.txt session_token_store2.py
    special_tokens_map.json oauth2-token-exchange.yaml jwt_auth.py secrets-manager-v2.tf access_token.proto
    PasswordField2.vue [...nextauth].ts 2024-01-01-token-rotation.md sk-learn-0.24.1.tar.gz hf_transfer-0.1.9.whl
    passwords/top-1000.txt
"""
FILE_NAMES = _FILE_NAMES.split()
"""Harmless names of files."""
