"""Runs under masks: the weights of the unmasked run, in one process and among parties that drop out and lie."""

import datetime
import importlib
import json
import logging
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from safetensors.torch import load_file

from fedunseen.cli.deal import deal
from fedunseen.core.errors import ExperimentError, FedUnseenError, QuorumError, RefusedError
from fedunseen.engines.carriers.flower.kit import make, renew
from fedunseen.engines.masked.party import PartyHalf
from fedunseen.engines.remote import coordinator
from fedunseen.engines.remote.authority import REVOKED, Authority
from fedunseen.engines.remote.coordinator import Meeting, Member
from fedunseen.engines.remote.identity import Forged, Identity, Signer, Trust
from fedunseen.engines.remote.party import Party
from fedunseen.engines.remote.wire import failure, pack, unpack
from fedunseen.experiment import Experiment, load_run, run
from fedunseen.experiment.forget import forget
from fedunseen.experiment.party import PartyData
from processes import ENGINES

NAMES = ("north", "south", "west", "east")
SMALL = {
    "data.train_per_class": 6,
    "data.test_per_class": 3,
    "partition.clients": 4,
    "strategy.rounds": 2,
    "method.hidden": [16],
    "evaluation.selection": "last",
    "evaluation.theory": False,
    "evaluation.embedding": False,
}
MASKED = {"privacy.aggregation": "masked"}
CLOSE = 2e-7
"""How far weights may be from those of the unmasked run, which are added up in float32: its step at 1 is 1.2e-7. Masks
round to 2^-51 and less here, and then add up exactly."""


def experiment(preset="digit-pairs", **more):
    return Experiment.load(preset, {**SMALL, **{key.replace("__", "."): value for key, value in more.items()}})


def distance(one, other):
    """The largest difference of two runs' weights."""
    one, other = (load_file(path / "model.safetensors") for path in (one, other))
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


# In one process


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy__weights": "samples", "privacy__neighbours": 4},
        {"strategy__name": "fedadam"},
        {"strategy__name": "moon", "strategy__weights": "uniform"},
        {"partition__leave": {"2": 1}},
    ],
    ids=str,
)
def test_a_masked_run_ends_with_the_weights_of_the_unmasked_one(settings, tmp_path):
    own = {key: value for key, value in settings.items() if not key.startswith("privacy")}
    plain = run(experiment(**own), tmp_path / "plain")
    masked = run(experiment(**settings, privacy__aggregation="masked"), tmp_path / "masked")
    assert distance(masked.path, plain.path) < CLOSE
    for hidden, seen in zip(masked.metrics, plain.metrics, strict=True):
        assert hidden["participants"] == seen["participants"]
        # Those of the first round are of the same weights; later ones follow weights that differ by their last bit.
        assert hidden["losses"] == pytest.approx(seen["losses"], abs=1e-13 if seen["round"] == 1 else 1e-5)
        assert "clients" not in hidden
        assert hidden["bytes_up"] > 2 * seen["bytes_up"]  # words of 8 bytes, and shares
    again = run(experiment(**settings, privacy__aggregation="masked"), tmp_path / "again")
    assert distance(again.path, masked.path) == 0  # masks are drawn anew, and leave nothing behind


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gaussian", "ridge", "eszsl"])
def test_sums_of_a_method_in_closed_form_add_up_to_the_same_model(method, tmp_path):
    few = {"data.train_per_class": 6, "data.test_per_class": 3, "partition.clients": 4, "evaluation.selection": "last"}
    few |= {"evaluation.embedding": False, "evaluation.theory": False, "method.name": method}
    plain, masked = (
        run(Experiment.load("digit-pairs-gaussian", {**few, **more}), tmp_path / name)
        for name, more in (("plain", {}), ("masked", MASKED))
    )
    assert distance(masked.path, plain.path) < 1e-6
    kept = load_file(next(masked.path.glob("checkpoints/*.safetensors")))
    assert not [name for name in kept if "client/0/" in name]  # nobody's own sums are kept
    assert [name for name in kept if "client/-1/" in name]  # those of everybody are
    with pytest.raises(ExperimentError) as told:
        forget(load_run(masked.path), "1", tmp_path / "left")
    assert str(told.value) == (
        "privacy.aggregation = 'masked' has hidden each party's sums from the server, so that none can be taken out: "
        "run it again without the party"
    )


