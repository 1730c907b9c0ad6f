"""The run directory: what it refuses, what it heals, and that a kill between any two writes changes
nothing.
"""

import itertools
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import holding
from fedunseen.core.tensor_store import TensorStore, read_records
from fedunseen.experiment.manifest import free_directory
from fedunseen.federation.federation import State
from fedunseen.federation.run_directory import RunDirectory, load_params, parts_of
from refusals import message_of
from same import content
from small_runs import LAST


class Killed(BaseException):
    """What no code of the package catches."""


ONE = {**LAST, "strategy.rounds": 1}
refusal = partial(message_of, error=RunDirectoryError)


@pytest.fixture
def copy(finished, tmp_path):
    """A finished run that a test may damage."""
    return Path(shutil.copytree(finished.path, tmp_path / "copy"))


@pytest.fixture
def heal(make, copy, finished):
    """Resume the damaged copy: it becomes what it was."""

    def call():
        run(make(), copy, resume=True)
        assert content(copy) == content(finished.path)

    return call


def kill_at(monkeypatch, moment):
    """Raise Killed in the midst of the durable write of that number, counted from 1, and leave what
    is half-written.
    """
    count, unlink = [0], Path.unlink

    def killed(write, leave=lambda *given: None):
        def call(*given):
            count[0] += 1
            if count[0] == moment:
                leave(*given)
                raise Killed
            write(*given)

        return call

    def cut_short(directory, line):
        with open(directory.metrics_path, "a") as file:
            file.write('{"round": 1')

    def kept(path, missing_ok=False):
        if count[0] != moment:  # a killed process tidies nothing up
            unlink(path, missing_ok)

    monkeypatch.setattr(os, "replace", killed(os.replace))
    monkeypatch.setattr(RunDirectory, "add_metrics", killed(RunDirectory.add_metrics, cut_short))
    monkeypatch.setattr(Path, "unlink", kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy.name": "local", **LAST},
        {"run.seeds": 2, **LAST},
        {"strategy.rounds": 6, "strategy.stop_after": 1, "method.lr": 0.5},
    ],
)
def test_a_kill_within_any_write_changes_nothing(make, tmp_path, settings):
    experiment = make({"strategy.rounds": 2, "evaluation.clients": False, **settings})
    expected = content(run(experiment, tmp_path / "whole").path)
    for moment in itertools.count(1):
        out = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, moment)
            try:
                run(experiment, out)
                break  # there is no such write any more
            except Killed:
                pass
        assert content(run(experiment, out, resume=True).path) == expected, moment
    assert moment > (16 if not settings else 10)


def test_leftovers_of_a_kill_are_swept(make, tmp_path, cut_short):
    experiment, out = make({"strategy.rounds": 2}), tmp_path / "run"
    cut_short(experiment, out, after=1, stage="training")
    names = [
        ".model.safetensors.123.tmp",
        ".tmpAbC123",
        ".classes.csv.45.tmp",
        "checkpoints/.000001.safetensors.9.tmp",
    ]
    for name in [*names, "checkpoints/.tmpzzzzzz"]:
        (out / name).write_bytes(b"half")
    run(experiment, out, resume=True)
    assert [file for file in out.rglob(".*") if file != out / ".lock"] == []


def test_without_resume_or_for_another_experiment_a_run_is_not_written_over(make, tree, finished):
    before = content(finished.path)
    assert "already holds a run: add --resume to continue with it, or choose" in refusal(
        run, make(), finished.path
    )
    sentence = refusal(run, make({"method.lr": 0.2, "run.seed": 3}), finished.path, resume=True)
    assert "holds a run of another experiment (method.lr was 0.05, is" in sentence
    assert (
        run(Experiment.from_dict({**tree, "name": "copy"}), finished.path, resume=True).result
        == finished.result
    )
    assert content(finished.path) == before


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_finished_run_is_given_back_at_once(seeds, ran, monkeypatch):
    done = ran({**ONE, "run.seeds": seeds})
    monkeypatch.setattr(
        "fedunseen.experiment.setup.build_federation", None
    )  # which prepares training
    before = {file: file.stat().st_mtime_ns for file in done.path.rglob("*")}
    assert ran({**ONE, "run.seeds": seeds}, resume=True).result == done.result
    assert {file: file.stat().st_mtime_ns for file in done.path.rglob("*")} == before


