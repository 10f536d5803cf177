"""Which groups of GPUs links join: switches, bridges between pairs, even and partial meshes."""

import time
from itertools import combinations, pairwise

import pytest

from braid.topo.facts import SWITCH
from braid.topo.groups import Bundle, Links

CUBE = {
    **dict.fromkeys(("01", "02", "13", "45", "46", "57", "26", "37"), 25.0),
    **dict.fromkeys(("03", "04", "12", "15", "23", "47", "56", "67"), 50.0),
}
"""Eight V100 of a server without switches: six links each, twelve pairs without any."""


def mesh(pairs):
    """Links between GPUs named by digits, told from both ends."""
    return Links(
        Bundle(f"GPU{x}", f"GPU{y}", gbps)
        for pair, gbps in pairs.items()
        for x, y in (pair, pair[::-1])
    )


def even(count, gbps):
    """A link between every two."""
    return mesh({a + b: gbps for a, b in combinations("01234567"[:count], 2)})


@pytest.mark.parametrize("size", range(2, 9))
def test_switches_join_any_group_at_the_full_rate(size):
    found = Links(Bundle(f"GPU{i}", SWITCH, 450.0) for i in range(8)).best_group(size)
    assert found.is_switched
    assert found.is_direct
    assert (found.pair_gbps, found.rate_gbps, found.ring_gbps) == (450, 450, 450)
    assert found.gpus == tuple(f"GPU{i}" for i in range(size))


def test_a_gpu_with_fewer_links_into_the_switches_decides():
    links = Links(Bundle(f"GPU{i}", SWITCH, gbps) for i, gbps in enumerate((450.0, 300.0, 450.0)))
    assert links.best_group(2).gpus == ("GPU0", "GPU2")
    assert links.best_group(3).rate_gbps == 300


def test_a_gpu_without_links_is_in_no_group():
    links = Links(Bundle(f"GPU{i}", SWITCH, 450.0 * (i < 3)) for i in range(4))
    assert links.best_group(3).is_joined
    assert links.best_group(4) is None


def test_bridges_join_pairs_alone():
    links = mesh({"01": 300.0, "23": 300.0})
    pair = links.best_group(2)
    assert (pair.gpus, pair.rate_gbps, pair.is_switched) == (("GPU0", "GPU1"), 300, False)
    assert links.best_group(3) is None
    assert links.best_group(4) is None
    four = links.group(links.gpus)
    assert (four.num_bare_pairs, four.is_joined, four.pair_gbps, four.rate_gbps) == (4, 0, 0, 300)
    assert not links.group(["GPU0", "GPU2"]).is_joined


def test_bridges_between_neighbours_that_are_not():
    assert mesh({"02": 56.0, "13": 112.0}).best_group(2).gpus == ("GPU1", "GPU3")


def test_even_mesh_uses_the_links_between_its_members():
    links = even(8, 64.0)
    for size in range(2, 9):
        found = links.best_group(size)
        assert (found.pair_gbps, found.rate_gbps) == (64, 64 * (size - 1))
        assert found.ring_gbps == found.rate_gbps
        assert found.is_direct
        assert not found.is_switched


def test_cube_mesh():
    """Three rings use all six links of a GPU, though twelve pairs have none."""
    links = mesh(CUBE)
    whole = links.best_group(8)
    assert (whole.num_bare_pairs, whole.is_direct) == (12, False)
    assert (whole.rate_gbps, whole.ring_gbps) == (150, 150)
    assert links.best_group(2).pair_gbps == 50
    four = links.best_group(4)
    assert four.is_direct
    assert four.pair_gbps == 25
    assert 50 <= four.ring_gbps <= four.rate_gbps == 100


def test_a_chain_is_no_ring():
    links = mesh({"01": 50.0, "12": 50.0})
    assert links.best_group(3) is None
    assert links.best_group(2).ring_gbps == 50


def test_two_islands():
    links = mesh({"01": 50.0, "12": 50.0, "02": 50.0, "34": 50.0, "45": 50.0, "35": 50.0})
    assert links.best_group(3).gpus == ("GPU0", "GPU1", "GPU2")
    assert links.best_group(4) is None


def test_no_rate_is_above_what_links_carry():
    """Rings never use more of a link than it has: checked on many uneven meshes."""
    for seed in range(60):
        pairs = {
            a + b: float((seed * 7 + int(a) * 13 + int(b) * 29) % 5 * 25)
            for a, b in combinations("012345", 2)
        }
        links = mesh(pairs)
        for size in range(2, 7):
            found = links.group(links.gpus[:size])
            assert 0 <= found.ring_gbps <= found.rate_gbps


@pytest.mark.parametrize("size", [0, 1, 9, -3])
def test_sizes_that_are_no_group(size):
    assert even(8, 64.0).best_group(size) is None


def test_no_links_at_all():
    assert Links([]).gpus == []
    assert Links([]).best_group(2) is None


def test_many_gpus_take_no_long_time():
    """A damaged or odd file has hundreds: a limit on steps, not the number of groups, decides."""
    start = time.monotonic()
    names = [f"GPU{i}" for i in range(256)]
    links = Links(Bundle(a, b, 25.0) for a, b in pairwise(names))
    assert links.best_group(4) is None
    assert links.best_group(2).gpus == ("GPU0", "GPU1")
    switched = Links(Bundle(name, SWITCH, 25.0) for name in names)
    assert [switched.best_group(size).rate_gbps for size in (2, 128, 256)] == [25, 25, 25]
    assert mesh({"01": 25.0}).best_group(2).gpus == ("GPU0", "GPU1")
    far = Links([*(Bundle(name, "GPU0", 0.0) for name in names[1:]), Bundle("GPU8", "GPU9", 25.0)])
    assert far.best_group(2).gpus == ("GPU8", "GPU9")
    odd = Links(
        Bundle(f"GPU{i}", f"GPU{j}", 1.0 + (i * j) % 97)
        for i, j in combinations(range(60), 2)
        if (i * 7 + j * 3) % 5
    )
    assert odd.group(odd.gpus).ring_gbps <= odd.group(odd.gpus).rate_gbps
    assert time.monotonic() - start < 20


def test_groups_are_named_in_the_machines_order():
    links = mesh({"01": 5.0, "12": 5.0, "20": 5.0})
    assert links.best_group(3).gpus == ("GPU0", "GPU1", "GPU2")
    wide = Links(Bundle(f"GPU{i}", SWITCH, 5.0) for i in (10, 9, 2, 11))
    assert wide.gpus == ["GPU2", "GPU9", "GPU10", "GPU11"]
