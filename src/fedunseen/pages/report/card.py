"""The model card of a run: what the model is, what it learned from, how good it is and how that was
chosen, as Markdown.
"""

import json
from collections.abc import Mapping
from shlex import quote
from typing import Any

from fedunseen.core.files import write_text
from fedunseen.core.registry import find
from fedunseen.core.text import inert
from fedunseen.evaluation.measures import TITLES, ZERO_SHOT_MEASURES
from fedunseen.evaluation.summary import listed
from fedunseen.experiment.known_by import known_words
from fedunseen.experiment.result.run import Run
from fedunseen.pages.report.parts import render
from fedunseen.pages.report.reproducibility import from_python, shown_command

_LISTED = 30  # classes that are named


def model_card(run: Run, hub: str = "") -> str:
    """Return the model card of a complete run, of one seed or of several.

    With ``hub``, ``OWNER/NAME`` of a repository, it says how to load the model from there, and
    leaves out the command, which may name folders of this machine.

    Example:
        >>> import tempfile
        >>> from fedunseen import Experiment, run
        >>> quick = {"strategy.rounds": 1, "data.train_per_class": 2, "data.test_per_class": 2}
        >>> quick |= {"evaluation.selection": "last", "method.kl": 0}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     card = model_card(run(Experiment.load("digit-pairs", quick), folder))
        >>> [line for line in card.splitlines() if line.startswith("#")]
        ['# digit-pairs', '## Data', '## Classes', '## Method', '## Numbers', '## Privacy', '##
        Limits',
         '## How to use it']
    """
    first = run.first
    experiment = first.experiment
    result = _inert(run.result)
    manifest = _inert(first.manifest)
    few_shot = "few_shot" in result
    context = {
        "first": first,
        "experiment": experiment,
        "manifest": {"data": None, **manifest},
        "space": first.space,
        "unseen": listed([inert(first.space.names[c]) for c in first.space.unseen], _LISTED)
        or "none",
        "shown": listed(
            [f"{name} ({count})" for name, count in result.get("shown", {}).items()],
            _LISTED,
        ),
        "result": {"seeds": None, "warnings": (), "adapted": None, "shown": {}, **result},
        "given": inert(known_words(first)),
        "few_shot": few_shot,
        "merges": find("strategy", experiment.strategy.name).merges,
        "client": manifest.get("client", first.client),
        "personal": experiment.strategy.personal_epochs is not None,
        "command": "" if hub else shown_command(run.manifest),
        "from_python": not hub and from_python(run.manifest),
        "hub": hub,
        "titles": TITLES,
        "meaning": {measure.name: measure.words for measure in ZERO_SHOT_MEASURES},
        "selected": result.get("selection", experiment.evaluation.selection),
        "privacy": {
            "aggregation": "plain",
            "name": "none",
            **(manifest["experiment"].get("privacy") or {}),
        },
        "path": run.path.name,
        "own": first.own_models[0] if not first.one_model else first.client,
        "inert": inert,
        "json": json.dumps,
        "quote": quote,
    }
    return render("texts/card.md", context)


def _inert(value: Any) -> Any:
    """Return what a file of a run says, with all texts in it inert: anyone may have written it."""
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, Mapping):
        return {_inert(key): _inert(item) for key, item in value.items()}
    return [_inert(item) for item in value] if isinstance(value, list | tuple) else value


def write_card(run: Run) -> None:
    """Write the model card of a complete run, ``README.md`` in the run directory."""
    write_text(run.path / "README.md", model_card(run))
