"""What to expect of classes that are added by their names alone: said before anything is answered.

All of it is measured: on the text encoder, which is asked about made-up words and plurals, and on
the model, whose unseen classes are drawn (:mod:`fedunseen.evaluation.new_class`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedunseen.core.text import shown
from fedunseen.data.names import misspelled, plain
from fedunseen.evaluation.new_class import Expected, can_expect, expected_of
from fedunseen.evaluation.summary import (
    EXAMPLES,
    GAIN,
    Gain,
    by_description,
    examples_gain,
    listed,
)
from fedunseen.experiment.names_as_read import ROUNDING, plurals_likeness, strange_names, unit

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

_NEIGHBORS = 2  # that are named
_PLURALS = 50  # classes whose plurals are compared with them


class Outlook(NamedTuple):
    """What to expect of a class that is known by its name alone.

    Attributes:
        name: of the class.
        expected: percent of its samples that get its name; None where it cannot be estimated.
        neighbors: the classes that are described most like it, the nearest first.
        same_as: a class that it is described as much like as by its plural; "" without one.
        unknown: its name looks like a made-up word to the text encoder.
        interval: four of five such classes lie between these percentages.
        sample: what is recognized.
        words: what describes it instead of its name; "" where that is its name.
    """

    name: str
    expected: float | None
    neighbors: tuple[str, ...]
    same_as: str = ""
    unknown: bool = False
    interval: tuple[float, float] | None = None
    sample: str = "picture"
    words: str = ""

    def sentence(self) -> str:
        """Say it, for somebody who does not know how classes are compared."""
        name = shown(repr(self.name))
        by = "description" if self.words else "name"
        if self.same_as:
            return (
                f"{name} and {shown(repr(self.same_as))} are described almost alike, so that this "
                "model cannot tell them apart: it takes the two for one class."
            )
        if self.unknown:
            return (
                f"{shown(repr(self.words or self.name))} looks like a made-up word to the text "
                f"encoder, which reads English: this {by} says little about what is in a "
                f"{self.sample}."
            )
        near = f"The most similar classes are {' and '.join(map(shown, self.neighbors))}."
        if self.expected is None or self.interval is None:
            return f"{name} is known by its {by} alone. {near}"
        return (
            f"{name} is known by its {by} alone: of 100 {self.sample}s of it, expect about "
            f"{self.expected:.0f} to be recognized (four of five such classes lie between "
            f"{self.interval[0]:.0f} and {self.interval[1]:.0f}). {near}"
        )

    def content(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        known = {
            key: value for key, value in self._asdict().items() if key not in ("sample", "words")
        }
        return {**known, "sentence": self.sentence()}


def outlooks(run: Run, names: Sequence[str], beside_all: bool = True) -> list[Outlook]:
    """Return what to expect of new classes of a run whose classes a text encoder described.

    Args:
        run: the run.
        names: of the classes.
        beside_all: they compete with all of the run's classes.
    """
    space = run.space
    known = {plain(name) for name in space.names}
    names = [name for name in names if plain(name) not in known]
    described = run.described(names) if names and space.from_texts else None
    if not isinstance(described, dict):
        return []
    rows = np.array([described[name] for name in names], dtype=np.float64)
    expected: list[Expected | None] = [None] * len(names)
    if beside_all and can_expect(run.model):
        expected = list(expected_of(run.model, rows, left_out(run)))
    strange = set(strange_names(names, run.describing))
    usual = float(np.median(plurals_likeness(space.names[:_PLURALS], run.describing)))
    outcomes = []
    for name, row, estimate in zip(names, rows, expected, strict=True):
        likeness = unit(space.semantics) @ unit(row[None])[0]
        likeness[space.undescribed] = -1.0
        order = np.argsort(-likeness, kind="stable")[:_NEIGHBORS]
        nearest = space.names[order[0]]
        plural = float(plurals_likeness([nearest], run.describing)[0])
        outcomes.append(
            Outlook(
                name,
                None if estimate is None else estimate.right,
                tuple(space.names[c] for c in order),
                nearest if likeness[order[0]] >= min(usual, plural) - ROUNDING else "",
                name in strange,
                None if estimate is None else (estimate.low, estimate.high),
                run.sample,
            )
        )
    return outcomes


def announced(
    run: Run, names: Sequence[str], beside_all: bool = True
) -> tuple[list[Outlook], list[str]]:
    """Return what to expect of new classes, and the sentences that say it."""
    expected = outlooks(run, names, beside_all)
    said = [outlook.sentence() for outlook in expected]
    helped = [outlook.name for outlook in expected if not outlook.same_as]
    return expected, said + ([help_by_examples(run, helped)] if helped else [])


def near_names(run: Run, names: Sequence[str]) -> list[str]:
    """Return warnings of new classes whose names may be misspellings of the run's own."""
    known = {plain(name) for name in run.space.names}
    return [
        f"warning: {shown(repr(name))} is close to the class {shown(repr(near))}: if you meant it, "
        "leave this out"
        for name in names
        if plain(name) not in known and (near := misspelled(name, run.space.names))
    ]


