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
