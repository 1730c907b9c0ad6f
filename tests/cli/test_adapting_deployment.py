"""Real parties adapt the model to their own unlabelled samples, round by round; two of the processes are killed."""

import json
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedunseen import Experiment, run
from processes import ENGINES, command, free_port

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


def same(one, other):
    one, other = (load_file(path / "model.safetensors") for path in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["masked", "plain"])
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_processes_adapt_to_the_bits_of_one_process(engine, aggregation, machine, place, alone, tmp_path):
    """South dies in the second iteration, the coordinator after it has merged it."""
    command("certs", "--engine", engine, "--parties", ",".join(NAMES), "--out", tmp_path / "kits")
    at = f"127.0.0.1:{free_port()}"
    settings = {**SETTINGS, "data.root": str(place / "data" / "coordinator"), "data.part": True}
    settings["privacy.aggregation"] = aggregation
    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    host = ["host", place / "mine.toml", *words, "--kit", "kits/coordinator", "--address", at, "--out", "run"]

    def join(name, killed_in=None):
        given = ["join", at, "--data", place / "data" / name, "--kit", f"kits/{name}"]
        return machine.start(f"{name}.log", *given, killed_in=killed_in)

    coordinator = machine.start("host.log", *host, killed_in=1)
    parties = {name: join(name, 1 if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    assert (tmp_path / "run" / "adapting" / "metrics.jsonl").read_text().count("\n") == 1
    coordinator = machine.start("host.log", *host, "--resume")
    assert machine.ended(coordinator) == 0, machine.said("host.log")
    for name, party in parties.items():
        assert machine.ended(party) == 0, machine.said(f"{name}.log")
    assert same(tmp_path / "run", alone.path)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert {k: v for k, v in result["adapted"].items() if k in ("samples", "classes", "refused", "rounds")} == {
        k: v for k, v in alone.result["adapted"].items() if k in ("samples", "classes", "refused", "rounds")
    }
    assert result["gzsl_harmonic"] == alone.result["gzsl_harmonic"]
    for name in NAMES:  # the adapted model went home
        assert same(tmp_path / "runs" / name, alone.path)
