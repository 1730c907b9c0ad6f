"""``fedunseen certs``: what it makes and changes later, what it refuses. At work:
tests/engines/test_websocket.py.
"""

import stat

import pytest

from fedunseen.deploy import websocket
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

from fedunseen.deploy.certs import Authority, revoked


def test_each_list_has_all_that_hold_no_more_and_what_cannot_be_is_said(works, refused, tmp_path):
    signer, kits, new = tmp_path / "authority", tmp_path / "kits", ("--out", tmp_path / "new")
    done = works("certs", "--parties", "a,b", "--out", kits, "--authority", signer)
    assert f"authority (for no one who runs the coordinator): {signer}" in done.err
    assert {stat.S_IMODE(path.stat().st_mode) for path in kits.rglob("*.key")} == {0o600}
    said = refused("certs", "--renew", "c", "--authority", signer, *new)
    assert said == f"{signer} has signed nothing for 'c': it knows a, b"
    said = refused("certs", "--renew", "a", "--authority", kits, *new)
    assert said.startswith(f"{kits} is not an authority's folder")
    assert not (tmp_path / "new").exists()
    before = Authority.load(signer)
    assert stat.S_IMODE((signer / "authority.key").stat().st_mode) == 0o600
    works("certs", "--authority", signer, "--renew", "b", "--out", tmp_path / "one")
    works("certs", "--authority", signer, "--revoke", "a", "--out", tmp_path / "two")
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
        refused("certs", "--renew", "b", "--authority", signer, "--out", tmp_path / "three") == said
    )
    assert (Authority.load(signer).issued, (tmp_path / "three").exists()) == (after.issued, False)


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
        works("certs", "--authority", signer, "--out", tmp_path / out, *words)
        return Enrolment.load(tmp_path / out / "coordinator")

    newer = changed("two", *given[:2], "--classes", "south=seal,wolf")
    assert newer.classes == {"north": ("fox, red", "wolf"), "south": ("seal", "wolf")}
    assert newer.serial == 2
    assert not (tmp_path / "two" / "north").exists()  # keys stay
    assert changed("three", "--renew", "south").classes == newer.classes
    assert changed("four", "--revoke", "north").classes == {"south": ("seal", "wolf")}


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
