"""The command line: arguments in, exit codes out.

The work is in the other files of this folder.
"""

import importlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import braid
from braid import json_file, launched
from braid.cli import report
from braid.cli.checks import (
    as_launched,
    check_budget,
    check_device,
    check_options,
    check_ranks,
    fail,
    our_op,
    sizes_of,
    words,
)
from braid.launch import LOST_READER, StartError, command_for, launch
from braid.printable import printable

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
GROUPS = {
    "topo": ("braid.cli.topo", "What is in this machine, how it is joined, what is wrong."),
    "plan": ("braid.cli.plan", "What communication costs a model on a machine."),
    "bench": ("braid.cli.collectives", "Check and time collectives; measure links and pairs."),
    "trace": ("braid.cli.trace", "Put the ranks' timelines together, or add them up."),
}
"""Commands with commands of their own, and what the list of all says of them: each is loaded when
it, or that list, is asked for.
"""
_loaded: set[str] = set()

_Refused: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What the parser raises at words that it cannot take. Newer typer brings a click of its own."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Ranks = Annotated[int, typer.Option("--ranks", "-n", help="Processes to start on this machine.")]


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: braid run -n 4 train.py --epochs 3. Exit code: that of the first rank that"
    " failed, 2 for bad input.",
)
def run(
    target: Annotated[
        list[str], typer.Argument(help="script.py, or a program, and its arguments.")
    ],
    ranks: Ranks = 1,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a Python module.")] = False,
    grace: Annotated[float, typer.Option(help="Seconds that ranks get after one failed.")] = 5.0,
) -> None:
    """Start a program's ranks: braid run -n 4 script.py ARGS.

    Their standard input is empty, and what they print comes out here.
    """
    check_ranks(ranks)
    if not grace >= 0:  # NaN, too
        fail(f"run: --grace: asked for {grace:g} s, it must be 0 or more")
    if target[0].endswith(".py") and not module and not os.path.isfile(target[0]):
        fail(f"run: there is no file {target[0]}")
    try:
        code = launch(command_for(target, module=module), ranks, grace_s=grace)
    except StartError as error:
        fail(f"run: {target[0]} cannot be started: {error.strerror}")
    raise typer.Exit(code)


@app.command(
    epilog="Example: braid demo --device cpu --out demo. Times in us, bandwidths in GB/s = 1e9"
    " bytes per second; OUT/demo.json is the record. Exit code 0 fine, 1 wrong bytes, 2 bad input."
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the record and the plot.")] = Path(
        "build/demo"
    ),
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Processes: 4, or one for every GPU.")
    ] = 0,
    size: Annotated[str | None, typer.Option(help="Bytes: 64MiB, on GPUs 256MiB.")] = None,
    time_budget: Annotated[float, typer.Option(help="Seconds for measuring, roughly.")] = 35.0,
    device: Annotated[str, typer.Option(help="auto: GPUs if there are two; gpu, cpu.")] = "auto",
) -> None:
    """Try it: five operations, every byte checked. About a minute.

    On GPUs against the CPU's bytes, then NCCL's times. Between CPUs over three paced links against
    the best one, then a training. The last line says what was proven.
    """
    from braid.cli import demo as story

    check_ranks(ranks or 4)
    check_device(device, "demo: --device")
    if size is not None:
        sizes_of(size, "demo: --size")
    check_budget(time_budget, "demo: --time-budget")
    json_file.make_folder(out, "--out")
    json_file.check(out / "demo.json", "--out")
    raise typer.Exit(story.run(out, ranks, size or "", time_budget, device))


@app.command(
    epilog="Example: braid explain all_reduce 64MiB -n 4 --json. Times in us, rates in GB/s = 1e9"
    " bytes per second. Exit code 0 fine, 2 bad input."
)
def explain(
    op: Annotated[str, typer.Argument(help="all_gather, all_reduce, ...")],
    size: Annotated[str, typer.Argument(help="Bytes, such as 64MiB.")],
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Processes to start.", callback=as_launched)
    ] = 4,
    as_json: AsJson = False,
) -> None:
    """Say how a call would be cut over the links of this machine."""
    nbytes = sizes_of(size, "explain: SIZE")[0]
    op = our_op(op)
    words(op, "ops", "explain: OP")
    if not launched.is_rank():
        check_ranks(ranks)
        check_options({})
        raise typer.Exit(launch([sys.executable, "-m", "braid.cli", *sys.argv[1:]], ranks))
    with braid.init() as comm:
        from braid.cli.explain import told

        explanation, rank = told(comm, op, nbytes), comm.rank
    if rank == 0:  # when all have left: nobody hears of it if the reader has gone
        print(json.dumps(explanation.json, indent=1) if as_json else explanation)


