"""Numbers as ring elements: exact or within half a step, and what cannot be a sum is noticed."""

import numpy as np
import pytest
import torch
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from fedunseen.deploy.secagg import primitives
from fedunseen.deploy.secagg.masks import ALL, Masks
from fedunseen.deploy.secagg.primitives import SecAggError, apply_streams, key_stream
from fedunseen.deploy.secagg.ring import Field, Layout, RangeError
from fedunseen.deploy.secagg.sharing import inverse, restore, split, times
from fedunseen.strategies import FedAvg, Reply
from fedunseen.strategies.summed import Summed

RHO = bytes(range(32))


def test_numbers_come_back_within_half_a_step_for_each_party_and_whole_ones_exactly():
    fields = (
        Field("small", (5, 3), "number", 64.0),
        Field("wide", (40,), "sum"),
        Field("whole", (3,), "whole"),
    )
    layout = Layout(fields, parties=30)
    assert layout.step(fields[0]) == 2.0**-51  # 30 * 64 < 2^11, and 2^11 / 2^-51 = 2^62
    rng = np.random.default_rng(1)
    sent = [
        {
            "small": rng.uniform(-64, 64, (5, 3)),
            "wide": rng.standard_normal(40) * 10.0 ** rng.integers(-12, 13, 40),
            "whole": torch.tensor([7, -(2**58) + 1, 2**58 - 1]),
        }
        for _ in range(30)
    ]
    sent[0]["small"][0, 0], sent[1]["small"][0, 0] = 64.0, -64.0
    found = layout.decode(
        np.sum([layout.encode(one, RHO) for one in sent], axis=0, dtype=np.uint64), 30, RHO
    )
    for field in fields[:2]:
        exact = [np.longdouble(one[field.name]) for one in sent]
        error = np.abs(found[field.name] - np.sum(exact, axis=0))
        own = np.finfo(float).eps * np.abs(found[field.name])  # the sum itself is a float64
        assert (error <= 30 * layout.step(field) / 2 + own).all()
    assert found["whole"].tolist() == [210, 30 * (-(2**58) + 1), 30 * (2**58 - 1)]


def test_sums_as_wide_as_counts_of_large_data_do_not_wrap():
    layout = Layout((Field("wide", (2,), "sum"),), parties=1000)
    total = layout.encode({"wide": np.array([2.0**47, -(2.0**47)])}, RHO) * np.uint64(1000)
    assert layout.decode(total, 1000, RHO)["wide"].tolist() == [1000 * 2.0**47, -1000 * 2.0**47]


@pytest.mark.parametrize(
    ("kind", "bad"), [("number", 64.1), ("number", np.nan), ("sum", np.inf), ("whole", 2**62)]
)
def test_a_number_beyond_the_range_is_refused_without_saying_it(kind, bad):
    layout = Layout((Field("update/w", (2,), kind, 64.0),), parties=3)
    with pytest.raises(
        RangeError, match=r"^'update/w' holds a (whole )?number beyond the range of the masks$"
    ):
        layout.encode({"update/w": np.array([0, bad])}, RHO)


@pytest.mark.parametrize("place", [0, 3, -1])
def test_elements_that_still_have_masks_are_noticed(place):
    layout = Layout((Field("w", (6,), "number", 1.0),), parties=3)
    elements = layout.encode({"w": np.linspace(-1, 1, 6)}, RHO)
    elements[place] += np.uint64(1)
    with pytest.raises(SecAggError, match="the masks have not cancelled"):
        layout.decode(elements, 1, RHO)


def test_a_sum_that_honest_parties_cannot_make_is_noticed():
    wide, narrow = (Layout((Field("w", (2,), "number", most),), parties=4) for most in (64.0, 63.0))
    elements = wide.encode(
        {"w": np.array([0.0, 63.9])}, RHO
    )  # as a party would that has a larger range
    with pytest.raises(SecAggError, match="the sum of 'w' is larger than 1 parties can make it"):
        narrow.decode(elements, 1, RHO)


def test_the_reply_of_all_is_the_weighted_mean():
    sent = [
        (1, {"loss": 1.0, "first": 4.0}, (1.0, 0.0)),
        (3, {"loss": 2.0}, (0.0, 1.0)),
        (4, {"loss": 3.0}, (0.0, 0.0)),
    ]
    replies = [
        Reply(k, {"w": torch.tensor(w)}, classes, 20, terms)
        for k, (classes, terms, w) in enumerate(sent)
    ]
    done = Masks(64.0, 3).sum(FedAvg(), replies, {"w": torch.zeros(2)})
    assert (done.clients, done.reply.client) == ([0, 1, 2], ALL)
    assert done.reply.update["w"].tolist() == [0.125, 0.375]
    assert done.reply.terms == {"loss": (1 + 6 + 12) / 8, "first": 4.0}


