"""The model card of a run: what the model is, what it learnt from, how good it is and how that was chosen, as Markdown.

It begins with the block of YAML that model hubs read, so that it can be uploaded as a model's ``README.md`` as it is.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedunseen.core.files import write_text
from fedunseen.core.registry import find
from fedunseen.evaluation.measures import TITLES, ZERO_SHOT_MEASURES
from fedunseen.report.reproduce import command

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["model_card", "write_card"]

SELECTED = {
    "validation": "on validation classes, by a run of its own that saw no test sample",
    "best-on-test": "on the test set, so that these numbers flatter",
    "last": "not at all: the last round was taken",
}
_LISTED = 30  # classes that are named


def model_card(run: Run) -> str:
    """Return the model card of a complete run, of one seed or of several.

    Example:
        >>> import tempfile
        >>> from fedunseen import Experiment, run
        >>> quick = {"strategy.rounds": 1, "data.train_per_class": 2, "data.test_per_class": 2}
        >>> quick |= {"evaluation.selection": "last", "method.kl": 0}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     card = model_card(run(Experiment.load("digit-pairs", quick), folder))
        >>> [line for line in card.splitlines() if line.startswith("#")]
        ['# digit-pairs', '## Data', '## Classes', '## Method', '## Numbers', '## Privacy', '## Limits',
         '## How to use it']
    """
    first = run.seeds[0] if run.seeds else run
    experiment, manifest = first.experiment, first.manifest
    few_shot, strategy = "few_shot" in run.result, find("strategy", experiment.strategy.name)
    head = {
        "library_name": "fedunseen",
        "tags": ["federated-learning", "few-shot" if few_shot else "zero-shot", experiment.method.name],
        "datasets": [experiment.data.name],
    }
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", ""]
    what = "learns new classes from a few examples" if few_shot else "recognises classes from their attributes"
    lines += [
        f"# {_inert(experiment.name)}",
        "",
        f"A model that {what}, trained by federated learning: every client kept its samples, and "
        + ("only what it learnt from them was merged." if strategy.merges else "trained alone."),
        "",
    ]
    one, merged = manifest.get("client", first.client), experiment.strategy.personal_epochs is not None
    if one is not None:
        of = "those of the merged model" if merged else "means over the clients' own models"
        lines += [f"This is the own model of client {one}; the numbers below are {of}.", ""]
    elif merged and first.own_models:
        lines += [f"Beside it, {len(first.own_models)} clients have models of their own, trained on from it.", ""]
    elif not first.one_model:
        lines += ["Every client has its own model; the numbers below are means over the clients' own models.", ""]
    lines += _origin(run, first)
    lines += ["## Numbers", "", *_numbers(run.result), ""]
    selection = run.result.get("selection", experiment.evaluation.selection)
    lines += [f"Round, calibration and settings were chosen {SELECTED[selection]}.", ""]
    for one in run.result.get("warnings", []):
        lines += [f"**Something seems to be wrong:** {_inert(one['what'])} {_inert(one['remedy'])}", ""]
    lines += ["## Privacy", "", *_privacy(run), "", "## Limits", "", *_limits(few_shot), "", "## How to use it", ""]
    lines += _usage(run, first, few_shot)
    return "\n".join(lines) + "\n"


def _origin(run: Run, first: Run) -> list[str]:
    """Return what the model learnt from, and how: data, classes and method."""
    experiment, space, manifest = first.experiment, first.space, first.manifest
    lines = ["## Data", ""]
    shape = " x ".join(map(str, manifest["input_shape"]))
    lines += [
        f"- Benchmark: `{experiment.data.name}`; one sample is {shape} numbers.",
        f"- Encoder before the model: `{experiment.encoder.name}`.",
        f"- Clients: {experiment.partition.clients}, partition `{experiment.partition.kind}`.",
    ]
    lines += [f"- Fingerprint of the data: `{manifest['data']}`."] if isinstance(manifest.get("data"), str) else []
    unseen = [space.names[c] for c in space.unseen]
    lines += [
        "",
        "## Classes",
        "",
        f"- {len(space.seen)} seen in training, of which {len(space.validation)} are validation classes; "
        f"{len(unseen)} unseen.",
        f"- {space.attributes} attributes describe a class." if space.attributes else "- No attributes describe them.",
        f"- Unseen: {_listed(unseen)}.",
        "",
        "## Method",
        "",
        f"- Method `{experiment.method.name}`, strategy `{experiment.strategy.name}`.",
    ]
    if "rounds" in run.result:
        chosen = (
            f", of which round {run.result['selected_round']} is the model" if "selected_round" in run.result else ""
        )
        rounds = run.result["rounds"]
        lines += ["- One round." if rounds == 1 else f"- {rounds} rounds{chosen}."]
    lines += [f"- Seeds: {', '.join(map(str, run.result.get('seeds', [manifest['seed']])))}."]
    again, whole = command(run.manifest["experiment"], run.manifest.get("plugins", ()))
    made = "Made by" if whole else "Made by, with the experiment of `manifest.json` written to that file,"
    lines += [f"- {made}:", "", *(f"      {line}" for line in again.splitlines()), ""]
    return lines


def _usage(run: Run, first: Run, few_shot: bool) -> list[str]:
    """Return how the model is used from Python and in a browser."""
    own = first.own_models[0] if not first.one_model else first.client
    taken, named = ("", "") if own is None else (f".of_client({own})", f" --client {own}")
    lines = ["```python", "from fedunseen import load_run", "", f"run = load_run({json.dumps(run.path.name)}){taken}"]
    if few_shot:
        lines += ['print(run.predict("picture.png", support="examples", top=3))  # examples/CLASS/*.png']
    else:
        lines += ['print(run.predict("picture.png", top=3))']
    lines += [
        "```",
        "",
        f"In a browser, and for other programs: `fedunseen serve {_inert(quote(run.path.name))}{named}`.",
    ]
    return lines


def write_card(run: Run, path: Path | None = None) -> Path:
    """Write the model card of a complete run, by default as ``README.md`` in the run directory."""
    target = path if path is not None else run.path / "README.md"
    write_text(target, model_card(run))
    return target


def _inert(text: str) -> str:
    """Return text on one line in which a page that shows the card finds no tag, no link and no code."""
    return re.sub(r"([\\`\[\]])", r"\\\1", " ".join(html.escape(text, quote=False).split()))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(map(_inert, names[:_LISTED])) or "none") + more


def _numbers(result: Any) -> list[str]:
    """Return the table of the accuracies in percent."""
    words = {one.name: one.words for one in ZERO_SHOT_MEASURES}
    rows = ["| accuracy | % | what it is |", "|---|--:|---|"]
    for name, title in TITLES.items():
        if name not in result:
            continue
        spread = ""
        if f"{name}_ci95" in result:
            spread = f" ± {result[f'{name}_ci95']:.1f} (95 % interval)"
        elif f"{name}_sd" in result:
            spread = f" ± {result[f'{name}_sd']:.1f} (standard deviation over seeds)"
        rows.append(f"| {title} | {result[name]:.1f}{spread} | {words.get(name, '')} |")
    return rows


def _privacy(run: Run) -> list[str]:
    privacy = run.manifest["experiment"].get("privacy") or {"name": "none"}
    if privacy["name"] == "none":
        told = "- Merged without differential privacy. What the model says of one client's data is not bounded."
    else:
        told = f"- Merged with `{privacy['name']}` differential privacy."
        if "epsilon" in run.result:
            told += f" Epsilon {run.result['epsilon']:.2f} at delta {privacy['delta']:g}."
    if privacy.get("aggregation") == "masked":
        lines = [told, "- Merged under masks: the server saw the sum of each round's updates, and none of them alone."]
        if privacy.get("dropouts") == "allow":
            lines.append("- Sums of nearly the same clients were allowed: a server that lies can compare two of them.")
        return lines
    return [told, "- The server saw what each client sent, one by one: it is trusted."]


def _limits(few_shot: bool) -> list[str]:
    lines = [
        "- It answers with one of the classes that it is given, also for a sample of none of them.",
        "- Its numbers hold for samples like those of the benchmark, prepared in the same way.",
        "- A softmax of its scores is no probability of being right: nothing has calibrated it to be one.",
    ]
    if not few_shot:
        lines.append("- A class is told from others by its attributes alone: two classes with the same ones are one.")
    return lines
