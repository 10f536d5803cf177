"""Curves: points exactly, between line and power law among them, the large ones' slope beyond."""

import math
from itertools import pairwise

import pytest

from braid.plan.curve import Curve, fit, leave_out, median_error, worst_error


def curve(*points):
    return Curve.of("all_reduce", 8, points, "nvlink", "test")


def test_points_come_back():
    measured = curve((1 << 20, 10.0), (1 << 10, 5.0), (1 << 22, 33.0))
    assert [measured.time_us(size) for size in (1 << 10, 1 << 20, 1 << 22)] == [5.0, 10.0, 33.0]


@pytest.mark.parametrize(("apart", "weight"), [(2, 0.5), (4, 0.5), (16, 0.25), (1024, 0.1)])
def test_between_two_points_lies_between_line_and_power_law(apart, weight):
    """Halfway where points are near, towards the line where they are far."""
    measured = curve((1 << 20, 4.0), (apart << 20, 9.0))
    middle = math.sqrt(apart) * (1 << 20)  # in log-log
    line, power = 4 + 5 * (math.sqrt(apart) - 1) / (apart - 1), 6.0
    assert measured.time_us(middle) == pytest.approx(line ** (1 - weight) * power**weight)


RISING = (1 << 16, 5.0), (1 << 18, 6.0), (1 << 20, 12.0), (1 << 22, 40.0)
"""A byte costs more from one pair of points to the next."""
FALLING = (1 << 16, 5.0), (1 << 18, 13.0), (1 << 20, 31.0), (1 << 22, 70.0)
"""... and less."""


@pytest.mark.parametrize("ends", [slice(0, 4), slice(0, 3), slice(1, 4)])
def test_latency_that_gives_way_to_a_rate_is_on_the_line(ends):
    """Neighbours on one side say enough."""
    measured = curve(*RISING[ends])
    assert measured.time_us(1 << 19) == pytest.approx(6 + 6 / 3)


@pytest.mark.parametrize("ends", [slice(0, 3), slice(1, 4)])
def test_ever_better_protocols_are_a_power_law(ends):
    measured = curve(*FALLING[ends])
    assert measured.time_us(1 << 19) == pytest.approx(math.sqrt(13 * 31))


def test_ever_better_protocols_on_both_sides_may_jump_here():
    """From the power law at the left point half the way to the line of the points on the right."""
    power, right = math.sqrt(13 * 31), 31 - (70 - 31) / 3 / 2
    assert curve(*FALLING).time_us(1 << 19) == pytest.approx(power**0.75 * right**0.25)
    times = [curve(*FALLING).time_us((256 + step) << 10) for step in range(769)]
    assert times == sorted(times)
    assert max(b / a for a, b in pairwise(times)) < 1.01  # and meets both points


def test_far_points_on_both_sides_do_not_tell_of_a_jump():
    """A line that goes on for 16 times the size is no guess."""
    far = curve((1 << 10, 5.0), (1 << 14, 13.0), (1 << 18, 31.0), (1 << 22, 70.0))
    line, power = 13 + 18 / 5, math.sqrt(13 * 31)
    assert far.time_us(1 << 16) == pytest.approx(math.sqrt(line * power))


def test_neighbours_that_contradict_each_other_leave_it_halfway():
    measured = curve((1 << 16, 5.0), (1 << 18, 6.0), (1 << 20, 24.0), (1 << 22, 30.0))
    line, power = 6 + 18 / 3, math.sqrt(6 * 24)
    assert measured.time_us(1 << 19) == pytest.approx(math.sqrt(line * power))


def test_a_jump_between_protocols_is_met_within_the_figure():
    """1 to 2 MiB of NCCL's all_reduce on two H200: 63 % more. The points four times apart do not
    show the jump itself, only that a byte costs ever less; that is worth 3 % here.
    """
    around = curve((1 << 18, 13.8), (1 << 20, 19.8), (1 << 22, 36.2))
    assert abs(around.time_us(1 << 21) / 31.3 - 1) < 0.15


def test_a_power_law_through_the_origin_comes_back():
    measured = curve((1 << 20, 10.0), (1 << 24, 160.0))
    assert [measured.time_us(1 << i) for i in (21, 22, 23)] == pytest.approx([20.0, 40.0, 80.0])


