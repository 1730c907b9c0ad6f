"""The Flower app in a federation of Flower's own processes: TLS, authenticated nodes, signed apps,
a simulation.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from contract import check_audited, check_coordinator, check_home, check_log
from fedunseen.deploy.remote.link import PartyGone
from fedunseen.experiment.deal import deal
from fedunseen.experiment.running import run
from looks import looked_by_file
from processes import Machine, command, descendants, environment, free_port, until
from same import noted, same
from small_runs import CLOSED, experiment

pytest.importorskip("flwr", reason="`make test-flower` runs this")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ConfigRecord, RecordDict

from fedunseen.deploy.flower import app as module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc"),
]
APP = Path(__file__).parents[2] / "deploy" / "flower"
NAMES = ("north", "south", "west")
WORDS = " ".join(
    f"{key}={str(value).lower()}"
    for key, value in CLOSED.items()
    if not key.startswith("partition")
)


PATIENT = """
from flwr.common import constant

constant.HEARTBEAT_DEFAULT_INTERVAL = 600
"""
"""Flower starts a process again that says nothing in its first 30 seconds, and ends a run whose
process is silent for 60: on a busy machine none gets far."""


class Federation(Machine):
    """Flower's own processes in a folder; whatever still runs is killed at the end."""

    def __init__(self, folder, variables=None):
        super().__init__(folder)
        self.port, self.named = free_port(), {}
        self.environment = {
            **environment(), **(variables or {}), "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }  # fmt: skip
        (folder / "flwr").mkdir(parents=True)
        (folder / "patient").mkdir()
        (folder / "patient" / "sitecustomize.py").write_text(PATIENT)
        paths = str(folder / "patient"), self.environment["PYTHONPATH"]
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)

    def start(self, log, *line):
        with open(self.folder / f"{log}.log", "ab") as out:
            process = subprocess.Popen(
                [str(word) for word in line],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=out,
            )
        self.running.append(process)
        self.named[log] = process
        return process

    def end(self, name):
        below = descendants(self.named[name].pid)
        self.named[name].terminate()
        self.named[name].wait()
        self.kill(below)

    def kill(self, processes):
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def call(self, *line):
        assert self.ended(self.start("call", *line)) == 0, self.said("call.log")

    def connection(self, *lines):
        text = "\n".join(["[superlink]", 'default = "here"', "[superlink.here]", *lines])
        (self.folder / "flwr" / "config.toml").write_text(
            f'{text}\naddress = "127.0.0.1:{self.port}"\n'
        )

    def superlink(self, *more):
        place = (
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
            "--disable-runtime-dependency-installation",
        )
        self.start("superlink", "flower-superlink", *place, *more)
        self.until(
            lambda: "startup complete" in self.said("superlink.log"), self.named["superlink"]
        )

    def node(self, name, *more, **config):
        settings = {
            "name": name,
            "data": f"data/{name}",
            "state": f"state-{name}",
            "out": f"model-{name}",
        }
        # the sums of one process have all samples; runs in clear and under masks share them
        settings |= {"credentials": f"kits/{name}", "consent": "moments again", **config}
        text = " ".join(f'{key}="{value}"' for key, value in settings.items())
        keys = (
            "--root-certificates",
            f"kits/{name}/ca.crt",
            "--auth-supernode-private-key",
            f"kits/{name}/node.key",
        )
        place = (
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
            "--port",
            free_port(),
        )
        self.start(name, "flower-supernode", *place, *keys, "--node-config", text, *more)

    def run(self, out, preset="digit-pairs-gaussian", settings="", app=APP):
        words = f"{WORDS} {settings}".strip()
        config = {"experiment": preset, "out": out, "credentials": "kits/coordinator", "set": words}
        text = " ".join(f'{key}="{value}"' for key, value in config.items())
        return self.start(f"run-{out}", "flwr", "run", app, "here", "--stream", "-c", text)

    def finished(self, out):
        """Wait for the end of a run, and return its result."""
        self.ended(self.named[f"run-{out}"], self.named["superlink"])
        path = self.folder / out / "result.json"
        assert path.exists(), "\n".join(
            map(self.said, (f"run-{out}.log", *(f"{name}.log" for name in NAMES)))
        )
        return json.loads(path.read_bytes())

    def participants(self, out):
        """Wait for the end of a run of one round, and return the clients that took part."""
        self.finished(out)
        return json.loads((self.folder / out / "metrics.jsonl").read_text())["participants"]

    def stop(self):
        below = [pid for process in self.running for pid in descendants(process.pid)]
        super().stop()
        self.kill(below)


