"""What is missing, damaged or inconsistent in a benchmark's files is one sentence, which names the
place.
"""

import gzip
import io
import struct
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

import published_layouts as layouts
from fedunseen.core.registry import find
from fedunseen.data import BENCHMARKS, BenchmarkLoader, DataSettings
from refusals import message_of

VECTORS = "good 1 0\nbad -1 0\nday 0 2\n, 0.5 0.5\n! 3 3\ncafé 0 5\n"
GREEK = "images_background/Greek/character01/0001_01.png"


def alphabets(root, **changes):
    layouts.write_omniglot(
        root, {"Greek": 3, "Latin": 2, "N_Ko": 2, "Korean": 1, "Hebrew": 2, **changes}
    )


COPIES = {  # a small good copy of the benchmark's files -> what writes it
    "mnist": lambda root: layouts.write_mnist(root, packed=False),
    "mnist.gz": layouts.write_mnist,
    "omniglot": alphabets,
    "miniimagenet": layouts.write_miniimagenet,
    "cifar100": layouts.write_cifar,
    "sent140": lambda root: layouts.write_sentiment140(root / "a.csv"),
    "cub": lambda root: layouts.write_cub(root, images=False),
    "apy": layouts.write_apy,
}


def load(name, root, **settings):
    kind = find("data", name)
    if name == "sent140":
        (root.parent / "vectors.txt").write_text(VECTORS, "utf-8")
        settings = {"vectors": str(root.parent / "vectors.txt"), **settings}
    return kind.load(kind.Settings(root=root, **settings), seed=0)


def change(edit):
    return lambda path: path.write_bytes(edit(path.read_bytes()))


def cut(count):
    return change(lambda whole: whole[:count])


def add(more):
    return change(lambda whole: whole + more)


def put(content):
    return change(lambda whole: content if isinstance(content, bytes) else content.encode())


def in_zip(edit):
    """Write a zip file again with other contents."""

    def spoil(path):
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        edit(content)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in content.items():
                archive.writestr(name, data)

    return spoil


def tweets(polarity, text):
    return lambda path: layouts.write_sentiment140(
        path, rows=[(polarity, f"user{i}", text) for i in range(10)]
    )


