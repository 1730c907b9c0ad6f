"""Scripts of a folder of ``benchmarks/`` import each other by name, and the tests here do so too."""

import sys
from pathlib import Path

for name in ("speed", "scale", "accuracy"):
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / name))
