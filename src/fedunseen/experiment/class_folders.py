"""What folders of pictures are where no setting says it: classes, splits or parties."""

from pathlib import Path

from fedunseen.core.text import decoded
from fedunseen.data.benchmarks.image_folder import UNLABELLED, child_folders, split_folders
from fedunseen.data.io.csv_io import read_csv
from fedunseen.data.io.images import is_readable, list_images
from fedunseen.data.names import check_collisions, plain
from fedunseen.experiment.dataset_checks import Remark

_CLASSES = 4  # that a run needs at least


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each class, by the name of its folder; of all splits or parties."""
    halves = [half for half, _ in split_folders(folder, _listed(folder))]
    places = party_folders(folder) or (halves if len(halves) > 1 else [folder])
    classes: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    for place in places:
        children = [child for child in child_folders(place) if child.name != UNLABELLED]
        check_collisions([decoded(child.name) for child in children], f"{place}: the folders")
        for child in children:
            name = names.setdefault(plain(decoded(child.name)), decoded(child.name))
            classes.setdefault(name, []).extend(child / file for file in list_images(child))
    return classes


def party_folders(folder: Path) -> list[Path]:
    """Return the folders of parties, each with folders of classes; [] where there are none.

    The class table says which names are classes. Without one, parties are few, and hold folders
    of several classes each: names are words, and at least twice as many as parties, or all parties
    hold the same.
    """
    known = _listed(folder)
    tops = [child for child in child_folders(folder) if child.name != UNLABELLED]
    if len(tops) < 2 or len(split_folders(folder, known)) > 1:
        return []
    inside = [{plain(decoded(child.name)) for child in child_folders(top)} for top in tops]
    names = set[str]().union(*inside)
    if known:
        listed = any(plain(decoded(top.name)) in known for top in tops)
        return tops if names & known and not listed else []
    words = {name for name in names if any(letter.isalpha() for letter in name)}
    alike = all(inner == names for inner in inside)
    if len(words) < _CLASSES or not (alike or len(words) >= 2 * len(tops)) or not all(inside):
        return []
    direct = (file for top in tops for file in top.iterdir() if file.is_file())
    return [] if any(map(is_readable, direct)) else tops


def layout_remarks(folder: Path, samples: str = "pictures") -> list[Remark]:
    """Return what the folders are taken for, if they are no classes; ``samples``: what they
    hold.
    """
    if parties := party_folders(folder):
        names = ", ".join(party.name for party in parties[:5])
        names += ", ..." if len(parties) > 5 else ""
        why = "each of these folders holds folders of classes, and trains as a party of its own"
        return [Remark(f"{len(parties)} parties ({names})", why)]
    halves = split_folders(folder, _listed(folder))
    if len(halves) < 2:
        return []
    roles = [
        f"{half.name} to {'train on' if role == 'train' else 'test with'}" for half, role in halves
    ]
    split = {half.name for half, _ in halves} | {UNLABELLED}
    others = [child.name for child in child_folders(folder) if child.name not in split]
    left_out = f"; left out: {', '.join(others)}" if others else ""
    return [Remark(f"{samples} in {', '.join(roles)}", f"each holds folders of classes{left_out}")]


def _listed(folder: Path) -> set[str]:
    """Return the names in the class table, as they are compared; none without a table."""
    table = folder / "classes.csv"
    if not table.is_file():
        return set()
    (_, header), *rows = read_csv(table)
    place = header.index("name") if "name" in header else 0
    return {plain(row[place]) for _, row in rows}
