"""Several groups in one job: each finds its ranks, and no other's."""

import json
import os
import threading
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch_backend_data import mine, same

import braid
from braid import _braid
from braid.torch import lobby
from braid.torch.errors import Timeout
from braid.torch.group import make_group
from braid.torch.monitored import MonitoredBarrier


def summed(group) -> float:
    total = torch.ones(1) * dist.get_rank()
    dist.all_reduce(total, group=group)
    return total.item()


def test_subgroups_are_made_by_their_members_alone(torch_ranks):
    def body():
        low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
        odd = dist.new_group([3, 1])  # ranks of a group are sorted
        own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        got = [summed(low if dist.get_rank() < 2 else high), summed(own)]
        if dist.get_rank() % 2:
            got.append(summed(odd))
            assert dist.get_rank(odd) == (0 if dist.get_rank() == 1 else 1)
        return [*got, summed(None)]

    assert torch_ranks(4, body) == [
        [1, 0, 6],
        [1, 1, 4, 6],
        [5, 2, 6],
        [5, 3, 4, 6],
    ]


def test_one_bind_for_the_whole_job(torch_ranks):
    """It is an address of rank 0's host: groups that begin on another one listen where they are."""

    def body():
        here = dist.get_rank() == 0
        os.environ["BRAID_BIND"] = "127.0.0.1" if here else "203.0.113.77"  # no host has it
        group = dist.new_group([1, 2])
        return [summed(None), None if here else summed(group)]

    assert torch_ranks(3, body) == [[3, None], [3, 3], [3, 3]]


def test_two_groups_of_the_same_ranks_at_once(torch_ranks):
    """The ranks use them in different order; each group has an order of its own."""

    def body():
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        tensors = {name: mine(50_000, salt=name) for name in (1, 2)}
        groups = {1: first, 2: second}
        order = [1, 2] if dist.get_rank() == 0 else [2, 1]
        works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order * 3]
        for work in works:
            work.wait()
        return [tensors[i].sum().item() for i in (1, 2)]

    results = torch_ranks(2, body)
    assert results[0] == results[1]


def test_many_groups(torch_ranks):
    def body():
        groups = [dist.new_group([0, 1, 2]) for _ in range(12)]
        return [summed(group) for group in groups] == [3] * 12

    assert all(torch_ranks(3, body))


def test_a_group_made_anew_in_the_same_store(torch_ranks):
    """torchrun keeps its store; what the first group wrote there must not mislead the second."""

    def body():
        store = dist.PrefixStore("kept", dist.group.WORLD.get_group_store())
        rank, size = dist.get_rank(), dist.get_world_size()
        got = []
        for _ in range(3):
            dist.destroy_process_group()
            dist.init_process_group("braid", store=store, rank=rank, world_size=size)
            got.append(summed(None))
        return got

    assert torch_ranks(2, body) == [[1, 1, 1]] * 2


def test_ranks_with_different_pasts(torch_ranks):
    """Each has made another number of groups of the name that the new one gets."""

    def body():
        store = dist.PrefixStore("past", dist.group.WORLD.get_group_store())
        rank = dist.get_rank()
        pair = dist.new_group([0, 1])
        got = [summed(pair)] if rank < 2 else []
        dist.destroy_process_group()
        dist.init_process_group("braid", store=store, rank=rank, world_size=3)
        pair = dist.new_group([1, 2])
        got += [summed(pair)] if rank else []
        return [*got, summed(None)]

    assert torch_ranks(3, body) == [[1, 3], [1, 3, 3], [3, 3]]


@pytest.mark.parametrize("fresh", [0, 1])
def test_a_process_that_takes_anothers_place(ranks, tmp_path, fresh):
    """One rank is started anew while the other lives on; a store that both lives used, and that
    has what the ended process wrote there.
    """

    def one_life(rank):
        store = dist.FileStore(str(tmp_path / "store"), 2)
        limit = timedelta(seconds=10)
        dist.init_process_group("braid", store=store, rank=rank, world_size=2, timeout=limit)
        total = summed(None)
        dist.destroy_process_group()
        return total

    def body():
        rank = int(os.environ["RANK"])
        got = [one_life(rank)]
        if rank == fresh:
            child = os.fork()
            if child == 0:
                time.sleep(0.3)
                os._exit(0 if one_life(rank) == 1 else 1)
            got.append(float(os.waitpid(child, 0)[1] == 0))
        else:
            got.append(one_life(rank))
        return got

    assert ranks.collect(ranks.start(2, body)) == [[1, 1]] * 2