def test_numbers_that_do_not_fit_are_cut_and_counted_and_others_are_left_as_they_are():
    masks = Masks(range=2.0, clients=3)
    inside = torch.tensor([-2.0, 2.0], dtype=torch.float16)
    outside = torch.tensor([-2.5, 1.0, torch.nan, torch.inf])
    reply = Reply(0, {"in": inside, "out": outside, "none": torch.zeros(0, 2)}, 1, 1)
    found, count = masks.cut(FedAvg(), reply)
    assert (found.update["in"] is inside, count) == (True, 3)
    assert found.update["out"].tolist() == [-2.0, 1.0, 0.0, 2.0]
    most = 2**62 // 3
    whole = {"count": torch.tensor([most + 2**40, -(2**63), 7]), "space": torch.ones(2).byte()}
    found, count = masks.cut(Summed(FedAvg(), whole), Reply(0, whole, 1, 1))
    assert (found.update["count"].tolist(), count) == ([most, -most, 7], 2)


def test_integer_statistics_add_up_bit_for_bit():
    like = {
        "count": torch.zeros(2, dtype=torch.int64),
        "square": torch.zeros(2, dtype=torch.float64),
        "space": torch.arange(32, dtype=torch.uint8),
    }
    rng = np.random.default_rng(3)
    updates = [
        {
            "count": torch.from_numpy(rng.integers(-(2**50), 2**50, 2)),
            "square": torch.ones(2, dtype=torch.float64),
        }
        for _ in range(4)
    ]
    replies = [Reply(k, {**one, "space": like["space"]}, 2, 2) for k, one in enumerate(updates)]
    found = Masks(64.0, 4).sum(Summed(FedAvg(), like), replies, like).reply.update
    assert torch.equal(found["count"], sum(one["count"] for one in updates))
    assert found["square"].tolist() == [4.0, 4.0]
    assert torch.equal(found["space"], like["space"])


@pytest.mark.parametrize(("threshold", "count"), [(3, 4), (7, 10), (5, 1024)])
def test_fewer_shares_than_the_threshold_say_nothing_of_a_seed(threshold, count):
    seed = bytes(range(16))
    shares = split(seed, threshold, count)[-threshold:]
    holders = range(count - threshold, count)
    assert restore(holders, [shares, shares]) == [seed, seed]
    assert restore(holders[1:], [shares[1:]]) != [seed]
    assert Shamir.combine([(k + 1, part) for k, part in zip(holders, shares, strict=True)]) == seed


@given(st.data())
def test_many_seeds_are_restored_as_the_library_restores_each(data):
    """Shares are any 16 bytes here, so that wrong ones give the library's value too."""
    holders = data.draw(st.lists(st.integers(0, 1023), min_size=1, max_size=6, unique=True))
    shares = st.lists(
        st.binary(min_size=16, max_size=16), min_size=len(holders), max_size=len(holders)
    )
    rows = data.draw(st.lists(shares, max_size=3))
    places = [holder + 1 for holder in holders]
    expected = [Shamir.combine(list(zip(places, row, strict=True))) for row in rows]
    assert restore(holders, rows) == expected


@given(*[st.integers(0, 2**128 - 1)] * 3)
def test_the_elements_of_restored_seeds_are_a_field(one, two, three):
    assert times(one, two) == times(two, one)
    assert times(one, times(two, three)) == times(times(one, two), three)
    assert times(one, two ^ three) == times(one, two) ^ times(one, three)
    assert times(one, 1) == one
    assert one == 0 or times(one, inverse(one)) == 1


def test_a_zero_key_is_no_key():
    with pytest.raises(SecAggError, match="a public key is invalid"):
        primitives.agree(bytes(range(32)), bytes(32), b"test")


@pytest.mark.parametrize("count", [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 200_001])
def test_a_stream_in_blocks_is_the_cipher_s_key_stream(count):
    key = bytes(range(32))
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8")
    assert np.array_equal(key_stream(key, count), expected)
    elements = expected.copy()
    apply_streams(elements, [(key, np.subtract)])
    assert not elements.any()
    keys = [bytes([k] * 32) for k in range(3)]
    apply_streams(elements, zip(keys, (np.add, np.subtract, np.add), strict=True))
    one, two, three = (key_stream(key, count) for key in keys)
    assert np.array_equal(elements, one - two + three)
