"""``certs renew --new-keys``: it resets no ledger, drops no restriction, exposes no key, and mixes no
authorities.
"""

import datetime
import os
import shutil
import stat

import pytest
from test_answering_again import code

from fedunseen.core.errors import DataError, RefusedError
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.plan import Plan

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fedunseen.deploy import certs
from fedunseen.deploy.websocket import kit

NAMES = ("a", "b", "c", "d")
CLASSES = {name: [f"class of {name}"] for name in NAMES}
ZERO = "00" * 32


@pytest.fixture
def made(tmp_path):
    """The folder of an authority and the credentials that it has signed."""
    authority, kits = tmp_path / "authority", tmp_path / "kits"
    certs.make(kits, "127.0.0.1", NAMES, 2, authority, CLASSES)
    return authority, kits


def content_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_new_keys_keep_name_and_classes_and_only_their_owner_reads_them(made, tmp_path):
    authority, kits = made
    new, before = tmp_path / "new", os.umask(0)
    try:
        certs.change(authority, new, ["a"], renew=True)
    finally:
        os.umask(before)
    old, now = Credentials.load(kits / "a"), Credentials.load(new / "a")
    assert now.name == "a"
    assert (
        now.enrolment.classes == old.enrolment.classes == {k: tuple(v) for k, v in CLASSES.items()}
    )
    assert (now.enrolment.authority, now.enrolment.coordinator) == (
        old.enrolment.authority,
        old.enrolment.coordinator,
    )
    assert {name: now.enrolment.parties[name] for name in "bcd"} == {
        name: old.enrolment.parties[name] for name in "bcd"
    }
    assert (now.signing, now.exchange) != (old.signing, old.exchange)
    secret = [path for path in new.rglob("*") if path.suffix == ".key"]
    assert len(secret) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE((new / "a").stat().st_mode) == 0o700


def plan_of(enrolment):
    return Plan(
        federation=enrolment.digest, experiment=ZERO, space=ZERO, quantization="none", layout=ZERO, weights={},
        model=ZERO, sums=1, once=True, dropouts=False, removing=[],
    )  # fmt: skip


@pytest.mark.parametrize("fresh", [False, True], ids=["the party's state", "control: no state"])
def test_new_keys_do_not_reset_a_ledger(made, tmp_path, fresh):
    authority, kits = made
    samples, state = [b"one", b"two"], tmp_path / "state"
    ledger = Ledger(state, "data")
    first = SecAggClient(Credentials.load(kits / "a"), ledger)
    plan = plan_of(first.enrolment)
    first.sign(plan, samples)
    ledger.release(plan.digest, ledger.digests(samples))
    ledger.change_plan(
        plan.digest, content=plan.content(), signatures={}, waiting=None,
        opened={"k": 0, "rho": "", "reply": {}}, roster=NAMES,
    )  # fmt: skip
    certs.change(authority, tmp_path / "new", ["a"], renew=True)
    renewed = Credentials.load(tmp_path / "new" / "a")
    again = SecAggClient(renewed, Ledger(tmp_path / "none" if fresh else state, "data"))
    if fresh:
        again.sign(plan_of(renewed.enrolment), samples)
        return
    assert code(again.sign, plan_of(renewed.enrolment), [*samples, b"three"]) == "samples-again"
    assert again.ledger.rosters == [list(NAMES)]
    with pytest.raises(RefusedError, match=r"federation\.json is older"):  # keys from before
        SecAggClient(Credentials.load(kits / "a"), Ledger(state, "data"))


@pytest.mark.parametrize("file", ["authority.key", "federation.key"])
def test_a_foreign_authoritys_key_signs_nothing(made, tmp_path, file):
    authority, _ = made
    certs.make(tmp_path / "others", "127.0.0.1", NAMES, 2, tmp_path / "foreign")
    shutil.copy(tmp_path / "foreign" / file, authority / file)
    before = content_of(authority)
    with pytest.raises(DataError, match=r"is not (that of|the key that signed)"):
        certs.change(authority, tmp_path / "new", ["a"], renew=True)
    assert content_of(authority) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("signer", "issuer"), [("foreign", "foreign"), ("foreign", "authority"), ("authority", "other")]
)
def test_a_list_of_another_authority_revokes_and_readmits_no_one(made, tmp_path, signer, issuer):
    """The attack: a list that shuts out others, or that no longer names who is revoked."""
    authority, kits = made
    certs.make(tmp_path / "others", "127.0.0.1", NAMES, 2, tmp_path / "foreign")
    certs.change(authority, tmp_path / "gone", ["a"], renew=False)
    own, coordinator = (certs.Authority.load(authority).certificate, kits / "coordinator")
    genuine = (tmp_path / "gone" / "coordinator" / kit.REVOKED).read_bytes()
    (coordinator / kit.REVOKED).write_bytes(genuine)
    assert set(kit.registered(coordinator, NAMES)) == {"b", "c", "d"}  # control: the list counts
    key = certs.Authority.load(tmp_path / signer if signer == "foreign" else authority).key
    name = own.subject
    if issuer != "authority":
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    now = datetime.datetime.now(datetime.UTC)
    empty = x509.CertificateRevocationListBuilder().issuer_name(name).last_update(now)
    empty = empty.next_update(now + datetime.timedelta(1)).sign(key, SHA256())
    (coordinator / kit.REVOKED).write_bytes(empty.public_bytes(Encoding.PEM))
    for read in (
        lambda: kit.revoked(coordinator, own),
        lambda: kit.registered(coordinator, NAMES),
    ):
        with pytest.raises(RefusedError, match="is not signed by this federation's authority"):
            read()


