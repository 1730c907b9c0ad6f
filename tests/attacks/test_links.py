"""Links in a folder that came from a stranger, in an archive, say: what a command writes at a place
that it has chosen itself never reaches the user's other files through them.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedunseen.cli.main import app
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import replacing, write_json, write_tensors, write_text
from fedunseen.data.io.csv_io import write_csv, write_table
from fedunseen.data.io.tables import find_table
from fedunseen.deploy.engines import spread
from refusals import message_of

NAMES = ("cat", "dog", "horse", "cow", "sheep", "$(touch PWNED)")

WRITERS = {
    "text": lambda path, **how: write_text(path, "text", **how),
    "json": lambda path, **how: write_json(path, {}),
    "tensors": lambda path, **how: write_tensors(path, {"a": np.ones(1)}, **how),
    "csv": lambda path, **how: write_csv(path, [["a"]], **how),
    "table": lambda path, **how: write_table(path, [["a"]], **how),
}


@pytest.fixture
def mine(tmp_path):
    """A file of the user's, and a place where there is none yet."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "here").write_text("mine")
    return tmp_path / "home" / "here", tmp_path / "home" / "not yet"


def untouched(mine):
    here, absent = mine
    return here.read_bytes() == b"mine" and not os.path.lexists(absent)


@pytest.mark.parametrize("which", [0, 1], ids=["a file", "nothing"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_replaced_and_not_what_it_names(writer, which, mine, tmp_path):
    path = tmp_path / "written"
    path.symlink_to(mine[which])
    WRITERS[writer](path)
    assert not path.is_symlink()
    assert untouched(mine)


@pytest.mark.parametrize("writer", ["text", "tensors", "csv", "table"])
def test_a_link_that_the_user_has_named_is_followed(writer, mine, tmp_path):
    path = tmp_path / "written"
    path.symlink_to(mine[0])
    WRITERS[writer](path, follow=True)
    assert path.is_symlink()
    assert not untouched(mine)


def test_a_pipe_that_the_user_has_named_receives_the_content(capfd):
    sys.stdout.flush()
    with replacing(Path("/dev/stdout"), follow=True) as path:
        path.write_text("content")
    assert capfd.readouterr().out == "content"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1], ids=["a file", "nothing"])
@pytest.mark.parametrize("place", ["photos/classes.csv", "photos.toml"])
def test_init_writes_through_no_link(place, which, mine, tmp_path):
    rng = np.random.default_rng(0)
    for name in NAMES:
        (tmp_path / "evil" / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "evil" / "photos" / name / f"{i}.png")
    link = tmp_path / "evil" / place
    link.symlink_to(mine[which])
    for force in ((), ("--force",)):
        CliRunner().invoke(app, ["init", str(tmp_path / "evil" / "photos"), *force])
        assert untouched(mine)


@pytest.mark.parametrize("which", [0, 1], ids=["a file", "nothing"])
@pytest.mark.parametrize("name", ["", "plan", "source.json", "000000"])
def test_blocks_of_others_are_written_through_no_link(name, which, mine, tmp_path):
    blocks = tmp_path / "out.blocks"
    if name:
        blocks.mkdir()
    place = blocks / name if name else blocks
    place.symlink_to(mine[which] if name else mine[which].parent)
    with pytest.raises(FedUnseenError) as refused:
        spread._parts(tmp_path / "out", ["what"])
    assert refused.value.code == "run-link"
    assert untouched(mine)


def test_a_record_of_blocks_that_is_damaged_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "out.blocks").mkdir()
    (tmp_path / "out.blocks" / "source.json").write_text("{")
    with pytest.raises(FedUnseenError, match="delete it to begin again"):
        spread._parts(tmp_path / "out", ["what"])


def test_splits_that_are_links_to_their_own_folder_end_in_one_sentence(tmp_path):
    """Two of them made 2^40 folders."""
    for splits in (["a"], ["a", "b"]):
        (tmp_path / splits[-1]).symlink_to(".")
        (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
        sentence = message_of(find_table, tmp_path, error=FedUnseenError)
        assert "dataset_dict.json lists itself or another dictionary" in sentence
