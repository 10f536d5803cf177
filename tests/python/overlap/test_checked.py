"""A call is checked once, and again wherever a check could answer something else."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


@pytest.fixture
def checked(monkeypatch):
    """operations._checked(), and how often it has looked closely."""
    from braid.overlap import operations

    looked = []

    def why(_shape, *_tensors):
        looked.append(1)
        return ""

    monkeypatch.setattr(operations, "why_sequential", why)
    monkeypatch.setattr(operations, "_CHECKED", {})
    return operations._checked, looked


def test_a_second_call_is_looked_up(checked):
    import torch

    from braid.overlap.shapes import Op

    check, looked = checked
    x, w = torch.zeros(8, 16), torch.zeros(24, 16)
    first = check(Op.GEMM_RS, x, w, 2, None, "nk")
    assert check(Op.GEMM_RS, torch.ones(8, 16), w, 2, None, "nk") == first
    assert first[0].shard_rows == 4
    assert len(looked) == 1


def test_whatever_checks_look_at_is_looked_at_again(checked):
    import torch

    from braid.overlap.shapes import Op

    check, looked = checked
    x, w, bias = torch.zeros(8, 16), torch.zeros(24, 16), torch.zeros(24)
    calls = [
        (Op.GEMM_RS, x, w, 2, None, "nk"),
        (Op.GEMM_AR, x, w, 2, None, "nk"),
        (Op.GEMM_RS, x, w, 4, None, "nk"),
        (Op.GEMM_RS, x, w, 2, bias, "nk"),
        (Op.GEMM_RS, x, w.t().contiguous(), 2, None, "kn"),
        (Op.GEMM_RS, torch.zeros(16, 16), w, 2, None, "nk"),
        (Op.GEMM_RS, x.double(), w.double(), 2, None, "nk"),
    ]
    for call in calls:
        check(*call)
    assert len(looked) == len(calls)


def test_an_error_is_one_again(checked):
    import torch

    from braid.errors import InvalidArgument
    from braid.overlap.shapes import Op

    check, _ = checked
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="do not divide"):
            check(Op.GEMM_RS, torch.zeros(7, 16), torch.zeros(24, 16), 2, None, "nk")


def test_many_shapes_are_not_kept_for_ever(checked, monkeypatch):
    import torch

    from braid.overlap import operations
    from braid.overlap.shapes import Op

    check, _ = checked
    monkeypatch.setattr(operations, "_MOST_CHECKED", 3)
    for rows in range(1, 9):
        check(Op.AG_GEMM, torch.zeros(rows, 16), torch.zeros(24, 16), 2, None, "nk")
        assert len(operations._CHECKED) <= 3
