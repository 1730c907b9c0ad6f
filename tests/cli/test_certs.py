"""``fedunseen certs``: what it makes and changes later, what it refuses. At work:
tests/engines/test_websocket.py.
"""

import json
import shutil
import stat

import pytest

from fedunseen.deploy import websocket
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

from cryptography.x509 import load_pem_x509_certificate

from fedunseen.deploy.certs import Authority, revoked
from fedunseen.deploy.websocket import kit


@pytest.mark.slow
def test_each_list_has_all_that_hold_no_more_and_what_cannot_be_is_said(works, refused, tmp_path):
    signer, kits, new = tmp_path / "authority", tmp_path / "kits", ("--out", tmp_path / "new")
    done = works("certs", "--parties", "a,b", "--out", kits, "--authority", signer)
    assert f"authority (for no one who runs the coordinator): {signer}" in done.err
    assert {stat.S_IMODE(path.stat().st_mode) for path in kits.rglob("*.key")} == {0o600}
    said = refused("certs", "renew", "--new-keys", "c", "--authority", signer, *new)
    assert said == f"{signer} has signed nothing for 'c': it knows a, b"
    said = refused("certs", "renew", "--new-keys", "a", "--authority", kits, *new)
    assert said.startswith(f"{kits} is not an authority's folder")
    assert not (tmp_path / "new").exists()
    before = Authority.load(signer)
    assert stat.S_IMODE((signer / "authority.key").stat().st_mode) == 0o600
    works("certs", "renew", "--new-keys", "b", "--authority", signer, "--out", tmp_path / "one")
    works("certs", "revoke", "a", "--authority", signer, "--out", tmp_path / "two")
    after = Authority.load(signer)
    assert [len(serials) for serials in after.issued.values()] == [1, 2]
    first, second = (
        revoked(tmp_path / name / "coordinator", after.certificate) for name in ("one", "two")
    )
    assert first == set(before.issued["b"])
    assert second == {*first, *before.issued["a"]}
    files = {
        str(path.relative_to(tmp_path))
        for name in ("one", "two")
        for path in (tmp_path / name).rglob("*.*")
    }
    kit = ("ca.crt", "node.crt", "node.key", "party.json", "federation.json", "secagg.key")
    new = {f"one/b/{name}" for name in kit}
    lists = {
        f"{name}/coordinator/{file}"
        for name in ("one", "two")
        for file in ("revoked.pem", "federation.json")
    }
    assert files == {*new, *lists, "one/coordinator/b.pub", "one/coordinator/b.crt"}
    enrolled = [
        Enrolment.load(tmp_path / name) for name in ("kits/coordinator", "one/b", "two/coordinator")
    ]
    assert [(one.serial, one.names) for one in enrolled] == [
        (1, ["a", "b"]),
        (2, ["a", "b"]),
        (3, ["b"]),
    ]
    assert len({one.authority for one in enrolled}) == 1
    assert Credentials.load(tmp_path / "kits" / "a").enrolment == enrolled[0]
    (signer / "federation.key").write_text("no key")
    said = (
        f"{signer / 'federation.key'} is missing or damaged: the list of parties cannot be changed"
    )
    assert (
        refused(
            "certs", "renew", "--new-keys", "b", "--authority", signer, "--out", tmp_path / "three"
        )
        == said
    )
    assert (Authority.load(signer).issued, (tmp_path / "three").exists()) == (after.issued, False)


@pytest.mark.slow
def test_who_may_send_which_class_is_signed_and_changed_by_the_authority(works, refused, tmp_path):
    signer, kits = tmp_path / "authority", tmp_path / "kits"
    given = ("--classes", 'north=wolf, "fox, red"', "--classes", "south=seal")
    more = ("--classes", "north=bear")  # a party may be named twice
    words = ("certs", "--parties", "north,south", "--out", kits, "--authority", signer)
    works(*words, *given, *more)
    fixed = {"north": ("bear", "fox, red", "wolf"), "south": ("seal",)}
    for name in ("north", "south", "coordinator"):
        assert Enrolment.load(kits / name).classes == fixed

    def changed(out, *words):
        works("certs", *words, "--authority", signer, "--out", tmp_path / out)
        return Enrolment.load(tmp_path / out / "coordinator")

    newer = changed("two", *given[:2], "--classes", "south=seal,wolf")
    assert newer.classes == {"north": ("fox, red", "wolf"), "south": ("seal", "wolf")}
    assert newer.serial == 2
    assert not (tmp_path / "two" / "north").exists()  # keys stay
    assert changed("three", "renew", "--new-keys", "south").classes == newer.classes
    assert changed("four", "revoke", "north").classes == {"south": ("seal", "wolf")}