def test_what_an_earlier_group_left_is_not_taken():
    """Rank 0 reads an old hello, the others an old invitation: they meet when all are there."""
    store, card = dist.HashStore(), lobby.Card("a", "127.0.0.1")
    for _ in range(2):
        here = {rank: lobby.Lobby(store, rank, 3, card) for rank in (0, 1)}
        for _ in range(3):  # rank 2 is not there, or in the second round only what it left
            assert [each.poll() for each in here.values()] == [None, None]
        assert here[0].missing() == [2]
        here[2] = lobby.Lobby(store, 2, 3, card)
        parties = {}
        for rank in [1, 2, 0] * 5:
            if rank not in parties and (party := here[rank].poll()) is not None:
                parties[rank] = party
        assert len(parties) == 3
        assert parties[0] == parties[1] == parties[2]


def test_one_rank_alone(torch_ranks):
    def body():
        tensor = mine(5)
        dist.all_reduce(tensor)
        same(tensor, mine(5))
        dist.barrier()
        return dist.get_backend(), dist.get_world_size()

    assert torch_ranks(1, body) == [("braid", 1)]


def test_device_mesh(torch_ranks):
    def body():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        along = [summed(mesh[name].get_group()) for name in ("rows", "columns")]
        whole = mesh._flatten("all") if hasattr(mesh, "_flatten") else None
        return [*along, summed(whole.get_group() if whole else None)]

    assert torch_ranks(4, body) == [[2, 1, 6], [4, 1, 6], [2, 5, 6], [4, 5, 6]]


def test_both_devices_and_other_backends(torch_ranks):
    def body():
        assert type(dist.group.WORLD).__name__ == "BraidGroup"
        return dist.get_backend_config()

    assert torch_ranks(2, body, "cpu:braid,cuda:braid") == ["cpu:braid,cuda:braid"] * 2

    def mixed():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            total = summed(None)
            summed(None)
        told = [str(w.message) for w in seen if "cpu:gloo" in str(w.message)]
        return total, len(told)

    assert torch_ranks(2, mixed, "cpu:gloo,cuda:braid") == [(1, 1), (1, 0)]


def test_options_for_one_group(torch_ranks):
    def body():
        slow = dist.new_group(pg_options={"links": ["staged"], "cell": "64KiB"})
        total = summed(slow)
        (comm,) = slow._comms._made.values()
        assert [link.name for link in comm.links] == ["staged"]
        with pytest.raises(braid.InvalidArgument, match=r"pg_options.*found str"):
            dist.new_group([dist.get_rank()], pg_options="fast", use_local_synchronization=True)
        return total

    assert torch_ranks(2, body) == [1, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"job_token": "ours"}, "BRAID_JOB_TOKEN"),
        ({"JOB_TOKEN": "ours"}, "BRAID_JOB_TOKEN"),
        ({"linkz": ["shm"]}, "BRAID_LINKZ is no option.*BRAID_LINKS"),
        ({"links": "nothing"}, "'nothing' is not a link"),
        ({"timeout": timedelta(seconds=3)}, "BRAID_TIMEOUT.*not a duration"),
        ({1: 2}, "names of options, found 1"),
    ],
)
def test_wrong_options_are_told_when_the_group_is_made(torch_ranks, options, said):
    """By every rank alone, before it waits for the others."""

    def body():
        if dist.get_rank() == 1:
            with pytest.raises(braid.InvalidArgument, match=said) as error:
                make_group(None, options)
            assert isinstance(error.value, dist.DistBackendError)
        dist.barrier()

    torch_ranks(2, body)


def test_options_are_checked_unseen(torch_ranks, tmp_path):
    """No trace is written by what checks them."""

    def body():
        dist.new_group(pg_options={"cell": "64KiB", "trace": str(tmp_path / "given")})
        dist.barrier()
        return sorted(path.name for path in tmp_path.iterdir())

    assert torch_ranks(2, body, options={"BRAID_TRACE": str(tmp_path / "all")}) == [[], []]


def test_what_torch_asks_about_a_group(torch_ranks):
    def body():
        group = dist.group.WORLD
        named = dist.new_group([0, 1], group_desc="pair")
        assert (named.group_desc, named.size(), named.rank()) == ("pair", 2, dist.get_rank())
        assert dist.distributed_c10d._resolve_process_group(named.group_name) is named
        backend = group._get_backend(torch.device("cpu"))
        assert (backend.name(), backend.supports_splitting) == ("braid", False)
        assert (backend.options.backend, backend.options._timeout) == (
            "braid",
            timedelta(seconds=20),
        )
        group.set_timeout(timedelta(seconds=15))
        assert backend.options._timeout == timedelta(seconds=15)
        with pytest.raises(RuntimeError, match="meta"):
            group._get_backend(torch.device("meta"))
        before = group._get_sequence_number_for_group()
        summed(None)
        assert group._get_sequence_number_for_group() == before + 1
        with pytest.raises(braid.Unsupported, match="new_group"):
            group.split_group([0])
        with pytest.raises(braid.Unsupported, match="init_process_group"):
            group.merge_remote_group(None, 4, None)

    torch_ranks(2, body)


