"""Every command and every block of code in the README, the docs and the tutorials.

- A command is read by the command itself: its options and arguments are known. The experiment or
  the sweep that it names is put together with every setting, so that what no rule allows, or no
  setting has, is found. ``RUN`` runs for real; all others are in ``NOT_RUN`` with the reason.
- Python blocks run, page by page in an empty folder; those of ``ELSEWHERE`` run in the tests named
  there.
- TOML is read as what it is: an experiment, a part of one, or a sweep.
"""

import json
import re
import shlex
import shutil
import tomllib
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from typer.main import get_command

import processes
from fedunseen import Experiment
from fedunseen.cli.main import app
from fedunseen.core.presets import preset_names
from fedunseen.experiment.parsing import parse_override
from fedunseen.research.sweep import read_sweep
from fedunseen.research.sweeps import sweep_names

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("docs/**/*.ipynb"),
    *ROOT.glob("benchmarks/*.md"),
]
PAGES.remove(ROOT / "CHANGELOG.md")  # of what there was, too

RUN = {"presets", "sweeps", "settings", "data list", "data deal", "certs"}
"""Commands that run for real, with the options that the pages show."""

REASONS = {
    "its experiment or its grid is put together with every setting": "run, sweep, attack backdoor, "
    "attack leakage",
    "those of the guide and of any-shot run in test_documents": "predict, learn, forget",
    "continues until it is stopped; tests/serve, tests/cli and tests/engines run it as a process": "serve, host, join",
    "needs or changes files that a page does not have; runs in tests/cli": "estimate, "
    "adapt, sums, compare, export, push, report, init, new, data encode, data check, doctor, offline "
    "plan, offline answer, offline merge, offline withdraw, ledger, health, bench, statistics, "
    "certs renew, certs revoke, certs request, certs sign, encode, offline count, history, rollback, "
    "look plan, look answer, look read, look host, look join",
}
NOT_RUN = {name for names in REASONS.values() for name in names.split(", ")}

ELSEWHERE = {
    "README.md": "test_documents: one block, and what it prints",
    "docs/data.md": "test_documents: with the files of the page",
    "docs/any-shot.md": "test_documents: between the page's commands",
    "docs/building-blocks.md": "test_documents: as doctests",
    "docs/extending.md": "core/test_registry: the same method, in a file and in a notebook",
    "docs/library.md": "test_documents: as doctests",
    "docs/models.md": "test_documents: as doctests",
    "docs/run-directory.md": "report/test_run_directory: as doctests, on a run",
}

OTHER_PROGRAMS = {
    "cp", "curl", "docker", "export", "journalctl", "make", "pip", "printf", "python", "python3", "source", "sudo",
    "tensorboard", "uv",
    "flower-superlink", "flower-supernode", "flwr", "for", "nvflare",
}  # fmt: skip
"""What else the pages call: on another machine, in a container, or to install something."""

SHOWN = {"", "csv", "html", "ini", "json", "nginx", "text", "yaml"}
"""Languages of blocks that show something and do nothing."""


class Block(NamedTuple):
    """A fenced block."""

    page: str
    language: str
    text: str


class Command(NamedTuple):
    """A command line of a page, split into words; ``whole`` if it stands in a block, and not in a
    sentence.
    """

    page: str
    program: str
    words: list[str]
    whole: bool

    @classmethod
    def of(cls, page, line, whole):
        """Read a line; variables may be set before the program's name."""
        program, rest = re.fullmatch(
            r"(?:[A-Z_]+=(?:\$\(.*?\)|[^\s$])*\s+)*(\S+)(.*)", line, re.DOTALL
        ).groups()
        return cls(
            page,
            program,
            [word for word in shlex.split(rest, comments=True) if word != "..."],
            whole,
        )


