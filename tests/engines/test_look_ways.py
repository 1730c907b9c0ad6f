"""One contract for a first look over all ways: what a site lists, keeps and refuses, and a page that
is bit for bit that of the look by file.

Between coordinator and parties stands a link in this process; the last tests have real processes.
"""

import contextlib
import hashlib
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedunseen.cli.main import app
from fedunseen.core.errors import FedUnseenError, QuorumError
from fedunseen.deploy import websocket
from fedunseen.deploy.certs import make
from fedunseen.deploy.look.over_links import ask
from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
from fedunseen.deploy.offline.answered import ANSWERED
from fedunseen.deploy.offline.files import read
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.deploy.site import header_of
from links import answered, session
from processes import environment, free_port

NAMES = ("north", "south", "west")
TABLES = {
    "north": [("Adelie", 3700 + i) for i in range(40)] + [("adelie", 9)],
    "south": [("Gentoo", 5 + i / 100) for i in range(33)],
    "west": [("Chinstrap", 3650 + i) for i in range(21)] + [("", i) for i in range(7)],
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look-ways")
    make(folder / "kits", "127.0.0.1", NAMES, 2)
    for name, rows in TABLES.items():
        (folder / "data" / name).mkdir(parents=True)
        lines = [f"{label},{mass},{i}" for i, (label, mass) in enumerate(rows)]
        text = "\n".join(["label,mass,serial", *lines, ""])
        (folder / "data" / name / "table.csv").write_text(text)
    (folder / "classes.csv").write_text("name\nAdelie\nGentoo\nChinstrap\nEmperor\n")
    for plan, more in (("masked", []), ("plain", ["--plain"])):
        call(
            "look", "plan", "--credentials", folder / "kits/coordinator", "--parties",
            ",".join(NAMES), "--classes", folder / "classes.csv", "--column", "mass",
            "--out", folder / f"{plan}.look", *more,
        )  # fmt: skip
    for plan, more in (("masked", []), ("plain", ["--plain"])):
        answers = [folder / f"{name}-{plan}.look" for name in NAMES]
        for name, answer in zip(NAMES, answers, strict=True):
            call(
                "look", "answer", folder / f"{plan}.look", "--data", folder / "data" / name,
                "--credentials", folder / "kits" / name, "--out", answer, "--state",
                folder / f"state-{name}-{plan}", "--consent", "look", "--consent", "names", *more,
            )  # fmt: skip
        call("look", "read", folder / f"{plan}.look", *answers, "--out", folder / f"seen-{plan}")
    return folder


@pytest.fixture(autouse=True)
def _no_answers_of_other_tests(kept):
    """Forget what these keys answered from other state folders."""
    for name in NAMES:
        (kept / "kits" / name / ANSWERED).unlink(missing_ok=True)


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, FedUnseenError | SystemExit | None), result.output
    assert (result.exit_code == 0) == (code == 0), result.output
    return result


class Direct:
    """A link to parties in this process."""

    def __init__(self, answers):
        self.answers = answers
        self.messages = []

    def present(self):
        return dict.fromkeys(self.answers, "first")

    def ask(self, name, message):
        self.messages.append((name, message))
        return answered(self.answers[name](message))


class Ways:
    """Parties that answer a look, and its coordinator."""

    def __init__(self, kept, folder, monkeypatch, plan, consent=("look", "names")):
        self.kept, self.folder, self.patch, self.plan = kept, folder, monkeypatch, plan
        self.consent = dict.fromkeys(NAMES, consent)
        self.said = {}

    def state(self, name):
        return self.folder / f"state-{name}"

    def config(self, who, **more):
        return {
            "data": str(self.kept / "data" / who), "state": str(self.state(who)),
            "credentials": str(self.kept / "kits" / who), "consent": " ".join(self.consent[who]),
            "plain": self.plan == "plain", **more,
        }  # fmt: skip

    @property
    def file(self):
        return self.kept / f"{self.plan}.look"

    def nested(self, answers, names, start, end):
        """Start parties that stay, each within the one before, and then what asks them."""
        if not names:
            return end()

        def stays(answer):
            answers[names[0]] = answer
            self.nested(answers, names[1:], start, end)

        return start(names[0], stays)


