"""A real disk that fills under the coordinator, or at a site that answers by file: one sentence with
a code, nothing lost but the round in flight, and the bits of a run in which nothing happened.
"""

import json
import logging
import subprocess

import pytest
from typer.testing import CliRunner

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.core.log_files import LogFile
from fedunseen.deploy.releases import Releases
from fedunseen.experiment.deal import deal
from processes import Deployment, command, sets
from same import same
from small_runs import CLOSED

NAMES = ("north", "south")
SETTINGS = {
    "data.train_per_class": 40, "data.test_per_class": 10, "evaluation.selection": "last",
    "evaluation.theory": False, "evaluation.embedding": False, "evaluation.clients": False,
    "method.hidden": [8], "method.kl": 0.0, "strategy.rounds": 4,
}  # fmt: skip


class Disk:
    """A small file system; it can be filled but for some bytes, and emptied."""

    def __init__(self, path):
        self.path, self.filler = path, path / "filler"

    def fill(self, left=0):
        with open(self.filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(file.tell() - left)

    def empty(self):
        self.filler.unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def dealt(folder, preset, settings):
    """Deal data to two parties; return the deployment of the rest."""
    whole = Experiment.load(preset, {**settings, "partition.clients": len(NAMES)})
    deal(whole, folder / "data", list(NAMES))
    return whole


@pytest.mark.slow
def test_the_coordinator_s_disk_fills_in_the_midst_of_a_run(machine, tmp_path, disk):
    whole = dealt(tmp_path, "digit-pairs", SETTINGS)
    deployment = Deployment(
        machine,
        NAMES,
        tmp_path / "data",
        "digit-pairs",
        *sets({**SETTINGS, "engine.patience": 200.0}),
    )
    deployment.words[-1] = "disk/run"
    held = tmp_path / "held"
    held.write_text("1")
    coordinator = deployment.host()
    parties = {"north": deployment.join("north", held_by=held), "south": deployment.join("south")}
    machine.until(lambda: (disk.path / "run" / "checkpoints" / "000002.safetensors").exists())
    disk.fill()
    held.write_text("9")
    assert machine.ended(coordinator, *parties.values()) == 2  # who have not ended
    said = machine.said("host.log")
    assert "disk/run cannot be written (No space left on device)" in said
    assert "[run-directory]" in said
    assert "Traceback" not in said
    assert machine.ended(deployment.host("--resume"), *parties.values()) == 2  # still
    disk.empty()
    deployment.end(deployment.host("--resume"), parties)
    expected = run(whole.with_overrides({"engine.mode": "one-at-a-time"}), tmp_path / "here")
    assert same(load_run(disk.path / "run"), expected)


@pytest.mark.slow
def test_parties_get_the_model_of_a_coordinator_that_came_back_after_the_last_round(
    machine, tmp_path
):
    """No round is left in which it would wait for them."""
    dealt(tmp_path, "digit-pairs", SETTINGS)
    deployment = Deployment(machine, NAMES, tmp_path / "data", "digit-pairs", *sets(SETTINGS))
    coordinator = deployment.host(at=("result.json", 1))
    parties = {name: deployment.join(name) for name in NAMES}
    assert machine.ended(coordinator, *parties.values()) < 0
    deployment.end(deployment.host("--resume"), parties)
    for name in NAMES:
        assert load_run(tmp_path / "runs" / name).result["rounds"] == 4


def offline(*words):
    """Call a command of a federation by file."""
    done = CliRunner().invoke(app, ["offline", *map(str, words)])
    said = done.output + repr(done.exception if done.exit_code == 1 else "")
    return done, said


@pytest.mark.slow
def test_a_full_disk_where_answers_are_given_and_merged_by_file(tmp_path, disk):
    settings = {**CLOSED, "partition.clients": len(NAMES)}
    dealt(tmp_path, "digit-pairs-gaussian", settings)
    kits, plan = tmp_path / "kits", tmp_path / "three.plan"
    command("certs", "--parties", ",".join(NAMES), "--out", kits, "--authority", tmp_path / "auth")
    command(
        "offline", "plan", "digit-pairs-gaussian", *sets(settings), "--parties", ",".join(NAMES),
        "--credentials", kits / "coordinator", "--out", plan, "--plain",
    )  # fmt: skip
    answers = [tmp_path / f"{name}.answer" for name in NAMES]

    def answer(name, out, state):
        place = ["--data", tmp_path / "data" / name, "--credentials", kits / name, "--plain"]
        return ["answer", plan, *place, "--out", out, "--state", state]

    state = disk.path / "north"
    for left in (0, 4096, 8192, 16384, 32768):  # each time a later file finds no room
        disk.fill(left)
        done, said = offline(*answer("north", answers[0], state))
        assert isinstance(done.exception, OSError), said
        assert str(disk.path) in str(done.exception.filename)
        assert not answers[0].exists()
    disk.empty()
    command("offline", *answer("north", answers[0], state))
    kinds = [line["kind"] for line in Releases(state).lines]
    assert kinds == ["budget", "file"]
    disk.fill()
    out = disk.path / "south.answer"
    done, said = offline(*answer("south", out, tmp_path / "south"))
    assert isinstance(done.exception, OSError), said
    assert not out.exists()
    disk.empty()
    command("offline", *answer("south", out, tmp_path / "south"))
    merge = ["merge", plan, answers[0], out, "--out", disk.path / "run"]
    disk.fill(8192)
    done, _ = offline(*merge)
    assert done.exception.code == "run-directory"
    assert "call the command again" in str(done.exception)
    assert not (disk.path / "run").exists()
    disk.empty()
    command("offline", *merge)
    assert json.loads((disk.path / "run" / "result.json").read_text())["rounds"] == 1


def test_a_history_of_releases_goes_on_once_its_disk_has_room(disk):
    """The beginning of a line that found no room is no line, and no other process's."""
    history = Releases(disk.path)
    history.add("run", "round", round=1)
    disk.fill()
    with pytest.raises(OSError, match="No space left") as full:
        history.add("run", "round", round=2, padding="x" * 8192)
    assert full.value.filename == str(disk.path / "releases.jsonl")
    disk.empty()
    history.add("run", "round", round=3)
    assert [line["round"] for line in Releases(disk.path).lines] == [1, 3]


def test_a_log_whose_disk_is_full_ends_nothing_and_says_so_once(disk, caplog):
    log = logging.getLogger("fedunseen.federation")
    log.addHandler(kept := LogFile(disk.path / "federation.log"))
    try:
        disk.fill()
        for _ in range(3):
            log.warning("a line that finds no room %s", "x" * 8192)
        said = [line for line in caplog.messages if "cannot be written" in line]
        assert said == [
            f"{kept.baseFilename} cannot be written: lines are missing there until its disk has room"
        ]
        disk.empty()
        log.warning("there is room")
        disk.fill()
        log.warning("a second outage %s", "x" * 8192)
    finally:
        log.removeHandler(kept)
        kept.close()  # which has something that it cannot write
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 2
    disk.empty()
    assert "there is room" in (disk.path / "federation.log").read_text()


@pytest.mark.slow
def test_a_run_goes_on_where_its_logs_alone_find_no_room(machine, tmp_path, disk):
    whole = dealt(tmp_path, "digit-pairs", SETTINGS)
    deployment = Deployment(machine, NAMES, tmp_path / "data", "digit-pairs", *sets(SETTINGS))
    coordinator = deployment.host()
    kept = tmp_path / "run" / "engine" / "federation.log"
    messages = tmp_path / "fedunseen-north" / "messages.log"
    machine.until(kept.exists)
    messages.parent.mkdir()
    for path in (kept, messages):
        path.unlink(missing_ok=True)
        path.symlink_to(disk.path / path.name)
    (disk.path / messages.name).touch()
    (disk.path / kept.name).touch()
    disk.fill()
    deployment.end(coordinator, {name: deployment.join(name) for name in NAMES})
    for log in ("host.log", "north.log"):
        assert machine.said(log).count("cannot be written") == 1
        assert "Traceback" not in machine.said(log)
    expected = run(whole.with_overrides({"engine.mode": "one-at-a-time"}), tmp_path / "here")
    assert same(load_run(tmp_path / "run"), expected)


@pytest.mark.slow
def test_a_masked_coordinator_whose_disk_is_full_opens_the_same_sum_later(machine, tmp_path, disk):
    names = ("north", "south", "west")
    settings = {**CLOSED, "partition.clients": len(names), "privacy.aggregation": "masked"}
    whole = Experiment.load("digit-pairs-gaussian", settings)
    deal(whole, tmp_path / "data", list(names))
    deployment = Deployment(
        machine, names, tmp_path / "data", "digit-pairs-gaussian",
        *sets({**settings, "engine.patience": 200.0}), join=("--min-samples", "1", "--consent", "moments"),
    )  # fmt: skip
    deployment.words[-1] = "disk/run"
    coordinator = deployment.host()
    machine.until(lambda: "listening" in machine.said("host.log"))
    disk.fill()  # before anyone comes, so that the total is the first large file
    parties = {name: deployment.join(name) for name in names}
    assert machine.ended(coordinator, *parties.values()) == 2
    said = machine.said("host.log")
    assert "cannot be written (No space left on device)" in said
    assert "[run-directory]" in said
    assert "Traceback" not in said
    disk.empty()
    deployment.end(deployment.host("--resume"), parties)
    result = json.loads((disk.path / "run" / "result.json").read_text())
    here = run(whole, tmp_path / "here")
    assert result["sums_sha256"] == here.result["sums_sha256"]
