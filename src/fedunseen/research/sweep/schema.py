"""The sweep file: axes over an experiment's settings, and how their results are shown.

A **bundle** is a few settings, written as in an experiment file:
``{ method = { kl = 10 }, run = { seed = 5 } }``. A cell is one value of every axis. Its experiment
has layers, and a later one overrides an earlier one: the base, the bundle of its data set, what
that says of its method, the bundles of its axes in the file's order, what the data set keeps fixed,
and ``--set``.
"""

import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.presets import is_shipped, readable_text
from fedunseen.core.registry import names
from fedunseen.core.settings import FileText, Settings
from fedunseen.core.text import whole
from fedunseen.core.toml import parse_toml, toml_value
from fedunseen.evaluation.measures import (
    FEW_SHOT,
    ZERO_SHOT,
    FewShotDetail,
    FewShotName,
    ZeroShotName,
)
from fedunseen.experiment.parsing import plain_message
from fedunseen.experiment.schema import Experiment
from fedunseen.research.sweeps import SWEEPS, sweep_source

Metric = ZeroShotName | FewShotName
Measure = (
    Metric
    | FewShotDetail
    | Literal["backdoor", "backdoor_attacked", "backdoor_highest"]
    | Literal["parameters_shared", "bytes_down", "bytes_up"]
)
_MOST = 10_000  # cells of a grid, each of which is read and checked before any runs
_TRAININGS = 100_000  # of all cells, with what each chooses from
EXTRA = ("methods", "fixed", "beside", "note")  # keys of a data set that are not settings
BACKDOOR: tuple[Measure, ...] = ("backdoor", "backdoor_attacked", "backdoor_highest")
"""An attacked run's backdoor accuracies: in the reported round, in the first attacked one, the
highest from then on.
"""
MEASURES: tuple[Measure, ...] = ("parameters_shared", "bytes_down", "bytes_up")
"""What else a table can show of a run: parameters that travel, bytes that a client receives and
sends in a round.
"""

Bundle = dict[str, Any]
Choice = Mapping[str, str | Sequence[str]]
"""A part of the grid: axis -> its value, or values."""


class Table(Settings):
    """How the cells are laid out in tables: one for each value of some axes, unset for each data
    set.
    """

    tables: list[str] | None = None
    columns: list[str] = Field(default_factory=list)
    """The values of these axes are columns; the values of all other axes are rows."""
    metrics: list[Measure] = Field(default_factory=lambda: list[Measure](ZERO_SHOT))
    """Unset, few-shot runs show `few_shot`, `few_shot_pixels` and `few_shot_random`."""


class Figure(Settings):
    """Curves: the accuracy by round, or over the values of an axis."""

    title: str = ""
    x: str = "round"
    """``round``, or an axis."""
    lines: list[str] = Field(default_factory=list)
    """One line for each value of these axes, and a chart for each value of the others."""
    metrics: list[Measure] = Field(
        default_factory=lambda: list[Measure]((ZERO_SHOT[0], ZERO_SHOT[3]))
    )
    band: Literal["seeds", "clients", "none"] = "seeds"
    """What is shaded: one standard deviation over the seeds, or over the clients' own models before
    merging.
    """
    only: dict[str, str | list[str]] = Field(default_factory=dict)
    """Axis -> the value or values whose cells are drawn."""


class Paper(Settings):
    """Figures that a paper prints, to stand beside ours."""

    source: str
    axes: list[str] = Field(default_factory=list)
    """The axes in the order in which ``figures`` are nested; unset: the data sets first, then the
    file's order.
    """
    metrics: list[Metric] = Field(default_factory=lambda: list[Metric](ZERO_SHOT))
    figures: dict[str, Any] = Field(default_factory=dict)
    """Tables within tables, an axis each; innermost a list of numbers in percent, ``nan`` where the
    paper has none.
    """


class Step(Settings):
    """A step of a coordinate search (``fedunseen.research.papers.tuning``)."""

    key: str
    """The setting to climb along, as ``method.lr``."""
    start: PositiveInt | PositiveFloat | None = None
    """Where the climb starts, an integer for a setting of whole numbers; unset, at the best value
    so far."""
    factor: float = Field(3.0, gt=1)
    """Ratio of neighboring values."""
    set: dict[str, Any] = Field(default_factory=dict)
    """What is fixed beside it, as ``"strategy.name" = "fedavgm"``."""
    rows: list[str] = Field(default_factory=list)
    """The methods that take this step; empty: all that search."""
    runs: int = Field(0, ge=0)
    """Validation runs that this step adds to the tuning budget."""


