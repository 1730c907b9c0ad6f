"""Mutated tables and arrays: each gives a benchmark or one sentence, never a traceback and never a huge allocation.

Which mutations are tried is fixed, so that a failure can be repeated: the message names its number.
"""

import io
import resource
import zipfile

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data import Benchmark, read_features
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.data.benchmarks.image_folder import ImageFolder
from published_layouts import write_image

MEMORY = 2**31  # bytes that a mutated file may make us take beyond what the process has: their sizes are kilobytes
WORDS = [
    "", ",", '"', "\n", "\x00", "\ufeff", "nan", "-inf", "1e400", "1e39", "0,5", ";", "\t", "seen", "unseen", "train",
    "name", ": ", "é", "e\u0301", "猫", "\u202e", "9" * 400, "x" * 140_000, "0", "-1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _bounded_memory():
    """Refuse more memory than any of these files needs."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(call, number):
    """Return what a call gives, or the one sentence of its refusal."""
    try:
        return call()
    except DataError as error:
        sentence = str(error)
        assert "\n" not in sentence.strip(), f"mutation {number}: {sentence!r}"
        return sentence[:300]
    except Exception as error:
        pytest.fail(f"mutation {number}: {type(error).__name__}: {error}")


def mutated_text(text, rng):
    """Return a text with one to three pieces replaced, doubled, cut out or moved."""
    for _ in range(rng.integers(1, 4)):
        start, stop = np.sort(rng.integers(0, len(text) + 1, 2))
        stop = min(stop, start + 20)
        piece = text[start:stop]
        new = [WORDS[rng.integers(len(WORDS))], piece * 2, "", piece[::-1]][rng.integers(4)]
        text = text[:start] + new + text[stop:]
    return text


def mutated_bytes(content, rng):
    """Return bytes with some of them changed, cut off or put in."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(0, len(changed)))
        kind = rng.integers(4)
        if kind == 0:
            changed[place] = rng.integers(256)
        elif kind == 1:
            changed[place : place + 8] = rng.bytes(8)
        elif kind == 2:
            changed[place:place] = rng.bytes(int(rng.integers(1, 9)))
        else:
            del changed[place : place + int(rng.integers(1, 40))]
    return bytes(changed)


def mutated_array(array, rng):
    """Return an array of another type, shape or content."""
    types = ["f2", "f8", "i1", "u8", "c8", "S3", "U2", "M8[s]", "?", "U0", "S0", "f4,i4", "O"]
    kind = rng.integers(6)
    if kind == 0:
        with np.errstate(all="ignore"):
            try:
                return array.astype(types[rng.integers(len(types))])
            except (ValueError, TypeError):
                return array[:0]
    if kind == 1:
        return (
            array.reshape([(), (1,) * 6, (-1,), (0, 3), (2, 0)][rng.integers(5)])
            if array.size < 2
            else array[..., None]
        )
    if kind == 2:
        return array[: rng.integers(0, len(array) + 1)]
    if kind == 3:
        return np.array(array.flat[0])
    if kind == 4:
        return np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
    return np.asfortranarray(np.concatenate([array, array]))


def written(arrays):
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **arrays)
    return file.getvalue()


def is_sound(made):
    """Say whether what was loaded can be hashed, which touches all of it, or was refused."""
    return isinstance(made, str) or (isinstance(made, Benchmark) and len(made.fingerprint()) == 64)


def test_mutated_tables(tmp_path, make_folder):
    make_folder(tmp_path)
    whole = (tmp_path / "classes.csv").read_text("utf-8")
    settings = Folder.Settings(root=tmp_path)
    seen = set()
    for number in range(150):
        rng = np.random.default_rng([1, number])
        (tmp_path / "classes.csv").write_text(mutated_text(whole, rng), "utf-8", newline="")
        made = outcome(lambda: Folder.load(settings, 0), number)
        assert is_sound(made), number
        seen.add(isinstance(made, str))
    assert seen == {True, False}  # some mutations do no harm


