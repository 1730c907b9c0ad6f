"""``fedunseen certs``: what it makes and changes later, what it refuses. At work: tests/engines/test_websocket.py."""

import json
import stat

import pytest

from fedunseen.engines.remote.authority import Authority, revoked
from fedunseen.secagg.enrolment import Credentials, Enrolment

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")


@pytest.fixture
def made(works, tmp_path):
    """Kits of two parties, and their authority."""
    done = works("certs", "--parties", "a,b", "--out", tmp_path / "kits", "--authority", tmp_path / "authority")
    assert f"authority (for no one who runs the coordinator): {tmp_path / 'authority'}" in done.err
    return tmp_path


def test_each_list_has_all_that_hold_no_more(made, works):
    signer = made / "authority"
    before = Authority.load(signer)
    assert stat.S_IMODE((signer / "authority.key").stat().st_mode) == 0o600
    works("certs", "--authority", signer, "--renew", "b", "--out", made / "one")
    works("certs", "--authority", signer, "--revoke", "a", "--out", made / "two")
    after = Authority.load(signer)
    assert [len(serials) for serials in after.issued.values()] == [1, 2]
    first, second = (revoked(made / name / "coordinator", after.certificate) for name in ("one", "two"))
    assert first == set(before.issued["b"])
    assert second == {*first, *before.issued["a"]}
    files = {str(path.relative_to(made)) for name in ("one", "two") for path in (made / name).rglob("*.*")}
    kit = ("ca.crt", "node.crt", "node.key", "party.json", "federation.json", "secagg.key")
    new = {f"one/b/{name}" for name in kit}
    lists = {f"{name}/coordinator/{file}" for name in ("one", "two") for file in ("revoked.pem", "federation.json")}
    assert files == {*new, *lists, "one/coordinator/b.pub", "one/coordinator/b.crt"}
    enrolled = [Enrolment.load(made / name) for name in ("kits/coordinator", "one/b", "two/coordinator")]
    assert [(one.serial, one.names) for one in enrolled] == [(1, ["a", "b"]), (2, ["a", "b"]), (3, ["b"])]
    assert len({one.authority for one in enrolled}) == 1
    assert Credentials.load(made / "kits" / "a").enrolment == enrolled[0]


def test_what_cannot_be_is_said_and_nothing_is_written(made, refused):
    signer, new = made / "authority", ("--out", made / "new")
    said = refused("certs", "--renew", "c", "--authority", signer, *new)
    assert said == f"{signer} has signed nothing for 'c': it knows a, b"
    said = refused("certs", "--renew", "a", "--authority", made / "kits", *new)
    assert said.startswith(f"{made / 'kits'} is not an authority's folder")
    assert not (made / "new").exists()
    assert json.loads((signer / "authority.json").read_text())["engine"] == "websocket"
