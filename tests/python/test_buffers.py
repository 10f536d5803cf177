"""What braid takes as a buffer, and how it refuses the rest: typed, in words, memory untouched."""

import array
import ctypes

import numpy as np
import pytest

import braid


@pytest.fixture
def alone():
    """One rank; refusals happen before any rank is asked."""
    with braid.init(progress=False, tune=False) as comm:
        yield comm


def read_only(values):
    """The same array, protected."""
    values.flags.writeable = False
    return values


class FakeTensor:
    """A DLPack exporter: a NumPy array that claims a device, as a torch CUDA tensor would."""

    shape = (3,)
    dtype = "float32"

    def __init__(self, values, device):
        self.values = values
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kwargs):
        return self.values.__dlpack__(**kwargs)


class Lanes:
    """A DLPack exporter of pairs of float32, which NumPy and torch have no type for."""

    class Tensor(ctypes.Structure):
        """DLManagedTensor, its parts in a row."""

        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p),
            ("offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )

    def __init__(self, values):
        self.values = values
        self.ends = (ctypes.c_int64 * 1)(len(values) // 2)
        at, ends = values.ctypes.data, ctypes.addressof(self.ends)
        on_cpu = (ctypes.c_int32 * 2)(1, 0)
        self.tensor = Lanes.Tensor(at, on_cpu, 1, 2, 32, 2, ends, None, 0, None, None)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **kwargs):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_refuses_several_numbers_in_one_element(alone):
    pairs = Lanes(np.arange(4, dtype=np.float32))
    for call in (alone.all_reduce, alone.broadcast):
        with pytest.raises(braid.InvalidArgument, match=r"argument buf: .*of 2 in each"):
            call(pairs)
    for call in (alone.all_gather, alone.all_to_all, alone.gather):
        with pytest.raises(braid.InvalidArgument, match=r"argument send: .*lanes"):
            call(pairs)
    assert pairs.values.tolist() == [0, 1, 2, 3]


def test_takes_every_buffer(alone):
    for buffer in (
        bytearray(b"abcd"),
        memoryview(bytearray(b"abcd")),
        array.array("d", [1.0, 2.0]),
        np.arange(4, dtype=np.int16),
        FakeTensor(np.arange(3.0), (1, 0)),
    ):
        assert alone.all_reduce(buffer) is buffer
        gathered = alone.all_gather(buffer)
        assert isinstance(gathered, np.ndarray)
        assert alone.broadcast(buffer) is buffer
    assert alone.all_gather(b"xyz").tobytes() == b"xyz"  # read-only is fine where braid reads


def test_takes_extension_types(alone):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="skipped: needs ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        values = np.array([1, 2, 3], dtype)
        assert alone.all_reduce(values) is values
        assert alone.all_gather(values).dtype == values.dtype
    with pytest.raises(braid.InvalidArgument, match="int4"):
        alone.all_reduce(np.ones(2, ml_dtypes.int4))


WRITTEN_TO = [
    (lambda: read_only(np.ones(3)), "writable memory, found a read-only ndarray"),
    (lambda: b"abc", "writable memory, found a read-only bytes"),
    (lambda: FakeTensor(read_only(np.ones(3)), (1, 0)), "read-only"),
    (lambda: np.ones((3, 3)).T, "contiguous"),
    (lambda: np.ones(8)[::2], "contiguous"),
    (lambda: memoryview(bytearray(8))[::2], "contiguous"),
    (lambda: FakeTensor(np.ones(8)[::2], (1, 0)), "contiguous"),
    (lambda: np.array([object()]), "Python objects"),
    (lambda: [1.0, 2.0], "found list"),
    (lambda: None, "found NoneType"),
    (lambda: 3, "found int"),
]


@pytest.mark.parametrize(("make", "words"), WRITTEN_TO)
def test_refuses_to_write(alone, make, words):
    for call in (alone.all_reduce, alone.broadcast):
        with pytest.raises(braid.InvalidArgument, match=words) as caught:
            call(make())
        assert "argument buf" in str(caught.value)


@pytest.mark.parametrize(("make", "words"), WRITTEN_TO[3:])
def test_refuses_to_read(alone, make, words):
    for call in (alone.all_gather, alone.all_to_all, alone.reduce_scatter):
        with pytest.raises(braid.InvalidArgument, match=words) as caught:
            call(make())
        assert "argument send" in str(caught.value)


def test_refuses_devices(alone):
    tensor = FakeTensor(np.ones(3), (10, 1))  # ROCm's
    with pytest.raises(braid.Unsupported, match=r"host or CUDA memory.*FakeTensor on device 1"):
        alone.all_reduce(tensor)
    assert tensor.values.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["bool", "complex64", ">f4", "S3", "i4,f8", "M8[s]"])
