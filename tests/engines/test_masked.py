"""Secure aggregation: the sum is exact, whoever drops out; nothing of a party is seen; a lie is refused or named."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from fedunseen.engines.masked import primitives
from fedunseen.engines.masked.aggregation import EVERYBODY, Masks, in_one_process
from fedunseen.engines.masked.party import PartyHalf, least, sworn
from fedunseen.engines.masked.primitives import SECRET, MaskError
from fedunseen.engines.masked.server import ServerHalf, ring
from fedunseen.engines.masked.words import Field, Layout, RangeError
from fedunseen.strategies import FedAvg, Reply
from fedunseen.strategies.summed import Summed

STAGES = ("keys", "shares", "masked", "unmask")
SESSION = bytes(range(16))


def masks(clients, neighbours=None, threshold=0.6):
    return Masks(threshold, neighbours, 64.0, clients, 10)


def words_of(clients, count=300, seed=0):
    """Any words at all, the largest included: sums wrap as the masks do."""
    rng = np.random.default_rng(seed)
    return {client: rng.integers(0, 2**64, count, dtype=np.uint64) for client in clients}


def added(words, clients):
    total = np.zeros(len(next(iter(words.values()))), dtype=np.uint64)
    for client in clients:
        total += words[client]
    return total


# The sum


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("clients", "neighbours"), [(4, None), (10, None), (10, 6), (12, 8)])
def test_whoever_drops_out_at_whatever_stage_the_sum_is_of_the_others(clients, neighbours, stage):
    agreed = masks(clients, neighbours)
    words = words_of(range(3, 3 + clients))  # clients need not begin at 0
    for gone in [{3}, {3 + clients - 1, 4}] if clients > 4 else [{5}]:
        done = in_one_process(
            agreed, agreed.server(3), words, lambda now, client, gone=gone: now == stage and client in gone
        )
        left = sorted(words.keys() - gone) if stage != "unmask" else sorted(words)
        assert done.clients == left
        assert np.array_equal(done.words, added(words, left))


def test_parties_drop_out_at_several_stages_of_one_session():
    agreed, words = masks(12), words_of(range(12))
    when = {0: "keys", 5: "shares", 7: "masked", 11: "unmask"}
    done = in_one_process(agreed, agreed.server(3), words, lambda stage, client: when.get(client) == stage)
    assert done.clients == [1, 2, 3, 4, 6, 8, 9, 10, 11]
    assert np.array_equal(done.words, added(words, done.clients))


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        ("keys", "2 of the 3 parties that the sum has to be of are left"),
        ("shares", "2 of the 3 parties that the sum has to be of are left"),
        ("masked", "2 of the 3 parties that the sum has to be of are left"),
        ("unmask", "2 of the 3 shares that the masks of party 0 need have come"),
    ],
)
def test_too_few_parties_end_it_in_a_sentence(stage, why):
    agreed = masks(4)
    with pytest.raises(MaskError) as told:
        in_one_process(agreed, agreed.server(2), words_of(range(4)), lambda now, client: now == stage and client > 1)
    assert str(told.value) == why


def test_neighbours_are_mutual_and_the_same_for_everybody():
    near = ring(range(20), 6)
    assert all(len(others) == 6 and client not in others for client, others in near.items())
    assert all(client in near[other] for client, others in near.items() for other in others)
    assert ring(range(20), 6) != near  # drawn anew
    assert ring([4, 9, 2], 6) == {2: [4, 9], 4: [2, 9], 9: [2, 4]}


def test_more_than_half_of_the_holders_are_needed_and_two_at_least():
    for holders, threshold in itertools.product(range(3, 40), (0.51, 0.6, 0.9)):
        need = least(threshold, holders)
        assert 2 * need > holders
        assert need >= max(2, threshold * holders - 1e-6)
        assert need - 1 < max(2, threshold * holders) or need == holders // 2 + 1


# Numbers as words


def test_numbers_come_back_within_half_a_step_for_each_party():
    fields = Field("small", (5, 3), "number", 64.0), Field("wide", (40,), "sum"), Field("ids", (2,), "same")
    layout = Layout(fields, parties=30)
    assert layout.step(fields[0]) == 2.0**-51  # 30 * 64 < 2^11, and 2^11 / 2^-51 = 2^62
    rng = np.random.default_rng(1)
    sent = [
        {
            "small": rng.uniform(-64, 64, (5, 3)),
            "wide": rng.standard_normal(40) * 10.0 ** rng.integers(-12, 13, 40),
            "ids": np.array([7, -2]),
        }
        for _ in range(30)
    ]
    sent[0]["small"][0, 0], sent[1]["small"][0, 0] = 64.0, -64.0
    total = added(dict(enumerate(layout.words(one, SESSION) for one in sent)), range(30))
    found = layout.numbers(total, 30, SESSION)
    for field in fields[:2]:
        exact = [np.longdouble(one[field.name]) for one in sent]
        error = np.abs(found[field.name] - np.sum(exact, axis=0))
        own = np.finfo(float).eps * np.abs(found[field.name])  # the sum itself is a float64
        assert (error <= 30 * layout.step(field) / 2 + own).all()
    assert found["ids"].tolist() == [210, -60]


def test_sums_as_wide_as_counts_of_large_data_do_not_wrap():
    layout = Layout((Field("wide", (2,), "sum"),), parties=1000)
    one = layout.words({"wide": np.array([2.0**47, -(2.0**47)])}, SESSION)
    total = one * np.uint64(1000)
    assert layout.numbers(total, 1000, SESSION)["wide"].tolist() == [1000 * 2.0**47, -1000 * 2.0**47]


@pytest.mark.parametrize("bad", [64.1, -65.0, np.nan, np.inf])
def test_a_number_beyond_the_range_is_refused_without_saying_it(bad):
    layout = Layout((Field("update/w", (2,), "number", 64.0),), parties=3)
    with pytest.raises(RangeError) as told:
        layout.words({"update/w": np.array([0.0, bad])}, SESSION)
    assert str(told.value) == "'update/w' holds a number beyond the range of the masks"


@pytest.mark.parametrize("place", [0, 3, -1])
def test_words_that_masks_have_not_left_are_noticed(place):
    layout = Layout((Field("w", (6,), "number", 1.0),), parties=3)
    words = layout.words({"w": np.linspace(-1, 1, 6)}, SESSION)
    words[place] += np.uint64(1)
    with pytest.raises(MaskError) as told:
        layout.numbers(words, 1, SESSION)
    assert str(told.value) == (
        "the masks have not cancelled: a party has sent something else than what it was asked for"
    )


def test_a_sum_that_honest_parties_cannot_make_is_noticed():
    wide, narrow = (Layout((Field("w", (2,), "number", most),), parties=4) for most in (64.0, 63.0))
    assert wide.step(wide.fields[0]) == narrow.step(narrow.fields[0])
    words = wide.words({"w": np.array([0.0, 63.9])}, SESSION)  # as a party would that has a larger range
    with pytest.raises(MaskError) as told:
        narrow.numbers(words, 1, SESSION)
    assert str(told.value) == "the sum of 'w' is larger than 1 parties can make it: one of them lies"


# Replies


def reply(client, *, classes=2, samples=20, terms=None, w=(0.5, -1.0)):
    return Reply(client, {"w": torch.tensor(w)}, classes, samples, {"loss": 1.0} if terms is None else terms)


def test_the_reply_of_everybody_is_the_weighted_mean_of_all():
    replies = [
        reply(0, classes=1, terms={"loss": 1.0, "first": 4.0}, w=(1.0, 0.0)),
        reply(1, classes=3, terms={"loss": 2.0}, w=(0.0, 1.0)),
        reply(2, classes=4, terms={"loss": 3.0}, w=(0.0, 0.0)),
    ]
    done = masks(3).sum(FedAvg(), replies, {"w": torch.zeros(2)}, 3)
    assert (done.clients, done.reply.client) == ([0, 1, 2], EVERYBODY)
    assert (done.reply.classes, done.reply.samples) == (8, 60)
    assert done.reply.update["w"].tolist() == [0.125, 0.375]
    assert done.reply.terms == {"loss": (1 + 6 + 12) / 8, "first": 4.0}


def test_sums_of_another_class_space_are_noticed():
    nothing = {"count": torch.zeros(2, dtype=torch.float64), "space": torch.tensor([5, 6], dtype=torch.uint8)}
    strategy = Summed(FedAvg(), nothing)
    spaces = [[5, 6], [5, 6], [5, 7]]
    replies = [
        Reply(k, {"count": torch.ones(2, dtype=torch.float64), "space": torch.tensor(own, dtype=torch.uint8)}, 2, 2)
        for k, own in enumerate(spaces)
    ]
    with pytest.raises(MaskError, match="the sums of some parties are of another class space or another quantization"):
        masks(3).sum(strategy, replies, nothing, 3)
    replies[2] = Reply(2, {**replies[2].update, "space": nothing["space"]}, 2, 2)
    assert masks(3).sum(strategy, replies, nothing, 3).reply.update["count"].tolist() == [3.0, 3.0]


# What the coordinator sees


def transcript(clients=5, size=4000, masked=True):
    """Return a party's update, its words, and what of it the coordinator hears, over one session."""
    agreed = masks(clients)
    rng = np.random.default_rng(2)
    update = (0.01 * rng.standard_normal((clients, size))).astype(np.float32)
    layout = Layout((Field("w", (size,), "number", 64.0),), clients)
    server = agreed.server(3)
    words = {k: layout.words({"w": update[k]}, server.session) for k in range(clients)}
    heard = in_one_process(agreed, server, words).heard
    hidden = {client: own for stage, client, own in heard if stage == "masked"} if masked else words
    return update[1], hidden[1], heard


