"""``fedunseen data``: which benchmarks there are, and what a folder holds, lacks and will cost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.core.files import cache_folder
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.data.cifar100 import Cifar100
from fedunseen.data.image_folder import ImageFolder
from fedunseen.data.images import decode, decoded_bytes, list_images
from fedunseen.data.layouts import ImageBenchmark, Listing
from fedunseen.experiment.registry import find, names
from fedunseen.experiment.schema import Experiment

__all__ = ["check", "data_folder", "examine", "render_check", "render_list"]


class About(NamedTuple):
    """What is said of a benchmark.

    Attributes:
        title: what it is.
        page: where its authors publish it.
        layout: the files it needs.
    """

    title: str
    page: str
    layout: str


ABOUT = {
    "digit-pairs": About("two handwritten digits side by side", "part of this package", "nothing to download"),
    "digits": About(
        "handwritten digits, few-shot: 0-4 to train on, 5-9 novel", "part of this package", "nothing to download"
    ),
    "xlsa17": About(
        "features of CUB, AWA, SUN, aPY, ... in the proposed split",
        "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning",
        "DATASET/res101.mat, DATASET/att_splits.mat",
    ),
    "folder": About("your own features", "yours", "classes.csv, features.npz"),
    "images": About("your own images", "yours", "classes.csv, CLASS/IMAGE or train/CLASS/IMAGE and test/CLASS/IMAGE"),
    "cifar100": About(
        Cifar100.title, Cifar100.page, "train.bin, test.bin, fine_label_names.txt; or 00_apple.webp, ..."
    ),
}

EMBEDDED = ("digit-pairs", "digits")
"""Benchmarks that lie in no folder."""
SHARED = ("cifar-fs", "fc100")
"""Benchmarks that also read the layout of another one, which is what a folder of that layout is said to hold."""


def examine(root: Path) -> list[dict[str, Any]]:
    """Describe every benchmark, and say where in ``root`` or its sub-folders it lies.

    Returns:
        JSON values: ``name``, ``title``, ``page``, ``layout``, ``found`` (a list of folders).
    """
    places = [root, *sorted(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    told = []
    for name in names("data"):
        kind = find("data", name)
        about = ABOUT.get(name)
        if about is None and issubclass(kind, ImageBenchmark):
            about = About(kind.title, kind.page, ", ".join(need.partition("|")[0] for need in kind.needs))
        if about is None and hasattr(kind, "layout"):
            about = About(kind.title, kind.page, kind.layout)
        about = about or About((kind.__doc__ or name).splitlines()[0], "of another package", "")
        found = sorted({str(place) for folder in places if (place := _find(name, kind, folder)) is not None})
        told.append({"name": name, **about._asdict(), "found": found})
    return told


def render_list(told: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Write what :func:`examine` found for people."""
    lines = []
    for one in told:
        lines.append(f"{one['name']}: {one['title']}")
        lines.append(f"  published  {one['page']}")
        lines.append(f"  layout     {one['layout']}")
        if one["name"] not in EMBEDDED:
            lines += [f"  found      {place}" for place in one["found"]] or [f"  not found  in {root}"]
    return "\n".join(lines)


