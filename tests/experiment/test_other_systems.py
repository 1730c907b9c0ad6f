"""What a system other than Linux lacks is imported or used nowhere on the way of a run."""

import subprocess
import sys

SCRIPT = """
import importlib, mmap, os, pkgutil, sys

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "syslog"):
    sys.modules[name] = None  # an import fails
for module, names in ((os, ("sched_getaffinity", "pread", "preadv", "pwrite", "sysconf")), (mmap, ("MADV_DONTNEED",))):
    for name in names:
        delattr(module, name)
import fedunseen

carried = ("fedunseen.engines.carriers.", "fedunseen.tools.nvflare_job", "fedunseen.tools.flower_app")
for found in pkgutil.walk_packages(fedunseen.__path__, "fedunseen."):
    if not found.name.startswith((*carried, "fedunseen.__main__")):
        importlib.import_module(found.name)

from fedunseen.cli.main import main

sys.argv = ["fedunseen", "run", "digit-pairs-gaussian", "--out", sys.argv[1], "--json"]
main()
"""


def test_everything_is_imported_and_a_run_made_without_what_only_linux_has(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/.lock").exists()  # a soft lock, which leaves nothing
