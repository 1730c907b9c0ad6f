"""Files that mean harm, a full disk, and mutations of all that is read: one sentence each, within
bounds.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from fedunseen import FedUnseenError, load_run
from fedunseen.core.arrays import declared_bytes
from fedunseen.core.errors import RunDirectoryError
from fedunseen.data import read_features
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report import write_pages, write_report
from fedunseen.pages.report.reproducibility import shown_command
from processes import environment
from refusals import message_of
from same import write_again


def under_limits(*words, code=None, memory=2**30, file_size=None, folder=None, seconds=120):
    """Run ``fedunseen WORDS``, or ``python -c CODE WORDS``, within ``memory`` bytes beyond what its
    imports map.

    Those are 3 GiB of address space for PyTorch's libraries. A file of more than ``file_size``
    bytes fails as on a full disk. What hangs or takes minutes fails after ``seconds`` of the clock,
    and a machine that is busy does not.
    """

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (memory + 3 * 2**30,) * 2)
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size,) * 2)

    start = ["-m", "fedunseen"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *start, *map(str, words)], preexec_fn=limit, timeout=seconds, cwd=folder, text=True,
        env={**environment(), "GOMP_SPINCOUNT": "0"}, capture_output=True, errors="replace", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(*words, **how):
    """Return the one sentence with which a command refuses what it gets."""
    done = under_limits(*words, **how)
    assert done.returncode == 2, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    lines = done.stderr.strip().splitlines()
    assert [line[:7] for line in lines] == ["error: "], done.stderr[-2000:]
    return lines[0]


READ = """
import sys
from pathlib import Path
from fedunseen.core.errors import DataError
from fedunseen.data import read_features
try:
    print(read_features(Path(sys.argv[1])).shape)
