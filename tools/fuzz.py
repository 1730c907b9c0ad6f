"""Mutate files, settings and messages: each is read, or refused with one sentence.

    python tools/fuzz.py --count 2000 --seed 34

``--kind columns`` mutates inputs of one kind alone. Each mutation may take 20 seconds of computing
and 1 GiB of memory. What goes wrong is printed with its number, which ``--first NUMBER --count 1``
repeats. The exit status is 1 if anything did.
"""

from __future__ import annotations

import argparse
import atexit
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pydicom
import scipy.io
import torch
from PIL import Image

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.presets import preset_names, preset_text
from fedunseen.data import ClassSpace, read_features
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.benchmarks.proposed_split import read_mat
from fedunseen.data.benchmarks.text_folder import TextFolder
from fedunseen.data.columns import Treatment
from fedunseen.data.columns.first_look import look
from fedunseen.data.io.images import read_image
from fedunseen.data.io.tables import open_table
from fedunseen.deploy.remote.wire import WireError, pack, read_instruction, unpack
from fedunseen.encoders.text import embed_texts
from fedunseen.encoders.vision import Vision, VisionSettings

TEST_FILES = Path(pydicom.__file__).parent / "data" / "test_files"
SECONDS, MEMORY = 20, 3 * 2**30
WORDS = [
    "", ",", '"', "\n", "\x00", "\ufeff", "nan", "-inf", "1e400", "1e39", "0,5", ";", "\t", "[", "]", "{", "}", "=",
    ".", "#", "'''", ": ", "true", "null", "name", "seen", "unseen", "train", "[strategy]\n", "é", "e\u0301", "\u202e",
    "9" * 400, "x" * 140_000, "[" * 5000, "{" * 5000, "a." * 3000, "0", "-1",
]  # fmt: skip
WILD = [
    0, -1, 1, 2**31, 2**62, 2**63 - 1, 2**63, 99999999999999999999, 10**400, 0.5, -0.0, 1e-320, 1e-40, 1e-9, 1e38, 1e39,
    1e300, 1.7e308, True, "x", "", [], {}, [1], ["a"], [[1]], "nan", "1e400", None, [10**6], [2**40],
]  # fmt: skip
FEW = {
    "data.train_per_class": 4, "data.test_per_class": 2, "partition.clients": 3, "strategy.rounds": 1, "method.kl": 0.0,
    "evaluation.selection": "last", "evaluation.embedding": False, "evaluation.theory": False, "run.device": "cpu",
}  # fmt: skip
SECTIONS = ("partition", "method", "strategy", "evaluation", "run", "engine")
TABLE = "name,split,big,coat: fur\ncat,seen,1,2\nzèbre,seen,2,1\n猫,unseen,3,3\ndog,validation,1.5,2e-3\n"


def text_of(text: str, rng: np.random.Generator) -> bytes:
    """Return a text with one to three pieces replaced, doubled, cut out or turned round."""
    for _ in range(rng.integers(1, 4)):
        start, stop = np.sort(rng.integers(0, len(text) + 1, 2))
        stop = min(stop, start + 20)
        piece = text[start:stop]
        text = (
            text[:start]
            + [WORDS[rng.integers(len(WORDS))], piece * 2, "", piece[::-1]][rng.integers(4)]
            + text[stop:]
        )
    return text.encode("utf-8", "surrogatepass")