def help_by_examples(run: Run, names: Sequence[str]) -> str:
    """Say what a few samples of new classes would bring, and by which command."""
    options = " ".join(f"--class {shlex.quote(name)}" for name in names)
    path = shlex.quote(str(run.path))
    gain = _gain(run)
    measured = "."
    if gain is not None and gain.among_all is not None:
        before = by_description(run.result)
        if before is not None and gain.among_all[0] - before >= GAIN:
            measured = _raised(before, gain.among_all[0], "all", gain.spread())
    elif gain is not None and gain.after - gain.before >= GAIN:
        measured = _raised(gain.before, gain.after, "only such")
    whose = "it" if len(names) == 1 else "each"
    places = f"FOLDER/{names[0]}" if len(names) == 1 else f"FOLDER/{names[0]} and so on"
    return (
        f"{EXAMPLES} {run.sample}s of {whose} help{measured} Put them into {places}, then: "
        f"fedunseen learn {path} {options} --support FOLDER --out NEW"
    )


def _gain(run: Run) -> Gain | None:
    """Return what examples bring, as far as the run has its own measurements."""
    here = not run.brought_home and (run.path / "evaluation.safetensors").is_file()
    return examples_gain(run.result, run.evaluation if here else {})


def _raised(before: float, after: float, competing: str, spread: str = "") -> str:
    """Say what examples brought classes that no one trained on.

    ``spread``: how far single classes lie apart.
    """
    return (
        f": of classes that no one trained on, they took {before:.0f} of 100 right to {after:.0f}"
        f"{spread}, if {competing} classes compete."
    )


def shown_by_examples(run: Run, counts: Mapping[str, int]) -> list[str]:
    """Say what to expect of new classes that are known by examples, where the run has measured it
    on its own unseen classes beside all others.

    Args:
        run: the run, before it has these classes.
        counts: class -> how many examples of it.
    """
    known = {plain(name) for name in run.space.names}
    new = [f"{shown(repr(name))} ({n})" for name, n in counts.items() if plain(name) not in known]
    gain = _gain(run) if new else None
    if gain is None or gain.among_all is None:
        return []
    verb, whose = ("is", "it") if len(new) == 1 else ("are", "each")
    return [
        f"{listed(new)} {verb} known by examples: of 100 {run.sample}s of {whose}, expect about "
        f"{gain.among_all[0]:.0f} to be recognized{gain.spread()}. So many were right of "
        f"this run's own unseen classes with {EXAMPLES} examples each, if all classes compete."
    ]


def left_out(run: Run) -> float | None:
    """Return the accuracy of classes without samples among all, in percent, the mean of seen ones
    that the run left out and of unseen ones before these had samples; None where it was not
    measured.
    """
    chosen = run.result.get("chosen_on_validation") or {}
    measured = (chosen.get("validation") or {}).get("gzsl_unseen")
    if measured is None:
        return None
    described = by_description(run.result)
    return (float(measured) + float(measured if described is None else described)) / 2