def looks_like_noise(words, update):
    """Say whether bytes are uniform (chi-square) and words uncorrelated with the update, each at one in a million."""
    counts = np.bincount(words[:-1].view(np.uint8), minlength=256)
    uniform = scipy.stats.chisquare(counts).pvalue > 1e-6
    signed = words[:-1].view(np.int64).astype(float)
    related = scipy.stats.spearmanr(signed, update).pvalue < 1e-6
    return uniform and not related


def test_what_the_coordinator_hears_of_a_party_cannot_be_told_from_noise():
    update, hidden, heard = transcript()
    assert looks_like_noise(hidden, update)
    assert [stage for stage, client, _ in heard if client == 1] == list(STAGES)
    # All else that it hears is keys, sealed shares and digests: a few bytes, none of which depend on the update.
    assert sum(len(str(message)) for stage, client, message in heard if client == 1 and stage != "masked") < 5000


def test_that_test_fails_without_masks():
    update, words, _ = transcript(masked=False)
    assert not looks_like_noise(words, update)


def test_each_of_the_two_masks_alone_hides_what_a_party_sends(monkeypatch):
    """Its own mask is left when the pairs' cancel, and the pairs' when its own is taken off."""
    real = primitives.key_stream
    for switched_off in ("own", "pairs"):
        half = PartyHalf(0, SESSION, 0.6)
        others = [PartyHalf(k, SESSION, 0.6) for k in (1, 2)]
        keys = {str(one.client): one.keys() for one in (half, *others)}
        dealt = {one.client: one.shares({"keys": keys}) for one in (half, *others)}
        to_half = {str(k): dealt[k]["sealed"]["0"] for k in (1, 2)}
        said = {str(k): dealt[k]["sworn"]["0"] for k in (1, 2)}
        own = primitives.digest(b"fedunseen own mask", SESSION, half._own)

        def stream(key, count, off=switched_off, own=own):
            return np.zeros(count, np.uint64) if (key == own) == (off == "own") else real(key, count)

        monkeypatch.setattr("fedunseen.engines.masked.party.key_stream", stream)
        words = Layout((Field("w", (4000,), "number", 64.0),), 3).words({"w": np.full(4000, 0.25)}, SESSION)
        hidden = half.masked({"sealed": to_half, "sworn": said}, words)
        monkeypatch.undo()
        assert scipy.stats.chisquare(np.bincount(hidden.view(np.uint8), minlength=256)).pvalue > 1e-6


