"""One contract for all ways to take part: what a party keeps, what it refuses, and what the
coordinator writes.

The parties and the coordinator are those of each way; between them stands a link in this process.
Flower's and NVFlare's own processes, and TLS, are in the tests of the engines.
"""

import contextlib
import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from contract import check_coordinator, check_home, check_log, check_site
from fedunseen.cli.main import app
from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy import websocket
from fedunseen.deploy.certs import make
from fedunseen.deploy.existing_federation import coordinated
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.site import header_of
from known_names import accounted
from links import answered, session
from small_federation import NAMES, write_all

pytestmark = pytest.mark.usefixtures("quick_coordinator")
EXPERIMENT = """
[data]
name = "folder"
root = "{root}"
part = true
[method]
name = "gaussian"
[evaluation]
selection = "last"
confidence = "none"
theory = false
embedding = false
"""
MASKED = {"privacy.aggregation": "masked"}
OVER_A_LINK = ("hello", "plan", "signed", "round", "shares", "masked", "open")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    data = write_all(folder / "data", pool=6)
    make(folder / "kits", "127.0.0.1", NAMES, 2)
    (folder / "experiment.toml").write_text(EXPERIMENT.format(root=data / "coordinator"))
    return SimpleNamespace(folder=folder, data=data, kits=folder / "kits")


class Direct:
    """A link to parties in this process."""

    def __init__(self, answers):
        self.answers = answers
        self.ends = False

    def present(self):
        return dict.fromkeys(self.answers, "first")

    def ask(self, name, message):
        if self.ends and header_of(message)["kind"] == "stop":
            raise SystemExit("the engine has not heard of its process")
        return answered(self.answers[name](message))


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, FedUnseenError), result.output
    return result


def options(limits, **named):
    """Return options of the command."""
    return [
        part
        for key, value in {**named, **limits}.items()
        for part in (f"--{key.replace('_', '-')}", value)
    ]


class Ways:
    """What answers for each party of a way, and how its coordinator runs."""

    def __init__(self, place, folder, monkeypatch):
        self.place, self.folder, self.patch = place, folder, monkeypatch
        self.limits, self.said, self.ends = {}, {}, False

    def state(self, name):
        return self.folder / f"state-{name}"

    def home(self, name):
        return self.folder / f"model-{name}"

    def over(self, answers, engine):
        """Coordinate parties that answer, as Flower's app and NVFlare's job do."""
        link = Direct(answers)
        link.ends = self.ends
        met = session(link, NAMES, kit=self.place.kits / "coordinator")
        settings = {**MASKED, "engine.name": engine, "engine.patience": 0.2}
        run = self.folder / "run"
        return coordinated(met, str(self.place.folder / "experiment.toml"), settings, run).path

    def config(self, who, **more):
        return {
            "data": str(self.place.data / who), "state": str(self.state(who)), "masked": True,
            "credentials": str(self.place.kits / who), "out": str(self.home(who)),
            **self.limits, **more,
        }  # fmt: skip

    def nested(self, answers, names, start, end):
        """Start parties that stay, each within the one before, and then what asks them."""
        if not names:
            return end()

        def stays(answer):
            answers[names[0]] = answer
            self.nested(answers, names[1:], start, end)

        start(names[0], stays)
        return self.folder / "run"


class WebSocket(Ways):
    kinds = OVER_A_LINK

    def run(self):
        answers = {}
        self.patch.setattr(websocket, "check", lambda place: None)
        self.patch.setattr(websocket, "host", lambda place: contextlib.nullcontext(Direct(answers)))

        def start(name, stays):
            self.patch.setattr(websocket, "join", lambda where, answer, done: stays(answer))
            words = options(
                self.limits, data=self.place.data / name, kit=self.place.kits / name,
                state=self.state(name), out=self.home(name),
            )  # fmt: skip
            self.said[name] = call("join", "here", "--masked", *words)

        def end():
            settings = {**MASKED, "engine.patience": 0.2}
            words = [
                part for key, value in settings.items() for part in ("--set", f"{key}={value}")
            ]
            kit = ["--kit", self.place.kits / "coordinator", "--out", self.folder / "run"]
            self.hosted = call("host", self.place.folder / "experiment.toml", *kit, *words)
            return self.folder / "run"

        return self.nested(answers, NAMES, start, end)


