"""Secrets that show by their shape: the keys of providers, tokens, logins in URLs, connection strings. Pure.

Each shape is looked for only where one of its words is in the text, and takes linear time: what repeats is
possessive or short. Source: the prefixes, alphabets and lengths follow gitleaks' rules (config/gitleaks.toml) and the
providers' own documents; lengths are a little lower, for keys that were cut. Only single characters repeat
possessively: Python before 3.11.5 is wrong about groups that do (gh-106052).
"""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from nodes.execute_tools.secrets.hints import hinted, told
from nodes.execute_tools.secrets.key_blocks import key_block_spans
from nodes.execute_tools.secrets.keys import is_filler, is_plain, looks_secret

SHORTEST_TOKEN: Final = 15
"""Characters of the shortest key that a prefix tells."""

_TOKEN_BYTES: Final = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-.+/=~:") else 32 for byte in range(256)
)


@dataclass(frozen=True, eq=False)
class Shape:
    """What a kind of secret looks like. The pattern's group `secret` is what is taken out.

    A text holds at least one of `words` where it holds such a secret. `folded`: words and pattern are in lower case
    and are looked for in the text in lower case. `loose`: the secret may be no token of `SHORTEST_TOKEN` characters.
    `accepts` has the last word on what was found.
    """

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    accepts: Callable[[str], bool]
    folded: bool = False
    loose: bool = False


def shape_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Where secrets with a known shape stand. `folded` is the same text in lower case."""
    shapes = dict.fromkeys(told(_FOLDED_WORDS, folded))
    if tokens := _long_tokens(text):
        shapes.update(dict.fromkeys(told(_TOKEN_WORDS, tokens)))
    if "://" in text:
        shapes[_URL_LOGIN] = None
    for shape in shapes:
        searched = folded if shape.folded else text
        for found in shape.pattern.finditer(searched):
            start, end = found.span("secret")
            if shape.accepts(text[start:end]):
                yield start, end
    if "PRIVATE KEY" in text:
        yield from key_block_spans(text)


def url_password(value: str) -> str:
    """The password in a URL that is the whole value, as it is written there, or ""."""
    if "://" not in value:
        return ""
    found = _URL_LOGIN.pattern.search(value)
    return found["secret"].partition(":")[2] if found and _is_url_login(found["secret"]) else ""


def _long_tokens(text: str) -> str:
    """The words that are long enough for a key: a small part of ordinary text, in which prefixes are soon found."""
    words = text.encode("utf-8", "surrogatepass").translate(_TOKEN_BYTES).split()
    return b" ".join([word for word in words if len(word) >= SHORTEST_TOKEN]).decode("ascii")


def _is_key(found: str) -> bool:
    """Not `xxxxxxxx` or `your_key_here`, whatever its prefix."""
    return len(set(found[-16:])) > 4 and "..." not in found and not is_plain(re.sub(r"^\w{1,10}?[-_.]", "", found))


def _is_random_key(found: str) -> bool:
    """For prefixes that names have as well: some part has letters and digits."""
    parts = re.split(r"[-_]", found)[1:]
    mixed = [part for part in parts if any(char.isdigit() for char in part) and any(char.isalpha() for char in part)]
    return _is_key(found) and any(len(part) >= 10 for part in mixed)


def _is_login(found: str) -> bool:
    """Whether it is base64 of `user:password`."""
    try:
        text = base64.b64decode(found.rstrip("=") + "=" * (-len(found.rstrip("=")) % 4), altchars=b"-_").decode()
    except ValueError:
        return False
    return text.isprintable() and ":" in text


def _is_credential(found: str) -> bool:
    return looks_secret(found) or _is_login(found)


def _is_url_login(found: str) -> bool:
    """`user:password`, where neither is an example's; or a long key in the place of the user."""
    user, colon, password = found.partition(":")
    if not colon:
        return len(user) >= 30 and looks_secret(user)
    return len(password) >= 4 and password != user and not is_filler(password)


def _is_setting(found: str) -> bool:
    """A value that is no example's and no name."""
    return not is_filler(found) and any(not (char.isalpha() or char in "._-") for char in found)


def _starts(passed: str = "", signs: str = "A-Za-z0-9_-") -> str:
    """A word of these signs starts here, before what was `passed`: also after an escape or a terminal's colour."""
    escapes = (r"\\[nrtbfv]", r"\\u00[0-9a-fA-F]{2}", r"\\x[0-9a-fA-F]{2}", r"%[0-9a-fA-F]{2}")
    colours = (r"\[m", r"[\[;][0-9]m", r"[\[;][0-9]{2}m")
    return rf"(?:(?<![{signs}]{passed})" + "".join(f"|(?<={each}{passed})" for each in escapes + colours) + ")"


