"""A run's history, and its return to an earlier round: what goes on from there has the bits of a run
that never went further.
"""

import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from fedunseen import __version__, load_run, run
from fedunseen.cli import logs
from fedunseen.core.errors import ArgumentError, RunDirectoryError
from fedunseen.deploy import rollback as module
from fedunseen.deploy.remote import clients
from fedunseen.deploy.rollback import events, history, rollback
from fedunseen.federation.run_directory import RunDirectory
from same import same
from small_runs import experiment


def five(keep=4, rounds=5, **more):
    return experiment(strategy__rounds=rounds, run__keep=keep, strategy__name="scaffold", **more)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return run(five(), tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def made(original, tmp_path):
    return shutil.copytree(original.path, tmp_path / "run")


@pytest.mark.slow
def test_a_run_returns_goes_on_and_says_why(made, original, command):
    kept = sorted(path.name for path in (made / "checkpoints").iterdir())
    assert kept == [f"{k:06d}.safetensors" for k in (2, 3, 4, 5)]
    identity = RunDirectory(made).identity()
    done = command("rollback", made, "--round", 3, "--reason", "site C sent labels of another year")
    assert done.code == 0, done.err
    assert not (made / "result.json").exists()
    assert RunDirectory(made).identity() == identity
    found = command("history", made, "--json").answer
    assert [one["round"] for one in found["rounds"]] == [1, 2, 3]
    assert [one["kept"] for one in found["rounds"]] == [False, True, True]
    (event,) = found["events"]
    assert (event["from"], event["round"]) == (5, 3)
    assert event["reason"] == "site C sent labels of another year"
    taken = (made / "taken-back-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in taken] == [4, 5]
    assert same(run(five(), made, resume=True), original)
    assert "site C sent" in command("history", made).err


@pytest.mark.slow
def test_a_run_that_returned_may_end_there(made, tmp_path):
    rollback(made, 3, "later rounds are worse")
    ended = run(five(rounds=3), made, resume=True)
    assert same(ended, run(five(rounds=3), tmp_path / "three"))
    assert ended.result["rounds"] == 3
    assert same(load_run(made), ended)
    rollback(made, 2, "once more")
    assert [event["round"] for event in events(made)] == [3, 2]
    assert (made / "taken-back-2.jsonl").exists()


@pytest.mark.parametrize(
    ("round", "reason", "code"),
    [(1, "why", "round-not-kept"), (9, "why", "round-not-kept"), (5, "why", "round-not-earlier"),
     (3, " ", None), (3, "a\nb", None)],
)  # fmt: skip
def test_what_is_refused_changes_nothing(made, round, reason, code):
    files = [path for path in made.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(ArgumentError) as refused:
        rollback(made, round, reason)
    assert code is None or refused.value.code == code
    assert before == {path: path.read_bytes() for path in before}
    assert events(made) == []


def test_a_kill_in_the_midst_leaves_the_reason_and_a_whole_run(made, monkeypatch, original):
    monkeypatch.setattr(module, "_return", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rollback(made, 3, "why")
    assert len(events(made)) == 1
    assert same(load_run(made), original)


@pytest.mark.parametrize("name", ["taken-back-1.jsonl", "history.jsonl", "metrics.jsonl"])
def test_nothing_is_written_through_a_link_of_a_strangers_run(made, tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_bytes((made / name).read_bytes() if (made / name).exists() else b"mine")
    before = mine.read_bytes()
    (made / name).unlink(missing_ok=True)
    (made / name).symlink_to(mine)
    with pytest.raises(RunDirectoryError, match="which a run directory must not hold") as refused:
        rollback(made, 3, "trying it")
    assert refused.value.code == "run-link"
    assert mine.read_bytes() == before


def test_a_run_in_use_and_a_damaged_trail_are_refused(made):
    with RunDirectory(made).locked(), pytest.raises(RunDirectoryError, match="in use"):
        rollback(made, 3, "why")
    whole = {"time": "now", "event": "rollback", "round": 1, "from": 2, "reason": "why"}
    (made / "history.jsonl").write_text(json.dumps(whole))
    assert history(made)["events"] == [whole]
    crafted = [whole | {"reason": 1}, whole | {"round": "1"}, whole | {"a": nested(300)}]
    several = ("{", "[[1, 2]]", '{"event": "rollback"}', '{"round": 1e400}')
    for line in (*several, *map(json.dumps, crafted)):
        (made / "history.jsonl").write_text(line)
        with pytest.raises(RunDirectoryError, match="restore it from a copy"):
            history(made)
        with pytest.raises(RunDirectoryError, match="restore it from a copy"):
            rollback(made, 3, "why")
        assert (made / "history.jsonl").read_text() == line  # no event of what did not happen


def test_a_full_disk_cuts_no_line_of_the_trail(made, monkeypatch):
    (made / "history.jsonl").write_text(
        '{"time": "now", "event": "rollback", "round": 1, "from": 2, "reason": "why"}\n'
    )
    before = (made / "history.jsonl").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_text", full)
        with pytest.raises(RunDirectoryError, match="No space"):
            rollback(made, 3, "why")
    assert (made / "history.jsonl").read_bytes() == before
    rollback(made, 3, "why")
    assert (made / "history.jsonl").read_bytes().startswith(before)
    assert len(events(made)) == 2


def full(*given):
    raise OSError(28, "No space left on device")


def with_metrics(made, **changes):
    """Change the first line of a run's ``metrics.jsonl``."""
    path = made / "metrics.jsonl"
    first, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(lines))


def test_names_in_the_metrics_of_a_stranger_steer_no_terminal(made, command):
    with_metrics(made, **{"a\x1b]0;b\x07": 1.5})
    done = command("history", made)
    assert done.code == 0
    assert "a\N{REPLACEMENT CHARACTER}]0;b\N{REPLACEMENT CHARACTER} 1.5" in done.out


def nested(levels):
    return [nested(levels - 1)] if levels else 0


@pytest.mark.parametrize(
    "changes",
    [{"participants": None}, {"participants": -1}, {"participants": True}, {"a": nested(300)},
     {"a": 10**400}],
    ids=["null", "number", "true", "deep", "large"],
)  # fmt: skip
def test_metrics_of_another_form_are_refused_in_one_sentence(made, refused, changes):
    with_metrics(made, **changes)
    said = refused("history", made)
    assert f"{made / 'metrics.jsonl'} is damaged: restore it from a copy" in said
    with_metrics(made, participants=[], a=0)
    assert len(history(made)["rounds"]) == 5


@pytest.mark.parametrize("name", ["history.jsonl", "rosters.json", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_is_refused(made, refused, name):
    (made / name).unlink(missing_ok=True)
    os.mkfifo(made / name)
    said = refused("history", made)
    assert f"{made / name} is a pipe or a device, not a file: put a file in its place" in said


def test_a_round_that_has_spent_a_budget_is_not_taken_back(made):
    path = made / "manifest.json"
    stored = json.loads(path.read_text())
    stored["experiment"]["privacy"] = {"name": "client-level"}
    path.write_text(json.dumps(stored))
    with pytest.raises(ArgumentError) as refused:
        rollback(made, 3, "why")
    assert (refused.value.code, events(made)) == ("noise-was-spent", [])


def test_a_manifest_names_what_was_imported_and_the_commit(made):
    versions = json.loads((made / "manifest.json").read_text())["versions"]
    assert versions["fedunseen"] == __version__
    assert {"torch", "numpy", "pydantic", "typer"} <= versions.keys()
    if (Path(__file__).parents[2] / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}", versions["commit"])


def test_lines_for_machines_name_run_party_round_and_event_and_survive_rotation(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(logs, "_format", logs.Format.json)
    log, folder = logging.getLogger("fedunseen.federation"), tmp_path / "three" / "engine"
    path = folder / "federation.log"
    with logs.logged(folder):
        log.warning("%s is gone", "north", extra=clients.event("gone", "north", round=7))
        path.rename(folder / "federation.log.1")
        log.info("next")
    (first,) = map(json.loads, (folder / "federation.log.1").read_text().splitlines())
    (second,) = map(json.loads, path.read_text().splitlines())
    assert {"run": "three", "event": "gone", "party": "north", "round": 7}.items() <= first.items()
    assert (second["message"], second["run"]) == ("next", "three")