def check(folder: Path, overrides: Mapping[str, Any] | None = None, images: bool = False) -> dict[str, Any]:
    """Say which benchmark a folder holds, what of it is missing, and what it contains.

    Args:
        folder: the folder.
        overrides: settings of the benchmark, such as ``{"data.splits": ...}``.
        images: decode every image, as a run does, and keep the result for it.

    Returns:
        JSON values. ``missing``: files of the layout that are not there; ``problems``: whole sentences; both are empty
        if a run can start. ``snippet``: the section of an experiment file. As far as they can be told, the numbers of
        ``samples``, ``classes``, ``attributes`` and so on, the ``bytes`` that decoded images take, and the
        ``unreadable`` images.

    Raises:
        DataError: if the folder is missing or holds nothing that is known.
        ExperimentError: if an override is of another section.
    """
    folder = folder.expanduser()
    for key in overrides or {}:
        if not key.startswith("data."):
            raise ExperimentError(f"{key}: only settings of the data can be given here, such as data.splits=FOLDER")
    if not folder.is_dir():
        raise DataError(f"the folder {folder} is missing: name one that is there")
    name, root = _recognise(folder)
    kind = find("data", name)
    content = {"name": name, "root": str(root)}
    if name == "xlsa17":
        content = {"name": name, "root": str(root.parent), "dataset": root.name}
    told: dict[str, Any] = {"benchmark": name, "root": str(root), "missing": [], "problems": []}
    given = {key.removeprefix("data."): value for key, value in (overrides or {}).items()}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in {**content, **given}.items()]
    told["snippet"] = "\n".join(["[data]", *lines])
    if issubclass(kind, ImageBenchmark):
        elsewhere = kind is ImageFolder and "classes" in given  # the class table need not lie in the root
        told["missing"] = [] if elsewhere else kind.missing(root)
    if told["missing"]:
        return told
    try:
        others = {"method": {"name": "eszsl"}, "strategy": {"name": "centralised"}}  # any that are valid
        settings: Any = Experiment.from_dict({"data": content, **others}, overrides).data
        if issubclass(kind, ImageBenchmark):
            told |= _listed(kind.listing(settings, seed=0), settings, images)
        else:
            told |= _loaded(kind.load(settings, seed=0))
    except FedUnseenError as error:
        told["problems"].append(str(error))
    return told


def render_check(told: Mapping[str, Any]) -> str:
    """Write what :func:`check` found for people."""
    lines = [f"{told['root']}: the layout of {told['benchmark']}"]
    lines += [f"  missing: {need}" for need in told["missing"]]
    if told["missing"]:
        kind = find("data", told["benchmark"])
        own = told["benchmark"] == "images"
        lines.append(f"  {kind.title}: {kind.page}" if own else f"  {kind.title} is published at {kind.page}")
    lines += [f"  problem: {problem}" for problem in told["problems"]]
    if "classes" in told:
        lines.append(f"  classes: {told['classes']} ({told['seen']} seen, of them {told['validation']} for validation; "
                     f"{told['unseen']} unseen)")  # fmt: skip
        if told["attributes"]:
            lines.append(f"  attributes: {told['attributes']}, {told['grouped']} of them in {told['groups']} groups")
        else:
            lines.append("  attributes: none, the classes are learnt from examples (few-shot)")
        lines.append(f"  samples: {told['samples']:,} ({told['train']:,} to train on, {told['test_seen']:,} tests of "
                     f"seen and {told['test_unseen']:,} of unseen classes)")  # fmt: skip
    if "bytes" in told:
        lines.append(f"  decoded once, they take {told['bytes'] / 1e9:.2f} GB in {told['cache']}")
    if not told["missing"] and not told["problems"]:
        if "bytes" in told and "unreadable" not in told:
            lines.append("  images not decoded: add --images to find those that cannot be read")
        lines += ["ready:", *told["snippet"].splitlines()]
    return "\n".join(lines)


def _find(name: str, kind: Any, folder: Path) -> Path | None:
    """Return the root of a benchmark in ``folder``, or None."""
    if name == "xlsa17":
        places = sorted(
            path.parent for path in folder.glob("*/att_splits.mat") if (path.parent / "res101.mat").is_file()
        )
        return folder if places else None
    if name == "folder":
        return folder if _has(folder, "classes.csv", "features.npz") else None
    if name == "images":
        return folder if _has(folder, "classes.csv") and not _has(folder, "features.npz") else None
    place: Path | None = kind.find(folder) if hasattr(kind, "find") else None
    return place


def _has(folder: Path, *files: str) -> bool:
    return all((folder / file).is_file() for file in files)