except DataError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_DEFLATED, pytest.param(zipfile.ZIP_BZIP2, marks=pytest.mark.slow)]
)
def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path, method):
    """An array of 400 million zeros: a thousandth of it on disk."""
    path, header = (
        tmp_path / "a.npz",
        {"descr": "|u1", "fortran_order": False, "shape": (4_000_000, 100)},
    )
    with (
        zipfile.ZipFile(path, "w", method) as archive,
        archive.open("features.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(40):
            member.write(bytes(10**7))
    done = under_limits(path, code=READ, memory=2**28)
    assert done.stdout.startswith(f"refused: {path}"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("reads", [declared_bytes, read_features])
@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_a_header_is_read_within_bounds_whatever_length_it_states(reads, name, tmp_path):
    """NumPy reads all of a header before it looks at its length: up to 4 GiB."""
    path, length = tmp_path / name, 2**26
    header = b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + b" " * length
    path.write_bytes(header)
    if name == "a.npz":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("features.npy", header)
    del header
    tracemalloc.start()
    sentence = message_of(reads, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sentence == f"{path} is damaged or not a NumPy file: save it again"
    assert peak < 2**22


@pytest.mark.slow
def test_a_million_lines_of_features_are_read_a_line_at_a_time(tmp_path):
    (tmp_path / "a.csv").write_text("".join(f"{i % 97},{i % 89}.5\n" for i in range(1_000_000)))
    assert under_limits(tmp_path / "a.csv", code=READ, memory=2**28).stdout == "(1000000, 2)\n"


@pytest.mark.slow
def test_a_table_of_a_million_classes_is_refused(tmp_path):
    rows = "".join(f"c{i},seen,{i % 97},{i % 89}.5\n" for i in range(1_000_000))
    (tmp_path / "classes.csv").write_text(f"name,split,a,b\n{rows}")
    done = under_limits("data", "check", tmp_path)
    assert done.returncode == 2
    assert "more than 200,000 lines" in done.stdout


PHOTO = """
import re, sys
from pathlib import Path
from fedunseen.core.errors import DataError
from fedunseen.data.io.depth import eight_bits
from fedunseen.data.io.images import opened_image, square
peak = lambda: int(re.search("VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
try:
    with opened_image(Path(sys.argv[1])) as file:
        shown = eight_bits(file, (0, 255))  # a photo of 32-bit numbers says no range of its own
        print(square(shown, 8, 9, eval(sys.argv[2]))[:, 4, 4].tolist(), end=" ")
except DataError as error:
    print("refused:", error, end=" ")
print(peak() - before >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "mode", "size", "mib"),
    [
        ("jpg", "RGB", (12_000, 9_000), 150),
        ("png", "RGBA", (12_000, 9_000), 600),
        ("png", "P", (9_000, 12_001), 250),
        ("tif", "F", (4_000, 4_000), 300),
        ("png", "L", (13_377, 13_377), 350),
        ("png", "L", (13_378, 13_378), 50),
    ],
)
def test_a_photo_of_many_megapixels(tmp_path, suffix, mode, size, mib):
    """A gray one, white in a box; what Pillow takes for a bomb is refused before it is decoded."""
    box = (size[0] // 2, size[1] // 2, size[0], size[1])
    picture = Image.new("L", size, 100)
    picture.paste(255, box)
    exif = Image.Exif()
    exif[274] = 3  # upside down
    path = tmp_path / f"a.{suffix}"
    picture.convert(mode).save(path, exif=exif, **{"compress_level": 1} if suffix == "png" else {})
    del picture
    found, peak = under_limits(path, (0, 0, *box[:2]), code=PHOTO).stdout.rsplit(" ", 1)
    message = f"refused: {path} has too many pixels to be read: make it smaller"
    assert found == (
        message if size[0] * size[1] > 2 * Image.MAX_IMAGE_PIXELS else "[255, 255, 255]"
    )
    assert int(peak) < mib


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("data", "check"), ("init", "--force"), ("data", "check", "--images")]
)
def test_pipes_and_loops_of_links_end(tmp_path, words):
    """A folder of pictures with a pipe, a loop of links, and two links to one folder in each of
    forty folders.
    """
    root = tmp_path / "photos"
    (root / "cat").mkdir(parents=True)
    (root / "classes.csv").write_text("name,split,a,b\ncat,seen,1,2\ndog,unseen,2,1\n")
    os.mkfifo(root / "cat" / "1.png")
    (root / "cat" / "up").symlink_to("..")
    for depth in range(40):
        folder = root.joinpath("deep", *["next"] * depth)
        (folder / "next").mkdir(parents=True)
        (folder / "a").symlink_to("next")
        (folder / "b").symlink_to("next")
    (root / "cat" / "deep").symlink_to("../deep")
    assert under_limits(*words, root).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipe.toml", "device.toml", "classes.csv", "features.npz"])
def test_a_pipe_or_a_device_in_place_of_a_file(tmp_path, name):
    if name == "device.toml":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / name)
    if name.endswith("toml"):
        assert "pipe or a device" in refused("run", name, folder=tmp_path)
        return
    if name == "features.npz":
        (tmp_path / "classes.csv").write_text("name,split,a,b\ncat,seen,1,2\ndog,unseen,2,1\n")
    assert under_limits("data", "check", tmp_path).returncode == 2
    assert under_limits("init", tmp_path, "--out", tmp_path / "a.toml").returncode == 2


TOML = {
    "arrays": "a = " + "[" * 100_000,
    "shallower arrays": '[data]\nname = "digit-pairs"\nx = ' + "[" * 90 + "]" * 90,
    "parts of a key": ".".join(["a"] * 50_000) + " = 1",
    "tables": "x = " + "{a = " * 2000 + "1" + "}" * 2000,
    "digits": "[run]\nseed = " + "9" * 100_000,
    "length": "# comment\n" * 5_000_000,
    "name": '[data]\nname = "' + "x" * 200_000 + '"',
    "a date that is none": "a = 2024-13-99",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_an_experiment_file_that_means_harm(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    assert len(refused("run", tmp_path / "a.toml")) < 4100


MANIFESTS = {
    "nested": "[" * 100_000,
    "nested tables": '{"experiment": ' + '{"a": ' * 500 + "1" + "}" * 501,
    "number": "1" * 10_000,
    "list": "[]",
    "types": json.dumps({"experiment": [], "data_fingerprint": 1, "input_shape": "x"}),
    "experiment": json.dumps(
        {"experiment": {"data": 3}, "data_fingerprint": 1, "input_shape": "x"}
    ),
    "bytes": "\x00\x01",
}


@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_means_harm(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "result.json").write_text('{"rounds": 1, "selection": "last"}')
    assert "\n" not in message_of(lambda: load_run(tmp_path).experiment, error=FedUnseenError)


FUZZ = Path(__file__).parents[1] / "tools" / "fuzz.py"


@pytest.mark.parametrize("count", [56, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutations(count):
    code = f"exec(compile(open({str(FUZZ)!r}).read(), 'fuzz', 'exec'))"
    result = json.loads(under_limits("--count", count, code=code, seconds=900).stdout)
    assert (result["wrong"], sum(result["counts"].values())) == ([], count)
    assert result["peak_mib"] < 1536  # with all libraries
    kinds = {key.split()[0] for key in result["counts"]}
    assert count < 2000 or set(result["counts"]) == {
        f"{kind} {end}" for kind in kinds for end in ("read", "refused")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run in it, and a table of a new class."""
    folder = tmp_path_factory.mktemp("disk")
    assert (
        under_limits("run", "digit-pairs-gaussian", "--out", "run", folder=folder).returncode == 0
    )
    head, first = (folder / "run" / "classes.csv").read_text().splitlines()[:2]
    (folder / "new.csv").write_text(f"{head}\nnew,unseen,{first.partition(',seen,')[2]}\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("run", "digit-pairs-gaussian", "--out", "made"),
        ("data", "deal", "digit-pairs", "--out", "made"),
        ("export", "run", "--csv", "made"),
        ("export", "run", "--out", "made"),
        ("learn", "run", "--classes", "new.csv", "--out", "made"),
    ],
    ids=" ".join,
)
def test_a_full_disk(finished, tmp_path, words):
    """Files of more than 2 KiB cannot be written, as on a disk that is full."""
    (tmp_path / "run").symlink_to(finished / "run")
    (tmp_path / "new.csv").symlink_to(finished / "new.csv")
    sentence = refused(*words, folder=tmp_path, file_size=2048)
    assert "made" in sentence
    assert "writ" in sentence
    left = {path.name for path in tmp_path.iterdir()} - {"run", "new.csv"}
    assert left <= ({"made"} if words[0] == "run" or "--csv" in words else set())
    assert not list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob("model.*"))
    for table in tmp_path.glob("made/*.csv"):
        assert table.read_text().endswith("\n")


@pytest.fixture
def strange(finished, tmp_path):
    """Return a copy of the finished run as a stranger may hand it on, and a file of the user."""
    victim = tmp_path / "victim.txt"
    victim.write_text("mine\n")
    return shutil.copytree(finished / "run", tmp_path / "strange"), victim


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report.html", "README.md"])
def test_pages_replace_a_link_of_a_run_directory(strange, name):
    run, victim = strange
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    write_pages(load_run(run))
    assert (victim.read_text(), (run / name).is_symlink()) == ("mine\n", False)


@pytest.mark.slow
def test_the_command_replaces_a_linked_report_and_a_pipe(strange):
    run, victim = strange
    report = run / "report.html"
    for put in (report.symlink_to, lambda _: os.mkfifo(report)):
        report.unlink(missing_ok=True)
        put(victim)
        assert under_limits("report", run, seconds=60).returncode == 0
        assert (victim.read_text(), report.is_file(), report.is_symlink()) == (
            "mine\n",
            True,
            False,
        )


def test_a_run_directory_that_is_itself_a_link_stays_one(strange, tmp_path):
    run, _ = strange
    (tmp_path / "own").symlink_to(run)
    (run / "report.html").unlink()
    assert write_report(load_run(tmp_path / "own")) == tmp_path / "own" / "report.html"
    assert (tmp_path / "own").is_symlink()
    assert (run / "report.html").is_file()


def test_a_page_at_a_place_that_the_user_names_keeps_his_link(strange, tmp_path):
    run, victim = strange
    (tmp_path / "page.html").symlink_to(victim)
    write_report(load_run(run), tmp_path / "page.html")
    assert (tmp_path / "page.html").is_symlink()
    assert victim.read_text() != "mine\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "spaces"])
def test_a_run_with_links_is_not_resumed(strange, tmp_path, name):
    run, victim = strange
    (run / "result.json").unlink()
    if name == "metrics.jsonl":
        (run / name).unlink()
        (run / name).symlink_to(victim)
    else:
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).symlink_to(tmp_path)
    words = ("run", "digit-pairs-gaussian", "--out", run, "--resume")
    assert f"{run / name} is a link" in refused(*words)
    assert victim.read_text() == "mine\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "encoder"])
@pytest.mark.parametrize("command", ["learn", "forget"])
def test_no_link_of_a_run_directory_is_copied(strange, finished, tmp_path, command, name):
    """Files of the user would be in the new run directory, or be written through its links."""
    run, victim = strange
    (tmp_path / "aside").mkdir()
    linked = victim if name == "encoder" else (run / name).rename(tmp_path / "aside" / name)
    (run / name).symlink_to(linked)
    told = {"learn": ("--classes", finished / "new.csv"), "forget": ("--party", "0")}[command]
    assert f"{run / name} is a link" in refused(command, run, *told, "--out", tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_a_linked_report_is_left_out_of_a_changed_run(strange, finished, tmp_path):
    run, victim = strange
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(victim)
    words = ("learn", run, "--classes", finished / "new.csv", "--out", tmp_path / "made")
    assert under_limits(*words).returncode == 0
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize(
    "bits", [[1.0], [17.0], [1e30], [np.inf], [np.nan], [-8.0], [], [8.0, 8.0]], ids=str
)
def test_quantization_has_2_to_16_bits(strange, bits):
    run, _ = strange
    path = run / "model.safetensors"
    one = np.ones(1, np.float32)
    quantize = {"bits": np.array(bits, np.float32), "step": one, "offset": one}
    tensors = {f"scaling/quantize.{name}": value for name, value in quantize.items()}
    write_again(path, tensors)
    sentence = message_of(lambda: load_run(run).scaler.quantization, error=FedUnseenError)
    assert ("holds NaN" if np.isnan(bits).any() else "from 2 to 16") in sentence


@pytest.mark.parametrize("name", ["labels", "zsl_answers", "gzsl_answers"])
@pytest.mark.parametrize("value", [2**63 - 1, 1000, -1, 0.5], ids=str)
def test_labels_and_answers_are_ids_of_classes(strange, name, value):
    """Counting up to 2^63 - 1 aborted the process."""
    run, _ = strange
    path = run / "evaluation.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: np.full(len(tensors[name]), value)}, path)
    count = len(load_run(run).space.names)
    for read in (lambda: load_run(run).evaluation, RunDirectory(run)._measured):
        sentence = message_of(read, error=RunDirectoryError)
        assert sentence.startswith(f"{path} is damaged: {name!r} are not ids of the {count} ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("metrics.jsonl", ("report", "RUN")),
        ("parties.json", ("report", "RUN")),
        ("evaluation.safetensors", ("report", "RUN")),
        ("model.safetensors", ("report", "RUN")),
        ("model.safetensors", ("predict", "RUN", "FILE")),
        ("parties.json", ("forget", "RUN", "--party", "0", "--out", "OUT")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_pipe_or_a_device_in_a_run_directory(strange, tmp_path, name, words, kind):
    run, _ = strange
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    np.save(tmp_path / "a.npy", np.zeros((1, 64), np.float32))
    places = {"RUN": run, "FILE": tmp_path / "a.npy", "OUT": tmp_path / "made"}
    sentence = refused(*(places.get(word, word) for word in words), seconds=30)
    assert str(run / name) in sentence
    assert "a pipe or a device" in sentence


def test_words_of_a_recorded_command_stay_on_one_line():
    record = {"command": ["fedunseen", "run", "a\nrm -rf b", "--out", "c\u2028d"]}
    assert shown_command(record) == "fedunseen run 'a rm -rf b' \\\n    --out 'c d'"


@pytest.mark.slow
def test_standard_output_on_a_full_disk(tmp_path):
    code = "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.argv = ['fedunseen', 'presets']\n"
    done = under_limits(code=code + "from fedunseen.cli.main import main; main()", folder=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