def test_a_number_beyond_the_range_ends_a_simulation(tmp_path):
    with pytest.raises(FedUnseenError) as told:
        run(experiment(**{"privacy__aggregation": "masked", "privacy__range": 1e-3}), tmp_path / "run")
    assert str(told.value) == (
        "round 1: client 0: 'update/f.0.bias' holds a number beyond the range of the masks: raise privacy.range, which "
        "is 0.001, or bound the updates"
    )


# Among parties


class Table:
    """A link to parties in this process that records all that reaches the coordinator.

    ``change(name, header, answer)`` may return another answer, or None: the party has gone, at that message.
    ``twist(name, header)`` may change what a party is told. With ``kits``, everybody has one.
    """

    def __init__(
        self, folder, data, change=lambda name, header, answer: answer, twist=lambda name, header: None, kits=None
    ):
        self.change, self.twist, self.heard, self.here = change, twist, [], dict.fromkeys(NAMES, "first")
        self.said, self.kits = {name: [] for name in NAMES}, kits
        self.party = {
            name: Party(PartyData(data / name).prepare, folder / name, self.said[name].append, kit=kits and kits / name)
            for name in NAMES
        }

    def parties(self):
        return self.here

    def exchange(self, messages, timeout):
        for name, message in messages.items():
            header, tensors = unpack(message)
            self.twist(name, header)
            answer = self.party[name].answer(pack(header, tensors)) if name in self.here else None
            answer = answer and self.change(name, header, answer)
            if answer is not None and header["kind"] not in ("hello", "stop"):
                self.heard.append((header["kind"], name, header["round"], answer))
            yield name, answer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("dealt") / "data"
    deal(experiment(), out, NAMES)
    return out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(experiment(engine__mode="one-at-a-time"), tmp_path_factory.mktemp("here") / "run")


@pytest.fixture(scope="module")
def without_west(tmp_path_factory):
    """The run of which west is no part after its first round."""
    left = {"engine__mode": "one-at-a-time", "partition__leave": {"2": 1}}
    return run(experiment(**left), tmp_path_factory.mktemp("left") / "run")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(coordinator, "_PAUSE", 0.01)


def hosted(link, out, resume=False, **more):
    settings = {"engine__name": "nvflare", "engine__mode": "deployment", "privacy__aggregation": "masked", **more}
    meeting = Meeting(link, [Member(name) for name in NAMES], kit=link.kits and link.kits / "coordinator")
    return run(experiment(**settings), out, resume, meeting=lambda: nullcontext(meeting))


def test_a_masked_federation_ends_with_the_weights_of_the_unmasked_run(data, undisturbed, tmp_path):
    link = Table(tmp_path, data)
    done = hosted(link, tmp_path / "run")
    assert distance(done.path, undisturbed.path) < CLOSE
    assert [line["participants"] for line in done.metrics] == [[0, 1, 2, 3]] * 2
    assert done.metrics[0]["losses"] == pytest.approx(undisturbed.metrics[0]["losses"], abs=1e-13)
    assert "client_seconds" not in done.metrics[0]
    assert link.said["west"][-1] == "the run is over"
    assert "round 2: part of a sum of 4 parties" in link.said["west"]
    parties = json.loads((done.path / "parties.json").read_bytes())
    assert parties == [{"name": name, "classes": 0, "samples": 0} for name in NAMES]  # who holds how much is not told


