"""The transfer engine between two processes that share a GPU, or have one each: every byte of every
way is compared.

python3 tests/gpu/engine.py            # needs one GPU, torch and Triton
python3 tests/gpu/engine.py 0 1        # the source's GPU and the target's
"""

import ctypes
import mmap
import multiprocessing as mp
import os
import signal
import sys
import time
from multiprocessing.queues import Queue
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

import braid

PAGES = (512, 8 << 10, 64 << 10, 1 << 20)
TOTAL = 64 << 20
LAYERS = 80
LAYER_BYTES = 2 << 20
LAYER_GAP = 4096
"""Bytes by which the pages of one layer more begin behind the begin of its memory."""


def pattern(nbytes: int, salt: int) -> torch.Tensor:
    """Bytes that depend on their place, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(salt)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda", generator=generator)


def layers(place: str, salt: int | None) -> list[torch.Tensor]:
    """Memory of each layer, an allocation of its own; zeroes without a salt."""
    if salt is None:
        made = [torch.zeros(LAYER_BYTES, dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
    else:
        made = [pattern(LAYER_BYTES, salt + number) for number in range(LAYERS)]
    return made if place == "gpu" else [on_own_pages(each) for each in made]


def on_own_pages(memory: torch.Tensor) -> torch.Tensor:
    """A copy on the host; no other memory shares its pages, of which the driver pins none twice."""
    copy = torch.frombuffer(mmap.mmap(-1, memory.numel()), dtype=torch.uint8)
    return copy.copy_(memory)


def gap(number: int) -> int:
    return (number % 3) * LAYER_GAP


def pages_of(memory: torch.Tensor, number: int, page: int) -> torch.Tensor:
    """A layer's pages, on the GPU."""
    rest = memory[gap(number) :].cuda()
    return rest[: rest.numel() // page * page].view(-1, page)


def pages_in_layer(page: int) -> int:
    return (LAYER_BYTES - 2 * LAYER_GAP) // page


def target(to_source: "Queue[Any]", from_source: "Queue[Any]", gpu: int) -> None:
    torch.cuda.set_device(gpu)
    with braid.Engine(name="target", device=gpu, nics="none") as engine:
        on_gpu = torch.zeros(TOTAL, dtype=torch.uint8, device="cuda")
        on_host = np.zeros(TOTAL, np.uint8)
        torch.cuda.synchronize()
        regions = {"gpu": engine.register(on_gpu), "host": engine.register(on_host)}
        apart = {place: layers(place, None) for place in ("gpu", "host")}
        found = {name: region.descriptor for name, region in regions.items()}
        for place, memory in apart.items():
            found[f"layers {place}"] = [engine.register(each).descriptor for each in memory]
        to_source.put(found)
        while (asked := from_source.get()) is not None:
            what, place, salt, moves = asked
            if what == "fill":
                on_gpu.copy_(pattern(TOTAL, salt))
                on_host[:] = pattern(TOTAL, salt).cpu().numpy()
                torch.cuda.synchronize()
                to_source.put(True)
                continue
            ids, places, page = moves
            if what == "layers":
                to_source.put(check_layers(apart[place], salt, ids, places, page))
                continue
            expected = torch.zeros(TOTAL, dtype=torch.uint8, device="cuda").view(-1, page)
            source = pattern(TOTAL, salt).view(-1, page)
            expected[torch.as_tensor(places).cuda()] = source[torch.as_tensor(ids).cuda()]
            found = on_gpu if place == "gpu" else torch.as_tensor(on_host).cuda()
            is_right = bool(torch.equal(found.view(-1, page), expected))
            on_gpu.zero_()
            on_host[:] = 0
            torch.cuda.synchronize()
            to_source.put(is_right)  # last: the next write may begin then


def check_layers(found: list[torch.Tensor], salt: int, ids: Any, places: Any, page: int) -> bool:
    """Whether every layer has these pages of its own, and nothing else; all is 0 behind it."""
    is_right = True
    for number, each in enumerate(found):
        source = pages_of(pattern(LAYER_BYTES, salt + number), number, page)
        expected = torch.zeros(LAYER_BYTES, dtype=torch.uint8, device="cuda")
        pages_of(expected, number, page)[torch.as_tensor(places).cuda()] = source[
            torch.as_tensor(ids).cuda()
        ]
        is_right &= bool(torch.equal(each.cuda(), expected))
        each.zero_()
    torch.cuda.synchronize()
    return is_right


def shuffled(count: int, seed: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    return np.random.default_rng(seed).permutation(count).astype(np.uint64)


def check_writes(engine: braid.Engine, remote: dict[str, Any], ask: Any) -> int:
    wrong = 0
    sources = {"gpu": pattern(TOTAL, 7), "host": pattern(TOTAL, 7).cpu().numpy()}
    torch.cuda.synchronize()
    for here, memory in sources.items():
        region = engine.register(memory)
        for there in ("gpu", "host"):
            for page in PAGES:
                count = TOTAL // page
                ids, places = shuffled(count, 1), shuffled(count, 2)
                engine.write_pages(region, remote[there], page, ids, places, imm=5).wait()
                is_right = ask(
                    "check", there, 7, (ids.astype(np.int64), places.astype(np.int64), page)
                )
                print(
                    f"write {here} to {there}, pages of {page}: {'right' if is_right else 'WRONG'}"
                )
                wrong += not is_right
        region.unregister()
    return wrong


def check_planes(engine: braid.Engine, remote: dict[str, Any], ask: Any) -> int:
    """The same pages of layers that are allocations of their own, in one call; and back."""
    wrong = 0
    gaps = [gap(number) for number in range(LAYERS)]
    for here, there in (("gpu", "gpu"), ("host", "gpu"), ("gpu", "host"), ("gpu", "gpu")):
        memory = layers(here, 20)
        torch.cuda.synchronize()
        regions = [engine.register(each) for each in memory]
        theirs = remote[f"layers {there}"]
        for page in (512, 8 << 10, 64 << 10):
            count = min(1000, pages_in_layer(page))
            ids, places = shuffled(count, 1), shuffled(count, 2)
            engine.write_pages(
                regions, theirs, page, ids, places, src_offset=gaps, dst_offset=gaps, imm=6
            ).wait()
            back = layers(here, None)
            torch.cuda.synchronize()
            returned = [engine.register(each) for each in back]
            engine.read_pages(
                returned, theirs, page, ids, places, dst_offset=gaps, src_offset=gaps
            ).wait()
            is_right = all(
                torch.equal(
                    pages_of(one, number, page)[torch.as_tensor(ids.astype(np.int64)).cuda()],
                    pages_of(other, number, page)[torch.as_tensor(ids.astype(np.int64)).cuda()],
                )
                for number, (one, other) in enumerate(zip(back, memory, strict=True))
            )
            for region in returned:
                region.unregister()
            moves = (ids.astype(np.int64), places.astype(np.int64), page)
            is_right &= ask("layers", there, 20, moves)
            print(
                f"{LAYERS} planes {here} to {there} and back, pages of {page}: "
                f"{'right' if is_right else 'WRONG'}"
            )
            wrong += not is_right
        for region in regions:
            region.unregister()
    return wrong


def check_reads(engine: braid.Engine, remote: dict[str, Any], ask: Any) -> int:
    wrong = 0
    ask("fill", "", 9, None)
    expected = pattern(TOTAL, 9)
    for here in ("gpu", "host"):
        memory: Any = torch.zeros(
            TOTAL, dtype=torch.uint8, device="cuda" if here == "gpu" else "cpu"
        )
        torch.cuda.synchronize()
        region = engine.register(memory)
        for there in ("gpu", "host"):
            memory.zero_()
            torch.cuda.synchronize()
            engine.read(region, remote[there], TOTAL - 100, dst_offset=3, src_offset=50).wait()
            is_right = torch.equal(memory[3 : TOTAL - 97].cuda(), expected[50 : TOTAL - 50])
            print(f"read {there} into {here}: {'right' if is_right else 'WRONG'}")
            wrong += not is_right
        region.unregister()
    return wrong


def check_watch(engine: braid.Engine) -> int:
    """A word that the GPU bumps, in stream order."""
    seen: list[int] = []
    driver = ctypes.CDLL("libcuda.so.1")

    def note(_: int, now: int) -> bool:
        seen.append(now)
        return True

    with engine.watch(note) as watch:
        for value in range(1, 101):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            code = driver.cuStreamWriteValue32_v2(
                stream, ctypes.c_uint64(watch.gpu_address), ctypes.c_uint32(value), 0
            )
            if code != 0:
                print(f"watch: cuStreamWriteValue32 answered {code}")
                return 1
            torch.cuda.synchronize()
        deadline = time.monotonic() + 5
        while (not seen or seen[-1] != 100) and time.monotonic() < deadline:
            time.sleep(0.001)
    is_right = bool(seen) and seen[-1] == 100 and seen == sorted(seen)
    print(f"watch: {len(seen)} callbacks for 100 bumps: {'right' if is_right else 'WRONG'}")
    return not is_right


@triton.jit  # type: ignore[untyped-decorator]
def wait_and_compare(flag, found, expected, wrong, words, looks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """One block looks until the flag is 1, then at once at every word. wrong: how many, or -1."""
    one = tl.full((), 1, tl.int64)
    seen = tl.atomic_cas(flag, one, one, sem="acquire", scope="sys")
    while (seen != 1) & (looks > 0):
        seen = tl.atomic_cas(flag, one, one, sem="acquire", scope="sys")
        looks -= 1
    if seen != 1:
        tl.store(wrong, -1)
    else:
        count = tl.zeros([BLOCK], dtype=tl.int64)
        for at in range(0, words, BLOCK):
            place = at + tl.arange(0, BLOCK)
            inside = place < words
            here = tl.load(found + place, mask=inside, other=0)
            there = tl.load(expected + place, mask=inside, other=0)
            count += (here != there).to(tl.int64)
        tl.store(wrong, tl.sum(count))


def check_flag(engine: braid.Engine, gpu: int) -> int:
    """A kernel waits for a flag in the GPU's memory, alone, and compares the bytes."""
    words, rounds, looks, salts = 1 << 17, 200, 1 << 22, (11, 12)  # looks: some seconds
    patterns = [pattern(8 * words, salt).view(torch.int64) for salt in salts]
    memory, wrong = torch.zeros_like(patterns[0]), torch.zeros(1, dtype=torch.int64, device="cuda")
    flag = torch.ones(1, dtype=torch.int64, device="cuda")
    waits = torch.cuda.Stream()
    # The flag is 1: compiled and loaded before anything waits.
    wait_and_compare[(1,)](flag, memory, memory, wrong, words, looks, BLOCK=1024)
    torch.cuda.synchronize()
    total = 0
    with braid.Engine(name="here", device=gpu, nics="none") as here:
        remote = here.register(memory).descriptor
        sources = [engine.register(each) for each in patterns]
        for number in range(rounds):
            memory.zero_()
            flag.zero_()
            wrong.fill_(-2)
            torch.cuda.synchronize()
            ticket = here.expect(number, 1, flag)
            with torch.cuda.stream(waits):
                expected = patterns[number % 2]
                wait_and_compare[(1,)](flag, memory, expected, wrong, words, looks, BLOCK=1024)
            engine.write(sources[number % 2], remote, imm=number).wait(30)
            waits.synchronize()  # by the flag alone
            ticket.wait(30)
            total += int(wrong.item() != 0 or flag.item() != 1)
            if wrong.item() != 0:
                print(f"flag: round {number}: {wrong.item()} words of {words} (-1: never seen)")
        for source in sources:
            source.unregister()
    print(f"flag: {rounds} kernels waited: {'right' if total == 0 else f'WRONG in {total}'}")
    return total


def check_death(engine: braid.Engine, remote: dict[str, Any], process: Any) -> int:
    region = engine.register(pattern(TOTAL, 3))
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            engine.write(region, remote["gpu"], TOTAL, imm=1, timeout=10).wait()
    except braid.PeerLost as lost:
        took = time.monotonic() - began
        print(f"a killed target: PeerLost after {took:.3f} s: {lost}")
        return took > 6
    except braid.Error as other:
        print(f"a killed target: WRONG: {type(other).__name__}: {other}")
        return 1


def main() -> int:
    ours, theirs = [int(word) for word in sys.argv[1:3]] or [0, 0]
    torch.cuda.set_device(ours)
    context = mp.get_context("spawn")
    answers: Queue[Any] = context.Queue()
    orders: Queue[Any] = context.Queue()
    process = context.Process(target=target, args=(answers, orders, theirs), daemon=True)
    process.start()

    def ask(*order: Any) -> Any:
        orders.put(order)
        return answers.get(timeout=60)

    with braid.Engine(name="source", device=ours, nics="none") as engine:
        remote = answers.get(timeout=120)
        wrong = check_writes(engine, remote, ask)
        wrong += check_planes(engine, remote, ask)
        wrong += check_reads(engine, remote, ask)
        wrong += check_watch(engine)
        wrong += check_flag(engine, ours)
        wrong += check_death(engine, remote, process)
    print(f"engine, GPU {ours} to GPU {theirs}: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
