"""Numbers, addresses and lists of processors as tools print them, good and damaged."""

import itertools
import random

import pytest

from braid.topo.errors import BadTopology
from braid.topo.numbers import address, count_cpus, cpulist_of_mask, node, number, spans, whole
from braid.topo.pci_class import is_accelerator, kind_of
from braid.topo.words import KINDS, distance, path_kind


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32.0 GT/s PCIe", 32.0),
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 GT/s PCIe", 2.5),
        ("-1", -1.0),
        ("+8", 8.0),
        ("4: ACTIVE", 4.0),
        ("rate 25.78125", 25.78125),
        (str(1 << 50), float(1 << 50)),
        (str((1 << 50) + 1), None),
        ("", None),
        (None, None),
        ("Unknown", None),
        ("N/A", None),
    ],
)
def test_the_first_number_of_a_text(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (" -1\n", -1),
        ("+3", 3),
        ("007", 7),
        ("1" * 15, int("1" * 15)),
        ("1" * 16, None),
        ("7.0", None),
        ("7 lanes", None),
        ("0x10", None),
        ("N/A", None),
        ("", None),
        (None, None),
    ],
)
def test_whole_numbers(text, value):
    assert whole(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("0,2-17", 0),
        ("3-5", 3),
        (" 4 ", 4),
        ("-1", None),
        ("N/A", None),
        ("4x", None),
        ("1234567890", None),
        (None, None),
    ],
)
def test_the_first_numa_node_of_a_list(text, value):
    assert node(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("00010000:AF:1F.7", "10000:af:1f.7"),
        ("1b:00", None),
        ("g0:00.0", None),
        ("0000:1b:00.0 ", "0000:1b:00.0"),
        ("000:1b:00.0", None),
        ("000000000:1b:00.0", None),
        ("", None),
        (None, None),
    ],
)
def test_pci_addresses_as_sysfs_writes_them(text, value):
    assert address(text) == value


def test_an_address_is_its_own_spelling():
    rng = random.Random(7)
    for _ in range(100):
        domain, bus, device, function = (rng.randrange(n) for n in (1 << 16, 256, 32, 8))
        text = f"{domain:08X}:{bus:02X}:{device:02X}.{function}"
        found = address(text)
        assert found == f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
        assert address(found) == found


@pytest.mark.parametrize(
    ("text", "found", "count"),
    [
        ("", [], 0),
        ("5", [(5, 5)], 1),
        ("0-51,104-155", [(0, 51), (104, 155)], 104),
        ("0, 2-3 ,9", [(0, 0), (2, 3), (9, 9)], 4),
        ("0-999999999", [(0, 999999999)], 10**9),
        ("3-2", None, 0),
        ("0-", None, 0),
        ("a", None, 0),
        ("0,,1", None, 0),
        ("0-1-2", None, 0),
        ("-1", None, 0),
        ("1234567890", None, 0),
    ],
)
def test_lists_of_processors(text, found, count):
    assert spans(text) == found
    assert count_cpus(text) == count


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("ff,00ffffff", "0-23,32-39"),
        ("0x00000001", "0"),
        ("0xff,0x00ffffff", "0-23,32-39"),
        ("80000000", "31"),
        ("1,80000000", "31-32"),
        ("a", "1,3"),
        ("1,,", "64"),
        ("0", ""),
        ("", ""),
        (" ffffffff, ffffffff", "0-63"),
    ],
)
def test_masks_of_processors(mask, cpus):
    assert cpulist_of_mask(mask) == cpus


def test_a_mask_and_its_list_name_the_same_processors():
    rng = random.Random(8)
    for _ in range(60):
        bits = rng.getrandbits(160) & rng.getrandbits(160)
        words = [f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in (128, 96, 64, 32, 0)]
        runs = spans(cpulist_of_mask(",".join(words)))
        named = {cpu for first, last in runs for cpu in range(first, last + 1)}
        assert named == {i for i in range(160) if bits >> i & 1}
        assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(runs))


@pytest.mark.parametrize(
    "mask", ["xyz", "123456789", "ff;ff", "-1", "0x0xff", ",".join("0" * 1025)]
)
def test_no_masks(mask):
    with pytest.raises(BadTopology, match="is no mask of processors"):
        cpulist_of_mask(mask)


@pytest.mark.parametrize(
    ("code", "vendor", "kind"),
    [
        ("0x030000", "0x10de", "gpu"),
        ("0x030200", "0x10de", "gpu"),
        ("0x038000", "0x1002", "gpu"),
        ("0x120000", "0x1002", "gpu"),
        ("0x020700", "0x15b3", "nic"),
        ("0x020000", "0x8086", "nic"),
        ("0x028000", "0x15b3", "nic"),
        ("0x010802", "0x144d", "nvme"),
        ("0x060400", "0x1000", "bridge"),
        ("0x068000", "0x10de", "nvswitch"),
        ("0x068000", "0x8086", "other"),
        ("0x0C0330", "0x10de", "other"),
        ("0X030200", "0x10de", "gpu"),
        ("", "", "other"),
    ],
)
def test_kinds_of_classes(code, vendor, kind):
    assert kind_of(code, vendor) == kind


@pytest.mark.parametrize(
    ("code", "vendor", "is_one"),
    [
        ("0x030000", "0x10de", True),
        ("0x030200", "0x10de", True),
        ("0x068000", "0x10de", False),
        ("0x030000", "0x1002", False),
        ("0x038000", "0x1002", True),
        ("0x120000", "0x1002", True),
        ("0x030000", "0x8086", False),
        ("0x030200", "0x1a03", False),
    ],
)
def test_accelerators_are_no_display_adapters(code, vendor, is_one):
    assert is_accelerator(code, vendor) is is_one


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("PIX", "PIX"), ("PXB", "PXB"), ("PHB", "PHB"), ("NODE", "NODE"), ("SYS", "SYS"),
        ("SOC", "SYS"), ("MDF", "PHB"), ("CPU", "NODE"),
        ("NV18", None), ("X", None), ("pix", None), ("", None),
    ],
)  # fmt: skip
def test_words_of_every_generation(word, kind):
    assert path_kind(word) == kind


def test_distances_grow():
    assert [distance(kind) for kind in (*KINDS, None)] == [0, 1, 2, 3, 4, 5]