@pytest.mark.parametrize("stage", ["round", "shares", "masked", "unmask"])
def test_a_party_that_goes_at_any_stage_is_left_out(stage, data, undisturbed, without_west, tmp_path, caplog):
    def change(name, header, answer):
        if (name, header["kind"], header.get("round")) == ("west", stage, 1):
            del link.here["west"]
            return None
        return answer

    link = Table(tmp_path, data, change)
    with caplog.at_level(logging.WARNING, "fedunseen.federation"):
        done = hosted(link, tmp_path / "run", engine__quorum=3)
    part = stage == "unmask"  # its words were there, and the others' shares take off its mask
    assert done.metrics[1]["participants"] == ([0, 1, 2, 3] if part else [0, 1, 3])
    assert distance(done.path, (undisturbed if part else without_west).path) < CLOSE
    why = {
        "round": "it has not answered",
        "shares": "it has not answered when it was asked for its shares",
        "masked": "it has not answered when it was asked for its masked words",
    }
    assert done.metrics[1].get("dropped") == (None if part else {"2": why[stage]})


def test_a_round_begins_anew_as_long_as_nothing_is_unmasked(data, undisturbed, tmp_path, caplog):
    """All four are needed, and one is deaf once; it comes back, and nothing is lost."""
    lost = []

    def change(name, header, answer):
        if (name, header["kind"]) == ("south", "masked") and not lost:
            lost.append(name)
            return None
        return answer

    with caplog.at_level(logging.WARNING, "fedunseen.federation"):
        done = hosted(Table(tmp_path, data, change), tmp_path / "run")
    assert distance(done.path, undisturbed.path) < CLOSE
    assert caplog.messages[-1] == (
        "round 1 begins anew: 3 of the 4 parties that the sum has to be of are left; south: it has not answered when "
        "it was asked for its masked words"
    )


def test_too_few_parties_end_a_run_in_a_sentence_and_it_goes_on_later(data, undisturbed, tmp_path):
    def deaf(name, header, answer):
        return None if (name, header["kind"], header.get("round")) == ("south", "shares", 1) else answer

    link = Table(tmp_path, data, deaf)
    with pytest.raises(QuorumError) as told:
        hosted(link, tmp_path / "run")
    assert str(told.value) == (
        "round 2 has no sum under masks: 3 of the 4 parties that the sum has to be of are left; south: it has not "
        "answered when it was asked for its shares: mend that, or change engine.quorum, engine.timeout or "
        "privacy.threshold, and go on with --resume"
    )
    link.change = lambda name, header, answer: answer
    assert distance(hosted(link, tmp_path / "run", resume=True).path, undisturbed.path) < CLOSE


def test_a_coordinator_that_is_killed_in_the_middle_begins_the_round_anew(data, undisturbed, tmp_path):
    class Killed(Exception):
        pass

    def kill(name, header, answer):
        if (header["kind"], header.get("round")) == ("unmask", 1) and name == "west":
            raise Killed
        return answer

    link = Table(tmp_path, data, kill)
    with pytest.raises(Killed):
        hosted(link, tmp_path / "run")
    link.change = lambda name, header, answer: answer
    done = hosted(link, tmp_path / "run", resume=True)
    assert distance(done.path, undisturbed.path) < CLOSE
    assert {name: sum(kind == "round" for kind, who, _, _ in link.heard if who == name) for name in NAMES} == (
        dict.fromkeys(NAMES, 3)
    )


def test_no_second_sum_of_a_round_is_unmasked_that_would_show_a_single_party(data, tmp_path):
    """The coordinator dies with the sum of four in its hands, and asks for that of three."""

    class Killed(Exception):
        pass

    def kill(name, header, answer):
        if header["kind"] == "unmask" and name == "east":
            raise Killed
        return answer

    link = Table(tmp_path, data, kill)
    with pytest.raises(Killed):
        hosted(link, tmp_path / "run")
    link.change = lambda name, header, answer: answer
    del link.here["south"]
    with pytest.raises(QuorumError) as told:
        hosted(link, tmp_path / "run", resume=True, engine__quorum=3)
    assert (
        "a sum of round 1 has been unmasked before, of other parties, and the two would differ by what single ones "
        "have sent; join again to agree to that"
    ) in str(told.value)


# What reaches the coordinator


