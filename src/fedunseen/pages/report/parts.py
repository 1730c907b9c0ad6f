"""What the pages of all tasks share: facts about a run, how sections become a page, and what two
tasks show alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import ArgumentError, MissingDependencyError, RunDirectoryError
from fedunseen.core.extensions import further_modules
from fedunseen.core.files import check_ordinary, parse_json
from fedunseen.core.text import shown_value
from fedunseen.experiment.known_by import known_words
from fedunseen.pages.report import sections, statistics
from fedunseen.pages.report.charts import Curve, line_chart, rounded_up
from fedunseen.pages.report.maps import holdings_map

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from fedunseen.experiment.result.run import Run

Tensors = Mapping[str, NDArray[Any]]

LINES = (
    "blue",
    "orange",
    "green",
    "purple",
    "sky",
    "yellow",
)  # colors of lines that mean nothing by themselves
ADVICE = 3  # things to do next
LISTED = 120  # classes that are listed openly; more are folded away
NAMED_HOLDINGS = 150  # classes of one client that are named
DRAWN_CLIENTS = 200  # rows of a map; of more clients, evenly spaced ones are drawn

_SHARED = {  # sentences of several texts
    "blind": "No test sample took part in the choice.",
    "flatters": "Many papers do this. The result is optimistic: a choice without the test labels "
    "gives less.",
    "last": "No other round was considered.",
}


def rounds_tried(result: Mapping[str, Any]) -> int:
    """Return among how many rounds the reported one was chosen: those on validation classes, where
    it was there.
    """
    return int(result.get("chosen_on_validation", {}).get("rounds", result["rounds"]))


@cache
def further_sections() -> dict[str, ModuleType]:
    """Return name -> module of the sections that are a Python file each."""
    package = sections.__name__
    modules = {name: import_module(f"{package}.{name}") for name in further_modules(package)}
    for module in modules.values():
        for needed in ("TEMPLATE", "content"):
            if not hasattr(module, needed):
                raise TypeError(f"{module.__name__} has no {needed}: a section's file has both")
    return modules


@cache
def _environment() -> Environment:
    """Return what fills in templates."""
    try:
        from jinja2 import ChoiceLoader, DictLoader, Environment, FunctionLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingDependencyError("pages need jinja2: pip install 'fedunseen[report]'") from None

    source = files("fedunseen.pages")
    in_files = FunctionLoader(
        lambda name: (source / (name if name.startswith("serve/") else f"report/{name}")).read_text(
            "utf-8"
        )
    )
    added = {f"sections/{name}.html": at.TEMPLATE for name, at in further_sections().items()}
    environment = Environment(
        loader=ChoiceLoader([DictLoader(added), in_files]),
        autoescape=lambda name: not (name or "").startswith("texts/"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown_value,
    )
    environment.globals["style"] = Markup((source / "report/style.css").read_text("utf-8"))
    macros = environment.get_template("parts.html").module
    environment.globals |= {
        name: getattr(macros, name) for name in ("bar", "grid", "part", "percent", "said")
    }
    return environment


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return the text of a page: a template of this folder or of ``serve/``, filled in."""
    environment = _environment()
    from jinja2 import UndefinedError

    try:
        return environment.get_template(template).render(context).rstrip("\n") + "\n"
    except UndefinedError as error:  # a table lacks a key, or holds another kind of value
        raise RunDirectoryError(
            f"the page {template} cannot be drawn ({error}): restore manifest.json and "
            "result.json, or run the experiment again in another --out; correct the name if the "
            "template is your own"
        ) from error


