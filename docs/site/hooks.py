"""What `make docs` adds to the files of docs/: navigation, pages from outside docs/, notebooks,
commands and the API.

The files stay as they are on a code host. Links are written as they work there, and become those of
the site here.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from fedunseen import __version__

ROOT = Path(__file__).parents[2]
NAVIGATION = "docs/README.md"
OUTSIDE = {
    "README.md": "index.md",
    NAVIGATION: "pages.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages that are no files of docs/ under their name on the site -> where they stand there."""

LINK = re.compile(r'(\]\(|(?:src|href)=")(?!\w+:|#)([^)#"\s]+)')
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)  # in which nothing is a link
ENTRY = re.compile(r"^- \[(.+?)\]\(([^)]+)\)", re.M)

API = {
    "Classifier": (
        "estimator",
        "On arrays, with scikit-learn's interface.",
        ["fedunseen.estimator.ZeroShotClassifier"],
    ),
    "Runs": (
        "runs",
        "From an experiment to a run directory, and from there to predictions.",
        [
            "fedunseen.experiment.schema.Experiment",
            "fedunseen.experiment.running.run",
            "fedunseen.experiment.result.run.load_run",
            "fedunseen.experiment.result.run.Run",
            "fedunseen.experiment.result.run.load_model",
            "fedunseen.model.Model",
        ],
    ),
    "Data and federation": (
        "federation",
        "What the parties hold, and the rounds of a training loop of one's own.",
        [
            "fedunseen.data.benchmark.Benchmark",
            "fedunseen.data.class_space.ClassSpace",
            "fedunseen.federation.partition.Partition",
            "fedunseen.federation.federation.Federation",
            "fedunseen.federation.loop",
        ],
    ),
    "Losses": ("losses", "", ["fedunseen.losses"]),
    "Metrics": ("metrics", "", ["fedunseen.metrics"]),
    "Partitions": ("partitions", "", ["fedunseen.partitions"]),
    "Methods": ("methods", "", ["fedunseen.methods.base", "METHODS"]),
    "Strategies": (
        "strategies",
        "",
        ["fedunseen.strategies", "fedunseen.strategies.base", "STRATEGIES"],
    ),
    "Errors": ("errors", "", ["fedunseen.core.errors"]),
}
"""Title of a page of the API -> its file, its first sentence, what it documents."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the navigation from docs/README.md, and put the version into the title."""
    config.site_name = f"FedUnseen {__version__}"
    sections = re.split(r"^## (.+)$", (ROOT / NAVIGATION).read_text("utf-8"), flags=re.M)[1:]
    nav: list[dict[str, object]] = [{"Home": "index.md"}]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        if title == "Research notes":  # reached by links alone
            continue
        pages: list[dict[str, object]] = []
        for name, target in ENTRY.findall(text):
            pages.append({name: address(posixpath.normpath(f"docs/{target}"))})
        if title == "Reference":
            pages += [
                {"Commands": "commands.md"},
                {"Errors": "errors.md"},
                {"Python": [{t: f"api/{f}.md"} for t, (f, _, _) in API.items()]},
            ]
        nav.append({title: pages})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    made = {
        target: translated(source, (ROOT / source).read_text("utf-8"))
        for source, target in OUTSIDE.items()
    }
    made["index.md"] = "---\nhide: [navigation, toc]\n---\n" + made["index.md"]
    made["commands.md"] = commands()
    made["errors.md"] = errors()
    for title, (name, first, things) in API.items():
        made[f"api/{name}.md"] = "\n\n".join(
            [f"# {title}", first, *(block for one in things for block in entries(one))]
        )
    for notebook in sorted((ROOT / "docs/tutorials").glob("*.ipynb")):
        source = f"docs/tutorials/{notebook.name}"
        title, _, text = translated(
            source, page_of(json.loads(notebook.read_text("utf-8")))
        ).partition("\n")
        download = f'<a href="{notebook.name}" download>Download this page as a notebook</a>'
        made[address(source)] = f"{title}\n\n{download}\n{text}"
    for page in (ROOT / "docs").rglob("*.md"):
        for target in linked(str(page.relative_to(ROOT)), page.read_text("utf-8")):
            if address(target).startswith("source/"):
                made[address(target)] = (ROOT / target).read_text("utf-8")
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_read_source(page: object, config: MkDocsConfig) -> str | None:
    """Translate the links of a file of docs/."""
    file = page.file  # type: ignore[attr-defined]
    if file.generated_by or not file.src_uri.endswith(".md"):
        return None
    text = translated(f"docs/{file.src_uri}", (ROOT / "docs" / file.src_uri).read_text("utf-8"))
    more = {"experiment.md": settings, "privacy.md": declared}
    return f"{text}\n{more[file.src_uri]()}" if file.src_uri in more else text


def on_post_build(config: MkDocsConfig) -> None:
    """Leave nothing in the site that asks another host: the theme would fetch scripts that no page
    here needs.
    """
    site = Path(config.site_dir)
    for map_file in site.rglob("*.map"):
        map_file.unlink()
    for script in site.rglob("*.js"):
        text = script.read_text("utf-8")
        script.write_text(
            re.sub(r"https://unpkg\.com/[\w.@/-]+|\n?//# sourceMappingURL=\S+", "", text), "utf-8"
        )


def address(source: str) -> str:
    """Return where a file of the repository stands on the site: ``docs/data.md`` at ``data.md``.

    What is no page stands there as text: ``deploy/compose.yaml`` at
    ``source/deploy/compose.yaml.txt``.
    """
    if source in OUTSIDE:
        return OUTSIDE[source]
    if not (ROOT / source).is_file():
        raise PluginError(f"a link leads to {source}, which is no file of the repository")
    if not source.startswith("docs/"):
        return f"source/{source}.txt"
    return re.sub(r"\.ipynb$", ".md", source.removeprefix("docs/"))