def looks_like_noise(words, update):
    """Say whether bytes are uniform (chi-square) and words uncorrelated with the update, each at one in a million."""
    uniform = scipy.stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6
    return uniform and scipy.stats.spearmanr(words.astype(float), update).pvalue > 1e-6


@pytest.mark.parametrize("off", [False, True])
def test_no_party_can_be_told_from_noise_in_all_that_reaches_the_coordinator(off, data, tmp_path, monkeypatch):
    """The test tells: with masks of zeros it finds the update."""
    updates = {}
    link = Table(tmp_path, data)
    if off:
        monkeypatch.setattr("fedunseen.engines.masked.party.key_stream", lambda key, count: np.zeros(count, np.uint64))
        monkeypatch.setattr("fedunseen.engines.masked.server.key_stream", lambda key, count: np.zeros(count, np.uint64))
    for name, party in link.party.items():

        def answer(message, name=name, party=party, real=party.answer):
            told = real(message)
            if unpack(message)[0]["kind"] == "shares":
                own = party._masking.reply.update
                updates[name] = torch.cat([own[key].flatten() for key in sorted(own)]).numpy()
            return told

        party.answer = answer
    hosted(link, tmp_path / "run", strategy__rounds=1)
    assert [kind for kind, *_ in link.heard] == [
        kind for kind in ("round", "shares", "masked", "unmask") for _ in NAMES
    ]
    noise = []
    for kind, name, _, message in link.heard:
        header, tensors = unpack(message)
        if kind == "masked":
            assert header.keys() == {"session", "stage"}
            noise.append(looks_like_noise(tensors["words"].numpy()[: len(updates[name])], updates[name]))
        else:  # keys, sealed shares, shares of secrets: texts that are as long whatever the update is
            assert not tensors
            assert header.keys() <= {"session", "stage", "told", "client", "round", "losses"}
            assert isinstance(header.get("losses", []), list)  # their names, not their values
    assert noise == [not off] * 4


# Lies


def changed(answer, told=None, tensors=None, **more):
    header, body = unpack(answer)
    header |= more
    if told is not None:
        header["told"] = told(header["told"])
    return pack(header, body if tensors is None else tensors)


OLD = {}


def other_round(answer):
    """Send the masked words of the round before."""
    _, body = unpack(answer)
    return changed(answer, tensors=OLD.setdefault("words", body))


LIES = [
    ("round", lambda a: changed(a, session="00" * 16), "it answers in another session of masks"),
    ("round", lambda a: changed(a, client=3), "it answers another question"),
    ("round", lambda a: changed(a, losses=["\x1b[2J"]), "its losses have an impossible name, '?[2J'"),
    ("round", lambda a: changed(a, losses=7), "its losses are no list of names"),
    ("round", lambda a: changed(a, told=lambda t: {**t, "pairs": None}), "a message of the masks is damaged"),
    ("shares", lambda a: changed(a, told=lambda t: 3), "a message of the masks is damaged"),
    ("masked", lambda a: changed(a, tensors={}), "its masked words are not as many as were asked for"),
    (
        "masked",
        lambda a: changed(a, tensors={"words": torch.zeros(3, dtype=torch.int64)}),
        "its masked words are not as many as were asked for",
    ),
    ("masked", lambda a: failure("it does not want to"), "it does not want to"),
    ("masked", lambda a: b"nonsense", "its header is cut short or too long"),
]


@pytest.mark.slow
def test_who_lies_is_refused_and_the_round_goes_on(data, tmp_path):
    """A lie a round."""

    def change(name, header, answer):
        if name != "west" or "round" not in header:
            return answer
        stage, lie, _ = LIES[header["round"]]
        return lie(answer) if header["kind"] == stage else answer

    done = hosted(Table(tmp_path, data, change), tmp_path / "run", engine__quorum=3, strategy__rounds=len(LIES))
    for line, (_, _, why) in zip(done.metrics, LIES, strict=True):
        assert (line["participants"], line["dropped"]) == ([0, 1, 3], {"2": why})