def test_monitored_barrier_names_who_is_missing(torch_ranks):
    def body():
        group = dist.group.WORLD
        group.monitored_barrier()
        if dist.get_rank() == 2:
            time.sleep(1.5)
            return None
        # Rank 1 has come, and gives up before rank 0 does.
        limit = timedelta(milliseconds=700 - 200 * dist.get_rank())
        with pytest.raises(braid.Timeout) as caught:
            group.monitored_barrier(limit)
        time.sleep(0.5)  # rank 0's process is the store's too
        return str(caught.value)

    texts = torch_ranks(3, body)
    assert texts[0].endswith("by ranks 2")


def test_a_monitored_barrier_after_one_that_failed_is_one_like_any(torch_ranks):
    """Rank 2 comes to its first call when the others' first has failed: it meets them in their
    second. Numbered by each rank's own calls it never met them again.
    """

    def body():
        group, rank = dist.group.WORLD, dist.get_rank()
        if rank == 2:
            time.sleep(1.2)
        else:
            with pytest.raises(braid.Timeout):
                group.monitored_barrier(timedelta(milliseconds=300))
        met = []
        for _ in range(3):
            group.monitored_barrier(timedelta(seconds=8))
            met.append(time.monotonic())
            time.sleep(0.3 * rank)  # nobody is before the last of the others
        dist.barrier()  # rank 0's process is the store's too
        return met

    met = torch_ranks(3, body)
    for k in range(2):
        assert max(times[k] for times in met) < min(times[k + 1] for times in met)


def test_who_left_a_monitored_barrier_in_any_way_is_not_in_it():
    """Another thread shut the group down, or a signal's handler raised."""

    class Left(Exception):  # noqa: N818
        pass

    class Kept:
        rank, size = 1, 2

        def __init__(self):
            self.texts = {}

        def set(self, key, text):
            self.texts[key] = text

        def wait(self, _missing, _what, check, _timeout_s):
            check()

    def leave():
        raise Left

    meeting = Kept()
    with pytest.raises(Left):
        MonitoredBarrier(meeting).pass_it(leave, 1.0)
    assert meeting.texts == {"monitored/1": ""}


def test_a_monitored_barrier_that_was_late_says_so_though_the_store_has_gone():
    """It was torch's own error of a connection, of which nobody knows what it was for."""

    class Gone:
        rank, size = 1, 2

        def set(self, _key, _text):
            pass

        def look(self, _keys):
            raise dist.DistNetworkError("Connection reset by peer")

        def wait(self, _missing, what, _check, _timeout_s):
            raise Timeout(f"waited for {what}")

    with pytest.raises(braid.Timeout, match="monitored_barrier of rank"):
        MonitoredBarrier(Gone()).pass_it(lambda: None, 1.0)


def test_who_gave_a_monitored_barrier_up_is_not_in_it(torch_ranks):
    """Ranks that are no longer there must not let the others through."""

    def body():
        group, rank = dist.group.WORLD, dist.get_rank()
        if rank == 1:
            with pytest.raises(braid.Timeout, match="monitored_barrier of rank 0"):
                group.monitored_barrier(timedelta(milliseconds=300))
            time.sleep(2)
            group.monitored_barrier()
            return dist.barrier()  # rank 0's process is the store's too
        time.sleep(1)
        with pytest.raises(braid.Timeout) as caught:
            group.monitored_barrier(timedelta(milliseconds=300))
        group.monitored_barrier()
        dist.barrier()
        return str(caught.value)

    assert torch_ranks(2, body)[0].endswith("by ranks 1")


def test_a_missing_rank_is_named(torch_ranks):
    def body():
        store = dist.group.WORLD.get_group_store()
        if dist.get_rank() == 1:
            time.sleep(2)
            return None
        dist.destroy_process_group()
        half, limit = dist.PrefixStore("half", store), timedelta(seconds=1)
        with pytest.raises(braid.Timeout) as caught:
            dist.init_process_group("braid", store=half, rank=0, world_size=2, timeout=limit)
        return str(caught.value)

    assert "on: 1" in torch_ranks(2, body)[0]