def test_fewer_shares_than_the_threshold_say_nothing_of_a_secret():
    """Whatever secret one assumes, there are shares of it that begin with those that are known."""
    secret = bytes(SECRET)
    shares = primitives.split(secret, 3, 5)
    assert primitives.joined(dict(enumerate(shares[:3]))) == secret
    assert primitives.joined({0: shares[0], 3: shares[3], 4: shares[4]}) == secret
    assert primitives.joined(dict(enumerate(shares[:2]))) != secret


# Lies


def told_by(agreed, clients, change, need=3):
    words = words_of(range(clients))
    done = in_one_process(agreed, agreed.server(need), words, change=change)
    return done, added(words, done.clients)


def lie(stage, client, of):
    """Change what one client says at one stage."""
    return lambda now, who, message: of(message) if (now, who) == (stage, client) else message


def flipped(digits):
    return digits[:-1] + ("0" if digits[-1] != "0" else "1")


def test_a_wrong_share_is_found_out_and_the_others_suffice():
    for kind, gone in (("own", None), ("pairs", 4)):

        def wrong(message, kind=kind):
            name = min(message[kind])
            return {**message, kind: {**message[kind], name: flipped(message[kind][name])}}

        agreed, words = masks(6), words_of(range(6))
        done = in_one_process(
            agreed, agreed.server(3), words,
            lambda stage, client, gone=gone: (stage, client) == ("masked", gone),
            lie("unmask", 2, wrong),
        )  # fmt: skip
        dealer = 0 if kind == "own" else 4
        assert done.refused == {2: f"its share of a secret of party {dealer} is not the one that was dealt"}
        assert np.array_equal(done.words, added(words, done.clients))