def test_masked_words_of_another_round_are_never_a_wrong_sum(data, tmp_path):
    OLD.clear()

    def change(name, header, answer):
        return other_round(answer) if (name, header["kind"]) == ("west", "masked") else answer

    with pytest.raises(QuorumError) as told:
        hosted(Table(tmp_path, data, change), tmp_path / "run")
    assert str(told.value).startswith(
        "round 2 has no sum under masks: the masks have not cancelled: a party has sent something else than what it "
        "was asked for: mend that"
    )
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_party_whose_update_is_beyond_the_range_says_so_and_not_how_far(data, tmp_path):
    link = Table(tmp_path, data)
    prepare = link.party["west"].prepare

    def narrow(header, statistics):
        ready = prepare(header, statistics)
        real = ready.engine.strategy.finish

        def finish(told, result, state):
            update, own = real(told, result, state)
            return {name: value + 100 for name, value in update.items()}, own

        ready.engine.strategy.finish = finish
        return ready

    link.party["west"].prepare = narrow
    done = hosted(link, tmp_path / "run", engine__quorum=3, strategy__rounds=1)
    assert done.metrics[0]["dropped"] == {"2": "'update/f.0.bias' holds a number beyond the range of the masks"}
    assert done.metrics[0]["participants"] == [0, 1, 3]


# Signatures


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Real kits, and those of another federation with the same names."""
    out = tmp_path_factory.mktemp("kits")
    make(out / "own", "127.0.0.1", NAMES, 2, out / "authority")
    make(out / "other", "127.0.0.1", NAMES, 2)
    return out


WEST = str(NAMES.index("west"))
FORGERIES = [
    ("unsigned", "nobody has signed the keys of west"),
    ("changed", "the signature of west is not of these keys: they are forged, or of another round or run"),
    ("of the round before", "the signature of west is not of these keys: they are forged, or of another round or run"),
    ("of another authority", "the certificate that is to be that of west is not of this federation's authority"),
    ("of another party", "the keys of west are signed by another, 'south'"),
    ("damaged", "what is to be the certificate and signature of west is damaged"),
    ("of nobody", "keys of a party that is not in the coordinator's list"),
]


def forged(how, header, kits, before):
    """Put something else in the place of west's keys."""
    told, about = header["told"]["keys"], (2, header["round"], header["session"])
    own = PartyHalf(2, bytes.fromhex(header["session"]), 0.6).keys()
    run = before["run"]
    if how == "unsigned":
        told[WEST] = {key: told[WEST][key] for key in ("reading", "pairs", "own")}
    elif how == "changed":
        told[WEST] |= own
    elif how == "of the round before":
        told[WEST] = before["keys"]
    elif how == "of another authority":
        told[WEST] = Signer(kits / "other" / "west", run, NAMES).signed(*about, own)
    elif how == "of another party":
        told[WEST] = Signer(kits / "own" / "south", run, NAMES).signed(*about, own)
    elif how == "damaged":
        told[WEST] |= {"certificate": "00"}
    else:
        told["7"] = told[WEST]


@pytest.mark.slow
def test_keys_that_a_coordinator_forges_are_refused_where_they_arrive(kits, data, tmp_path):
    """A forgery a round, for east alone; the others go on."""
    before = {}

    def twist(name, header):
        before["run"] = header.get("run", before.get("run"))
        if (name, header["kind"]) != ("east", "shares"):
            return
        keys = dict(header["told"]["keys"][WEST])
        if header["round"] < len(FORGERIES):
            forged(FORGERIES[header["round"]][0], header, kits, before)
        before["keys"] = keys

    link = Table(tmp_path, data, twist=twist, kits=kits / "own")
    done = hosted(link, tmp_path / "run", engine__quorum=3, strategy__rounds=len(FORGERIES) + 1)
    for k, (line, (_, why)) in enumerate(zip(done.metrics, FORGERIES, strict=False)):
        sentence = f"{why}, so that this party takes no part in this sum"
        assert (line["participants"], line["dropped"]) == ([0, 1, 2], {"3": sentence})
        assert f"round {k + 1}: {sentence}" in link.said["east"]
    assert done.metrics[-1]["participants"] == [0, 1, 2, 3]  # with the keys as they were