@app.command(
    epilog="Example: braid options --json. Units are in the defaults, such as 30s or 4MiB."
    " Exit code 0."
)
def options(
    as_json: AsJson = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="With those of tuning and measuring sessions.")
    ] = False,
) -> None:
    """List every BRAID_ option for users: type, default, meaning."""
    from braid import _braid

    rows = [row for *row, is_for_users in _braid.options() if is_for_users or show_all]
    if as_json:
        fields = ("name", "type", "default", "meaning")
        print(json.dumps([dict(zip(fields, row, strict=True)) for row in rows], indent=1))
        return
    for name, kind, default, text in rows:
        print(f"{name}  {kind}, default {default or 'empty'}\n    {text}")


@app.command(
    epilog="Example: env $(braid nccl-env) torchrun --nproc-per-node 8 train.py;"
    " env $(braid nccl-env --for vllm) vllm serve MODEL."
    " Exit code 2: built without it, or no such program."
)
def nccl_env(
    program: Annotated[
        str, typer.Option("--for", help="vllm or sglang: with the variables that these look at.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print what puts braid in NCCL's place, for env $(...).

    As in: env $(braid nccl-env) torchrun --nproc-per-node 8 train.py.
    """
    from braid.cli import nccl

    if program and program not in nccl.PROGRAMS:
        fail(f"nccl-env: --for: asked for '{program}', there is {', '.join(nccl.PROGRAMS)}")
    path = nccl.library()
    if path is None:
        fail(f"nccl-env: {nccl.FILE} is not beside the package")
    if missing := nccl.lacks(path):
        print(f"braid: nccl-env: everything will go to NCCL: {missing}", file=sys.stderr)
    found = nccl.variables(path, program)
    lines = (f"{name}={value}" for name, value in found.items())
    print(json.dumps(found) if as_json else "\n".join(lines))


@app.command(
    epilog="Example: braid nccl-check --json. Exit code 0 fine or nothing to try it on, 1 the test"
    " on GPUs failed, 2 a wrong BRAID_ option, or built without the drop-in or without kernels, 3"
    " no NCCL was found."
)
def nccl_check(as_json: AsJson = False) -> None:
    """Say what the drop-in for NCCL finds here, and try it.

    On GPUs that takes half a minute.
    """
    check_options({})
    from braid.cli import nccl

    raise typer.Exit(nccl.check(as_json))


@app.command(
    epilog="Example: env $(braid deepep-env) vllm serve MODEL --enable-expert-parallel"
    " --all2all-backend deepep_low_latency. Exit code 0."
)
def deepep_env(as_json: AsJson = False) -> None:
    """Print what puts braid in DeepEP's place, for env $(...).

    As in: env $(braid deepep-env) torchrun --nproc-per-node 8 train.py.
    """
    from braid.cli import deepep

    found = deepep.variables()
    lines = (f"{name}={value}" for name, value in found.items())
    print(json.dumps(found) if as_json else "\n".join(lines))


@app.command(
    epilog="Example: braid deepep-check --json. Exit code 0 fine, 1 the self-test failed, 2 deep_ep"
    " cannot be imported or is not the stand-in, or a wrong BRAID_ option."
)
def deepep_check(as_json: AsJson = False) -> None:
    """Say what the stand-in for DeepEP finds here, and try it.

    Between two processes, on host memory.
    """
    check_options({})
    from braid.cli import deepep

    raise typer.Exit(deepep.check(as_json))


app.command(epilog=report.EPILOG)(report.report)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """braid: collectives over every link of the machine at once."""
    if version:
        print(f"braid {braid.__version__}")
        raise typer.Exit(0)


def load_groups(words_given: list[str]) -> None:
    """Adds the group that is asked for, none for a command without one or for the version; all of
    them where the list of all is asked for, or a shell wants completions.
    """
    asked = words_given[0] if words_given else ""
    wanted, alone = list(GROUPS), {*_plain_commands(), "--version"}
    if not any(name.endswith("_COMPLETE") for name in os.environ):
        wanted = [asked] if asked in GROUPS else [] if asked in alone else wanted
    for name in wanted:
        if name not in _loaded:
            _loaded.add(name)
            module, summary = GROUPS[name]
            app.add_typer(importlib.import_module(module).app, name=name, short_help=summary)


def _plain_commands() -> set[str]:
    names = (
        each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands
    )
    return {name.replace("_", "-") for name in names}


def _take_nccl_words(line: list[str]) -> None:
    """`braid bench all_reduce_perf -b 8`, as who knows nccl-tests writes it: --ops all_reduce."""
    if line[1:2] == ["bench"]:
        from braid.cli import nccl_words

        nccl_words.take(line)


def _refuse(who: str, error: Any) -> NoReturn:  # noqa: ANN401 - a class that typer keeps to itself
    """One line on standard error, exit code 2; the help where a group was called without words."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        command = error.ctx.command_path if getattr(error, "ctx", None) else "braid"
        words = _missing_options(error) or " ".join(error.format_message().split())
        print(f"{who}: {printable(words).removesuffix('.')}; see {command} --help", file=sys.stderr)
    sys.exit(2)


def _missing_options(error: Any) -> str:  # noqa: ANN401 - as above
    """All that are missing; typer names the first, and takes what was given before it looks."""
    if type(error).__name__ != "MissingParameter" or error.param.param_type_name != "option":
        return ""
    required = [each for each in error.ctx.command.params if each.required]
    missing = [f"'{each.opts[0]}'" for each in required if each.name not in error.ctx.params]
    return f"Missing options {', '.join(missing)}" if len(missing) > 1 else ""


def _why_stdout_fails() -> str:
    """Empty if it does not. What could not be written may be gone, so one more byte is tried.
    Python would write what is left at the end, and complain: it goes nowhere.
    """
    try:
        out = sys.stdout.fileno()
    except (AttributeError, ValueError):  # closed, or no file
        return ""
    try:
        os.write(out, b"\n")
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out)
        os.close(nowhere)
        return error.strerror or type(error).__name__
    return ""


def _has_lost_reader() -> bool:
    """Whether the parser met a closed pipe: it then wraps standard output, and exits with 1."""
    return type(sys.stdout).__name__ == "PacifyFlushWrapper"


def _end_ranks_on_ctrl_c() -> None:
    """By the system, until they measure. An import may swallow Python's KeyboardInterrupt, and the
    rank then went on to wait for those that it had ended.
    """
    if launched.is_rank() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """The entry point: what is wrong becomes one line and exit code 1 or 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal has no letters for
        sys.stdout.reconfigure(errors="replace")
    who = f"braid: {said}" if (said := launched.words()) else "braid"
    _end_ranks_on_ctrl_c()
    try:
        _take_nccl_words(sys.argv)
        load_groups(sys.argv[1:])
        code = app(prog_name="braid", standalone_mode=False)
        if sys.stdout:
            sys.stdout.flush()  # what it cannot take is known now
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit as stop:
        sys.exit(LOST_READER if _has_lost_reader() else stop.code)
    except _Refused as error:
        _refuse(who, error)
    except typer.Abort:
        print(f"{who}: stopped", file=sys.stderr)
        sys.exit(130)
    except braid.InvalidArgument as error:
        print(f"{who}: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except braid.Error as error:
        print(f"{who}: {type(error).__name__}: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except MemoryError as error:
        print(f"{who}: out of memory: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if not (why := _why_stdout_fails()):
            raise
        if isinstance(error, BrokenPipeError):  # `| head`: it has read enough
            sys.exit(LOST_READER)
        print(f"{who}: standard output: cannot be written: {why}", file=sys.stderr)
        sys.exit(2)
