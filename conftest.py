"""What all tests share: a cache of their own, and one thread a test process, since several run side by side."""

import os
import tempfile

os.environ["FEDUNSEEN_CACHE"] = tempfile.mkdtemp(prefix="fedunseen-tests-")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is imported
