"""A greeting that a party refuses by settings alone spends none of its privacy: otherwise anyone who
greets it could keep it from all runs with a limit. No round is answered after it, since no line may
hold what that costs.
"""

import copy
import errno
import math

import pytest

from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.remote import clients
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.wire import pack, split, unpack
from fedunseen.deploy.secagg import ledger
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.site import Owner, Site
from small_federation import NAMES, Recorder, experiment, greeting, host, party, write_all

ACCEPTED = {"masked": True, "weight": 1.0}
REFUSED = {
    "version": lambda header: header.update(version="9"),
    "classes": lambda header: header.update(classes="00" * 32),
    "settings": lambda header: header["experiment"]["data"].update(quantization=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", REFUSED)
def test_a_refused_greeting_spends_nothing_of_later_runs(change, tmp_path):
    """It cost all privacy that there is, so that no run with a limit was taken any more."""
    write_all(tmp_path)
    enrol(tmp_path / "kits", NAMES)
    kit = tmp_path / "kits" / "north"
    state = tmp_path / "state"
    noise = {"name": "sample-level", "epsilon": 1.0, "clip": 1.0, "noise_from": "system"}
    noisy = experiment(
        tmp_path,
        evaluation__confidence="none",
        **{f"privacy__{key}": value for key, value in noise.items()},
    )
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")

    def asked(header, tensors, limit=None):
        held = PartyData(tmp_path / "north", masked=True)
        owner = Owner(tmp_path / "north", kit, (), True, epsilon_limit=limit)
        answered = Party(held.prepare, Site(state, owner)).answer
        replies = [answered(pack(header, tensors)), answered(pack({**header, "kind": "round"}))]
        return split(replies[0])[0]

    refused = copy.deepcopy(header)
    REFUSED[change](refused)
    assert asked(refused, tensors) == {"error": f"refused-{change}"}
    assert Releases(state).spent() == (0.0, 0.0)
    noisy_greeting = greeting(noisy, tmp_path / "noisy")
    assert asked(*noisy_greeting, 5.0) == ACCEPTED
    assert asked(header, tensors) == ACCEPTED  # the control: this one is charged as before
    assert Releases(state).spent()[0] == math.inf
    assert asked(*noisy_greeting, 5.0) == {"error": "refused-budget"}


def test_a_refusal_that_may_depend_on_samples_costs_what_its_run_would(tmp_path):
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    held = PartyData(tmp_path / "north", min_samples=50)
    party = Party(held.prepare, Site(tmp_path / "state"))
    assert split(party.answer(pack(header, tensors)))[0]["error"] == "refused-data"
    assert Releases(tmp_path / "state").spent()[0] == math.inf


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Returns what a coordinator sends to north in a run in clear, and in a masked one."""
    folder = tmp_path_factory.mktemp("recorded")
    write_all(folder)
    enrol(folder / "kits", NAMES)

    def messages(way):
        parties = {
            name: party(
                folder / name, folder / way / name, [], folder / "kits" / name, way != "plain"
            )
            for name in NAMES
        }
        link = Recorder(parties)
        chosen = experiment(folder, privacy__aggregation=way, evaluation__confidence="none")
        host(chosen, link, folder / f"run-{way}", folder / "kits")
        return link.sent["north"]

    return folder, {way: messages(way) for way in ("plain", "masked")}


def fill(place, patch):
    """Let the disk be full at one write of a greeting."""
    add = Releases.add

    def full(*given, **facts):
        if place in ("samples", facts.get("kind", given[-1])):
            raise OSError(28, "No space left on device")
        return add(*given, **facts)

    patch.setattr(*((ledger, "_write") if place == "samples" else (Releases, "add")), full)


@pytest.mark.parametrize("place", ["samples", "budget", "hello"])
@pytest.mark.parametrize("way", ["plain", "masked"])
def test_no_message_is_answered_after_a_greeting_that_met_a_full_disk(
    way, place, recorded, tmp_path, monkeypatch
):
    """The coordinator goes on all the same, and a limit that comes later would know of no cost."""
    folder, messages = recorded
    hello, then = messages[way][:2]  # a round in clear, or the plan of a masked sum
    kit = folder / "kits" / "north"
    north = party(folder / "north", tmp_path, [], kit, way == "masked")

    def ask(message):
        return unpack(north.answer(message))[0].get("error", "answered")

    def ask_full():
        with monkeypatch.context() as patch:
            fill(place, patch)
            return ask(hello)

    assert (ask_full(), ask(then)) == ("refused-storage", "refused-message")
    assert {line["kind"] for line in Releases(tmp_path).lines} <= {"budget", "refusal"}
    # the control: there is room when the same greeting comes again
    assert (ask_full(), ask(hello), ask(then)) == ("refused-storage", "answered", "answered")
    assert Releases(tmp_path).lines[-1]["kind"] == unpack(then)[0]["kind"]
    assert Releases(tmp_path).spent()[0] == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_a_party_whose_disk_was_full_joins_once_there_is_room(aggregation, tmp_path, monkeypatch):
    """It was refused for good, and the others waited for it until their patience ended."""
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    monkeypatch.setattr(clients, "_ROOM", 0.01)
    genuine, tries = ledger.Ledger.write, []

    def full(self, changes):
        if "north" in str(self.folder) and len(tries) < 3:
            tries.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")
        genuine(self, changes)

    monkeypatch.setattr(ledger.Ledger, "write", full)
    parties = {
        name: party(data / name, tmp_path / name, [], tmp_path / "kits" / name, guarded=False)
        for name in NAMES
    }
    asked = experiment(
        data, privacy__aggregation=aggregation, engine__patience=30.0,
        evaluation__confidence="none",
    )  # fmt: skip
    host(asked, Recorder(parties), tmp_path / "run", tmp_path / "kits")  # which needs all three
    assert len(tries) == 3
