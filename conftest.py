"""What all tests share: a cache of their own, and one thread a test process, since several run side by side."""

import os
import tempfile
from importlib.util import find_spec

os.environ["FEDUNSEEN_CACHE"] = tempfile.mkdtemp(prefix="fedunseen-tests-")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is imported

# These are read by an engine's processes and import it at once.
collect_ignore_glob = [
    f"src/fedunseen/engines/{pattern}"
    for library, pattern in (("nvflare", "nvflare_*.py"), ("flwr", "flower_*.py"))
    if find_spec(library) is None
]