def translated(source: str, text: str) -> str:
    """Return the text of a file of the repository with its links as those of the site."""
    here = posixpath.dirname(address(source)) or "."

    def link(match: re.Match[str]) -> str:
        return match[1] + posixpath.relpath(address(target_of(source, match)), here)

    return "".join(
        part if i % 2 else LINK.sub(link, part) for i, part in enumerate(CODE.split(text))
    )


def linked(source: str, text: str) -> list[str]:
    """Return the files of the repository that the text of one of them links to."""
    return [
        target_of(source, match) for part in CODE.split(text)[::2] for match in LINK.finditer(part)
    ]


def target_of(source: str, match: re.Match[str]) -> str:
    """Return the file of the repository that a link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(match[2])))


def page_of(notebook: dict) -> str:
    """Return a notebook as Markdown: its cells, with what they print and show."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                png = "".join(data["image/png"]).replace("\n", "")
                parts.append(
                    '<img class="output" alt="what the block above shows" '
                    f'src="data:image/png;base64,{png}">'
                )
            elif "text/html" in data:
                parts.append(f'<div class="output">{"".join(data["text/html"])}</div>')
            else:
                parts.append(f"``` {{.text .output}}\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    """Return the sections of an experiment file with their keys, made from the code that reads
    them.
    """
    from fedunseen.cli.settings import reference

    return reference()


def declared() -> str:
    """Return the list of all that a party sends, made from the list that the party keeps to."""
    from fedunseen.deploy.remote.declared import table
    from fedunseen.deploy.remote.refusals import REFUSALS

    rows = [f"| `{code}` | {text} |" for code, text in REFUSALS.items()]
    codes = "\n".join(["| code | what the coordinator shows |", "|---|---|", *rows])
    return f"## Every field that a party sends\n\n{table()}\n\n## Codes of refusals\n\n{codes}\n"


def commands() -> str:
    """Return the page of the commands, made from the command itself."""
    from typer import Context
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from fedunseen.cli.main import app

    def whole(command: object) -> None:
        for one in getattr(command, "commands", {}).values():
            one.short_help = (one.help or "").split("\n\n")[0].replace("\n", " ")
            whole(one)

    command = get_command(app)
    whole(command)
    return get_docs_for_click(obj=command, ctx=Context(command), name="fedunseen", title="Commands")


GIVEN = {
    "": "",
    "images": "with images as samples",
    "sequences": "with sequences as samples",
    "maps": "with feature maps as samples",
    "undescribed": "with classes that have no descriptions",
    "untrained": "at a coordinator without training samples",
    "arrays": "with arrays in memory",
    "offline": "in a federation by file",
}
"""What an example of a rule needs besides its settings."""


def errors() -> str:
    """Return the page of the errors, made from the classes of errors and from the rules."""
    from fedunseen.core.errors import FedUnseenError
    from fedunseen.deploy.rules import OFFLINE
    from fedunseen.experiment.rules import all_rules

    lines = [
        "# Errors",
        "Every error is one sentence with its code in brackets at the end, and the exit code is 2. "
        "With `--json`, "
        'standard output has `{"error": {"code": ..., "message": ...}}`.',
        "## Kinds",
    ]
    for kind in (FedUnseenError, *FedUnseenError.__subclasses__()):
        problem, _, remedy = (kind.__doc__ or "").split("\n")[0].rstrip(".").partition(": ")
        lines += [f"### {kind.code}", f"**Problem:** {problem}.", f"**Remedy:** {remedy}."]
    lines.append("## Combinations of settings")
    for rule in {
        rule.code: rule for rules in (*all_rules().values(), OFFLINE) for rule in rules
    }.values():
        settings = " ".join(
            f"--set {key}='{json.dumps(value)}'" for key, value in rule.example.items()
        )
        cause = f"`fedunseen run {rule.preset} {settings}`".replace(" `", "`")
        lines += [
            f"### {rule.code}",
            f"**Problem:** {blanks(rule.problem)}.",
            "\n".join(f"- {blanks(reason)}" for reason in rule.reasons),
            f"**Cause:** for example {cause} {GIVEN[rule.needs]}".rstrip() + ".",
            f"**Remedy:** {blanks(rule.remedy)}.",
        ]
    return "\n\n".join(filter(None, lines)) + "\n"


def blanks(text: str) -> str:
    """Return a rule's text with dots for settings, and with names in capitals for what else the
    experiment fills in.
    """
    filled = re.sub(r"\{(\w+)[^.}]*\}", lambda found: found[1].upper(), text)
    return re.sub(r"\{[^}]*\}", "...", filled).replace("[", r"\[").replace("*", r"\*")


def entries(thing: str) -> list[str]:
    """Return the lines that let mkdocstrings document a thing; a registry stands for the classes
    that it names.
    """
    if thing.isupper():
        from fedunseen.methods import METHODS
        from fedunseen.strategies import STRATEGIES

        places = {"METHODS": METHODS, "STRATEGIES": STRATEGIES}[thing]
        short = "\n    options: {members: [], show_bases: false, show_signature: false}"
        return [f"::: {place.replace(':', '.')}{short}" for place in places.values()]
    if thing.rpartition(".")[2][0].isupper():
        return [f"::: {thing}"]
    return [f"::: {thing}\n    options: {{show_root_heading: false, show_root_toc_entry: false}}"]
