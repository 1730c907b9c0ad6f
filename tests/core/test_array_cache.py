"""Features on disk: found again, never stale, never half; real processes are killed for real."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen.core import array_cache as cache
from fedunseen.core.array_cache import array_digest, cached_blocks, cached_features, files_digest
from refusals import message_of

IMAGES = np.random.default_rng(0).integers(0, 256, (100, 3, 4, 4), dtype=np.uint8)


class Encode:
    """Means of channels; counts the images that it was given. Before one call it does something else."""

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


def features(encode=None, images=IMAGES, depends=None, dtype="float32"):
    return cached_features({"weights": "a"} if depends is None else depends, images, (3,), dtype, encode or Encode())


def files(folder):
    return sorted(path.name for path in (folder / "features").iterdir())


def test_the_second_time_nothing_is_computed_and_nothing_stale_is_found(own_cache):
    first, second = Encode(), Encode()
    made = features(first)
    np.testing.assert_allclose(made, IMAGES.mean((2, 3)), rtol=1e-6)
    found = features(second)
    assert (first.count, second.count) == (100, 0)
    assert np.array_equal(made, found)
    assert (found.dtype, found.shape) == (np.float32, (100, 3))
    assert isinstance(found, np.memmap)
    (name,) = files(own_cache)  # no chunks, no temporary files
    assert re.fullmatch(r"[0-9a-f]{64}\.[0-9a-f]{8}\.npy", name)
    other = IMAGES.copy()
    other[99, 2, 3, 3] ^= 1
    for change in ({"images": other}, {"depends": {"weights": "b"}}, {"dtype": "float16"}, {"images": IMAGES[:99]}):
        encode = Encode()
        features(encode, **change)
        assert encode.count == len(change.get("images", IMAGES))
    assert len(files(own_cache)) == 5


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "header"])
def test_a_damaged_file_is_made_again(own_cache, damage, capsys):
    expected = np.array(features())
    (name,) = files(own_cache)
    path = own_cache / "features" / name
    whole = path.read_bytes()
    flipped = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    path.write_bytes({"flipped": flipped, "cut": whole[:-1], "empty": b"", "header": b"\0" + whole[1:]}[damage])
    encode = Encode()
    assert np.array_equal(features(encode), expected)
    assert (encode.count, capsys.readouterr().err) == (100, f"{path} is damaged: it is made again\n")
    assert files(own_cache) == [name]


def test_a_damaged_chunk_is_made_again(own_cache):
    expected = np.array(features())
    (name,) = files(own_cache)
    folder = own_cache / "features" / name.split(".")[0]
    (own_cache / "features" / name).unlink()
    folder.mkdir()
    np.save(folder / "000000.npy", expected[:8])
    (folder / "000001.npy").write_bytes((folder / "000000.npy").read_bytes()[:-3])
    encode = Encode()
    assert np.array_equal(features(encode), expected)
    assert encode.count == 92  # the whole chunk was taken as it is


def test_processes_in_step_share_the_chunks(own_cache, monkeypatch):
    numbers, encode, barrier = {}, Encode(), threading.Barrier(2, timeout=9)
    monkeypatch.setattr(cache.os, "getpid", lambda: numbers[threading.get_ident()])

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
    assert encode.count <= 140  # in one order from two places, they would meet, and encode the rest twice


def interrupted(encode):
    with pytest.raises(KeyboardInterrupt):
        features(encode)


def stop():
    raise KeyboardInterrupt


def test_chunks_that_another_process_has_encoded_meanwhile_are_taken(own_cache):
    other = Encode(5, stop)
    own = Encode(1, lambda: interrupted(other))
    features(own)
    assert 100 <= own.count + other.count <= 108  # the chunk at hand may have been encoded twice


def test_what_was_encoded_before_a_run_ends_is_gone_on_with(own_cache):
    interrupted(Encode(6, stop))
    assert not list((own_cache / "features").glob("*.npy"))
    encode = Encode()
    np.testing.assert_allclose(features(encode), IMAGES.mean((2, 3)), rtol=1e-6)
    assert encode.count in (60, 64)  # five chunks were whole, one of them perhaps the last, of four
    assert len(files(own_cache)) == 1


@pytest.mark.parametrize("chunk", [1, 5, 13])
def test_processes_that_begin_together_end_with_one_file(own_cache, chunk):
    """Another one encodes what is left and joins it while this one is at a chunk."""
    other = Encode()
    own = Encode(chunk, lambda: features(other))
    np.testing.assert_allclose(features(own), IMAGES.mean((2, 3)), rtol=1e-6)
    assert own.count + other.count - 100 in (4, 8)  # only the chunk at hand was encoded twice
    assert len(files(own_cache)) == 1


def test_a_cache_without_room_or_that_cannot_be_written_is_named_before_the_work(monkeypatch, tmp_path, own_cache):
    usage, encode = cache.shutil.disk_usage(own_cache)._replace(free=1000), Encode()
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)
    said = message_of(features, encode)
    assert said.startswith(f"encoding images takes 0.0 GB in {own_cache / 'features'}, but 0.0 GB are")
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(tmp_path / "file"))
    said = message_of(features, encode)
    assert said.startswith(f"the cache folder {tmp_path / 'file' / 'features'} cannot be used (Not a")
    assert encode.count == 0


def test_progress_is_printed_where_it_takes_long(monkeypatch, capsys):
    def printed(*ticks, blocks=2):
        clock = iter(ticks)  # at the start, and after each of the blocks
        monkeypatch.setattr(cache, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(clock)))
        made = cached_blocks("ones", ticks, (10, 2), lambda: [np.ones((10 // blocks, 2))] * blocks, doing="counting")
        assert (made == 1).all()
        return capsys.readouterr().err

    assert (printed(0.0, 2.0, 4.9), printed(0.0, 4.0, 6.0)) == ("", "counting: 10 of 10\n")
    assert printed(0.0, 60.0, blocks=1) == ""  # one piece has no progress to show
    assert printed(0.0, 6.0, 6.1) == "counting: 5 of 10\ncounting: 10 of 10\n"
    messages = []
    token = cache.shown.set(lambda *numbers: messages.append(numbers))
    assert printed(0.0) == ""
    cache.shown.reset(token)
    assert messages == [("counting", 5, 10), ("counting", 10, 10)]


def test_what_a_killed_run_left_is_removed_after_a_while(own_cache):
    (own_cache / "images").mkdir()
    old, fresh = own_cache / "images" / ".old.npy.1.tmp", own_cache / "images" / ".new.npy.2.tmp"
    old.touch()
    fresh.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    made = cached_blocks("numbers", [], (4, 2), lambda: [np.ones((3, 2)), np.zeros((1, 2))], np.int8)
    assert made.tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert not old.exists()
    assert fresh.exists()  # another process may be writing it


def test_digests_see_types_shapes_names_and_every_byte(tmp_path):
    array = np.arange(12, dtype=np.int16)
    same = [array, array.copy(), np.repeat(array, 2)[::2]]
    others = [array.reshape(3, 4), array.astype(np.int32), array.view(np.uint16), array[::-1]]
    assert (len({array_digest(a) for a in same}), len({array_digest(a) for a in [array, *others]})) == (1, 5)
    for name, content in (("a", "1"), ("b", "23"), ("c", "12"), ("d", "3")):
        (tmp_path / name).write_text(content)
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert files_digest([a, b]) == files_digest([b, a])
    assert len({files_digest(paths) for paths in ([a, b], [c, d], [a], [a, d])}) == 4
