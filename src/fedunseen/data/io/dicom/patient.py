"""Whose a DICOM file is: a number that means nothing outside of this process."""

import hashlib
import os
from pathlib import Path

from fedunseen.data.io.dicom.image import MAGIC, elements_of

_KEY = os.urandom(32)  # never written down: no digest can be compared with a list of patients
_ELEMENTS = ["PatientID", "IssuerOfPatientID"]


def patient_digest(path: Path) -> bytes | None:
    """Return a digest of the patient's ID, alike for one patient in this process alone; None where
    a file is no DICOM, cannot be read, or names no patient.
    """
    try:
        with path.open("rb") as file:
            file.seek(128)
            if file.read(4) != MAGIC:
                return None
            dataset = elements_of(file, _ELEMENTS)
        patient, issuer = (str(dataset.get(name) or "").strip() for name in _ELEMENTS)
    except Exception:  # pydicom raises a dozen classes on damaged files, and quotes values
        return None
    if not patient:
        return None
    return hashlib.blake2b(f"{issuer}\0{patient}".encode(), key=_KEY).digest()
