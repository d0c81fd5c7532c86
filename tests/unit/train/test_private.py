"""What torch does not promise and we use: it is there, and does what it is used for."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from sublet.train import private


def test_a_tensor_counts_how_often_it_was_written_to():
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    before = private.times_written(weight.grad)
    assert private.times_written(weight.grad) == before  # to be looked at is no write
    weight.sum().backward()
    assert private.times_written(weight.grad) == before + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch imports for it
def test_a_module_says_whether_it_was_compiled_where_it_is():
    module = torch.nn.Linear(1, 1)
    assert not private.is_compiled(module)
    module.compile()
    assert private.is_compiled(module)


def test_a_sequence_of_schedulers_tells_its_parts_and_a_plain_one_has_none():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
    chain = torch.optim.lr_scheduler.ChainedScheduler(parts)
    row = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
    assert [list(private.parts_of(each)) for each in (chain, row, parts[0])] == [parts, parts, []]


def test_many_tensors_are_copied_at_once_and_none_is_no_error():
    there, here = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.full((3,), 2.0)]
    private.copy_all(there, here)
    assert [each.tolist() for each in there] == [[1.0, 1.0], [2.0, 2.0, 2.0]]
    private.copy_all([], [])


def test_a_dataset_is_told_what_we_say_for_as_long_as_we_say_it():
    info = object()
    with private.answered_for(info):
        assert get_worker_info() is info
        with private.answered_for(None):
            assert get_worker_info() is None
        assert get_worker_info() is info
    assert get_worker_info() is None


def test_what_a_dataset_is_told_ends_with_an_error():
    with pytest.raises(KeyError), private.answered_for(object()):
        dict[str, str]()["none"]
    assert get_worker_info() is None


def test_groups_are_counted_anew(tmp_path):
    """A group that a newcomer joins has the name that it has there."""

    def name():
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        found = dist.group.WORLD.group_name
        group = dist.new_group([0])
        dist.destroy_process_group()
        return found, group.group_name

    first = name()
    dist.distributed_c10d._world.group_count = 7  # torch clears it itself where nothing went wrong
    assert name() != first
    dist.distributed_c10d._world.group_count = 7
    private.count_groups_anew()
    assert name() == first


def test_what_needs_a_gpu_is_there():
    assert hasattr(torch.UntypedStorage, "_share_cuda_")
    assert hasattr(torch.UntypedStorage, "_new_shared_cuda")
    assert hasattr(dist.ProcessGroup, "_get_backend")