class Hub(http.server.BaseHTTPRequestHandler):
    """Flower's hub of apps, with one app and its signature: a path of its own for each."""

    app, signatures = b"", ()

    def do_POST(self):
        body = {
            "fab_url": f"http://{self.headers['host']}/fab",
            "verifications": list(self.signatures),
        }
        self.reply(json.dumps(body).encode())

    def do_GET(self):
        self.reply(self.app)

    def reply(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Three hospitals: data, credentials, experiments, and Flower's processes with TLS and
    authentication.
    """
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    folder = tmp_path_factory.mktemp("flower")
    made = Federation(folder, {"FLWR_SUPERGRID_API_URL": f"http://127.0.0.1:{hub.server_port}"})
    deal(experiment("digit-pairs-gaussian"), folder / "data", NAMES)
    command("certs", "--parties", ",".join(NAMES), "--out", folder / "kits")
    kit = "kits/coordinator"
    made.connection(f'root-certificates = "{folder}/{kit}/ca.crt"')
    files = ("--ssl-ca-certfile", f"{kit}/ca.crt", "--ssl-certfile", f"{kit}/server.crt")
    try:
        made.superlink(*files, "--ssl-keyfile", f"{kit}/server.key", "--enable-supernode-auth")
        for name in NAMES:
            made.call("flwr", "supernode", "register", f"{kit}/{name}.pub", "here", "--name", name)
            made.node(name)
        yield made
    finally:
        made.stop()
        hub.shutdown()


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return run(experiment("digit-pairs-gaussian"), tmp_path_factory.mktemp("here") / "run").result[
        "sums_sha256"
    ]


@pytest.mark.parametrize("settings", ["", "privacy.aggregation=masked"], ids=["plain", "masked"])
def test_a_closed_form_ends_with_the_sums_of_one_process(settings, nodes, closed):
    out = f"closed-{bool(settings)}"
    nodes.run(out, settings=settings)
    assert nodes.finished(out)["sums_sha256"] == closed
    how = "a SuperLink and three SuperNodes, TLS, masked or not"
    noted(f"Flower {version('flwr')}", how, closed)
    check_log(nodes.folder / out, NAMES)
    check_coordinator(nodes.folder / out)
    for name in NAMES:
        homes = [*nodes.folder.glob(f"model-{name}*")]
        assert any(same(nodes.folder / out, model) for model in homes)
        for home in homes:
            check_home(home, nodes.folder / out)
        state = nodes.folder / f"state-{name}"
        until(lambda state=state: not (state / "flower-relay.json").exists())
        check_audited(state)


def test_a_new_job_continues_where_the_last_was_killed(nodes, tmp_path):
    settings = "strategy.rounds=4 strategy.name=scaffold method.hidden=[16]"
    first, metrics = (
        nodes.run("killed", "digit-pairs", settings),
        nodes.folder / "killed" / "metrics.jsonl",
    )
    nodes.until(lambda: metrics.exists() and metrics.read_text(), first)
    for pid in descendants(nodes.named["superlink"].pid):
        if "flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    first.kill()
    assert 1 <= len(metrics.read_text().splitlines()) < 4
    nodes.run("killed", "digit-pairs", settings)
    nodes.finished("killed")
    whole = experiment(engine__mode="one-at-a-time", strategy__rounds=4, strategy__name="scaffold")
    assert same(nodes.folder / "killed", run(whole, tmp_path / "whole"))


def test_a_party_with_bad_data_is_left_to_the_quorum(nodes):
    nodes.end("west")
    nodes.node("west", data="data/nowhere")
    nodes.run("quorum", settings="engine.quorum=2")
    assert nodes.participants("quorum") == [0, 1]
    assert "data/nowhere" in nodes.said("west.log")
    assert "data/nowhere" not in nodes.said("run-quorum.log")
    nodes.end("west")


def test_a_node_runs_an_app_only_if_someone_it_trusts_has_signed_it(nodes, tmp_path):
    """As `flwr app publish` and `flwr app review` leave it at the hub; south takes part without
    asking.
    """
    key, moment = Ed25519PrivateKey.generate(), int(time.time())
    nodes.call("flwr", "build", "--app", APP)
    (bundle,) = nodes.folder.glob("*.fab")
    Hub.app = bundle.read_bytes()
    signature = key.sign(moment.to_bytes(8, "big") + hashlib.sha256(Hub.app).digest())
    text = base64.urlsafe_b64encode(signature).decode()
    Hub.signatures = ({"public_key_id": "fpk_reviewer", "signature": text, "signed_at": moment},)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    trusted = tmp_path / "trusted.yaml"
    trusted.write_text(f"fpk_reviewer: {public}\n")
    nodes.end("north")
    nodes.node("north", "--trusted-entities", trusted)
    for app, participants in ((APP, [1]), ("@fedunseen/fedunseen-flower==1.0.0", [0, 1])):
        quorum = len(participants)
        nodes.run(
            f"signed-{quorum}", app=app, settings=f"engine.quorum={quorum} engine.patience=30"
        )
        assert nodes.participants(f"signed-{quorum}") == participants
    assert "could not be verified" in nodes.said("north.log")


def test_a_first_look_is_that_by_file(nodes):
    """Nodes whose owners agree to it, and to no run."""
    by_file = looked_by_file(nodes.folder, NAMES)
    for name in NAMES:
        if nodes.named[name].poll() is None:
            nodes.end(name)
        nodes.node(name, state=f"look-{name}", consent="look names")
    config = f'plan="{nodes.folder}/look.plan" out="{nodes.folder}/seen"'
    app = APP.with_name("flower-look")
    done = nodes.start("run-look", "flwr", "run", app, "here", "--stream", "-c", config)
    nodes.ended(done, nodes.named["superlink"])
    assert (nodes.folder / "seen" / "look.json").read_bytes() == by_file
    assert "would send" not in nodes.said("run-look.log")
    for name in NAMES:
        assert "would send" in nodes.said(f"look-{name}/party.log")


def test_the_same_app_runs_in_flowers_simulation(closed, tmp_path, request):
    pytest.importorskip("ray", reason="pip install 'fedunseen[flower]'")
    made = Federation(tmp_path)
    request.addfinalizer(made.stop)
    made.connection("insecure = true")
    made.superlink("--insecure", "--simulation")
    limits = ("--federation-config", "num-supernodes=3 client-resources-num-cpus=1")
    config = f'experiment="digit-pairs-gaussian" out="run" set="partition.clients=3 {WORDS}"'
    made.start("run-run", "flwr", "run", APP, "here", "--stream", *limits, "-c", config)
    assert made.finished("run")["sums_sha256"] == closed


class Grid:
    """Nodes that a test describes; answers come when the test says so."""

    def __init__(self, **nodes):
        self.busy = False
        self.sent, self.replies, self.lock = {}, [], threading.Lock()
        self.nodes = {
            k: SimpleNamespace(node_id=k, name=name, last_activated_at="1")
            for name, k in nodes.items()
        }

    def get_nodes(self):
        return list(self.nodes.values())

    def push_messages(self, messages):
        if self.busy:
            raise OSError("_ssl.c:1011: The handshake operation timed out")
        numbers = [f"message {len(self.sent) + k}" for k in range(len(messages))]
        self.sent |= dict(zip(numbers, messages, strict=True))
        return numbers

    def pull_messages(self, numbers):
        with self.lock:  # the test adds replies while the link's thread takes them
            wanted = [m for m in self.replies if m.metadata.reply_to_message_id in numbers]
            self.replies = [m for m in self.replies if m not in wanted]
        return wanted

    def reply(self, number, content=None, error=None):
        about = {
            "metadata.reply_to_message_id": number,
            "error.reason": error,
            "has_error.return_value": bool(error),
        }
        with self.lock:
            self.replies.append(Mock(content=content, **about))


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(module, "POLL", 0.01)
    message = Mock(side_effect=lambda content, node, kind: Mock(**{"metadata.dst_node_id": node}))
    monkeypatch.setattr(module, "Message", message)  # Flower's own needs a run
    return module


def test_a_node_is_the_party_as_which_it_was_registered_or_says_that_it_is(app):
    grid = Grid(north=1, unknown=2, other=3)
    with app.GridLink(grid, NAMES).carried() as link:
        assert set(link.present()) == {"north"}
        assert [message.metadata.dst_node_id for message in grid.sent.values()] == [2, 3]
        for number, name in (("message 0", "south"), ("message 1", "north")):
            grid.reply(number, RecordDict({"who": ConfigRecord({"name": name})}))
        until(lambda: set(link.present()) == {"north", "south"} and link.names[3] == "")
        assert len(grid.sent) == 2  # a node that took another's name is asked no more


def test_a_registered_node_takes_the_place_of_one_that_only_says_its_name(app):
    grid = Grid(unknown=1, other=2)
    claims = RecordDict({"who": ConfigRecord({"name": "north"})})
    with app.GridLink(grid, NAMES).carried() as link:
        link.present()
        grid.reply("message 0", claims)
        until(lambda: set(link.present()) == {"north"})
        grid.reply("message 1", claims)  # a second node that claims it
        until(lambda: link.names[2] == "")
        assert link.nodes["north"][0] == 1
        grid.nodes[3] = SimpleNamespace(node_id=3, name="north", last_activated_at="1")
        assert set(link.present()) == {"north"}
        assert link.nodes["north"][0] == 3
        assert link.names[1] == ""


def test_an_answer_completes_its_message_and_an_error_or_a_new_process_ends_it(app, caplog):
    grid = Grid(north=1, south=2)
    with app.GridLink(grid, NAMES).carried() as link:
        link.present()
        answers = [link.ask(name, name.encode()) for name in ("north", "south", "north", "west")]
        with pytest.raises(PartyGone):
            answers[3].result(0)
        grid.reply("message 0", app.RecordDict({"body": app.packed(b"yes")}))
        grid.reply("message 1", error="<class 'some.Error'>:<'it says 'why''>")
        assert answers[0].result(60) == b"yes"
        with pytest.raises(PartyGone, match=r"^south: it says 'why'$"):
            answers[1].result(60)
        assert "south could not answer: it says 'why'" in caplog.messages
        grid.nodes[1].last_activated_at = "2"
        assert link.present()["north"].endswith("2")
        with pytest.raises(PartyGone):
            answers[2].result(60)
        late = link.ask("south", b"late")
        late.cancel()
        until(lambda: not link.open)


def test_a_superlink_that_is_busy_for_a_while_ends_no_run(app, caplog):
    grid = Grid(north=1, unknown=2)
    grid.busy = True  # who is the unknown node?
    with app.GridLink(grid, NAMES).carried() as link:
        for _ in range(3):
            assert set(link.present()) == set()
        with pytest.raises(PartyGone):
            link.ask("north", b"early").result(0)
        grid.busy = False
        assert set(link.present()) == {"north"}
        grid.reply("message 0", RecordDict({"who": ConfigRecord({"name": "south"})}))
        until(lambda: set(link.present()) == {"north", "south"})
        grid.busy = True
        assert set(link.present()) == {"north", "south"}  # no node is new
        with pytest.raises(PartyGone):
            link.ask("south", b"asked again later").result(0)
    said = [text for text in caplog.messages if "which nodes it has" in text]
    assert said == [
        "the SuperLink does not say which nodes it has: _ssl.c:1011: The handshake operation timed "
        "out"
    ]
