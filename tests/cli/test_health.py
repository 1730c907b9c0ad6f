"""What ``fedunseen health`` says of folders in which someone works, and in which no one does."""

import json
import logging
import shutil

from fedunseen.cli.health import Status
from fedunseen.core.files import holding
from fedunseen.engines.remote.releases import Releases


def record(text, **more):
    return logging.makeLogRecord({"msg": text, "levelno": logging.INFO, **more})


def asked(command, folder):
    done = command("health", folder, "--json")
    result = json.loads(done.out)
    assert done.code == (0 if result["healthy"] else 1)
    return result["healthy"], result["what"].rpartition(" (")[0]


def test_a_party_is_well_while_it_is_connected(command, tmp_path):
    status = Status(tmp_path)
    assert asked(command, tmp_path) == (False, "no process is at work; last: started")
    with holding(tmp_path):
        assert asked(command, tmp_path) == (False, "no coordinator is reached; last: started")
        status.emit(record("joined with 1620 samples of 27 classes"))
        assert asked(command, tmp_path) == (True, "connected; last: joined with 1620 samples of 27 classes")
        status.emit(record("waiting for the coordinator at 127.0.0.1:1: refused", looking=True))
        healthy, what = asked(command, tmp_path)
        assert (healthy, what.startswith("no coordinator is reached")) == (False, True)
        status.emit(record("round 3: 0.5 s, loss 1.2"))
        assert asked(command, tmp_path)[0]
    assert asked(command, tmp_path)[0] is False  # the process is gone in the middle of the run
    status.write("the run is over", False, over=True)
    assert asked(command, tmp_path) == (True, "the run is over")


def test_a_party_that_answers_by_file_needs_no_process(command, tmp_path):
    releases = Releases(tmp_path)
    releases.add("0", "budget", data="1", epsilon=None, delta=0.0)
    releases.add("0", "file", bytes=10)
    assert asked(command, tmp_path) == (True, "answers by file: 1, and no process is needed")


def test_a_coordinator_is_well_while_it_works_and_when_it_is_done(command, digits, tmp_path):
    run = shutil.copytree(digits, tmp_path / "run")
    assert asked(command, run) == (True, "the run is complete")
    (run / "result.json").unlink()
    assert asked(command, run) == (False, "no process is at work; round 3 of 3 is done")
    (run / "metrics.jsonl").write_bytes(b"".join((digits / "metrics.jsonl").read_bytes().splitlines(True)[:2]))
    with holding(run):
        assert asked(command, run) == (True, "round 2 of 3 is done")
