"""Features on disk: found again, never stale, never half, however many processes encode them."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from fedunseen.core import array_cache as cache
from fedunseen.core.array_cache import array_digest, cached_blocks, cached_features, files_digest
from fedunseen.core.memory import Mapped
from refusals import message_of

IMAGES = np.random.default_rng(0).integers(0, 256, (100, 3, 4, 4), dtype=np.uint8)
MEANS = IMAGES.mean((2, 3)).astype(np.float32)


class Encode:
    """Means of channels; counts the images that it was given. Before one call it does something
    else.
    """

    def __init__(self, call=0, other=None):
        self.count, self.before, self.other = 0, call, other

    def __call__(self, images):
        self.before -= 1
        if self.before == 0:
            self.other()
        self.count += len(images)
        return images.mean((2, 3))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 8)


def features(encode, images=IMAGES, depends="a", dtype="float32"):
    return cached_features({"weights": depends}, images, (3,), dtype, encode)


def encoded(call=0, other=None):
    """Check the features; return how many images had to be encoded for them."""
    encode = Encode(call, other)
    assert np.array_equal(features(encode), MEANS)
    return encode.count


def file_in(folder):
    """Return the one file of features, beside which there are neither chunks nor temporary
    files.
    """
    (path,) = (folder / "features").iterdir()
    return path


def test_the_second_time_nothing_is_computed_and_nothing_stale_is_found(own_cache):
    assert (encoded(), encoded()) == (100, 0)
    assert re.fullmatch(r"[0-9a-f]{64}\.[0-9a-f]{8}\.npy", file_in(own_cache).name)
    found = features(None)
    assert (type(found), found.dtype, found.shape) == (Mapped, np.float32, (100, 3))
    other = IMAGES.copy()
    other[99, 2, 3, 3] ^= 1
    for change in (
        {"images": other},
        {"depends": "b"},
        {"dtype": "float16"},
        {"images": IMAGES[:99]},
    ):
        encode = Encode()
        features(encode, **change)
        assert encode.count == len(change.get("images", IMAGES))
    assert len(list((own_cache / "features").iterdir())) == 5


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "header"])
def test_a_damaged_file_is_made_again(own_cache, damage, capsys):
    encoded()
    path = file_in(own_cache)
    whole = path.read_bytes()
    flipped = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    path.write_bytes(
        {"flipped": flipped, "cut": whole[:-1], "empty": b"", "header": b"\0" + whole[1:]}[damage]
    )
    assert (encoded(), capsys.readouterr().err) == (100, f"{path} is damaged: it is made again\n")
    assert file_in(own_cache) == path


def test_a_damaged_chunk_is_made_again(own_cache):
    encoded()
    path = file_in(own_cache)
    path.unlink()
    folder = path.with_name(path.name.split(".")[0])
    folder.mkdir()
    np.save(folder / "000000.npy", MEANS[:8])
    (folder / "000001.npy").write_bytes((folder / "000000.npy").read_bytes()[:-3])
    assert encoded() == 92  # the whole chunk was taken as it is


def test_processes_in_step_share_the_chunks(monkeypatch):
    numbers, encode, barrier = {}, Encode(), threading.Barrier(2, timeout=9)
    own = os.getpid()  # of threads that other tests or pytest itself left running
    monkeypatch.setattr(cache.os, "getpid", lambda: numbers.get(threading.get_ident(), own))

    def in_step(part):
        with suppress(threading.BrokenBarrierError):  # the other has none left
            barrier.wait()
        return encode(part)

    def work(number):
        numbers[threading.get_ident()] = number
        features(in_step)
        barrier.abort()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (1, 2)))
    assert (
        encode.count <= 140
    )  # in one order from two places, they would meet, and encode the rest twice


def test_chunks_that_another_process_joins_and_removes_meanwhile_are_no_error(monkeypatch):
    save = np.save

    def late(file, *given, **options):
        monkeypatch.setattr(cache.np, "save", save)
        features(Encode())  # as another process, which is done before this one has written
        save(file, *given, **options)

    monkeypatch.setattr(cache.np, "save", late)
    encode = Encode()
    np.testing.assert_array_equal(features(encode), features(Encode()))
    assert encode.count <= 8  # of one chunk


def interrupted(call):
    """Return how many images were encoded until an interrupt before a call."""
    encode = Encode(call, Mock(side_effect=KeyboardInterrupt))
    message_of(features, encode, error=KeyboardInterrupt)
    return encode.count


def test_what_was_encoded_before_a_run_ends_is_gone_on_with(own_cache):
    interrupted(6)
    assert not list((own_cache / "features").glob("*.npy"))
    assert encoded() in (60, 64)  # five chunks were whole, one of them perhaps the last, of four
    file_in(own_cache)


@pytest.mark.parametrize(
    ("chunk", "work"), [(1, lambda: interrupted(5)), *((chunk, encoded) for chunk in (1, 5, 13))]
)
def test_chunks_that_another_process_encodes_meanwhile_are_taken(own_cache, chunk, work):
    """Another one encodes some chunks, or all that are left and joins them, while this one is at a
    chunk.
    """
    others = []
    own = encoded(chunk, lambda: others.append(work()))
    assert own + others[0] - 100 in (4, 8)  # only the chunk at hand was encoded twice
    file_in(own_cache)


def test_a_cache_without_room_or_that_cannot_be_written_is_named_before_the_work(
    monkeypatch, tmp_path, own_cache
):
    usage = cache.shutil.disk_usage(own_cache)._replace(free=1000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)
    said = message_of(features, None)
    assert said.startswith(
        f"encoding images takes 0.0 GB in {own_cache / 'features'}, but 0.0 GB are"
    )
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(tmp_path / "file"))
    said = message_of(features, None)
    assert said.startswith(
        f"the cache folder {tmp_path / 'file' / 'features'} cannot be used (Not a"
    )


def test_progress_is_printed_where_it_takes_long(monkeypatch, capsys):
    def printed(*ticks, blocks=2):
        clock = iter(ticks)  # at the start, and after each of the blocks
        monkeypatch.setattr(
            cache, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(clock))
        )
        made = cached_blocks(
            "ones", ticks, (10, 2), lambda: [np.ones((10 // blocks, 2))] * blocks, doing="counting"
        )
        assert (made == 1).all()
        return capsys.readouterr().err

    assert (printed(0.0, 1.0, 1.9), printed(0.0, 1.5, 2.5)) == ("", "counting: 10 of 10\n")
    assert printed(0.0, 60.0, blocks=1) == ""  # one piece has no progress to show
    assert printed(0.0, 6.0, 6.1) == "counting: 5 of 10\ncounting: 10 of 10\n"
    messages = []
    token = cache.shown.set(lambda *numbers: messages.append(numbers))
    assert printed(0.0) == ""
    cache.shown.reset(token)
    assert messages == [("counting", 0, 10), ("counting", 5, 10), ("counting", 10, 10)]


def test_what_a_killed_run_left_is_removed_after_a_while(own_cache):
    (own_cache / "images").mkdir()
    old, fresh = own_cache / "images" / ".old.npy.1.tmp", own_cache / "images" / ".new.npy.2.tmp"
    for path in (old, fresh):
        path.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    made = cached_blocks(
        "numbers", [], (4, 2), lambda: [np.ones((3, 2)), np.zeros((1, 2))], np.int8
    )
    assert made.tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert (old.exists(), fresh.exists()) == (
        False,
        True,
    )  # another process may be writing the fresh one


def test_digests_see_types_shapes_names_and_every_byte(tmp_path):
    array = np.arange(12, dtype=np.int16)
    same = [array, array.copy(), np.repeat(array, 2)[::2]]
    others = [array.reshape(3, 4), array.astype(np.int32), array.view(np.uint16), array[::-1]]
    assert (len(set(map(array_digest, same))), len(set(map(array_digest, [array, *others])))) == (
        1,
        5,
    )
    a, b, c, d = (tmp_path / name for name in "abcd")
    for path, content in ((a, "1"), (b, "23"), (c, "12"), (d, "3")):
        path.write_text(content)
    assert files_digest([a, b]) == files_digest([b, a])
    assert len({files_digest(paths) for paths in ([a, b], [c, d], [a], [a, d])}) == 4