NARROW = io.BytesIO()
Image.new("L", (100, 105)).save(NARROW, "png")
TRAIN, TRAIN_LABELS, TEST_LABELS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-labels-idx1-ubyte",
)
PACKED = f"{TEST_LABELS}.gz"
ZIP, LIST, PHOTO = "images_background.zip", "val.csv", "images/n0200000001.jpg"
MATRIX, OBJECTS = (
    "attributes/class_attribute_labels_continuous.txt",
    "attribute_data/apascal_test.txt",
)
AGAIN = ": get it again ({page})"
# a copy, one of its files, what happens to it, and the message, from after the file's path on
CASES = [
    ("mnist", TRAIN, cut(-100), f" is cut short, 46,940 of 47,040 bytes{AGAIN}"),
    ("mnist", TRAIN, add(b"x"), " continues after the 47,040 bytes that it"),
    ("mnist", TRAIN, change(lambda old: b"P5 28 28 " + old), " is not an IDX file of images (it"),
    ("mnist", TRAIN, put(struct.pack(">4I", 2051, 2**31, 28, 28)), " says that it holds"),
    ("mnist", TRAIN_LABELS, put(struct.pack(">2I", 2049, 7) + bytes(7)), f"{{root}}/{TRAIN} has 60 "
                                                                         "image"),
    ("mnist", TRAIN_LABELS, put(struct.pack(">2I", 2049, 60) + bytes([11] * 60)),
     f" has the label 11, but MNIST's are 0 to 9{AGAIN}"),
    ("mnist", TEST_LABELS, put(struct.pack(">2I", 2049, 40) + bytes([0, 1, 2, 3, 4, 6, 7, 8] * 5)),
     "mnist: the class '5' has no sample: get its four files again ({page})"),
    ("mnist", TRAIN, lambda path: layouts.write_mnist(path.parent, np.zeros((30, 32, 28), np.uint8), packed=False),
     f" holds images of 32 x 28 pixels, not 28 x 28{AGAIN}"),
    ("mnist.gz", PACKED, cut(-12), f" is cut short{AGAIN}"),
    ("mnist.gz", PACKED, change(gzip.decompress), " is damaged, or not a gzip"),
    ("mnist.gz", PACKED, put(gzip.compress(struct.pack(">2I", 2049, 40) + bytes(10**8))),  # a bomb
     f" continues after the 40 bytes that it says it holds{AGAIN}"),
    ("mnist.gz", PACKED, Path.unlink, f"{{root}} has no {TEST_LABELS} or {PACKED} or "
                                      "t10k-labels.idx1"),
    ("omniglot", ZIP, cut(-30), f" is cut short, or not a zip file{AGAIN}"),
    ("omniglot", ZIP, change(lambda old: old[:120] + bytes(20) + old[140:]), ": Greek/character0"),
    ("omniglot", ZIP, in_zip(lambda content: content.update({GREEK: bytes(10**7)})), ": "
                                                                                     "Greek/character01/0"),
    ("omniglot", ZIP, in_zip(lambda content: content.update({GREEK: NARROW.getvalue()})), ": "
                                                                                          "Greek/character01/"),
    ("omniglot", ZIP, in_zip(lambda content: content.pop("images_background/Latin/character02/0005_02.png")),
     f": Latin/character02 has 1 drawings, not 2{AGAIN}"),
    ("omniglot", ZIP, lambda path: alphabets(path.parent, Korean=0), " has 9 characters, not "
                                                                     f"10{AGAIN}"),
    ("omniglot", ZIP, lambda path: alphabets(path.parent, Korean=0, Korea=1),
     f"omniglot: images_background lacks the alphabet 'Korean'{AGAIN}"),
    ("miniimagenet", LIST, put("label,filename\nn01,a.jpg\n"), " does not begin with the line"),
    ("miniimagenet", LIST, put("filename,label\n"), f" names no image{AGAIN}"),
    ("miniimagenet", LIST, put("filename,label\na.jpg,n01\n"), ", line 2: the class 'n01' is in"),
    ("miniimagenet", LIST, put("filename,label\n../a.jpg,n09\n"), ", line 2: '../a.jpg' and 'n09'"),
    ("miniimagenet", LIST, Path.unlink, " is missing: get Ravi's lists train.csv, val.csv and "
                                        "test.csv"),
    ("miniimagenet", PHOTO, cut(300), " is not a readable image"),
    ("miniimagenet", PHOTO, Path.unlink, " is missing (1 of 15 images"),
    ("cifar100", "test.bin", cut(-7), " has 307393 bytes, not 307400: unpack it again"),
    ("cifar100", "train.bin", change(lambda old: bytes(len(old))), " has not 2 images of"),
    ("cifar100", "fine_label_names.txt", Path.unlink, " is missing: unpack CIFAR-100's"),
    ("cifar100", "fine_label_names.txt", put("apple\n"), " names 1 classes, not 100:"),
    ("cifar100", "fine_label_names.txt", change(lambda old: old.replace(b"apple", b"appel")),
     " names the class 'appel' where CIFAR-100 has 'apple': unpack it again"),
    ("sent140", "a.csv", add(b"4,1,Mon,NO_QUERY,me\n"), ", line 61: 5 columns,"),
    ("sent140", "a.csv", add(b"1,1,Mon,NO_QUERY,me,hello\n"), ", line 61: the"),
    ("sent140", "a.csv", add(b"4,1,Mon,NO_QUERY,me," + b"x" * 200_000),
     ", line 61: not a CSV file (field larger than field limit (131072)): get it again"),
    ("sent140", "a.csv", put("2,1,Mon,NO_QUERY,me,hello\n"), " has no negative or positive tweet: "
                                                             "get it"),
    ("sent140", "a.csv", tweets(4, "good day"),
     "sent140: the class 'negative' has no sample: take more tweets (data.tweets) or more users "
     "(data.min_per_user)"),
    ("sent140", "a.csv", tweets(0, "unheard"),
     ": none of 10 tweets has a word with a vector in {root.parent}/vectors.txt: name other "
     "vectors in data.vectors"),
    ("cub", "images.txt", put("1 a/b.jpg\n1 c/d.jpg\n"), ", line 2: the number 1 occurs twice"),
    ("cub", "images.txt", put("one a/b.jpg\n"), ", line 1: 'one a/b.jpg' is not a number and a "
                                                "text"),
    ("cub", "images.txt", put("\n"), " is empty: unpack it again"),
    ("cub", "images.txt", put(b"\xff"), " cannot be read as text: unpack it again"),
    ("cub", "image_class_labels.txt", put("1 9\n"), " gives no class of classes.txt to"),
    ("cub", MATRIX, put("1 2 3\n"), ", line 1: 3 numbers, but there are"),
    ("cub", MATRIX, put("1 two\n"), ": not a number: 'two'"),
    ("cub", MATRIX, put(" ".join(["1"] * 312) + "\n"), " has 1 lines, but there are 6 classes"),
    ("apy", OBJECTS, put("2008_000004.jpg bird 1 1 9"),
     ", line 1: 5 words, but image, class, four corners and 64 attributes are 70"),
    ("apy", OBJECTS, put("2008_000004.jpg brid 1 1 9 9" + " 0" * 64),
     ", line 1: unknown class 'brid': did you mean 'bird'?"),
    ("apy", OBJECTS, put("2008_000004.jpg bird 1 1 9 nine" + " 0" * 64), ", line 1: corners and"),
]  # fmt: skip


