"""The shapes of secrets as data: keys with a prefix, logins in URLs, passwords in commands, headers and settings. Pure.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052).
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mendgraph.nodes.execute_tools.secrets.keys import is_filler, is_plain, looks_secret


@dataclass(frozen=True, eq=False)
class Shape:
    """A kind of secret. The group `secret` of its expression matches what is removed, if `accepts` returns True for it.

    A text with such a secret has at least one of `words`. `loose`: the secret may be no token of `SHORTEST_TOKEN`
    characters, and the words are searched in the lower-case text; `folded`: the secret is searched there, too.
    """

    words: tuple[str, ...]
    expression: str
    accepts: Callable[[str], bool]
    folded: bool = False
    loose: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when a text has one of the words: to compile all 250 takes longer than the rest of a start."""
        return re.compile(self.expression)


def _is_key(value: str) -> bool:
    """Whether it is no example, such as `xxxxxxxx`, `your_key_here` and the keys of AWS's documents."""
    is_example = len(set(value[-16:])) <= 3 or value.endswith("EXAMPLE") or "..." in value
    return not is_example and not is_plain(re.sub(r"^\w{1,10}?[-_.]", "", value))


def _is_random_key(value: str) -> bool:
    """For a prefix that names have as well: whether a part of at least 10 characters has letters and digits."""
    if not _is_key(value):
        return False

    long_parts = [part for part in re.split(r"[-_]", value)[1:] if len(part) >= 10]
    return any(re.search(r"\d", part) and re.search(r"[^\W\d_]", part) for part in long_parts)


def _is_login(value: str) -> bool:
    try:
        text = base64.b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), altchars=b"-_").decode()
    except ValueError:
        return False

    return text.isprintable() and ":" in text


def is_url_login(value: str) -> bool:
    """`user:password`, where neither is an example's; or a long key in the place of the user."""
    user, colon, password = value.partition(":")
    if not colon:
        return len(user) >= 30 and looks_secret(user)

    return len(password) >= 4 and password != user and not is_filler(password)


def _is_mixed(value: str) -> bool:
    """For a shape that attributes have as well: letters of both cases and digits in random order."""
    return _is_key(value) and looks_secret(value[2:]) and bool(re.search(r"[0-9][a-z]|[A-Z][0-9]", value[2:]))


def _is_signature(value: str) -> bool:
    return _is_key(value) and len(value) >= 20 and sum(map(str.isdigit, value)) >= 2


def _is_hash(value: str) -> bool:
    """Whether the part after the salt is random."""
    return len(set(value[-22:])) > 8 and any(char.isdigit() for char in value[-43:])


def _is_bot(value: str) -> bool:
    """Whether it begins with the number of a Discord user in base64."""
    first = value.partition(".")[0]
    try:
        return base64.b64decode(first + "=" * (-len(first) % 4), altchars=b"-_").isdigit()
    except ValueError:
        return False


def _is_setting(value: str) -> bool:
    """Whether a value of a setting is neither an example nor a name."""
    return not is_filler(value) and any(not (char.isalpha() or char in "._-") for char in value)


_ESCAPES: Final = (
    *(r"\\[nrtbfv]", r"\\u00[0-9a-fA-F]{2}", r"\\x[0-9a-fA-F]{2}", r"%[0-9a-fA-F]{2}"),
    *(r"\[m", r"[\[;][0-9]m", r"[\[;][0-9]{2}m"),
)
"""Escape sequences of strings and URLs, and colours of terminals: a word may start directly after one."""


def _word_start(matched: str = "", signs: str = "A-Za-z0-9_-") -> str:
    """An expression that a word of these signs starts before the expression `matched`, which stands before it."""
    after_escape = "".join(f"|(?<={escape}{matched})" for escape in _ESCAPES)
    return rf"(?:(?<![{signs}]{matched}){after_escape})"


def _key(prefix: str, tail: str, accepts: Callable[[str], bool] = _is_key) -> Shape:
    """A key with this prefix at the start of a word."""
    escaped = re.escape(prefix)
    return Shape((prefix,), rf"(?P<secret>{escaped}{_word_start(escaped)}{tail})", accepts)


