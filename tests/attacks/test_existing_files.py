"""A coordinator that names files, to learn from refusals which of them a party has."""

from pathlib import Path

import pytest

from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.encoders.hub import named_by_others, weights_folder
from refusals import message_of
from small_federation import experiment, greeting, party, write_all


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return what asks north with an encoder of a name, and what north answers and says."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def ask(weights, guarded=True, kind="vit"):
        chosen = {**header["experiment"], "encoder": {"name": kind, "weights": weights}}
        if not guarded:
            chosen["privacy"] = {}
        said = []
        state = tmp_path / f"state-{len(list(tmp_path.iterdir()))}"
        north = party(tmp_path / "north", state, said, guarded=guarded)
        answer, _ = unpack(north.answer(pack({**header, "experiment": chosen}, tensors)))
        return answer, str(north.error)

    return ask, here


def absent_from_the_hub(name, **options):
    raise OSError(f"no repository {name}")


@pytest.mark.parametrize("name", ["patients", "patients/hiv-positive"])
@pytest.mark.parametrize("guarded", [True, False])
def test_an_answer_does_not_tell_whether_a_folder_exists(asked, name, guarded):
    ask, here = asked
    absent = ask(name, guarded)
    (here / name).mkdir(parents=True)
    assert ask(name, guarded) == absent


def test_a_name_of_others_is_looked_for_in_the_hub_alone(tmp_path, monkeypatch):
    """Where the party's samples are pictures, it opens what the name stands for."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", absent_from_the_hub)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients").mkdir()
    assert weights_folder("patients", "encoder.weights") == Path("patients")  # of the owner
    with named_by_others({"patients", "strangers"}):
        answers = [
            message_of(weights_folder, name, "encoder.weights").replace(name, "NAME")
            for name in ("patients", "strangers")
        ]
    assert answers[0] == answers[1]


def test_an_answer_does_not_tell_whether_a_file_exists(asked):
    ask, here = asked
    absent = ask("patients.pth", kind="efficientnet-lite")
    assert absent[0] == {"error": "refused-settings"}
    (here / "patients.pth").write_bytes(b"x")
    assert ask("patients.pth", kind="efficientnet-lite") == absent
