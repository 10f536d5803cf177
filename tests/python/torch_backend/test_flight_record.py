"""torch's own analyser reads our flight records."""

import gc
import logging
import pickle
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

import braid

fr_trace = pytest.importorskip(
    "torch.distributed.flight_recorder.fr_trace", reason="this torch has no analyser in it"
)


def analysed(folder, caplog):
    """What fr_trace says, and the calls that it found."""
    found = folder.parent / "found.pickle"
    with caplog.at_level(logging.INFO, "Flight Recorder"):
        fr_trace.main([str(folder), "-p", "fr_", "-o", str(found)])
    gc.enable()  # which its loader switched off
    _, database = pickle.loads(found.read_bytes())
    return caplog.text, database


def test_calls_of_all_ranks_match(ranks, tmp_path, caplog):
    folder = tmp_path / "records"
    folder.mkdir()

    def body(comm):
        comm.all_gather(np.ones(100))
        comm.all_reduce(np.ones(100, dtype="f4"))
        comm.reduce_scatter(np.ones(300, dtype="i8"))
        comm.all_to_all(np.ones(300, dtype="u1"))
        comm.all_to_all(np.ones(6), None, [1, 2, 3])
        comm.broadcast(np.ones(7), 2)
        comm.barrier()
        comm.flight_record(folder / f"fr_{comm.rank}")

    ranks(3, body, {"BRAID_TRACE_CALLS": "100"})
    text, database = analysed(folder, caplog)
    names = [c.collective_name for c in database.collectives]
    assert names == [
        "nccl:_all_gather_base",
        "nccl:all_reduce",
        "nccl:_reduce_scatter_base",
        "nccl:all_to_all",
        "nccl:all_to_all",  # the counts of the uneven one
        "nccl:all_to_all",
        "nccl:broadcast",
        "nccl:all_reduce_barrier",
    ]
    assert all(c.pass_check and c.collective_state == "completed" for c in database.collectives)
    assert "Not all ranks" not in text


def test_uneven_and_rooted_calls_match(ranks, tmp_path, caplog):
    folder = tmp_path / "records"
    folder.mkdir()

    def body(comm):
        mine = np.ones(comm.rank + 1, dtype="i4")
        comm.all_gather(mine, counts=[1, 2, 3])
        comm.reduce_scatter(np.ones(6, dtype="f4"), counts=[1, 2, 3])
        comm.scatter(np.ones(6, dtype="i4") if comm.rank == 0 else None, np.empty(2, "i4"))
        comm.gather(np.ones(2, dtype="i4"))
        comm.reduce(np.ones(5))
        record = comm.flight_record(folder / f"fr_{comm.rank}")
        return [(e["input_sizes"][0][0], e["output_sizes"][0][0]) for e in record["entries"]]

    found = ranks(3, body, {"BRAID_TRACE_CALLS": "100"})
    assert found[0] == [(3, 6), (6, 3), (6, 2), (2, 6), (5, 5)]
    assert found[1] == [(6, 6), (6, 6), (0, 2), (2, 0), (5, 5)]
    text, database = analysed(folder, caplog)
    assert len(database.collectives) >= 5
    assert all(c.pass_check and c.collective_state == "completed" for c in database.collectives)
    assert "Culprit" not in text
    assert "Not all ranks" not in text


def test_the_rank_that_stayed_away_is_named(torch_ranks, tmp_path, caplog):
    folder = tmp_path / "records"

    def body():
        dist.all_reduce(torch.ones(10))
        if dist.get_rank() != 1:
            with pytest.raises(braid.Error):
                dist.all_reduce(torch.ones(2000))
        mine = folder / f"fr_{dist.get_rank()}"
        end = time.monotonic() + 15
        while not mine.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert mine.exists()
        dist.group.WORLD.abort()

    options = {"BRAID_FLIGHT_RECORD": str(folder / "fr_")}
    torch_ranks(3, body, timeout_s=2, options=options)
    text, database = analysed(folder, caplog)
    assert "Not all ranks joining collective" in text
    assert "missing ranks: {1}" in text
    (group,) = database.groups
    assert group.size == 3
    lost = [c for c in database.collectives if c.missing_ranks]
    assert [(c.collective_name, c.missing_ranks) for c in lost] == [("nccl:all_reduce", {1})]
    assert database.collectives[0].pass_check


def test_a_group_of_some_ranks_has_their_numbers_in_the_job(torch_ranks):
    def body():
        some = dist.new_group([0, 2], timeout=timedelta(seconds=20))
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(3), group=some)
            comm = some._comms._made["cpu"]
            record = comm.flight_record()
            assert [e["collective_seq_id"] for e in record["entries"]] == [1]
            ((name, about),) = record["pg_config"].items()
            return name, about["ranks"]
        return None

    found = torch_ranks(3, body, options={"BRAID_TRACE_CALLS": "10"})
    assert found[1] is None
    assert found[0] == found[2]
    assert found[0][0].endswith(":cpu")
    assert found[0][1] == "[0, 2]"
