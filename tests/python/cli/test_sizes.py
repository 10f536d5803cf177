"""Sizes, counts and words as command lines spell them, and amounts as tables print them."""

import random

import pytest

from braid import sizes
from braid.bench.cut import words as cut_words
from braid.cases.host import measured_bytes
from braid.cli.plan.options import parse_bytes, parse_count
from braid.plan.amounts import amount
from braid.plan.basis import Basis, Quantity
from braid.plan.wrong import PlanError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096b", 4096),
        ("7k", 7168),
        ("7K", 7168),
        ("7KiB", 7168),
        ("7kib", 7168),
        (" 2 MiB ", 2097152),
        ("1.5GiB", 1610612736),
        ("0.5k", 512),
        ("1TiB", 1 << 40),
        ("1.5T", 3 << 39),
        ("0.3", 0),
        ("1.0009765625k", 1025),
        ("4T", 4 << 40),
        ("8388607TiB", 8388607 << 40),
    ],
)
def test_every_spelling_of_a_size(text, nbytes):
    assert sizes.parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", " ", "k", "-4", "+4", "1e6", "4P", "4 Ki B", "1,5k", ".5k", "5.", "0x10", "٤٤k k"]
)
def test_no_sizes(text):
    with pytest.raises(ValueError, match=r"is no size; write 4096, 64KiB or 1.5GiB"):
        sizes.parse_size(text)


@pytest.mark.parametrize(
    ("text", "meant"), [("64MB", "64MiB"), ("7Kb", "7KiB"), ("1.5 gb", "1.5GiB")]
)
def test_a_size_of_two_meanings_is_refused_as_options_refuse_it(text, meant):
    with pytest.raises(ValueError, match=rf"'{text}' has two meanings; write {meant} for powers"):
        sizes.parse_size(text)


@pytest.mark.parametrize("text", ["8388608TiB", "9223372036854775808", "99999999999999999999G"])
def test_a_size_that_no_length_holds_is_too_large(text):
    with pytest.raises(ValueError, match=rf"'{text}' is too large: sizes end below 2\^63 bytes"):
        sizes.parse_size(text)


def test_a_whole_number_of_units_survives_print_and_parse():
    rng = random.Random(421)
    for shift in (0, 10, 20, 30, 40):
        for _ in range(50):
            size = rng.randrange(1, 1024) << shift
            assert sizes.parse_size(sizes.format_size(size)) == size


def test_other_sizes_keep_four_digits():
    rng = random.Random(422)
    for _ in range(200):
        size = rng.randrange(1, 1 << 41)
        assert sizes.parse_size(sizes.format_size(size)) == pytest.approx(size, rel=6e-4)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1025, "1.001 KiB"),
        ((1 << 20) - 1, "1024 KiB"),
        (3 << 29, "1.5 GiB"),
        (5120 << 30, "5 TiB"),
        ((1 << 40) - 1, "1024 GiB"),
    ],
)
def test_sizes_at_the_borders_of_units(size, text):
    assert sizes.format_size(size) == text


def test_lists_are_sorted_and_have_no_size_twice():
    assert sizes.parse_sizes("1M, 4k,4096,1k:4k:x2") == [1024, 2048, 4096, 1 << 20]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8:8:x2", [8]),
        ("8:15:x2", [8]),
        ("8:16:x2", [8, 16]),
        ("1:100:x10", [1, 10, 100]),
        ("3:81:x3", [3, 9, 27, 81]),
        (" 1KiB:1MiB:x32 ", [1 << 10, 1 << 15, 1 << 20]),
        ("1k:4k:+1k", [1024, 2048, 3072, 4096]),
        ("8:20:+5", [8, 13, 18]),
        ("8:8:+1G", [8]),
        ("1:4096:+1", list(range(1, 4097))),
    ],
)
def test_a_range_ends_at_its_last_size(text, found):
    assert sizes.parse_sizes(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1k:4k", "is no range; write FROM:TO:xFACTOR"),
        ("1k:4k:2", "is no range; write"),
        ("1k:4k:x0", "is no range; write"),
        ("1k:4k:x1.5", "is no range; write"),
        ("1k:4k:x2:x2", "is no (range|size)"),
        ("0:4k:x2", "FROM must be above 0"),
        ("0:4k:+8", "FROM must be above 0"),
        ("8:4k:+0", "STEP must be above 0"),
        ("8:4k:+", "is no range; write FROM:TO:xFACTOR .* or FROM:TO:.STEP"),
        ("8:4k:+x", "'x' is no size"),
        ("8:1G:+8", "'8:1G:.8' are 134217728 sizes; 4096 are taken"),
        ("4k:1k:x2", "not above TO"),
        ("a:4k:x2", "'a' is no size"),
        ("1k,,4k", "'' is no size"),
    ],
)
def test_no_ranges(text, said):
    with pytest.raises(ValueError, match=said):
        sizes.parse_sizes(text)


