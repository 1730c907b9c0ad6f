"""``fedunseen data``: which benchmarks there are, and what a folder holds, lacks and will cost."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.core.files import existing_folder
from fedunseen.core.registry import find, names
from fedunseen.core.toml import toml_text
from fedunseen.data import BENCHMARKS
from fedunseen.data.base import BenchmarkLoader
from fedunseen.experiment.class_folders import class_folders
from fedunseen.experiment.dataset_checks import Remark, few_samples, remarks, text_remarks
from fedunseen.experiment.init_template import name_remarks, start
from fedunseen.experiment.parsing import read_tree, validated
from fedunseen.experiment.picture_depth import depth_remarks
from fedunseen.experiment.picture_scan import scan_pictures, without_pictures


def _instead_of(path: Path) -> str:
    """Return what to name in place of a path that is no folder: that of an experiment's data."""
    root = None
    if path.suffix == ".toml" and path.is_file():
        with suppress(FedUnseenError):
            root = read_tree(path).get("data", {}).get("root")
    return f"name that of its data, {root}" if isinstance(root, str) else "name one that is there"


def examine(root: Path) -> list[dict[str, Any]]:
    """Describe every benchmark, and say where in ``root`` or its sub-folders it lies, and what it
    lacks there.
    """
    described = []
    for name, kind in sorted(_kinds().items()):
        lacking = {place: kind.missing(place, {}) for place in kind.search(root)}
        described.append(
            {
                "name": name,
                "title": kind.title,
                "page": kind.page,
                "layout": kind.files(),
                "files": "root" in kind.Settings.model_fields,
                "found": [str(place) for place, missing in lacking.items() if not missing],
                "incomplete": [
                    f"{place} has no {missing[0]}" for place, missing in lacking.items() if missing
                ],
            }
        )
    return described


def check(
    folder: Path, overrides: Mapping[str, Any] | None = None, images: bool = False
) -> dict[str, Any]:
    """Say which benchmark a folder holds, what of it is missing, and what it contains."""
    for key in overrides or {}:
        if not key.startswith("data."):
            raise ExperimentError(
                f"{key}: only settings of the data can be given here, such as data.splits=FOLDER"
            )
    folder = existing_folder(folder.expanduser(), _instead_of(folder.expanduser()))
    settings = {key.removeprefix("data."): value for key, value in (overrides or {}).items()}
    name, root, file, written = _layout(folder)
    kind = find("data", name)
    settings = {**written, **settings}
    data = {"name": name, **kind.section(root), **settings}
    facts: dict[str, Any] = {
        "benchmark": name, "root": str(root), "missing": kind.missing(root, settings),
        "problems": [],
        "part": bool(settings.get("part")),
    }  # fmt: skip
    if not facts["missing"]:
        inspected = _inspected(kind, data, images)
        if (
            inspected["problems"]
            and "has no attributes" in inspected["problems"][0]
            and "text_encoder" not in settings
        ):
            data["text_encoder"] = (
                "minilm"  # what init takes; a problem of its own if it is not installed
            )
            inspected = _inspected(kind, data, images)
        if (
            inspected["problems"]
            and "part" in kind.Settings.model_fields
            and "part" not in settings
        ):
            as_part = _inspected(kind, data | {"part": True}, images)
            if not as_part["problems"]:
                inspected = as_part
                data = data | {"part": True}
                facts["part"] = True
        facts |= inspected
    facts |= {"experiment": file} if file else {}
    facts["doubts"] = []
    if name in ("images", "texts") and ("kind" in facts or facts["missing"] == ["classes.csv"]):
        facts["doubts"] = _doubts(name, root, settings, facts["part"])
    whole = "kind" in facts and not facts["part"]
    if (
        whole
        and facts["kind"] == "images"
        and not facts["attributes"]
        and "size" in kind.Settings.model_fields
    ):
        data.setdefault(
            "size", 64
        )  # pixels; a network trained from scratch on a processor wants small images
    facts["snippet"] = toml_text(_experiment(data, facts) if whole else {"data": data}).strip()
    return facts


def _layout(folder: Path) -> tuple[str, Path, str | None, dict[str, Any]]:
    """Return the benchmark in a folder, its root, and the experiment that ``init`` has written for
    it, which also says where a table is: it may lie beside the folder.
    """
    file, written = _experiment_there(folder)
    if name := written.pop("name", ""):
        return name, folder, file, written
    name, _, root = _recognise(folder)
    file, written = _experiment_there(root)
    written.pop("name", "")
    return name, root, file, written


