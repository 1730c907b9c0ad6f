"""Refusals after a plan was signed: a coordinator that lies would lower a threshold, instruction by
instruction, until a party's update overflows, and read a number of a sample from that one refusal.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.masking import instruction_digest
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.refusals import HINTS
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.secagg.masks import BEYOND, Masks
from fedunseen.deploy.secagg.ring import RangeError
from fedunseen.deploy.site import Owner, Site
from small_federation import NAMES, Recorder, experiment, greeting, host, write_all

WIDTH = 4
HUGE = 1e15
NOISE = {
    "privacy__name": "client-level",
    "privacy__clip": 1.0,
    "privacy__noise": 20.0,
    "privacy__noise_from": "system",
}


class ReadError(Exception):
    """The coordinator has what it wanted."""


class Liar(Recorder):
    """Honest until north is asked for the second sum, whose instruction no plan fixes."""

    thresholds = ()
    way = "one sum"
    tried = 0
    keys = None

    def ask(self, name, message):
        header, tensors = unpack(message)
        if header["kind"] == "round" and header["k"] == 1 and name == "north":
            self.answers = [self.asked(header, tensors, b) for b in self.thresholds]
            raise ReadError
        return super().ask(name, message)

    def asked(self, header, tensors, threshold):
        """Ask for an update that is beyond all bounds if a sample's first number is over a
        threshold, and return what north answers.
        """
        params = {}
        for name, value in tensors.items():
            params[name] = (
                torch.full_like(value, HUGE) if name.endswith("weight") else torch.zeros_like(value)
            )
        first = torch.zeros_like(tensors["params/f.0.weight"])
        first[:, 0] = 1.0
        head = tensors["params/head.weight"]
        ramp = torch.linspace(-HUGE, HUGE, len(head))[:, None]
        params |= {
            "params/f.0.weight": first,
            "params/f.0.bias": torch.full((WIDTH,), -threshold),
            "params/head.weight": ramp.repeat(1, WIDTH),
        }
        north = self.parties["north"]
        self.tried += 1
        before = {unpack(message)[0]["kind"]: message for message in self.sent["north"]}
        if self.way == "opened again":
            stored, _ = unpack(north.answer(before["open"]))
            assert stored.get("error", "refused-left") == "refused-left"
        if self.way == "greeted again":
            first, scalings = unpack(before["hello"])
            other = pack({**first, "run": "f" * 16}, scalings)
            for message in (other, before["hello"], before["plan"], before["signed"]):
                north.answer(message)
        k = header["k"] + (self.tried if self.way == "other sums" else 0)
        crafted = {
            **header,
            "k": k,
            "round": k,
            "attempt": header["attempt"] + self.tried,
            "instruction": instruction_digest(k, params),
        }
        answer, _ = unpack(north.answer(pack(crafted, params)))
        self.keys = answer.get("keys", self.keys)
        return answer.get("error", "keys")


@pytest.fixture
def attacked(tmp_path):
    """Returns what north answers to thresholds, and the parties."""
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)

    def attack(thresholds, way="one sum", **settings):
        said = []
        parties = {}
        for name in NAMES:
            owner = Owner(data / name, tmp_path / "kits" / name, (), True)
            held = PartyData(data / name, masked=True)
            parties[name] = Party(held.prepare, Site(tmp_path / "state" / name, owner, said.append))
        link = Liar(parties)
        link.thresholds = thresholds
        link.way = way
        chosen = experiment(
            data,
            "classifier",
            data__features=[],
            method__hidden=[WIDTH] * 3,
            method__lr=0.05,
            strategy__local_epochs=1,
            strategy__rounds=60,
            privacy__range=1000.0,
            **settings,
        )
        with pytest.raises(ReadError):
            host(chosen, link, tmp_path / "run", tmp_path / "kits")
        return link, parties["north"], said

    return attack, float(np.load(data / "north" / "features.npz")["features"][:, 0].max())


@pytest.mark.parametrize("settings", [{}, NOISE], ids=["no noise", "noise of clients"])
def test_no_answer_says_whether_a_sample_is_beyond_a_threshold(attacked, settings):
    attack, largest = attacked
    link, north, said = attack([largest + 1e-3, largest - 1e-3], **settings)
    assert link.answers == ["keys", "keys"]
    assert (BEYOND in link.keys["extra"]) == (not settings)  # in the sum it would have no noise
    assert sum("did not fit under the masks" in text for text in said) >= 1  # its owner alone
    assert not north.done.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one sum", "greeted again", "opened again", "other sums"])
def test_a_party_leaves_before_many_instructions_without_an_opened_sum(attacked, way):
    """Whatever the answers are, and however often it is greeted in between."""
    attack, largest = attacked
    link, north, _ = attack(np.linspace(largest + 1, largest - 1, 2 * HINTS).tolist(), way=way)
    answers = link.answers
    kept = answers.index("refused-left")
    assert answers == ["keys"] * kept + ["refused-left"] * (2 * HINTS - kept)
    assert kept < HINTS
    assert north.done.is_set()


def test_a_refusal_would_say_it(attacked, monkeypatch):
    """The positive control: without the cut, the attack reaches what it was written for."""

    def refusing(self, strategy, reply):
        if not all(bool(torch.isfinite(value).all()) for value in reply.update.values()):
            raise RangeError("beyond the range")
        return reply, 0

    monkeypatch.setattr(Masks, "cut", refusing)
    attack, largest = attacked
    link, *_ = attack([largest + 1e-3, largest - 1e-3])
    assert link.answers == ["keys", "refused-data"]


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["once", "opened again"])
@pytest.mark.parametrize("confidence", ["none", "asking"])
def test_a_party_leaves_before_many_greetings_without_an_opened_sum(tmp_path, confidence, again):
    """A greeting is accepted or refused, as samples are: no answer that is repeated, and no
    question about answers, makes many free.
    """
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    parties = {}
    for name in NAMES:
        owner = Owner(data / name, tmp_path / "kits" / name, (), True)
        held = PartyData(data / name, masked=True)
        parties[name] = Party(held.prepare, Site(tmp_path / "state" / name, owner))
    link = Recorder(parties)
    host(experiment(data, "classifier"), link, tmp_path / "run", tmp_path / "kits")
    opened = next(m for m in link.sent["north"] if unpack(m)[0]["kind"] == "open")
    header, tensors = greeting(experiment(data, "gaussian"), tmp_path / "other")
    answers = []
    for number in range(2 * HINTS):
        crafted = {**header, "run": f"{number:016x}"}
        chosen = {**header["experiment"].get("evaluation", {}), "confidence": confidence}
        crafted["experiment"] = {**header["experiment"], "evaluation": chosen}
        answer, _ = unpack(parties["north"].answer(pack(crafted, tensors)))
        answers.append(answer.get("error", "accepted"))
        if again and answers[-1] == "accepted":
            stored, _ = unpack(parties["north"].answer(opened))
            assert stored.get("error", "refused-left") == "refused-left"
    kept = answers.index("refused-left")
    assert answers == ["accepted"] * kept + ["refused-left"] * (2 * HINTS - kept)
    assert HINTS // 2 <= kept <= HINTS
