"""A patient's pictures train or are for tests, never both; and nothing of a patient is kept."""

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.patients import patients_of

pydicom = pytest.importorskip("pydicom")
SECRET = "Zyxwvut"
PIXELS = np.arange(256, dtype=np.uint8).reshape(16, 16)


def write(place, patient, number=0):
    """Write a file of 8 bits; "" names no patient, and None writes no such element."""
    from pydicom.dataset import FileDataset, FileMetaDataset

    dataset = FileDataset(None, {}, preamble=bytes(128))
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    if patient is not None:
        dataset.PatientID = f"{SECRET} {patient}" if patient else ""
    dataset.Rows, dataset.Columns = PIXELS.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation = 7, 0
    dataset.PixelData = np.roll(PIXELS, number).tobytes()
    place.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(place, enforce_file_format=True)


@pytest.fixture
def scans(tmp_path):
    """Three seen classes of twelve patients with three files each, one unseen class of others."""
    root = tmp_path / "scans"
    for i in range(36):
        write(root / "abc"[i % 3] / f"{i:02}", f"{i // 3}", i)
    for i in range(6):
        write(root / "d" / f"{i:02}", f"other {i // 2}", i)
    rows = ["name,split,x,y", "a,seen,1,0", "b,seen,0,1", "c,seen,1,1", "d,unseen,0,0.5"]
    (root / "classes.csv").write_text("\n".join(rows) + "\n")
    return root


def listing(root, seed=0, **more):
    settings = {"root": root, "size": 16, "split_by": "patient", **more}
    return ImageFolder.listing(ImageFolder.Settings.model_validate(settings), seed)


def sides(found):
    """The patients on each side, read by pydicom itself."""
    ids = [pydicom.dcmread(found.root / file).PatientID for file in found.files]
    return [{ids[i] for i in np.flatnonzero(found.test == half)} for half in (False, True)]


@pytest.mark.slow
def test_no_patient_is_on_both_sides_and_the_share_is_met(scans):
    by_file = sides(listing(scans, split_by="file"))
    assert by_file[0] & by_file[1]
    drawn = set()
    for seed in range(4):
        found = listing(scans, seed)
        train, test = sides(found)
        assert not train & test
        share = [found.test[found.labels == c].mean() for c in range(4)]
        np.testing.assert_allclose(share[:3], 2 / 12)  # round(0.2 * 12) files of a class
        assert share[3] == 1
        np.testing.assert_array_equal(found.test, listing(scans, seed).test)
        drawn.add(tuple(np.flatnonzero(found.test)))
    assert len(drawn) > 1
    each = listing(scans, frames="each")
    assert not set.intersection(*sides(each))


def test_a_patient_of_an_unseen_class_does_not_train(scans):
    write(scans / "d" / "shared", "3")
    found = listing(scans)
    train, test = sides(found)
    assert f"{SECRET} 3" in test - train
    assert not train & test


def test_files_without_a_patient_are_each_one_of_their_own(tmp_path):
    for name, patient in (("0", ""), ("1", ""), ("2", None), ("3", "x"), ("4", "x")):
        write(tmp_path / name, patient)
    (tmp_path / "5").write_bytes(b"no DICOM")
    (tmp_path / "6").write_bytes(b"")
    names = [str(i) for i in range(7)]
    assert patients_of(tmp_path, names).tolist() == [0, 1, 2, 3, 3, 4, 5]


def test_patients_that_cannot_be_kept_apart_are_refused(scans):
    for i in range(12):
        write(scans / "d" / f"of a {i}", f"{i}")
    with pytest.raises(DataError) as caught:
        listing(scans)
    assert caught.value.code == "patient-split"
    assert "all files of the class 'a' are of patients who have a picture of an unseen" in str(
        caught.value
    )


def test_folders_for_tests_that_share_a_patient_are_refused(tmp_path):
    for half, patients in (("train", "01"), ("test", "12")):
        for name in "ab":
            for patient in patients:
                write(tmp_path / half / name / f"{patient}.dcm", patient)
    (tmp_path / "classes.csv").write_text("name,split,x\na,seen,1\nb,seen,0.5\nc,unseen,0\n")
    listing(tmp_path, split_by="file")
    with pytest.raises(DataError) as caught:
        listing(tmp_path)
    assert caught.value.code == "patient-split"
    assert SECRET not in str(caught.value)
    assert "train/a/1.dcm" in str(caught.value)
    assert "test/a/1.dcm" in str(caught.value)


@pytest.mark.slow
def test_init_keeps_patients_together_and_names_none(scans, tmp_path):
    from fedunseen.experiment.init_template import suggest

    said = suggest(scans, tmp_path / "scans.toml")
    assert 'split_by = "patient"' in said.text
    assert "12 patients have several files" not in said.text
    assert "15 patients have several files" in [choice.what for choice in said.choices]
    assert SECRET not in str(said)
    for i in range(36):
        write(scans / "abc"[i % 3] / f"{i:02}", "anonymous", i)
        write(scans / "d" / f"{i % 6:02}", "anonymous", i)
    said = suggest(scans, tmp_path / "scans.toml")
    assert "split_by" not in said.text
    assert "warning: 1 patient has several files" in [choice.what for choice in said.choices]
    assert SECRET not in str(said)