def test_resume_refuses_other_data(ran, make_folder, tmp_path):
    settings = {**ONE, "data.root": str(make_folder(tmp_path / "data"))}
    ran(settings)
    make_folder(tmp_path / "data", lambda rows, arrays: np.add.at(arrays["features"], (3, 2), 1e-3))
    assert ": the data have changed since this run was started: restore them," in refusal(
        ran, settings, resume=True
    )


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", ".git", "folder/"])
def test_a_directory_with_something_else_is_left_alone(ran, tmp_path, name, resume):
    mine = tmp_path / "run" / name
    mine.parent.mkdir()
    mine.mkdir() if name.endswith("/") else mine.write_text("mine")
    assert "exists and is not a run directory: choose another --out" in refusal(ran, resume=resume)
    assert list(mine.parent.iterdir()) == [mine]


def test_a_file_is_no_directory_but_an_empty_one_and_missing_folders_above_are_fine(ran, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "exists and is not a run directory" in refusal(ran, name="file")
    for seeds in (1, 2):
        assert "below cannot be written (" in refusal(ran, {"run.seeds": seeds}, "file/below")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    for name in ("empty", "a/b/ü c"):
        assert load_run(ran(ONE, name).path).result["rounds"] == 1


def test_a_second_process_is_kept_out(ran):
    settings, said = {**LAST, "strategy.rounds": 2}, []

    def intrude(stage, round, rounds, line):
        if round == 1:
            said.append(refusal(ran, settings, resume=True))

    done = ran(settings, progress=intrude)
    assert said == [
        f"{done.path} is in use by another process: wait for it, or choose another --out"
    ]
    with holding(done.path) as free:
        assert free


def test_who_comes_second_to_an_empty_directory_does_not_write_over_the_first(
    ran, tmp_path, monkeypatch
):
    """Both have looked and found nothing; then the other one runs from start to end."""
    real = RunDirectory.locked

    def locked(self):
        monkeypatch.setattr(RunDirectory, "locked", real)
        ran({**LAST, "strategy.rounds": 2})
        return real(self)

    monkeypatch.setattr(RunDirectory, "locked", locked)
    assert "already holds a run" in refusal(ran, ONE)
    assert load_run(tmp_path / "run").result["rounds"] == 2


REMEDIES = {
    "manifest.json": "restore it, or run the experiment again in another --out",
    "result.json": "delete it and resume the run",
}


@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b"\0", b"\xe9", b'{"experiment": 3, "input_shape": [1]}']
)
def test_a_damaged_file_is_one_sentence(make, copy, name, text):
    (copy / name).write_bytes(text)
    sentences = refusal(load_run, copy), refusal(run, make(), copy, resume=True)
    assert sentences == (f"{copy / name} is damaged: {REMEDIES[name]}",) * 2


def damage(path, how):
    whole = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(whole[: {"empty": 0, "half": len(whole) // 2, "cut short": -5}[how]])


@pytest.mark.parametrize("name", ["model.safetensors", "evaluation.safetensors", "classes.csv"])
@pytest.mark.parametrize("how", ["missing", "half", "empty"])
def test_resume_makes_again_what_a_finished_run_has_lost(heal, copy, name, how):
    damage(copy / name, how)
    if name == "model.safetensors":
        assert "resume the run to make it again" in refusal(lambda: load_run(copy).params)
    heal()


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda text: "", 0),
        (lambda text: text[:-30], 3),
        (lambda text: text.replace('"round": 2,', '"round": 2;'), 1),
        (lambda text: "\n".join(text.splitlines()[2:]) + "\n", 0),
        (lambda text: "3\n", 0),
    ],
)
def test_damaged_metrics_are_noticed_and_made_again(heal, copy, change, kept):
    metrics = copy / "metrics.jsonl"
    metrics.write_text(change(metrics.read_text()))
    assert len(RunDirectory(copy).metrics()) == kept
    assert "is damaged: resume the run to make it again" in refusal(lambda: load_run(copy).metrics)
    heal()