def _key(prefix: str, rest: str, accepts: Callable[[str], bool] = _is_key) -> Shape:
    """A key with this prefix, where a word starts: also after an escape, and after a terminal's colour."""
    start = re.escape(prefix)
    return Shape((prefix,), re.compile(rf"(?P<secret>{start}{_starts(start)}{rest})"), accepts)


def _folded(words: str, pattern: str, accepts: Callable[[str], bool]) -> Shape:
    return Shape(tuple(words.split()), re.compile(pattern), accepts, folded=True, loose=True)


_T = "[A-Za-z0-9_-]"
_N = "[A-Za-z0-9]"
_END = "(?![A-Za-z0-9])"
_WORD = _starts(signs="A-Za-z0-9")
_NUMBER = _starts(signs="0-9")
_AZURE = _starts(signs=r"\w~.-")

_PREFIXED: Final[tuple[tuple[str, str], ...]] = (
    ("ghp_ gho_ ghu_ ghs_ ghr_", _N + "{20,}+"),  # GitHub
    ("github_pat_", "[A-Za-z0-9_]{20,}+"),
    ("glpat- gldt- glptt- glrt- glft- glsoat- glagent- gloas- glcbt- glimt- glffct-", "[A-Za-z0-9_.-]{16,}+"),  # GitLab
    ("GR1348941", _T + "{16,}+"),
    ("npm_", _N + "{30,}+"),
    ("pypi-AgE", _T + "{30,}+"),
    ("rubygems_", "[0-9a-f]{40,}+"),
    ("dckr_pat_ dckr_oat_", _T + "{20,}+"),  # Docker
    ("AKIA ASIA ABIA ACCA", r"(?=[A-Z]{0,15}[0-9])[A-Z0-9]{16}" + _END),  # AWS
    ("ABSK", "[A-Za-z0-9+/]{100,}+=*"),  # AWS Bedrock
    ("AIza", _T + "{30,}+"),  # Google
    ("ya29.", "[A-Za-z0-9_.-]{20,}+"),
    ("GOCSPX-", _T + "{20,}+"),
    ("1//0", _T + "{30,}+"),
    ("LTAI", _N + "{16,}+"),  # Alibaba
    ("AKID", _N + "{32}" + _END),  # Tencent
    ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxb- xoxe.xoxp-", r"(?=[A-Za-z-]*+[0-9])[A-Za-z0-9-]{10,}+"),
    ("xapp-", "[A-Za-z0-9-]{20,}+"),  # Slack
    ("sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", r"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{16,}+"),  # Stripe
    ("whsec_", "[A-Za-z0-9+/]{24,}+=*"),
    ("SK", "[0-9a-f]{32}" + _END),  # Twilio
    ("SG.", rf"{_T}{{16,}}+\.{_T}{{16,}}+"),  # SendGrid
    ("xkeysib-", _T + "{40,}+"),  # Brevo
    ("key-", "[0-9a-f]{32}" + _END),  # Mailgun
    ("dop_v1_ doo_v1_ dor_v1_", "[0-9a-f]{32,}+"),  # DigitalOcean
    ("shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32,}+"),  # Shopify
    ("sq0atp- sq0csp-", _T + "{22,}+"),  # Square
    ("hvs. hvb. hvr.", _T + "{24,}+"),  # Vault
    ("dapi", r"(?=[a-f]{0,31}[0-9])[0-9a-f]{32}" + _END),  # Databricks
    ("dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", "[A-Za-z0-9._-]{40,}+"),  # Doppler
    ("dt0c01.", "[A-Z0-9]{24}[.][A-Z0-9]{64}"),  # Dynatrace
    ("glsa_", "[A-Za-z0-9_]{40,}+"),  # Grafana
    ("glc_", "[A-Za-z0-9+/]{32,}+=*"),
    ("NRAK-", "[A-Z0-9]{27}"),  # New Relic
    ("PMAK-", "[0-9a-f-]{50,}+"),  # Postman
    ("pul-", "[0-9a-f]{40}" + _END),  # Pulumi
    ("ATATT3 ATCTT3", "[A-Za-z0-9_=-]{50,}+"),  # Atlassian
    ("lin_api_", _N + "{32,}+"),  # Linear
    ("ntn_", _N + "{40,}+"),  # Notion
    ("figd_", _T + "{32,}+"),  # Figma
    ("nfp_", _N + "{36,}+"),  # Netlify
    ("pscale_tkn_ pscale_pw_ pscale_oauth_", "[A-Za-z0-9_.-]{32,}+"),  # PlanetScale
    ("sbp_", "[0-9a-f]{40}"),  # Supabase
    ("sb_secret_", _T + "{20,}+"),
    ("sntrys_ sntryu_", "[A-Za-z0-9+/_=-]{40,}+"),  # Sentry
    ("AGE-SECRET-KEY-1", "[A-Z0-9]{50,}+"),
    ("ops_eyJ", "[A-Za-z0-9+/]{100,}+=*"),  # 1Password
    ("gsk_", _N + "{40,}+"),  # Groq
    ("xai-", _N + "{60,}+"),
    ("pplx-", _N + "{40,}+"),  # Perplexity
    ("nvapi-", _T + "{50,}+"),  # NVIDIA
    ("r8_", _N + "{37}"),  # Replicate
    ("pcsk_", "[A-Za-z0-9_]{50,}+"),  # Pinecone
    ("tvly-", _T + "{24,}+"),  # Tavily
    ("lsv2_pt_ lsv2_sk_", "[0-9a-f]{32}_[0-9a-f]{10}"),  # LangSmith
    ("b3BlbnNzaC1rZXktdjE", "[A-Za-z0-9+/]{20,}+=*"),  # an OpenSSH key without its first line
    *((f"LS0tLS1CRUdJTi{kind}", "[A-Za-z0-9+/]{40,}+=*") for kind in ("BQUklW", "BSU0Eg", "BFQyBQ", "BPUEVOU1NI")),
    ("eyJ", rf"{_T}{{8,}}+\.(?:eyJ{_T}{{8,}}+(?:\.{_T}*+)?|{_T}{{8,}}+\.{_T}{{8,}}+(?:\.{_T}++)*)"),  # JSON web tokens
)
"""Prefixes, and what follows them."""

