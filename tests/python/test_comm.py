"""What a comm is to Python's own copies and files (braid/comm.py)."""

import pickle
from copy import copy, deepcopy

import pytest


def test_a_copy_is_the_same_comm(ranks):
    def body(comm):
        for made in (copy(comm), deepcopy(comm), deepcopy({"of": [comm]})["of"][0]):
            assert made is comm

    ranks(2, body)


def test_no_comm_is_pickled_and_the_error_says_what_to_do(ranks):
    def body(comm):
        with pytest.raises(TypeError, match=r"braid\.Comm cannot be pickled.*state_dict.*init\(\)"):
            pickle.dumps({"of": comm})
        # Nor is it sent: the other ranks are told, and nobody waits.
        with pytest.raises((TypeError, ValueError), match="cannot be pickled"):
            comm.all_gather_object(comm)
        comm.barrier()

    ranks(2, body)


def test_an_end_is_in_peace_where_all_have_met_at_it(ranks):
    """What peers may have written into stays after any other (Comm._kept)."""

    def body(comm):
        assert not comm._core.has_ended_in_peace
        with comm.split(0) as left:
            left.barrier()
        assert left._core.has_ended_in_peace
        with comm.split(0) as failed:
            failed.barrier()
            failed._core.close(say_farewell=False)
        assert not failed._core.has_ended_in_peace
        lone = comm.split(comm.rank)
        lone.close()
        assert lone._core.has_ended_in_peace

    ranks(2, body)


def test_parts_of_a_job_on_one_host_meet_on_loopback(ranks):
    """Whatever name of this host the job's ranks have met by."""

    def body(comm):
        comm._store_address = "192.0.2.1"
        with comm.split(0) as part:
            assert part._store_address == "127.0.0.1"

    ranks(2, body)
