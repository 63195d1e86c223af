"""Which files an agent must leave alone, by name (spec 1, section 3).

The five default rules are the specification's, hardened: names are compared folded, so `.ENV`, `.env.` and `.e<zero
width>nv` are all `.env`, and a backup (`.env~`, `server.key.bak`) counts as its original. The rules use names only, so
they apply to files that do not exist yet; `secret_content` checks the content of some files. The disk is read only to
follow links: by `is_system_path` for a `Path`, and for a user's rules, whose `check` receives the resolved path.

One table lists the files that hold secrets. A pattern is in lower case and matches the end of a path, part by part,
with or without a leading dot. `name/` is a folder and everything below it. `*` matches any characters of one part, but
no dots unless the part begins with it: `*.key` is every key, `id_rsa_*` is not `id_rsa_test.py`. The table holds files
that exist to hold secrets; literals in code and ordinary settings are redacted instead.
"""

import posixpath
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PosixPath, PurePath
from typing import Final, NamedTuple
from unicodedata import normalize

from mendgraph.nodes.records import CONTENT_BYTES

_SEPARATOR = re.compile(r"[/\\]")
_TRAILING = " .\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u1680\u2028\u2029"
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that some file systems ignore in names. Source: Unicode's Default_Ignorable_Code_Point."""


def folded(component: str) -> str:
    """Return one component without differences in case, compatible Unicode forms, invisible and trailing characters."""
    if component.isascii():
        return component.lower().rstrip(_TRAILING)

    visible = _IGNORABLE.sub("", component)
    return normalize("NFKC", normalize("NFKC", visible).casefold()).rstrip(_TRAILING)


@lru_cache(maxsize=256)  # every rule asks for the same path in turn
def folded_parts(path: PurePath) -> tuple[str, ...]:
    """Return the folded components of a path, with `.` and `..` resolved as text.

    Leading `..` are dropped (see `climbs`), as are components without visible characters.
    """
    return tuple(seen for part in _resolved_parts(path) if (seen := folded(part)))


def climbs(path: PurePath) -> bool:
    """Return whether this relative path leads above its starting point."""
    return _resolved_parts(path)[:1] == ("..",)


def _resolved_parts(path: PurePath) -> tuple[str, ...]:
    text = posixpath.normpath(_SEPARATOR.sub("/", str(path)))
    return tuple(part for part in text.split("/") if part)


_UNUSUAL: Final = re.compile(r"^/|[/. ]\Z|\\|//|\./| /|~|\.(?:bak|backup|old|orig|save|tmp|sw)")


def usual_name(name: str) -> str | None:
    """Return the plain form (see `plain_path`) of a relative name, or None if that may be more than its lower case."""
    plain = name.lower()
    if not (name.isascii() and name.isprintable()) or _UNUSUAL.search(plain):
        return None

    return plain


class NameTable:
    """A table of lines `reason: pattern, pattern`; `#` begins a comment. It is compiled on first use."""

    def __init__(self, lines: str) -> None:
        rows = [line.partition(": ") for line in lines.splitlines() if line and line[0] != "#"]
        self._rows = [(reason, patterns.split(", ")) for reason, _, patterns in rows]
        self.patterns = tuple(pattern for _, patterns in self._rows for pattern in patterns)

    def reason_for(self, path: PurePath) -> str | None:
        """Return the reason for a file with this name, or None."""
        plain = plain_path(path)
        if not self.has(plain):
            return None

        return next(reason for reason, patterns in self._rows if _expression(patterns).search(plain))

    def has(self, plain: str) -> bool:
        """Return whether a file with this plain name is in the table."""
        return self._any.search(plain) is not None

    @cached_property
    def _any(self) -> re.Pattern[str]:
        return _expression(self.patterns)


_BACKUP: Final = re.compile(
    r"(?<!~)(?<!\.bak)(?<!\.old)(?<!\.tmp)(?<!\.sw[a-p])(?<!\.orig)(?<!\.save)(?<!\.backup)"
    r"(?:~|\.(?:bak|backup|old|orig|save|tmp|sw[a-p]))++(?=/|$)"
)
"""Several marks in a row match from the first one only."""


@lru_cache(maxsize=256)  # every rule asks for the same path in turn
def plain_path(path: PurePath) -> str:
    """Return a folded path without marks of backups: `.aws.bak/Config~` is `.aws/config`."""
    return _BACKUP.sub("", "/".join(folded_parts(path)))


