"""Event logs and padded histories, by hand and against plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easydgl_mini as em


@st.composite
def logs(draw):
    rows = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=30))
    user, item, time = (np.array(column) for column in zip(*rows, strict=True))
    return em.EventLog(user, item, time.astype(float), num_users=7, num_items=10), rows


@settings(max_examples=60, deadline=None)
@given(data=logs(), max_len=st.integers(1, 6))
def test_histories_equal_a_plain_python_construction(data, max_len):
    log, rows = data
    histories = log.histories(max_len, time_unit=2.0)
    users = sorted({r[0] for r in rows})
    assert histories.user.tolist() == users
    for n, user in enumerate(users):
        mine = sorted((r for r in rows if r[0] == user), key=lambda r: r[2])  # stable: ties keep their order
        gaps = [0.0] + [(b[2] - a[2]) / 2 for a, b in zip(mine, mine[1:], strict=False)]
        kept, pad = mine[-max_len:], max_len - len(mine[-max_len:])
        assert histories.mask[n].tolist() == [False] * pad + [True] * len(kept)
        assert histories.item[n].tolist() == [-1] * pad + [r[1] for r in kept]
        assert histories.time[n].tolist() == [0.0] * pad + [r[2] / 2 for r in kept]
        assert histories.gap[n].tolist() == [0.0] * pad + gaps[-max_len:]


def test_an_event_whose_predecessor_was_cut_off_keeps_its_gap():
    h = em.EventLog([0, 0, 0], [1, 2, 3], [0.0, 10.0, 14.0]).histories(max_len=2)
    assert h.gap.tolist() == [[10.0, 4.0]]


def test_named_units_are_in_seconds():
    log = em.EventLog([0, 0], [0, 0], [0.0, 604800.0])
    gaps = {unit: log.histories(1, unit).gap.item() for unit in ("second", "minute", "hour", "day", "week")}
    assert gaps == {"second": 604800.0, "minute": 10080.0, "hour": 168.0, "day": 7.0, "week": 1.0}
    for bad in ("fortnight", 0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="time_unit"):
            log.histories(1, bad)


@settings(max_examples=40, deadline=None)
@given(data=logs(), seed=st.integers(0, 1000))
def test_splits_share_no_user_and_lose_no_event(data, seed):
    log, _ = data
    parts = log.split_users(ratios=(8, 1, 1), seed=seed)
    assert sum(map(len, parts)) == len(log)
    users = [set(p.user.tolist()) for p in parts]
    assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]
    assert all(p.num_users == 7 and p.num_items == 10 for p in parts)
    again = log.split_users(ratios=(8, 1, 1), seed=seed)
    assert all(np.array_equal(a.user, b.user) for a, b in zip(parts, again, strict=True))


def test_split_sizes_follow_the_ratios():
    log = em.EventLog(np.arange(1000), np.zeros(1000, int), np.zeros(1000))
    assert [len(p.users) for p in log.split_users((8, 1, 1), seed=3)] == [800, 100, 100]
    for bad in ((), (0, 0), (1, -1), (1, float("nan"))):
        with pytest.raises(ValueError, match="ratios"):
            log.split_users(bad)


def test_hold_out_last_by_hand():
    #                  user 0: ties at 5, the later in the input is last; user 1: a single event; user 2: out of order
    log = em.EventLog([0, 0, 0, 1, 2, 2], [7, 8, 9, 5, 3, 4], [5.0, 1.0, 5.0, 2.0, 9.0, 6.0])
    history, last = log.hold_out_last()
    assert history.user.tolist() == [0, 0, 2] and history.item.tolist() == [8, 7, 4]
    assert last.user.tolist() == [0, 2] and last.item.tolist() == [9, 3] and last.time.tolist() == [5.0, 9.0]


def test_batches_cover_each_row_once_and_shuffle_by_seed():
    h = em.EventLog(np.arange(10), np.arange(10), np.zeros(10)).histories(3)
    assert torch.cat([b.user for b in h.batches(4)]).tolist() == list(range(10))
    shuffled = [b.user for b in h.batches(4, seed=1)]
    assert [len(b) for b in shuffled] == [4, 4, 2]
    assert sorted(torch.cat(shuffled).tolist()) == list(range(10)) != torch.cat(shuffled).tolist()
    assert torch.equal(torch.cat(shuffled), torch.cat([b.user for b in h.batches(4, seed=1)]))
    assert torch.equal(h[[3, 1]].item[:, -1], torch.tensor([3, 1]))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([0, 1], [0], [0.0, 1.0]), "as long as each other"),
        (([0, -1], [0, 0], [0.0, 1.0]), r"user\[1\] is -1"),
        (([0], [0.5], [0.0]), "item must hold whole numbers"),
        (([0, 0], [0, 0], [0.0, float("nan")]), r"time\[1\] is nan"),
        (([0, 0], [0, 0], [-1.0, 2.0]), r"time\[0\] is -1"),
        (([0, 0], [0, 0], [float("inf"), 2.0]), r"time\[0\] is inf"),
        (([0, 4], [0, 0], [0.0, 0.0], 3), r"user\[1\] is 4; expected ids in 0 … 2"),
        (([[0]], [0], [0.0]), "user must have one dimension"),
    ],
)
def test_bad_events_are_refused_by_name_and_index(args, message):
    with pytest.raises(ValueError, match=message):
        em.EventLog(*args)


def test_unsigned_ids_sort_like_signed_ones():
    log = em.EventLog(np.array([2, 0, 1], dtype=np.uint32), np.array([5, 6, 7], dtype=np.uint8), [0.0, 1.0, 2.0])
    assert log.user.tolist() == [0, 1, 2] and log.item.tolist() == [6, 7, 5]


def test_max_len_must_be_a_whole_positive_number():
    log = em.EventLog([0], [0], [0.0])
    for bad in (0, -3, 1.5):
        with pytest.raises(ValueError, match="max_len"):
            log.histories(bad)
