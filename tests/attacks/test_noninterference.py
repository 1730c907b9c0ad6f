"""Nothing that a party sends depends on its samples, but for masked numbers and the fields that are
declared to.

A federation is recorded. Then one party alone is asked the same again, with its own samples and
with others: with the same clock and the same source of randomness, it must send the same bytes
outside of these fields.
"""

import hashlib
import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedunseen.cli.main import app
from fedunseen.deploy.by_file import Removing
from fedunseen.deploy.client_data import PartyData, Removal
from fedunseen.deploy.offline import files
from fedunseen.deploy.offline.answered import ANSWERED
from fedunseen.deploy.remote.declared import FILES, KINDS, REFUSAL, SENT, declaration, paths
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.wire import fields, pack, split, unpack
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.site import Owner, Site
from known_names import accounted
from links import session
from small_federation import HELD, NAMES, Recorder, experiment, host, write_all, write_party

pytestmark = pytest.mark.usefixtures("quick_coordinator")
WHO = "west"
OTHERS = ("values", "sample", "class")
TRAINED = {"method": "fedzsl", "method__hidden": [4], "method__kl": 0.0, "method__consistency": 0.0}
NOISE = {
    "privacy__name": "sample-level", "privacy__epsilon": 400.0, "privacy__clip": 1.0, "privacy__noise_from": "system",
    "data__features": ["l2"],
}  # fmt: skip
SCENARIOS = {
    "closed form": {},
    "trained": {**TRAINED, "strategy__rounds": 2},
    "budget": NOISE,
    "adapt": {"data__unlabelled": True},
    "removal": {},
    "clear": {"privacy__aggregation": "plain"},
    "growth": {
        "privacy__aggregation": "plain", "growth__name": "unknown", "partition__join": {"2": 2},
        "strategy__rounds": 3,
    },
}  # fmt: skip
CLEAR = ("clear", "growth")  # growth shows who holds which class, so that masks refuse it
COMPARED = dict.fromkeys(SCENARIOS, frozenset(KINDS)) | dict.fromkeys(
    CLEAR, frozenset(("hello", "round", "stop"))
)
"""The kinds of messages that a scenario compares."""


class Chance:
    """The source of all randomness: a stream of its own for each party, the same in each run."""

    def __init__(self):
        self.streams, self.owner = {}, "coordinator"

    def read(self, count):
        number = next(self.streams.setdefault(self.owner, itertools.count()))
        return hashlib.shake_256(f"{self.owner} {number}".encode()).digest(count)

    def of(self, name, answer):
        """Return what answers with a party's own stream."""

        def wrapped(message):
            self.owner = name
            try:
                return answer(message)
            finally:
                self.owner = "coordinator"

        return SimpleNamespace(answer=wrapped)