def _folded(words: str, expression: str, accepts: Callable[[str], bool]) -> Shape:
    """A shape that is searched in the lower-case text."""
    return Shape(tuple(words.split()), expression, accepts, folded=True, loose=True)


def _is_password(value: str) -> bool:
    return not value.startswith(("$", "-", "<", "/")) and (_is_setting(value) or looks_secret(value))


def _is_command_login(value: str) -> bool:
    """`user:password`, or a key in the place of the user."""
    user, _, password = value.partition(":")
    if not password:
        return looks_secret(user)

    return len(password) >= 4 and password != user and not (user + password).isdigit() and _is_password(password)


def _command(program: str, options: str, separator: str, secret: str) -> Shape:
    """A password after one of these options of a program, on its line or in a list of its arguments."""
    accepts = _is_command_login if ":" in secret else _is_password
    start = rf"(?<![\w.-]{re.escape(program)})"
    if program == "login":
        start = "(?:" + "|".join(f"(?<={command} login)" for command in _LOGIN_COMMANDS.split()) + ")"

    arguments = r"""(?:[^\n|;&"']|"[^"\n]{0,200}"|'[^'\n]{0,200}'|\\\r?\n){0,100}?"""
    option = rf"""(?<=[\s"'`])(?:{options}){separator}"""
    expression = rf"""{re.escape(program)}{start}(?=[\s"']){arguments}{option}(?P<secret>{secret})"""

    is_distinctive = len(program) > 5 or program == "curl"
    return Shape((program if is_distinctive else f"{program} ",), expression, accepts, loose=True)


_LOGIN_COMMANDS: Final = "docker podman nerdctl buildah skopeo registry oras az oc cf"
"""Programs whose command `login` takes a password."""

_SEPARATOR: Final = r"""[\s\\"'`,=]{1,6}+"""
_VALUE_SIGN: Final = r"""[^\s"'`,;|&<>(){}\[\]\\]"""
_LOGIN: Final = rf"[^:{_VALUE_SIGN[2:]}{{1,64}}+:{_VALUE_SIGN}{{0,200}}+"

_COMMANDS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("curl", "-u|-U|--user|--proxy-user", r"""[\s\\"'`,=]{0,6}+""", _LOGIN),
    ("http https", "-a|--auth", _SEPARATOR, _LOGIN),
    (
        "mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump 7z 7za",
        "-p",
        r"""["'`]?+""",
        _VALUE_SIGN + "{4,200}+",
    ),
    (
        "mongo mongosh mongodump mongorestore mongoexport mongoimport sshpass login",
        "-p",
        _SEPARATOR,
        _VALUE_SIGN + "{4,200}+",
    ),
    ("redis-cli", "-a|--pass", _SEPARATOR, _VALUE_SIGN + "{4,200}+"),
    ("ldapsearch ldapmodify ldapadd ldapwhoami", "-w", _SEPARATOR, _VALUE_SIGN + "{4,200}+"),
    ("smbclient", "-U", _SEPARATOR + r"[^\s%]{1,64}+%", _VALUE_SIGN + "{4,200}+"),
    ("sqlcmd bcp unzip zip", "-P", _SEPARATOR, _VALUE_SIGN + "{4,200}+"),
    ("openssl", "-passin|-passout|-pass", _SEPARATOR + "pass:", _VALUE_SIGN + "{4,200}+"),
    ("keytool jarsigner", "-storepass|-keypass", _SEPARATOR, _VALUE_SIGN + "{4,200}+"),
)
"""Programs, their options for passwords, what separates option and password, and the password. Source: manuals."""

_T = "[A-Za-z0-9_-]"
"""A sign of a token."""
_N = "[A-Za-z0-9]"
"""A letter or a digit (number)."""
_END = "(?![A-Za-z0-9])"
_WORD = _word_start(signs="A-Za-z0-9")
_NUMBER = _word_start(signs="0-9")
_AZURE = _word_start(signs=r"\w~.-")
_VAULT = _word_start(matched=r"s\.", signs=r"\w~.-")
_BOT = _word_start("..", r"\w.-")
_MAILCHIMP = "[0-9a-f]{32}-us"