def _recognise(folder: Path) -> tuple[str, Path]:
    """Return the name of the benchmark whose layout a folder has, and its root."""
    if _has(folder, "att_splits.mat"):
        return "xlsa17", folder
    kinds = {name: find("data", name) for name in sorted(names("data"), key=lambda name: (name in SHARED, name))}
    for name, kind in kinds.items():
        if name != "xlsa17" and (root := _find(name, kind, folder)) is not None:
            return name, root
    sets = sorted({path.parent for pattern in ("*/", "*/*/") for path in folder.glob(f"{pattern}att_splits.mat")})
    if len(sets) == 1:
        return "xlsa17", sets[0]
    if sets:
        raise DataError(f"{folder} holds the data sets {', '.join(path.name for path in sets)}: check one of them")
    layouts = {
        name: kind for name, kind in kinds.items() if issubclass(kind, ImageBenchmark) and kind is not ImageFolder
    }
    there = {name: sum(_within(folder, need) for need in kind.needs) for name, kind in layouts.items()}
    best = max(there, key=lambda name: (there[name] / len(layouts[name].needs), name))
    if there[best] > 1:  # a folder `images` alone may be anybody's
        return best, folder
    if any(list_images(child) for child in folder.iterdir() if child.is_dir()):
        return "images", folder
    raise DataError(f"{folder} has the layout of no benchmark: see 'fedunseen data list' for what each needs")


def _within(folder: Path, need: str) -> bool:
    """Say whether a part of a layout lies in ``folder`` itself."""
    choices = [choice for choice in need.split("|") if not choice.startswith("..")]
    return any(next(folder.glob(choice), None) is not None for choice in choices)


def _listed(listing: Listing, settings: Any, images: bool) -> dict[str, Any]:
    """Count what a layout lists; decode it if asked to."""
    ids = listing.ids(settings)
    kept = sorted(int(i) for mine in ids.values() for i in mine)
    files = [listing.files[i] for i in kept]
    told = _counts(listing.space, {split: len(mine) for split, mine in ids.items()})
    told |= {"bytes": decoded_bytes(len(kept), settings.size), "cache": str(cache_folder())}
    empty = [split for split, mine in ids.items() if not len(mine) and not listing.part]
    told["problems"] = [f"{listing.name}: the split {split} has no sample" for split in empty]
    absent = [file for file in dict.fromkeys(files) if not (listing.root / file).is_file()]
    if absent:
        told["problems"].append(
            f"{listing.root / absent[0]} is missing ({len(absent)} of {len(set(files))} images are): "
            "unpack the images again"
        )
    elif images:
        boxes = None if listing.boxes is None else [listing.boxes[i] for i in kept]
        unreadable = decode(listing.root, files, settings.size, settings.shorter_side, True, boxes).unreadable
        told["unreadable"] = [files[i] for i in unreadable]
        if unreadable and not settings.skip_unreadable:
            told["problems"].append(
                f"{len(unreadable)} of {len(files)} images cannot be read: {', '.join(told['unreadable'])}; mend or "
                "replace them, or leave them out with data.skip_unreadable = true"
            )
    return told


def _loaded(benchmark: Benchmark) -> dict[str, Any]:
    """Count what a benchmark holds."""
    splits = {split: len(getattr(benchmark, split)) for split in ("train", "test_seen", "test_unseen")}
    return _counts(benchmark.space, splits)


def _counts(space: ClassSpace, splits: Mapping[str, int]) -> dict[str, Any]:
    return {
        "samples": sum(splits.values()),
        **splits,
        "classes": len(space.names),
        "attributes": space.attributes,
        "groups": len(space.attribute_groups),
        "grouped": sum(map(len, space.attribute_groups.values())),
        "seen": len(space.seen),
        "validation": len(space.validation),
        "unseen": len(space.unseen),
    }


def data_folder() -> Path:
    """Return where data sets are looked for: ``$FEDUNSEEN_DATA``, or ``data`` here."""
    return Path(os.environ.get("FEDUNSEEN_DATA", "data"))