def test_words_keep_their_order_and_come_once():
    allowed = ("red", "green", "blue")
    assert sizes.parse_words("blue, red,blue", allowed, "colour") == ["blue", "red"]
    assert sizes.parse_words("all", allowed, "colour") == ["red", "green", "blue"]
    for text in ("pink", "red,", "", "Red", "all,red"):
        with pytest.raises(ValueError, match="is no colour; braid has red, green, blue"):
            sizes.parse_words(text, allowed, "colour")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80B", 80e9),
        ("80b", 80e9),
        ("1.5T", 1.5e12),
        ("125 M", 125e6),
        ("64k", 64e3),
        ("2e9", 2e9),
        ("7", 7.0),
        (" 70.5B ", 70.5e9),
    ],
)
def test_counts_of_parameters(text, count):
    assert parse_count(text, "--params") == pytest.approx(count, rel=1e-12)


@pytest.mark.parametrize("text", ["", "B", "eighty", "80BB", "80 GB", "8,5B"])
def test_no_counts(text):
    with pytest.raises(PlanError, match=r"--params: .* is no count; write 2e9, 80B or 1.5T"):
        parse_count(text, "--params")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GB", 8_000_000_000),
        ("8gb", 8_000_000_000),
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8TiB", 8 << 40),
        ("1.5 TB", 1_500_000_000_000),
        ("25MB", 25_000_000),
        ("3kB", 3_000),
        ("3k", 3072),
        ("77", 77),
    ],
)
def test_bytes_in_powers_of_1000_and_of_1024(text, nbytes):
    assert parse_bytes(text, "--size") == nbytes


def test_no_bytes():
    for text in ("8PiB", "8 GBit", "-8GB", ""):
        with pytest.raises(PlanError, match=r"--size: .*, or 8GB for powers of 1000"):
            parse_bytes(text, "--size")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0, "us", "0 s"),
        (2.5e-6, "s", "2.5 us"),
        (999.94, "us", "999.9 us"),
        (1000.0, "us", "1.00 ms"),
        (0.09648, "s", "96.48 ms"),
        (9.99999, "s", "9999.99 ms"),
        (10.0, "s", "10 s"),
        (86400.0, "s", "8.64e+04 s"),
        (512.0, "B", "512 B"),
        (1023.0, "B", "1.023 kB"),
        (1536.0, "B", "1.5 KiB"),
        (8e9, "B", "8 GB"),
        (3 * 2.0**29, "B", "1.5 GiB"),
        (1e13, "B", "10 TB"),
        (0.5, "part", "50.0%"),
        (-0.00729, "part", "-0.73%"),
        (1.25, "part", "125.0%"),
        (70553706496, "", "70,553,706,496"),
        (2.5, "", "2.5"),
        (450.0, "GB/s", "450 GB/s"),
        (1234.5678, "GB/s", "1,235 GB/s"),
    ],
)
def test_amounts_with_their_units(value, unit, text):
    assert amount(Quantity(value, unit, Basis.EXACT, "")) == text


@pytest.mark.parametrize(
    ("nbytes", "alone", "beside"),
    [
        (8 << 20, "8 MiB", "8 MiB"),
        (11184810.67, "11.18 MB", "10.67 MiB"),
        (11_000_000, "11 MB", "11 MB"),  # exact: nobody asked for 10.49 MiB
        (1100.5, "1.101 kB", "1.075 KiB"),
        (100.5, "100.5 B", "100.5 B"),
    ],
)
def test_bytes_that_are_not_short_are_written_as_their_neighbours(nbytes, alone, beside):
    quantity = Quantity(nbytes, "B", Basis.EXACT, "")
    assert (amount(quantity), amount(quantity, binary=True)) == (alone, beside)


@pytest.mark.parametrize(
    ("op", "nbytes", "ranks", "measured"),
    [
        ("all_reduce", 7, 3, 4),
        ("all_reduce", 1, 3, 4),
        ("all_gather", 100, 3, 96),
        ("all_gather", 96, 3, 96),
    ],
)
def test_sizes_are_whole_elements_of_every_block(op, nbytes, ranks, measured):
    assert measured_bytes(op, nbytes, "float32", ranks) == measured


def test_sizes_that_are_cut_are_said():
    assert cut_words([("all_reduce", 8, 8)]) == ""
    one = ("all_reduce", 1007, 1004)
    said = "all_reduce of 1,007 B is measured at 1,004 B, in whole elements"
    assert cut_words([("broadcast", 8, 8), one]) == said
    assert cut_words([one, ("all_gather", 7, 8)]) == f"{said}; 1 more likewise"