def paragraphs(template: str, context: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs of a plain text, a template of ``texts/`` filled in, each on one
    line.
    """
    text = render(f"texts/{template}.txt", context)
    return [re.sub(r"[ \n]+", " ", part).strip() for part in text.split("\n\n") if part.strip()]


def passages(template: str, context: Mapping[str, Any]) -> dict[str, str]:
    """Return the paragraphs of a plain text by name: each begins with ``name:``."""
    parts = (paragraph.partition(":") for paragraph in paragraphs(template, {**_SHARED, **context}))
    return {name: text.strip(" ") for name, _, text in parts}


Content = Mapping[str, Any] | None  # what a template shows; None leaves the section out
Sections = Sequence[
    tuple[str, Callable[["Facts"], Content]]
]  # templates in sections/, and what computes their content


def render_sections(facts: Facts, sections: Sections, details: Sections = ()) -> str:
    """Return a page of sections; ``details`` come last, folded."""
    from markupsafe import Markup

    context = {"facts": facts, "experiment": facts.experiment}

    def rendered(listed: Sections) -> Iterator[Markup]:
        for name, content in listed:
            try:
                if (shown := content(facts)) is None:
                    continue
                text = render(f"sections/{name}.html", context | dict(shown))
            except (MissingDependencyError, RunDirectoryError):
                raise
            except (ArgumentError, ArithmeticError, AttributeError, LookupError, TypeError,
                    ValueError) as error:  # fmt: skip
                raise RunDirectoryError(
                    f"{facts.run.path}: the section {name!r} of the report cannot be drawn "
                    f"({type(error).__name__}): restore evaluation.safetensors, metrics.jsonl and "
                    "result.json, or run the experiment again in another --out"
                ) from error
            if text:
                yield Markup(text)

    parts = {"sections": list(rendered(sections)), "details": list(rendered(details))}
    return render("report.html", context | parts)


class Facts:
    """What sections need to know about a run, read from its directory alone: no plug-in's code is
    loaded.
    """

    def __init__(self, run: Run) -> None:
        first = run.first
        traits = run.manifest["traits"]
        # of several seeds, the figures are the first one's
        self.whole = run
        self.run = first
        self.tensors: Tensors = first.evaluation
        self.task = str(run.manifest["task"])
        self.experiment = run.manifest["experiment"]
        self.prior = self.experiment.get("evaluation", {}).get("prior", "balanced")
        self.merges, self.pools, self.zero_shot = (
            bool(traits[name]) for name in ("merges", "pools", "zero_shot")
        )
        self.private = tuple(traits["private"])
        self.one_model = first.one_model
        self.names = first.space.names
        learnt = first.manifest.get("learnt", ())
        self.unseen: NDArray[np.int64] = np.array(
            [c for c in first.space.unseen if self.names[c] not in learnt], dtype=np.int64
        )  # no test sample is of those that were learned since
        shown = first.result.get("shown", {})
        self.shown = [c for c in self.unseen.tolist() if shown.get(self.names[c])]
        self.given = known_words(first)
        self.parties = parties(first)
        few = self.task == "few-shot"
        self.chance = 100.0 / (
            float(self.experiment["method"]["ways"]) if few else max(len(self.unseen), 1)
        )
        self.calibrated = bool(
            first.result.get("calibration_factor") or first.result.get("left_out_offset")
        )
        self.model = "trained model" if self.pools else "merged model"

    def of_classes(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the names of classes."""
        return [self.names[int(c)] for c in ids]


def axis(lines: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return (T,) the rounds of some lines of metrics."""
    return np.array([line["round"] for line in lines], dtype=np.float64)


def upper_end(curves: Sequence[Curve]) -> float:
    """Return a common upper end for percentages: 100, or lower where all that is drawn is low."""
    return rounded_up(max(curve.highest for curve in curves))


def labelled(names: Sequence[str]) -> tuple[bool, list[str]]:
    """Return what is written at the classes of a picture: names, or numbers where names would hide
    each other.
    """
    numbered = len(names) > 50 or float(np.mean([len(name) for name in names])) > 4
    return numbered, [str(i + 1) for i in range(len(names))] if numbered else list(names)


def parties(run: Run) -> list[dict[str, Any]]:
    """Return of each party of a deployment: name, classes, samples, rounds merged and missed,
    seconds; else nothing.
    """
    check_ordinary(run.path / "parties.json")
    try:
        recorded = parse_json((run.path / "parties.json").read_bytes())
        rows = [
            {key: section[key] for key in ("name", "classes", "samples")} for section in recorded
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    for client, row in enumerate(rows):
        merged = [line for line in run.metrics if client in line["participants"]]
        took = [
            line["client_seconds"][str(client)]
            for line in merged
            if str(client) in line.get("client_seconds", {})
        ]
        missed = sum(str(client) in line.get("dropped", {}) for line in run.metrics)
        row |= {
            "merged": len(merged),
            "missed": missed,
            "seconds": float(np.median(took)) if took else None,
        }
    return rows


def chips(facts: Facts) -> list[tuple[str, str]]:
    """Return the names and values of the line below the first paragraph."""
    tree = facts.experiment
    seeds = facts.whole.result.get("seeds")
    clients = tree["partition"]["clients"]
    dealt = f"{tree['partition']['kind']}, {clients} client{'s' if clients != 1 else ''}"
    return [
        ("method", tree["method"]["name"]),
        ("strategy", tree["strategy"]["name"]),
        (
            "partition",
            "none, all data pooled"
            if facts.pools
            else "the parties' own"
            if facts.parties
            else dealt,
        ),
        ("benchmark", facts.run.manifest["benchmark"]),
        ("seeds", f"{seeds[0]} to {seeds[-1]}")
        if facts.whole.seeds and seeds
        else ("seed", tree["run"]["seed"]),
    ]


_CHOICES = {
    "validation": "Chosen on validation classes.",
    "best-on-test": "Not an honest choice: best on test.",
    "last": "Last round.",
}


def choice(facts: Facts, words: str) -> dict[str, Any]:
    """Return how the reported round was chosen, in words and in a label."""
    selection = facts.run.result["selection"]
    return {
        "label": _CHOICES[selection],
        "words": words,
        "css": "honest",
        "fine": selection != "best-on-test",
    }


def client_names(facts: Facts) -> list[str]:
    """Return what the rows of the maps of clients are called."""
    if facts.parties:
        return [str(party["name"]) for party in facts.parties]
    rows = len(facts.tensors["client_counts"])
    return ["all data"] if facts.pools and rows == 1 else [f"client {k}" for k in range(rows)]


def advice(
    facts: Facts, weak: Sequence[Any], remedy: str, usage: str, pool: Sequence[str] = ()
) -> list[str]:
    """Say what to do next, the most urgent first.

    ``pool``: the advice to try unlabelled samples.
    """
    run = facts.whole
    result = facts.run.result
    context = {
        "warnings": run.result.get("warnings"), "facts": facts, "result": result, "tried": rounds_tried(result),
        "weak": weak, "remedy": remedy, "seeds": run.seeds, "usage": usage, "pool": pool,
    }  # fmt: skip
    return paragraphs("advice", context)[:ADVICE]


def losses(run: Run, terms: Sequence[str]) -> str | None:
    """Draw the losses by term; the total is left out where it is the only term's double."""
    lines = run.metrics
    by_term = {
        name: statistics.curve([line.get("losses", {}) for line in lines], name) for name in terms
    }
    if len(by_term) == 2 and "loss" in by_term:
        single = next(term for term in by_term if term != "loss")
        if np.allclose(by_term[single], by_term["loss"], equal_nan=True):
            del by_term["loss"]
    if not by_term:
        return None
    curves = [
        Curve(y, name.replace("_", " "), LINES[i % len(LINES)], dashed=i >= len(LINES))
        for i, (name, y) in enumerate(by_term.items())
    ]
    return line_chart(curves, "Losses by term, mean of clients", axis(lines), legend=True)


def most_confused(
    table: NDArray[np.float64], names: Sequence[str], most: int = 6
) -> list[dict[str, Any]]:
    """Return the classes most often called another, from percentages (m, m) of true classes and
    answers.
    """
    wrong = np.where(np.eye(len(table), dtype=bool), 0.0, np.nan_to_num(table))
    worst = [
        divmod(int(i), len(table)) for i in np.argsort(-wrong, axis=None, kind="stable")[:most]
    ]
    return [
        {"true": names[i], "answer": names[j], "share": float(wrong[i, j])}
        for i, j in worst
        if wrong[i, j] >= 0.5
    ]


def holders(
    facts: Facts, idle: str = "not trained on", idle_listed: str = "no one, though not unseen"
) -> dict[str, Any]:
    """Draw and list who holds which classes."""
    counts = facts.tensors["client_counts"]
    order, held, idling = statistics.holding_order(counts, facts.unseen)
    per_client = (counts > 0).sum(axis=1)
    drawn = statistics.spaced(len(counts), DRAWN_CLIENTS)
    clients = client_names(facts)[drawn]
    of = len(counts)
    counts = counts[drawn]
    listed = []
    for client, row in zip(clients, counts, strict=True):
        holdings = [f"{facts.names[c]} ({row[c]:,})" for c in np.flatnonzero(row).tolist()]
        listed.append({"client": client, "classes": len(holdings), "samples": int(row.sum()), "names": holdings[:NAMED_HOLDINGS],
                       "more": max(len(holdings) - NAMED_HOLDINGS, 0)})  # fmt: skip
    spread = int(per_client.min()), int(per_client.max())
    return {
        "map": holdings_map(counts[:, order], facts.of_classes(order), held, idling, clients, idle),
        "listed": listed,
        "of": of,
        "range": spread[:1] if spread[0] == spread[1] else spread,
        "held": held,
        "idle_words": idle_listed,
        "idle": facts.of_classes(order[held : held + idling]),
        "not_held": facts.of_classes(facts.unseen),
    }
