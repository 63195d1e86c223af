"""The files that a run may change without approval, by name: protected files, and the restrictions of `strict`.

A request names a file if a word of it is the file's path or the end of the path, part by part. The meaning of the words
and the content of files are not considered.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Final, Self
from unicodedata import normalize

from mendgraph.nodes.guard.file_rules import ChangeCheck, FileGuardrailRule, NameTable, folded_parts
from mendgraph.nodes.language.names import IS_TEST, named_paths
from mendgraph.nodes.records import ToolCall

PROTECTED: Final = NameTable("""
# Claude Code asks before it writes .vscode, .idea and .husky; VS Code asks whether a folder is trusted.
editor settings, which run tasks when the folder is opened: .vscode/, .idea/, .zed/, *.code-workspace
git hooks, which run at the next commit: .husky/
# direnv runs an .envrc only after a person has allowed its content. Claude Code asks for the shells' files.
shell settings, which run when a shell starts here: .envrc, .bashrc, .bash_profile, .bash_login, .profile
shell settings, which run when a shell starts here: .zshrc, .zshenv, .zprofile, .zlogin
# codex keeps .codex and .agents read-only; Claude Code asks before it writes .claude and .mcp.json.
agent settings, which start programs and give permissions: .claude/, .codex/, .cursor/, .gemini/, .agents/, .mcp.json
agent settings, which start programs and give permissions: .mendgraph.toml
# Agents read these before each task.
instructions, which agents follow in each later task: agents.md, claude.md, claude.local.md, gemini.md, .cursorrules
""")
"""Files that run or instruct on this machine without anybody starting the project, by reason."""

RUNS_LATER: Final = NameTable("""
what git runs or follows: .githooks/, .pre-commit-config.yaml, .lefthook.yml, .gitmodules
what CI runs: .github/workflows/, .github/actions/, .github/scripts/, .gitlab-ci.yml, .gitlab/, .circleci/
what CI runs: .travis.yml, jenkinsfile, azure-pipelines.yml
what CI runs: bitbucket-pipelines.yml, .drone.yml, .woodpecker/, .buildkite/, .gitea/, .forgejo/
what an editor runs or follows: .devcontainer/, .devcontainer.json
what an agent follows: copilot-instructions.md, skill.md, .windsurf/, .clinerules/, .roo/
what an agent follows: .windsurfrules, .aider.conf.yml, mcp.json, mcp_config.json
what Python or a tool of it runs: sitecustomize.py, usercustomize.py, *.pth, conftest.py, setup.py, noxfile.py
what Python or a tool of it runs: tests/__init__.py, test/__init__.py, venv/, site-packages/
what a build runs: dockerfile, dockerfile.*, *.dockerfile, containerfile, docker-compose*.yml, docker-compose*.yaml
what a build runs: compose.yml, compose.yaml, makefile, gnumakefile, *.mk, justfile, rakefile, node_modules/
""")
"""Files that run when somebody tests, builds or pushes the project. A change is marked in the outcome."""

MANIFESTS: Final = NameTable("""
what is installed: pyproject.toml, requirements*.txt, requirements*.in, requirements/*.txt, constraints*.txt
what is installed: setup.cfg, pipfile, package.json, cargo.toml, go.mod, gemfile, composer.json, environment.yml
what is installed: *.lock, *-lock.json, *-lock.yaml, npm-shrinkwrap.json, go.sum
how tests run: tox.ini, pytest.ini, .pytest.ini
""")
"""Files that define what is installed with a project and how its tests run."""

WIDE: Final = NameTable("""
what git runs or follows: lefthook.yml, lefthook-local.yml, .overcommit.yml, .gitattributes, .gitconfig, .lfsconfig
what CI runs or follows: .github/
what CI runs: .appveyor.yml, appveyor.yml, .cirrus.yml, .semaphore/, .teamcity/, .builds/, .build.yml, buildspec.yml
what CI runs: cloudbuild.yaml, codemagic.yaml, action.yml, action.yaml, dagger.json, renovate.json, .renovaterc
what an editor runs or follows: .vim/, .vimrc, .exrc, .nvimrc, .nvim.lua, .lvimrc, .local.vimrc, .dir-locals.el
what an editor runs or follows: .dir-locals-2.el, .emacs, .emacs.d/, .helix/, .kakrc, .fleet/, .nova/, .lapce/, .vs/
what an editor runs or follows: .settings/, .project, .classpath, .theia/, .gitpod.yml, .ycm_extra_conf.py
what an editor runs or follows: *.sublime-project, *.sublime-workspace
what a shell or a prompt runs: .cshrc, .tcshrc, .kshrc, .bash_logout, .bash_aliases, .zlogout, .inputrc, .screenrc
what a shell or a prompt runs: .tmux.conf, .direnv/, .mise.toml, mise.toml, .mise/, .tool-versions, .rtx.toml
what a shell or a prompt runs: .gdbinit, .lldbinit, .pdbrc, .pythonrc, .pythonstartup, .irbrc, .pryrc, .rprofile
what a shell or a prompt runs: .renviron, .ghci, .psqlrc, .sqliterc
what an agent follows: opencode.json, opencode.jsonc, .opencode/, .continue/, .kilocode/, .roomodes, .augment/, .kiro/
what an agent follows: .amazonq/, .junie/, .trae/, .goosehints, .goose/, .crush.json, crush.json, crush.md, .qwen/
what an agent follows: qwen.md, warp.md, .openhands/, .rules, .aider*.yml
what Python or a tool of it runs: tasks.py, fabfile.py, dodo.py, wscript, sconstruct, sconscript, .pylintrc, pylintrc
what Python or a tool of it runs: .coveragerc, .flake8, .ipython/, gunicorn.conf.py, hatch_build.py
what Node.js or a tool of it runs: *.config.js, *.config.cjs, *.config.mjs, *.config.ts, *.config.mts, gruntfile.js
what Node.js or a tool of it runs: gulpfile.js, .pnp.cjs, .pnpmfile.cjs, .yarn/, .yarnrc.yml
what Node.js or a tool of it runs: .babelrc.js, .babelrc.cjs, .eslintrc.js, .eslintrc.cjs, .mocharc.js, .mocharc.cjs
what Node.js or a tool of it runs: .prettierrc.js, .prettierrc.cjs, .lintstagedrc.js, .commitlintrc.js
what Node.js or a tool of it runs: turbo.json, nx.json, lerna.json, deno.json, deno.jsonc, bunfig.toml
what a build runs: build.rs, .cargo/, rust-toolchain.toml, rust-toolchain, gradlew, gradlew.bat, gradle/, mvnw, .mvn/
what a build runs: build.gradle, build.gradle.kts, settings.gradle, settings.gradle.kts, init.gradle, pom.xml
what a build runs: build.xml, build.sbt, project/plugins.sbt, *.gemspec, guardfile, capfile, vagrantfile
what a build runs: cmakelists.txt, *.cmake, cmakepresets.json, configure, configure.ac, makefile.am, makefile.in
what a build runs: meson.build, build.ninja, build.bazel, workspace.bazel, module.bazel, *.bzl, .bazelrc, .buckconfig
what a build runs: flake.nix, default.nix, shell.nix, devenv.nix, package.swift, mix.exs, rebar.config, phpunit.xml
what a build runs: phpunit.xml.dist, .php-cs-fixer.php, makefile.pl, build.pl, project.clj, deps.edn, build.zig
what a build runs: *.csproj, *.vbproj, *.fsproj, directory.build.props, directory.build.targets, *.targets
what a build runs: nuget.config, global.json, taskfile.yml, taskfile.yaml, earthfile, tiltfile, skaffold.yaml, procfile
""")
"""Further files that run when a tool is used on the project; only for `strict`."""

_PLAIN_CONFIG: Final = NameTable("project configuration: config.yaml, config.yml, settings.py, *.toml")
_DOCUMENTS: Final = frozenset({".adoc", ".md", ".mdc", ".rst", ".txt"})
_INSTALLED: Final = frozenset({"node_modules", "site-packages"})
PROTECTED_RULE: Final = "protected"
_WORD: Final = re.compile(r"[\w.@+~/-]+")


def is_project_config(path: PurePath) -> bool:
    """Return whether this is project configuration, or a file that other programs run later.

    Source: spec 1 section 3, threat model (`config.yaml`, `settings.py`, `*.toml`).
    """
    return bool(why_asked(path))


def why_asked(path: PurePath) -> str:
    """Return why mode "ask" requests approval for each change of this file, or ""."""
    return _reason_in((PROTECTED, RUNS_LATER, MANIFESTS, _PLAIN_CONFIG), path)


def _reason_in(tables: Iterable[NameTable], path: PurePath) -> str:
    for table in tables:
        reason = table.reason_for(path)
        if reason:
            return reason

    return ""


PROJECT_CONFIG_RULE = FileGuardrailRule("project_config", "Project configuration files", is_project_config)
"""Not a default rule: it never blocks, but requests approval in mode "ask"."""


def runs_later(path: PurePath, *, new: bool = False) -> bool:
    """Return whether a change of this workspace file runs code later, or instructs tools and agents.

    So does a `new` file that replaces a module of the standard library. Manifests, lock files and the files of `WIDE`
    do not count.
    """
    return bool(PROTECTED.reason_for(path) or RUNS_LATER.reason_for(path) or (new and _replaces_module(path)))


def _replaces_module(path: PurePath) -> bool:
    """Return whether Python would import this file instead of a module of the standard library."""
    parts = folded_parts(path)
    file = "/".join(parts[parts[:1] == ("src",) :])
    return file.endswith(".py") and file.removesuffix(".py").removesuffix("/__init__") in sys.stdlib_module_names


@dataclass(frozen=True)
class Scope:
    """The files that a run in mode "auto" may change.

    `names` are folded paths, with "/" at the end for a folder and everything below it, that may be changed although
    they are protected, or the run is `strict`.
    """

    names: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def of(cls, request: str, writable: Iterable[str], *, strict: bool, root: str = "") -> Self:
        """Return the scope of a run: the files that the request or `writable_paths` name.

        A folder needs a "/" at its end, except a protected one. Naming a file in a protected folder permits no other
        file in it, but makes the folder itself writable for programs.
        """
        words = {word.removeprefix(f"{root}/") for word in _words(request)} - {""}
        writable = [*writable]
        names: set[str] = set()

        for word in (*words, *writable):
            if PROTECTED.reason_for(PurePath(word)):
                name = word.rstrip("/")
                folders = [str(folder) for folder in PurePath(name).parents if PROTECTED.reason_for(folder)]
                names.update((name, f"{name}/", *folders))

        strict = strict and not writable  # writable_paths restrict more, so `strict` has no effect beside them

        if strict:
            names |= words

        return cls(frozenset(map(_plain, names)), strict)

    def permits(self, path: str) -> bool:
        """Return whether a name of the scope is this file."""
        place = f"/{_plain(path)}"
        return any(place.endswith(f"/{name}") or (name[-1] == "/" and f"/{name}" in place) for name in self.names)

    def protection(self, path: str) -> str:
        """Return why this file may not be changed, by its name, or ""."""
        name = PurePath(path)
        reason = PROTECTED.reason_for(name) or ""
        if not reason and self.strict:
            reason = _beyond_strict(name)

        if reason and self.permits(path):
            return ""

        return reason

    def deletion(self, call: ToolCall, path: str) -> str:
        """Return why this call may not delete the file, or ""."""
        patch = call.arguments.get("patch")
        marks = (f"*** Delete File: {path}\n", f"*** Update File: {path}\n*** Move to: ")
        removes = call.tool == "delete_file" or (call.tool == "move_file" and call.arguments.get("path") == path)
        removes = removes or any(mark in f"{patch}\n" for mark in marks)

        if self.strict and removes and not self.permits(path):
            return "a file that would be gone"

        return ""


def _words(request: str) -> set[str]:
    """Return the words of a request that may be paths."""
    stripped = [word.strip("`'\",;:!?<>") for word in request.split()]  # a path may have brackets, as routes do
    words = (*named_paths(request), *_WORD.findall(request), *stripped)
    return {word.removeprefix("@").removeprefix("./").rstrip(".") for word in words} - {""}


def _plain(path: str) -> str:
    return normalize("NFC", path).casefold()


def _beyond_strict(name: PurePath) -> str:
    """Return why a strict run changes this file only if it is named, or "" for ordinary code and data."""
    reason = _reason_in((RUNS_LATER, MANIFESTS, WIDE, _PLAIN_CONFIG), name)
    if reason:
        return reason

    if _replaces_module(name):
        return "what Python imports in place of a module of its own"
    if IS_TEST.search(str(name)):
        return "a test"
    if name.suffix.lower() in _DOCUMENTS:
        return "a document"

    return ""


@dataclass(frozen=True)
class _OutOfScope(ChangeCheck):
    scope: Scope

    def __call__(self, path: Path) -> bool:
        return bool(self.scope.protection(str(path)))


@lru_cache(maxsize=64)
def scope_rule(scope: Scope) -> FileGuardrailRule:
    """Return the rule that blocks changes out of the scope in mode "auto"."""
    if scope.strict:
        what = "Protected files, and what a strict run changes only by name"
    else:
        what = "Protected files"

    return FileGuardrailRule(PROTECTED_RULE, what, _OutOfScope(scope))


def is_guarded(path: str, scope: Scope) -> bool:
    """Return whether programs may not change this file; files in installed packages are not protected."""
    return _INSTALLED.isdisjoint(path.split("/")) and bool(scope.protection(path))


def unnamed(request: str, paths: Iterable[str]) -> list[str]:
    """Return the changed paths that are unrelated to the files that the request names.

    The result is empty if the request names no changed file. A path is related to a named one if it is below the same
    top folder or has the same subject (cart.py, test_cart.py). Tests and documents are never returned.
    """
    changed = [*paths]
    scope = Scope(frozenset(map(_plain, _words(request))))
    named = [path for path in changed if scope.permits(path)]

    if not named:
        return []

    subjects = set(map(_subject, named))
    folders = {PurePath(path).parts[0] for path in named}
    others = [path for path in changed if _subject(path) not in subjects and not _is_test_or_document(path)]

    return [path for path in others if PurePath(path).parts[0] not in folders]


def _is_test_or_document(path: str) -> bool:
    return bool(IS_TEST.search(path)) or PurePath(path).suffix.lower() in _DOCUMENTS


def _subject(path: str) -> str:
    """Return the name of a file without suffix and without the marks of a test."""
    return re.sub(r"\Atest_|[._](?:test|spec)\Z", "", PurePath(path).stem)
