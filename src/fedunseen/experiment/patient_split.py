"""Whether ``init`` keeps the pictures of a patient together: where DICOM files name patients who
have several.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.image_benchmark import Listing
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.patients import patients_of
from fedunseen.experiment.dataset_checks import Remark


def patient_split(listing: Listing, settings: Any) -> tuple[bool, list[Remark]]:
    """Return whether to split a folder by patients, and what there is to say of it."""
    if find_spec("pydicom") is None:
        return False, []
    counts = np.bincount(patients_of(listing.root, listing.files))
    if (several := int((counts > 1).sum())) == 0:
        return False, []
    patients = "1 patient has" if several == 1 else f"{several} patients have"
    fact = f"{patients} several files"
    try:
        ImageFolder.listing(settings.model_copy(update={"split_by": "patient"}), 0)
    except DataError as error:
        why = f"{error}; so a model may be tested on patients that it has seen"
        return False, [Remark(f"warning: {fact}", why)]
    why = "all files of a patient train, or all are for tests: data.split_by"
    return True, [Remark(fact, why)]
