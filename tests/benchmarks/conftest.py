"""Scripts of ``benchmarks/`` import each other by name, and the tests of this folder import them so too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