_URL_LOGIN: Final = Shape(
    ("://",),
    re.compile(r"""://(?P<secret>[^\s/?#"'`<>\\(){}|^\[\]\u2e80-\U0010ffff]{3,512})@"""),
    _is_url_login,
    loose=True,
)

SHAPES: Final = (
    *(_key(prefix, rest) for prefixes, rest in _PREFIXED for prefix in prefixes.split()),
    _key("sk-", _T + "{16,}+", _is_random_key),  # OpenAI, Anthropic, DeepSeek, OpenRouter
    _key("hf_", rf"(?:{_N}{{30,}}+|(?=[A-Za-z]*+[0-9]){_N}{{20,}}+)"),  # Hugging Face
    _URL_LOGIN,
    Shape(("Q~",), re.compile(rf"(?P<secret>{_AZURE}[\w~.]{{3}}[0-9]Q~[\w~.-]{{31,34}}(?![\w~.-]))"), _is_key),  # Azure
    Shape(("JQQJ99",), re.compile(rf"(?P<secret>{_WORD}{_N}{{52}}JQQJ99{_N}{{20,40}})"), _is_key),  # Azure
    Shape((":AA",), re.compile(rf"(?P<secret>{_NUMBER}[0-9]{{8,10}}:AA{_T}{{30,}}+)"), _is_key),  # Telegram
    Shape(("-us",), re.compile(rf"(?P<secret>{_WORD}[0-9a-f]{{32}}-us[0-9]{{1,2}}){_END}"), _is_key),  # Mailchimp
    Shape((".atlasv1.",), re.compile(rf"(?P<secret>{_WORD}{_N}{{14}}\.atlasv1\.{_T}{{40,}}+)"), _is_key),  # Terraform
    Shape(
        ("hooks.slack.com/", "/api/webhooks/"),
        re.compile(r"(?:hooks\.slack\.com/[a-z]{8,9}|/api/webhooks/[0-9]{10,20})/(?P<secret>[A-Za-z0-9+/_-]{20,}+)"),
        _is_key,
    ),
    _folded("accountkey= sharedaccesskey=", r"(?:accountkey|sharedaccesskey)=(?P<secret>[a-z0-9+/]{20,}+=*+)", _is_key),
    _folded("sig= x-amz-signature=", r"(?<=[?&;])(?:sig|x-amz-signature)=(?P<secret>[a-z0-9%+/]{30,}+=*+)", _is_key),
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
        _is_credential,
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
"""All shapes but blocks of keys, which `key_blocks` finds."""

_FOLDED_WORDS: Final = hinted(
    ((word, shape) for shape in SHAPES if shape.folded for word in shape.words),
    ("password", "pwd", "auth", "key=", "sig"),
)
_TOKEN_WORDS: Final = hinted(
    ((word, shape) for shape in SHAPES if not shape.loose for word in shape.words), ("_", ".", "-")
)
