"""What the Makefile and continuous integration set up: environments, a browser."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path):
    """Return a folder with what `make` reads, and programs that do nothing but say their names."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def planned(clone, target):
    """Return what `make` would do for a target."""
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=clone, capture_output=True, text=True, check=True
    )
    return done.stdout


def stamped(clone, *names):
    for name in names:
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).touch()


def test_no_target_removes_an_environment_that_another_has_made(clone):
    new = {"demo": "venv --clear .venv\n", "test": "venv --clear .venv\n"}
    for target, command in new.items():
        assert command in planned(clone, target)
    stamped(clone, ".venv/demo")
    assert "--clear" not in planned(clone, "demo")
    assert "venv --clear .venv-tests\n" in planned(clone, "test")
    assert "venv --clear .venv\n" not in planned(clone, "test")
    assert ".venv-tests/bin/python -m pytest" in planned(clone, "test")
    stamped(clone, ".venv-tests/installed")
    for target in ("demo", "test", "docs"):
        assert "--clear" not in planned(clone, target)
    # an environment that the tests have made does for the demo; new dependencies keep it whole
    shutil.rmtree(clone / ".venv-tests")
    stamped(clone, ".venv/installed")
    os.utime(clone / "pyproject.toml")
    for target in ("demo", "test"):
        os.utime(clone / ".venv" / "installed")
        assert "--clear" not in planned(clone, target)
        os.utime(clone / ".venv" / "installed", (0, 0))
        assert "-e '.[dev]'" in planned(clone, target)
        assert "-e '.[serve,text]'" not in planned(clone, target)


@pytest.mark.parametrize("browser", ["", "chromium", "google-chrome"])
def test_continuous_integration_installs_a_browser_where_there_is_none(clone, browser):
    programs = clone / "programs"
    programs.mkdir()
    for name in ("bash", "dirname", "id"):
        (programs / name).symlink_to(shutil.which(name))
    named = ("python3", "apt-get", "sudo", "make", *filter(None, [browser]))
    for path in (*(programs / name for name in named), clone / ".venv" / "bin" / "python"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#!/bin/bash\necho "${0##*/} $* $FEDUNSEEN_BROWSER"\n')
        path.chmod(0o755)
    said = subprocess.run(
        [clone / ".ci" / "run"], env={"PATH": str(programs)}, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert ("install --yes --no-install-recommends chromium" in said.stdout) == (not browser)
    assert "make test-all required\n" in said.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("needed", "outcome"), [("", "skipped"), ("required", "failed")])
def test_a_missing_browser_fails_tests_where_it_is_required(needed, outcome, tmp_path):
    test = tmp_path / "test_page.py"
    test.write_text("def test_page(browser):\n    pass\n")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    environment = {**os.environ, "PATH": str(tmp_path), "FEDUNSEEN_BROWSER": needed}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ("1 error" if outcome == "failed" else "1 skipped") in done.stdout


def versions(name):
    """Return the versions that a list has: package -> version."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(line.lower().split("==") for line in lines if "==" in line)


def test_flower_has_an_environment_of_its_own(clone):
    shutil.copy(ROOT / "constraints-flower.txt", clone)
    assert "flwr" not in versions("constraints.txt")
    assert "-c constraints-flower.txt -e '.[flower," in planned(clone, "test-flower")
    assert ".venv-flower" not in planned(clone, "test-all")
    # what decides on bits is the same in both
    ordinary, own = versions("constraints.txt"), versions("constraints-flower.txt")
    for name in ("torch", "numpy", "scipy", "scikit-learn", "ray"):
        assert own[name] == ordinary[name]


def test_all_tests_that_need_flower_run_in_its_environment(clone):
    shutil.copy(ROOT / "constraints-flower.txt", clone)
    run = planned(clone, "test-flower").split()
    needs = [
        p for p in (ROOT / "tests").rglob("test_*.py") if "`make test-flower`" in p.read_text()
    ]
    needs.remove(Path(__file__))
    assert len(needs) > 4
    assert [path for path in needs if str(path.relative_to(ROOT)) not in run] == []
