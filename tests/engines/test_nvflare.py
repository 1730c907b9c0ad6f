"""NVFlare as a carrier: real processes on loopback that echo, are killed, come back and are refused."""

import contextlib
import datetime
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedunseen.core.errors import ConnectionLost, FedUnseenError, MissingDependencyError, RefusedError
from fedunseen.engines.carriers import nvflare as engine
from fedunseen.engines.carriers.nvflare.workspace import JOB, submission, write_job
from fedunseen.engines.remote.link import Host, Join, Simulate
from fedunseen.engines.remote.requests import exchange
from processes import GUARD, free_port, until

pytestmark = pytest.mark.slow

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

HERE = "127.0.0.1"
COORDINATOR = """
    import sys, time
    from pathlib import Path
    from fedunseen.engines.carriers import nvflare as engine
    from fedunseen.engines.remote.link import Host
    from fedunseen.engines.remote.requests import exchange
    folder, port, kit = sys.argv[1:]
    with engine.host(Host(Path(folder), "127.0.0.1", int(port), Path(kit), ("a",))) as link:
        while True:
            for name, answer in exchange(link, {"a": b"hello"}, 300):
                print(name, answer, flush=True)
            time.sleep(0.2)
"""
PARTY = """
    import sys, threading, time
    from pathlib import Path
    from fedunseen.engines.carriers import nvflare as engine
    from fedunseen.engines.remote.link import Join
    folder, port, kit, name = sys.argv[1:]
    done = threading.Event()
    def answer(message):
        if message == b"end":
            done.set()
        if message.startswith(b"slow"):
            time.sleep(3600)
        return message
    where = Join(Path(folder), "127.0.0.1", int(port), Path(kit) if kit else None, name, 300.0)
    engine.join(where, answer, done)
"""


