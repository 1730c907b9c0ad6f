"""Each machine's commands with a root that is read-only and no home: they write to the folders that
they were told alone.

A mount namespace binds the root read-only over itself; the processes have no capability, so that
being root helps none of them.
"""

import subprocess
import sys
import textwrap

import pytest

from fedunseen import Experiment, load_run
from fedunseen.experiment.deal import deal
from processes import command, environment, free_port
from small_runs import CLOSED

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "west")
SETTINGS = {**CLOSED, "partition.clients": 3}
MASKED = {"privacy.aggregation": "masked", "strategy.weights": "uniform"}
SCRIPT = """
set -eu
mount --make-rprivate /
mount --bind "$W" "$W"
mount -o remount,bind,ro /
mount -o remount,bind,rw "$W"
cd "$K"
! touch here 2> /dev/null
"""
FREE = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR", "FEDUNSEEN_CACHE")
COMMAND = (
    'setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$P" -B -m fedunseen'  # no rights
)


def permitted():
    tried = ["unshare", "--mount", "mount", "--make-rprivate", "/"]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def read_only(tmp_path):
    """What runs lines of a shell where ``$W`` alone can be written to; ``f`` is the command."""
    if not permitted():
        pytest.skip("needs the right to mount: run the tests as root")
    deal(Experiment.load("digit-pairs-gaussian", SETTINGS), tmp_path / "data", list(NAMES))
    command("certs", "--parties", ",".join(NAMES), "--out", tmp_path / "kits")
    (tmp_path / "written" / "tmp").mkdir(parents=True)
    more = {"W": tmp_path / "written", "K": tmp_path, "P": sys.executable, "PORT": free_port()}
    given = {key: value for key, value in environment().items() if key not in FREE}
    given |= {key: str(value) for key, value in more.items()}
    given["TMPDIR"] = str(tmp_path / "written" / "tmp")

    def call(lines):
        script = SCRIPT + f'f() {{ {COMMAND} "$@"; }}\n' + textwrap.dedent(lines)
        shell = ["unshare", "--mount", "bash", "-c", script]
        done = subprocess.run(shell, env=given, capture_output=True, text=True, check=False)
        logs = [f"== {log.name}\n{log.read_text()}" for log in (tmp_path / "written").glob("*.log")]
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
        return done.stdout

    return call


def words(settings):
    return " ".join(f"--set={key}={value}".lower() for key, value in settings.items())


def test_a_federation_and_its_model(read_only, tmp_path):
    read_only(f"""
        f host digit-pairs-gaussian {words({**SETTINGS, **MASKED})} --kit "$K/kits/coordinator" \\
            --address 127.0.0.1:$PORT --out "$W/run" --resume > "$W/host.log" 2>&1 & all=$!
        for one in {" ".join(NAMES)}; do
            f join 127.0.0.1:$PORT --data "$K/data/$one" --kit "$K/kits/$one" \\
                --state "$W/state-$one" --out "$W/model-$one" > "$W/$one.log" 2>&1 & all="$all $!"
        done
        for one in $all; do wait $one; done
        f predict "$W/model-north" "$K/data/north/features.npz" --top 1 > "$W/answers.log"
    """)
    written = tmp_path / "written"
    assert (written / "answers.log").read_text().count("features.npz[") > 100
    sums = {load_run(written / f"model-{name}").result["sums_sha256"] for name in NAMES}
    assert sums == {load_run(written / "run").result["sums_sha256"]}


def test_a_federation_by_file(read_only, tmp_path):
    read_only(f"""
        cp -r "$K/kits/coordinator" "$W/kit"
        f offline plan digit-pairs-gaussian {words(CLOSED)} --parties {",".join(NAMES)} \\
            --credentials "$W/kit" --out "$W/plan.fedunseen" > "$W/plan.log" 2>&1
        for one in {" ".join(NAMES)}; do
            f offline answer "$W/plan.fedunseen" --data "$K/data/$one" --credentials "$K/kits/$one" \\
                --state "$W/state-$one" --out "$W/$one.fedunseen" > "$W/$one.log" 2>&1
        done
        f offline merge "$W/plan.fedunseen" "$W"/[nsw]*.fedunseen --out "$W/run" > "$W/merge.log" 2>&1
    """)
    assert load_run(tmp_path / "written" / "run").result["sums_sha256"]
