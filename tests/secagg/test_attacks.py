"""Each attack is a coordinator, or a party, with the honest parties' own code in front of it. All
must fail.
"""

import hashlib
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen.core.errors import DataError, RefusedError
from fedunseen.deploy.client_data import raw_samples
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment, change, enrol, in_memory
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient, _signed_text
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import key_stream
from fedunseen.deploy.secagg.server import MaskedTotal, SecAggServer
from masked_parties import ZERO, Parties, refusal
from refusals import message_of

OTHER = "11" * 32
UNSIGNED = "the keys of p3 are not signed by p3"
refused = partial(message_of, error=RefusedError)


@pytest.fixture
def parties():
    return Parties(4)


# Attacks that succeeded on the protocol before


def test_f1_one_party_is_not_separated_by_rosters_and_survivors_that_the_coordinator_makes_up():
    parties = Parties(10)
    keys = parties.keys()
    six = {name: keys[name] for name in parties.names[:6]}
    assert "the roster has 6 parties, and a sum takes 7" in refusal(parties.shares, six, ["p0"])
    shares = parties.shares(keys)
    request = parties.masked_request("p0", shares)
    for part in ("encrypted_shares", "share_commitments"):
        request[part] = {name: request[part][name] for name in parties.names[1:6]}
    assert "a share from every other member" in refusal(parties.mask, "p0", request)
    for name in parties.names:
        parties.mask(name, parties.masked_request(name, shares))
    for client in parties.clients.values():
        reply = client.open(
            {"plan": parties.plan.digest, "k": 0, "rho": shares["p0"]["rho"], "there": ["p0", "p7"]}
        )
        assert reply.keys() == {"party", "rho", "shares"}
        assert reply["shares"].keys() == set(parties.names)  # of own masks; pair keys: none


@pytest.mark.parametrize("restart", [False, True])
def test_f2_no_second_sum_of_a_round_is_opened_nor_one_again_with_fresh_noise(restart, tmp_path):
    parties = Parties(4, tmp_path, ["again"])
    rho, masked = parties.up_to_masked()
    first = parties.open(rho)
    if restart:
        parties.restart()
    else:  # the same request gets the same bytes, whatever the party would send now
        shares = parties.shares({n: c._attempt.keys for n, c in parties.clients.items()})
        noisy = {"total": np.ones(5, dtype=np.int64), "w": np.zeros(2)}
        repeated = parties.mask("p0", parties.masked_request("p0", shares), noisy)
        assert repeated.tobytes() == masked["p0"].tobytes()
    assert "has opened sum 1" in refusal(parties.keys, 0, 1, parties.names[:3])
    again = parties.new_plan()  # nor under a plan of another run
    parties.agree(again)
    for k, plan in ((1, None), (0, again)):
        keys = parties.keys(k, 0, parties.names[:3], plan=plan)
        assert "differs from that of an opened sum by p3" in refusal(parties.shares, keys)
    assert parties.open(rho) == first
    assert "opened sum 1 of the plan for another roster" in refusal(parties.open, OTHER)


@pytest.mark.parametrize("overlap", [1, 3])
def test_f3_sums_of_the_same_samples_are_released_once(overlap, tmp_path):
    parties = Parties(3, tmp_path, once=True, sums=1)
    parties.release()
    assert "no such sum" in refusal(parties.keys, 7)
    parties.restart()
    client, second = parties.clients["p0"], parties.new_plan(once=True)
    samples = [*parties.samples["p0"][:overlap], b"new"]
    assert "sums of some of these samples were released under another plan" in refusal(
        client.sign, second, samples
    )
    client.sign(second, [b"new"])  # other samples are other data
    client.sign(parties.plan, parties.samples["p0"])  # the same plan again, as after a restart
    SecAggClient(client.credentials, client.ledger, ["again"]).sign(second, samples)


def test_f3_two_plans_side_by_side_open_one_sum():
    parties = Parties(3, once=True, sums=1)
    second = parties.new_plan(once=True, sums=1)
    parties.agree(second)
    rho, _ = parties.up_to_masked()
    assert "released under another plan" in refusal(parties.up_to_masked, plan=second)
    parties.open(rho)
    assert "released under another plan" in refusal(parties.up_to_masked, 0, 1, plan=second)


