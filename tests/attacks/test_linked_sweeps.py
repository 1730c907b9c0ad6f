"""Links in a sweep's directory of someone else, which lead to files of the user."""

import os

import pytest

from fedunseen.core.errors import RunDirectoryError
from fedunseen.pages.report.sweep_page import write_sweep_report
from fedunseen.research.sweep import read_sweep, rows, write_csv
from fedunseen.research.sweep.runner import begin

SWEEP = """
title = "Small"
base = "digit-pairs-gaussian"
experiment.data = { train_per_class = 4, test_per_class = 2 }
axes."method.shrinkage" = [0.1, 0.5]
"""
PAGES = ("results.html", "results.md", "results.tex", "results.csv")


@pytest.fixture
def strange(tmp_path):
    """Return a sweep, its directory and a file of the user."""
    file = tmp_path / "small.toml"
    file.write_text(SWEEP)
    victim = tmp_path / "victim.txt"
    victim.write_text("mine\n")
    sweep = read_sweep(file)
    folder = tmp_path / "sweep"
    begin(sweep, folder, resume=False)
    return sweep, folder, victim


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize("place", ["sweep.json", "results.csv", "claims", "cells/a", "failed/a"])
def test_a_sweep_with_links_is_not_resumed(kind, place, strange):
    sweep, folder, victim = strange
    begin(sweep, folder, resume=True)  # the positive control
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    if place == "sweep.json" and kind == "link":
        path.rename(victim)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else victim.with_name("none"))
    before = victim.read_text()
    with pytest.raises(RunDirectoryError) as refused:
        begin(sweep, folder, resume=True)
    assert refused.value.code == (
        "run-directory" if place + kind == "sweep.jsondangling" else "run-link"
    )
    assert victim.read_text() == before
    assert not victim.with_name("none").exists()


def test_pages_of_a_sweep_replace_links(strange):
    sweep, folder, victim = strange
    for name in PAGES:
        (folder / name).symlink_to(victim)
    done = rows(sweep, folder)
    write_csv(sweep, done, folder / "results.csv")
    write_sweep_report(sweep, done, folder)
    assert victim.read_text() == "mine\n"
    assert not any((folder / name).is_symlink() for name in PAGES)