@pytest.mark.usefixtures("no_text_encoder", "small_copies")
@pytest.mark.parametrize(
    ("copy", "file", "spoil", "message"), CASES, ids=[f"{i} {c[0]}" for i, c in enumerate(CASES)]
)
def test_damaged_files_are_named(tmp_path, copy, file, spoil, message):
    root, name = tmp_path / "data set", copy.removesuffix(".gz")
    root.mkdir()
    COPIES[copy](root)
    spoil(root / file)
    said = message_of(load, name, root).removeprefix(f"{root}/{file}")
    assert said.startswith(message.format(root=root, page=find("data", name).page))


CIFAR = "unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, {page}) there"
ABSENT = {  # what to get from the page of a benchmark
    "mnist": "get MNIST ({page})",
    "omniglot": "get Omniglot ({page})",
    "cub": "get CUB-200-2011 ({page})",
    "sun": "get SUN Attribute Database ({page})",
    **dict.fromkeys(("cifar100", "cifar-fs", "fc100"), CIFAR),
    "sent140": "unpack trainingandtestdata.zip ({page}) there, or name a CSV file of its six "
    "columns in",
    "miniimagenet": "get Ravi's lists train.csv, val.csv and test.csv ({page})",
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_wrong_root_says_what_to_get(tmp_path, name):
    for root in (tmp_path, tmp_path / "nowhere"):
        message = message_of(load, name, root)
        for part in (
            str(root),
            ABSENT[name].format(page=find("data", name).page),
            "data.",
        ):  # the setting to correct
            assert part in message


def test_a_pickle_is_refused(tmp_path):
    path = tmp_path / "cifar-100-python" / "train"
    path.parent.mkdir()
    path.write_bytes(b"\x80\x02}")
    for root in (tmp_path, path.parent):
        said = message_of(load, "cifar100", root)
        assert said.startswith(f"{path} is CIFAR-100's Python version, a pickle, and nothing")


def test_damaged_sheets_are_named(real_data, tmp_path, no_text_encoder):
    for path in (real_data / "cifar100").glob("*.webp"):
        (tmp_path / path.name).symlink_to(path)
    bear = tmp_path / "03_bear.webp"
    for spoil, message in (
        (bear.unlink, f"{tmp_path} has 99 of 100 sheets, that of class 03 not once"),
        (
            lambda: Image.new("RGB", (30, 20)).save(bear),
            f"{bear} has 30 x 20 pixels, not 960 x 640",
        ),
        (lambda: bear.write_bytes(b"no image"), f"{bear} is not a readable image"),
    ):
        spoil()
        assert (
            message_of(load, "cifar100", tmp_path, train_per_class=1)
            == f"{message}: unpack it again"
        )


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_where_the_registry_says(name):
    benchmark = find("data", name)
    assert issubclass(benchmark, BenchmarkLoader)
    assert issubclass(benchmark.Settings, DataSettings)
    assert get_args(benchmark.Settings.model_fields["name"].annotation) == (name,)
    assert all(text in benchmark.describe() for text in (benchmark.title, benchmark.files()))
    assert ("root" in benchmark.Settings.model_fields) == (
        benchmark.files() != "nothing to download"
    )
