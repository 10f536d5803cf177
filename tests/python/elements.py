"""Elements of every type that NumPy and braid both know, for tests of calls."""

import numpy as np

REDUCIBLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
REDUCIBLE += ["float16", "float32", "float64"]
MOVABLE = [*REDUCIBLE, "bool", "complex64", "complex128", "M8[s]", "S5", "i4,f8", ">f4"]


def content(rank, shape, dtype):
    """Data that differs in every element and rank, whatever the type."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = (np.arange(count, dtype=np.uint32) * 131 + rank * 17 + 1).astype(np.uint8)
    if dtype.kind == "b":
        raw &= 1
    return raw.view(dtype).reshape(shape)


def join(parts):
    """One after the other; NumPy's own concatenate would change foreign byte orders."""
    joined = np.frombuffer(b"".join(part.tobytes() for part in parts), parts[0].dtype)
    return joined.reshape(-1, *parts[0].shape[1:])


def same(found, expected):
    """Equal bytes, shapes and types: NaNs count as equal to themselves."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