class Flower(Ways):
    kinds = OVER_A_LINK

    def run(self):
        flower = pytest.importorskip(
            "fedunseen.deploy.flower_app", reason="`make test-flower` runs this"
        )
        answers = {}

        def start(name, stays):
            self.patch.setattr(
                flower, "serve_party", lambda state, answer, done, parent: stays(answer)
            )
            try:
                flower._serve(self.config(name, name=name, parent=0))
            except FedUnseenError as error:
                self.said[name] = error

        return self.nested(answers, NAMES, start, lambda: self.over(answers, "flower"))


class NVFlare(Ways):
    kinds = OVER_A_LINK

    def run(self):
        nvflare = pytest.importorskip("fedunseen.deploy.nvflare_job")
        parties = {name: nvflare.Party() for name in NAMES}
        answers = {
            name: party.answering(nvflare.Place(name, self.folder, self.folder, self.config(name)))
            for name, party in parties.items()
        }
        try:
            return self.over(answers, "nvflare")
        finally:
            for party in parties.values():
                party.held.close()


class ByFile(Ways):
    kinds = ("file",)

    def run(self):
        plan, out = self.folder / "plan.fedunseen", self.folder / "run"
        kit = ["--credentials", self.place.kits / "coordinator"]
        experiment = self.place.folder / "experiment.toml"
        call("offline", "plan", experiment, *kit, "--parties", ",".join(NAMES), "--out", plan)
        answers = [self.folder / f"{name}.fedunseen" for name in NAMES]
        for name, answer in zip(NAMES, answers, strict=True):
            words = options(
                self.limits, data=self.place.data / name, credentials=self.place.kits / name,
                state=self.state(name), out=answer,
            )  # fmt: skip
            self.said[name] = call("offline", "answer", plan, *words)
        call("offline", "merge", plan, *answers, "--out", out)
        return out

    def home(self, name):
        """The coordinator hands its run on: by file, nothing else comes back."""
        return self.folder / "run"


WAYS = pytest.mark.parametrize("way", [WebSocket, Flower, NVFlare, ByFile])


@pytest.mark.slow
@WAYS
def test_every_way_keeps_the_same_promises(way, place, tmp_path, monkeypatch):
    federation = way(place, tmp_path, monkeypatch)
    run = federation.run()
    for name in NAMES:
        check_site(federation.state(name), way.kinds)
        check_home(federation.home(name), run)
    check_coordinator(run)
    if way is not ByFile:  # which has nothing to log but what its commands print
        check_log(run, NAMES)


@accounted
@WAYS
def test_every_way_holds_a_limit_of_epsilon(way, place, tmp_path, monkeypatch):
    federation = way(place, tmp_path, monkeypatch)
    federation.limits = {"epsilon_limit": 3.0}
    with contextlib.suppress(FedUnseenError):  # no party is left
        federation.run()
    assert not (tmp_path / "run" / "result.json").exists()
    for name in NAMES:
        lines = Releases(federation.state(name)).lines
        assert {line["kind"] for line in lines} <= {"refusal"}
        status = json.loads((federation.state(name) / "status.json").read_text())
        assert not status["over"]
        assert "--epsilon-limit 3" in (federation.state(name) / "messages.log").read_text()


@WAYS
def test_every_way_refuses_a_delta_that_gives_a_sample_away(way, place, tmp_path, monkeypatch):
    federation = way(place, tmp_path, monkeypatch)
    federation.limits = {"epsilon_limit": 3.0, "delta_limit": 0.5}
    with contextlib.suppress(FedUnseenError):
        federation.run()
    assert not (tmp_path / "run").exists()
    said = (federation.state("north") / "messages.log").read_text()
    assert "--delta-limit 0.5 is not below one over 18" in said


def test_flower_ends_a_process_too_early_and_a_report_is_left(place, tmp_path, monkeypatch):
    """Parties that are told the end may be slow; Flower ends a run that is silent for a minute."""
    federation = Flower(place, tmp_path, monkeypatch)
    federation.ends = True
    with pytest.raises(SystemExit):
        federation.run()
    check_coordinator(tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    federation.ends = False  # the same command continues
    check_coordinator(federation.run())
