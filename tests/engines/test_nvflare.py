"""NVFlare carries the messages of `host` and `join`: what dies is replaced, who is let in, what a site never runs."""

import io
import os
import shutil
import signal
import threading
import time
import uuid
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from carried import Place, days_ago, working
from fedunseen.core.errors import ConnectionLost, FedUnseenError, MissingDependencyError, RefusedError
from fedunseen.engines.carriers import nvflare as engine
from fedunseen.engines.carriers.nvflare.workspace import JOB, submission
from fedunseen.engines.remote.link import Join, exchange
from processes import GUARD, until

pytestmark = pytest.mark.slow

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

NAMES = ("a", "b", "stranger")


@pytest.fixture
def place(tmp_path):
    made = Place("nvflare", tmp_path, NAMES)
    made.names = NAMES[:2]
    yield made
    made.end()


def test_processes_of_nvflare_that_die_are_replaced(place, tmp_path):
    runs = (("a", "client_train"), ("host", "server_train"), ("a", "worker_process"), ("host", "runner_process"))
    with place.hosting("a") as link:
        tokens = dict(link.present())
        for side, module in runs:
            for process in working(tmp_path / side, module):
                os.kill(process, signal.SIGKILL)
            until(lambda: not link.present())
            until(lambda: dict(link.present()) == tokens)
            assert dict(exchange(link, {"a": b"hello"}, GUARD)) == {"a": b"a:hello"}
    assert place.joined[0].thread.is_alive()  # it waits for another coordinator


def test_a_party_does_not_wait_for_a_coordinator_that_has_ended_to_take_its_last_answer(place, monkeypatch):
    monkeypatch.setattr(engine, "START", 10 * GUARD)
    asked, over = threading.Event(), threading.Event()

    def answer(message):
        asked.set()
        assert over.wait(GUARD)
        place.joined[0].done.set()
        return b"late"

    with place.hosting("a", answer) as link:
        link.ask("a", b"last")
        until(asked.is_set)
    over.set()
    assert place.joined[0].ended() is None


def test_of_two_parties_of_one_name_the_first_is_told(place):
    with place.host() as link:
        first = place.join("a", folder="first")
        until(link.present)
        token = link.present()["a"]
        place.join("a", lambda message: b"second", folder="second")
        assert "another party has joined as 'a' since" in str(first.ended())
        until(lambda: link.present().get("a") not in (None, token))
        until(lambda: dict(exchange(link, {"a": b"who?"}, GUARD)) == {"a": b"second"})


def test_who_does_not_belong_is_refused(place, tmp_path, monkeypatch):
    engine.certificates(tmp_path / "foreign", "127.0.0.1", ["a"], 30)
    with monkeypatch.context() as patch:
        patch.setattr("nvflare.lighter.utils.datetime", days_ago(9))
        engine.certificates(tmp_path / "old", "127.0.0.1", ["a"], 5)
    mixed = shutil.copytree(place.kit / "a", tmp_path / "mixed")
    assert "not today; make a new kit" in place.refused("a", kit=tmp_path / "old" / "a")
    assert "is for party 'b', not 'a'" in place.refused("a", kit=place.kit / "b")
    assert "has no client.key" in place.refused("a", kit=tmp_path)
    with place.host() as link:
        assert "unable to get local issuer" in place.refused("a", kit=tmp_path / "foreign" / "a")
        for name in ("client.crt", "client.key"):
            shutil.copy(tmp_path / "foreign" / "a" / name, mixed / name)
        assert "refuses a connection with the certificate" in place.refused("a", kit=mixed)
        assert "not valid for 'localhost'" in place.refused("a", address="localhost")
        assert "is not a coordinator without TLS" in place.refused("a", kit=None)
        assert "knows no party 'stranger'" in place.refused("stranger")
        assert not link.present()
        with pytest.raises(ConnectionLost, match="Address already in use"), place.host("another"):
            pass
    kit, place.kit = place.kit, None
    with place.host():
        assert "TLS on both sides or on neither" in place.refused("a", kit=kit / "a")


