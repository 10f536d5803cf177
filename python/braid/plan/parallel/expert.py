"""Expert parallelism: every token travels to its experts and back, in every sparse layer.

Routing counts as even. Real routers are not, and the fullest rank decides: times are the least.
"""

from braid.plan.formulas import messages
from braid.plan.model import Experts, Model
from braid.plan.parallel.machines import Machines
from braid.plan.report import Report
from braid.plan.shipped import constant
from braid.plan.wrong import PlanError, at_least

_SCALE_GROUP = int(constant("fp8_scale_group"))
FORMATS = ("fp8", "bf16")


def token_bytes(hidden: int, element: str) -> int:
    """One token's activations on the way to an expert."""
    if element == "fp8":
        return hidden + hidden // _SCALE_GROUP * 4
    return hidden * 2


def report(machines: Machines, model: Model, tokens: int, dispatch: str = "fp8") -> Report:
    """Dispatch and combine of `tokens` per rank over all GPUs."""
    machines.check()
    at_least("--tokens", tokens, 1)
    if dispatch not in FORMATS:
        raise PlanError(f"--dispatch: '{dispatch}' is no format; braid has {', '.join(FORMATS)}")
    experts = _experts(model, machines.ranks)
    answer = Report(
        "ep",
        f"EP {machines.ranks}, {model.name}, {tokens} tokens per rank",
        {
            "model": model.name,
            "hardware": machines.hardware.name,
            "ep": machines.ranks,
            "tokens": tokens,
            "dispatch": dispatch,
        },
    )
    total = 0.0
    for name, element in (("dispatch", dispatch), ("combine", "bf16")):
        total += _add_way(
            answer, machines, name, token_bytes(model.hidden, element), tokens, experts
        )
    ways = [line.quantity for line in answer.lines if line.name.endswith("_us")]
    layers = model.sparse_layers
    answer.derived(
        "communication_s",
        f"both, {layers} layers with experts",
        total * layers / 1e6,
        "s",
        ways,
    )
    slots = messages.receive_slots_per_token(machines.ranks, experts.count, experts.per_token)
    answer.exact(
        "receive_slots", "receive slots per token of a peer", slots, "", "min(top-k, experts/rank)"
    )
    expert = model.counted(model.expert_parameters * 2, "B")
    answer.add("expert_bytes", "one expert's weights, bf16", expert)
    answer.about(model)
    answer.warnings += machines.hardware.apart(machines.gpus, "all_to_all")
    answer.notes.append("even routing: with a hot expert its rank takes longer")
    return answer


def _experts(model: Model, ranks: int) -> Experts:
    if not model.experts:
        raise PlanError(f"{model.name} has no experts; tp and pp divide it")
    if ranks > model.experts.count:
        raise PlanError(f"{ranks} ranks: {model.name} has {model.experts.count} experts")
    return model.experts


def _add_way(
    answer: Report, machines: Machines, name: str, each: int, tokens: int, experts: Experts
) -> float:
    ranks, top_k = machines.ranks, experts.per_token
    routed = messages.routed_bytes(tokens, top_k, each)
    answer.exact(f"{name}_token_bytes", f"{name}: one copy of a token", each, "B")
    answer.exact(f"{name}_bytes", f"{name}: all copies of a rank's tokens", routed, "B")
    leaving = messages.leaving_bytes(routed, ranks)
    answer.exact(f"{name}_leaving_bytes", f"{name}: what leaves the rank", leaving, "B")
    once = messages.once_per_rank_bytes(tokens, ranks, top_k, each)
    answer.exact(f"{name}_once_bytes", f"{name}: a token to a rank only once", once, "B")
    peer = messages.copies_per_peer(tokens, top_k, ranks) * each
    answer.exact(f"{name}_peer_bytes", f"{name}: to one peer", peer, "B")
    found = machines.time("all_to_all", routed)
    answer.add(f"{name}_us", f"{name}: one layer", found.time_us)
    return found.time_us.value
