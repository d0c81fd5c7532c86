"""What torch does not promise and we use: it is there, and does what it is used for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

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


def test_each_member_has_the_block_of_every_other(tmp_path):
    def block(rank):
        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        everything = torch.zeros(4)
        private.gather_blocks(group, everything, torch.full((2,), rank + 1.0)).wait()
        return everything.tolist()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(block, range(2))) == [[1.0, 1.0, 2.0, 2.0]] * 2


def test_what_needs_a_gpu_is_there():
    assert hasattr(torch.UntypedStorage, "_share_cuda_")
    assert hasattr(torch.UntypedStorage, "_new_shared_cuda")
    for name in ("_start_coalescing", "_end_coalescing"):
        assert hasattr(dist.ProcessGroupGloo, name)  # as every backend
