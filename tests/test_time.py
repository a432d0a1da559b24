"""The sinusoidal clock and the calendar, against hand-computed values, datetime and pandas."""

import doctest
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import easydgl_mini.encode.time as clock
from easydgl_mini.encode.time import CALENDAR_DIM, calendar, calendar_fields, time_encoding


def test_docstring_examples_run():
    assert doctest.testmod(clock).failed == 0


# the sinusoidal encoding -------------------------------------------------------------------------------------------


def test_encoding_by_hand():
    # d = 4: angles t, t, t/100, t/100 (10000^{2/4} = 100); sin on even, cos on odd components
    got = time_encoding(torch.tensor(50.0, dtype=torch.float64), 4)
    want = [math.sin(50.0), math.cos(50.0), math.sin(0.5), math.cos(0.5)]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 5, 6, 64])
def test_encoding_equals_its_definition_component_by_component(dim):
    t = np.array([[0.0, 1.5, -7.0], [1e3, 86_400.0, 2.0]])
    got = time_encoding(torch.tensor(t), dim).numpy()
    assert got.shape == (2, 3, dim)
    for j in range(dim):
        angle = t / 10_000 ** (2 * (j // 2) / dim)
        np.testing.assert_allclose(got[..., j], (np.sin if j % 2 == 0 else np.cos)(angle), atol=1e-11)


def test_inner_product_of_encodings_depends_on_the_difference_of_times():
    t = torch.tensor([0.0, 3.0, 10.0], dtype=torch.float64)
    a, b = time_encoding(t, 16), time_encoding(t + 123.456, 16)
    torch.testing.assert_close(a @ a.T, b @ b.T)
    assert torch.allclose((a * a).sum(-1), torch.tensor(8.0, dtype=torch.float64))  # d/2 hands of length one


def test_large_float32_times_keep_their_phase():
    t = torch.tensor([1e6, 1e6 + 0.5, 16_777_215.0])  # all exact in float32
    got = time_encoding(t, 32)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), time_encoding(t.double(), 32).numpy(), atol=6e-8)


def test_encoding_dtype_and_gradient():
    assert time_encoding(torch.tensor([1, 2]), 4).dtype == torch.get_default_dtype()
    assert time_encoding(3.0, 4).dtype == torch.get_default_dtype()
    assert time_encoding(np.float64(3.0), 4).dtype == torch.float64
    t = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: time_encoding(x, 5), (t,))


@pytest.mark.parametrize("dim", [0, -2, 2.0, True, "4"])
def test_encoding_names_a_bad_dim(dim):
    with pytest.raises(ValueError, match="dim must be a positive integer"):
        time_encoding(torch.zeros(2), dim)


def test_encoding_refuses_complex_and_boolean_times():
    with pytest.raises(ValueError, match="t must be real"):
        time_encoding(torch.tensor([True]), 4)
    with pytest.raises(ValueError, match="t must be real"):
        time_encoding(torch.tensor([1j]), 4)


# the calendar ------------------------------------------------------------------------------------------------------


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))
def test_fields_equal_datetimes(moment):
    seconds = (moment - datetime(1970, 1, 1)) // timedelta(seconds=1)
    got = calendar_fields(torch.tensor(seconds)).tolist()
    assert got == [moment.month, moment.day, moment.weekday(), moment.hour]


def test_fields_equal_pandas_on_many_timestamps():
    rng = np.random.default_rng(0)
    t = rng.integers(-8_000_000_000, 8_000_000_000, size=20_000)  # 1716 to 2223: 1800, 1900, 2100 are not leap years
    index = pd.DatetimeIndex(t.astype("datetime64[s]"))
    want = np.stack([index.month, index.day, index.day_of_week, index.hour], axis=-1)
    assert np.array_equal(calendar_fields(t).numpy(), want)
    assert np.array_equal(calendar_fields(torch.tensor(t).double() + 0.25).numpy(), want)