def engines(folder, module=""):
    """The processes of NVFlare, without their keepers, that work in a folder and run a module."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = entry.read_bytes().split(b"\0")
            words = [word for word in command[1:] if word != b"-u"]  # after the interpreter
            if str(folder).encode() in b" ".join(words) and words[0] == b"-m" and module.encode() in words[1]:
                found.append(int(entry.parent.name))
    return found


def program(code, *arguments, **how):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, **how)


@contextlib.contextmanager
def ended(processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def joined(folder, port, kit, name, patience=GUARD, answer=lambda message: message):
    """A party in a thread of this process; its outcome, how to end it and the thread."""
    done, outcome = threading.Event(), []

    def work():
        try:
            engine.join(Join(folder, HERE, port, kit, name, patience), answer, done)
            outcome.append("done")
        except FedUnseenError as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return outcome, done, thread


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    out = tmp_path_factory.mktemp("kits") / "made"
    engine.certificates(out, HERE, ["a", "b", "stranger"], 30)
    return out


@pytest.mark.parametrize("tls", [True, False])
def test_messages_pass_and_a_killed_party_is_missed_and_let_in_again(tmp_path, kits, tls):
    port = free_port()

    def party(name):
        return program(PARTY, tmp_path / name, port, kits / name if tls else "", name)

    parties = {name: party(name) for name in ("a", "b")}
    with (
        ended(parties.values()),
        engine.host(Host(tmp_path / "c", HERE, port, kits / "coordinator" if tls else None, ("a", "b"))) as link,
    ):
        until(lambda: len(link.present()) == 2)
        messages = {"a": os.urandom(3_000_000), "b": b""}
        assert dict(exchange(link, messages, GUARD)) == messages
        before = dict(link.present())
        threading.Timer(0.3, parties["b"].kill).start()
        begun = time.monotonic()
        assert dict(exchange(link, {"a": b"1", "b": b"slow"}, GUARD)) == {"a": b"1", "b": None}
        assert time.monotonic() - begun < GUARD  # no one waited until the exchange was over
        until(lambda: "b" not in link.present())
        assert dict(exchange(link, {"a": b"2", "b": b"2"}, GUARD)) == {"a": b"2", "b": None}
        parties["b"].wait()
        parties["b"] = party("b")
        until(lambda: "b" in link.present())
        assert link.present()["b"] != before["b"]
        assert link.present()["a"] == before["a"]
        assert dict(exchange(link, {"a": b"3", "b": b"3"}, GUARD)) == {"a": b"3", "b": b"3"}
        assert dict(exchange(link, {"a": b"end", "b": b"end"}, GUARD)) == {"a": b"end", "b": b"end"}
        for process in parties.values():
            assert process.wait(GUARD) == 0
    until(lambda: not engines(tmp_path))


def test_processes_of_nvflare_that_die_are_replaced(tmp_path, kits):
    port = free_port()
    with engine.host(Host(tmp_path / "c", HERE, port, kits / "coordinator", ("a", "b"))) as link:
        outcome, done, thread = joined(tmp_path / "a", port, kits / "a", "a")
        until(lambda: link.present())
        tokens = dict(link.present())
        for side, module in (
            ("a", "client_train"),
            ("c", "server_train"),
            ("a", "worker_process"),
            ("c", "runner_process"),
        ):
            for process in engines(tmp_path / side, module):
                os.kill(process, signal.SIGKILL)
            until(lambda: not link.present())
            until(lambda: dict(link.present()) == tokens)
            assert dict(exchange(link, {"a": b"hello"}, GUARD)) == {"a": b"hello"}
    assert not outcome
    done.set()
    thread.join(GUARD)
    assert outcome == ["done"]


def test_a_killed_coordinator_that_starts_again_is_found(tmp_path, kits):
    port, end, answered = free_port(), threading.Event(), threading.Event()

    def answer(message):
        answered.set()
        if end.is_set():
            done.set()
        return message

    outcome, done, thread = joined(tmp_path / "a", port, kits / "a", "a", GUARD, answer)
    arguments = (tmp_path / "c", port, kits / "coordinator")
    first = program(COORDINATOR, *arguments, stdout=subprocess.DEVNULL)
    with ended([first]):
        until(answered.is_set)
    until(lambda: not engines(tmp_path / "c"))
    answered.clear()
    second = program(COORDINATOR, *arguments, stdout=subprocess.PIPE, text=True)
    with ended([second]):
        until(answered.is_set)
        end.set()
        thread.join(GUARD)
        assert outcome == ["done"]
        assert "a b'hello'\n" in iter(second.stdout.readline, "")
    until(lambda: not engines(tmp_path))


def test_of_two_parties_of_one_name_the_first_is_told(tmp_path, kits):
    port = free_port()
    with engine.host(Host(tmp_path / "c", HERE, port, kits / "coordinator", ("a",))) as link:
        first, _, thread = joined(tmp_path / "first", port, kits / "a", "a")
        until(lambda: link.present())
        token = link.present()["a"]
        _, done, _ = joined(tmp_path / "second", port, kits / "a", "a", answer=lambda message: done.set() or b"second")
        until(lambda: first)
        thread.join(GUARD)
        assert "another party has joined as 'a' since" in str(first[0])
        until(lambda: link.present().get("a") not in (None, token))
        until(lambda: dict(exchange(link, {"a": b"who?"}, GUARD)) == {"a": b"second"})


def refused(folder, port, kit, name="a", address=HERE):
    with pytest.raises(RefusedError) as error:
        engine.join(Join(folder, address, port, kit, name, 0.5), lambda message: message, threading.Event())
    return str(error.value)


def test_who_does_not_belong_is_refused(tmp_path, kits, monkeypatch):
    import nvflare.lighter.utils as lighter

    engine.certificates(tmp_path / "foreign", HERE, ["a"], 30)
    past = SimpleNamespace(now=lambda zone: datetime.datetime.now(zone) - datetime.timedelta(days=9))
    then = SimpleNamespace(datetime=past, timezone=datetime.timezone, timedelta=datetime.timedelta)
    with monkeypatch.context() as patch:
        patch.setattr(lighter, "datetime", then)
        engine.certificates(tmp_path / "old", HERE, ["a"], 5)
    port, folder = free_port(), tmp_path / "party"
    mixed = shutil.copytree(kits / "a", tmp_path / "mixed")
    assert "not today; make a new kit" in refused(folder, port, tmp_path / "old" / "a")
    assert "is for party 'b', not 'a'" in refused(folder, port, kits / "b")
    assert "has no client.key" in refused(folder, port, tmp_path)
    with engine.host(Host(tmp_path / "c", HERE, port, kits / "coordinator", ("a", "b"))) as link:
        assert "unable to get local issuer" in refused(folder, port, tmp_path / "foreign" / "a")
        for name in ("client.crt", "client.key"):
            shutil.copy(tmp_path / "foreign" / "a" / name, mixed / name)
        assert "refuses a connection with the certificate" in refused(folder, port, mixed)
        assert "not valid for 'localhost'" in refused(folder, port, kits / "a", address="localhost")
        assert "is not a coordinator without TLS" in refused(folder, port, None)
        assert "knows no party 'stranger'" in refused(folder, port, kits / "stranger", "stranger")
        assert not link.present()
        with (
            pytest.raises(ConnectionLost, match="Address already in use"),
            engine.host(Host(tmp_path / "c2", HERE, port, kits / "coordinator", ("a", "b"))),
        ):
            pass
    with engine.host(Host(tmp_path / "c", HERE, port, None, ("a",))):
        assert "TLS on both sides or on neither" in refused(folder, port, kits / "a")


def test_nobody_at_the_address(tmp_path, caplog):
    with pytest.raises(ConnectionLost, match=r"no coordinator answers at 127\.0\.0\.1:1 "):
        engine.join(Join(tmp_path, HERE, 1, None, "a", 1.0), lambda message: message, threading.Event())
    assert re.match(r"waiting for the coordinator at 127\.0\.0\.1:1: ", caplog.messages[0])


@pytest.mark.parametrize(("met", "error"), [(True, ConnectionLost), (False, RefusedError)])
def test_who_hangs_up_is_waited_for(met, error, tmp_path, monkeypatch):
    """As a proxy does before a coordinator that starts again. Where none was there yet it may be a refusal."""
    probes = []

    def probe(place):
        probes.append(place)
        raise engine._Cut("what listens there is no coordinator")

    monkeypatch.setattr(engine, "_probe", probe)
    site = engine._Site(Join(tmp_path, HERE, 1, None, "a", 1.5), tmp_path, SimpleNamespace(environment={}))
    site.met, begun = met, time.monotonic()

    def wait():
        while True:
            site.look()

    with pytest.raises(error, match=r"\(it hangs up\)" if met else "no coordinator"):
        wait()
    assert time.monotonic() - begun > 1.4
    assert len(probes) > 2


def test_the_coordinator_listens_at_its_address_alone(tmp_path, kits):
    port = free_port()
    with engine.host(Host(tmp_path / "c", "127.0.0.2", port, None, ("a",))):

        def listening():
            lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
            places = [line.split()[1] for line in lines if " 0A " in line]
            return [place[:-5] for place in places if place.endswith(f":{port:04X}")]

        until(listening)
        assert [place[-8:] for place in listening()] == ["0200007F"]  # not 00000000, which is everywhere


def test_a_party_builds_no_other_class_and_takes_no_code(tmp_path, kits):
    port, folder = free_port(), tmp_path / "a" / "nvflare"

    def said(folder):
        return "".join(path.read_text() for path in folder.rglob("log.txt"))

    with engine.host(Host(tmp_path / "c", HERE, port, kits / "coordinator", ("a",))) as link:
        outcome, done, thread = joined(tmp_path / "a", port, kits / "a", "a")
        until(lambda: link.present())
        for executor, code in (("nvflare.app_common.np.np_trainer.NPTrainer", ""), (f"{JOB}.Party", "import os")):
            meta, _ = submission(str(uuid.uuid4()), ["a"])
            job = tmp_path / "job"
            write_job(job / "fedunseen", (f"{JOB}.Coordinator", {}), (executor, {}))
            if code:  # for the site alone: the server refuses it too
                shutil.copytree(job / "fedunseen" / "app", job / "fedunseen" / "plain")
                meta["deploy_map"] = {"plain": ["server"], "app": ["a"]}
                (job / "fedunseen" / "app" / "custom").mkdir()
                (job / "fedunseen" / "app" / "custom" / "own.py").write_text(code)
            archive = shutil.make_archive(str(tmp_path / "archive"), "zip", job)
            link.registry.send(meta, Path(archive).read_bytes())
            why = "BYOC not permitted" if code else "is not in allow_list"
            until(lambda why=why: why in said(tmp_path))
        assert not list(folder.rglob("own.py"))
    done.set()
    thread.join(GUARD)
    assert outcome == ["done"]


def test_a_simulation_answers_and_survives_the_death_of_a_process(tmp_path, monkeypatch):
    text = """
        import os

        def make(argument):
            def answer(party, message):
                if message == b"die":
                    os._exit(3)
                return f"{argument} {party} {os.getpid()} ".encode() + message
            return answer
    """
    (tmp_path / "echo_factory.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    with engine.simulate(Simulate(tmp_path / "s", 3, 2, importlib.import_module("echo_factory").make, "told")) as link:
        until(lambda: link.present())
        before = dict(link.present())
        assert list(before) == ["0", "1", "2"]
        assert dict(exchange(link, dict.fromkeys("012", b"given up"), 0.0)) == dict.fromkeys("012")
        body = os.urandom(2_000_000)
        answers = dict(exchange(link, dict.fromkeys("012", body), GUARD))
        assert {name: answer.split(b" ", 3)[:2] for name, answer in answers.items()} == {
            name: [b"told", name.encode()] for name in "012"
        }
        assert all(answer.endswith(body) for answer in answers.values())
        assert len({answer.split(b" ", 3)[2] for answer in answers.values()}) == 2
        assert dict(exchange(link, {"0": b"die"}, GUARD)) == {"0": None}
        until(lambda: link.present() and link.present() != before)
        assert dict(exchange(link, {"0": b"hello"}, GUARD))["0"].endswith(b"hello")


def test_certificates(tmp_path):
    out = tmp_path / "out"
    engine.certificates(out, "coordinator.example.org", ["north", "south"], 3)
    assert sorted(entry.name for entry in out.iterdir()) == ["coordinator", "north", "south"]
    for key in ("coordinator/server.key", "north/client.key", "south/client.key"):
        assert (out / key).stat().st_mode & 0o777 == 0o600
    assert '"parties"' in (out / "coordinator" / "parties.json").read_text()
    assert '"name": "north"' in (out / "north" / "party.json").read_text()
    with pytest.raises(FedUnseenError, match="is not an empty folder: name another with --out"):
        engine.certificates(out, HERE, ["a"], 3)
    for names in (["coordinator"], ["no spaces"], ["a.b"], [""]):
        with pytest.raises(FedUnseenError):
            engine.certificates(tmp_path / "bad", HERE, names, 3)
    assert not (tmp_path / "bad").exists()


def test_without_nvflare_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("fedunseen.engines.carriers.nvflare.kit.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fedunseen\[nvflare\]'"):
        engine.certificates(tmp_path / "out", HERE, ["a"], 3)
