"""Parties that count how sure models are of their samples: the same bits of confidence by each
way.
"""

import json
from pathlib import Path

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.deploy.secagg.enrolment import enrol
from processes import Deployment, command, sets

NAMES = ("north", "south", "west")
PLANNED = ("digit-pairs-gaussian",)
SMALL = {
    "partition.clients": 3,
    "data.train_per_class": 12,
    "data.test_per_class": 4,
    "evaluation.embedding": False,
    "evaluation.selection": "last",
    "method.calibration": True,
    "method.min_samples": 5,
}
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """The folders of the parties, their credentials, and the masked run in one process."""
    place = tmp_path_factory.mktemp("dealt")
    words = ("--parties", ",".join(NAMES), "--out", place / "data")
    command("data", "deal", "digit-pairs-gaussian", *sets(SMALL), *words)
    enrol(place / "kits", NAMES)
    masked = {**SMALL, "privacy.aggregation": "masked"}
    run(Experiment.load("digit-pairs-gaussian", masked), place / "alone")
    return place


@pytest.mark.slow
def test_masked_in_one_process_it_comes_from_histograms(dealt):
    done = load_run(dealt / "alone")
    assert done.result["confidence"]["from"] == "histograms"
    assert done.result["confidence"]["classes"] == len(done.space.seen)
    assert done.model.finds_unfamiliar


@pytest.mark.slow
@pytest.mark.parametrize("way", ["masked", "plain"])
def test_over_a_network_it_has_the_same_bits(way, dealt, machine, tmp_path):
    words = sets({**SMALL, "privacy.aggregation": way})
    deployment = Deployment(machine, NAMES, dealt / "data", "digit-pairs-gaussian", *words)
    deployment.more = [*deployment.more, "--consent", "moments"]  # all samples, as in one process
    parties = {name: deployment.join(name) for name in NAMES}
    deployment.end(deployment.host(), parties)
    assert (tmp_path / "run" / FILE).read_bytes() == (dealt / "alone" / FILE).read_bytes()
    for name in NAMES:  # and it went home
        assert (tmp_path / "runs" / name / FILE).read_bytes() == (
            dealt / "alone" / FILE
        ).read_bytes()
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert result["confidence"] == load_run(dealt / "alone").result["confidence"]


@pytest.fixture
def merged(dealt, offline, tmp_path, monkeypatch):
    """A new folder as the working directory, with a run that was merged from files."""
    monkeypatch.chdir(tmp_path)
    for name in ("data", "kits"):
        Path(name).symlink_to(dealt / name)
    said = offline.plan("first", NAMES, of=(*PLANNED, *sets(SMALL)))
    assert "offline plan --confidence RUN" in said.err
    offline.round("first")


@pytest.mark.slow
@pytest.mark.usefixtures("merged")
def test_by_file_it_is_drawn_until_a_second_plan_and_has_then_the_same_bits(
    dealt, offline, command, refused
):
    alone = load_run(dealt / "alone")
    first = load_run("run")
    assert first.result["confidence"]["from"] == "draws"
    assert not first.model.finds_unfamiliar
    offline.plan("second", of=("--confidence", "run"))
    assert "which each of them can read" in command("offline", "show", "second.fedunseen").out
    offline.round("second", "sure")
    sure = load_run("sure")
    assert (sure.path / FILE).read_bytes() == (alone.path / FILE).read_bytes()
    assert sure.result["confidence"] == alone.result["confidence"]
    for name in ("stated", "wrong"):  # what the report lists
        assert sure.evaluation[name].tobytes() == alone.evaluation[name].tobytes()
    assert sure.evaluation["stated"].tobytes() != first.evaluation["stated"].tobytes()
    # the same samples are asked about once
    offline.plan("third", of=("--confidence", "run"))
    assert "released under another plan" in offline.act("answer", "north", "third", call=refused)
