"""``fedunseen statistics``: parties' files together have the digest of a run, also after a kill."""

import json

import pytest

from fedunseen import Statistics, load_run
from fedunseen.experiment import party_statistics
from fedunseen.experiment.result.stored import StoredRun
from processes import command as run_command
from small_runs import COUNTING

PARTIES = ("north", "south", "west")


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """A run, and the folders of its parties."""
    tmp_path = tmp_path_factory.mktemp("statistics")
    words = [w for key, value in COUNTING.items() for w in ("--set", f"{key}={json.dumps(value)}")]
    run_command("run", "digit-pairs-gaussian", *words, "--out", tmp_path / "run")
    given = ("--parties", ",".join(PARTIES), "--out", tmp_path / "data")
    run_command("data", "deal", "digit-pairs-gaussian", *words, *given)
    return tmp_path


@pytest.mark.slow
def test_files_of_parties_add_up_to_the_sums_of_the_run(dealt, works, refused):
    files = [dealt / f"{name}.statistics" for name in PARTIES]
    plan = ("--plan", dealt / "run")
    for name, file in zip(PARTIES, files, strict=True):
        works("statistics", dealt / "data" / name, *plan, "--out", file)
    done = works("statistics", *files[::-1], "--out", dealt / "total", "--json").answer
    result = load_run(dealt / "run").result
    assert done["sums_sha256"] == result["sums_sha256"]
    assert not list(dealt.glob("*.partial"))
    solved = Statistics.load(dealt / "total").solve()
    for name, value in load_run(dealt / "run").params.items():
        assert bool((value == solved.params[name]).all()), name
    twice = refused("statistics", files[0], dealt / "total", "--out", dealt / "twice")
    assert "were added to these statistics before" in twice
    assert not (dealt / "twice").exists()
    assert "exists already" in refused("statistics", *files, "--out", dealt / "total")
    for wrong in (
        (dealt / "data" / "north",),
        (files[0], dealt / "data" / "north"),
        (*files, *plan),
    ):
        refused("statistics", *wrong, "--out", dealt / "none")
        assert not (dealt / "none").exists()


@pytest.mark.slow
def test_blocks_that_were_done_are_not_done_again(dealt, works, command, monkeypatch):
    monkeypatch.setattr(party_statistics, "BLOCK", 50)
    source = ("statistics", dealt / "data" / "north", "--plan", dealt / "run", "--out")
    whole = works(*source, dealt / "whole", "--json").answer
    read = []
    features_of = StoredRun.features_of

    def killed(run, benchmark, rows):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(rows.tolist())
        return features_of(run, benchmark, rows)

    monkeypatch.setattr(StoredRun, "features_of", killed)
    assert command(*source, dealt / "again").code
    assert not (dealt / "again").exists()
    assert len(Statistics.load(dealt / "again.partial").marks) == 2

    def recorded(run, benchmark, rows):
        read.append(rows.tolist())
        return features_of(run, benchmark, rows)

    monkeypatch.setattr(StoredRun, "features_of", recorded)
    assert works(*source, dealt / "again", "--json").answer["sha256"] == whole["sha256"]
    samples = [row for rows in read for row in rows]
    assert len(samples) == len(set(samples)) == whole["samples"]


def test_blocks_of_a_folder_that_has_changed_are_not_gone_on_with(dealt, works, refused, tmp_path):
    source = ("statistics", "--plan", dealt / "run", "--out", tmp_path / "sums")
    works(*source, dealt / "data" / "south")
    (tmp_path / "sums").rename(tmp_path / "sums.partial")
    assert "delete it to begin again" in refused(*source, dealt / "data" / "north")
    assert not (tmp_path / "sums").exists()
