"""The benchmark ``images``: your own, ``CLASS NAME/*.jpg``, ``train/CLASS NAME/`` and
``test/CLASS NAME/``, or ``PARTY/CLASS NAME/*.jpg``.

``classes.csv`` describes the classes (``fedunseen.data.class_space``). Case, ``_`` and space in a
folder's name do not count. Without ``train`` and ``test`` the run's seed draws test images of seen
classes; all images of unseen classes are for tests. Pictures in a folder ``unlabelled`` have no
label; only ``data.unlabelled = true`` reads them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.files import existing_folder
from fedunseen.core.text import decoded
from fedunseen.data.benchmark import check_unlabelled, draw_test
from fedunseen.data.benchmarks.image_benchmark import ImageBenchmark, ImageSettings, Listing
from fedunseen.data.class_space import draw_validation
from fedunseen.data.class_table import OwnData, class_names, read_class_table
from fedunseen.data.io.images import (
    ImageBytes,
    count_frames,
    is_readable,
    list_images,
    read_image,
)
from fedunseen.data.names import check_collisions, did_you_mean, plain
from fedunseen.data.patients import check_halves, draw_patients, patients_of

TEXT = ".txt"
UNLABELLED = "unlabelled"  # the folder of pictures without a label
_TRAIN = ("train", "training")
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation", "dev")


class ImageFolder(ImageBenchmark, name="images"):
    """Your own images and classes."""

    title = "your own images"
    page = "yours"
    needs = ("classes.csv",)
    layout = "classes.csv, CLASS/IMAGE or train/CLASS/IMAGE and test/CLASS/IMAGE"
    sample = "image"

    class Settings(ImageSettings, OwnData):
        """Settings of ``images``."""

        classes: Path | None = None
        """The class table; unset, `classes.csv` in the root."""
        folders: Literal["classes", "parties"] = "classes"
        """What the folders in `root` are: classes, or parties, each with folders of classes."""
        frames: Literal["middle", "each"] = "middle"
        """Of files with several frames (DICOM, TIFF): `each` is a sample, or the middle one of
        DICOM and the first one of TIFF. All frames of a file train, or all are for tests.
        """
        split_by: Literal["file", "patient"] = "file"
        """What is drawn for tests: files, or patients, whom DICOM files name. Then all files of a
        patient train, or all are for tests.
        """
        test_share: float = Field(0.2, gt=0, lt=1)
        """Share of each seen class's images that is drawn for tests, where there are no folders
        `train` and `test`.
        """

    @classmethod
    def listing(cls, settings: Settings, seed: int) -> Listing:
        """List the images; see :meth:`ImageBenchmark.listing`."""
        root, table, halves, folders = cls._look(settings)
        files: list[str] = []
        labels: list[int] = []
        in_test: list[bool] = []
        holders: list[str] = []
        for folder, c, half in folders:
            for file in cls.files_of(folder):
                files.append((folder.relative_to(root) / file).as_posix())
                labels.append(c)
                in_test.append(half == "test")
                holders.append(folder.parent.name)
        if settings.unlabelled:
            pool = [f"{UNLABELLED}/{file}" for file in cls.files_of(root / UNLABELLED)]
            if not settings.part:
                check_unlabelled(len(pool), str(root / UNLABELLED))
            files += pool
            labels += [-1] * len(pool)
            in_test += [False] * len(pool)
            holders += [""] * len(pool)
        space = read_class_table(table, settings.text_encoder, settings.prompt)
        if not len(space.validation) and not settings.part:
            space = replace(space, validation=draw_validation(space.seen, None, seed))
        classes = np.array(labels, dtype=np.int64)
        test = np.array(in_test, dtype=bool)
        trained = classes[~test & (classes >= 0)]
        if not np.isin(classes, np.union1d(space.seen, space.unseen)).any() and settings.part:
            raise DataError(
                f"{root} has no {cls.sample} of a seen or unseen class of {table}: add a folder of "
                "some class"
            )
        for c in space.seen.tolist() if not settings.part else ():
            if c not in trained:
                place = root / halves[0] if halves else root
                raise DataError(
                    f"the seen class {space.names[c]!r} of {table} has no folder in {place}: add "
                    f"one with its {cls.sample}s, or mark the class as unseen"
                )
        patients = None
        if getattr(settings, "split_by", "") == "patient" and not settings.part:
            patients = patients_of(root, files)
        if not halves:
            test = ~np.isin(classes, space.seen)
            if patients is not None:
                test = draw_patients(classes, patients, space, settings.test_share, seed)
            elif not settings.part:
                test = draw_test(classes, space.seen, settings.test_share, seed)
        elif patients is not None:
            check_halves(files, patients, test, root)
        users = None
        if settings.folders == "parties":
            users = np.unique(np.array(holders), return_inverse=True)[1].astype(np.int64)
        name = f"{settings.name}/{root.resolve().name}"
        listing = Listing(name, root, files, classes, space, test, users=users, part=settings.part)
        return _each_frame(listing) if getattr(settings, "frames", "") == "each" else listing

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Settings) -> NDArray[np.uint8]:
        """Read an image as the benchmark's own are read, shape (frames, 3, size, size)."""
        each = settings.frames == "each"
        return read_image(path, settings.size, settings.shorter_side, settings.window, each)

    @classmethod
    def glance(cls, settings: Settings) -> None:
        """Compare the folders with the class table; see :meth:`BenchmarkLoader.glance`."""
        cls._look(settings)

    @classmethod
    def _look(cls, settings: Settings) -> tuple[Path, Path, list[str], list[tuple[Path, int, str]]]:
        """Read the class table's names and find the classes' folders."""
        root = existing_folder(settings.root.expanduser(), "correct data.root")
        table = (
            settings.classes.expanduser() if settings.classes is not None else root / "classes.csv"
        )
        if not table.is_file():
            raise DataError(
                f"{table} is missing: write one with the columns name, split and the attributes"
            )
        names = class_names(table, settings.text_encoder)
        ids = {plain(name): i for i, name in enumerate(names)}
        if settings.folders == "parties":
            parties = [(party, "") for party in child_folders(root) if party.name != UNLABELLED]
            return root, table, [], cls._folders(parties, ids, names, table)
        halves = split_folders(root, ids)
        if halves and len({half for _, half in halves}) == 1 and not settings.part:
            present_half = halves[0][1]
            absent_half = "test" if present_half == "train" else "train"
            raise DataError(
                f"{root} has the folder {halves[0][0].name}, but not {absent_half}: add it, or put "
                f"the classes' folders in {root}"
            )
        folders = cls._folders(halves or [(root, "")], ids, names, table)
        return root, table, [folder.name for folder, _ in halves], folders

    @classmethod
    def _folders(
        cls,
        places: Sequence[tuple[Path, str]],
        ids: dict[str, int],
        names: tuple[str, ...],
        table: Path,
    ) -> list[tuple[Path, int, str]]:
        """Return the classes' folders in all places, with their ids and the places' halves."""
        return [
            (folder, c, half)
            for place, half in places
            for folder, c in cls._class_folders(place, ids, names, table)
        ]

    @classmethod
    def _class_folders(
        cls, place: Path, ids: dict[str, int], names: tuple[str, ...], table: Path
    ) -> list[tuple[Path, int]]:
        """Return the classes' folders in ``place`` with their class ids."""
        folders = [
            folder
            for folder in child_folders(place)
            if folder.name != UNLABELLED or plain(UNLABELLED) in ids
        ]
        check_collisions([decoded(folder.name) for folder in folders], f"{place}: the folders")
        used = []
        for folder in folders:
            files = cls.files_of(folder)
            if plain(decoded(folder.name)) not in ids:
                near = did_you_mean(decoded(folder.name), names)
                if not near and not any(cls.readable(folder / file) for file in files):
                    continue  # a folder of something else, or of photos that need a package
                deeper = any(
                    plain(decoded(child.name)) in ids
                    for child in folder.iterdir()
                    if child.is_dir()
                )
                hint = near or ": add a line for it"
                if deeper:
                    hint = (
                        f": it holds the folders of classes, so move them to {place}, or set "
                        "data.folders = 'parties'"
                    )
                raise DataError(f"the folder {folder} is of no class in {table}{hint}")
            if not files:
                raise DataError(f"the folder {folder} has no {cls.sample}: add some, or remove it")
            used.append((folder, ids[plain(decoded(folder.name))]))
        return used

    @classmethod
    def files_of(cls, folder: Path) -> list[str]:
        """Return the files of a class's folder, relative to it."""
        return list_images(folder)

    @classmethod
    def readable(cls, path: Path) -> bool:
        """Say whether a file looks like a sample."""
        return is_readable(path)

    @classmethod
    def first_settings(cls, root: Path, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return any window, which shows whether pictures can be read; see
        :meth:`BenchmarkLoader.first_settings`.
        """
        return {"window": (0.0, 65535.0)}

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has a class table, and neither features nor texts that belong to
        it.
        """
        described = (folder / "classes.csv").is_file() and not (folder / "features.npz").exists()
        return described and not holds_texts(folder)

    @classmethod
    def missing(cls, root: Path, settings: Mapping[str, Any]) -> list[str]:
        """Return what ``root`` lacks; the class table may lie elsewhere."""
        return [] if "classes" in settings else super().missing(root, settings)

    @classmethod
    def resembles(cls, folder: Path) -> float:
        """Say whether there are folders of files, which may be anything: more than nothing, less
        than any layout.
        """
        return (
            0.01 if any(list_images(child) for child in folder.iterdir() if child.is_dir()) else 0.0
        )


def _each_frame(listing: Listing) -> Listing:
    """Return a listing with a line for each frame of each file, on the file's side of the split."""
    counts = [count_frames(listing.root / file) for file in listing.files]
    users = None if listing.users is None else np.repeat(listing.users, counts)
    return replace(
        listing,
        files=[file for file, n in zip(listing.files, counts, strict=True) for _ in range(n)],
        labels=np.repeat(listing.labels, counts),
        test=np.repeat(listing.test, counts),
        users=users,
        frames=[frame for n in counts for frame in range(n)],
    )


def child_folders(place: Path) -> list[Path]:
    """Return the folders in a folder, sorted, but hidden ones."""
    return sorted(
        child for child in place.iterdir() if child.is_dir() and not child.name.startswith(".")
    )


def split_folders(root: Path, classes: Collection[str] = ()) -> list[tuple[Path, str]]:
    """Return folders that split the images, each with "train" or "test"; those to train on first.

    Validation images are for tests where there is no other folder for tests, and for training
    otherwise: validation needs whole classes here. A folder with the name of a class is a class.
    """
    by_name = {
        child.name.lower(): child
        for child in child_folders(root)
        if plain(child.name) not in classes
    }
    tested = any(name in by_name for name in _TEST)
    roles = dict.fromkeys(_TRAIN, "train") | dict.fromkeys(_TEST, "test")
    if any(name in by_name for name in (*_TRAIN, *_TEST)):
        roles |= dict.fromkeys(_VALIDATION, "train" if tested else "test")
    return [(by_name[name], half) for name, half in roles.items() if name in by_name]


def holds_texts(folder: Path) -> bool:
    """Say whether the folders in a folder hold ``.txt`` files and nothing else."""
    files = [file for child in child_folders(folder) for file in list_images(child)]
    return bool(files) and all(file.lower().endswith(TEXT) for file in files)