def text_of(page):
    if page.suffix != ".ipynb":
        return page.read_text("utf-8")
    cells = json.loads(page.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


TEXTS = {str(page.relative_to(ROOT)): text_of(page) for page in sorted(PAGES)}
BLOCKS = [
    Block(page, language, text)
    for page, whole in TEXTS.items()
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", whole, re.DOTALL | re.MULTILINE)
]


def commands():
    """Return every command line: of console blocks, and in the text between backticks."""
    for block in BLOCKS:
        if block.language == "console":
            for line in re.findall(
                r"^\s*\$ (.*)", re.sub(r"\\\n\s*", " ", block.text), re.MULTILINE
            ):
                yield Command.of(block.page, line, True)
        elif block.language == "sh":  # commands alone, to be copied as they stand
            yield from (Command.of(block.page, line, True) for line in block.text.splitlines())
    for page, whole in TEXTS.items():
        prose = re.sub(r"^ *```.*?^ *```", "", whole, flags=re.DOTALL | re.MULTILINE)
        for line in re.findall(
            r"`(fedunseen [a-z][^`]*|python (?:benchmarks|tools)/[^`]*)`", prose
        ):
            yield Command.of(page, line, False)


APP = get_command(app)
COMMANDS = list(commands())
OURS = [command for command in COMMANDS if command.program == "fedunseen"]


def parsed(command):
    """Read a command line as the command does, without running it: its name, and the values of its
    parameters.
    """
    group, name, words = APP, [], command.words
    while hasattr(group, "commands") and words and not words[0].startswith("--"):
        group, name, words = group.commands[words[0]], [*name, words[0]], words[1:]
    if (
        not command.whole
        and words
        and words[-1] in {option for param in group.params for option in param.opts}
    ):
        words = words[:-1]  # a sentence names an option without its value
    values, _, _ = group.make_parser(click.Context(group)).parse_args(list(words))
    given = {
        key: value for key, value in values.items() if not isinstance(value, Enum)
    }  # not unset
    return " ".join(name) or "fedunseen", group, given


def missing(command, values):
    """Name the required parameters that have no value, and the options whose value cannot be what
    it is.
    """
    context = click.Context(command)
    for param in command.params:
        value = values.get(param.name)
        if param.required and not value:
            yield param.name
        if value and not isinstance(param.type, click.Path) and "--help" not in param.opts:
            param.type_cast_value(context, value)


def read(name, values):
    """Put together what a command names: an experiment or a sweep that comes with the package."""
    settings = dict(parse_override(text) for text in values.get("overrides") or [])
    if name in ("run", "host", "offline plan", "attack backdoor", "attack leakage", "data deal"):
        if values.get("experiment") in preset_names():
            Experiment.load(values["experiment"], settings)
    elif name == "sweep" and values.get("source") in sweep_names():
        read_sweep(values["source"], values.get("data") or [], settings)


@pytest.mark.parametrize("command", OURS, ids=lambda c: f"{c.page}: {' '.join(c.words)[:80]}")
def test_a_command_is_one_that_the_command_takes(command):
    name, taken, values = parsed(command)
    assert name in RUN or name in NOT_RUN, f"say why {name} is not run, or run it"
    if command.whole:
        assert list(missing(taken, values)) == []
    if not command.page.startswith("docs/extending"):  # whose names are those of its own package
        read(name, values)


@pytest.mark.slow
def test_commands_run_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = set()
    for one in OURS:
        words, (name, taken, values) = one.words, parsed(one)
        complete = not list(missing(taken, values)) and not any(word.isupper() for word in words)
        complete &= words != ["certs"]  # one of its options or commands is needed
        if name in RUN and complete and tuple(words) not in done:
            done.add(tuple(words))
            shutil.rmtree(tmp_path / "kits", ignore_errors=True)
            processes.command(*words)
    assert {words[0] for words in done} == {name.split()[0] for name in RUN}


def test_reasons_are_of_commands_that_the_pages_have():
    named = {parsed(command)[0] for command in OURS}
    assert (RUN | NOT_RUN) - named == set()


def test_no_command_hides_in_an_indented_block():
    prose = {page: re.sub(r"```.*?```", "", whole, flags=re.S) for page, whole in TEXTS.items()}
    found = {
        page: re.findall(r"^    (?:\$ )?((?:fedunseen|python|pip) .*)", text, re.M)
        for page, text in prose.items()
    }
    assert {page: lines for page, lines in found.items() if lines} == {}


def test_scripts_take_the_options_that_pages_give_them():
    seen = 0
    for page, _, words, _ in COMMANDS:
        for script in (word for word in words if word.startswith(("benchmarks/", "tools/"))):
            source, seen = (ROOT / script).read_text("utf-8"), seen + 1
            for word in words:
                assert not word.startswith("--") or f'"{word.partition("=")[0]}"' in source, (
                    page,
                    words,
                )
    assert seen > 20


def test_extras_and_targets_that_pages_name_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page, whole in TEXTS.items():
        for named in re.findall(r"(?:fedunseen|'\.)\[([\w,-]+)\]'", whole):
            assert set(named.split(",")) <= set(extras), (page, named)
        for target in re.findall(r"(?:[`$] ?|^)make ([\w-]+)", whole, re.MULTILINE):
            assert f"\n{target}:" in makefile, (page, target)


def test_other_programs_and_languages_are_known_ones():
    assert {command.program for command in COMMANDS} == OTHER_PROGRAMS | {"fedunseen"}
    assert {block.language for block in BLOCKS} <= SHOWN | {"console", "python", "sh", "toml"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", sorted({b.page for b in BLOCKS if b.language == "python"} - set(ELSEWHERE))
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    known = {}
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            exec(compile(block.text, page, "exec"), known)


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "toml"], ids=lambda b: f"{b.page}: {b.text[:40]!r}"
)
def test_toml_is_what_the_package_reads(block, tmp_path):
    tree = tomllib.loads(block.text)
    if "project" in tree:  # of another package
        return
    file = tmp_path / "block.toml"
    file.write_text(block.text, "utf-8")
    if "axes" in tree:
        read_sweep(file)
    elif "data" in tree and "method" in tree:
        Experiment.load(file)
    else:
        settings = {
            f"{section}.{key}": value
            for section, keys in tree.items()
            for key, value in keys.items()
        }
        Experiment.load("digit-pairs", settings)
