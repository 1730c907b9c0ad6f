"""What is missing, damaged or inconsistent in a benchmark's files is one sentence, which names the place."""

import gzip
import io
import struct
import zipfile
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.registry import find
from fedunseen.data import BENCHMARKS, BenchmarkLoader, DataSettings
from published_layouts import (
    write_apy,
    write_cifar,
    write_cub,
    write_deepfashion,
    write_miniimagenet,
    write_mnist,
    write_omniglot,
    write_sentiment140,
)
from refusals import message_of

VECTORS = "good 1 0\nbad -1 0\nday 0 2\n, 0.5 0.5\n! 3 3\ncafé 0 5\n"
GREEK = "images_background/Greek/character01/0001_01.png"


def alphabets(**changes):
    return lambda root: write_omniglot(root, {"Greek": 3, "Latin": 2, "N_Ko": 2, "Korean": 1, "Hebrew": 2, **changes})


LOADERS = {  # a small good copy -> the benchmark, and what writes it
    "mnist": ("mnist", lambda root: write_mnist(root, packed=False)),
    "mnist.gz": ("mnist", write_mnist),
    "mnist wide": ("mnist", lambda root: write_mnist(root, np.zeros((30, 32, 28), np.uint8), packed=False)),
    "omniglot": ("omniglot", alphabets()),
    "omniglot few": ("omniglot", alphabets(Korean=0)),
    "omniglot other": ("omniglot", alphabets(Korean=0, Korea=1)),
    "miniimagenet": ("miniimagenet", write_miniimagenet),
    "cifar": ("cifar100", write_cifar),
    "sent140": ("sent140", lambda root: write_sentiment140(root / "a.csv")),
    "cub": ("cub", lambda root: write_cub(root, images=False)),
    "apy": ("apy", write_apy),
    "deepfashion": ("deepfashion", write_deepfashion),
}


def load(name, root, **settings):
    kind = find("data", name)
    if name == "sent140":
        (root.parent / "vectors.txt").write_text(VECTORS, "utf-8")
        settings = {"vectors": str(root.parent / "vectors.txt"), **settings}
    return kind.load(kind.Settings(root=root, **settings), seed=0)


def cut(file, count):
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[:count])


