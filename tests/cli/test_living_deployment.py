"""A federation that lives: a party brings classes that no one knew, the coordinator dies, a party
leaves for good.

Real processes over loopback; and the same story told in one process ends with the same bits.
"""

import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.core.toml import toml_text
from fedunseen.data.benchmarks.folder import write_folder
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.forget import forget
from processes import Deployment
from same import same

pytestmark = pytest.mark.slow

PARTIES = {"north": ["zèbre", "猫", "d"], "south": ["two words", "e", "f"], "west": ["g", "h"]}
NEW = PARTIES["west"]
GAUSSIAN = {"name": "gaussian", "shrinkage": 0.1}
FEDZSL = {"name": "fedzsl", "kl": 0.0, "consistency": 0.0, "lr": 2.0}


def story(folder, method):
    """The story's experiment: west joins in round 3 with two classes of its own, south leaves after
    round 4.
    """
    holders = folder / "holders.csv"
    lines = [f"{name},{k}\n" for k, names in enumerate(PARTIES.values()) for name in names]
    holders.write_text("class,client\n" + "".join(lines), "utf-8")
    return {
        "name": "story",
        "data": {"name": "folder", "root": str(folder), "features": ["l2"]},
        "partition": {
            "kind": "file",
            "file": str(holders),
            "clients": 3,
            "join": {"2": 2},
            "leave": {"1": 4},
        },
        "growth": {"name": "unknown"},
        "method": method,
        "strategy": {
            "name": "fedavg",
            "rounds": 5,
            "local_epochs": 60,
        },  # enough to learn a class in three rounds
        "evaluation": {"selection": "last", "embedding": False, "theory": False},
        "run": {"device": "cpu"},
        "engine": {"mode": "one-at-a-time"},
    }


def deal(tree, out):
    """Write what each party and the coordinator hold; of west's classes only west has a line."""
    whole = load_data(Experiment.from_dict(tree), 0)
    names = np.array(whole.space.names)[whole.labels]
    train = np.isin(np.arange(len(names)), whole.train)
    for party, classes in PARTIES.items():
        rows = np.flatnonzero(np.isin(names, classes) & train)
        write_folder(out / party, whole, rows, "train")
    tests = np.concatenate([whole.test_seen, whole.test_unseen])
    write_folder(out / "coordinator", whole, tests[~np.isin(names[tests], NEW)], "test")
    for folder in (out / "north", out / "south", out / "coordinator"):
        table = folder / "classes.csv"
        lines = table.read_text("utf-8").splitlines(keepends=True)
        table.write_text("".join(line for line in lines if line.split(",")[0] not in NEW), "utf-8")


@pytest.mark.parametrize("method", [GAUSSIAN, FEDZSL], ids=lambda method: method["name"])
def test_the_story_ends_with_the_bits_of_one_process(method, machine, make_folder, tmp_path):
    tree = story(make_folder(tmp_path / "whole"), method)
    undisturbed = run(Experiment.from_dict(tree), tmp_path / "undisturbed")
    deal(tree, tmp_path / "data")
    sections = {key: content for key, content in tree.items() if key not in ("name", "engine")}
    sections["data"] = {**tree["data"], "root": "data/coordinator", "part": True}
    sections["partition"] = {"join": {"2": 2}, "leave": {"1": 4}}
    (tmp_path / "story.toml").write_text(toml_text(sections), "utf-8")
    deployment = Deployment(machine, PARTIES, tmp_path / "data", "story.toml", insecure=True)
    coordinator = deployment.host(killed_in=2)  # in round 3, which west's classes came for
    parties = {name: deployment.join(name) for name in PARTIES}
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL, machine.said(
        "host.log"
    )
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    deployment.end(deployment.host("--resume"), parties)
    assert "2 of them new to the coordinator" in machine.said("west.log")
    lived = load_run(tmp_path / "run")
    assert lived.space.names == undisturbed.space.names
    assert lived.space.names[-2:] == tuple(NEW)
    assert [line["space"]["known"] for line in lived.metrics] == [10, 10, 12, 12, 12]
    assert lived.metrics[2]["space"]["added"] == NEW
    assert lived.metrics[4]["space"]["left"] == undisturbed.metrics[4]["space"]["left"]
    assert set(lived.metrics[4]["space"]["left"]) == set(PARTIES["south"])
    assert same(lived.params, undisturbed.params)
    # South is forgotten.
    left, other = tmp_path / "left", forget(undisturbed, "1", tmp_path / "other")
    done = CliRunner().invoke(
        app, ["forget", str(tmp_path / "run"), "--party", "south", "--out", str(left)]
    )
    if undisturbed.experiment.method.name == "gaussian":
        assert done.exit_code == 0, done.output
        left = load_run(left)
        assert same(left.params, other.params)
        assert left.space.hashes() == other.space.hashes()
        assert {left.space.names[c] for c in left.space.seen} == {*PARTIES["north"], *NEW}
        assert set(PARTIES["south"]) <= {left.space.names[c] for c in left.space.unseen}
    else:  # whose data are elsewhere
        assert "every party is in every parameter, and the parties' data are not here" in str(
            done.exception
        )
        assert not left.exists()
        left = other
    # The newcomers' classes are recognized: of twelve classes, by test samples that no party has
    # trained on.
    whole = load_data(undisturbed.experiment, 0)
    for name in NEW:
        rows = whole.test_seen[whole.labels[whole.test_seen] == whole.space.names.index(name)]
        answers = [ranking[0].name for ranking in left.predict(whole.features[rows])]
        assert answers.count(name) > len(rows) / 2