@pytest.fixture
def chance(monkeypatch):
    source = Chance()
    monkeypatch.setattr("os.urandom", source.read)
    monkeypatch.setattr(random, "_urandom", source.read)  # behind the module ``secrets``
    clock = SimpleNamespace(monotonic=lambda: 7.0)
    monkeypatch.setattr("fedunseen.deploy.remote.party.time", clock)
    return source


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folders of all parties, those of the one party with other samples, credentials, and what
    was recorded.
    """
    folder = tmp_path_factory.mktemp("noninterference")
    data = write_all(folder / "data", pool=6)
    own = np.repeat(HELD[WHO], 6)
    write_party(folder / "values", own, 33, pool=6, scale=1.5)
    write_party(folder / "sample", [*own, 7], 3, pool=7)
    write_party(folder / "class", [*own, *[5] * 6], 3, pool=6)
    enrol(folder / "kits", NAMES)
    return SimpleNamespace(folder=folder, data=data, kits=folder / "kits", recorded={})


def joined(place, name, data, state, scenario, removal=None):
    """Return what answers as ``fedunseen join`` does."""
    masked, limit = scenario not in CLEAR, 900.0 if scenario == "budget" else None
    few = 1 if scenario == "budget" else 5  # noise of so large an epsilon hides no single sample
    held = PartyData(data, masked=masked, removal=removal, home=state / "home", min_samples=few)
    consent = ["removal", "again"]
    owner = Owner(data, place.kits / name, tuple(consent), masked, limit, 1e-3)
    return Party(held.prepare, Site(state, owner)).answer


def recorded(place, chance, out, scenario):
    """Return the phases of a federation, recorded once: what each sends to the one party, and what
    that party is.
    """
    if scenario in place.recorded:
        return place.recorded[scenario]
    chosen = experiment(place.data, **SCENARIOS[scenario])

    def link(removal=None):
        return Recorder(
            {
                name: chance.of(
                    name,
                    joined(place, name, place.data / name, out / name, scenario, removal),
                )
                for name in NAMES
            }
        )

    first = link()
    done = host(chosen, first, out / "run", place.kits)
    phases = [(first.sent[WHO], None)]
    if scenario == "removal":
        second = link(Removal())
        met = session(second, NAMES, kit=place.kits / "coordinator", folder=out / "secagg")
        Removing(done, NAMES, True, NAMES[1:]).over(met, out / "left")
        phases.append((second.sent[WHO], Removal()))
    place.recorded[scenario] = phases
    return phases


def replayed(place, chance, phases, data, state, scenario):
    """Return all messages with the answers of the one party, with these samples."""
    chance.streams.clear()
    found = []
    for messages, removal in phases:
        answer = chance.of(WHO, joined(place, WHO, data, state, scenario, removal)).answer
        found += [(message, answer(message)) for message in messages]
    return found


def leaves(value, path):
    """Return the value of a header at a path with dots."""
    rest = value
    for _ in range(len(path)):
        if not isinstance(rest, dict):
            return rest
        key = max((k for k in rest if path == k or path.startswith(f"{k}.")), key=len, default=None)
        if key is None:
            return None
        rest, path = rest[key], path[len(key) + 1 :]
    return rest


def differing(kind, masked, one, other, declared=SENT):
    """Return the fields in which two answers differ without being declared to."""
    (first, names), (second, others) = fields(one), fields(other)
    if "error" in first or "error" in second:
        return [] if one == other else ["error"]
    said = paths(first) | paths(second)
    wrong = [] if set(names) == set(others) else ["names of tensors"]
    for path in said:
        found = declaration(declared, kind, masked, path)
        if found is None or (found.depends == "no" and leaves(first, path) != leaves(second, path)):
            wrong.append(path)
    tensors, more = unpack(one)[1], unpack(other)[1]
    for name in set(names) & set(others):
        found = declaration(declared, kind, masked, name)
        alike = tensors[name].shape == more[name].shape and tensors[name].dtype == more[name].dtype
        free = found is not None and found.depends != "no"
        if not (free and alike) and not torch.equal(tensors[name], more[name]):
            wrong.append(name)
    if masked and len(one) != len(other):
        wrong.append("length")
    if masked and not tensors and split(one)[0] == split(other)[0] and one != other:
        wrong.append("bytes")
    return wrong


@pytest.mark.slow
@accounted
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_other_samples_send_the_same_bytes_over_a_network(scenario, place, chance, tmp_path):
    phases = recorded(place, chance, tmp_path / "recorded", scenario)
    masked = scenario not in CLEAR
    own = replayed(place, chance, phases, place.data / WHO, tmp_path / "own", scenario)
    again = replayed(place, chance, phases, place.data / WHO, tmp_path / "again", scenario)
    assert own == again  # the clock and the randomness are the test's own
    assert not [answer for _, answer in own if "error" in fields(answer)[0]]
    assert {split(message)[0]["kind"] for message, _ in own} == COMPARED[scenario]
    for other in OTHERS:
        found = replayed(place, chance, phases, place.folder / other, tmp_path / other, scenario)
        assert len(found) == len(own)
        changed = set()
        for (message, first), (_, second) in zip(own, found, strict=True):
            kind = split(message)[0]["kind"]
            assert differing(kind, masked, first, second) == []
            changed |= {kind} if first != second else set()
        expected = {"masked"} if masked else {"hello", "round"} if other != "values" else {"round"}
        assert changed == expected  # the samples were used


def test_every_kind_of_message_is_compared():
    """A new kind that no scenario has fails here, or in that scenario."""
    assert {sent.kind for sent in SENT if sent.mode in ("", "masked")} == set(KINDS)
    assert {sent.kind for sent in SENT if sent.mode in ("", "clear")} == COMPARED["clear"]
    assert {sent.kind for sent in REFUSAL} == {"refusal"}


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["classes", "samples"])
def test_only_the_weight_of_a_greeting_differs_where_the_strategy_weights(
    weights, place, chance, tmp_path
):
    sent = []
    chosen = experiment(place.data, **TRAINED, strategy__weights=weights)

    def keep(name, header):
        if (name, header["kind"]) == (WHO, "hello"):
            sent.append(header)

    parties = {
        name: chance.of(name, joined(place, name, place.data / name, tmp_path / name, "trained"))
        for name in NAMES
    }
    link = Recorder(parties, keep)
    host(chosen, link, tmp_path / "run", place.kits)
    hello = link.sent[WHO][:1]
    answers = [
        replayed(place, chance, [(hello, None)], folder, tmp_path / folder.name, "trained")[0][1]
        for folder in (place.data / WHO, *(place.folder / other for other in OTHERS))
    ]
    said = [fields(answer) for answer in answers]
    assert all(header.keys() == {"masked", "weight"} for header, _ in said)
    own = {"classes": 4.0, "samples": 24.0}[weights]
    more = {"classes": [4.0, 5.0], "samples": [25.0, 30.0]}[weights]
    assert [header["weight"] for header, _ in said] == [own, own, *more]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "unknown"])
def test_what_is_refused_is_refused_with_the_same_bytes(kind, place, chance, tmp_path):
    """Before a greeting and after it, for a message of each kind that is damaged."""
    ((sent, _),) = recorded(place, chance, tmp_path / "recorded", "closed form")
    damaged = pack({"kind": kind, "content": {}, "client": NAMES.index(WHO)})
    messages = [damaged, sent[0], damaged]
    first, *rest = (
        replayed(place, chance, [(messages, None)], folder, tmp_path / folder.name, "closed form")
        for folder in (place.data / WHO, *(place.folder / other for other in OTHERS))
    )
    assert kind == "stop" or "error" in fields(first[0][1])[0]
    assert all(one == first for one in rest)


# Other carriers: what the party's object hands over


def through_flower(place, data, state, messages, chance, monkeypatch):
    flower_app = pytest.importorskip(
        "fedunseen.deploy.flower_app", reason="`make test-flower` runs this"
    )
    answers = []

    def serve(state, answer, done, parent):
        answers.extend(map(chance.of(WHO, answer).answer, messages))

    monkeypatch.setattr(flower_app, "serve_party", serve)
    flower_app._serve({
        "name": WHO, "data": str(data), "state": str(state), "credentials": str(place.kits / WHO), "masked": True,
        "out": str(state / "model"), "parent": 0,
    })  # fmt: skip
    return answers


def through_nvflare(place, data, state, messages, chance, monkeypatch):
    nvflare_job = pytest.importorskip("fedunseen.deploy.nvflare_job")
    settings = {
        "data": str(data), "state": str(state), "credentials": str(place.kits / WHO), "masked": True,
        "out": str(state / "model"),
    }  # fmt: skip
    answer = nvflare_job.Party().answering(nvflare_job.Place(WHO, Path("/"), state, settings))
    return list(map(chance.of(WHO, answer).answer, messages))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["closed form", "trained", "adapt"])
@pytest.mark.parametrize("way", [through_flower, through_nvflare])
def test_other_samples_hand_the_same_bytes_to_other_carriers(
    way, scenario, place, chance, tmp_path, monkeypatch
):
    ((messages, _),) = recorded(place, chance, tmp_path / "recorded", scenario)

    def replay(data, state):
        chance.streams.clear()
        return way(place, data, state, messages, chance, monkeypatch)

    own = replay(place.data / WHO, tmp_path / "own")
    assert not [answer for answer in own if "error" in fields(answer)[0]]
    for other in OTHERS:
        found = replay(place.folder / other, tmp_path / other)
        assert len(found) == len(own)
        for message, first, second in zip(messages, own, found, strict=True):
            assert differing(split(message)[0]["kind"], True, first, second) == []
        assert found != own


# By file


def called(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def plans(place, tmp_path_factory):
    """Plans of a closed form, of the round that adapts its run, and of a removal; and the state
    that answered them.
    """
    out = tmp_path_factory.mktemp("plans")
    toml = out / "e.toml"
    toml.write_text(
        f'[data]\nname = "folder"\nroot = "{place.data / "coordinator"}"\npart = true\n'
        '[method]\nname = "gaussian"\n[evaluation]\ntheory = false\nembedding = false\n'
    )
    words = ["--credentials", place.kits / "coordinator", "--parties", ",".join(NAMES), "--out"]
    called("offline", "plan", toml, *words, out / "first", "--set", "data.unlabelled=true")
    for name in NAMES:
        given = ["--data", place.data / name, "--credentials", place.kits / name]
        state = ["--state", out / f"state-{name}", "--out", out / f"answer-{name}"]
        called("offline", "answer", out / "first", *given, *state)
    answers = [out / f"answer-{name}" for name in NAMES]
    called("offline", "merge", out / "first", *answers, "--out", out / "run")
    called("offline", "plan", "--adapt", out / "run", *words, out / "adapt")
    called(
        "offline",
        "plan",
        "--forget",
        out / "run",
        "--removing",
        "south,west",
        *words,
        out / "removal",
    )
    called("offline", "plan", toml, "--plain", *words, out / "clear")
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "what", "masked"),
    [
        ("first", "answer", True),
        ("adapt", "answer", True),
        ("removal", "answer", True),
        ("clear", "answer", False),
        ("first", "withdraw", True),
    ],
)
def test_other_samples_write_the_same_bytes_into_a_file(
    plan, what, masked, place, plans, chance, tmp_path
):
    kind = {"answer": "answer", "withdraw": "withdrawal"}[what]

    def written(folder):
        chance.streams.clear()
        state, out = tmp_path / f"state-{folder.name}", tmp_path / f"{folder.name}.fedunseen"
        more = ["--plain"] if not masked else []
        more += ["--consent", "removal"] if plan == "removal" else []
        more += (
            ["--min-samples", "1"] if plan == "adapt" else []
        )  # else nothing of the pool is sent
        given = ["--data", folder, "--credentials", place.kits / WHO, "--state", state]
        (place.kits / WHO / ANSWERED).unlink(missing_ok=True)
        called("offline", what, plans / plan, *given, "--out", out, *more)
        return out.read_bytes()

    start = len(files._FIRST)
    own = written(place.data / WHO)
    for other in OTHERS:
        found = written(place.folder / other)
        assert differing(kind, masked, own[start:], found[start:], FILES) == []
        assert (found == own) == (what == "withdraw")


def test_every_kind_of_file_is_compared():
    assert {sent.kind for sent in FILES} == files._FIELDS.keys() - {"plan"}
    declared = {sent.name for sent in FILES if sent.kind == "withdrawal"}
    assert declared == {"kind", "version", "federation", "signature", "party", "plans"}


# Positive controls: what is not declared is found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "leak"),
    [
        ("deploy.secagg.party.SecAggClient.shares", lambda answer, party: {**answer, "rho": party}),
        ("deploy.secagg.party.SecAggClient.open", lambda answer, party: {**answer, "party": party}),
    ],
)
def test_a_field_that_follows_the_samples_is_found(
    target, leak, place, chance, tmp_path, monkeypatch
):
    ((messages, _),) = recorded(place, chance, tmp_path / "recorded", "closed form")
    module, _, name = f"fedunseen.{target}".rpartition(".")
    package, _, owner = module.rpartition(".")
    kind = getattr(__import__(package, fromlist=[owner]), owner)
    honest = getattr(kind, name)
    own = replayed(
        place, chance, [(messages, None)], place.data / WHO, tmp_path / "own", "closed form"
    )
    monkeypatch.setattr(kind, name, lambda self, given: leak(honest(self, given), "25 samples"))
    found = replayed(
        place,
        chance,
        [(messages, None)],
        place.folder / "sample",
        tmp_path / "leaks",
        "closed form",
    )
    wrong = [
        differing(split(message)[0]["kind"], True, one, two)
        for (message, one), (_, two) in zip(own, found, strict=True)
    ]
    assert [one for one in wrong if one]
