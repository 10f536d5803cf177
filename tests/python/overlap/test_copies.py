"""Copies of layers, and layers in files (braid/torch/nn.py)."""

import importlib.util
import io
import pickle
from copy import copy, deepcopy

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


def _model(comm):
    import torch

    from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

    torch.set_num_threads(1)
    torch.manual_seed(comm.rank)
    return torch.nn.Sequential(ColumnParallelLinear(4, 8, comm), RowParallelLinear(8, 4, comm))


def _saved_and_loaded(model):
    import torch

    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_copy_of_a_model_is_of_the_same_comm_and_computes(ranks):
    def body(comm):
        import torch

        model = _model(comm)
        x = torch.full((2, 4), float(comm.rank + 1))
        wanted = model(x)
        for made in (deepcopy(model), copy(model)):
            assert all(layer.comm is comm for layer in made)
            assert torch.equal(made(x), wanted)
        other = deepcopy(model)
        with torch.no_grad():
            other[0].weight.zero_()  # a copy has weights of its own
        assert torch.equal(model(x), wanted)

    ranks(2, body)


def test_an_average_of_weights(ranks):
    def body(comm):
        import torch

        model = _model(comm)
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        x = torch.ones(2, 4)
        assert torch.equal(average(x), model(x))

    ranks(2, body)


def test_a_saved_model_computes_when_it_has_a_comm_again(ranks):
    def body(comm):
        import torch

        from braid.errors import InvalidArgument

        model = _model(comm)
        x = torch.ones(2, 4)
        wanted = model(x)
        loaded = _saved_and_loaded(model)
        assert torch.equal(loaded[0].weight, model[0].weight)
        with pytest.raises(InvalidArgument, match=r"unpickled.*of 2 ranks: layer.comm = comm"):
            loaded(x)
        for layer in loaded:
            layer.comm = comm
        assert torch.equal(loaded(x), wanted)
        assert all(layer.comm is comm for layer in model)

    ranks(2, body)


def test_a_layer_takes_no_comm_in_which_it_is_another_part():
    from overlap_kernels import Comm

    from braid.errors import InvalidArgument
    from braid.torch.nn import RowParallelLinear

    layer = RowParallelLinear(8, 4, Comm())
    loaded = pickle.loads(pickle.dumps(layer))
    for rank, size in ((0, 2), (1, 4)):
        with pytest.raises(
            InvalidArgument, match=f"rank 1 of 2; the comm's rank is {rank} of {size}"
        ):
            loaded.comm = Comm(size, rank)
