"""A run's ``classes.csv`` of very many classes without attributes: reading it takes no time that
grows with their square, and their placeholders keep their bits.
"""

import sys
import zlib

import numpy as np

from fedunseen.core.random import stream
from fedunseen.data import ClassSpace, class_space

COUNT = 200


def written(path):
    rows = "".join(f"new {i},seen,,\n" for i in range(COUNT))
    path.write_text(f"name,split,x,y\na,seen,0.25,3\nb,seen,-1.5,0.1\nc,unseen,1,1\n{rows}")
    return path


def test_undescribed_classes_are_not_compared_with_each_other(tmp_path, monkeypatch):
    compared = []

    class Place(int):
        def __eq__(self, other):
            compared.append(other)
            return int(self) == other

        __hash__ = int.__hash__

    def places(items):
        return ((Place(i), item) for i, item in enumerate(items))

    monkeypatch.setattr(class_space, "enumerate", places, raising=False)
    space = ClassSpace.load(written(tmp_path / "classes.csv"), of_run=True)
    assert space.undescribed.tolist() == list(range(3, 3 + COUNT))
    assert len(compared) < 2 * COUNT


def test_placeholders_take_the_spread_of_the_seen_classes_once(tmp_path):
    spreads = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_std":
            spreads.append(frame)

    path = written(tmp_path / "classes.csv")
    sys.setprofile(profile)
    try:
        space = ClassSpace.load(path, of_run=True)
    finally:
        sys.setprofile(None)
    assert len(spreads) == 1
    raw = np.zeros((3 + COUNT, 2))
    raw[:3] = [[0.25, 3], [-1.5, 0.1], [1, 1]]
    seen = raw[space.seen]
    for c in space.undescribed:
        drawn = stream(0, "placeholder", zlib.crc32(space.names[c].encode())).normal(size=2)
        raw[c] = seen.mean(0) + seen.std(0) * drawn
    assert space.semantics.tobytes() == raw.tobytes()
