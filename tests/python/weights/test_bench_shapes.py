"""What `braid bench weights --total` measures is what was asked for."""

import pytest

from braid.bench.weights.peer import shapes_of


@pytest.mark.parametrize(("mib", "count"), [(1, 1), (4, 2), (8, 16), (64, 16), (1024, 16)])
def test_as_many_bytes_as_were_asked_for(mib, count):
    shapes = shapes_of(mib << 20, count)
    assert len(shapes) == count
    assert sum(2 * rows * width for rows, width in shapes.values()) == mib << 20
    assert all(rows % 64 == 0 and width % 64 == 0 for rows, width in shapes.values())