def put(file, content):
    return lambda root: (root / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def change(file, edit):
    return lambda root: (root / file).write_bytes(edit((root / file).read_bytes()))


def remove(file):
    return lambda root: (root / file).unlink()


def keep(root):
    """Change nothing."""


def in_zip(edit, file="images_background.zip"):
    """Write a zip file again with other contents."""

    def spoil(root):
        with zipfile.ZipFile(root / file) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        edit(content)
        with zipfile.ZipFile(root / file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in content.items():
                archive.writestr(name, data)

    return spoil


def png(width, height):
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "png")
    return file.getvalue()


TRAIN, TEST_LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
ZIP, LIST = "images_background.zip", "val.csv"
MATRIX, OBJECTS = "attributes/class_attribute_labels_continuous.txt", "attribute_data/apascal_test.txt"
MARKS = "Anno/list_attr_img.txt"
AGAIN = ": get it again ({page})"
CASES = [
    # MNIST
    ("mnist", cut(TRAIN, -100), f"{{root}}/{TRAIN} is cut short, 46,940 of 47,040 bytes{AGAIN}"),
    ("mnist", change(TRAIN, lambda whole: whole + b"x"), f"{{root}}/{TRAIN} continues after the 47,040 bytes that it"),
    ("mnist", change(TRAIN, lambda whole: b"P5 28 28 " + whole), f"{{root}}/{TRAIN} is not an IDX file of images (it"),
    ("mnist", put(TRAIN, struct.pack(">4I", 2051, 2**31, 28, 28)), f"{{root}}/{TRAIN} says that it holds"),
    ("mnist", put("train-labels-idx1-ubyte", struct.pack(">2I", 2049, 7) + bytes(7)), f"{{root}}/{TRAIN} has 60 image"),
    ("mnist", put("train-labels-idx1-ubyte", struct.pack(">2I", 2049, 60) + bytes([11] * 60)),
     f"{{root}}/train-labels-idx1-ubyte has the label 11, but MNIST's are 0 to 9{AGAIN}"),
    ("mnist", put(TEST_LABELS, struct.pack(">2I", 2049, 40) + bytes([0, 1, 2, 3, 4, 6, 7, 8] * 5)),
     "mnist: the class '5' has no sample: get its four files again ({page})"),
    ("mnist wide", keep, f"{{root}}/{TRAIN} holds images of 32 x 28 pixels, not 28 x 28{AGAIN}"),
    ("mnist.gz", cut(TEST_LABELS + ".gz", -12), f"{{root}}/{TEST_LABELS}.gz is cut short{AGAIN}"),
    ("mnist.gz", change(TEST_LABELS + ".gz", gzip.decompress), f"{{root}}/{TEST_LABELS}.gz is damaged, or not a gzip"),
    ("mnist.gz", put(TEST_LABELS + ".gz", gzip.compress(struct.pack(">2I", 2049, 40) + bytes(10**8))),  # a bomb
     f"{{root}}/{TEST_LABELS}.gz continues after the 40 bytes that it says it holds{AGAIN}"),
    ("mnist.gz", remove(TEST_LABELS + ".gz"), f"{{root}} has no {TEST_LABELS} or {TEST_LABELS}.gz or t10k-labels.idx1"),
    # Omniglot
    ("omniglot", cut(ZIP, -30), f"{{root}}/{ZIP} is cut short, or not a zip file{AGAIN}"),
    ("omniglot", change(ZIP, lambda whole: whole[:120] + bytes(20) + whole[140:]), f"{{root}}/{ZIP}: Greek/character0"),
    ("omniglot", in_zip(lambda content: content.update({GREEK: bytes(10**7)})), f"{{root}}/{ZIP}: Greek/character01/0"),
    ("omniglot", in_zip(lambda content: content.update({GREEK: png(100, 105)})), f"{{root}}/{ZIP}: Greek/character01/"),
    ("omniglot", in_zip(lambda content: content.pop("images_background/Latin/character02/0005_02.png")),
     f"{{root}}/{ZIP}: Latin/character02 has 1 drawings, not 2{AGAIN}"),
    ("omniglot few", keep, f"{{root}}/{ZIP} has 9 characters, not 10{AGAIN}"),
    ("omniglot other", keep, f"omniglot: images_background lacks the alphabet 'Korean'{AGAIN}"),
    # miniImageNet
    ("miniimagenet", put(LIST, "label,filename\nn01,a.jpg\n"), f"{{root}}/{LIST} does not begin with the line"),
    ("miniimagenet", put(LIST, "filename,label\n"), f"{{root}}/{LIST} names no image{AGAIN}"),
    ("miniimagenet", put(LIST, "filename,label\na.jpg,n01\n"), f"{{root}}/{LIST}, line 2: the class 'n01' is in"),
    ("miniimagenet", put(LIST, "filename,label\n../a.jpg,n09\n"), f"{{root}}/{LIST}, line 2: '../a.jpg' and 'n09'"),
    ("miniimagenet", remove(LIST), f"{{root}}/{LIST} is missing: get Ravi's lists train.csv, val.csv and test.csv"),
    ("miniimagenet", cut("images/n0200000001.jpg", 300), "{root}/images/n0200000001.jpg is not a readable image"),
    ("miniimagenet", remove("images/n0200000001.jpg"), "{root}/images/n0200000001.jpg is missing (1 of 15 images"),
    # CIFAR-100 and its splits
    ("cifar", cut("test.bin", -7), "{root}/test.bin has 307393 bytes, not 307400: unpack it again"),
    ("cifar", change("train.bin", lambda whole: bytes(len(whole))), "{root}/train.bin has not 2 images of"),
    ("cifar", remove("fine_label_names.txt"), "{root}/fine_label_names.txt is missing: unpack CIFAR-100's"),
    ("cifar", put("fine_label_names.txt", "apple\n"), "{root}/fine_label_names.txt names 1 classes, not 100:"),
    ("cifar", change("fine_label_names.txt", lambda whole: whole.replace(b"apple", b"appel")),
     "{root}/fine_label_names.txt names the class 'appel' where CIFAR-100 has 'apple': unpack it again"),
    # Sentiment140
    ("sent140", change("a.csv", lambda whole: whole + b"4,1,Mon,NO_QUERY,me\n"), "{root}/a.csv, line 61: 5 columns,"),
    ("sent140", change("a.csv", lambda whole: whole + b"1,1,Mon,NO_QUERY,me,hello\n"), "{root}/a.csv, line 61: the"),
    ("sent140", change("a.csv", lambda whole: whole + b"4,1,Mon,NO_QUERY,me," + b"x" * 200_000),
     "{root}/a.csv, line 61: not a CSV file (field larger than field limit (131072)): get it again"),
    ("sent140", put("a.csv", "2,1,Mon,NO_QUERY,me,hello\n"), "{root}/a.csv has no negative or positive tweet: get it"),
    ("sent140", lambda root: write_sentiment140(root / "a.csv", rows=[(4, f"user{i}", "good day") for i in range(10)]),
     "sent140: the class 'negative' has no sample: take more tweets (data.tweets) or more users (data.min_per_user)"),
    ("sent140", lambda root: write_sentiment140(root / "a.csv", rows=[(0, f"user{i}", "unheard") for i in range(9)]),
     "{root}/a.csv: none of 9 tweets has a word with a vector in {root.parent}/vectors.txt: name other vectors in "
     "data.vectors"),
    # CUB, aPY and DeepFashion
    ("cub", put("images.txt", "1 a/b.jpg\n1 c/d.jpg\n"), "{root}/images.txt, line 2: the number 1 occurs twice"),
    ("cub", put("images.txt", "one a/b.jpg\n"), "{root}/images.txt, line 1: 'one a/b.jpg' is not a number and a text"),
    ("cub", put("images.txt", "\n"), "{root}/images.txt is empty: unpack it again"),
    ("cub", put("images.txt", b"\xff"), "{root}/images.txt cannot be read as text: unpack it again"),
    ("cub", put("image_class_labels.txt", "1 9\n"), "{root}/image_class_labels.txt gives no class of classes.txt to"),
    ("cub", put(MATRIX, "1 2 3\n"), f"{{root}}/{MATRIX}, line 1: 3 numbers, but there are"),
    ("cub", put(MATRIX, "1 two\n"), f"{{root}}/{MATRIX}: not a number: 'two'"),
    ("cub", put(MATRIX, " ".join(["1"] * 312) + "\n"), f"{{root}}/{MATRIX} has 1 lines, but there are 6 classes"),
    ("apy", put(OBJECTS, "2008_000004.jpg bird 1 1 9"),
     f"{{root}}/{OBJECTS}, line 1: 5 words, but image, class, four corners and 64 attributes are 70"),
    ("apy", put(OBJECTS, "2008_000004.jpg brid 1 1 9 9" + " 0" * 64),
     f"{{root}}/{OBJECTS}, line 1: unknown class 'brid': did you mean 'bird'?"),
    ("apy", put(OBJECTS, "2008_000004.jpg bird 1 1 9 nine" + " 0" * 64), f"{{root}}/{OBJECTS}, line 1: corners and"),
    ("deepfashion", change("Anno/list_category_img.txt", lambda whole: whole.rsplit(b"\n", 3)[0]),
     "{root}/Anno/list_category_img.txt is cut short or changed: its first line"),
    ("deepfashion", change("Anno/list_category_img.txt", lambda whole: whole[:-3] + b"9\n"),
     "{root}/Anno/list_category_img.txt: 'img/Cardigan_Item/img_00000004.jpg 9' does not"),
    ("deepfashion", change("Anno/list_attr_cloth.txt", lambda whole: whole.replace(b"very long word 3   4", b"word")),
     "{root}/Anno/list_attr_cloth.txt: 'word' has no"),
    ("deepfashion", change(MARKS, lambda whole: whole.rsplit(b"\n", 3)[0]), f"{{root}}/{MARKS}, line 31: not"),
    ("deepfashion", change(MARKS, lambda whole: whole[:-3] + b" x\n"),
     f"{{root}}/{MARKS}, line 32: the attributes must be 1, 0 or -1"),
]  # fmt: skip


@pytest.mark.usefixtures("no_text_encoder", "small_copies")
@pytest.mark.parametrize(("copy", "spoil", "message"), CASES, ids=[f"{i} {case[0]}" for i, case in enumerate(CASES)])
def test_damaged_files_are_named(tmp_path, copy, spoil, message):
    root = tmp_path / "data set"
    root.mkdir()
    name, write = LOADERS[copy]
    write(root)
    spoil(root)
    assert message_of(load, name, root).startswith(message.format(root=root, page=find("data", name).page))


GET = "get {title} ({page})"
UNPACK = "unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, {page}) there"
ABSENT = {
    "mnist": (GET, "MNIST"),
    "omniglot": (GET, "Omniglot"),
    "cub": (GET, "CUB-200-2011"),
    "sun": (GET, "SUN Attribute Database"),
    **dict.fromkeys(("cifar100", "cifar-fs", "fc100"), (UNPACK, "")),
    "sent140": ("unpack trainingandtestdata.zip ({page}) there, or name a CSV file of its six columns in", ""),
    "miniimagenet": ("get Ravi's lists train.csv, val.csv and test.csv ({page})", ""),
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_wrong_root_says_what_to_get(tmp_path, name):
    kind = find("data", name)
    get, title = ABSENT[name]
    for root in (tmp_path, tmp_path / "nowhere"):
        message = message_of(load, name, root)
        for part in (str(root), get.format(title=title, page=kind.page), "data."):  # the setting to correct
            assert part in message


def test_a_pickle_is_refused(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(b"\x80\x02}")
    for root in (tmp_path, folder):
        said = message_of(load, "cifar100", root)
        assert said.startswith(f"{folder / 'train'} is CIFAR-100's Python version, a pickle, and nothing")


def test_damaged_sheets_are_named(real_data, tmp_path, no_text_encoder):
    for path in (real_data / "cifar100").glob("*.webp"):
        (tmp_path / path.name).symlink_to(path)
    bear = tmp_path / "03_bear.webp"

    for spoil, message in (
        (bear.unlink, f"{tmp_path} has 99 of 100 sheets, that of class 03 not once"),
        (lambda: Image.new("RGB", (30, 20)).save(bear), f"{bear} has 30 x 20 pixels, not 960 x 640"),
        (lambda: bear.write_bytes(b"no image"), f"{bear} is not a readable image"),
    ):
        spoil()
        assert message_of(load, "cifar100", tmp_path, train_per_class=1) == f"{message}: unpack it again"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_where_the_registry_says(name):
    benchmark = find("data", name)
    assert issubclass(benchmark, BenchmarkLoader)
    assert issubclass(benchmark.Settings, DataSettings)
    assert get_args(benchmark.Settings.model_fields["name"].annotation) == (name,)
    assert benchmark.title in benchmark.describe()
    assert benchmark.files() in benchmark.describe()
    assert ("root" in benchmark.Settings.model_fields) == (benchmark.files() != "nothing to download")