def test_nobody_at_the_address(place, caplog):
    where = f"127.0.0.1:{place.port} "
    assert place.refused("a", patience=1.0).startswith(f"ConnectionLost: no coordinator answers at {where}")
    assert caplog.messages[0].startswith(f"waiting for the coordinator at {where[:-1]}: ")


@pytest.mark.parametrize(("met", "error"), [(True, ConnectionLost), (False, RefusedError)])
def test_who_hangs_up_is_waited_for(met, error, tmp_path, monkeypatch):
    """As a proxy does before a coordinator that starts again. Where none was there yet it may be a refusal."""
    probe = Mock(side_effect=engine._Cut("what listens there is no coordinator"))
    monkeypatch.setattr(engine, "_probe", probe)
    site = engine._Site(Join(tmp_path, "127.0.0.1", 1, None, "a", 1.5), tmp_path, SimpleNamespace(environment={}))
    site.met, begun = met, time.monotonic()

    def wait():
        while True:
            site.look()

    with pytest.raises(error, match=r"\(it hangs up\)" if met else "no coordinator"):
        wait()
    assert time.monotonic() - begun > 1.4
    assert probe.call_count > 2


def test_a_party_whose_last_answer_is_not_confirmed_says_so_and_does_not_look_for_its_coordinator(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(engine, "_probe", lambda place: None)
    monkeypatch.setattr(engine, "QUIET", 0.0)
    site = engine._Site(Join(tmp_path, "127.0.0.1", 1, None, "a", 1.5), tmp_path, SimpleNamespace(environment={}))
    site.child = SimpleNamespace(status=None)  # it runs
    assert site.closing()
    assert site.closing()
    assert [record.getMessage() for record in caplog.records] == [
        "the run is over; up to 60 s are left for the coordinator to confirm the last answer"
    ]
    monkeypatch.setattr(engine, "_probe", Mock(side_effect=OSError("Connection refused")))
    assert not site.closing()


def test_the_coordinator_listens_at_its_address_alone(tmp_path):
    place = Place("nvflare", tmp_path, ("a",), secure=False)
    with place.host(address="127.0.0.2"):

        def listening():
            lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
            places = [line.split()[1].split(":") for line in lines if " 0A " in line]
            return [host[-8:] for host, port in places if port == f"{place.port:04X}"]

        until(listening)
        assert listening() == ["0200007F"]  # not 00000000, which is everywhere


def test_a_party_builds_no_other_class_and_takes_no_code(place, tmp_path):
    def said():
        return "".join(path.read_text() for path in tmp_path.rglob("log.txt"))

    with place.hosting("a") as link:
        for executor, code in (("nvflare.app_common.np.np_trainer.NPTrainer", ""), (f"{JOB}.Party", "import os")):
            meta, archive = submission(str(uuid.uuid4()), ["a"])
            zipfile.ZipFile(io.BytesIO(archive)).extractall(tmp_path / "job")
            job = tmp_path / "job" / "fedunseen" / "app"
            config = job / "config" / "config_fed_client.json"
            config.write_text(config.read_text().replace(f"{JOB}.Party", executor))
            if code:  # for the site alone: the server refuses it too
                shutil.copytree(job, job.with_name("plain"))
                meta["deploy_map"] = {"plain": ["server"], "app": ["a"]}
                (job / "custom").mkdir()
                (job / "custom" / "own.py").write_text(code)
            changed = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "job")
            link.registry.send(meta, Path(changed).read_bytes())
            why = "BYOC not permitted" if code else "is not in allow_list"
            until(lambda why=why: why in said())
        assert not list((tmp_path / "a").rglob("own.py"))


@pytest.mark.parametrize("name", ["coordinator", "no spaces", "a.b", "", "fed.example.org"])
def test_a_name_that_nvflare_takes_for_something_else_is_refused(name, tmp_path):
    with pytest.raises(FedUnseenError, match="a party cannot be named"):
        engine.certificates(tmp_path / "bad", "fed.example.org", [name], 3)
    assert not (tmp_path / "bad").exists()


def test_without_nvflare_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("fedunseen.engines.carriers.nvflare.kit.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fedunseen\[nvflare\]'"):
        engine.certificates(tmp_path / "out", "127.0.0.1", ["a"], 3)