class WebSocket(Ways):
    def run(self):
        answers = {}
        self.patch.setattr(websocket, "check", lambda place: None)
        self.patch.setattr(websocket, "host", lambda place: contextlib.nullcontext(Direct(answers)))

        def start(name, stays):
            self.patch.setattr(websocket, "join", lambda where, answer, done: stays(answer))
            agreed = [word for one in self.consent[name] for word in ("--consent", one)]
            self.said[name] = CliRunner().invoke(
                app,
                [
                    "look", "join", "here", "--data", str(self.kept / "data" / name),
                    "--credentials", str(self.kept / "kits" / name), "--state",
                    str(self.state(name)), *agreed, *(["--plain"] if self.plan == "plain" else []),
                ],
            )  # fmt: skip

        def end():
            self.hosted = CliRunner().invoke(
                app,
                [
                    "look", "host", str(self.file), "--credentials",
                    str(self.kept / "kits/coordinator"), "--out", str(self.folder / "seen"),
                    "--patience", "0.5",
                ],
            )  # fmt: skip

        self.nested(answers, NAMES, start, end)
        if isinstance(self.hosted.exception, FedUnseenError):
            raise self.hosted.exception
        if self.hosted.exit_code:
            raise QuorumError(self.hosted.output)


class Flower(Ways):
    def run(self):
        flower = pytest.importorskip(
            "fedunseen.deploy.look.flower_app", reason="`make test-flower` runs this"
        )
        answers = {}

        class Grid(Direct):
            def __init__(self, grid, names):
                super().__init__(answers)

            def carried(self):
                return contextlib.nullcontext(self)

        self.patch.setattr(flower, "GridLink", Grid)

        def start(name, stays):
            served = lambda state, answer, done, parent: stays(answer)  # noqa: E731
            self.patch.setattr(flower, "serve_party", served)
            with contextlib.suppress(FedUnseenError):
                flower._serve(self.config(name, name=name, parent=0))

        def end():
            config = {"plan": str(self.file), "out": str(self.folder / "seen"), "patience": 0.5}
            try:
                flower.coordinate(None, config)
                self.error = None
            except FedUnseenError as error:
                self.error = error

        self.nested(answers, NAMES, start, end)
        if self.error:
            raise self.error


class NVFlare(Ways):
    def run(self):
        nvflare = pytest.importorskip("fedunseen.deploy.look.nvflare_job")
        from fedunseen.deploy.nvflare.job import Place

        parties = {name: nvflare.Party() for name in NAMES}
        link = Direct(
            {
                name: party.answering(Place(name, self.folder, self.folder, self.config(name)))
                for name, party in parties.items()
            }
        )
        asked = nvflare.Coordinator(str(self.file), "seen", patience=3600)
        looks = iter([link.present()] * 3)  # who has refused cannot return, and is not waited for
        asked.present = lambda: next(looks)
        asked.ask = link.ask
        try:
            asked.coordinate(Place("server", self.folder, self.folder, {}), list(NAMES))
        finally:
            for party in parties.values():
                party.held.close()


WAYS = pytest.mark.parametrize("way", [WebSocket, Flower, NVFlare])


@WAYS
@pytest.mark.parametrize("plan", ["masked", "plain"])
def test_every_way_writes_the_look_by_file_bit_for_bit(way, plan, kept, tmp_path, monkeypatch):
    federation = way(kept, tmp_path, monkeypatch, plan)
    federation.run()
    for name in ("look.json", "look.html"):
        by_file = (kept / f"seen-{plan}" / name).read_bytes()
        assert (tmp_path / "seen" / name).read_bytes() == by_file
    facts = json.loads((tmp_path / "seen" / "look.json").read_text())
    assert [c["samples"] for c in facts["classes"]][:4] == [40, 30, 20, 0]
    for name in NAMES:
        lines = Releases(federation.state(name)).lines
        assert [line["kind"] for line in lines] == ["budget", "file"]
        sent = (kept / f"{name}-{plan}.look").read_bytes()
        assert lines[1]["sha256"] == hashlib.sha256(sent).hexdigest()
        assert json.loads((federation.state(name) / "status.json").read_text())["over"]
        said = (federation.state(name) / "messages.log").read_text()
        assert f"{name} would send" in said  # listed before it leaves


@pytest.mark.slow
@WAYS
def test_without_consent_a_site_lists_and_sends_a_code(way, kept, tmp_path, monkeypatch):
    federation = way(kept, tmp_path, monkeypatch, "masked")
    federation.consent["west"] = ()
    with pytest.raises((QuorumError, FedUnseenError)) as refused:
        federation.run()
    assert "west refuses" in str(refused.value)
    assert "refused-consent" in str(refused.value)
    assert not (tmp_path / "seen").exists()
    said = (federation.state("west") / "messages.log").read_text()
    assert "Chinstrap (20)" in said
    assert "--consent look" in said
    assert [line["kind"] for line in Releases(federation.state("west")).lines] == ["refusal"]
    federation.consent["west"] = ("look", "names")  # the others send the same bytes again
    federation.run()
    by_file = (kept / "seen-masked" / "look.json").read_bytes()
    assert (tmp_path / "seen" / "look.json").read_bytes() == by_file


