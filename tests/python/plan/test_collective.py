"""One collective's page: what its notes say."""

import pytest

from braid.plan import hardware
from braid.plan.collective import report
from braid.plan.predict import Request


@pytest.mark.parametrize(("ranks", "passes"), [(2, False), (3, False), (4, True), (8, True)])
def test_nvls_passes_the_links_rate_where_a_ring_moves_more(ranks, passes):
    """Among two GPUs a ring moves two thirds of what NVLS moves, and yet the note promised it."""
    path = hardware.find("h200").paths[0]
    notes = report(Request("all_reduce", 48 << 20, ranks, 1), path, None, ["ring", "nvls"]).notes
    assert any("may pass the links' rate" in note for note in notes) == passes
