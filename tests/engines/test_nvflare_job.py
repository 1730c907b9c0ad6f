"""FedUnseen as a job of an existing NVFlare federation, in NVFlare's simulator: the folder that
users submit.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest

from contract import check_audited, check_coordinator, check_home, check_log
from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError, FedUnseenError
from looks import looked_by_file
from processes import command, descendants, environment, sets, until
from same import noted
from small_runs import CLOSED

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from fedunseen.deploy.nvflare.job import Place
from fedunseen.deploy.nvflare_job import Coordinator, Party

pytestmark = pytest.mark.slow
JOB = Path(__file__).parents[2] / "deploy" / "nvflare"
SITES = ["north", "south", "west"]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """The data of each party, and credentials for masked sums; the coordinator's are the
    server's.
    """
    folder = tmp_path_factory.mktemp("dealt")
    command(
        "data",
        "deal",
        "digit-pairs-gaussian",
        *sets(CLOSED),
        "--parties",
        ",".join(SITES),
        "--out",
        folder / "data",
    )
    command("certs", "--parties", ",".join(SITES), "--out", folder / "kits")
    (folder / "kits" / "coordinator").rename(folder / "kits" / "server")
    return folder


ALLOWED = [(module, name) for module in ("", "look.") for name in ("Coordinator", "Party")]


@contextlib.contextmanager
def simulated(folder, dealt, experiment, settings, own=None, party=None, job_of=JOB, args=None):
    """A job in the simulator; its run directory. ``party`` is another executor, as
    ``module.Class`` of a module in the folder; ``args`` are those of another job's controller.
    """
    shutil.copytree(job_of, folder / "job", dirs_exist_ok=True)
    config = folder / "job" / "app" / "config" / "config_fed_server.json"
    job = json.loads(config.read_text())
    job["workflows"][0]["args"] = args or {
        "experiment": experiment,
        "settings": settings,
    }
    config.write_text(json.dumps(job))
    if party:
        config = config.with_name("config_fed_client.json")
        job = json.loads(config.read_text())
        job["executors"][0]["executor"]["path"] = party
        config.write_text(json.dumps(job))
    local = folder / "simulator" / "local"
    local.mkdir(parents=True, exist_ok=True)
    classes = {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [
            *(f"fedunseen.deploy.{module}nvflare_job.{name}" for module, name in ALLOWED),
            *filter(None, [party]),
        ],
    }
    (local / "resources.json").write_text(json.dumps(classes))
    (local / "fedunseen.json").write_text(
        json.dumps({"data": f"{dealt}/data/{{site}}", "consent": "moments", **(own or {})})
    )
    words = [
        sys.executable,
        "-m",
        "nvflare.cli",
        "simulator",
        "job",
        "-w",
        "simulator",
        "-c",
        ",".join(SITES),
    ]
    home = {**environment(), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    home["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [home.get("PYTHONPATH")])])
    with open(folder / "output.txt", "ab") as out:
        process = subprocess.Popen(
            [*words, "-n", "3", "-t", "3"], stdout=out, stderr=out, env=home, cwd=folder
        )
    try:
        yield process, folder / "simulator" / "server" / "fedunseen-run"
    finally:
        kill(process)


def kill(process):
    """Kill the simulator and all that it has started."""
    for one in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()


def finish(process, folder):
    until(lambda: process.poll() is not None, folder)
    assert process.returncode == 0, (folder / "output.txt").read_text()


@pytest.mark.parametrize("masked", [False, True])
def test_a_job_ends_with_the_sums_of_the_run_in_one_process(masked, dealt, tmp_path):
    settings = {
        **CLOSED,
        "method.calibration": False,
        "privacy.aggregation": "masked" if masked else "plain",
    }
    own = {"masked": True, "credentials": f"{dealt}/kits/{{site}}"} if masked else {}
    with simulated(tmp_path, dealt, "digit-pairs-gaussian", settings, own) as (process, out):
        finish(process, tmp_path)
    here = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "here")
    assert (
        json.loads((out / "result.json").read_text())["sums_sha256"] == here.result["sums_sha256"]
    )
    how = "a job for three sites in its simulator, masked or not"
    noted(f"NVFlare {version('nvflare')}", how, here.result["sums_sha256"])
    check_log(out, SITES)
    check_coordinator(out)
    for site in SITES:
        check_home(tmp_path / "simulator" / site / "fedunseen-model", out)
        check_audited(tmp_path / "simulator" / site / "fedunseen-state")


HOSTILE = """
import json, sys, threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FedEventHeader, ReservedTopic
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from fedunseen.deploy.nvflare import job
from fedunseen.deploy.nvflare_job import Party
from fedunseen.deploy.remote.wire import unpack