def test_refuses_to_reduce(alone, dtype):
    values = np.zeros(3, dtype)
    with pytest.raises(braid.InvalidArgument, match="braid reduces int8 to uint64") as caught:
        alone.all_reduce(values)
    assert "all_reduce" in str(caught.value)


def test_refuses_wrong_outputs(alone):
    send, untouched = np.arange(4.0), 7.0
    for out, words in (
        (np.full(5, untouched), "4 elements of float64 .send has 4., found 5"),
        (np.full(4, untouched, np.float32), "float64 like send, found float32"),
        (np.full(8, untouched)[::2], "contiguous"),
        (read_only(np.full(4, untouched)), "read-only"),
        ("text", "found str"),
    ):
        for call in (alone.all_gather, alone.all_to_all):
            with pytest.raises(braid.InvalidArgument, match=words):
                call(send, out)
        for reducing in (alone.all_reduce, alone.reduce_scatter):
            with pytest.raises(braid.InvalidArgument, match=words):
                reducing(send, "sum", out)
        assert isinstance(out, str) or (out == untouched).all()


def test_refuses_overlap(ranks):
    def body(comm):
        memory = np.arange(12.0)
        for call in (
            lambda: comm.all_reduce(memory[:6], out=memory[1:7]),
            lambda: comm.all_gather(memory[1:4], memory[:6]),
            lambda: comm.reduce_scatter(memory[:6], "sum", memory[1:4]),
            lambda: comm.all_to_all(memory[:6], memory[2:8]),
        ):
            with pytest.raises(braid.InvalidArgument, match="overlap"):
                call()
        assert memory.tolist() == list(range(12))

    ranks(2, body)


def test_refuses_words(alone):
    with pytest.raises(braid.InvalidArgument, match="'summ' is unknown; braid has sum"):
        alone.all_reduce(np.ones(2), "summ")
    with pytest.raises(braid.InvalidArgument, match="root is 3"):
        alone.broadcast(np.ones(2), 3)
    with pytest.raises(braid.InvalidArgument, match="no_op"):
        alone.explain("no_op", 5)
    with pytest.raises(braid.InvalidArgument, match="found -1"):
        alone.explain("all_gather", -1)
    with pytest.raises(braid.InvalidArgument, match="no call on GPU memory was made"):
        alone.explain("all_gather", 5, on="gpu")
    with pytest.raises(braid.InvalidArgument, match="_force_shares"):
        alone._force_shares([0.0] * len(alone.links))


def test_refuses_counts(ranks):
    def body(comm):
        for arguments, words in (
            (([1, 2], None), "sum to 4"),
            (([4], None), "2 counts"),
            (([5, -1], None), "2 counts of 0 or more"),
            ((None, [2, 2]), "send_counts is not"),
            (([1.5, 2.5], None), "whole numbers"),
            (([2, 2], [1]), "recv_counts"),
        ):
            with pytest.raises(braid.InvalidArgument, match=words):
                comm.all_to_all(np.ones(4), None, *arguments)
        with pytest.raises(braid.InvalidArgument, match="that 2 ranks divide, found 3"):
            comm.all_to_all(np.ones(3))
        with pytest.raises(braid.InvalidArgument, match="that 2 ranks divide, found 3"):
            comm.reduce_scatter(np.ones(3))
        comm.barrier()

    ranks(2, body)