def test_an_authority_that_has_ended_renews_nothing(made, tmp_path, monkeypatch):
    authority, _ = made
    before = content_of(authority)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(days=3700)

    monkeypatch.setattr(certs.datetime, "datetime", Later)
    with pytest.raises(DataError, match="ended at"):
        certs.change(authority, tmp_path / "new", ["a"], renew=True)
    assert content_of(authority) == before
    assert not (tmp_path / "new").exists()


class KilledError(Exception):
    pass


def kill(*given):
    raise KilledError


@pytest.mark.parametrize("where", ["write_json", "REVOKED"])
def test_a_key_of_a_killed_renewal_is_revoked_by_the_next(made, tmp_path, monkeypatch, where):
    authority, kits = made
    with monkeypatch.context() as patch:
        if where == "write_json":  # of the party's folder: its key is written already
            write = certs.write_json
            patch.setattr(
                certs,
                "write_json",
                lambda path, tree: kill() if path.name == "party.json" else write(path, tree),
            )
        else:
            patch.setattr(certs.Authority, "revoke", kill)
        with pytest.raises(KilledError):
            certs.change(authority, tmp_path / "killed", ["a"], renew=True)
    lost = kit.party_key(tmp_path / "killed" / "a", "a").public_key()
    certs.change(authority, tmp_path / "new", ["a"], renew=True)
    coordinator = tmp_path / "new" / "coordinator"
    shutil.copy(kits / "coordinator" / "ca.crt", coordinator)
    gone = kit.revoked(coordinator, certs.Authority.load(authority).certificate)
    first, now = (
        kit.party_key(folder / "a", "a").public_key() for folder in (kits, tmp_path / "new")
    )
    assert {kit.serial_of(lost), kit.serial_of(first)} <= gone
    assert kit.serial_of(now) not in gone
    assert Enrolment.load(coordinator) == Credentials.load(tmp_path / "new" / "a").enrolment


def test_a_restored_list_of_revoked_keys_readmits_no_one(made, tmp_path, caplog):
    """The attack: the authority's folder is restored from before a revocation, so that its next
    list lacks a party that was shut out since.
    """
    authority, kits = made
    coordinator, copy = kits / "coordinator", tmp_path / "copy"
    shutil.copytree(authority, copy)
    certs.change(authority, tmp_path / "gone", ["a"], renew=False)
    shutil.copy(tmp_path / "gone" / "coordinator" / kit.REVOKED, coordinator)
    assert set(kit.registered(coordinator, NAMES)) == {"b", "c", "d"}
    certs.change(copy, tmp_path / "later", ["b"], renew=False)
    older = tmp_path / "later" / "coordinator" / kit.REVOKED
    top = certs.Authority.load(copy).certificate
    assert kit.serial_of(kit.party_key(kits / "a", "a").public_key()) not in kit.revoked(
        older.parent, top
    )
    shutil.copy(older, coordinator)
    kit._noted.clear()  # the coordinator is started again
    assert set(kit.registered(coordinator, NAMES)) == {"c", "d"}
    assert "lacks 1 revoked certificates, which stay shut out" in caplog.text
    (coordinator / kit.REVOKED).unlink()
    assert set(kit.registered(coordinator, NAMES)) == {"c", "d"}
    (coordinator / kit.EVER_REVOKED).write_text("{")
    with pytest.raises(RefusedError, match="is damaged"):
        kit.registered(coordinator, NAMES)


def test_a_kit_that_is_only_read_keeps_what_was_revoked_while_the_coordinator_runs(
    made, tmp_path, monkeypatch
):
    authority, kits = made
    coordinator = kits / "coordinator"

    def full(*given):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(kit, "write_json", full)
    certs.change(authority, tmp_path / "gone", ["a"], renew=False)
    shutil.copy(tmp_path / "gone" / "coordinator" / kit.REVOKED, coordinator)
    for _ in range(2):
        assert set(kit.registered(coordinator, NAMES)) == {"b", "c", "d"}
        (coordinator / kit.REVOKED).unlink(missing_ok=True)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "older"])
def test_an_authority_whose_list_of_revoked_keys_is_older_revokes_them_again(made, tmp_path, lost):
    """Part of its folder is restored: the list of parties says who is shut out, or has new keys."""
    authority, kits = made
    certs.change(authority, tmp_path / "first", ["d"], renew=False)
    before = (authority / kit.REVOKED).read_bytes()
    certs.change(authority, tmp_path / "second", ["a"], renew=False)
    certs.change(authority, tmp_path / "third", ["b"], renew=True)
    if lost:
        (authority / kit.REVOKED).unlink()
    else:
        (authority / kit.REVOKED).write_bytes(before)
    with pytest.raises(DataError, match="was shut out"):
        certs.extend(authority, tmp_path / "longer", ["a"], 9)
    certs.change(authority, tmp_path / "last", ["c"], renew=False)
    top = certs.Authority.load(authority).certificate
    keys = {name: kit.party_key(kits / name, name).public_key() for name in NAMES}
    now = kit.party_key(tmp_path / "third" / "b", "b").public_key()
    gone = kit.revoked(tmp_path / "last" / "coordinator", top)
    assert {kit.serial_of(key) for key in keys.values()} <= gone
    assert kit.serial_of(now) not in gone
