"""The files of deploy/ keep in step with the command, and with each other."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from fedunseen import Experiment
from fedunseen.cli.main import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def dockerfile():
    """Each stage's instructions: name -> [(instruction, words)]."""
    stages, text = {}, (DEPLOY / "Dockerfile").read_text("utf-8")
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [*stages.get(base, [])]
        elif stages:
            stages[name].append((word, rest))
    return stages


def last(stage, instruction):
    return [rest for word, rest in dockerfile()[stage] if word == instruction][-1]


def composed():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def unit(path):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE))
    return parser


def lines():
    """Every command line of the package that stands in the files: where, its words without
    ``fedunseen``.
    """
    for stage in ("coordinator", "party"):
        health = json.loads(last(stage, "HEALTHCHECK").partition(" CMD ")[2])
        assert health.pop(0) == "fedunseen"
        yield f"Dockerfile, {stage}", json.loads(last(stage, "CMD"))
        yield f"Dockerfile, {stage}, health", health
    for name, service in composed()["services"].items():
        if "command" in service:
            yield f"compose, {name}", service["command"]
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/fedunseen")
        yield path.name, words
    pages = [ROOT / "docs" / f"{name}.md" for name in ("containers", "maintenance", "operating")]
    for page in [*pages, DEPLOY / "compose.yaml"]:
        for found in re.findall(
            r"^(?:\$|#  ) fedunseen (.*)$", page.read_text("utf-8"), re.MULTILINE
        ):
            yield "shown", shlex.split(found)


@pytest.mark.slow
def test_every_command_and_option_of_the_files_exists():
    checked = 0
    for where, words in lines():
        command = get_command(app)
        while hasattr(command, "commands") and not words[0].startswith("--"):
            command, words = command.commands[words[0]], words[1:]
        known = {option for one in command.params for option in one.opts}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, f"{where}: {word}"
                checked += 1
    assert checked > 30


def test_the_experiment_of_the_rehearsal_is_a_valid_one_for_its_three_parties():
    experiment = Experiment.load(DEPLOY / "experiment.toml")
    parties = set(composed()["services"]) - {"coordinator"}
    assert experiment.partition.clients == len(parties) == 3
    comments = (DEPLOY / "compose.yaml").read_text("utf-8")
    assert comments.count(f"--parties {','.join(sorted(parties))}") == 2


def test_images_have_no_root_and_no_compiler():
    for stage in ("coordinator", "party"):
        assert last(stage, "USER") == "10001:10001"
        assert last(stage, "ENTRYPOINT") == '["fedunseen"]'
    assert "apt-get" not in (DEPLOY / "Dockerfile").read_text("utf-8")


def test_what_compose_runs_is_hardened_and_needs_what_the_images_expect():
    for name, service in composed()["services"].items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        stage = service["build"]["target"]
        assert stage == ("coordinator" if name == "coordinator" else "party")
        assert service["build"]["dockerfile"] == "deploy/Dockerfile"
        words = " ".join(service.get("command", json.loads(last(stage, "CMD"))))
        mounted = [volume.split(":")[1] for volume in service["volumes"]]
        for folder in re.findall(r"(?:=| )(/\w+)", words):
            assert any(path.startswith(folder) for path in mounted), f"{name}: {folder}"
        assert all(
            volume.endswith(":ro") or volume.endswith(":/state") for volume in service["volumes"]
        )
    assert composed()["networks"]["federation"]["internal"]  # parties reach the coordinator alone


def test_keys_and_data_never_get_into_an_image():
    kept = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    allowed = {line[1:] for line in kept if line.startswith("!")}
    assert "*" in kept
    instructions = [line for stage in dockerfile().values() for line in stage]
    copied = [rest for word, rest in instructions if word == "COPY" and "--from" not in rest]
    assert {Path(source).name for line in copied for source in line.split()[:-1]} <= allowed
    assert {"deploy/kits/", "deploy/data/"} <= set((ROOT / ".gitignore").read_text("utf-8").split())


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_hardened_and_a_party_gives_up(path):
    service = unit(path)["Service"]
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    expected |= {
        "Restart": "on-failure",
        "SuccessExitStatus": "143",
    }  # of a command that SIGTERM has ended
    assert {key: service[key] for key in expected} == expected
    if "join" in service["ExecStart"]:
        assert service["RestartPreventExitStatus"] == "2"
        assert "--patience" in service["ExecStart"]
    else:
        assert "--resume" in service["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path, tmp_path):
    text = path.read_text("utf-8").replace(
        "/opt/fedunseen/bin/fedunseen", "/bin/true"
    )  # it looks for the program
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / path.name], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
