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
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError, FedUnseenError
from processes import command, descendants, environment, sets, until

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from fedunseen.deploy.nvflare.job import Place
from fedunseen.deploy.nvflare_job import Coordinator, Party

pytestmark = pytest.mark.slow
JOB = Path(__file__).parents[2] / "deploy" / "nvflare"
SITES = ["north", "south", "west"]
FEW = {
    "data.train_per_class": 5,
    "data.test_per_class": 2,
    "partition.clients": 3,
    "evaluation.selection": "last",
}


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
        *sets(FEW),
        "--parties",
        ",".join(SITES),
        "--out",
        folder / "data",
    )
    command("certs", "--parties", ",".join(SITES), "--out", folder / "kits")
    (folder / "kits" / "coordinator").rename(folder / "kits" / "server")
    return folder


@contextlib.contextmanager
def simulated(folder, dealt, experiment, settings, own=None):
    """A job in the simulator; its run directory."""
    shutil.copytree(JOB, folder / "job", dirs_exist_ok=True)
    config = folder / "job" / "app" / "config" / "config_fed_server.json"
    job = json.loads(config.read_text())
    job["workflows"][0]["args"] = {"experiment": experiment, "settings": settings}
    config.write_text(json.dumps(job))
    local = folder / "simulator" / "local"
    local.mkdir(parents=True, exist_ok=True)
    classes = {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": ["fedunseen.deploy.nvflare_job."],
    }
    (local / "resources.json").write_text(json.dumps(classes))
    (local / "fedunseen.json").write_text(
        json.dumps({"data": f"{dealt}/data/{{site}}", **(own or {})})
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
        **FEW,
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
    assert (tmp_path / "simulator" / "north" / "fedunseen-model" / "result.json").exists()


def test_a_new_job_continues_from_the_checkpoint_to_the_same_bits(dealt, tmp_path):
    settings = {**FEW, "strategy.name": "scaffold", "strategy.rounds": 30, "method.hidden": [20]}
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
