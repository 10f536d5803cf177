"""Numbers as people read them, with their units."""

from collections.abc import Iterable

from braid.plan.basis import Quantity

Units = tuple[tuple[str, int], ...]
_BINARY: Units = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL: Units = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def is_binary(quantities: Iterable[Quantity]) -> bool:
    """Whether some bytes of a table are short in powers of 1024: others then are, too."""
    return any(each.unit == "B" and _in_units(each.value, _BINARY) for each in quantities)


def amount(quantity: Quantity, binary: bool = False) -> str:
    """A number as people read it, with its unit; `binary`: bytes in powers of 1024, unless powers
    of 1000 are exact and short.
    """
    value, unit = quantity.value, quantity.unit
    if unit == "s":
        return _time(value * 1e6)
    if unit == "us":
        return _time(value)
    if unit == "B":
        return _bytes(value, binary)
    if unit == "part":
        return f"{value:+.2%}" if value < 0 else f"{value:.1%}"
    if not unit and abs(value) < 1e18 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g} {unit}".rstrip()


def _time(us: float) -> str:
    if us == 0:
        return "0 s"
    if us < 1e3:
        return f"{us:.4g} us"
    if us < 1e4 * 1e3:
        return f"{us / 1e3:.2f} ms"
    return f"{us / 1e6:.4g} s"


def _bytes(nbytes: float, binary: bool) -> str:
    """In powers of 1024 where that is exact and short (1.5 GiB), else in powers of 1000."""
    short = _in_units(nbytes, _BINARY) or _in_units(nbytes, _DECIMAL)
    units = _BINARY if binary else _DECIMAL
    return short or _in_units(nbytes, units, is_exact=False) or f"{nbytes:.4g} B"


def _in_units(nbytes: float, units: Units, is_exact: bool = True) -> str:
    """In four digits; "" where these are not all of it, or it is less than every unit."""
    for unit, scale in units:
        text = f"{nbytes / scale:.4g}"
        if nbytes >= scale and (not is_exact or text == f"{nbytes / scale:.9g}"):
            return f"{text} {unit}"
    return ""