@WAYS
def test_a_plan_in_clear_needs_its_own_consent(way, kept, tmp_path, monkeypatch):
    federation = way(kept, tmp_path, monkeypatch, "plain")
    federation.config = lambda who, **more: way.config(federation, who, **more) | {"plain": False}
    if way is WebSocket:
        federation.plan = "masked"  # its parties give no --plain
        monkeypatch.setattr(WebSocket, "file", kept / "plain.look")
    with pytest.raises(FedUnseenError, match="refused-consent"):
        federation.run()
    assert not (tmp_path / "seen").exists()


class Told:
    """A party that sends what a test wants."""

    def __init__(self, kept, folder, name):
        words = Ways(kept, folder, None, "masked").config(name)
        from fedunseen.deploy.look.over_links import looking_on

        self.stack = contextlib.ExitStack()
        self.party = self.stack.enter_context(
            looking_on(words, folder / f"state-{name}", lambda text: None)
        )


@pytest.mark.slow
def test_damaged_and_foreign_answers_are_refused(kept, tmp_path):
    plan = read(kept / "masked.look", PLAN, LIMIT, FORM)
    parties = {name: Told(kept, tmp_path, name) for name in NAMES}
    answers = {name: told.party.answer for name, told in parties.items()}

    def changed(name, change):
        link = Direct({**answers, name: lambda message: change(answers[name](message))})
        with pytest.raises(QuorumError) as refused:
            ask(session(link, NAMES), plan, tmp_path / "seen", patience=0.5)
        return str(refused.value)

    def flipped(answer):
        header, tensors = unpack(answer)
        tensors["file"][-1] ^= 1
        return pack(header, tensors)

    assert "west refuses (the answer of west is not signed by west" in changed("west", flipped)
    assert "holds no file" in changed("west", lambda answer: pack({"kind": "look"}))
    assert "no file" in changed("west", lambda answer: pack({}, unpack(answer)[1]))
    sent = []
    link = Direct({"north": lambda message: sent.append(message) or answers["north"](message)})
    with pytest.raises(QuorumError, match="south is not there; west is not there"):
        ask(session(link, NAMES), plan, tmp_path / "seen", patience=0.5)
    other = answers["north"](sent[0])
    assert "of another party" in changed("west", lambda answer: other)
    assert not (tmp_path / "seen").exists()
    ask(session(Direct(answers), NAMES), plan, tmp_path / "seen")  # nothing was lost
    for told in parties.values():
        told.stack.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", "refused-message"),
        (pack({"kind": "hello"}), "refused-message"),
        (pack({"kind": "look"}), "refused-message"),
        (pack({"kind": "look", "more": 1}), "refused-message"),
    ],
)
def test_a_party_that_looks_answers_nothing_else(message, code, kept, tmp_path):
    told = Told(kept, tmp_path, "north")
    with told.stack:
        assert header_of(told.party.answer(message))["error"] == code
        assert told.party.done.is_set()
        assert header_of(told.party.answer(message))["error"] == "refused-left"
    assert [line["kind"] for line in Releases(tmp_path / "state-north").lines] == ["refusal"]


@pytest.mark.slow
def test_another_way_after_a_file_sends_the_same_bytes(kept, tmp_path, monkeypatch):
    """The state folder knows the plan, not the way."""
    federation = WebSocket(kept, tmp_path, monkeypatch, "masked")
    for name in NAMES:
        call(
            "look", "answer", federation.file, "--data", kept / "data" / name, "--credentials",
            kept / "kits" / name, "--out", tmp_path / f"{name}.look", "--state",
            federation.state(name), "--consent", "look",
        )  # fmt: skip
    federation.run()  # which would give names, too
    facts = json.loads((tmp_path / "seen" / "look.json").read_text())
    assert all(not own["classes"] for own in facts["names"].values())
    assert len(Releases(federation.state("north")).lines) == 2


@pytest.mark.slow
def test_real_processes_over_a_websocket(kept, tmp_path):
    port = free_port()
    started = []

    def start(*words):
        command = [sys.executable, "-m", "fedunseen", "look", *map(str, words)]
        started.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    try:
        kit = "--credentials", kept / "kits/coordinator"
        host = start(
            "host", kept / "masked.look", *kit, "--address", f"127.0.0.1:{port}", "--out", "seen"
        )
        joined = [
            start(
                "join", f"127.0.0.1:{port}", "--data", kept / "data" / name, "--credentials",
                kept / "kits" / name, "--consent", "look", "--consent", "names",
            )
            for name in NAMES
        ]  # fmt: skip
        for process in [host, *joined]:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
    finally:
        for process in started:
            process.kill()
    by_file = (kept / "seen-masked" / "look.json").read_bytes()
    assert (tmp_path / "seen/look.json").read_bytes() == by_file
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fedunseen-north", "fedunseen-south", "fedunseen-west", "seen"
    ]  # fmt: skip
