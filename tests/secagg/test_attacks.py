"""Each attack is a coordinator, or a party, with the honest parties' own code in front of it. All must fail."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from masked_parties import ZERO, Parties, refusal

from fedunseen.core.errors import RefusedError
from fedunseen.experiment.client_data import _raw
from fedunseen.secagg.driver import in_one_process
from fedunseen.secagg.enrolment import Credentials, Enrolment, change, enrol, in_memory
from fedunseen.secagg.ledger import Ledger
from fedunseen.secagg.party import SecAggClient, _signed_text
from fedunseen.secagg.plan import Plan
from fedunseen.secagg.primitives import key_stream
from fedunseen.secagg.server import MaskedTotal, SecAggServer

OTHER = "11" * 32


def everything(message):
    return json.dumps(message, default=lambda array: array.tobytes().hex())


# Attacks that succeeded on the protocol before


def test_f1_one_party_is_not_separated_by_rosters_and_survivors_that_the_coordinator_makes_up():
    parties = Parties(10)
    keys = parties.keys()
    six = {name: keys[name] for name in ["p0", "p1", "p2", "p3", "p4", "p5"]}
    assert "the roster has 6 parties, and a sum takes 7" in refusal(
        parties.clients["p0"].shares, {"keys": [*six.values()]}
    )
    shares = parties.shares(keys)
    request = parties.masked_request("p0", shares)
    for part in ("encrypted_shares", "share_commitments"):
        request[part] = {name: request[part][name] for name in ["p1", "p2", "p3", "p4", "p5"]}
    assert "a share from every other member" in refusal(parties.mask, "p0", request)
    for name in parties.names:
        parties.mask(name, parties.masked_request(name, shares))
    settings = {"plan": parties.plan.digest, "k": 0, "rho": shares["p0"]["rho"]}
    replies = [one.open({**settings, "there": ["p0", "p7"]}) for one in parties.clients.values()]
    assert all(reply.keys() == {"party", "rho", "shares"} for reply in replies)
    assert all(reply["shares"].keys() == set(parties.names) for reply in replies)  # of own masks; pair keys: none


@pytest.mark.parametrize("restart", [False, True])
def test_f2_no_second_sum_of_a_round_is_opened(restart, tmp_path):
    parties = Parties(4, tmp_path)
    rho, _ = parties.up_to_masked()
    first = parties.open(rho)
    if restart:
        for name in parties.names:
            parties.restart(name)
    assert "has opened sum 1" in refusal(parties.keys, 0, 1, parties.names[:3])
    assert "differs from that of an opened sum by p3" in refusal(parties.shares, parties.keys(1, 0, parties.names[:3]))
    again = parties.new_plan()  # nor under a plan of another run
    parties.agree(again)
    assert "differs from that of an opened sum by p3" in refusal(
        parties.shares, parties.keys(0, 0, parties.names[:3], plan=again)
    )
    assert parties.open(rho) == first
    assert "opened sum 1 of the plan for another roster" in refusal(parties.open, OTHER)


@pytest.mark.parametrize("overlap", [1, 3])
def test_f3_sums_of_the_same_samples_are_released_once(overlap, tmp_path):
    parties = Parties(3, tmp_path, once=True, sums=1)
    rho, _ = parties.up_to_masked()
    parties.open(rho)
    assert "no such sum" in refusal(parties.keys, 7)
    for name in parties.names:
        parties.restart(name)
    samples = {name: [*old[:overlap], b"new"] for name, old in parties.samples.items()}
    second = parties.new_plan(once=True)
    client = parties.clients["p0"]
    assert "sums of some of these samples were released under another plan" in refusal(
        client.sign, second, samples["p0"]
    )
    client.sign(second, [b"new"])  # other samples are other data
    client.sign(parties.plan, parties.samples["p0"])  # the same plan again, as after a restart
    SecAggClient(client.credentials, client.ledger, ["again"]).sign(second, samples["p0"])


def test_f3_two_plans_side_by_side_open_one_sum():
    parties = Parties(3, once=True, sums=1)
    second = parties.new_plan(once=True, sums=1)
    parties.agree(second)
    rho, _ = parties.up_to_masked()
    parties.open(rho)
    keys = parties.keys(plan=second)
    shares = parties.shares(keys)
    for name in parties.names:
        parties.mask(name, parties.masked_request(name, shares))
    settings = {"plan": second.digest, "k": 0, "rho": shares["p0"]["rho"]}
    assert "released under another plan" in refusal(parties.clients["p0"].open, settings)


def test_f4_parties_with_different_experiments_are_in_no_sum_together():
    parties = Parties(4)
    other = parties.new_plan(experiment=OTHER)
    mine = parties.clients["p3"].sign(other)
    client = parties.clients["p3"]
    assert "1 parties have signed the plan, and 3 must" in refusal(client.accept, other, {"p3": mine})
    theirs = {name: parties.clients[name].sign(parties.plan) for name in parties.names[:3]}
    assert "the signature of p0 is not of this plan" in refusal(client.accept, other, {**theirs, "p3": mine})
    assert "has not accepted the plan" in refusal(parties.keys, 0, 0, ["p3"], plan=other)
    parties.agree(other)  # even if all agree to both
    keys = parties.keys(names=parties.names[:3]) | parties.keys(names=["p3"], plan=other)
    for name in parties.names:
        assert "has signed keys for another plan" in refusal(parties.shares, keys, [name])


def test_a_parties_with_different_models_are_in_no_sum_together():
    parties = Parties(4)
    keys = parties.keys(names=parties.names[:3]) | parties.keys(names=["p3"], instruction=OTHER)
    for name in parties.names:
        assert "has signed keys for another instruction" in refusal(parties.shares, keys, [name])


@pytest.mark.parametrize("restart", [False, True])
def test_b_a_sum_is_not_opened_again_with_fresh_noise(restart, tmp_path):
    parties = Parties(3, tmp_path)
    rho, masked = parties.up_to_masked()
    first = parties.open(rho)
    if restart:
        for name in parties.names:
            parties.restart(name)
    else:  # the same request gets the same bytes, whatever the party would send now
        shares = parties.shares({n: c._attempt.keys for n, c in parties.clients.items()})
        noisy = {"total": np.ones(5, dtype=np.int64), "w": np.zeros(2)}
        repeated = parties.mask("p0", parties.masked_request("p0", shares), noisy)
        assert repeated.tobytes() == masked["p0"].tobytes()
    assert "has opened sum 1" in refusal(parties.keys, 0, 1)
    assert everything(parties.open(rho)) == everything(first)


# F10: parties that lie


def run(parties, **lies):
    return in_one_process(parties.clients, parties.plan, 0, ZERO, parties.encode, **lies)


def lie(name, stage, change):
    return lambda at, who, message: change(message) if (at, who) == (stage, name) else message


def other_text(texts, name="p1"):
    return {**texts, name: "00" * (len(texts[name]) // 2)}


@pytest.mark.parametrize(
    ("stage", "change", "why"),
    [
        ("keys", lambda m: {**m, "seal": ZERO}, "not signed by p0"),
        ("keys", lambda m: {"nothing": 1}, "damaged"),
        ("shares", lambda m: {**m, "encrypted_shares": other_text(m["encrypted_shares"])}, "dealt to p1 is bad"),
        ("shares", lambda m: {**m, "share_commitments": other_text(m["share_commitments"])}, "dealt to p1 is bad"),
        ("shares", lambda m: {**m, "encrypted_shares": {}}, "dealt shares to another roster"),
        ("masked", lambda m: m[:-1], "has sent 7 masked elements, not 8"),
        ("masked", lambda m: {"complaint": "p1", "seal_secret": ZERO}, "reveals another key than its own"),
        ("masked", lambda m: {"complaint": "nobody"}, "complains about a party that has dealt it nothing"),
    ],
)
def test_f10_a_party_that_lies_is_named_and_the_honest_ones_are_in_the_sum(stage, change, why):
    parties = Parties(4)
    done = run(parties, change=lie("p0", stage, change))
    assert done.roster == ["p1", "p2", "p3"]
    assert done.left_out.keys() == {"p0"}
    assert why in done.left_out["p0"]
    sums = parties.layout.decode(done.elements, 3, bytes.fromhex(done.rho))
    assert sums["total"].tolist() == parties.total(done.roster)["total"].tolist()


@pytest.mark.parametrize("key", ["seal", "pair"])
def test_f10_a_zero_key_that_is_signed_is_named_by_the_coordinator_and_by_parties(key):
    parties = Parties(4)
    keys = parties.keys()
    bad = {**keys["p0"], key: ZERO}
    bad["signature"] = parties.credentials["p0"].sign(_signed_text(bad))
    server = SecAggServer(parties.enrolment, parties.plan.digest, 0, 0, ZERO)
    assert refusal(server.take_keys, "p0", bad) == "p0 has signed a key that is not a public key"
    why = refusal(parties.clients["p1"].shares, {"keys": [bad, *(keys[f"p{k}"] for k in (1, 2, 3))]})
    assert why == "p0 has signed a key that is not a public key"


def test_f10_a_complaint_about_a_good_share_names_who_complains():
    parties = Parties(4)

    def change(stage, name, message):
        if (stage, name) == ("masked", "p2"):
            return {"complaint": "p1", "seal_secret": parties.clients["p2"]._attempt.seal.hex()}
        return message

    assert run(parties, change=change).left_out == {"p2": "it complains about the share of p1, which is good"}


def test_shares_that_do_not_restore_a_seed_name_the_dealer(monkeypatch):
    parties = Parties(3)
    monkeypatch.setattr("fedunseen.secagg.party.split", lambda seed, t, n: [key_stream(bytes(32), 2).tobytes()] * n)
    assert "that p0 has dealt do not restore its seed: keep it out" in refusal(run, parties)


def test_a_wrong_share_at_the_opening_is_refused_and_others_suffice():
    parties = Parties(4)
    done = run(parties, change=lie("p0", "open", lambda m: {**m, "shares": other_text(m["shares"])}))
    assert done.roster == parties.names
    parties = Parties(3)
    why = refusal(run, parties, change=lie("p0", "open", lambda m: {**m, "shares": other_text(m["shares"])}))
    assert "2 parties have opened the sum, and 3 must; p0: p0 has sent another share of p1" in why


def test_elements_of_another_sum_are_noticed():
    parties = Parties(3)
    other = parties.up_to_masked(0, 0)[1]["p0"]
    done = run(parties, change=lie("p0", "masked", lambda m: other))
    assert "the masks have not cancelled" in refusal(parties.layout.decode, done.elements, 3, bytes.fromhex(done.rho))


# More lies of a coordinator


def keys_of_two_attempts(parties):
    old = parties.keys(0, 0)
    return old, parties.keys(0, 1)


def split_roster(parties):
    """Two halves of the federation get different rosters, each large enough."""
    keys = parties.keys()
    one, two = ({n: m for n, m in keys.items() if n != gone} for gone in ("p3", "p0"))
    shares = parties.shares(one, ["p0", "p1"])
    other = parties.shares(two, ["p2", "p3"])["p2"]
    bad = {
        **other,
        **{part: {**other[part], "p0": other[part]["p1"]} for part in ("encrypted_shares", "share_commitments")},
    }
    request = parties.masked_request("p0", {**shares, "p2": bad})
    assert parties.mask("p0", request)["complaint"] == "p2"  # nothing is masked, and the attempt is over
    return refusal(parties.clients["p0"].masked, request, np.zeros(8, np.uint64))


def replayed_keys(parties):
    old, new = keys_of_two_attempts(parties)
    return refusal(parties.shares, {**new, "p3": old["p3"]}, ["p0"])


def keys_of_another_sum(parties):
    other = parties.keys(1)
    return refusal(parties.shares, {**parties.keys(0), "p3": other["p3"]}, ["p0"])


def forged_keys(parties):
    keys = parties.keys()
    stranger = in_memory(parties.names)["p3"]
    forged = {**keys["p3"], "pair": keys["p3"]["seed"]}
    forged["signature"] = stranger.sign(_signed_text(forged))
    return refusal(parties.shares, {**keys, "p3": forged}, ["p0"])


def duplicated_name(parties):
    keys = parties.keys()
    return refusal(parties.clients["p0"].shares, {"keys": [*keys.values(), keys["p1"]]})


def one_party_under_two_names(parties):
    keys = parties.keys()
    return refusal(parties.shares, {**keys, "p3": {**keys["p1"], "party": "p3"}}, ["p0"])


def unlisted_party(parties):
    keys = parties.keys()
    return refusal(parties.shares, {**keys, "p9": {**keys["p1"], "party": "p9"}}, ["p0"])


def truncated_roster(parties):
    keys = parties.keys()
    return refusal(parties.clients["p0"].shares, {"keys": [keys[name] for name in ("p1", "p2", "p3")]})


def second_roster(parties):
    keys = parties.keys()
    parties.shares(keys, ["p0"])
    return refusal(parties.shares, {name: keys[name] for name in ("p0", "p1", "p2")}, ["p0"])


def shares_of_another_attempt(parties):
    old = parties.shares(parties.keys(0, 0))
    parties.shares(parties.keys(0, 1))
    return refusal(parties.mask, "p0", parties.masked_request("p0", old))


def second_masking(parties):
    shares = parties.shares(parties.keys())
    request = parties.masked_request("p0", shares)
    parties.mask("p0", request)
    return refusal(parties.mask, "p0", {**request, "encrypted_shares": {}})


def opening_before_masking(parties):
    shares = parties.shares(parties.keys())
    return refusal(parties.open, shares["p0"]["rho"], 0, ["p0"])


def opening_of_a_discarded_attempt(parties):
    rho, _ = parties.up_to_masked(0, 0)
    parties.keys(0, 1)
    return refusal(parties.open, rho, 0, ["p0"])


def an_old_attempt(parties):
    parties.keys(0, 5)
    return refusal(parties.keys, 0, 4)


def an_earlier_sum(parties):
    rho, _ = parties.up_to_masked(2)
    parties.open(rho, 2)
    return refusal(parties.keys, 1)


def plan_changed_after_signing(parties):
    signatures = {name: parties.clients[name].sign(parties.plan) for name in parties.names}
    return refusal(parties.clients["p0"].accept, parties.new_plan(sums=4), signatures)


def plan_signed_by_an_unknown_key(parties):
    plan = parties.new_plan()
    signatures = {name: parties.clients[name].sign(plan) for name in parties.names[:3]}
    stranger = in_memory(["p9", *parties.names])["p9"].sign(plan.signed_text)
    return refusal(parties.clients["p0"].accept, plan, {**signatures, "p9": stranger})


def plan_of_another_federation(parties):
    return refusal(parties.clients["p0"].sign, parties.new_plan(federation=OTHER))


def dropouts_without_consent(parties):
    return refusal(parties.clients["p0"].sign, parties.new_plan(dropouts=True))


LIES = [
    (split_roster, "in no attempt at a sum"),
    (replayed_keys, "p3 has signed keys for another attempt"),
    (keys_of_another_sum, "p3 has signed keys for another sum"),
    (forged_keys, "the keys of p3 are not signed by p3"),
    (duplicated_name, "names a party twice"),
    (one_party_under_two_names, "the keys of p3 are not signed by p3"),
    (unlisted_party, "p9 is not in federation.json"),
    (truncated_roster, "lacks this party's own keys"),
    (second_roster, "another 'shares' request"),
    (shares_of_another_attempt, "of another roster or another attempt"),
    (second_masking, "another 'masked' request"),
    (opening_before_masking, "has masked nothing for this roster"),
    (opening_of_a_discarded_attempt, "has masked nothing for this roster"),
    (an_old_attempt, "this attempt at the sum is over"),
    (an_earlier_sum, "has opened sum 3"),
    (plan_changed_after_signing, "is not of this plan"),
    (plan_signed_by_an_unknown_key, "signed by an unknown key"),
    (plan_of_another_federation, "another federation.json"),
    (dropouts_without_consent, "--consent dropouts"),
]


@pytest.mark.parametrize(("attack", "why"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_coordinator_that_lies_is_refused(attack, why):
    assert why in attack(Parties(4))


def test_a_damaged_total_is_refused(tmp_path):
    (tmp_path / "total.safetensors").write_bytes(b"no")
    with pytest.raises(RefusedError, match="its sum is lost"):
        MaskedTotal.load(tmp_path / "total.safetensors")


@pytest.mark.parametrize(("count", "size"), [(6, 4), (10, 7)])
def test_three_rosters_that_differ_widely_are_not_combined_to_one_update(count, size):
    """With models that are equal, R1 - R2 - R3 is -2 times what three groups share: p0 and c parties that collude."""
    parties, apart = Parties(count), count - size
    rosters = [[*parties.names[: k * apart], *parties.names[(k + 1) * apart :]] for k in range(3)]
    rho, _ = parties.up_to_masked(0, 0, rosters[0])
    parties.open(rho, 0, rosters[0])
    assert f"the same {size} must take part" in refusal(parties.up_to_masked, 1, 0, rosters[1])


# Removals: six parties, one of which may collude, so that three remove samples and three keep theirs


def released(roster=range(6), **plan):
    """Parties that have opened a sum of their samples."""
    parties = Parties(6, once=True, sums=1, **plan)
    names = [f"p{k}" for k in roster]
    rho, _ = parties.up_to_masked(names=names)
    parties.open(rho, names=names)
    return parties


def removal(parties, *removing, **changes):
    return parties.new_plan(once=True, sums=1, removing=[f"p{k}" for k in removing], **changes)


@pytest.mark.parametrize(
    ("roster", "removing", "why"),
    [
        (range(6), (0,), "removes samples of 1 parties"),
        (range(6), (0, 1), "removes samples of 2 parties"),
        (range(6), (0, 1, 2, 3), "keeps all samples of 2 parties"),
        (range(4), (0, 1, 2), "keeps all samples of 1 parties"),  # of the sum that they were in, whoever is asked now
        (
            range(6),
            range(6),
            "keeps all samples of 0 parties",
        ),  # all others may remove everything, and one some samples
        (range(6), (0, 1, 9), "that it does not ask"),
    ],
)
def test_a_removal_that_few_parties_would_hide_is_refused(roster, removing, why):
    parties = released(roster, consent=["dropouts"], dropouts=True)
    assert why in refusal(parties.clients["p0"].sign, removal(parties, *removing), parties.samples["p0"])


def test_a_removal_claimed_of_three_is_not_that_of_one():
    """All sign, and the coordinator leaves out two of those that hide the third."""
    parties = released(consent=["dropouts"], dropouts=True)
    plan = removal(parties, 0, 1, 2, dropouts=True)
    parties.agree(plan)
    keys = parties.keys(names=["p0", "p3", "p4", "p5"], plan=plan)
    assert "p1, p2 removes samples, and is not in the roster" in refusal(parties.shares, keys, ["p0"])


def open_removal(parties, plan):
    """Open a removal that all have signed; return the refusal of a party that opens none."""
    shares = parties.shares(parties.keys(plan=plan))
    for name in parties.names:
        parties.mask(name, parties.masked_request(name, shares))
    settings = {"plan": plan.digest, "k": 0, "rho": shares["p0"]["rho"]}
    try:
        for client in parties.clients.values():
            client.open(settings)
    except RefusedError as error:
        return str(error)
    return ""


def test_two_removals_do_not_leave_few_parties():
    """Each of them keeps the samples of three, and both together those of no party."""
    parties = released()
    one, two = removal(parties, 0, 1, 2), removal(parties, 3, 4, 5)
    for plan in (one, two):  # signed before either is opened
        signatures = {
            name: client.sign(plan, parties.samples[name] if name in plan.removing else ())
            for name, client in parties.clients.items()
        }
        for client in parties.clients.values():
            client.accept(plan, signatures)
    assert open_removal(parties, one) == ""
    assert "keeps all samples of 0 parties" in open_removal(parties, two)


def test_a_plan_that_removes_is_released_once():
    settings = {**Parties(6).plan.content(), "removing": ["p0"]}
    assert "a field of the wrong kind" in refusal(Plan.read, settings)
    assert Plan.read({**settings, "once": True}).removing == ["p0"]


def test_samples_are_removed_once_and_from_sums_that_they_are_in(tmp_path):
    parties = released(folder=tmp_path)
    parties.plan = plan = removal(parties, 0, 1, 2)
    new = [*parties.samples["p0"], b"new"]
    assert "are in no sum that this party's ledger knows" in refusal(parties.clients["p0"].sign, plan, new)
    parties.samples |= dict.fromkeys(["p3", "p4", "p5"], ())
    parties.agree(plan)
    rho, _ = parties.up_to_masked()
    first = parties.open(rho)
    for name in parties.names:
        parties.restart(name)
    assert parties.open(rho) == first
    again = refusal(parties.clients["p0"].sign, removal(parties, 0, 1, 2), parties.samples["p0"][:1])
    assert again == "some of these samples were removed by another plan: leave them out"


# Enrolment and ledger


def test_enrolment_is_signed_and_changes_by_its_authority_alone(tmp_path):
    names = ["north", "south", "west", "east"]
    enrol(tmp_path / "kits", names, tmp_path / "authority")
    own = Credentials.load(tmp_path / "kits" / "west")
    assert (own.enrolment.names, own.enrolment.colluding, own.enrolment.threshold) == (sorted(names), 1, 3)
    assert (tmp_path / "kits" / "west" / "secagg.key").stat().st_mode & 0o777 == 0o600
    file = tmp_path / "kits" / "west" / "federation.json"
    text = file.read_text()
    for old, new, why in (
        ('"t": 3', '"t": 2', "do not fit together"),
        ('"serial": 1', '"serial": 7', "not signed by its authority"),
        ("north", "\x00", "is damaged"),
        (text, "[]", "is damaged"),
    ):
        file.write_text(text.replace(old, new))
        with pytest.raises(RefusedError, match=why):
            Credentials.load(tmp_path / "kits" / "west")
    file.unlink()
    with pytest.raises(RefusedError, match="is missing, and masked sums need it"):
        Credentials.load(tmp_path / "kits" / "west")
    change(tmp_path / "authority", tmp_path / "new", renew=["west"])
    newer = Credentials.load(tmp_path / "new" / "west").enrolment
    assert newer.serial == 2
    file.write_bytes((tmp_path / "new" / "coordinator" / "federation.json").read_bytes())
    with pytest.raises(RefusedError, match=r"are not those in federation\.json"):
        Credentials.load(tmp_path / "kits" / "west")  # with its old keys
    ledger = Ledger(tmp_path / "ledger", "data")
    ledger.pin(newer)
    with pytest.raises(RefusedError, match="older than the one"):
        ledger.pin(own.enrolment)
    with pytest.raises(RefusedError, match="another authority"):
        ledger.pin(in_memory(names)["west"].enrolment)
    change(tmp_path / "authority", tmp_path / "left", remove=["west"])
    assert Enrolment.load(tmp_path / "left" / "coordinator").names == ["east", "north", "south"]


@pytest.mark.parametrize("file", ["ledger.json", "released"])
@pytest.mark.parametrize("how", ["cut", "changed", "deleted"])
def test_a_damaged_ledger_is_refused(file, how, tmp_path):
    parties = Parties(3, tmp_path, once=True, sums=1)
    rho, _ = parties.up_to_masked()
    parties.open(rho)
    (path,) = (tmp_path / "p0").glob(f"{file}*")
    if how == "deleted":
        path.unlink()
    else:
        text = path.read_bytes()
        path.write_bytes(text[: len(text) // 2] if how == "cut" else text.replace(text[5:8], b"abc"))
    with pytest.raises(RefusedError, match="missing or damaged, and without it a sum could be opened twice"):
        Ledger(tmp_path / "p0", "p0")


def test_two_processes_with_one_ledger_open_one_sum(tmp_path):
    parties = Parties(3, tmp_path)
    rho, _ = parties.up_to_masked()
    other = SecAggClient(parties.credentials["p0"], parties.ledger("p0"))  # has read what waits
    parties.open(rho)
    with pytest.raises(RefusedError, match="is in use by another process"):
        other.keys(parties.plan.digest, 0, 1, ZERO)


def test_a_ledger_of_another_data_folder_is_refused(tmp_path):
    ledger = Ledger(tmp_path, "here")
    ledger.write({})
    with pytest.raises(RefusedError, match="is the ledger of another data folder than there"):
        Ledger(tmp_path, "there")
    Ledger(tmp_path, "there", moved=True)


def test_samples_are_known_by_their_files_or_raw_features(tmp_path):
    """A coordinator that asks for other scalings or sizes meets the same digests."""
    (tmp_path / "a.png").write_bytes(b"photo")
    rows = np.arange(6.0).reshape(3, 2)
    files = SimpleNamespace(files=("a.png", "gone.png"), features=rows)
    assert list(_raw(tmp_path, files, np.array([0, 1]))) == [hashlib.sha256(b"photo").digest(), rows[1].tobytes()]
    assert list(_raw(tmp_path, SimpleNamespace(files=None, features=rows), np.array([2]))) == [rows[2].tobytes()]