@pytest.mark.parametrize(
    ("day", "month_and_day"),
    [("2000-02-29", [2, 29]), ("1900-03-01", [3, 1]), ("2024-02-29", [2, 29]), ("2023-12-31", [12, 31])],
)
def test_fields_at_both_ends_of_a_day(day, month_and_day):
    start = datetime.fromisoformat(day)
    seconds = (start - datetime(1970, 1, 1)) // timedelta(seconds=1)
    got = calendar_fields(torch.tensor([seconds, seconds + 86_399]))
    assert got.tolist() == [[*month_and_day, start.weekday(), 0], [*month_and_day, start.weekday(), 23]]


def test_units_and_origin_say_the_same_moment():
    t = 1_709_209_800  # 2024-02-29 12:30 UTC
    want = calendar_fields(t).tolist()
    assert want == [2, 29, 3, 12]
    per = {"milliseconds": 1000, "minutes": 1 / 60, "hours": 1 / 3600, "days": 1 / 86_400, "weeks": 1 / 604_800}
    for unit, factor in per.items():
        assert calendar_fields(t * factor, unit=unit).tolist() == want, unit
    origin = "2024-02-01T06:00"
    assert calendar_fields(28 * 24 + 6.5, unit="hours", origin=origin).tolist() == want
    assert calendar_fields(28 * 24 + 6.5, unit="hours", origin=datetime.fromisoformat(origin)).tolist() == want


def test_hours_given_in_days_or_weeks_fall_on_the_hour():
    hours = torch.arange(-50_000, 50_001, dtype=torch.float64)
    for unit, length in (("days", 24), ("weeks", 168)):  # h / 168 weeks is often a hair less than h hours
        assert torch.equal(calendar_fields(hours / length, unit=unit, origin="2024-01-01")[:, 3], (hours % 24).long())


def test_features_are_the_circles_of_the_fields():
    t = torch.tensor(np.random.default_rng(1).integers(-(10**9), 2 * 10**9, size=(3, 50))).double()
    got, fields = calendar(t), calendar_fields(t).double()
    assert got.shape == (3, 50, CALENDAR_DIM)
    for p, (first, period) in enumerate([(1, 12), (1, 31), (0, 7), (0, 24)]):
        turn = torch.atan2(got[..., 2 * p], got[..., 2 * p + 1]) / (2 * math.pi) % 1.0  # sine first, then cosine
        torch.testing.assert_close((turn * period).round() % period + first, fields[..., p])
        torch.testing.assert_close(got[..., 2 * p] ** 2 + got[..., 2 * p + 1] ** 2, torch.ones(3, 50).double())


def test_midnight_is_between_23_and_1_and_sunday_is_next_to_monday():
    day = calendar(torch.arange(24), unit="hours", origin="2024-01-01")[:, 6:]
    assert torch.allclose(torch.dist(day[23], day[0]), torch.dist(day[0], day[1]))
    week = calendar(torch.arange(7), unit="days", origin="2024-01-01")[:, 4:6]
    assert torch.allclose(torch.dist(week[6], week[0]), torch.dist(week[0], week[1]))
    assert torch.dist(week[0], week[3]) > torch.dist(week[0], week[1])


def test_calendar_dtypes():
    assert calendar(torch.tensor([0])).dtype == torch.get_default_dtype()
    assert calendar(torch.tensor([0.0], dtype=torch.float64)).dtype == torch.float64
    assert calendar(torch.tensor([5.0]), unit="hours").dtype == torch.float32


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_calendar_names_the_first_bad_time(bad):
    with pytest.raises(ValueError, match=r"t must be finite.*index \(1, 0\)"):
        calendar(torch.tensor([[0.0, 1.0], [bad, bad]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "fortnights"}, "unit must be a positive number or one of"),
        ({"origin": "yesterday"}, "origin must be an ISO date"),
        ({"origin": 0}, "origin must be an ISO date"),
        ({"origin": "2024-01-01T00:00+01:00"}, "origin must have no time zone"),
        ({"origin": datetime(2024, 1, 1, tzinfo=UTC)}, "origin must have no time zone"),
    ],
)
def test_calendar_names_a_bad_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        calendar(0, **arguments)