def test_two_plans_side_by_side_are_opened_for_one_roster():
    parties = Parties(4, consent=["again"])
    second = parties.new_plan()
    parties.agree(second)
    rho, _ = parties.up_to_masked()
    other, _ = parties.up_to_masked(0, 0, parties.names[:3], plan=second)
    parties.open(rho)
    why = refusal(parties.open, other, 0, parties.names[:3], plan=second)
    assert "the roster differs from that of an opened sum by p3" in why


def test_f4_parties_with_different_experiments_or_models_are_in_no_sum_together(parties):
    client, other = parties.clients["p3"], parties.new_plan(experiment=OTHER)
    mine = client.sign(other)
    assert "1 parties have signed the plan, and 3 must" in refusal(
        client.accept, other, {"p3": mine}
    )
    theirs = {name: parties.clients[name].sign(parties.plan) for name in parties.names[:3]}
    assert "the signature of p0 is not of this plan" in refusal(
        client.accept, other, {**theirs, "p3": mine}
    )
    assert "has not accepted the plan" in refusal(parties.keys, 0, 0, ["p3"], plan=other)
    parties.agree(other)  # even if all agree to both
    for attempt, (own, why) in enumerate(
        (({"plan": other}, "plan"), ({"instruction": OTHER}, "instruction"))
    ):
        keys = parties.keys(0, attempt, parties.names[:3]) | parties.keys(0, attempt, ["p3"], **own)
        for name in parties.names:
            assert f"has signed keys for another {why}" in refusal(parties.shares, keys, [name])


# F10: parties that lie


def lie(name, stage, change):
    return lambda at, who, message: change(message) if (at, who) == (stage, name) else message


