"""Files of strangers that ``encode`` and ``statistics`` read in blocks: each takes a bounded part of
the memory, ends, and is refused in one sentence.
"""

import io
import os
import tarfile

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace
from fedunseen.data.io import parquet_size
from fedunseen.data.io.parquet_size import TOO_LARGE
from fedunseen.deploy.engines import sources
from fedunseen.deploy.engines.sources import Archives, Parquet, Pictures

pytest.importorskip("fsspec")

NAMES = ("cat", "dog")
SPACE = ClassSpace(
    NAMES,
    np.eye(2),
    ("a", "b"),
    seen=np.array([0]),
    unseen=np.array([1]),
    validation=np.array([], dtype=np.int64),
)


def see(files):
    """Return the sizes of pictures in place of features."""
    return np.array([[len(file.getvalue())] for file in files], np.float32)


def pieces(kind, place):
    source = kind(str(place), SPACE, see)
    return [piece for block in source.blocks for piece in source.read(block)]


def refused(kind, place):
    with pytest.raises(DataError) as error:
        pieces(kind, place)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 1000
    return error.value


@pytest.fixture
def parquet(tmp_path):
    """Return a function that writes a table, and says where."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    def write(columns, **how):
        write_table(pa.table(columns), tmp_path / "a.parquet", **how)
        return tmp_path / "a.parquet"

    return write


def lists(rows, width):
    import pyarrow as pa

    flat = pa.array(np.zeros(rows * width))
    return pa.ListArray.from_arrays(np.arange(0, rows * width + 1, width, dtype=np.int32), flat)


@pytest.mark.slow
def test_zeros_are_read_in_batches_of_so_many_bytes(parquet, monkeypatch):
    """Of 512 vectors of 4,000 numbers, 16 MB, in a file of a few kilobytes."""
    import pyarrow as pa

    monkeypatch.setattr(parquet_size, "BATCH", 2**20)
    place = parquet({"label": ["cat"] * 512, "x": lists(512, 4000)}, compression="zstd")
    assert place.stat().st_size < 2**14
    source = Parquet(str(place), SPACE, see)
    rows = 0
    for block in source.blocks:
        before = pa.total_allocated_bytes()
        for features, labels, _ in source.read(block):
            assert features.nbytes <= 2**20
            assert pa.total_allocated_bytes() - before < 2**22
            assert set(labels) == {"cat"}
            rows += len(features)
            del features
    assert rows == 512


def test_honest_vectors_are_read_in_as_large_batches_as_before(parquet):
    rng = np.random.default_rng(0)
    place = parquet({"label": list(NAMES) * 6000, "x": rng.random(12_000), "y": rng.random(12_000)})
    found = pieces(Parquet, place)
    assert [piece[0].shape for piece in found] == [(8192, 2), (3808, 2)]
    assert found[0][1][:2] == list(NAMES)


def test_a_row_of_more_than_a_batch_is_refused(parquet, monkeypatch):
    monkeypatch.setattr(parquet_size, "BATCH", 2**20)
    place = parquet({"label": ["cat"], "x": lists(1, 2**17 + 1)}, compression="zstd")
    assert refused(Parquet, place).code == TOO_LARGE


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_very_much_is_refused(parquet, monkeypatch):
    """Its rows may be of any lengths, so that one batch may have all of it."""
    monkeypatch.setattr(parquet_size, "GROUP", 2**23)
    place = parquet({"label": ["cat"] * 1000, "x": lists(1000, 1000)}, compression="zstd")
    assert len(pieces(Parquet, place)) == 1
    place = parquet({"label": ["cat"] * 1100, "x": lists(1100, 1000)}, compression="zstd")
    assert refused(Parquet, place).code == TOO_LARGE


def test_pictures_that_share_bytes_are_read_few_at_a_time(parquet, monkeypatch):
    """A dictionary keeps the same picture once, and each row would have a copy."""
    calls = []
    monkeypatch.setattr(sources, "_AT_ONCE", 2**22)

    def noted(files):
        calls.append(len(files))
        return see(files)

    same = [b"\0" * 2**20] * 12
    place = parquet({"label": ["cat"] * 12, "image": same})
    source = Parquet(str(place), SPACE, noted)
    assert sum(len(labels) for _, labels, _ in source.read(source.blocks[0])) == 12
    assert max(calls) == 5  # four, and one more


def archive(place, *members):
    with tarfile.open(place, "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return place


LABELS = {
    "nested": ("a.json", b"[" * 100_000),
    "no UTF-8": ("a.cls", b"\xff\xfe"),
    "digits": ("a.cls", b"9" * 6000),
    "digits of JSON": ("a.json", b"9" * 6000),
    "a superscript": ("a.txt", "²".encode()),
    "a key twice": ("a.json", b'{"label": "cat", "label": "dog"}'),
    "no label": ("a.json", b"{}"),
    "a megabyte": ("a.txt", b"x" * 2**20),
    "a list": ("a.json", b'{"label": [' + b"1, " * 20_000 + b"1]}"),
}


@pytest.mark.parametrize("member", LABELS.values(), ids=LABELS)
def test_the_last_label_of_an_archive_may_be_anything(member, tmp_path):
    good = archive(tmp_path / "a.tar", ("a.png", b"picture"), ("a.cls", b"1"))
    assert pieces(Archives, good)[0][1] == ["dog"]
    refused(Archives, archive(tmp_path / "a.tar", ("a.png", b"picture"), member))


@pytest.mark.parametrize("name", ["²", "9" * 200])
def test_a_folder_of_any_name_is_no_class(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.png").write_bytes(b"picture")
    assert "is no class of the plan" in str(refused(Pictures, tmp_path))


def test_an_archive_of_headers_alone_is_refused_in_one_sentence(tmp_path):
    """Each extended header is read within the one before."""
    member = tarfile.TarInfo("a.png")
    member.pax_headers = {"comment": "x"}
    headers = member.create_pax_header(member.get_info(), "utf-8")
    chained = headers[:1024] * 5000 + headers[-512:] + bytes(10_240)
    (tmp_path / "a.tar").write_bytes(chained)
    refused(Archives, tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Pictures, "cat/a.png"), (Archives, "a.tar"), (Parquet, "a.parquet")],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("odd", ["pipe", "device", "link to a pipe"])
def test_what_may_never_end_is_not_opened(kind, name, odd, tmp_path):
    if kind is Parquet:
        pytest.importorskip("pyarrow")
    path = tmp_path / "place" / name
    path.parent.mkdir(parents=True)
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    assert "pipe or a device" in str(refused(kind, tmp_path / "place"))


def test_a_picture_of_any_length_is_read_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_MOST_BYTES", 2**20)
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "a.png").open("wb") as file:
        file.truncate(2**40)
    assert refused(Pictures, tmp_path).code == "too-large"


def test_of_a_sample_one_picture_and_its_labels_are_kept(tmp_path):
    members = [(f"a.{i}.png", b"x" * 1000) for i in range(50)]
    place = archive(
        tmp_path / "a.tar", ("a.png", b"one"), ("a.jpg", b"two"), *members, ("a.cls", b"0")
    )
    (features, labels, _) = pieces(Archives, place)[0]
    assert (features.tolist(), labels) == ([[3]], ["cat"])


def test_notes_of_an_archive_are_bounded(tmp_path):
    entry = tarfile.TarInfo("a.png")
    entry.pax_headers = {"comment": "x" * 2**17}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry, io.BytesIO())
    assert "notes of" in str(refused(Archives, tmp_path / "a.tar"))