def test_too_many_wrong_shares_end_it_without_a_sum():
    def wrong(stage, client, message):
        if stage != "unmask" or client > 1:
            return message
        return {**message, "own": {name: flipped(one) for name, one in message["own"].items()}}

    with pytest.raises(MaskError) as told:
        told_by(masks(4), 4, wrong)
    assert str(told.value) == "2 of the 3 shares that the masks of party 0 need have come"


def test_shares_that_do_not_fit_together_are_found_out(monkeypatch):
    """The dealer lies to everybody, and swears to it."""
    real = primitives.split

    def split(secret, threshold, count):
        shares = real(secret, threshold, count)
        return [bytes(SECRET), *shares[1:]] if secret == bad else shares

    agreed = masks(4)
    server = agreed.server(3)
    halves = {k: agreed.party(k, server.session) for k in range(4)}
    bad = halves[1]._own
    monkeypatch.setattr("fedunseen.engines.masked.party.split", split)
    monkeypatch.setattr(Masks, "party", lambda self, client, session: halves[client])
    with pytest.raises(MaskError) as told:
        in_one_process(agreed, server, words_of(range(4)))
    assert str(told.value) == "the shares that party 1 has dealt do not give the secret of its mask"


def test_a_holder_finds_out_that_it_was_dealt_another_share_than_was_sworn():
    def wrong(message):
        return {**message, "sworn": {**message["sworn"], "3": flipped(message["sworn"]["3"])}}

    done, right = told_by(masks(5), 5, lie("shares", 1, wrong))
    assert done.refused == {3: "the shares that party 1 has sent to party 3 are not what it swore"}
    assert done.clients == [0, 1, 2, 4]
    assert np.array_equal(done.words, right)


