"""The examples of KV caches and of weights run, and say what they promise."""

from example_runs import said_by


def test_tokens_of_two_processes_are_those_of_one():
    assert said_by("kv/01_disaggregated.py") == (
        "12 of 12 requests: the tokens of one process; 1867776 bytes of pages\n"
    )


def test_weights_go_from_rows_to_columns():
    assert said_by("weights/01_fsdp_to_tensor_parallel.py").splitlines() == [
        "84 routes; [164352, 164352, 164352, 164352] bytes sent a step",
        "worker 0: 3 of 3 versions are right",
        "worker 1: 3 of 3 versions are right",
    ]


def test_the_reward_goes_up():
    assert said_by("weights/02_toy_rl.py").splitlines()[-1] == "the reward went up: True"
