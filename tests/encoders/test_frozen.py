"""Frozen encoders: portions in threads give the numbers of one thread, in order."""

import threading

import numpy as np
import torch

from fedunseen.encoders.frozen import in_portions


def test_portions_have_threads_of_their_own_and_come_back_in_order(two_threads, monkeypatch):
    monkeypatch.setattr("fedunseen.encoders.frozen.device", lambda: torch.device("cpu"))
    images, met = np.arange(24, dtype=np.float32).reshape(12, 2), threading.Barrier(2, timeout=60)

    def encode(part):
        met.wait()  # no one continues before two are here
        assert (torch.get_num_threads(), torch.is_inference_mode_enabled()) == (1, True)
        return part * 2

    found = in_portions(images, 3, encode, apart=True)
    np.testing.assert_array_equal(found, images * 2)
    assert torch.get_num_threads() == 2
    who = set()
    in_portions(images, 3, lambda part: who.add(threading.current_thread()) or part)  # may not be shared: one thread
    assert who == {threading.main_thread()}