def test_a_sealed_share_that_was_changed_on_its_way_is_found_out():
    def wrong(message):
        return {**message, "sealed": {**message["sealed"], "3": flipped(message["sealed"]["3"])}}

    done, right = told_by(masks(5), 5, lie("shares", 1, wrong))
    assert done.refused == {3: "the shares that party 1 has sent to party 3 are damaged"}
    assert np.array_equal(done.words, right)


@pytest.mark.parametrize(
    ("stage", "of", "why"),
    [
        ("keys", lambda m: {**m, "pairs": m["reading"]}, "it has sent a key of another party, or one key twice"),
        ("keys", lambda m: {**m, "pairs": "00"}, "a message of the masks is damaged"),
        ("keys", lambda m: {**m, "own": 7}, "a message of the masks is damaged"),
        ("shares", lambda m: {**m, "sealed": {}}, "it has dealt shares to others than its neighbours"),
        ("shares", lambda m: {"sealed": [], "sworn": {}}, "a message of the masks is damaged"),
        ("shares", lambda m: {**m, "sealed": dict.fromkeys(m["sealed"], "ff")}, "a message of the masks is damaged"),
        ("masked", lambda m: m[:-1], "its masked words are not as many as were asked for"),
        ("masked", lambda m: m.astype(np.float64), "its masked words are not as many as were asked for"),
        ("unmask", lambda m: {**m, "own": {}}, "it has sent other shares than those that were asked for"),
        ("unmask", lambda m: {"own": 3, "pairs": {}}, "it has sent other shares than those that were asked for"),
    ],
)
def test_what_is_not_an_answer_is_refused_and_the_round_goes_on(stage, of, why):
    done, right = told_by(masks(5), 5, lie(stage, 2, of))
    assert done.refused == {2: why}
    assert np.array_equal(done.words, right)
    assert (2 in done.clients) == (stage == "unmask")


def test_an_answer_that_comes_twice_is_refused():
    agreed, words = masks(3), words_of(range(3))
    server = agreed.server(3)
    halves = {k: agreed.party(k, server.session) for k in range(3)}
    said = {k: half.keys() for k, half in halves.items()}
    twice = {
        "keys": lambda: server.take_keys(0, said[0]),
        "shares": lambda: server.take_shares(0, dealt[0]),
        "masked words": lambda: server.take_masked(0, hidden[0], 300),
    }
    for k, own in said.items():
        server.take_keys(k, own)
    dealt = {k: halves[k].shares(told) for k, told in server.ask_shares().items()}
    for k, own in dealt.items():
        server.take_shares(k, own)
    hidden = {k: halves[k].masked(told, words[k]) for k, told in server.ask_masked().items()}
    for k, own in hidden.items():
        server.take_masked(k, own, 300)
    for name, again in twice.items():
        with pytest.raises(MaskError, match=rf"it has (sent|dealt) its {name} twice"):
            again()
    opened = {k: halves[k].unmask(told) for k, told in server.ask_unmask().items()}
    for k, own in opened.items():
        server.take_unmasked(k, own)
    with pytest.raises(MaskError, match="it has sent its shares twice"):
        server.take_unmasked(0, opened[0])
    assert np.array_equal(server.total(), added(words, range(3)))


def test_a_party_answers_in_order_and_once():
    half = PartyHalf(4, SESSION, 0.6)
    with pytest.raises(MaskError, match="party 4 is asked for 'masked' out of order or twice"):
        half.masked({"sealed": {}, "sworn": {}}, np.zeros(2, np.uint64))
    half.keys()
    with pytest.raises(MaskError, match="party 4 is asked for 'keys' out of order or twice"):
        half.keys()