@pytest.mark.parametrize("part", [False, True])
def test_mutated_arrays(tmp_path, make_folder, part):
    make_folder(tmp_path)
    path = tmp_path / "features.npz"
    with np.load(path) as file:
        whole = dict(file) | {"users": np.arange(len(file["labels"])), "image_shape": np.array([3, 3])}
    whole["features"] = np.clip(whole["features"], 0, 1)
    names = np.array(["zèbre", "猫", "two words", "d", "e", "f", "g", "h", "i", "j", "k", "l"])
    settings = Folder.Settings(root=tmp_path, part=part)
    seen = set()
    for number in range(150):
        rng = np.random.default_rng([2, number])
        arrays = whole | {"labels": names[whole["labels"]]} if number % 2 else dict(whole)
        for key in rng.choice(list(arrays), size=rng.integers(1, 3), replace=False):
            arrays[key] = mutated_array(arrays[key], rng)
        path.write_bytes(written(arrays))
        made = outcome(lambda: Folder.load(settings, 0), number)
        assert is_sound(made), number
        seen.add(isinstance(made, str))
    assert seen == {True, False}


def test_mutated_bytes_of_arrays(tmp_path):
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.save(tmp_path / "a.npy", rows)
    single, packed = (tmp_path / "a.npy").read_bytes(), written({"features": rows, "labels": np.array(["a"] * 6)})
    for number in range(300):
        rng = np.random.default_rng([3, number])
        if number % 3 == 0:
            path, content = tmp_path / "b.npy", mutated_bytes(single, rng)
        elif number % 3 == 1:
            path, content = tmp_path / "b.npz", mutated_bytes(packed, rng)
        else:  # the archive is whole, and a member is not
            path, file = tmp_path / "b.npz", io.BytesIO()
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("features.npy", mutated_bytes(single[:80], rng) + single[80:])
            content = file.getvalue()
        path.write_bytes(content)
        made = outcome(lambda path=path: read_features(path), number)
        assert isinstance(made, (str, np.ndarray))


def test_a_member_of_an_archive_that_nobody_needs_is_not_read(tmp_path, make_folder):
    """It says that it has 2 GiB, and its bytes are not what its checksum says: reading it would fail."""
    make_folder(tmp_path)
    path, whole = tmp_path / "features.npz", Folder.load(Folder.Settings(root=tmp_path), 0)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("unasked.npy", b"x" * 1000)
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 1000) + 500] = 0
    entry = content.rindex(b"unasked.npy") - 46  # in the central directory, with its size of 4 bytes at place 24
    content[entry + 24 : entry + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    assert Folder.load(Folder.Settings(root=tmp_path), 0).fingerprint() == whole.fingerprint()
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        archive.read("unasked.npy")


def test_mutated_features_as_text(tmp_path):
    whole = "x,y,z\n1,2.5,-3\n4e-3,5,6\n"
    for number in range(150):
        (tmp_path / "a.csv").write_bytes(
            mutated_text(whole, np.random.default_rng([4, number])).encode("utf-8", "surrogatepass")
        )
        made = outcome(lambda: read_features(tmp_path / "a.csv"), number)
        assert isinstance(made, str) or np.isfinite(made).all()


@pytest.mark.usefixtures("own_cache")
def test_mutated_folders_of_images(tmp_path):
    """The table, a class's name or the bytes of one picture are not what they should be."""
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "zèbre", "猫")):
        for i in range(4):
            write_image(root / name / f"{i}.png", 4 * c + i)
    table = "name,split,big,fur\ncat,seen,1,2\nzèbre,seen,2,1\n猫,unseen,3,3\n"
    pixels = (root / "cat" / "0.png").read_bytes()
    settings = ImageFolder.Settings(root=root, size=8)
    for number in range(60):
        rng = np.random.default_rng([5, number])
        text = mutated_text(table, rng) if number % 2 else table
        (root / "classes.csv").write_text(text, "utf-8", newline="")
        (root / "cat" / "0.png").write_bytes(pixels if number % 2 else mutated_bytes(pixels, rng))
        assert is_sound(outcome(lambda: ImageFolder.load(settings, 0), number)), number
