"""``fedunseen new``: what it writes runs as it is."""

import os
import subprocess
import sys

import pytest

from processes import environment

pytestmark = pytest.mark.slow


def python(folder, *words, paths=()):
    own = environment()
    own["PYTHONPATH"] = os.pathsep.join([*map(str, paths), own["PYTHONPATH"]])
    return subprocess.run([sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True, env=own)


def test_the_project_runs_and_its_own_test_passes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("new", "my-project")
    assert (done.code, done.out) == (0, "")
    folder = tmp_path / "my-project"
    assert (folder / "my_project" / "method.py").exists()
    info = tmp_path / "site" / "my_project-0.1.0.dist-info"  # what `pip install -e .` leaves, without the network
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fedunseen.methods]\nmy-project = my_project.method:Mine\n")
    paths = [folder, tmp_path / "site"]
    assert 'my-project = "my_project.method:Mine"' in (folder / "pyproject.toml").read_text()
    made = python(folder, "data/make_example.py", paths=paths)
    assert made.returncode == 0, made.stderr
    checked = python(folder, "-m", "fedunseen", "data", "check", "data", paths=paths)
    assert checked.returncode == 0, checked.stdout
    tested = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", paths=paths)
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