class Bench(Settings):
    """What ``fedunseen bench`` does beside the runs of a sweep."""

    validation_runs: int = Field(ge=1)
    """The tuning budget: so many combinations has every row in ``evaluation.choose``, tried with
    the first seed; a row that searches has so many at most, and what its steps add.
    """
    steps: list[Step] = Field(default_factory=list)
    """The steps of a coordinate search, taken by each row without ``evaluation.choose``."""
    seeds: int = Field(3, ge=1, le=100)
    """Seeds of a row, counted up from ``run.seed``."""
    examples: list[NonNegativeInt] = Field(default_factory=lambda: [0, 1, 5], min_length=1)
    """Numbers of examples of each unseen class."""
    pool: bool = True
    """Measure after adapting to unlabelled samples, too."""
    reference: str = ""
    """The method that the others are compared with; unset, the first of the axis."""
    seen_test: dict[str, str] = Field(default_factory=dict)
    """Method -> which of its settings were chosen with test accuracies in view."""


class SweepFile(Settings):
    """A sweep file; docs/sweeps.md describes its keys."""

    title: str
    base: str | None = None
    """A preset, or an experiment file beside this one, that all cells start from."""
    experiment: Bundle = Field(default_factory=dict)
    """Sections of an experiment, instead of ``base`` or on top of it."""
    seeds: int = Field(1, ge=1, le=100)
    axes: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    """Values of a setting: ``"method.kl" = [1, 10]`` or
    ``kl = { key = "method.kl", values = [1, 10] }``; or bundles by name:
    ``variant = { "without" = { method = { kl = 0 } }, "with" = {} }``."""
    only: list[dict[str, str | list[str]]] = Field(default_factory=list)
    """The parts of the grid that are run, each: axis -> value or values; unset, the whole grid."""
    skip_refused: bool = False
    """List cells whose combination makes no sense as refused, instead of refusing the sweep."""
    data_sets: dict[str, dict[str, Any]] | str = Field(default_factory=dict)
    """Bundles to choose from with ``--data``, or a TOML file beside this one that holds them. Four
    more keys may stand in one: ``methods``, a method's name -> settings for it alone, of other
    sections as ``"section.key"``; ``fixed``, a bundle that no axis can change;
    ``beside``, the data set whose published figures are shown beside it (of several, the first that
    the paper has); ``note``, what the data are, in words."""
    data: list[str] = Field(default_factory=list)
    """The data sets to take if ``--data`` names none; unset, the first."""
    table: Table = Table()
    figures: list[Figure] = Field(default_factory=list)
    paper: Paper | None = None
    bench: Bench | None = None


@dataclass(frozen=True)
class Cell:
    """One experiment of a sweep."""

    values: Mapping[str, str]
    folder: str
    experiment: Experiment | None
    refused: str | None
    paper: Mapping[str, float]

    @property
    def key(self) -> str:
        """Its name: the names of its values."""
        return " / ".join(self.values.values()) or "the only cell"


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read and checked whole."""

    name: str
    file: SweepFile
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    beside: Mapping[str, str]
    notes: Mapping[str, str]
    command: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The accuracies that its runs have."""
        kinds = [
            "few_shot" in cell.experiment.task.evaluator.accuracies
            for cell in self.cells
            if cell.experiment
        ]
        return (() if kinds and all(kinds) else ZERO_SHOT) + (FEW_SHOT if any(kinds) else ())