@pytest.mark.slow
@pytest.mark.parametrize("newest", ["cut short", "missing"])
@pytest.mark.parametrize("before", ["whole", "cut short"])
def test_a_damaged_checkpoint_or_a_lost_selection_costs_rounds_not_the_result(
    make, finished, heal, copy, newest, before
):
    (copy / "result.json").unlink()
    assert ": this run is not complete: resume it with --out" in refusal(load_run, copy)
    checkpoints = copy / "checkpoints"
    damage(checkpoints / "000004.safetensors", newest)
    if before != "whole":
        damage(checkpoints / "000003.safetensors", before)
    (checkpoints / "notes.safetensors").write_bytes(b"no checkpoint")
    heard = []
    run(make(), copy, resume=True, progress=lambda stage, round, rounds, line: heard.append(round))
    assert heard[0] == (3 if before == "whole" else 0)
    (checkpoints / "notes.safetensors").unlink()
    assert content(copy) == content(finished.path)
    shutil.rmtree(copy / "selection")
    (copy / "result.json").unlink()
    heal()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A run directory that takes any checkpoint: the metrics of all rounds are there."""
    monkeypatch.setattr(RunDirectory, "metrics", lambda self: range(1_000_000))
    return RunDirectory(tmp_path)


def test_checkpoints_come_back_with_every_state(directory, tmp_path):
    params, own = {"a/b": torch.arange(3.0)}, {"w": torch.ones(2)}
    for rounds in (999_998, 999_999, 1_000_000):  # more digits than the name has room for
        directory.save_checkpoint(
            State(rounds, {"momentum/x": params["a/b"]}, params, {11: own, 2: {}})
        )
    found = directory.newest_checkpoint(torch.device("cpu"))
    assert (found.round, found.clients[11]["w"].tolist()) == (1_000_000, [1, 1])
    assert found.params["a/b"].tolist() == found.server["momentum/x"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_of_what_many_clients_remember_a_checkpoint_writes_what_has_changed(directory, tmp_path):
    store = TensorStore()
    states, written = {k: store.put({"w": torch.full((3,), float(k))}) for k in range(10)}, []
    for rounds in range(1, 9):
        if rounds > 1:
            for k in (rounds % 10, (rounds + 5) % 10):  # two of ten take part
                states[k] = store.put({"w": torch.full((3,), 100.0 * rounds + k)})
        expected = {k: own["w"].tolist() for k, own in states.items()} | {99: [5.0]}
        directory.save_checkpoint(
            State(rounds, {}, {"a": torch.ones(1)}, states | {99: {"v": torch.tensor([5.0])}})
        )
        if rounds == 3:
            directory.keep_checkpoint(3)
            kept = expected
        written.append(
            len(read_records(tmp_path / "checkpoints" / f"{rounds:06d}.clients", TensorStore()))
        )
        again = RunDirectory(tmp_path)
        found = again.newest_checkpoint(torch.device("cpu"))
        assert {
            k: next(iter(one.values())).tolist() for k, one in found.clients.items()
        } == expected
        if rounds == 6:  # continue as a resume does: the first checkpoint after it is whole
            directory, states = again, {k: one for k, one in found.clients.items() if k != 99}
            store = TensorStore()
    assert written == [10, 2, 2, 2, 2, 10, 10, 2]
    parts = {path.name for path in (tmp_path / "checkpoints").glob("*.clients")}
    assert parts == {
        "000001.clients",
        "000002.clients",
        "000003.clients",
        "000007.clients",
        "000008.clients",
    }
    _, path = directory.kept_checkpoint(3)  # the state kept for good still has all its parts
    found = [
        record for part in parts_of(path) for record in read_records(part, TensorStore()).items()
    ]
    del kept[99]
    assert {k: own["w"].tolist() for k, own in found} == kept


def test_a_lost_part_of_a_checkpoint_costs_a_round(directory, tmp_path):
    store = TensorStore()
    for rounds in (1, 2):
        own = {k: store.put({"w": torch.full((3,), float(rounds))}) for k in range(3)}
        directory.save_checkpoint(State(rounds, {}, {"a": torch.ones(1)}, own))
    part = tmp_path / "checkpoints" / "000002.clients"
    part.write_bytes(part.read_bytes()[:-1])
    found = RunDirectory(tmp_path).newest_checkpoint(torch.device("cpu"))
    assert (found.round, found.clients[2]["w"].tolist()) == (1, [1, 1, 1])


def test_nothing_is_ever_unpickled(finished, tmp_path):
    assert not [
        file
        for file in finished.path.rglob("*")
        if file.suffix in (".pt", ".pth", ".pkl", ".pickle")
    ]
    torch.save({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert "cannot be read" in refusal(load_params, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["../../escape", "/any/where", "a\\b"])
def test_a_name_leads_nowhere_else(name):
    experiment = Experiment.from_dict(
        {"name": name, "data": {"name": "digit-pairs"}, "method": {"name": "gaussian"}}
    )
    assert free_directory(experiment).parent == Path("runs")