class West(Party):
    "West answers honestly, and meanwhile asks north what only the coordinator may ask."

    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            self.engine = fl_ctx.get_engine()

    def answering(self, place):
        honest, asked = super().answering(place), []

        def answer(question):
            rounds = unpack(question)[0]["kind"] == "round"  # all sites are there
            if place.name == "west" and rounds and not asked:
                asked.append(question)
                tries = self.tries(question)
                (Path(__file__).parent / "tried.json").write_text(json.dumps(tries))
            return honest(question)

        return answer

    def send(self, content, topic=job.TOPIC, **headers):
        message = Shareable(content)
        for name, value in headers.items():
            message.set_header(name, value)
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request(["north"], topic, message, 20.0, context)
        reply = replies["north"]
        names = sorted(name for name in reply if not name.startswith("__"))
        return [reply.get_return_code(), *names]

    def tries(self, question):
        event = {FedEventHeader.EVENT_TYPE: EventType.START_RUN, FedEventHeader.TIMESTAMP: 1.0}
        task = {ReservedHeaderKey.TASK_NAME: job.KEY_TASK, ReservedHeaderKey.TASK_ID: "1"}
        return [
            self.send({}),
            self.send({"id": "1", "to": self.token, "body": question}),
            self.send({job.KEY: self.key}),
            self.send({}, "fed.event", **event),
            self.send({job.KEY: "west's"}, ReservedTopic.DO_TASK, **task),
            self.send({job.KEY: "west's"}),
        ]
"""


def test_another_site_of_the_job_gets_nothing(dealt, tmp_path):
    """What :mod:`tests.attacks.test_other_sites` tries at one process, through NVFlare."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    settings = {**CLOSED, "method.calibration": False}
    party = "hostile.West"
    with simulated(tmp_path, dealt, "digit-pairs-gaussian", settings, party=party) as (
        process,
        out,
    ):
        finish(process, tmp_path)
    refused, unknown = ["BAD_REQUEST_DATA"], ["TASK_UNKNOWN"]
    tried = json.loads((tmp_path / "tried.json").read_text())
    assert tried == [refused, refused, refused, ["OK"], unknown, refused]
    here = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "here")
    result = json.loads((out / "result.json").read_text())
    assert result["sums_sha256"] == here.result["sums_sha256"]


def test_a_new_job_continues_from_the_checkpoint_to_the_same_bits(dealt, tmp_path):
    settings = {**CLOSED, "strategy.name": "scaffold", "strategy.rounds": 30, "method.hidden": [20]}
    with simulated(tmp_path, dealt, "digit-pairs", settings) as (process, out):
        metrics = out / "metrics.jsonl"
        until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, tmp_path)
        kill(process)
    assert not (out / "result.json").exists()
    with simulated(tmp_path, dealt, "digit-pairs", settings) as (process, out):
        finish(process, tmp_path)
    run(
        Experiment.load("digit-pairs", {**settings, "engine.mode": "one-at-a-time"}),
        tmp_path / "here",
    )
    assert (out / "model.safetensors").read_bytes() == (
        tmp_path / "here" / "model.safetensors"
    ).read_bytes()


def test_settings_are_read_as_nvflare_passes_them_on():
    """Its simulator leaves dotted keys alone, and its command for submitting jobs makes tables of
    them.
    """
    settings = {
        "strategy.rounds": 2,
        "privacy": {"aggregation": "masked"},
        "partition": {"join": {"2": 2}},
    }
    dotted = {"strategy.rounds": 2, "privacy.aggregation": "masked", "partition.join": {"2": 2}}
    assert Coordinator("digit-pairs", settings=settings).settings == dotted


def test_a_site_without_data_and_a_damaged_file_are_refused(tmp_path):
    with pytest.raises(ExperimentError, match=r"local/fedunseen\.json of site a names no data"):
        Party().answering(Place("a", tmp_path, tmp_path, {}))

    context = Mock(**{"get_identity_name.return_value": "a"})
    context.get_engine().get_workspace().get_site_config_dir.return_value = str(tmp_path)
    (tmp_path / "fedunseen.json").write_text("{")
    with pytest.raises(FedUnseenError, match="is damaged"):
        Place.of(context)


def test_a_first_look_is_that_by_file(dealt, tmp_path):
    for name in SITES:
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).symlink_to(dealt / "data" / name)
    (tmp_path / "kits").symlink_to(dealt / "kits")
    (tmp_path / "kits" / "coordinator").symlink_to(dealt / "kits" / "server")
    by_file = looked_by_file(tmp_path, SITES)
    own = {"credentials": f"{dealt}/kits/{{site}}", "consent": "look names"}
    look = {"job_of": JOB.with_name("nvflare-look"), "args": {"plan": f"{tmp_path}/look.plan"}}
    with simulated(tmp_path, dealt, "", {}, own, **look) as (process, out):
        finish(process, tmp_path)
    assert (out.with_name("fedunseen-look") / "look.json").read_bytes() == by_file
    for site in SITES:
        said = (tmp_path / "simulator" / site / "fedunseen-state" / "messages.log").read_text()
        assert f"{site} would send" in said