def read_sweep(
    source: str | Path, data: Sequence[str] = (), overrides: Mapping[str, Any] | None = None
) -> Sweep:
    """Read a shipped sweep by name or a TOML file by path; every cell's experiment is read and
    checked.

    Args:
        source: the name of a shipped sweep or the path of a file.
        data: which of its data sets; by default those that the file names.
        overrides: ``{"section.key": value}`` for all cells.

    Raises:
        ExperimentError: the file, one of its cells, a data set or an override is wrong.
    """
    place = str(source)
    path = Path(source)
    file, sets = read_file(source)
    folder = None if is_shipped(path) else path.parent
    axes, bundles = _axes(file, sets, list(data), folder, place)
    overrides = dict(overrides or {})
    _check_overrides(overrides, bundles)
    all_axes = {**axes, "data": tuple(sets)} if sets else axes
    for i, part in enumerate(file.only):
        _check_choice(part, all_axes, f"{place}: only[{i}]")
    _check_shown(file, all_axes, place)
    labels = axes["data"] if sets else ()
    grid = _Grid(
        place,
        path.stem,
        file,
        folder,
        bundles,
        {
            label: _flat(sets[label].get("fixed", {}), folder, f"{place}: {label}: fixed")
            for label in labels
        },
        {
            label: _of_methods(sets[label].get("methods", {}), f"{place}: {label}: methods")
            for label in labels
        },
        _flat(file.experiment, folder, f"{place}: experiment"),
        overrides,
    )
    printed = _printed(file.paper, all_axes, place) if file.paper else {}
    beside = {label: _beside(label, sets, printed, place) for label in labels}
    cells = tuple(_cells(grid, axes, printed, beside))
    if not cells:
        raise ExperimentError(
            f"{place}: only: no cell of the grid is in one of these parts: leave one out"
        )
    notes = {label: str(sets[label]["note"]) for label in labels if "note" in sets[label]}
    return Sweep(path.stem, file, axes, cells, beside, notes, _command(place, data, overrides))


@dataclass(frozen=True)
class _Grid:
    """What the experiments of a sweep's cells are made of.

    Attributes:
        bundles: axis -> value -> settings; the axis ``data`` has the data sets.
        fixed: data set -> settings that no axis can change.
        methods: data set -> method -> settings for it alone.
        base: settings of all cells, which everything else overrides.
        overrides: settings of all cells that override everything else.
    """

    place: str
    name: str
    file: SweepFile
    folder: Path | None
    bundles: Mapping[str, Mapping[str, Bundle]]
    fixed: Mapping[str, Bundle]
    methods: Mapping[str, Mapping[str, Bundle]]
    base: Bundle
    overrides: Bundle

    def experiment(self, values: Mapping[str, str]) -> Experiment:
        """Return the experiment of a cell, from its layers."""
        data_set = values.get("data", "")
        before = [self.base, {"run.seeds": self.file.seeds}]
        if "data" in self.bundles:
            before.append(self.bundles["data"][data_set])
        varied = [self.bundles[axis][value] for axis, value in values.items() if axis != "data"]
        after = [*varied, self.fixed.get(data_set, {}), self.overrides]
        experiment = self._of_layers([*before, *after])
        if method_layer := self.methods.get(data_set, {}).get(experiment.method.name):
            experiment = self._of_layers([*before, method_layer, *after])
        return experiment

    def _of_layers(self, layers: Iterable[Bundle]) -> Experiment:
        return _experiment(self.file.base, self.folder, layers, self.name)


def _cells(
    grid: _Grid,
    axes: Mapping[str, Sequence[str]],
    printed: Mapping[tuple[tuple[str, str], ...], Mapping[str, float]],
    beside: Mapping[str, str],
) -> Iterator[Cell]:
    """Yield the cells of the parts of the grid that are run."""
    file = grid.file
    folders: set[str] = set()
    if (size := math.prod(map(len, axes.values()))) > _MOST:
        raise ExperimentError(
            f"{grid.place}: axes: the grid has {whole(size)} cells, and {_MOST:,} are the most: "
            "list fewer values, or make several sweeps"
        )
    trainings = 0
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        if file.only and not any(matches(values, part) for part in file.only):
            continue
        experiment: Experiment | None = None
        refused: str | None = None
        try:
            experiment = grid.experiment(values)
        except ExperimentError as error:
            if not file.skip_refused:
                where = f"{grid.place}: {' / '.join(chosen)}" if chosen else grid.place
                raise ExperimentError(f"{where}: {error}") from None
            refused = str(error)
        trainings += experiment.evaluation.combinations if experiment else 1
        if trainings > _TRAININGS:
            raise ExperimentError(
                f"{grid.place}: evaluation.choose and the cells make over {_TRAININGS:,} "
                "trainings: list fewer values, or make several sweeps"
            )
        published = {**values, "data": beside[values["data"]]} if beside else values
        paper = printed.get(tuple(published.items()), {})
        yield Cell(values, _folder_name(chosen, folders), experiment, refused, paper)