def other_text(texts, name="p1"):
    return {**texts, name: "00" * (len(texts[name]) // 2)}


@pytest.mark.parametrize(
    ("stage", "change", "why"),
    [
        ("keys", lambda m: {**m, "seal": ZERO}, "not signed by p0"),
        ("keys", lambda m: {"nothing": 1}, "damaged"),
        (
            "shares",
            lambda m: {**m, "encrypted_shares": other_text(m["encrypted_shares"])},
            "dealt to p1 is bad",
        ),
        (
            "shares",
            lambda m: {**m, "share_commitments": other_text(m["share_commitments"])},
            "dealt to p1 is bad",
        ),
        ("shares", lambda m: {**m, "encrypted_shares": {}}, "dealt shares to another roster"),
        ("masked", lambda m: m[:-1], "has sent 7 masked elements, not 8"),
        (
            "masked",
            lambda m: {"complaint": "p1", "seal_secret": ZERO},
            "reveals another key than its own",
        ),
        (
            "masked",
            lambda m: {"complaint": "nobody"},
            "complains about a party that has dealt it nothing",
        ),
    ],
)
def test_f10_a_party_that_lies_is_named_and_the_honest_ones_are_in_the_sum(
    stage, change, why, parties
):
    done = parties.sum(change=lie("p0", stage, change))
    assert (done.roster, [*done.left_out]) == (["p1", "p2", "p3"], ["p0"])
    assert why in done.left_out["p0"]
    sums = parties.layout.decode(done.elements, 3, bytes.fromhex(done.rho))
    assert sums["total"].tolist() == parties.total(done.roster)["total"].tolist()


@pytest.mark.parametrize("key", ["seal", "pair"])
def test_f10_a_zero_key_that_is_signed_is_named_by_the_coordinator_and_by_parties(key, parties):
    keys = parties.keys()
    bad = signed(parties.credentials, keys["p0"], **{key: ZERO})
    server = SecAggServer(parties.enrolment, parties.plan.digest, 0, 0, ZERO)
    why = "p0 has signed a key that is not a public key"
    assert (
        refusal(server.take_keys, "p0", bad)
        == refusal(parties.shares, {**keys, "p0": bad}, ["p1"])
        == why
    )


def test_f10_a_complaint_about_a_good_share_names_who_complains(parties):
    client = parties.clients["p2"]
    change = lie(
        "p2", "masked", lambda m: {"complaint": "p1", "seal_secret": client._attempt.seal.hex()}
    )
    assert parties.sum(change=change).left_out == {
        "p2": "it complains about the share of p1, which is good"
    }


@pytest.mark.parametrize(
    ("times", "roster"), [(1, ["p0", "p1", "p2", "p3"]), (2, ["p1", "p2", "p3"])]
)
def test_a_party_that_is_late_once_is_asked_again_and_twice_is_left_out(times, roster, parties):
    late = ["p0"] * times
    done = parties.sum(
        drops=lambda stage, name: stage == "shares" and name in late and late.pop() == name
    )
    assert (done.roster, [*done.left_out], late) == (
        roster,
        [name for name in parties.names if name not in roster],
        [],
    )


def test_shares_that_do_not_restore_a_seed_name_the_dealer(monkeypatch):
    parties = Parties(3)
    monkeypatch.setattr(
        "fedunseen.deploy.secagg.party.split",
        lambda seed, t, n: [key_stream(bytes(32), 2).tobytes()] * n,
    )
    assert "that p0 has dealt do not restore its seed: keep it out" in refusal(parties.sum)


def test_a_wrong_share_at_the_opening_is_refused_and_others_suffice(parties):
    wrong = lie("p0", "open", lambda m: {**m, "shares": other_text(m["shares"])})
    assert parties.sum(change=wrong).roster == parties.names
    why = "2 parties have opened the sum, and 3 must; p0: p0 has sent another share of p1"
    assert why in refusal(Parties(3).sum, change=wrong)


def test_elements_of_another_sum_are_noticed():
    parties = Parties(3)
    other = parties.up_to_masked(0, 0)[1]["p0"]
    done = parties.sum(change=lie("p0", "masked", lambda m: other))
    assert "the masks have not cancelled" in refusal(
        parties.layout.decode, done.elements, 3, bytes.fromhex(done.rho)
    )


# More lies of a coordinator


def test_two_halves_of_a_federation_with_rosters_of_their_own_mask_nothing(parties):
    keys = parties.keys()
    one, two = (
        {n: m for n, m in keys.items() if n != gone} for gone in ("p3", "p0")
    )  # each is large enough
    shares = parties.shares(one, ["p0", "p1"])
    other = parties.shares(two, ["p2", "p3"])["p2"]
    bad = {
        part: {**other[part], "p0": other[part]["p1"]}
        for part in ("encrypted_shares", "share_commitments")
    }
    request = parties.masked_request("p0", {**shares, "p2": {**other, **bad}})
    assert (
        parties.mask("p0", request)["complaint"] == "p2"
    )  # nothing is masked, and the attempt is over
    assert "in no attempt at a sum" in refusal(
        parties.clients["p0"].masked, request, np.zeros(8, np.uint64)
    )


def signed(credentials, message, **changes):
    """Return a keys message that a party of its name has changed and signed: its own, or a
    stranger.
    """
    changed = {**message, **changes}
    return {**changed, "signature": credentials[message["party"]].sign(_signed_text(changed))}


@pytest.mark.parametrize(
    ("name", "swapped", "why"),
    [
        ("p3", lambda old, other, keys: old["p3"], "p3 has signed keys for another attempt"),
        ("p3", lambda old, other, keys: other["p3"], "p3 has signed keys for another sum"),
        (
            "p3",
            lambda old, other, keys: signed(
                in_memory([*keys]), keys["p3"], pair=keys["p3"]["seed"]
            ),
            UNSIGNED,
        ),
        ("p3", lambda old, other, keys: {**keys["p1"], "party": "p3"}, UNSIGNED),
        (
            "p9",
            lambda old, other, keys: {**keys["p1"], "party": "p9"},
            "p9 is not in federation.json",
        ),
    ],
)
def test_keys_that_a_party_has_not_signed_for_this_attempt_are_refused(name, swapped, why, parties):
    other, old, keys = parties.keys(1), parties.keys(0, 0), parties.keys(0, 1)
    assert why in refusal(parties.shares, {**keys, name: swapped(old, other, keys)}, ["p0"])


def test_a_roster_has_all_names_once_and_is_not_changed(parties):
    keys = parties.keys()
    for damaged in (None, [*keys.values(), "p1"], [*keys.values(), {"name": "p1"}]):
        assert (
            refusal(parties.clients["p0"].shares, {"keys": damaged})
            == "the roster of the sum is damaged"
        )
    for changes, why in (
        ({"extra": "w"}, "the keys of p3 are damaged"),
        ({"extra": [1]}, "the keys of p3 are damaged"),
        ({"seal": keys["p3"]["pair"]}, "two keys of the roster are the same"),
        ({"pair": keys["p1"]["pair"]}, "two keys of the roster are the same"),
    ):
        bad = signed(parties.credentials, keys["p3"], **changes)
        assert why in refusal(parties.shares, {**keys, "p3": bad}, ["p0"])
    for names, why in (
        ([*keys, "p1"], "names a party twice"),
        (["p1", "p2", "p3"], "lacks this party's own keys"),
    ):
        assert why in refusal(
            parties.clients["p0"].shares, {"keys": [keys[name] for name in names]}
        )
    parties.shares(keys, ["p0"])
    assert "another 'shares' request" in refusal(
        parties.shares, {n: keys[n] for n in ("p0", "p1", "p2")}, ["p0"]
    )


def test_a_party_masks_once_for_the_shares_of_its_attempt(parties):
    old, shares = (parties.shares(parties.keys(0, attempt)) for attempt in (0, 1))
    assert "of another roster or another attempt" in refusal(
        parties.mask, "p0", parties.masked_request("p0", old)
    )
    assert "has masked nothing for this roster" in refusal(
        parties.open, shares["p0"]["rho"], 0, ["p0"]
    )
    request = parties.masked_request("p0", shares)
    parties.mask("p0", request)
    assert "another 'masked' request" in refusal(
        parties.mask, "p0", {**request, "encrypted_shares": {}}
    )


def test_attempts_and_sums_do_not_go_back(parties):
    rho, _ = parties.up_to_masked(0, 0)
    parties.keys(0, 5)
    assert "has masked nothing for this roster" in refusal(
        parties.open, rho, 0, ["p0"]
    )  # its attempt is discarded
    assert "this attempt at the sum is over" in refusal(parties.keys, 0, 4)
    parties.release(2)
    assert "has opened sum 3" in refusal(parties.keys, 1)


def test_a_plan_is_taken_as_it_was_signed_and_agreed_to(parties):
    client, plan = parties.clients["p0"], parties.new_plan()
    signatures = {name: parties.clients[name].sign(plan) for name in parties.names}
    assert "is not of this plan" in refusal(client.accept, parties.new_plan(sums=4), signatures)
    del signatures["p3"]
    stranger = in_memory(["p9", *parties.names])["p9"].sign(plan.signed_text)
    assert "signed by an unknown key" in refusal(
        client.accept, plan, {**signatures, "p9": stranger}
    )
    assert "another federation.json" in refusal(client.sign, parties.new_plan(federation=OTHER))
    assert "weights are not those of the parties" in refusal(
        client.sign, parties.new_plan(weights={"p0": 1.0})
    )
    assert "--consent dropouts" in refusal(client.sign, parties.new_plan(dropouts=True))
    removal = {**plan.content(), "removing": ["p0"]}  # is released once
    assert Plan.read({**removal, "once": True}).removing == ["p0"]
    wrong = [{"weights": {"p0": one}} for one in ("1", True, 0, -1.0, float("nan"), float("inf"))]
    wrong += [{"sums": one} for one in (0, 1.0, 10**9 + 1)] + [
        {"once": 1},
        {"dropouts": None},
        {"quantization": 8},
    ]
    wrong += [
        {"weights": []},
        {"removing": "p0"},
        {"removing": [0]},
        {"removing": ["p0", "p0"]},
        {"once": False},
    ]
    for changes in wrong:
        assert "a field of the wrong kind" in refusal(
            Plan.read, {**removal, "once": True, **changes}
        ), changes


def test_a_damaged_total_is_refused(tmp_path):
    (tmp_path / "total.safetensors").write_bytes(b"no")
    assert "its sum is lost" in refused(MaskedTotal.load, tmp_path / "total.safetensors")


@pytest.mark.parametrize(("count", "size"), [(6, 4), (10, 7)])
def test_three_rosters_that_differ_widely_are_not_combined_to_one_update(count, size):
    """With models that are equal, R1 - R2 - R3 is -2 times what three groups share: p0 and c
    parties that collude.
    """
    parties, apart = Parties(count), count - size
    rosters = [[*parties.names[: k * apart], *parties.names[(k + 1) * apart :]] for k in range(3)]
    parties.release(0, rosters[0])
    assert f"the same {size} must take part" in refusal(parties.up_to_masked, 1, 0, rosters[1])


# Removals: six parties, one of which may collude, so that three remove samples and three keep
# theirs


def released(roster=range(6), **plan):
    """Parties that have opened a sum of their samples."""
    parties = Parties(6, once=True, sums=1, **plan)
    parties.release(names=[f"p{k}" for k in roster])
    return parties


def removal(parties, *removing, **changes):
    return parties.new_plan(once=True, sums=1, removing=[f"p{k}" for k in removing], **changes)


@pytest.mark.parametrize(
    ("roster", "removing", "why"),
    [
        (range(6), (0,), "removes samples of 1 parties"),
        (range(6), (0, 1), "removes samples of 2 parties"),
        (range(6), (0, 1, 2, 3), "keeps all samples of 2 parties"),
        (
            range(4),
            (0, 1, 2),
            "keeps all samples of 1 parties",
        ),  # of the sum that they were in, whoever is asked now
        (
            range(6),
            range(6),
            "keeps all samples of 0 parties",
        ),  # others may remove everything, and one some samples
        (range(6), (0, 1, 9), "that it does not ask"),
    ],
)
def test_a_removal_that_few_parties_would_hide_is_refused(roster, removing, why):
    parties = released(roster, consent=["dropouts"], dropouts=True)
    assert why in refusal(
        parties.clients["p0"].sign, removal(parties, *removing), parties.samples["p0"]
    )


def test_a_removal_claimed_of_three_is_not_that_of_one():
    """All sign, and the coordinator leaves out two of those that hide the third."""
    parties = released(consent=["dropouts"], dropouts=True)
    plan = removal(parties, 0, 1, 2, dropouts=True)
    parties.agree(plan)
    keys = parties.keys(names=["p0", "p3", "p4", "p5"], plan=plan)
    assert "p1, p2 removes samples, and is not in the roster" in refusal(
        parties.shares, keys, ["p0"]
    )


def test_two_removals_do_not_leave_few_parties():
    """Each of them keeps the samples of three, and both together those of no party."""
    parties = released()
    one, two = removal(parties, 0, 1, 2), removal(parties, 3, 4, 5)
    for plan in (one, two):  # signed before either is opened
        parties.agree(plan)
    rho, _ = parties.up_to_masked(plan=one)
    assert "keeps all samples of 0 parties" in refusal(parties.up_to_masked, plan=two)
    assert len(parties.open(rho, plan=one)) == 6


def test_samples_are_removed_once_and_from_sums_that_they_are_in(tmp_path):
    parties = released(folder=tmp_path)
    parties.plan = plan = removal(parties, 0, 1, 2)
    new = [*parties.samples["p0"], b"new"]
    assert "are in no sum that this party's ledger knows" in refusal(
        parties.clients["p0"].sign, plan, new
    )
    parties.agree(plan)
    rho, first = parties.release()
    parties.restart()
    assert parties.open(rho) == first
    again = refusal(
        parties.clients["p0"].sign, removal(parties, 0, 1, 2), parties.samples["p0"][:1]
    )
    assert again == "some of these samples were removed by another plan: leave them out"


# Enrolment and ledger


def test_enrolment_is_signed_and_changes_by_its_authority_alone(tmp_path):
    names = ["north", "south", "west", "east"]
    enrol(tmp_path / "kits", names, tmp_path / "authority")
    kit = tmp_path / "kits" / "west"
    old = Credentials.load(kit).enrolment
    assert (old.names, old.colluding, old.threshold) == (sorted(names), 1, 3)
    assert (kit / "secagg.key").stat().st_mode & 0o777 == 0o600
    file = kit / "federation.json"
    text = file.read_text()
    for part, other, why in (
        ('"t": 3', '"t": 2', "do not fit together"),
        ('"serial": 1', '"serial": 7', "not signed by its authority"),
        ("north", "\x00", "is damaged"),
        (text, "[]", "is damaged"),
    ):
        file.write_text(text.replace(part, other))
        assert why in refused(Credentials.load, kit)
    file.unlink()
    assert "is missing, and masked sums need it" in refused(Credentials.load, kit)
    change(tmp_path / "authority", tmp_path / "new", renew=["west"])
    newer = Credentials.load(tmp_path / "new" / "west").enrolment
    assert newer.serial == 2
    file.write_bytes((tmp_path / "new" / "coordinator" / "federation.json").read_bytes())
    assert "are not those in federation.json" in refused(Credentials.load, kit)  # with its old keys
    ledger = Ledger(tmp_path / "ledger", "data")
    ledger.pin(newer)
    assert "older than the one" in refused(ledger.pin, old)
    fork = replace(newer, colluding=0)  # its authority was restored from a backup, say
    assert "another list than one of the same number" in refused(ledger.pin, fork)
    ledger.pin(in_memory(names)["west"].enrolment)  # another federation has its own numbers
    assert "older than the one" in refused(ledger.pin, old)
    change(tmp_path / "authority", tmp_path / "left", remove=["west"])
    assert Enrolment.load(tmp_path / "left" / "coordinator").names == ["east", "north", "south"]


def test_a_stranger_s_list_of_parties_brings_no_escape_sequences():
    """``fedunseen offline show`` prints the names of a list that a file carries."""
    listed = in_memory(["north\x1b[2K", "south", "west"])["south"].enrolment
    assert "cannot be a party's name" in refused(Enrolment.read, listed.text(), "a.fedunseen")


@pytest.mark.parametrize("file", ["ledger.json", "released"])
@pytest.mark.parametrize("how", ["cut", "changed", "deleted"])
def test_a_damaged_ledger_is_refused(file, how, tmp_path):
    parties = Parties(3, tmp_path, once=True, sums=1)
    parties.release()
    (path,) = (tmp_path / "p0").glob(f"{file}*")
    if how == "deleted":
        path.unlink()
    else:
        text = path.read_bytes()
        path.write_bytes(
            text[: len(text) // 2] if how == "cut" else text.replace(text[5:8], b"abc")
        )
    assert "missing or damaged, and without it a sum could be opened twice" in refused(
        Ledger, tmp_path / "p0", "p0"
    )


def test_two_processes_with_one_ledger_open_one_sum(tmp_path):
    parties = Parties(3, tmp_path)
    rho, _ = parties.up_to_masked()
    other = SecAggClient(parties.credentials["p0"], parties.ledger("p0"))  # has read what waits
    parties.open(rho)
    assert "is in use by another process" in refused(other.keys, parties.plan.digest, 0, 1, ZERO)


def test_a_ledger_of_another_data_folder_is_refused(tmp_path):
    Ledger(tmp_path, "here").write({})
    assert "is the ledger of another data folder than there" in refused(Ledger, tmp_path, "there")
    Ledger(tmp_path, "there", moved=True)


def test_samples_are_known_by_their_files_or_raw_features(tmp_path):
    """A coordinator that asks for other scalings or sizes meets the same digests."""
    (tmp_path / "a.png").write_bytes(b"photo")
    rows = np.arange(6.0).reshape(3, 2)
    classes = {"labels": np.array([0, 1, -1]), "space": SimpleNamespace(names=("cat", "dog"))}
    files = SimpleNamespace(files=("a.png", "gone.png"), features=rows, originals=None, **classes)
    raw = raw_samples(tmp_path, files, np.array([0, 1]))
    assert next(raw) == (hashlib.sha256(b"photo").digest(), b"cat")
    with pytest.raises(DataError, match=r"gone\.png cannot be read"):
        next(raw)  # its features would depend on settings
    own = SimpleNamespace(files=None, features=rows, originals=None, **classes)
    assert list(raw_samples(tmp_path, own, np.array([1, 2]))) == [
        (rows[1].tobytes(), b"dog"),
        (rows[2].tobytes(), b""),  # it has no label
    ]