def test_one_protocol_s_line_is_met_better_than_by_a_power_law():
    """alpha 10 us and 100 GB/s: in the middle of a gap of 16 the power law is 25 % slow."""

    def us(nbytes):
        return 10 + nbytes / 1e5

    measured = curve(*((size, us(size)) for size in (1 << 18, 1 << 22)))
    power = math.sqrt(us(1 << 18) * us(1 << 22)) / us(1 << 20) - 1
    found = measured.time_us(1 << 20) / us(1 << 20) - 1
    assert power == pytest.approx(0.25, abs=1e-3)
    assert 0 < found < 0.3 * power


def test_never_falls_between_rising_points():
    measured = curve((1 << 10, 4.0), (1 << 15, 4.1), (1 << 20, 90.0), (1 << 30, 9e4))
    times = [measured.time_us(2**i) for i in range(10, 31)]
    assert times == sorted(times)


def test_beyond_the_end_the_slope_of_the_large_ones_goes_on():
    line = curve(*((size << 20, 7 + 2.0 * size) for size in (64, 128, 256, 512)))
    assert line.time_us(1 << 30) == pytest.approx(7 + 2 * 1024)
    assert line.slope_us_per_byte() == pytest.approx(2 / (1 << 20))


def test_small_points_do_not_bend_the_slope():
    with_latency = curve((1 << 10, 50.0), (1 << 29, 1000.0), (1 << 30, 2000.0))
    assert with_latency.time_us(1 << 31) == pytest.approx(4000.0)


def test_below_the_start_latency_stays():
    assert curve((1 << 10, 4.0), (1 << 20, 9.0)).time_us(1) == 4.0


def test_one_point_stands_for_its_neighbours_in_proportion():
    one = curve((1 << 20, 100.0))
    assert one.covers(1 << 21)
    assert not one.covers((1 << 21) + 1)
    assert not one.covers((1 << 19) - 1)
    assert one.time_us(1 << 21) == pytest.approx(200.0)
    assert one.time_us(1 << 19) == pytest.approx(50.0)


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(1, 0.0)], [(-4, 2.0)]])
def test_refused(points):
    with pytest.raises(ValueError, match="test: all_reduce on 8 ranks"):
        curve(*points)


def test_fit_finds_a_line_again():
    found = fit([(i, 3 + 0.5 * i) for i in (1, 10, 100)], weight=lambda us: 1 / us)
    assert (found.alpha_us, found.us_per_byte) == (pytest.approx(3), pytest.approx(0.5))
    assert found.worst_error == pytest.approx(0, abs=1e-12)


def test_leave_out_keeps_the_ends_and_every_second():
    measured = curve(*((2**i, float(i + 1)) for i in range(7)))
    assert [each.nbytes for each in leave_out(measured, first=1)] == [2, 8, 32]
    assert [each.nbytes for each in leave_out(measured, first=2)] == [4, 16]
    assert [each.nbytes for each in leave_out(measured)] == [2, 8, 32, 4, 16]


def test_what_is_left_out_is_not_looked_at():
    straight = [(2**i, 2.0**i) for i in range(5)]
    bent = [*straight[:3], (8, 80.0), straight[4]]
    omissions = leave_out(curve(*bent), first=1)
    assert [each.predicted_us for each in omissions] == [pytest.approx(2), pytest.approx(8)]
    assert worst_error(omissions) == pytest.approx(0.9)
    assert median_error(omissions) == pytest.approx(0.45)
    assert math.copysign(1, omissions[1].error) == -1


def test_a_faster_point_next_to_a_slower_one_makes_no_peak_before_them():
    points = [(512, 1.0), (1024, 20.0), (2048, 30.0), (2049, 25.0)]
    curve = Curve.of("all_reduce", 2, points, "nvlink", "a record")
    assert all(20 <= curve.time_us(nbytes) <= 30 for nbytes in range(1024, 2049, 64))


def test_times_that_fall_go_on_above_zero():
    points = [(1 << 20, 10.0), (1 << 24, 5.0), (1 << 25, 1.0)]
    curve = Curve.of("all_reduce", 2, points, "nvlink", "a record")
    assert curve.time_us(1 << 26) == pytest.approx(2.0)