def test_words_under_the_masks_of_another_session_are_noticed():
    """They are as many as were asked for: the sum tells."""
    agreed = masks(4)
    layout = Layout((Field("w", (50,), "number", 64.0),), 4)
    server, before = agreed.server(3), agreed.server(3)
    of = {k: layout.words({"w": np.full(50, k / 10)}, server.session) for k in range(4)}
    old = {client: own for stage, client, own in in_one_process(agreed, before, of).heard if stage == "masked"}
    done = in_one_process(agreed, server, of, change=lie("masked", 3, lambda own: old[3]))
    with pytest.raises(MaskError, match="the masks have not cancelled: a party has sent something else"):
        layout.numbers(done.words, 4, server.session)


# A coordinator that asks for too much


def session(clients=4, threshold=0.6):
    """Return halves that have dealt their shares, and what the coordinator would tell them next."""
    agreed = masks(clients, threshold=threshold)
    server = agreed.server(3)
    halves = {k: agreed.party(k, server.session) for k in range(clients)}
    for k, half in halves.items():
        server.take_keys(k, half.keys())
    for k, told in server.ask_shares().items():
        server.take_shares(k, halves[k].shares(told))
    return halves, server.ask_masked()


def test_a_party_unmasks_once_and_no_sum_of_too_few():
    halves, told = session()
    for k, half in halves.items():
        half.masked(told[k], np.zeros(3, np.uint64))
    with pytest.raises(MaskError) as few:
        halves[0].unmask({"there": [0, 1]})
    assert str(few.value) == "the sum would be of fewer parties than party 0 agrees to"
    halves[1].unmask({"there": [0, 1, 2]})
    with pytest.raises(MaskError, match="party 1 is asked for 'unmask' out of order or twice"):
        halves[1].unmask({"there": [1, 2, 3]})
    with pytest.raises(MaskError, match="the sum would be of fewer parties than party 2 agrees to"):
        halves[2].unmask({"there": [0, 1, 3]})  # it is not among them


def test_a_coordinator_that_tells_parties_of_different_sums_gets_both_secrets_of_nobody():
    """Of party 0, it asks some for the share of its own mask and the others for that of its key."""
    halves, told = session(7)
    for k, half in halves.items():
        half.masked(told[k], np.zeros(3, np.uint64))
    found = {"own": {}, "pairs": {}}
    for k in range(1, 7):
        there = [j for j in range(7) if k % 2 or j != 0]
        for kind, shares in halves[k].unmask({"there": there}).items():
            if "0" in shares:
                found[kind][k] = shares["0"]
    need = least(0.6, 7)
    assert len(found["own"]) == len(found["pairs"]) == 3 < need
    assert 2 * need > 7  # so that one of the two kinds is always too few, whomever it asks


def test_a_party_takes_no_part_among_fewer_than_three_or_under_a_strangers_key():
    half, other = PartyHalf(0, SESSION, 0.6), PartyHalf(1, SESSION, 0.6)
    keys = {"0": half.keys(), "1": other.keys()}
    with pytest.raises(MaskError, match="the list of keys lacks this party's own, or two others"):
        half.shares({"keys": keys})
    half = PartyHalf(0, SESSION, 0.6)
    half.keys()
    third = PartyHalf(2, SESSION, 0.6).keys()
    with pytest.raises(MaskError, match="the list of keys lacks this party's own, or two others"):
        half.shares({"keys": {**keys, "2": third}})  # the key under its name is another one
    half = PartyHalf(0, SESSION, 0.6)
    with pytest.raises(MaskError, match="two parties have the same key"):
        half.shares({"keys": {"0": half.keys(), "1": keys["1"], "2": keys["1"]}})


def test_a_bad_public_key_is_no_key():
    with pytest.raises(MaskError, match="a public key is none"):
        primitives.agreed(primitives.new_secret(), bytes(32), b"")


def test_what_is_sworn_depends_on_who_deals_and_who_holds():
    share = bytes(range(2 * SECRET))
    assert len({sworn(a, b, share) for a, b in ((0, 1), (1, 0), (0, 2))}) == 3


def test_a_server_asks_for_three_parties_at_least():
    assert ServerHalf(SESSION, 0.6, None, 1).need == 3
