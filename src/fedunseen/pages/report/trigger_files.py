"""What an attacked run has stored of its triggers: pictures, and sums of features."""

from pathlib import Path
from typing import Any

from fedunseen.federation.run_directory import load_params, stored_rounds


def magnitudes(run: Path) -> dict[int, dict[str, Any]]:
    """Return round -> {``clean`` or a trigger: gamma (n,)} of an attacked run's directory (its
    first seed's).
    """
    return stored_rounds(_magnitudes_folder(run))


def pictures(run: Path) -> list[Any]:
    """Return (p, channels, height, width) a few samples of every trigger of an attacked run, where
    there are images.
    """
    path = _magnitudes_folder(run) / "triggers.safetensors"
    samples = load_params(path) if path.exists() else {}
    return [samples[name].numpy() for name in sorted(samples)]


def _magnitudes_folder(run: Path) -> Path:
    return next(iter(sorted(run.glob("seed-*/magnitudes"))), run / "magnitudes")