def _expression(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return an expression for any of the patterns at the end of a plain path."""
    expression = "|".join(_part(pattern) for pattern in patterns if pattern[0] != "*") or "(?!)"
    endings = "|".join(_part(pattern[1:]) for pattern in patterns if pattern[0] == "*") or "(?!)"
    return re.compile(rf"(?:^|/)\.?(?:{expression})|(?:{endings})")


def _part(pattern: str) -> str:
    text = "[^/.]*".join(map(re.escape, pattern.rstrip("/").split("*")))
    return text + ("(?:/|$)" if pattern.endswith("/") else "$")


KEY_FILES: Final = NameTable("""
# Source: spec 1 section 3 for *.pem to *.cer, *.p12, *.pfx; gitrob for *.keypair, *.pkcs12, *.jks, *.keystore
keys and certificates: *.pem, *.key, *.crt, *.cer, *.p8, *.ppk, *.keypair
key stores: *.p12, *.pfx, *.pkcs12, *.jks, *.keystore, *.bks, *.bcfks, *.jceks, cwallet.sso
# Source: gitrob for the first line
key stores of password managers: *.kdb, *.kdbx, *.psafe3, *.agilekeychain/, *.keychain, *.kwallet, *.keyring, *.keyx
key stores of password managers: *.opvault/, *.1pif/, *.1pux, *.enpassdb, *.keychain-db, *.pwsafe
# Source: gitrob
keys of disks and private networks: *.bek, *.tpm, *.ovpn, *.tblk/
""")
"""The files of `is_private_key`."""

SENSITIVE_FILES: Final = NameTable("""
# Source: the user
keys of SSH and GnuPG: .ssh/, .gnupg/
# Source: spec 1 section 3 for id_rsa, id_ecdsa, id_ed25519
SSH keys: id_rsa, id_dsa, id_ecdsa, id_ed25519, id_xmss
SSH keys: id_rsa_*, id_rsa-*, id_ecdsa_*, id_ecdsa-*, id_ed25519_*, id_ed25519-*, ssh_host_*_key
private keys: secring.gpg, private-keys-v1.d/, otr.private_key, sops/age/keys.txt
# Source: the user for the first line
credentials of clouds and clusters: .aws/, .kube/, .docker/, .azure/, .config/gcloud/, appdata/roaming/gcloud/
credentials of clouds and clusters: .oci/, .aliyun/, .bluemix/, .config/openstack/, .config/doctl/
credentials of clouds and clusters: .config/configstore/, .tsh/
# A folder `gcloud` elsewhere may be a project's own: there, these are the names that Google's program writes.
Google's tokens: gcloud/legacy_credentials/, gcloud/configurations/, credentials.db, access_tokens.db
keys of Google's service accounts and clients: application_default_credentials.json, *firebase-adminsdk*.json
keys of Google's service accounts and clients: serviceaccountkey.json, oauth_creds.json, client_secret*.json
keys of Google's service accounts and clients: client_secret_*.apps.googleusercontent.com.json
keys of AWS, as downloaded: accesskeys.csv, *_accesskeys.csv, rootkey.csv, *credentials.csv
logins of clusters and registries: *.kubeconfig, .dockercfg, .dockerconfigjson, containers/auth.json
# Source: spec 1 section 3 for secrets.yaml, .yml, .json; GitHub's templates for secrets.toml, *.secret.exs
secrets: secrets.yaml, secrets.yml, secrets.json, secrets.toml, *.secret.exs, .dev.vars
# Source: spec 1 section 3 for credentials.json, .yaml
credentials: credentials.json, credentials.yaml, credentials.yml, credentials.toml
# Source: spec 1 section 3 for .netrc; gitrob for the others but pgpass.conf
logins: *.netrc, _netrc, .pgpass, pgpass.conf, .htpasswd, .git-credentials
# Source: gitrob for hub and gem
logins of hosts of code and packages: .config/hub, git/credentials, gh/hosts.yml, glab-cli/config.yml
logins of hosts of code and packages: .cargo/credentials, .gem/credentials, composer/auth.json, pypoetry/auth.toml
logins of hosts of code and packages: settings-security.xml, .jfrog/, .subversion/auth/, .cvspass
tokens: huggingface/token, kaggle.json, .databrickscfg, .snowsql/config, .httr-oauth, .codex/auth.json
# Source: GitHub's Terraform template for *.tfstate, *.tfstate.*
the state and tokens of HashiCorp's tools: *.tfstate, *.tfstate.1*, credentials.tfrc.json, .vault-token
passwords of Ansible's vault: .vault_pass, .vault-pass, .vault_password, vault_pass.txt
logins of storage: .boto, .s3cfg, .passwd-s3fs, rclone.conf, .smbcredentials, .tugboat
logins of databases: .my.cnf, .mylogin.cnf, dbeaver-data-sources.xml, credentials-config.json, robomongo.json
# Source: gitrob, shhgit
logins of file servers: filezilla.xml, recentservers.xml, sitemanager.xml, winscp.ini, sftp-config.json, .ftpconfig
logins of file servers: proftpdpasswd, .vscode/sftp.json, .idea/webservers.xml, .remote-sync.json
# Source: gitrob, shhgit
logins of mail and chat: .msmtprc, .esmtprc, .fetchmailrc, .muttrc, .mbsyncrc, .offlineimaprc, .authinfo
logins of mail and chat: .purple/accounts.xml, .irssi/config
# Source for the first: gitrob
hashes of passwords: etc/shadow, etc/gshadow, etc/shadow-
# Source: gitrob; GitHub's templates for *.publishsettings, *.azurepubxml
secrets of servers: secret_token.rb, credentials.xml, hudson.util.secret, *.publishsettings, *.pubxml.user
secrets of servers: *.azurepubxml, jenkins.plugins.publish_over_ssh.bapsshpublisherplugin.xml
cookies that log in: .erlang.cookie, .xauthority, .iceauthority, cookies.sqlite
# Source: shhgit for logins.json
passwords and cookies of browsers: logins.json, key3.db, key4.db, signons.sqlite, login data, login data for account
passwords and cookies of browsers: .mozilla/, .config/google-chrome/, .config/chromium/, user data/default/
passwords: .password-store/, .config/op/, share/keyrings/
wallets: wallet.dat, .electrum/, .bitcoin/, .ethereum/, .config/solana/, utc--*
# Source: gitrob for the shells, MySQL, PostgreSQL and irb; GitHub's templates for Node, R and Lisp
what was typed into shells: .*_history, .*-history, .rhistory, .history/, .zhistory, .histfile, fish_history
what was typed into shells: consolehost_history.txt, .dbshell, .viminfo
""")
"""The files of `is_sensitive_config`."""

_PACKAGES: Final = """
npm's token: .npmrc
the token of a Python index: .pypirc
"""
PACKAGE_LOGINS: Final = NameTable(_PACKAGES)
"""Never written, and read only if they contain no secret. Source: spec 1 section 3."""

SETTINGS: Final = NameTable(f"""
{_PACKAGES}
a login: .yarnrc, .yarnrc.yml, bunfig.toml, .wgetrc, .hgrc, .hg/hgrc, .pg_service.conf
the login of a Python index: pip.conf, pip.ini, .condarc
# gitleaks: the last
the login of a package host: .m2/settings.xml, gradle.properties, nuget.config
the password of a key store: keystore.properties, key.properties
# Source: gitrob and GitHub's Terraform template for *.tfvars
a secret of Terraform's: *.tfvars, *.tfvars.json, .terraformrc, terraform.rc
""")
"""Ordinary settings that may contain a secret; only their content decides."""

_ANY_CONTENT: Final = frozenset({"json", "txt", "yaml", "yml", "asc", "conf", "cfg", "config"})
"""Extensions of files that may contain a key under any name; files without extension may as well."""
_KEY: Final = re.compile(
    r"\s*(?:-----BEGIN (?:[A-Z0-9]{2,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d)"
)
_AGE_KEY: Final = re.compile(r"(?m)^AGE-SECRET-KEY-1[0-9A-Z]{20}")
_NAME: Final = r"_auth|authtoken|passw(?:or)?d|passphrase|pwd|token|secret|(?:api|access|private|secret)[_.-]?key"
_VALUE: Final = r"""["']?(?!\$|%|\{\{|<|x{3}|\*{3}|(?:true|false|null|none)\b)[^\s"'<>,}]"""
_LOGIN: Final = re.compile(
    rf"""(?im)(?:^|(?<!\$)\{{|[<,])[ \t#;"'-]{{0,99}}(?:add[ ]+key=["'])?[^\s=<>{{,]{{0,200}}?(?:{_NAME})["']?"""
    rf"(?:[ \t]*[=:>][ \t]*|[ \t]+(?![=:>])(?:value[ \t]*=[ \t]*|(?!value[ \t]*=))){_VALUE}"
    r"|://(?:[^\s/:@]{0,200}:[^\s/@$%{<]{1,500}|[^\s/:@$%{<]{16,500})@|/t/[a-z]{2}-[\w-]{8,99}/"
)
_FIELD: Final = r'"\s*:\s*"(?!\$|<|\{)[^"]'
_SERVICE_ACCOUNT: Final = re.compile(r'"type"\s*:\s*"service_account"'), re.compile(r'"private_key"\s*:\s*"-----BEGIN ')
_REFRESH: Final = re.compile(rf'"client_secret{_FIELD}'), re.compile(rf'"refresh_token{_FIELD}')
_REGISTRY: Final = re.compile(r'"auths"\s*:\s*\{'), re.compile(r'"auth"\s*:\s*"[\w+/-]{6}')
_CLUSTER: Final = (
    re.compile(r"(?m)^kind:[ \t]*[\"']?Config\b"),
    re.compile(r"(?m)^users:"),
    re.compile(rf"(?m)^[ -]{{0,99}}(?:client-key-data|token|password):[ \t]*{_VALUE}"),
)
_DOCUMENTS: Final = (
    (_SERVICE_ACCOUNT, "the key of a Google service account"),
    (_REFRESH, "the login of an OAuth client"),
    (_REGISTRY, "the login of a container registry"),
    (_CLUSTER, "the login of a cluster"),
)


def judged_by_content(name: str) -> bool:
    """Return whether a file with this relative name may contain a secret that only `secret_content` finds."""
    plain = usual_name(name) or plain_path(PurePath(name))
    _, dot, extension = plain.rpartition("/")[2].lstrip(".").rpartition(".")
    return not dot or extension in _ANY_CONTENT or SETTINGS.has(plain)


def secret_content(path: PurePath, data: bytes) -> str | None:
    """Return the secret in a file that begins with `data`, or None. Settings of `CONTENT_BYTES` or more count."""
    text = data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig", "replace")
    settings = SETTINGS.reason_for(path)
    if settings is not None and (len(data) >= CONTENT_BYTES or "PRIVATE KEY" in text or _LOGIN.search(text)):
        return settings
    if _KEY.match(text) or _AGE_KEY.search(text):
        return "a private key"

    return next((reason for signs, reason in _DOCUMENTS if all(sign.search(text) for sign in signs)), None)


# --- The rules


class WorkspacePath(PosixPath):
    """A path relative to the workspace, not to the current folder."""


class FileGuardrailRule(NamedTuple):
    """A rule that blocks files. `check` returns True for a blocked file.

    It receives an absolute `pathlib.Path` with links resolved; the file need not exist. An exception blocks the file.
    The checks of this project receive the path relative to the workspace.
    """

    name: str
    description: str
    check: Callable[[Path], bool]


class GuardrailViolation(NamedTuple):
    """One rule that blocks one file."""

    rule_name: str
    rule_description: str
    file_path: str
    message: str


class GuardrailResult(NamedTuple):
    """Whether a file may be edited, and the rules that block it, in order."""

    allowed: bool
    violations: tuple[GuardrailViolation, ...]


_GIT_NAMES = frozenset({".git", "git~1"})  # the second is its short name on Windows volumes
_READABLE_TEMPLATES = frozenset({".env.example", ".env.sample", ".env.template"})
_SYSTEM_PREFIXES = (
    *("/etc", "/usr", "/bin", "/sbin", "/var", "/system", "/library"),  # Source: spec 1 section 3
    *("/private/etc", "/private/var"),
)
_OWN_ON_MACOS = ("/private/var/folders/", "/private/var/tmp/")
_OWN_AS_WRITTEN = (*_OWN_ON_MACOS, "/var/folders/", "/var/tmp/", "/var/home/")  # noqa: S108 - only compared
"""Folders of users below system folders. Source: spec 1 for the rest of `/var`."""


def is_env_file(path: Path) -> bool:
    """Return whether this is an environment file, such as `.env`, `prod.env` or `.env.local`."""
    name = plain_path(path).rpartition("/")[2]
    names = (name, folded(path.name))
    return name.endswith(".env") or name.startswith((".env-", ".env_")) or any(".env." in part for part in names)


def is_private_key(path: Path) -> bool:
    """Return whether this is a private key, a certificate or a key store, by its extension."""
    return KEY_FILES.reason_for(path) is not None


def is_system_path(path: Path) -> bool:
    """Return whether this is in a system directory, as written or resolved, by a prefix of its folded name.

    A `Path` is resolved against the current folder; one that cannot be resolved is blocked. A path that climbs out of
    its starting point counts as if it reached the root. A relative `WorkspacePath` and a pure path are not resolved.
    Source: spec 1 section 3, seven prefixes (also of `/usr2/x`).
    """
    if (path.is_absolute() or climbs(path)) and _is_below_system(path, _OWN_AS_WRITTEN):
        return True
    if not isinstance(path, Path) or (isinstance(path, WorkspacePath) and not path.is_absolute()):
        return False

    real = real_path(path)
    return real is None or _is_below_system(real, _OWN_ON_MACOS)


def is_git_internal(path: Path) -> bool:
    """Return whether `.git` is a part of this path, at any depth."""
    return not _GIT_NAMES.isdisjoint((*path.parts, *folded_parts(path)))


def is_sensitive_config(path: Path) -> bool:
    """Return whether this is a file of secrets by name: credentials, tokens, keys, histories."""
    return SENSITIVE_FILES.reason_for(path) is not None or PACKAGE_LOGINS.reason_for(path) is not None


def is_readable_template(path: Path) -> bool:
    """Return whether this is an environment template without secrets, which may be read, but not edited."""
    return folded_parts(path)[-1:] in {(name,) for name in _READABLE_TEMPLATES}


def is_readable_login(path: Path) -> bool:
    """Return whether this is `.npmrc` or `.pypirc`, which may be read without a secret, but not edited."""
    return PACKAGE_LOGINS.reason_for(path) is not None and SENSITIVE_FILES.reason_for(path) is None


DEFAULT_GUARDRAIL_RULES: tuple[FileGuardrailRule, ...] = (
    FileGuardrailRule("env_file", "Environment variable files", is_env_file),
    FileGuardrailRule("private_key", "Private keys and certificates", is_private_key),
    FileGuardrailRule("system_path", "System directories", is_system_path),
    FileGuardrailRule("git_internal", "Git internal files", is_git_internal),
    FileGuardrailRule("sensitive_config", "Sensitive configuration files", is_sensitive_config),
)


def is_unsuspicious(name: str) -> bool:
    """Return whether no rule of `DEFAULT_GUARDRAIL_RULES` blocks this relative name, by a fast look at the text.

    False means that the rules have to decide.
    """
    plain = usual_name(name)
    if plain is None or ".env" in plain or any(part in plain for part in _GIT_NAMES):
        return False

    return _listed_names().search(plain) is None


@lru_cache(maxsize=1)
def _listed_names() -> re.Pattern[str]:
    return _expression((*KEY_FILES.patterns, *SENSITIVE_FILES.patterns, *PACKAGE_LOGINS.patterns))


def check_file_guardrails(
    path: Path, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> GuardrailResult:
    """Return whether the file may be edited. A relative path belongs to the current folder.

    A user's rule receives the resolved path. A rule that raises an exception blocks.
    """
    violations = violations_of(path, rules)
    return GuardrailResult(allowed=not violations, violations=violations)


def violations_of(path: Path, rules: tuple[FileGuardrailRule, ...], root: str = "") -> tuple[GuardrailViolation, ...]:
    """Return the rules that block this file of the folder `root`, in order; "" is the current folder.

    Rules of this project receive `path` as it is, a user's rules the resolved path.
    """
    if any(not _is_ours(rule) for rule in rules):
        resolved = real_path(Path(root, path))
    else:
        resolved = path

    violations = []

    for rule in rules:
        reason = _block(rule, path if _is_ours(rule) else resolved)
        if reason is not None:
            message = f"Blocked by rule '{rule.name}': {rule.description}{reason}"
            violations.append(GuardrailViolation(rule.name, rule.description, str(path), message))

    return tuple(violations)


def format_guardrail_violations(result: GuardrailResult) -> str:
    """Return the violations as text, or "" if the file is allowed."""
    if result.allowed:
        return ""

    lines = ["⛔ FILE EDIT BLOCKED - Security Guardrail Triggered:"]

    for violation in result.violations:
        lines.append(f"  Rule: {violation.rule_name}")
        lines.append(f"  Reason: {violation.rule_description}")
        lines.append(f"  Path: {violation.file_path}")

    return "\n".join(lines)


def _block(rule: FileGuardrailRule, path: Path | None) -> str | None:
    """Return None if the rule allows the file, else an addition to its message. Without a path it blocks."""
    if path is None:
        return " (the path cannot be resolved)"

    try:
        verdict: object = rule.check(path)
        if isinstance(verdict, Coroutine):
            verdict.close()
            return " (its check is async, and no rule is awaited)"
        blocks = bool(verdict)
    except Exception as error:  # noqa: BLE001 - a user's rule that fails must not allow the file
        return f" (its check raised {type(error).__name__})"

    return "" if blocks else None


def _is_below_system(path: PurePath, own: tuple[str, ...]) -> bool:
    name = f"/{'/'.join(folded_parts(path))}/"
    return name.startswith(_SYSTEM_PREFIXES) and not name.startswith(own)


def real_path(path: Path) -> Path | None:
    """Return the path with its links resolved, or None for links in a circle (lenient `resolve` hides them in 3.13)."""
    try:
        return path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def is_own_settings(path: Path) -> bool:
    """Return whether this is a `.mendgraph.toml`, in any folder, as each can be a later workspace."""
    return folded_parts(path)[-1:] == (".mendgraph.toml",)


OWN_SETTINGS_RULE: Final = FileGuardrailRule("own_settings", "Settings of the agent itself", is_own_settings)
"""For changes of files without a run; a run has `scope_rule`."""


class NameCheck:
    """A check of the path relative to the workspace."""


class ChangeCheck(NameCheck):
    """A `NameCheck` for changes only."""


_NAME_CHECKS: Final = (*(rule.check for rule in DEFAULT_GUARDRAIL_RULES), is_own_settings)


def rules_of_user(rules: tuple[FileGuardrailRule, ...]) -> tuple[FileGuardrailRule, ...]:
    """Return the user's rules, which receive absolute paths."""
    return tuple(rule for rule in rules if not _is_ours(rule))


def rules_by_name(rules: tuple[FileGuardrailRule, ...]) -> tuple[FileGuardrailRule, ...]:
    """Return the rules of this project, which receive paths relative to the workspace."""
    return tuple(rule for rule in rules if _is_ours(rule))


def _is_ours(rule: FileGuardrailRule) -> bool:
    """Return whether the rule is one of this project."""
    return isinstance(rule.check, NameCheck) or any(rule.check is check for check in _NAME_CHECKS)


@dataclass(frozen=True)
class _Outside(ChangeCheck):
    """Checks that a path is outside of these places."""

    places: frozenset[tuple[str, ...]]

    def __call__(self, path: Path) -> bool:
        parts = folded_parts(path)
        return not any(parts[:end] in self.places for end in range(len(parts) + 1))


@lru_cache(maxsize=64)
def writable_rule(paths: tuple[str, ...]) -> FileGuardrailRule:
    """Return the rule that allows changes only in these files and folders of the workspace."""
    places = frozenset(folded_parts(PurePath(path)) for path in paths)
    return FileGuardrailRule("writable_paths", f"Outside {', '.join(paths)}", _Outside(places))


@dataclass(frozen=True)
class _Executed(ChangeCheck):
    """Checks that a path is one of these places, or below one."""

    places: frozenset[tuple[str, ...]]

    def __call__(self, path: Path) -> bool:
        parts = folded_parts(path)
        return any(parts[:end] in self.places for end in range(1, len(parts) + 1))


@lru_cache(maxsize=64)
def executed_rule(paths: tuple[str, ...]) -> FileGuardrailRule:
    """Return the rule that forbids changes in these files and folders, which an MCP server or a hook executes."""
    places = frozenset(folded_parts(PurePath(path)) for path in paths)
    what = "Files that an MCP server or a hook of this run executes"
    return FileGuardrailRule("executed_file", what, _Executed(places))


@lru_cache(maxsize=64)
def submodule_rule(folders: tuple[str, ...]) -> FileGuardrailRule:
    """Return the rule that forbids changes in these submodules, which no commit would contain."""
    places = frozenset(folded_parts(PurePath(folder)) for folder in folders)
    what = "Files of a submodule that is not checked out here, which no commit would hold"
    return FileGuardrailRule("submodule", what, _Executed(places))


def outside(paths: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return the paths outside of these files and folders."""
    rule = writable_rule(tuple(places))
    return [path for path in paths if rule.check(WorkspacePath(path))]


def is_for_changes(rule: FileGuardrailRule) -> bool:
    """Return whether the rule is for changes only."""
    return rule is OWN_SETTINGS_RULE or isinstance(rule.check, ChangeCheck)
