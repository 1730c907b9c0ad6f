"""From a folder of photos to a model: init, run, predict a new class by name, adapt.

    python examples/photos.py my-photos new.jpg zebra

my-photos holds a folder of pictures for each class, and perhaps a folder ``unlabelled``.
"""

import subprocess
import sys
from pathlib import Path

from fedunseen import Experiment, run
from fedunseen.pages.report import write_report

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(
            f"{sys.argv[0]}: give a folder with a folder of pictures for each class, a picture, "
            "and a new class's name"
        )
    folder, picture, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    experiment = folder.with_suffix(".toml")
    if not experiment.exists():
        subprocess.run(["fedunseen", "init", str(folder)], check=True)  # writes my-photos.toml
    out = f"runs/{folder.name}"
    done = run(Experiment.load(experiment), out)
    print(
        f"ZSL {done.result['zsl']:.1f} %, H {done.result['gzsl_harmonic']:.1f} %, report: "
        f"{write_report(done)}"
    )
    ranking = done.predict([picture], classes=[name], top=3)[0]
    print(*(f"{item.name}: {item.score:.1f}" for item in ranking), sep="\n")
    if (folder / "unlabelled").is_dir():
        adapted = done.adapt(folder / "unlabelled", out=f"{out}-adapted")
        print(f"after adapting: {adapted.headline()}")