def stored_by(size):
    """All that a group leaves in torch's store, where others may read it."""
    store = dist.group.WORLD._comms.meeting._lobby._store
    invitation = json.loads(store.get("invitation"))
    place = dist.PrefixStore(invitation["place"], store)
    names = ["offer/cpu", *(f"post/{rank}" for rank in range(size))]
    return json.dumps(invitation) + "".join(place.get(name).decode() for name in names)


@pytest.mark.parametrize("has_token", [True, False])
def test_no_secret_is_in_the_store(torch_ranks, has_token):
    """Nor anything that it follows from. Without a token the ranks of one host share the user's."""

    def body():
        if dist.get_rank() == 1:
            dist.send(torch.ones(1), 0)
        else:
            dist.recv(torch.ones(1), 1)
        assert summed(None) == 1
        meeting = dist.group.WORLD._comms.meeting
        token = os.environ["BRAID_JOB_TOKEN"] if has_token else _braid.user_secret()
        secrets = [meeting.secret("cpu"), meeting.secret("post")]
        dist.barrier()
        stored = stored_by(2)
        assert meeting._salt in stored
        assert not [secret for secret in (token, token.split(":")[0], *secrets) if secret in stored]
        dist.barrier()
        return secrets

    options = {} if has_token else {"BRAID_JOB_TOKEN": ""}
    found = torch_ranks(2, body, options=options)
    assert found[0] == found[1]
    assert len(set(found[0])) == 2
    assert torch_ranks(2, body, options=options)[0] != found[0], "another job's are others"


@pytest.mark.skipif(torch.version.cuda is None, reason="skipped: needs a torch made for CUDA")
def test_device_id_of_init_process_group(ranks, monkeypatch):
    """torchrun's scripts often bind a GPU; torch then asks the backend whether it can be split."""
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)

    def body():
        dist.init_process_group("braid", device_id=torch.device("cuda", 0))
        total = summed(None)
        dist.destroy_process_group()
        return total

    assert ranks.collect(ranks.start(2, body)) == [1, 1]


def test_hosts_meet_at_an_address_that_others_reach(monkeypatch):
    from braid.torch import meeting

    for master in ("localhost", "", "no.such.host.invalid"):
        monkeypatch.setenv("MASTER_ADDR", master)
        card = meeting._own_card()
        assert meeting.free_port(card.address) > 0  # it is ours
    monkeypatch.setattr(meeting, "_ELSEWHERE", "127.0.0.1")
    assert meeting._own_card().address == "127.0.0.1"


def test_ranks_on_two_hosts_use_their_addresses(monkeypatch):
    from braid.torch import meeting
    from braid.torch.comms import Comms

    cards = [meeting.Card("a", "10.0.0.1"), meeting.Card("b", "10.0.0.2")]
    monkeypatch.setenv("BRAID_JOB_TOKEN", "of both hosts")

    def met():
        """Both ranks, in this process."""
        store, places = dist.HashStore(), []
        for card in cards:
            monkeypatch.setattr(meeting, "_own_card", lambda card=card: card)
            places.append(meeting.Meeting(store, "hosts", len(places), 2, 5.0))
        other = threading.Thread(target=places[1].gather, args=(lambda: None,))
        other.start()
        places[0].gather(lambda: None)
        other.join()
        return places

    places = met()
    assert [places[0].address_of(rank) for rank in range(2)] == ["10.0.0.1", "10.0.0.2"]
    assert places[0].secret("cpu") == places[1].secret("cpu")
    comms = Comms(places[0], {})
    with pytest.raises(braid.Unsupported, match="GPUs of several hosts"):
        comms._make("cuda")
    monkeypatch.delenv("BRAID_JOB_TOKEN")
    with pytest.raises(braid.Unavailable, match=r"set BRAID_JOB_TOKEN .* torchrun.* Slurm.* Kube"):
        met()
    cards[1] = meeting.Card("a", "10.0.0.1")
    assert [place.address_of(0) for place in met()] == ["127.0.0.1"] * 2


def test_a_rank_that_leaves_at_once_does_not_take_the_store_with_it(ranks):
    """Rank 0's process has the store; it must not end while others still read in it."""
    from braid.torch.lobby import Lobby

    def body():
        at_once = Lobby.poll

        def late(self):
            time.sleep(0.7)
            return at_once(self)

        if os.environ["RANK"] == "1":
            Lobby.poll = late
        dist.init_process_group("braid", timeout=timedelta(seconds=20))
        dist.destroy_process_group()

    ranks.collect(ranks.start(2, body))