_PREFIXED: Final[tuple[tuple[str, str], ...]] = (
    ("ghp_ gho_ ghu_ ghs_ ghr_", _N + "{20,}+"),  # GitHub
    ("github_pat_", "[A-Za-z0-9_]{20,}+"),
    ("glpat- gldt- glptt- glrt- glft- glsoat- glagent- gloas- glcbt- glimt- glffct-", "[A-Za-z0-9_.-]{16,}+"),  # GitLab
    ("GR1348941", _T + "{16,}+"),
    ("npm_", _N + "{30,}+"),
    ("pypi-AgE AIza 1//0", _T + "{30,}+"),  # PyPI, Google
    ("rubygems_", "[0-9a-f]{40,}+"),
    ("dckr_pat_ dckr_oat_ GOCSPX- sb_secret_", _T + "{20,}+"),  # Docker, Google, Supabase
    ("AKIA ASIA ABIA ACCA", r"(?=[A-Z]{0,15}[0-9])[A-Z0-9]{16}" + _END),  # AWS
    ("ABSK ops_eyJ fm1a_ fm1r_ fm2_", "[A-Za-z0-9+/]{100,}+=*"),  # AWS Bedrock, 1Password, Fly.io
    ("AQ. xkeysib-", _T + "{40,}+"),  # Google, Brevo
    ("ya29.", "[A-Za-z0-9_.-]{20,}+"),
    ("LTAI", _N + "{16,}+"),  # Alibaba
    ("AKID p8e-", _N + "{32}" + _END),  # Tencent, Adobe
    ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxb- xoxe.xoxp-", r"(?=[A-Za-z-]*+[0-9])[A-Za-z0-9-]{10,}+"),
    ("xapp-", "[A-Za-z0-9-]{20,}+"),  # Slack
    ("sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", r"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{10,}+"),  # Stripe
    ("whsec_", "[A-Za-z0-9+/]{24,}+=*"),
    ("SK", "[0-9a-fA-F]{32}" + _END),  # Twilio
    ("SG.", rf"(?:{_T}{{16,}}+\.{_T}{{16,}}+|[A-Za-z0-9_.=-]{{66}})"),  # SendGrid
    ("key-", "[0-9a-f]{32}" + _END),  # Mailgun
    ("dop_v1_ doo_v1_ dor_v1_ shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32,}+"),  # DigitalOcean, Shopify
    ("sq0atp- sq0csp-", _T + "{22,}+"),  # Square
    ("hvs. hvb. hvr. tvly-", _T + "{24,}+"),  # Vault, Tavily
    ("dapi", r"(?=[a-f]{0,31}[0-9])[0-9a-f]{32}" + _END),  # Databricks
    ("dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", "[A-Za-z0-9._-]{40,}+"),  # Doppler
    ("dt0c01.", "[A-Za-z0-9]{24}[.][A-Za-z0-9]{64}"),  # Dynatrace
    ("glsa_ sgp_", "[A-Za-z0-9_]{40,}+"),  # Grafana, Sourcegraph
    ("glc_", "[A-Za-z0-9+/]{32,}+=*"),
    ("NRAK-", "[A-Z0-9]{27}"),  # New Relic
    ("PMAK-", "[0-9a-f-]{50,}+"),  # Postman
    ("pul-", "[0-9a-f]{40}" + _END),  # Pulumi
    ("ATATT3 ATCTT3", "[A-Za-z0-9_=-]{50,}+"),  # Atlassian
    ("lin_api_ xai-", _N + "{32,}+"),  # Linear, xAI
    ("ntn_ gsk_ pplx-", _N + "{40,}+"),  # Notion, Groq, Perplexity
    ("figd_", _T + "{32,}+"),  # Figma
    ("nfp_ pnu_", _N + "{36,}+"),  # Netlify, Prefect
    ("pscale_tkn_ pscale_pw_ pscale_oauth_", "[A-Za-z0-9_.=-]{32,}+"),  # PlanetScale
    ("sbp_", "[0-9a-f]{40}"),  # Supabase
    ("sntrys_ sntryu_", "[A-Za-z0-9+/_=-]{40,}+"),  # Sentry
    ("AGE-SECRET-KEY-1", "[A-Z0-9]{50,}+"),
    ("nvapi-", _T + "{50,}+"),  # NVIDIA
    ("r8_", _N + "{37}"),  # Replicate
    ("pcsk_", "[A-Za-z0-9_]{50,}+"),  # Pinecone
    ("lsv2_pt_ lsv2_sk_", "[0-9a-f]{32}_[0-9a-f]{10}"),  # LangSmith
    # an OpenSSH key without its first line, and AWS Bedrock for a short time
    ("b3BlbnNzaC1rZXktdjE bedrock-api-key-", "[A-Za-z0-9+/]{20,}+=*"),
    *((f"LS0tLS1CRUdJTi{kind}", "[A-Za-z0-9+/]{40,}+=*") for kind in ("BQUklW", "BSU0Eg", "BFQyBQ", "BPUEVOU1NI")),
    ("A3-", "[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}"),  # 1Password
    ("pat", _N + r"{14}\.[0-9a-f]{64}" + _END),  # Airtable
    ("pat. sat.", rf"{_T}{{22}}\.{_N}{{24}}\.{_N}{{20}}" + _END),  # Harness
    ("AKCp", _N + "{69}"),  # Artifactory
    ("cmVmd", _N + "{59}"),
    ("sc_ ext_ scauth_ authress_", r"[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[a-z0-9+/_=-]{30,}+"),
    ("A3T", r"(?=[A-Z]{0,16}[0-9])[A-Z0-9]{17}" + _END),  # AWS
    ("4b1d", _N + "{38}" + _END),  # ClickHouse
    ("CLOJARS_", _N + "{60}"),
    ("v1.0-", "[0-9a-f]{24}-[0-9a-f]{146}"),  # Cloudflare
    ("duffel_live_ duffel_test_", "[A-Za-z0-9_=-]{43}"),
    ("EZAK EZTK", _N + "{54}" + _END),  # EasyPost
    ("EAAM EAAC", _N + "{100,}+"),  # Facebook
    ("EAAA", _T + "{56,60}" + _END),  # Square
    ("FLWSECK_TEST- FLWSECK-", "[0-9a-h]{12,}+"),  # Flutterwave
    ("fo1_", _T + "{43}"),  # Fly.io
    ("fio-u-", "[A-Za-z0-9_=-]{64}"),  # Frame.io
    ("eyJrIjoi", _N + "{70,}+=*"),  # Grafana
    ("HRKU-AA", _T + "{58}"),  # Heroku
    ("api_org_", "[A-Za-z]{34}" + _END),  # Hugging Face
    ("ico-", _N + "{32}(?![A-Za-z0-9.])"),  # Infracost
    ("s-s4t2ud- s-s4t2af-", "[0-9a-f]{64}"),  # 42
    ("ZXlK", "[A-Za-z0-9+/_-]{60,}+=*"),  # a JSON web token in base64
    ("API-", r"(?=[A-Z]{0,25}[0-9])[A-Z0-9]{26}" + _END),  # Octopus Deploy
    ("rdme_", "[a-z0-9]{70}"),  # ReadMe
    ("tk-us-", _T + "{48}"),  # Scalingo
    ("sm_aat_ sm_pat_ sm_sat_", _N + "{16}" + _END),  # SettleMint
    ("shippo_live_ shippo_test_", "[0-9a-fA-F]{40}"),
    ("NRJS-", "[0-9a-f]{19}" + _END),  # New Relic
    ("NRII-", _T + "{32}" + _END),
    ("eyJ", rf"{_T}{{8,}}+\.(?:eyJ{_T}{{8,}}+(?:\.{_T}*+)?|{_T}{{8,}}+\.{_T}{{8,}}+(?:\.{_T}++)*)"),  # JSON web tokens
)
"""Prefixes of keys, and the expression for the part after the prefix."""