@pytest.mark.parametrize(
    ("classes", "why"),
    [
        (["north=wolf"], "'south' is given no classes, and every party or none must be"),
        (["north=wolf", "south=seal", "west=x"], "classes are given to 'west', which is not"),
        (["north=wolf", "south="], "the classes of 'south' are not a list of names"),
        (["north=wolf", "south=seal,seal"], "a class of 'south' is named twice"),
        (["north=wolf", "seal"], "--classes seal: write PARTY=CLASS,CLASS"),
        (["north=wolf", 'south="seal'], '--classes south="seal: write PARTY=CLASS,CLASS'),
    ],
)
def test_classes_that_cannot_be_signed_are_refused(classes, why, refused, tmp_path):
    given = [word for one in classes for word in ("--classes", one)]
    kits = tmp_path / "kits"
    assert why in refused("certs", "--parties", "north,south", "--out", kits, *given)
    assert not kits.exists()


def test_without_its_libraries_it_names_the_extra(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(
        websocket, "find_spec", lambda library: None if library == "cryptography" else library
    )
    said = refused("certs", "--parties", "a,b", "--out", tmp_path / "kits")
    assert said == "engine 'websocket' needs cryptography: pip install 'fedunseen[masked]'"


@pytest.fixture
def signer(works, tmp_path):
    works("certs", "--parties", "a,b,c", "--out", tmp_path / "kits", "--authority", tmp_path / "authority",
          "--days", 40)  # fmt: skip
    return tmp_path / "authority"


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*.*")}


@pytest.mark.slow
def test_a_later_end_changes_no_key_and_writes_no_secret(works, refused, signer, tmp_path):
    words = ("certs", "renew", "--authority", signer)
    works("certs", "revoke", "c", "--authority", signer, "--out", tmp_path / "gone")
    works(*words, "--days", 400, "--out", tmp_path / "all")
    assert files_of(tmp_path / "all") == {
        "coordinator/server.crt", "coordinator/ca.crt", "coordinator/a.crt", "coordinator/a.pub",
        "coordinator/b.crt", "coordinator/b.pub", "a/ca.crt", "a/node.crt", "b/ca.crt", "b/node.crt",
    }  # fmt: skip
    for name in ("a", "b"):
        old, new = (
            load_pem_x509_certificate((tmp_path / folder / name / "node.crt").read_bytes())
            for folder in ("kits", "all")
        )
        assert new.public_key() == old.public_key()
        assert (new.not_valid_after_utc - old.not_valid_after_utc).days == 360
        assert new.serial_number == old.serial_number
    works(*words, "a", "coordinator", "--out", tmp_path / "two")
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"a", "coordinator"}
    said = refused(*words, "c", "--out", tmp_path / "three")
    assert said.startswith(f"'c' is not in {signer}, or was shut out")
    (signer / "signed" / "b.crt").unlink()
    assert "an earlier version has kept no certificates" in refused(
        *words, "--out", tmp_path / "three"
    )
    assert not (tmp_path / "three").exists()


