"""What all tests share: a cache of their own, and one thread a test process, since several run side
by side.
"""

import os
import signal
import tempfile
from collections import defaultdict
from importlib.util import find_spec

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker takes its parent's
    os.environ["FEDUNSEEN_CACHE"] = tempfile.mkdtemp(prefix="fedunseen-tests-")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is imported

# What needs a carrier's library can be imported only where that is installed.
collect_ignore_glob = [
    f"src/fedunseen/deploy/{files}"
    for library, files in (
        ("nvflare", "nvflare/*.py"),
        ("nvflare", "look/nvflare_job.py"),
        ("flwr", "flower/*.py"),
        ("flwr", "flower_app.py"),
        ("flwr", "look/flower_app.py"),
    )
    if find_spec(library) is None
]
if find_spec("pydicom") is None:
    collect_ignore_glob.append("src/fedunseen/data/io/dicom/*.py")

# What starts the tests in the background (nohup, some servers of continuous integration) makes them
# ignore Ctrl-C, and the processes that they start, too: the tests that interrupt one would wait for
# ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test, a doctest or a block of the docs has registered."""
    from fedunseen.core import registry

    monkeypatch.setattr(registry, "_REGISTERED", defaultdict(dict))
    monkeypatch.setattr(registry, "_LOADED", {})
    monkeypatch.setenv(registry.VARIABLE, "")  # so that what the test adds to it goes again
