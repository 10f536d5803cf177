"""`braid plan tp`."""

from typing import Annotated

import typer

from braid.cli.plan import options
from braid.plan import models
from braid.plan.parallel import tensor
from braid.plan.show import show
from braid.plan.wrong import above_zero, at_least


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(tp)


def tp(
    model: options.ModelName,
    hw: options.HardwareName,
    tokens: Annotated[int, typer.Option(help="Tokens of one pass: prompt, or batch x 1.")],
    ranks: Annotated[int, typer.Option("--tp", help="GPUs that share every layer.")],
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "all",
    algorithm: options.Algorithm = "auto",
    mfu: options.Mfu = 0.5,
    peak_tflops: options.PeakTflops = 0.0,
    step_ms: Annotated[float, typer.Option(help="A measured pass in ms, on --step-path.")] = 0.0,
    step_tokens: Annotated[int, typer.Option(help="Its tokens; 0: as --tokens.")] = 0,
    step_path: Annotated[str, typer.Option(help="The path that it was measured on.")] = "auto",
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """Tensor parallelism: the all-reduces of one pass. And the pass with and without a fast path.

    Sizes in bytes (MiB = 2^20), rates in GB/s = 1e9 bytes per second and direction.

    Example: braid plan tp --model llama3-70b --tp 4 --tokens 4096 --hw a100-nvlink3
    """
    machine = options.machine(hw, record, who, peak_tflops)
    question = tensor.Question(
        model=models.find(model),
        ranks=ranks,
        tokens=tokens,
        hardware=machine,
        nodes=nodes,
        network=options.nics(network, nic_gbit, nic_per, nodes),
        algorithm=algorithm,
        mfu=mfu,
    )
    show(
        tensor.report(
            question,
            options.paths(machine, path, -(-ranks // max(nodes, 1))),
            _steps(question, step_ms, step_tokens, step_path),
        ),
        as_json,
    )


def _steps(
    question: tensor.Question, step_ms: float, step_tokens: int, step_path: str
) -> list[tensor.MeasuredStep]:
    """The user's measured pass, else what was published of this case."""
    if not step_ms:
        return tensor.published_steps(question)
    above_zero("--step-ms", step_ms)
    at_least("--step-tokens", step_tokens, 0)
    path = question.hardware.path(step_path).name
    tokens = step_tokens or question.tokens
    return [tensor.MeasuredStep(path, tokens, step_ms / 1e3, "as given")]
