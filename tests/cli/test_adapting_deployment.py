"""Real parties adapt the model to their own unlabelled samples, round by round; two of the processes are killed."""

import json
import signal

import numpy as np
import pytest

from fedunseen import Experiment, run
from processes import ENGINES, Deployment, command, same_model, sets

NAMES = ("north", "south", "west")
SETTINGS = {
    "data.name": "folder", "data.unlabelled": True, "method.name": "gaussian", "method.calibration": True,
    "partition.clients": 3, "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(make_folder, with_pool, tmp_path_factory):
    """A folder of samples, the parties' folders, and the run in one process."""
    place = tmp_path_factory.mktemp("adapting")
    root = make_folder(place / "mine", with_pool)
    (place / "mine.toml").write_text(
        f"[data]\nname = 'folder'\nroot = '{root}'\n[method]\nname = 'gaussian'\n", "utf-8"
    )
    command(
        "data", "deal", place / "mine.toml", "--set=partition.clients=3", "--parties", ",".join(NAMES), "--out",
        place / "data",
    )  # fmt: skip
    arrays = dict(np.load(place / "data" / "west" / "features.npz"))  # west has no unlabelled sample
    kept = arrays["labels"] != ""
    np.savez(place / "data" / "west" / "features.npz", **{name: value[kept] for name, value in arrays.items()})
    return place


@pytest.fixture(scope="module")
def alone(place):
    """The run in one process, on the same samples."""
    parts = [dict(np.load(place / "data" / name / "features.npz")) for name in ("coordinator", *NAMES)]
    whole = {key: np.concatenate([part[key] for part in parts]) for key in ("features", "labels", "split")}
    (place / "whole").mkdir()
    np.savez(place / "whole" / "features.npz", **whole)
    (place / "whole" / "classes.csv").write_bytes((place / "mine" / "classes.csv").read_bytes())
    return run(Experiment.from_dict({"data": {"root": str(place / "whole")}}, SETTINGS), place / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["masked", "plain"])
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_processes_adapt_to_the_bits_of_one_process(engine, aggregation, machine, place, alone, tmp_path):
    """South dies in the second iteration, the coordinator after it has merged it."""
    settings = {**SETTINGS, "data.root": str(place / "data" / "coordinator"), "data.part": True}
    settings["privacy.aggregation"] = aggregation
    deployment = Deployment(machine, engine, NAMES, place / "data", place / "mine.toml", *sets(settings))
    coordinator = deployment.host(killed_in=1)
    parties = {name: deployment.join(name, 1 if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = deployment.join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    assert (tmp_path / "run" / "adapting" / "metrics.jsonl").read_text().count("\n") == 1
    deployment.end(deployment.host("--resume"), parties)
    same_model(tmp_path / "run", alone.path)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    for key in ("samples", "classes", "refused", "rounds"):
        assert result["adapted"][key] == alone.result["adapted"][key]
    assert result["gzsl_harmonic"] == alone.result["gzsl_harmonic"]
    for name in NAMES:  # the adapted model went home
        same_model(tmp_path / "runs" / name, alone.path)
