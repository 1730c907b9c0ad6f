"""Real parties adapt the model to their own unlabelled samples, round by round; two of the processes are killed."""

import json
import signal

import pytest

from fedunseen import load_run
from processes import ADAPTING, ENGINES, Deployment, sets
from same import same

NAMES = ("north", "south", "west")


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["masked", "plain"])
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_processes_adapt_to_the_bits_of_one_process(engine, aggregation, machine, adapting, tmp_path):
    """South dies in the second iteration, the coordinator after it has merged it."""
    settings = {"data.root": str(adapting / "data" / "coordinator"), "data.part": True}
    settings = {**ADAPTING, **settings, "privacy.aggregation": aggregation}
    deployment = Deployment(machine, engine, NAMES, adapting / "data", adapting / "mine.toml", *sets(settings))
    coordinator = deployment.host(killed_in=1)
    parties = {name: deployment.join(name, 1 if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = deployment.join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    assert (tmp_path / "run" / "adapting" / "metrics.jsonl").read_text().count("\n") == 1
    deployment.end(deployment.host("--resume"), parties)
    alone = load_run(adapting / "alone")
    assert same(tmp_path / "run", alone.path)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    for key in ("samples", "classes", "refused", "rounds"):
        assert result["adapted"][key] == alone.result["adapted"][key]
    assert result["gzsl_harmonic"] == alone.result["gzsl_harmonic"]
    for name in NAMES:  # the adapted model went home
        assert same(tmp_path / "runs" / name, alone.path)