def _command(place: str, data: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Return the command that runs the sweep again."""
    words = ["fedunseen", "sweep", place]
    words += [word for label in data for word in ("--data", label)]
    for key, value in overrides.items():
        text = value if isinstance(value, str) else toml_value(value)
        words += ["--set", f"{key}={text}"]
    return shlex.join(words)


def read_file(source: str | Path) -> tuple[SweepFile, dict[str, dict[str, Any]]]:
    """Read a sweep file and its data sets, without its cells."""
    text, folder = sweep_source(source)
    file = _checked(str(source), parse_toml(text, source))
    return file, _data_sets(file, folder, str(source))


def select(sweep: Sweep, only: Choice) -> list[Cell]:
    """Return the cells of a part of the grid."""
    _check_choice(only, sweep.axes, "--only")
    chosen = [cell for cell in sweep.cells if matches(cell.values, only)]
    if not chosen:
        raise ExperimentError("--only: the sweep leaves out every cell of this part: take another")
    return chosen


def _checked(place: str, content: Mapping[str, Any]) -> SweepFile:
    """Validate; the first thing wrong becomes one sentence."""
    try:
        return SweepFile.model_validate(dict(content))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    where = [
        str(part) for part in problem["loc"] if "[" not in str(part)
    ]  # without the names of types
    if problem["type"] == "extra_forbidden":
        sections: dict[str, type[Settings]] = {
            "table": Table,
            "figures": Figure,
            "paper": Paper,
            "bench": Bench,
        }
        inner, place = (
            (sections[where[0]], f"{place}: {where[0]}") if len(where) > 1 else (SweepFile, place)
        )
        raise ExperimentError(f"{place}: {unknown('key', where[-1], inner.model_fields)}") from None
    if problem["type"] == "missing":
        raise ExperimentError(f"{place}: {'.'.join(where)} is missing: add it") from None
    raise ExperimentError(
        f"{place}: {'.'.join(where)}: {plain_message(problem)}, not {problem['input']!r}"
    ) from None


def _data_sets(file: SweepFile, folder: Path | None, place: str) -> dict[str, dict[str, Any]]:
    """Return the data sets, from the file itself or the one that it names."""
    sets: dict[str, Any]
    if isinstance(file.data_sets, dict):
        sets = file.data_sets
        where = f"{place}: data_sets"
    else:
        where = f"{place}: {file.data_sets}"
        name = file.data_sets
        shipped = (SWEEPS / name).read_text("utf-8") if folder is None else None
        sets = parse_toml(
            shipped or readable_text(Path(folder or "", name), f"fix data_sets in {place}"), where
        )
    for label, bundle in sets.items():
        if not isinstance(bundle, dict) or not all(
            isinstance(bundle.get(key, {}), dict) for key in EXTRA[:2]
        ):
            raise ExperimentError(f"{where}: {label}: write a table of settings")
    return sets


def _axes(
    file: SweepFile,
    sets: Mapping[str, dict[str, Any]],
    data: list[str],
    folder: Path | None,
    place: str,
) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, Bundle]]]:
    """Return each axis' names of values, and the bundle of each."""
    bundles: dict[str, dict[str, Bundle]] = {}
    if sets:
        bundles["data"] = _data_bundles(file, sets, data, folder, place)
    elif data:
        raise ExperimentError(f"--data {data[0]}: {place} names no data sets: leave it out")
    for axis, content in file.axes.items():
        where = f"{place}: axes: {axis}"
        if axis in ("round", *bundles):
            raise ExperimentError(
                f"{where}: this name has another meaning in a sweep: choose another"
            )
        if isinstance(content, list):
            bundles[axis] = _value_bundles(axis, content, folder, where)
        elif set(content) == {"key", "values"}:
            bundles[axis] = _value_bundles(content["key"], content["values"], folder, where)
        else:
            bundles[axis] = _named_bundles(content, folder, where)
        if not bundles[axis]:
            raise ExperimentError(f"{where}: there is no value: give it a few")
    return {axis: tuple(values) for axis, values in bundles.items()}, bundles


def _data_bundles(
    file: SweepFile,
    sets: Mapping[str, dict[str, Any]],
    data: list[str],
    folder: Path | None,
    place: str,
) -> dict[str, Bundle]:
    """Return the settings of each data set that is asked for."""
    bundles = {}
    for label in data or file.data or [next(iter(sets))]:
        if label not in sets:
            where = "--data" if data else f"{place}: data"
            raise ExperimentError(f"{where}: {unknown('data set', label, sets)}")
        settings = {key: value for key, value in sets[label].items() if key not in EXTRA}
        bundles[label] = _flat(settings, folder, f"{place}: {label}")
    return bundles


def _value_bundles(
    key: object, values: object, folder: Path | None, where: str
) -> dict[str, Bundle]:
    """Return the settings of each value of an axis over one setting."""
    if not isinstance(key, str) or "." not in key:
        raise ExperimentError(f"{where}: values belong to a setting: name it as section.key")
    if not isinstance(values, list):
        raise ExperimentError(f"{where}: values: input should be a list, not {values!r}")
    bundles = {
        value if isinstance(value, str) else json.dumps(value): _flat({key: value}, folder, where)
        for value in values
    }
    if len(bundles) < len(values):
        raise ExperimentError(f"{where}: a value stands there twice: leave one out")
    return bundles


def _named_bundles(
    content: Mapping[str, Any], folder: Path | None, where: str
) -> dict[str, Bundle]:
    """Return the settings of each named value of an axis."""
    for label, bundle in content.items():
        if not isinstance(bundle, dict):
            example = "{ method = { kl = 1 } }"
            raise ExperimentError(
                f"{where}: {label}: write a bundle of settings, for example {example}"
            )
    return {label: _flat(bundle, folder, f"{where}: {label}") for label, bundle in content.items()}


def _flat(bundle: Mapping[str, Any], folder: Path | None, place: str) -> Bundle:
    """Return ``{"section.key": value}``, names first (they bring defaults); paths are relative to
    the sweep file.
    """
    flat: Bundle = {}
    for section, content in bundle.items():
        if "." in section:
            flat[section] = content
        elif isinstance(content, Mapping):
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            raise ExperimentError(f"{place}: {section}: write settings as section.key = value")
    for key, value in flat.items():
        if isinstance(value, str):
            flat[key] = value.replace("${FEDUNSEEN_DATA}", os.environ.get("FEDUNSEEN_DATA", "data"))
    if folder is not None:
        flat = FileText.within(flat, lambda path: folder / path.expanduser())
    return dict(sorted(flat.items(), key=lambda item: not item[0].endswith(".name")))


def _of_methods(methods: Mapping[str, Any], place: str) -> dict[str, Bundle]:
    """Return a data set's settings for single methods."""
    for method in methods:
        if method not in names("method"):
            raise ExperimentError(f"{place}: {unknown('method', method, names('method'))}")
    return {
        method: _flat(
            {key if "." in key else f"method.{key}": value for key, value in content.items()},
            None,
            place,
        )
        for method, content in methods.items()
    }


def _experiment(
    base: str | None, folder: Path | None, layers: Iterable[Bundle], name: str
) -> Experiment:
    """Make an experiment of a base and layers of settings; a later layer wins."""
    settings: Bundle = {}
    for layer in layers:
        # Settings are applied in order, and a new name drops the old choice's settings that were
        # applied before it. So a key that a later layer sets again moves to the end.
        settings = {**{key: value for key, value in settings.items() if key not in layer}, **layer}
    if base is None:
        return Experiment.from_dict({}, settings, name, in_order=True)
    source = folder / base if folder is not None and base.endswith(".toml") else base
    return Experiment.from_dict(
        {**Experiment.load(source, settings, in_order=True).to_dict(), "name": name}
    )


def _check_overrides(
    overrides: Mapping[str, Any], bundles: Mapping[str, Mapping[str, Bundle]]
) -> None:
    """Refuse to override a setting that an axis varies; the settings of a data set may be
    overridden.
    """
    for axis, labelled in bundles.items():
        for key in overrides:
            if axis != "data" and any(key in bundle for bundle in labelled.values()):
                raise ExperimentError(
                    f"--set {key}: the axis {axis!r} sets it, so all its values would be the same: "
                    f"leave it out, or take one value with --only {axis}=VALUE"
                )


def _folder_name(labels: Sequence[str], folders: set[str]) -> str:
    """Return a name for a run directory that no cell has yet."""
    parts = [re.sub(r"[^\w.+=*-]+", "-", label).strip("-.") or "x" for label in labels] or ["cell"]
    stem = "--".join(parts).replace("*", "star")[:180]
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    name = next(candidate for candidate in names if candidate.lower() not in folders)
    folders.add(name.lower())  # some file systems do not tell case
    return name


def matches(values: Mapping[str, str], part: Choice) -> bool:
    """Say whether a cell with these values is in a part of the grid."""
    return all(
        values[axis] in ([wanted] if isinstance(wanted, str) else wanted)
        for axis, wanted in part.items()
    )


def _check_choice(choice: Choice, axes: Mapping[str, Sequence[str]], place: str) -> None:
    for axis, wanted in choice.items():
        if axis not in axes:
            raise ExperimentError(f"{place}: {unknown('axis', axis, axes)}")
        for value in [wanted] if isinstance(wanted, str) else wanted:
            if value not in axes[axis]:
                raise ExperimentError(f"{place}: {axis}: {unknown('value', value, axes[axis])}")


def _check_shown(file: SweepFile, axes: Mapping[str, Sequence[str]], place: str) -> None:
    """Refuse tables and figures over axes that are not there."""
    shown_axes = [("table: tables", axis) for axis in file.table.tables or ()]
    shown_axes += [("table: columns", axis) for axis in file.table.columns]
    for figure in file.figures:
        shown_axes += [("figures: x", figure.x)] if figure.x != "round" else []
        shown_axes += [("figures: lines", axis) for axis in figure.lines]
        without = [name for name in figure.metrics if name in (*MEASURES, *BACKDOOR[1:])]
        if figure.x == "round" and without:
            raise ExperimentError(
                f"{place}: figures: metrics: {without[0]} has no curve by round: name an axis as "
                "x, or leave it out"
            )
        _check_choice(figure.only, axes, f"{place}: figures: only")
    for where, axis in shown_axes:
        if axis not in axes:
            raise ExperimentError(f"{place}: {where}: {unknown('axis', axis, axes)}")
    twice = set(file.table.tables or ()) & set(file.table.columns)
    if twice:
        raise ExperimentError(
            f"{place}: table: the axis {min(twice)!r} is in tables and in columns: leave one out"
        )


def _printed(
    paper: Paper, axes: Mapping[str, Sequence[str]], place: str
) -> dict[tuple[tuple[str, str], ...], dict[str, float]]:
    """Return the paper's figures by cell: ((axis, value), ...) in the sweep's order -> metric ->
    percent.
    """
    order = paper.axes or list(axes)
    if sorted(order) != sorted(axes):
        raise ExperimentError(f"{place}: paper.axes: name each of the axes once: {', '.join(axes)}")

    def leaves(
        tree: Any, depth: int, labels: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        if depth == len(order):
            yield labels, tree
            return
        where = ": ".join([f"{place}: paper.figures", *labels])
        if not isinstance(tree, Mapping):
            raise ExperimentError(
                f"{where}: here belongs a table with values of the axis {order[depth]!r}"
            )
        for label, content in tree.items():
            if label not in axes[order[depth]]:
                raise ExperimentError(
                    f"{where}: {order[depth]}: {unknown('value', label, axes[order[depth]])}"
                )
            yield from leaves(content, depth + 1, (*labels, label))

    printed: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for labels, numbers in leaves(paper.figures, 0, ()):
        good = isinstance(numbers, list) and all(type(number) in (int, float) for number in numbers)
        if not good or len(numbers) != len(paper.metrics):
            raise ExperimentError(
                f"{place}: paper.figures: {' / '.join(labels)}: write {len(paper.metrics)} numbers "
                f"({', '.join(paper.metrics)}), nan where there is none"
            )
        by_axis = dict(zip(order, labels, strict=True))
        printed[tuple((axis, by_axis[axis]) for axis in axes)] = {
            metric: float(n)
            for metric, n in zip(paper.metrics, numbers, strict=True)
            if not math.isnan(n)
        }
    return printed


def _beside(
    label: str,
    sets: Mapping[str, Bundle],
    printed: Iterable[tuple[tuple[str, str], ...]],
    place: str,
) -> str:
    """Return the data set whose published figures are shown beside one."""
    wanted = sets[label].get("beside", label)
    choices = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in choices:
        if name not in sets:
            raise ExperimentError(
                f"{place}: {label}: beside: {unknown('data set', str(name), sets)}"
            )
    published = {dict(cell)["data"] for cell in printed}
    return next((name for name in choices if name in published), choices[0])