def _experiment_there(root: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the experiment file that ``init`` has written beside a folder, and its settings of the
    data without the root; none where it is of other data, or cannot be read.
    """
    file = root.resolve().with_name(f"{root.resolve().name}.toml")
    try:
        data = dict(read_tree(file)["data"])
        if (file.parent / data["root"]).resolve() != root.resolve():
            return None, {}
    except (ExperimentError, KeyError, TypeError):
        return None, {}
    if not isinstance(data.get("name"), str) or data["name"] not in _kinds():
        return None, {}
    return str(file), {key: value for key, value in data.items() if key != "root"}


def _doubts(name: str, root: Path, settings: Mapping[str, Any], part: bool) -> list[str]:
    """Return sentences on what looks odd in a folder of pictures or texts."""
    looked = _texts_looked_at if name == "texts" else _looked_at
    return [f"{remark.what}: {remark.why}" for remark in looked(root, settings, part)]


def _looked_at(root: Path, settings: Mapping[str, Any], part: bool) -> list[Remark]:
    """Return what looks odd in a folder of pictures, as ``init`` says it; a ``part`` may lack
    pictures.
    """
    classes = class_folders(root)
    if not any(classes.values()):
        return []  # is refused where it is read
    scan = scan_pictures(classes)
    few = (
        [] if part else [*without_pictures(classes, scan, again=False), *few_samples(scan.classes)]
    )
    named = name_remarks(list(classes)) if settings.get("text_encoder") == "minilm" else []
    given = settings.get("window")  # checked with the other settings, and refused there
    window = None
    if isinstance(given, (list, tuple)) and len(given) == 2 and given[0] < given[1]:
        window = float(given[0]), float(given[1])
    depths = depth_remarks(scan.depths, window)
    return [*few, *remarks(classes, window), *named, *depths]


def _texts_looked_at(root: Path, settings: Mapping[str, Any], part: bool) -> list[Remark]:
    """Return what looks odd in a folder of texts, likewise."""
    classes = class_folders(root)
    named = name_remarks(list(classes)) if settings.get("text_encoder") == "minilm" else []
    few = [] if part else few_samples(classes, "text")
    return [*few, *text_remarks(classes), *named]


def _kinds() -> dict[str, type[BenchmarkLoader]]:
    """Return the classes of all benchmarks by name: our own in the order in which a folder is
    compared with them.
    """
    return {name: find("data", name) for name in dict.fromkeys([*BENCHMARKS, *names("data")])}


def _recognise(folder: Path) -> tuple[str, type[BenchmarkLoader], Path]:
    """Return the name and class of the benchmark whose layout a folder has, and its root."""
    kinds = _kinds()
    searched = [(name, kind, kind.find(folder)) for name, kind in kinds.items()]
    matches = [(name, kind, places) for name, kind, places in searched if places]
    for name, kind, places in sorted(
        matches, key=lambda match: bool(match[1].missing(match[2][0], {}))
    ):  # whole ones first
        if len(places) > 1:
            raise DataError(
                f"{folder} holds the data sets {', '.join(p.name for p in places)}: check one of "
                "them"
            )
        return name, kind, places[0]
    best = max(kinds, key=lambda name: kinds[name].resembles(folder))
    if not kinds[best].resembles(folder):
        raise DataError(
            f"{folder} has the layout of no benchmark: see 'fedunseen data list' for what each "
            "needs"
        )
    return best, kinds[best], folder


def _inspected(
    kind: type[BenchmarkLoader], data: Mapping[str, Any], images: bool
) -> dict[str, Any]:
    """Count what ``[data]`` gives, or say what is wrong with it."""
    try:
        return {"problems": [], **kind.inspect(validated(kind.Settings, "data", data), images)}
    except FedUnseenError as error:
        return {"problems": [str(error)]}


def _experiment(data: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment that runs on what was found: a first try, not a tuned one."""
    kind = facts["kind"]
    training = facts["seen"] - facts["validation"]
    if facts["attributes"] and kind != "sequences":
        begun = start(kind, facts["seen"], facts["centred"], facts["spare"])
        apart = (
            {} if facts["validation"] else {"evaluation": {"selection": "last"}}
        )  # there is nothing to choose on
        return {
            **begun,
            **apart,
            "data": {
                **data,
                **{key: value for key, value in begun["data"].items() if key not in data},
            },
        }
    tree: dict[str, Any] = {"data": dict(data)}
    if kind in ("images", "sequences"):
        tree["encoder"] = {"name": "conv" if kind == "images" else "gru"}
    tree["partition"] = {"kind": "user" if kind == "sequences" else "iid", "clients": 2}
    queries = max(1, min(5, facts["smallest"] // 3 - 1))  # a client has a part of a class
    tree["method"] = {
        "name": "protonet",
        "ways": min(5, training, facts["unseen"]),
        "shots": 1,
        "queries": queries,
    }
    tree["strategy"] = {"name": "fedavg", "rounds": 20}
    if not facts["validation"]:
        tree["evaluation"] = {"selection": "last"}  # there is nothing to choose on
    return tree
