"""The pictures of a patient, all for training or all for tests: two of them are alike, so that a
model would be tested on what it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.core.random import stream
from fedunseen.data.class_space import ClassSpace

PATIENT_SPLIT = "patient-split"
"""Code of files whose patients cannot be kept apart."""


def patients_of(root: Path, files: Sequence[str]) -> NDArray[np.int64]:
    """Return the patient of each file (n,), numbered by their first files; a file that names none
    has a number of its own.
    """
    if find_spec("pydicom") is None:
        raise MissingDependencyError(
            "data.split_by = 'patient' needs pydicom: pip install 'fedunseen[medical]'"
        )
    from fedunseen.data.io.dicom.patient import patient_digest

    numbers: dict[bytes | str, int] = {}
    patients = [
        numbers.setdefault(patient_digest(root / file) or file, len(numbers)) for file in files
    ]
    return np.array(patients, dtype=np.int64)


def draw_patients(
    labels: NDArray[np.int64],
    patients: NDArray[np.int64],
    space: ClassSpace,
    share: float,
    seed: int,
) -> NDArray[np.bool_]:
    """Return which files (n,) are for tests: whole patients, about a share of each seen class.

    A patient with a picture of an unseen class is for tests. Others are drawn class by class, while
    each of their classes keeps a patient to train on.

    Args:
        labels: (n,) class of each file; -1 for none.
        patients: (n,) patient of each file.
        space: says which classes are seen.
        share: of the files of each seen class.
        seed: of the draw.

    Raises:
        DataError: a seen class has no patient left to train on.
    """
    test = np.isin(patients, patients[np.isin(labels, space.unseen)])
    for c in space.seen.tolist():
        mine = labels == c
        if not mine.any():
            continue
        if test[mine].all():
            raise DataError(
                f"all files of the class {space.names[c]!r} are of patients who have a picture of "
                "an unseen class too, so that none is left to train on: mark other classes as "
                "unseen, or leave out data.split_by",
                PATIENT_SPLIT,
            )
        wanted = max(1, round(share * int(mine.sum())))
        candidates = np.unique(patients[mine & ~test])
        for patient in stream(seed, "test patients", c).permutation(candidates).tolist():
            theirs = patients == patient
            if int(test[mine].sum()) >= wanted:
                break
            kept = ~(test | theirs)
            classes = np.intersect1d(labels[theirs], space.seen).tolist()
            if all((kept & (labels == other)).any() for other in classes):
                test |= theirs
    return test


def check_halves(
    files: Sequence[str], patients: NDArray[np.int64], test: NDArray[np.bool_], root: Path
) -> None:
    """Refuse folders for training and tests that share a patient."""
    both = np.intersect1d(patients[test], patients[~test])
    if len(both):
        theirs = patients == both[0]
        first, other = (root / files[int(np.argmax(theirs & half))] for half in (~test, test))
        raise DataError(
            f"{first} and {other} are of one patient, as are files of {len(both)} patients: put "
            "all files of a patient into one of the two folders, or leave out data.split_by",
            PATIENT_SPLIT,
        )
