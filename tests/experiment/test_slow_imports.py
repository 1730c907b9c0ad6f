"""What a first run does not wait for, and what only Linux has: imported nowhere on its way. No
clock.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedunseen

SLOW = ("sklearn", "scipy", "pandas", "matplotlib", "jinja2", "cryptography")
BESIDE = ("pages/serve/", "deploy/")  # loaded where they are asked for
SOURCE = Path(fedunseen.__file__).parent
# scikit-learn's interface is its own, a benchmark compares with its classifiers, .mat files are
# written by SciPy, and certificates are made with cryptography.
EXCEPTIONS = {
    "estimator.py",
    "deploy/certs.py",
    "experiment/encode_features.py",
    "research/peers/zero_shot.py",
}


def test_no_module_imports_them_for_whoever_imports_it():
    line = re.compile(rf"^(?:from|import) (?:{'|'.join(SLOW)})\b", re.MULTILINE)
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if line.search(path.read_text())
    }
    assert {
        place for place in found if place in EXCEPTIONS or not place.startswith(BESIDE)
    } == EXCEPTIONS


MISTAKES = {
    "init two": "the folders 'Polar_bear' and 'polar bear' collide",
    "init commas --out other.toml": "'0,5' has a comma where a number has a point: write 0.5",
    "init nowhere": "the folder nowhere is missing",
    "data check commas": "'0,5' has a comma where a number has a point: write 0.5",
    "data check nowhere": "the folder nowhere is missing",
    "data check commas.toml": "a folder is needed: name that of its data, commas",
    "run commas.toml": "'0,5' has a comma where a number has a point: write 0.5",
    "run commas.toml --set data.roof=3": "unknown key 'roof'",
    "run commas.toml --set data.root=nowhere": "the folder nowhere is missing",
    "run commas.toml --set data.root=strange": "the folder strange/zbera is of no class",
    "run digit-pairs --set method.name=fedzls": "unknown method 'fedzls'",
    "run digit-pairs --set metod.name=fedzls": "unknown section 'metod'",
    "run digit-piars": "unknown preset 'digit-piars'",
    "run none.toml": "none.toml is missing",
    "attack backdoor digit-pairs --set data.rooot=x": "unknown key 'rooot'",
    "host digit-pairs --insecure --parties a,b --set method.name=fedzls": "unknown method 'fedzls'",
    "join 127.0.0.1 --insecure --name a --data none": "the folder none is missing",
    "predict run commas --among sene": "--among sene: choose all, unseen or given",
    "report none": "none is not a run directory",
    "serve none": "none is not a run directory",
    "compare run none": "none is not a run directory",
    "history none": "none is not a run directory",
    "sweep distzsl-tabel2": "unknown sweep 'distzsl-tabel2': did you mean 'distzsl-table2'?",
}


@pytest.mark.slow
@pytest.mark.parametrize("typed", MISTAKES)
def test_a_simple_mistake_is_refused_before_pytorch_is_loaded(typed, tmp_path):
    """PyTorch alone takes two seconds and more; which modules are loaded does not depend on how
    busy a machine is.
    """
    for folder in (
        "two/Polar_bear",
        "two/polar bear",
        "two/lion",
        "commas/zebra",
        "commas/lion",
        "strange/zbera",
        "run",
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(b"")
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "commas" / "classes.csv").write_text(
        'name,split,size\nzebra,seen,"0,5"\nlion,unseen,1\n'
    )
    (tmp_path / "strange" / "classes.csv").write_text(
        "name,split,size\nzebra,seen,0.5\nlion,unseen,1\n"
    )
    (tmp_path / "commas.toml").write_text(
        '[data]\nname = "images"\nroot = "commas"\n[method]\nname = "gaussian"\n'
    )
    script = (
        "import atexit, sys\nfrom fedunseen.cli.main import main\n"
        "slow = {'torch', 'transformers', 'scipy', 'sklearn', 'matplotlib'}\n"
        "atexit.register(lambda: print(sorted(slow & set(sys.modules))))\nmain()"
    )
    words = [sys.executable, "-c", script, *typed.split()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "[]")
    assert MISTAKES[typed] in done.stdout + done.stderr


def test_the_package_lists_its_names_without_importing_them():
    script = "import fedunseen, sys; print(*dir(fedunseen)); print('torch' in sys.modules)"
    names, imported = subprocess.check_output(
        [sys.executable, "-c", script], text=True
    ).splitlines()
    assert set(names.split()) == {*fedunseen.__all__, "__version__"}
    assert imported == "False"


SCRIPT = """
import importlib, mmap, os, pkgutil, sys

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "syslog"):
    sys.modules[name] = None  # an import fails
for module, names in ((os, ("sched_getaffinity", "pread", "preadv", "pwrite", "sysconf")), (mmap, ("MADV_DONTNEED",))):
    for name in names:
        delattr(module, name)
import fedunseen

carried = ("fedunseen.deploy.", "fedunseen.deploy.nvflare_job", "fedunseen.deploy.flower_app")
for found in pkgutil.walk_packages(fedunseen.__path__, "fedunseen."):
    if not found.name.startswith((*carried, "fedunseen.__main__")):
        importlib.import_module(found.name)

from fedunseen.cli.main import main

sys.argv = ["fedunseen", "run", "digit-pairs-gaussian", "--out", sys.argv[1], "--json"]
main()
"""


@pytest.mark.slow
def test_everything_is_imported_and_a_run_made_without_what_only_linux_has(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/.lock").exists()  # a soft lock, which leaves nothing