def test_keys_that_a_party_does_not_sign_stop_at_the_coordinator(kits, data, tmp_path):
    lies = [
        (lambda told: {key: told[key] for key in ("reading", "pairs", "own")}, "nobody has signed the keys of west"),
        (lambda told: {**told, "own": "00" * 32}, FORGERIES[1][1]),
    ]

    def change(name, header, answer):
        if (name, header["kind"]) != ("west", "round"):
            return answer
        return changed(answer, told=lies[header["round"]][0])

    done = hosted(Table(tmp_path, data, change, kits=kits / "own"), tmp_path / "run", engine__quorum=3)
    for line, (_, why) in zip(done.metrics, lies, strict=True):
        assert (line["participants"], line["dropped"]) == ([0, 1, 3], {"2": why})


def test_a_revoked_party_is_no_part_of_a_sum_and_one_with_a_new_key_is(kits, data, tmp_path):
    """West's key is stolen: in round 2 east knows, in round 3 the coordinator, and for round 4 west has a new one."""
    own = tmp_path / "own"
    shutil.copytree(kits / "own", own)
    authority = Authority.load(kits / "authority")

    def twist(name, header):
        if (name, header["kind"], header.get("round")) == ("east", "shares", 1):
            (own / "east" / REVOKED).write_bytes(authority.revoke(["west"]))
        if (name, header["kind"], header.get("round")) == ("north", "round", 2):
            (own / "coordinator" / REVOKED).write_bytes((own / "east" / REVOKED).read_bytes())
        if (name, header["kind"], header.get("round")) == ("north", "round", 3):
            renew(authority, "west", tmp_path / "new")
            for file in (tmp_path / "new" / "west").iterdir():
                (own / "west" / file.name).write_bytes(file.read_bytes())

    done = hosted(Table(tmp_path, data, twist=twist, kits=own), tmp_path / "run", engine__quorum=3, strategy__rounds=4)
    assert [line["participants"] for line in done.metrics] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 3], [0, 1, 2, 3]]
    why = "the certificate of west is revoked"
    assert done.metrics[1]["dropped"] == {"3": f"{why}, so that this party takes no part in this sum"}
    assert done.metrics[2]["dropped"] == {"2": why}


def test_a_party_is_in_a_session_once(data, tmp_path):
    """Keys that others may have shares of by now are not used again."""
    first = {}

    def twist(name, header):
        if header["kind"] == "round" and name == "west":
            first.setdefault("session", header["session"])
            if header["round"] == 1:
                header["session"] = first["session"]

    link = Table(tmp_path, data, twist=twist)
    with pytest.raises(QuorumError, match="west could not take part"):
        hosted(link, tmp_path / "run", engine__patience=0)
    assert unpack(link.heard[-1][3])[0] == {"error": "a session of masks that has been before begins again"}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["north", "south", "east", "west"], "the coordinator takes this party, west, for another"),
        (["north", "west", "west", "east"], "the coordinator's list of parties is damaged, or names one twice"),
        (None, "the coordinator's list of parties is damaged, or names one twice"),
    ],
)
def test_a_party_joins_under_the_name_of_its_certificate_alone(names, why, kits, data, tmp_path):
    def twist(name, header):
        if header["kind"] == "hello" and name == "west":
            header["names"] = names

    link = Table(tmp_path, data, twist=twist, kits=kits / "own")
    with pytest.raises(QuorumError):
        hosted(link, tmp_path / "run", engine__patience=0)
    assert str(link.party["west"].error).startswith(why)


