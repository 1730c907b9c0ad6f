"""A party that brings classes is left out, by name, where they would end or wreck everyone's run."""

import json

import pytest
import torch

from fedunseen.deploy.remote import clients, wire
from fedunseen.deploy.remote.link import HEADER
from fedunseen.deploy.remote.wire import greeted_bytes, pack, split, unpack
from links import answered
from small_federation import (
    ATTRIBUTES,
    CLASSES,
    NAMES,
    Recorder,
    experiment,
    host,
    party,
    write_all,
)

LONG = [f"{i:03}" + "\U0001f600" * 197 for i in range(150)]  # 355,000 bytes in a header


class Bringing(Recorder):
    """A link on which some parties bring classes: party -> names, and a number of each."""

    def __init__(self, parties, brought, number):
        super().__init__(parties)
        self.brought, self.number = brought, number

    def ask(self, name, message):
        header = split(message)[0]
        reply = super().ask(name, message).result()
        if name not in self.brought or header["kind"] != "hello":
            return answered(reply)
        assert len(message) < HEADER
        said, _ = unpack(reply)
        known = header["growing"]["classes"]
        new = [c for c in self.brought[name] if c not in known]
        held = [*said["held"], *self.brought[name]]
        rows = torch.zeros(len(new), ATTRIBUTES, dtype=torch.float64)
        rows[:, 0] = self.number
        changed = {**said, "held": held, "brings": new, "classes": len(held), "samples": 2**20}
        return answered(pack(changed, {"brought": rows} if new else {}))


def grown(folder, brought, number=1.0, link=Bringing, **settings):
    """Return a run whose round needs two of three parties, some of which bring classes."""
    write_all(folder)
    parties = {n: party(folder / n, folder / "state" / n, [], None, False) for n in NAMES}
    chosen = experiment(
        folder,
        privacy__aggregation="plain",
        growth__name="unknown",
        engine__quorum=2,
        evaluation__confidence="none",
        **settings,
    )
    asked = link(parties, brought, number)
    return host(chosen, asked, folder / "run", folder / "kits"), asked


BAD = {
    "infinite to the rules": (["new"], 1e13, "it describes the class 'new' with 1e+13"),
    "far away": (["new"], -9e11, "it describes the class 'new' with -9e+11"),
    "many": ([f"new {i}" for i in range(1001)], 1.0, "it brings 1,001 new classes"),
    "long": (LONG, 1.0, "it brings 150 new classes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD)
def test_a_party_that_brings_bad_classes_is_left_out_by_name(kind, tmp_path, caplog):
    """It ended the run for all, without its name, or took the other parties' models."""
    names, number, words = BAD[kind]
    done, _ = grown(tmp_path, {"west": names}, number)
    assert f"west is refused: {words}" in caplog.text
    assert len(done.space.names) == CLASSES
    assert done.metrics[0]["participants"] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["ANY_LENGTH", "_DESCRIBED", "_GREETED"])
def test_all_parties_together_bring_as_many_classes_as_a_greeting_holds(
    bound, tmp_path, caplog, monkeypatch
):
    """Each party's are few, and no party reads a greeting with all of them."""
    north = [f"new {i}" for i in range(100)]
    first, link = grown(tmp_path / "control", {"north": north, "west": ["other"]})
    assert len(first.space.names) == CLASSES + 101
    header = len(json.dumps(split(link.sent["west"][0])[0]))
    most = {
        "ANY_LENGTH": CLASSES + 100,
        "_DESCRIBED": 100 * ATTRIBUTES,
        "_GREETED": header + greeted_bytes(north),
    }
    monkeypatch.setattr(clients, bound, most[bound])
    done, _ = grown(tmp_path / "bounded", {"north": north, "west": ["other"]})
    assert (
        "west is refused: it brings new classes, and the greeting of all parties has no room"
        in (caplog.text)
    )
    assert done.space.names == first.space.names[:-1]


class BringingAgain(Bringing):
    """West joins again before each round, and brings two further classes."""

    rounds = 0

    def present(self):
        return {"north": "n", "south": "s", "west": f"w{self.rounds}"}

    def ask(self, name, message):
        if name == "south" and split(message)[0]["kind"] == "round":
            self.rounds += 1
            self.brought["west"] += [f"new {2 * self.rounds}", f"new {2 * self.rounds + 1}"]
        return super().ask(name, message)


@pytest.mark.slow
@pytest.mark.parametrize("most", [5, 1000], ids=["", "control"])
def test_a_party_that_joins_again_has_no_more_room_for_its_classes(
    most, tmp_path, caplog, monkeypatch
):
    """It filled the greeting of all in ten rounds, and a class of another was refused."""
    monkeypatch.setattr(wire, "_BROUGHT", most)
    brought = {"west": ["new 0", "new 1"]}
    done, _ = grown(tmp_path, brought, link=BringingAgain, strategy__rounds=5)
    refused = "west is refused: it has brought 6 new classes with names of"
    assert (refused in caplog.text) == (most == 5)
    assert len(done.space.names) == CLASSES + (4 if most == 5 else 10)