def bytes_of(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with some of them changed, put in or cut out."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(0, len(changed) + 1))
        if rng.integers(3) == 0:
            del changed[place : place + int(rng.integers(1, 40))]
        else:
            width = int(rng.integers(1, 9))
            new = rng.bytes(width) if rng.integers(2) else bytes([0xFF]) * width
            changed[place : place + (width if rng.integers(2) else 0)] = new
    return bytes(changed)


def array_of(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
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
        shape = [(), (1,) * 6, (-1,), (0, 3), (2, 0)][rng.integers(5)]
        return array.reshape(shape) if array.size < 2 else array[..., None]
    if kind == 2:
        return array[: rng.integers(0, len(array) + 1)]
    if kind == 3:
        return np.array(array.flat[0])
    if kind == 4:
        return np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
    return np.asfortranarray(np.concatenate([array, array]))


def own_features(folder: Path, rng: np.random.Generator) -> None:
    """Load the benchmark ``folder``: the table of classes or some of the arrays are not what they
    should be.
    """
    (folder / "classes.csv").write_text(TABLE, "utf-8")
    names = np.array(["cat", "zèbre", "猫", "dog"])
    labels = np.repeat(np.arange(4), 4)
    arrays = {
        "features": rng.random((16, 9), dtype=np.float32),
        "labels": names[labels] if rng.integers(2) else labels,
        "split": np.where((np.arange(16) % 4 < 2) & (labels != 2), "train", "test"),
        "users": np.arange(16),
        "image_shape": np.array([3, 3]),
    }
    if rng.integers(3) == 0:
        (folder / "classes.csv").write_bytes(text_of(TABLE, rng))
    else:
        for key in rng.choice(list(arrays), size=rng.integers(1, 3), replace=False):
            arrays[key] = array_of(arrays[key], rng)
    np.savez(folder / "features.npz", allow_pickle=True, **arrays)
    Folder.load(Folder.Settings(root=folder, part=bool(rng.integers(2))), 0).fingerprint()


def own_pictures(folder: Path, rng: np.random.Generator) -> None:
    """Load the benchmark ``images``: the table, a class's name or the bytes of one picture are
    damaged.
    """
    for name in ("cat", "zèbre", "猫", "dog"):
        (folder / name).mkdir()
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(
                folder / name / f"{i}.png"
            )
    damaged, path = rng.integers(2), folder / "cat" / "0.png"
    (folder / "classes.csv").write_bytes(text_of(TABLE, rng) if damaged else TABLE.encode())
    path.write_bytes(path.read_bytes() if damaged else bytes_of(path.read_bytes(), rng))
    skip = bool(rng.integers(2))
    ImageFolder.load(
        ImageFolder.Settings(root=folder, size=8, skip_unreadable=skip), 0
    ).fingerprint()


def wild_setting(folder: Path, rng: np.random.Generator) -> None:
    """Train for a round with a wild value of one setting."""
    base = Experiment.load("digit-pairs", FEW)
    keys = [
        f"{s}.{key}"
        for s in SECTIONS
        for key in type(getattr(base, s)).model_fields
        if key != "name"
    ]
    settings = {**FEW, keys[rng.integers(len(keys))]: WILD[rng.integers(len(WILD))]}
    run(Experiment.load("digit-pairs", settings), folder / "run")


def table(folder: Path, rng: np.random.Generator) -> None:
    """Read a table of classes, or of features."""
    path = folder / "a.csv"
    if rng.integers(2):
        path.write_bytes(text_of(TABLE, rng))
        ClassSpace.load(path)
    else:
        path.write_bytes(text_of("x,y,z\n1,2.5,-3\n4e-3,5,6\n", rng))
        read_features(path)


def array(folder: Path, rng: np.random.Generator) -> None:
    """Read an array: alone, in an archive, in a damaged archive, in MATLAB's format."""
    rows, kind = np.ones((6, 4), dtype=np.float32), rng.integers(4)
    file = io.BytesIO()
    if kind == 3:
        scipy.io.savemat(file, {"features": rows}, do_compression=bool(rng.integers(2)))
        (folder / "a.mat").write_bytes(bytes_of(file.getvalue(), rng))
        read_mat(folder / "a.mat", ["features"])
        return
    np.save(file, rows)
    content = bytes_of(file.getvalue(), rng) if kind < 2 else file.getvalue()
    if kind:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("features.npy", content)
        content = packed.getvalue() if kind == 1 else bytes_of(packed.getvalue(), rng)
    path = folder / ("a.npz" if kind else "a.npy")
    path.write_bytes(content)
    read_features(path)


def picture(folder: Path, rng: np.random.Generator) -> None:
    """Read a picture of any format."""
    file, kind = io.BytesIO(), ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")[rng.integers(7)]
    Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(file, kind)
    (folder / "a.img").write_bytes(bytes_of(file.getvalue(), rng))
    read_image(folder / "a.img", 8, 8)


def experiment(folder: Path, rng: np.random.Generator) -> None:
    """Read an experiment file."""
    names = preset_names()
    (folder / "a.toml").write_bytes(text_of(preset_text(names[rng.integers(len(names))]), rng))
    Experiment.load(folder / "a.toml")


def manifest(folder: Path, rng: np.random.Generator) -> None:
    """Read a run directory's manifest and result."""
    tree = {
        "experiment": Experiment.load("digit-pairs").to_dict(),
        "data_fingerprint": "0",
        "input_shape": [128],
        "seed": 0,
        "task": "zero-shot",
        "traits": {"merges": True, "pools": False, "private": [], "zero_shot": True},
    }
    texts = {
        "manifest": json.dumps(tree, indent=1),
        "result": '{"rounds": 1, "selection": "last", "zsl": 50.0}',
    }
    damaged = ("manifest", "result")[rng.integers(2)]
    for name, text in texts.items():
        (folder / f"{name}.json").write_bytes(
            text_of(text, rng) if name == damaged else text.encode()
        )
    _ = load_run(folder).experiment


def message(folder: Path, rng: np.random.Generator) -> None:
    """Read a message between parties."""
    del folder
    ones = torch.ones(32, 2)  # as many bytes as the header: a change may leave it readable
    whole = pack({"kind": "round", "client": 0}, {"params/a": ones, "params/b": ones.clone()})
    _, tensors = unpack(bytes_of(whole, rng))
    read_instruction(tensors, torch.device("cpu"))


MIXED = "size,coat,born,tame,label\n" + "".join(
    f"{i}.5,{'fur' if i % 2 else 'wool'},2024-01-{1 + i % 28:02},{i % 3 == 0},cat\n"
    for i in range(40)
)


def columns(folder: Path, rng: np.random.Generator) -> None:
    """Look at a table of several kinds of columns, and read it: CSV, Parquet, Arrow's file and
    stream formats, a folder of ``datasets``.
    """
    kind = rng.integers(5)
    path = folder / "a.csv"
    path.write_bytes(text_of(MIXED, rng) if kind == 0 else MIXED.encode())
    if kind:
        rows = pyarrow.csv.read_csv(path)
        path = folder / f"a.{'parquet' if kind == 1 else 'arrow'}"
        if kind == 1:
            codec = ("snappy", "zstd", "none")[rng.integers(3)]
            pyarrow.parquet.write_table(rows, path, row_group_size=16, compression=codec)
        elif kind == 2:
            pyarrow.feather.write_feather(
                rows, path, compression=("lz4", "uncompressed")[rng.integers(2)]
            )
        else:
            with pyarrow.ipc.new_stream(path, rows.schema) as stream:
                stream.write_table(rows, 16)
        if kind < 4 or rng.integers(2):
            path.write_bytes(bytes_of(path.read_bytes(), rng))
    if kind == 4:
        state = json.dumps({"_data_files": [{"filename": "a.arrow"}]})
        (folder / "saved").mkdir()
        path.rename(folder / "saved" / "a.arrow")
        path = folder / "saved"
        (path / "state.json").write_bytes(
            text_of(state, rng) if rng.integers(2) else state.encode()
        )
    found = look(open_table(path))
    for _ in Treatment(found.columns).read(open_table(path), found.label):
        pass


def stated_columns(folder: Path, rng: np.random.Generator) -> None:
    """Read the columns of an experiment."""
    text = (
        '[data]\nname = "table"\nroot = "."\ncolumns = [\n{ name = "a", kind = "number", bounds = [0, 1], '
        'fill = 0.5 },\n{ name = "b", kind = "category", values = ["x", "y"], indicator = true },\n'
        '{ name = "c", kind = "date", bounds = [2024-01-01, "2025-01-01"] }]\n[method]\nname = "gaussian"\n'
        '[partition]\nkind = "iid"\n'
    ) + 40 * "# notes for people, which may say anything\n"
    (folder / "a.toml").write_bytes(text_of(text, rng))
    Experiment.load(folder / "a.toml")


def deep_picture(folder: Path, rng: np.random.Generator) -> None:
    """Read a picture of more than 8 bits, or DICOM, compressed or not, with one frame or several."""
    kind = ("PNG", "TIFF", "PPM", "F", "DICOM", "DICOM", "COMPRESSED")[rng.integers(7)]
    values = rng.integers(0, 4096, (3, 9, 12), dtype=np.uint16)
    if kind == "COMPRESSED":
        names = ("MR_small_jpeg_ls_lossless", "MR_small_jp2klossless", "MR_small_RLE",
                 "SC_rgb_jpeg_gdcm", "SC_rgb_jpeg_dcmtk", "image_dfl", "693_J2KI")  # fmt: skip
        whole = (TEST_FILES / f"{names[rng.integers(len(names))]}.dcm").read_bytes()
    elif kind == "DICOM":
        whole = dicom(values[: rng.integers(1, 4)])
    else:
        file = io.BytesIO()
        array = values[0].astype(np.float32) if kind == "F" else values[0]
        Image.fromarray(array).save(file, "TIFF" if kind == "F" else kind)
        whole = file.getvalue()
    (folder / "a.img").write_bytes(bytes_of(whole, rng))
    window = ((0.0, 4095.0), None)[rng.integers(2)]
    read_image(folder / "a.img", 8, 8, window, each=bool(rng.integers(2)))


def dicom(values: np.ndarray) -> bytes:
    """Return a file of frames (n, height, width) of 12 bits, with a window and a rescale."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    elements = {
        "Rows": values.shape[1], "Columns": values.shape[2], "NumberOfFrames": len(values),
        "SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME1", "BitsAllocated": 16,
        "BitsStored": 12, "HighBit": 11, "PixelRepresentation": 0, "PixelData": values.tobytes(),
        "WindowCenter": 2000, "WindowWidth": 3000, "RescaleSlope": 2, "RescaleIntercept": -1000,
    }  # fmt: skip
    for name, value in elements.items():
        setattr(dataset, name, value)
    file = io.BytesIO()
    dataset.save_as(file, enforce_file_format=True)
    return file.getvalue()


def own_texts(folder: Path, rng: np.random.Generator) -> None:
    """Load the benchmark ``texts``: the table, a folder's name or the bytes of one text are
    damaged. Word vectors read what is whole.
    """
    vectors = folder / "vectors.txt"
    vectors.write_text("a 1 0\ncat 0 1\ndog 1 1\nzèbre 1 2\n猫 2 1\n", "utf-8")
    for name in ("cat", "zèbre", "猫", "dog"):
        (folder / name).mkdir()
        for i in range(3):
            (folder / name / f"{i}.txt").write_text(f"a {name}", "utf-8")
    damaged, path = rng.integers(2), folder / "cat" / "0.txt"
    (folder / "classes.csv").write_bytes(text_of(TABLE, rng) if damaged else TABLE.encode())
    if not damaged:
        path.write_bytes((text_of, lambda text, rng: bytes_of(text.encode(), rng))[
            rng.integers(2)]("a cat", rng))  # fmt: skip
    settings = {"root": folder, "text_encoder": f"vectors:{vectors}"}
    TextFolder.load(TextFolder.Settings.model_validate(settings), 0).fingerprint()


@cache
def small_models() -> Path:
    """Return a folder with small random models as the hub keeps them; it lives as long as the
    process.
    """
    import transformers

    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    root = Path(place.name)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8}  # fmt: skip
    picture = transformers.ViTModel(transformers.ViTConfig(**small, image_size=16, patch_size=8))
    picture.save_pretrained(root / "picture")
    said = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5, 0.4, 0.3],
            "image_std": [0.2, 0.3, 0.4], "resample": 2, "size": {"height": 16, "width": 16}}  # fmt: skip
    (root / "picture" / "preprocessor_config.json").write_text(json.dumps(said))
    text = root / "text"
    (text / "1_Pooling").mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat"]
    (text / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(vocab=str(text / "vocab.txt")).save_pretrained(text)
    config = transformers.BertConfig(**small, vocab_size=len(words))
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(text)
    parts = [{"type": f"models.{kind}", "path": place} for kind, place in
             (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))]  # fmt: skip
    (text / "modules.json").write_text(json.dumps(parts))
    (text / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (text / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    return root


def hub_folder(folder: Path, rng: np.random.Generator) -> None:
    """Encode a picture or a text by a folder of the hub, of which one file is damaged or has a wild
    value.
    """
    kind = ("picture", "text")[rng.integers(2)]
    copy = shutil.copytree(small_models() / kind, folder / kind)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    content = path.read_bytes()
    if path.suffix != ".json":
        content = bytes_of(content, rng)
    elif rng.integers(2):
        content = text_of(content.decode(), rng)
    elif keys := [key for key in json.loads(content) if isinstance(key, str)]:
        wild = WILD[rng.integers(len(WILD))]
        content = json.dumps(json.loads(content) | {keys[rng.integers(len(keys))]: wild}).encode()
    path.write_bytes(content)
    os.environ["FEDUNSEEN_CACHE"] = str(folder / "cache")
    if kind == "text":
        embed_texts(["a cat", "a"], str(copy))
    else:
        encoder = Vision(VisionSettings(weights=str(copy)), (3, 9, 9), "vectors")
        encoder.encode(rng.integers(0, 256, (2, 3, 9, 9), dtype=np.uint8))


Kind = Callable[[Path, np.random.Generator], None]
KINDS: tuple[Kind, ...] = (
    table, array, picture, experiment, manifest, message, own_features, own_pictures, wild_setting,
    columns, stated_columns, deep_picture, own_texts, hub_folder,
)  # fmt: skip


def attempt(number: int, seed: int, kind: Kind) -> str:
    """Return what comes of a mutation: "read", "refused", or what goes wrong."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(Path(folder), np.random.default_rng([seed, number]))
    except (FedUnseenError, WireError) as error:
        return (
            "refused" if "\n" not in str(error).strip() else f"more than one line: {error!r}"[:300]
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return "read"


@contextmanager
def bounded_memory(more: int) -> Iterator[None]:
    """Refuse more memory than the process has and ``more`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> None:
    """Print how many mutations of each kind are read and refused, and all that go wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("--count", 2000), ("--seed", 34), ("--first", 0)):
        parser.add_argument(name, type=int, default=usual)
    parser.add_argument("--kind", choices=[kind.__name__ for kind in KINDS])
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if arguments.kind in (None, kind.__name__)]
    counts: Counter[str] = Counter()
    wrong = []
    with bounded_memory(MEMORY):
        for number in range(arguments.first, arguments.first + arguments.count):
            kind = kinds[number % len(kinds)]
            outcome, name = attempt(number, arguments.seed, kind), kind.__name__
            counts[f"{name} {outcome if outcome in ('read', 'refused') else 'wrong'}"] += 1
            if outcome not in ("read", "refused"):
                wrong.append(f"mutation {number} ({name}): {outcome}")
    status = Path(
        "/proc/self/status"
    ).read_text()  # getrusage would tell the peak of what started this process, too
    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
    print(
        json.dumps(
            {"counts": dict(sorted(counts.items())), "peak_mib": peak, "wrong": wrong}, indent=1
        )
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