@pytest.mark.slow
def test_a_party_that_makes_its_own_keys_is_signed_or_added(works, refused, signer, tmp_path):
    lists = tmp_path / "signed"
    done = works("certs", "request", "--name", "b", "--out", tmp_path / "b")
    digest = next(line for line in done.err.splitlines() if line.startswith("digest: "))[8:47]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "b").glob("*.key")} == {0o600}
    request = tmp_path / "b" / "b.request"
    assert not any(secret in request.read_text() for secret in secrets_of(tmp_path / "b"))
    done = works("certs", "sign", request, "--authority", signer, "--out", lists)
    assert digest in done.err
    assert files_of(lists / "b") == {"ca.crt", "node.crt", "federation.json"}
    for file in (lists / "b").iterdir():
        shutil.copy(file, tmp_path / "b")
    own = Credentials.load(tmp_path / "b")
    assert (own.name, own.enrolment.serial) == ("b", 2)
    assert kit.party_key(tmp_path / "b", "b").public_key() == kit.registered(
        copied(lists, tmp_path / "kits"), ["a", "b", "c"]
    ).get("b")
    # the same request again, as after a command that was killed, or a folder that was lost
    works("certs", "sign", request, "--authority", signer, "--out", tmp_path / "again")
    assert files_of(tmp_path / "again" / "b") == files_of(lists / "b")
    key = kit.party_key(tmp_path / "b", "b").public_key()
    top = Authority.load(signer).certificate
    assert kit.serial_of(key) not in revoked(signer, top)
    works("certs", "request", "--name", "d", "--out", tmp_path / "d")
    words = ("--authority", signer, "--out", tmp_path / "added")
    said = refused("certs", "sign", tmp_path / "d" / "d.request", *words)
    assert "has signed nothing for 'd'" in said
    said = refused("certs", "add", "e", "--request", tmp_path / "d" / "d.request", *words)
    assert "is the request of 'd', not of 'e'" in said
    assert not (tmp_path / "added").exists()
    works("certs", "add", "d", "--request", tmp_path / "d" / "d.request", *words)
    parties = json.loads((tmp_path / "added" / "coordinator" / "parties.json").read_text())
    assert parties == {"parties": ["a", "b", "c", "d"]}
    enrolled = Enrolment.load(tmp_path / "added" / "d")
    assert (enrolled.serial, enrolled.names) == (4, ["a", "b", "c", "d"])
    kept = sorted(path.name for path in (signer / "versions").iterdir())
    assert kept == ["000001.json", "000002.json", "000003.json"]  # the versions before
    said = refused("certs", "add", "d", "--authority", signer, "--out", tmp_path / "twice")
    assert "has signed for 'd' before: choose another name" in said
    said = refused("certs", "add", "D", "--authority", signer, "--out", tmp_path / "twice")
    assert "has signed for 'D' before: choose another name" in said
    said = refused("certs", "request", "--name", "Server", "--out", tmp_path / "server")
    assert "none of coordinator, ca, server" in said
    assert not (tmp_path / "twice").exists()
    assert not (tmp_path / "server").exists()
    works("certs", "add", "e", "--authority", signer, "--out", tmp_path / "made")
    assert Credentials.load(tmp_path / "made" / "e").enrolment.serial == 5


def secrets_of(folder):
    tree = json.loads((folder / "secagg.key").read_text())
    return [tree["ed25519"], tree["x25519"], (folder / "node.key").read_text().splitlines()[1]]


def copied(lists, kits):
    return shutil.copytree(lists / "coordinator", kits / "coordinator", dirs_exist_ok=True)


@pytest.mark.parametrize("change", ["name", "ed25519", "tls", "signature"])
def test_a_request_that_was_changed_on_its_way_is_refused(change, works, refused, signer, tmp_path):
    for name in ("b", "c"):
        works("certs", "request", "--name", name, "--out", tmp_path / name)
    tree, other = (
        json.loads((tmp_path / name / f"{name}.request").read_text()) for name in ("b", "c")
    )
    (tmp_path / "changed").write_text(json.dumps({**tree, change: other[change]}))
    said = refused(
        "certs", "sign", tmp_path / "changed", "--authority", signer, "--out", tmp_path / "new"
    )
    assert "it is not signed by its own key" in said
    assert not (tmp_path / "new").exists()


def test_a_party_is_added_with_its_classes_where_they_are_fixed(works, refused, tmp_path):
    signer, given = tmp_path / "authority", ("--classes", "a=wolf", "--classes", "b=seal")
    works("certs", "--parties", "a,b", "--out", tmp_path / "kits", "--authority", signer, *given)
    words = ("certs", "add", "c", "--authority", signer, "--out", tmp_path / "new")
    assert "'c' is given no classes, and every party or none must be" in refused(*words)
    assert not (tmp_path / "new").exists()
    works(*words, "--classes", "c=bear")
    classes = {"a": ("wolf",), "b": ("seal",), "c": ("bear",)}
    assert Enrolment.load(tmp_path / "new" / "c").classes == classes
