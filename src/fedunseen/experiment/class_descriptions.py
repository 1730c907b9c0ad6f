"""New classes by their names: a run whose classes a text encoder described describes new ones in
the same way.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.data import ClassSpace, DataSettings
from fedunseen.data.class_table import describe
from fedunseen.data.io.csv_io import read_csv
from fedunseen.data.names import check_collisions
from fedunseen.encoders.hub import local_files_only

# cosine of two embeddings of one sentence by one text encoder on different machines, at least
_ALIKE = 0.999


def semantics_of_names(
    names: Sequence[str], space: ClassSpace, settings: DataSettings
) -> dict[str, NDArray[np.float64]]:
    """Describe classes by their names, with the text encoder and the sentence that described the
    run's own.
    """
    encoder = getattr(settings, "text_encoder", None)
    prompt = getattr(settings, "prompt", "")
    if encoder is None or not space.from_texts:
        attributes = ", ".join(space.attribute_names[:3]) + (
            ", ..." if space.attributes > 3 else ""
        )
        raise ExperimentError(
            f"this run's classes are described by attributes ({attributes}), which a name does not "
            "tell: give --classes FILE with the columns name and the attributes"
        )
    for name in names:
        if not re.search(r"\w", name):
            raise DataError(f"--class {name!r} has no word in it: name the class")
    check_collisions(names, "the given classes")
    plain = [
        re.sub(r"^(an?|the)\s+(?=\w)", "", name.strip(), flags=re.IGNORECASE) for name in names
    ]
    with local_files_only():
        vectors, _ = describe([space.names[0], *plain], encoder, prompt)
    first = vectors[0]
    stored = space.semantics[0]
    if len(first) != len(stored) or first @ stored < _ALIKE * np.linalg.norm(
        first
    ) * np.linalg.norm(stored):
        raise DataError(
            f"the text encoder {encoder!r} is not the one that described this run's classes (it "
            f"describes {space.names[0]!r} otherwise): name that with --set data.text_encoder=..."
        )
    return dict(zip(names, vectors[1:], strict=True))


def names_in(file: Path) -> list[str] | None:
    """Return the classes of a file that has names alone, a name a line; None of one that has
    attributes too.
    """
    rows = read_csv(file)
    header = rows[0][1]
    if "name" in header and set(header) <= {"name", "split"}:
        return [row[header.index("name")] for _, row in rows[1:]]
    return [row[0] for _, row in rows] if len(header) == 1 else None