def test_a_kit_without_certificate_is_refused_under_masks_and_nowhere_else(kits, tmp_path):
    (tmp_path / "kit").mkdir()
    for name in ("ca.crt", "node.key"):
        (tmp_path / "kit" / name).write_bytes((kits / "own" / "west" / name).read_bytes())
    with pytest.raises(RefusedError, match=r"node.crt: no certificate .*which masks need: make new kits"):
        Identity.load(tmp_path / "kit")
    (tmp_path / "kit" / "node.crt").write_bytes((kits / "own" / "east" / "node.crt").read_bytes())
    with pytest.raises(RefusedError, match=r"node.key is not the key of .*node.crt"):
        Identity.load(tmp_path / "kit")
    foreign = tmp_path / "kit" / REVOKED
    foreign.write_text("no")
    with pytest.raises(RefusedError, match="no list of revoked certificates"):
        Trust.load(tmp_path / "kit")
    (tmp_path / "kit" / "ca.crt").write_bytes((kits / "other" / "west" / "ca.crt").read_bytes())
    foreign.write_bytes(Authority.load(kits / "authority").revoke([]))
    with pytest.raises(RefusedError, match="is not signed by this federation's authority"):
        Trust.load(tmp_path / "kit")


def test_a_certificate_that_has_ended_signs_nothing(kits, monkeypatch):
    own, trust = Identity.load(kits / "own" / "west"), Trust.load(kits / "own" / "east")
    trust.check(b"text", "west", own.signed(b"text"))

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.datetime.now(zone) + datetime.timedelta(days=3)

    monkeypatch.setattr("fedunseen.engines.remote.identity.datetime", SimpleNamespace(datetime=Later, UTC=datetime.UTC))
    with pytest.raises(Forged, match="the certificate of west is not valid today"):
        trust.check(b"text", "west", own.signed(b"text"))


# Refusals


def test_late_updates_are_not_masked():
    with pytest.raises(ExperimentError) as told:
        experiment(privacy__aggregation="masked", engine__name="buffered")
    assert str(told.value) == (
        "engine.name = 'buffered' merges updates as they come, but privacy.aggregation = 'masked' adds up the updates "
        "of one round, from one model: change one of them"
    )


def test_a_party_may_insist_on_masks(data, tmp_path):
    held = PartyData(data / "west", masked=True)
    with pytest.raises(RefusedError) as told:
        held.prepare({"client": 2, "clients": 4, "experiment": {"data": {}}}, {})
    assert str(told.value) == (
        "the coordinator would see this party's updates one by one: ask it to set privacy.aggregation = 'masked', or "
        "join without --masked"
    )


def test_messages_out_of_order_are_refused(data, tmp_path):
    party = Table(tmp_path, data).party["west"]
    for kind in ("shares", "masked", "unmask"):
        answer, _ = unpack(party.answer(pack({"kind": kind, "session": "00", "round": 0, "told": {}})))
        assert answer == {"error": "this party is in no session of masks"}


@pytest.mark.parametrize("carrier", ENGINES)
def test_no_certificate_but_a_partys_signs_for_a_party(carrier, tmp_path):
    """The authority has signed the coordinator's too: one that names itself a party would be in the sum."""
    make_kits = importlib.import_module(f"fedunseen.engines.carriers.{carrier}").certificates
    make_kits(tmp_path / "kits", "127.0.0.1", ["north"], 1, tmp_path / "authority")
    kit = tmp_path / "kits" / "coordinator"
    server = x509.load_pem_x509_certificate((kit / "server.crt").read_bytes())
    authority, other = Authority.load(tmp_path / "authority"), ec.generate_private_key(ec.SECP256R1())
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]

    def signed(*usage):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
        own, top = server, authority.certificate.subject
        builder = x509.CertificateBuilder(top, subject, other.public_key(), 7)
        builder = builder.not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
        for one in usage:
            builder = builder.add_extension(x509.ExtendedKeyUsage(one), False)
        return Identity(builder.sign(authority.key, SHA256()), other)

    key = load_pem_private_key((kit / "server.key").read_bytes(), None)
    for own in (Identity(server, key), signed(), signed(both), signed([ExtendedKeyUsageOID.CODE_SIGNING])):
        with pytest.raises(Forged, match="is not a party's, but a coordinator's or another"):
            Trust.load(kit).check(b"keys", own.name, own.signed(b"keys"))
    for own in (Identity.load(tmp_path / "kits" / "north"), signed(both[:1])):
        Trust.load(kit).check(b"keys", "north", own.signed(b"keys"))