URL_LOGIN: Final = Shape(
    ("://",),
    r"""://(?P<secret>[^\s/?#"'`<>\\(){}|^\[\]\u2e80-\U0010ffff]{3,512})@""",
    is_url_login,
    loose=True,
)


def _command_shapes() -> list[Shape]:
    shapes = []

    for programs, options, separator, secret in _COMMANDS:
        shapes += [_command(program, options, separator, secret) for program in programs.split()]

    return shapes


def _prefixed_shapes() -> list[Shape]:
    shapes = []

    for prefixes, tail in _PREFIXED:
        shapes += [_key(prefix, tail) for prefix in prefixes.split()]

    return shapes


COMMAND_SHAPES: Final = tuple(_command_shapes())

SHAPES: Final = (
    *COMMAND_SHAPES,
    *_prefixed_shapes(),
    _key("sk-", _T + "{16,}+", _is_random_key),  # OpenAI, Anthropic, DeepSeek, OpenRouter
    _key("hf_", rf"(?:{_N}{{30,40}}+(?![A-Za-z0-9_])|(?=[A-Za-z]*+[0-9]){_N}{{20,}}+)"),  # Hugging Face
    URL_LOGIN,
    Shape(("Q~",), rf"(?P<secret>{_AZURE}[\w~.]{{3}}[0-9]Q~[\w~.-]{{31,34}}(?![\w~.-]))", _is_key),  # Azure
    Shape(("JQQJ99",), rf"(?P<secret>{_WORD}{_N}{{52}}JQQJ99{_N}{{20,40}})", _is_key),  # Azure
    Shape((":AA",), rf"(?P<secret>{_NUMBER}[0-9]{{8,10}}:AA{_T}{{30,}}+)", _is_key),  # Telegram
    Shape(("-us",), rf"(?P<secret>(?={_MAILCHIMP}){_WORD}{_MAILCHIMP}[0-9]{{1,2}}){_END}", _is_key),
    Shape((".atlasv1.",), rf"(?P<secret>{_WORD}{_N}{{14}}\.atlasv1\.[\w=-]{{40,}}+)", _is_key),  # Terraform
    Shape(("_mmk",), rf"(?P<secret>{_WORD}{_N}{{6}}_{_N}{{29}}_mmk){_END}", _is_key),  # MaxMind
    Shape(("sha256~",), rf"(?P<secret>{_WORD}sha256~{_T}{{43}}){_END}", _is_key),  # OpenShift
    Shape(("s.",), rf"(?P<secret>s\.{_VAULT}{_N}{{24}}(?![\w.(]))", _is_mixed),  # Vault
    Shape(
        ("hooks.slack.com/", "/api/webhooks/"),
        r"(?:hooks\.slack\.com/[a-z]{8,9}|/api/webhooks/[0-9]{10,20})/(?P<secret>[A-Za-z0-9+/_-]{20,}+)",
        _is_key,
    ),
    _folded("accountkey= sharedaccesskey=", r"(?:accountkey|sharedaccesskey)=(?P<secret>[a-z0-9+/]{20,}+=*+)", _is_key),
    _folded(
        "sig= signature= -credential= security-token= ?key= &key=",
        r"(?<=[?&;])(?:sig|signature|key|x-(?:amz|goog)-(?:signature|credential|security-token))="
        r"(?P<secret>[a-z0-9%+/_~.@-]{20,}+=*+)",
        _is_signature,
    ),
    _folded(
        "$1$ $5$ $6$ $7$ $y$ $gy$ $2a$ $2b$ $2x$ $2y$ $apr1$ $argon2 $scrypt$ $pbkdf2 $p$ $h$ $bcrypt- pbkdf2_sha",
        r"(?P<secret>\$(?:[1567]|g?y|2[abxy]|apr1|argon2(?:id|i|d)|scrypt|pbkdf2(?:-sha[0-9]{1,3})?|bcrypt-sha256)"
        r"\$[a-z0-9./$=,+-]{22,}+|\$[ph]\$[a-z0-9./]{31}(?![a-z0-9./])"
        r"|pbkdf2_sha(?:1|256|512)\$[0-9]{1,9}\$[a-z0-9./$=+]{22,}+)",
        _is_hash,
    ),
    _folded("{sha {ssha {smd5", r"(?P<secret>\{(?:s?sha(?:256|512)?|smd5)\}[a-z0-9./$+]{20,}+=*+)", _is_hash),
    _folded("_gitlab_session=", r"_gitlab_session=(?P<secret>[0-9a-z]{32})", _is_key),
    _folded(
        "requirepass masterauth", r"(?:requirepass|masterauth)[ \t]{1,4}+(?P<secret>[^\s\"']{4,128}+)", _is_setting
    ),
    _folded("identified", r"identified by (?:password )?'(?P<secret>[^\s']{4,128}+)'", _is_setting),
    _folded(
        "chpasswd password-stdin",
        r"""echo[ \t]{1,4}+(?:-n[ \t]{1,4}+)?["']?(?P<secret>[^\s"'|]{6,200}+)["']?[ \t]{0,4}+\|[^\n|;]{0,80}?"""
        r"(?:chpasswd|-stdin)",
        _is_setting,
    ),
    _folded(
        "jdbc:oracle:",
        r"jdbc:oracle:[a-z]{2,6}:(?P<secret>[^\s/@]{1,64}+/[^\s@\"']{4,128}+)@",
        lambda value: _is_setting(value.partition("/")[2]),
    ),
    Shape(
        (".",),
        rf"(?P<secret>[MNO][DTjz]{_BOT}{_T}{{22,26}}\.{_T}{{6}}\.{_T}{{27,45}})(?![A-Za-z0-9_.-])",
        _is_bot,
    ),  # Discord
    _folded(
        ".webhook.office.com/",
        r"\.webhook\.office\.com/webhookb2/(?P<secret>[0-9a-z-]{36}@[0-9a-z-]{36}/incomingwebhook/[0-9a-z/_-]{32,160}+)",
        _is_key,
    ),
    _folded(
        "password pwd",
        r"""(?:;[ ]?(?:password|pwd)[ ]?=[ ]?(?P<secret>[^;&"'\s\\(){}\[\]<>\u2e80-\U0010ffff]{4,128}+))""",
        _is_setting,
    ),
    _folded(
        "password= pwd=",
        r"""(?<![a-z0-9_-])(?:password|pwd)=(?P<secret>[^;&"'\s\\(){}\[\]<>\u2e80-\U0010ffff]{4,128}+)(?=;[a-z])""",
        _is_setting,
    ),
    _folded("bearer", r"bearer[ \t]{1,4}+(?P<secret>[a-z0-9._~+/=-]{8,4096}+)", looks_secret),
    _folded("basic", r"basic[ \t]{1,4}+(?P<secret>[a-z0-9+/_=-]{8,4096}+)", _is_login),
    _folded(
        "authorization",
        r"""authorization\\{0,7}+["']?[ \t]{0,4}+[:=,][ \t]{0,4}+\\{0,7}+["']?"""
        r"""(?:[a-z][a-z0-9-]{1,20}[ \t]{1,2}+)?(?P<secret>[a-z0-9._~+/=-]{8,4096}+)""",
        lambda value: looks_secret(value) or _is_login(value),
    ),
    _folded(
        "auth",
        r"""auth(?:(?<![a-z]auth)\\{0,7}+["']|(?<=_auth))[ \t]{0,4}+[:=][ \t]{0,4}+\\{0,7}+["']?"""
        r"""(?P<secret>[a-z0-9+/_=-]{8,4096}+)""",
        _is_login,
    ),
    _folded(
        "cookie",
        r"""(?<=[;: ])(?:[a-z_.-]{0,20}(?:sess|sid|auth|jwt|csrf)[a-z_.-]{0,20}=)"""
        r"""(?P<secret>[^\s;,"'`\\\u2e80-\U0010ffff]{16,4096}+)""",
        looks_secret,
    ),
    _folded(
        "login",
        r"""login\s{1,4}+[^\s]{1,128}+\s{1,4}+password\s{1,4}+(?P<secret>[^\s"'`\\\u2e80-\U0010ffff]{4,128}+)""",
        _is_setting,
    ),
)
"""All shapes but blocks of private keys, see `key_blocks`."""
