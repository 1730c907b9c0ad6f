"""``fedunseen new``: what it writes runs as it is."""

import os
import subprocess
import sys

import pytest

from processes import environment

pytestmark = pytest.mark.slow


def test_the_project_runs_and_its_own_test_passes(works, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert works("new", "my-project").out == ""
    folder = tmp_path / "my-project"
    assert (folder / "my_project" / "method.py").exists()
    info = tmp_path / "site" / "my_project-0.1.0.dist-info"  # what `pip install -e .` leaves, without the network
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fedunseen.methods]\nmy-project = my_project.method:Mine\n")
    assert 'my-project = "my_project.method:Mine"' in (folder / "pyproject.toml").read_text()
    own = environment()
    own["PYTHONPATH"] = os.pathsep.join([str(folder), str(tmp_path / "site"), own["PYTHONPATH"]])
    for words in ("data/make_example.py", "-m fedunseen data check data", "-m pytest -q -p no:cacheprovider"):
        command = [sys.executable, *words.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=own)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
