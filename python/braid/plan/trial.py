"""The tool on trial: against published figures, and against measurements it did not see."""

from collections.abc import Sequence

from braid.plan import vectors
from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve, leave_out, median_error, worst_error
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, unknown


def published(number: str) -> tuple[Report, int]:
    """All figures, or those of one number, and how many are off."""
    every = list(vectors.load())
    chosen = [each for each in every if not number or each.id == number.upper()]
    if not chosen:
        raise unknown("published figure", number, {each.id for each in every})
    misses = 0
    answer = Report("check", "published figures and what braid computes", {"number": number})
    for each in chosen:
        if not each.holds():
            misses += 1
            answer.warnings.append(f"{each.id} is off: {each.what}: {each.words()}")
        cells = {
            "published": Quantity(float(each.expected), each.unit, Basis.EXACT, ""),
            "computed": Quantity(float(each.found()), each.unit, Basis.EXACT, each.call),
            "off by": Quantity(float(each.error()), "part", Basis.EXACT, ""),
            "allowed": Quantity(float(each.tolerance), "part", Basis.EXACT, ""),
        }
        answer.rows.append(Row(each.id, cells, f"{each.what}: {each.words()}"))
    answer.exact("figures", "figures", len(chosen), "")
    answer.exact("off", "of which are off", misses, "")
    return answer, misses


def left_out(curves: Sequence[Curve], first: int, who: str) -> Report:
    """Every second inner point, predicted from its neighbours."""
    if first not in (0, 1, 2):
        raise PlanError(f"--first: asked for {first}, it is 1, 2, or 0 for both in turn")
    omissions = [each for curve in curves for each in leave_out(curve, first)]
    if not omissions:
        raise PlanError("validate: no operation has three sizes or more")
    answer = Report(
        "validate",
        f"times of {who} at sizes that were left out",
        {"who": who, "first": first, "curves": len(curves)},
    )
    for each in omissions:
        cells = {
            "bytes": Quantity(each.nbytes, "B", Basis.EXACT, ""),
            "measured": Quantity(each.measured_us, "us", Basis.MEASURED, "median"),
            "predicted": Quantity(each.predicted_us, "us", Basis.ASSUMED, "neighbours"),
            "error": Quantity(each.error, "part", Basis.EXACT, ""),
        }
        answer.rows.append(Row(f"{each.op}, {each.ranks} ranks", cells))
    answer.exact("median_error", "median error", median_error(omissions), "part")
    answer.exact("worst_error", "worst error", worst_error(omissions), "part")
    return answer
