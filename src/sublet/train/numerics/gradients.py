"""Gradients as views into a few flat buckets that are summed over the group while backward still runs.

The loss of a micro-batch of n samples is scaled by n / B before backward, where B is the global batch. So the plain sum
over all micro-batches of all workers is the gradient of the mean over that batch, however unevenly it is split.

Control numbers travel in the last bucket, without a collective of their own. Each bucket says which of its gradients
were made: a parameter that took no part in a step, at any worker, has none for the optimizer, as in one process.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any

import torch

from sublet.train.link.peers import BROKEN, PeerGroup
from sublet.train.sessions.fitness import check_frozen

BUCKET_BYTES = 25 << 20  # as DDP's: large enough for the network, small enough to start early
AS_THEY_ARE = contextlib.nullcontext()


class Control(IntEnum):
    """Indices of the control numbers, which are summed with the gradients."""

    ORDERS = 0  # orders wait
    LOSS = 1  # the mean
    SMALL = 2  # mean squared norm of small gradients
    INVERSE = 3  # mean inverse of their samples
    CHECK = 4  # digests of facts that are equal in all ranks
    DOUBT = 5  # ranks that found a difference at the last check (`drift`)
    LEFT = 6  # ranks that have left their loop before the end of the training
    EVALUATED = 7  # ranks that evaluate, and make no step
    SAVE = 8  # a checkpoint is due that needs the state of all ranks
    COUNTED = 9  # how much the losses were summed over


class GradientBucket:
    """Neighbouring gradients of one type; `missing` of them have not come yet in this step."""

    def __init__(self, parameters: list[torch.nn.Parameter], extra: int = 0) -> None:
        self.parameters = parameters
        self.size = sum(parameter.numel() for parameter in parameters)
        like = parameters[0]
        self.flat = torch.zeros(self.size + len(parameters) + extra, dtype=like.dtype, device=like.device)
        self.gradients = self.flat[: self.size]
        self.made = set[int]()  # numbers of those that backward has added to in this step
        self.came = self.flat[self.size : self.size + len(parameters)]  # of each, by how many, after the sum
        self.missing = 0
        self.views, start = [], 0
        for parameter in parameters:
            self.views.append(_view(self.flat[start : start + parameter.numel()], parameter))
            start += parameter.numel()

    def clear(self) -> None:
        """All zero."""
        self.flat.zero_()
        self.made.clear()

    def tell_which_came(self) -> None:
        """Before the sum: which gradients were made here."""
        if len(self.made) == len(self.parameters):
            self.came.fill_(1.0)
        else:
            ours = [float(number in self.made) for number in range(len(self.parameters))]
            self.came.copy_(torch.tensor(ours, dtype=self.came.dtype))

    def without(self) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Parameters that have no gradient at any member, and their views. Not looked for if all are here."""
        trained = [each.requires_grad for each in self.parameters]
        missed = any(trains and number not in self.made for number, trains in enumerate(trained))
        came = self.came.tolist() if missed else trained
        pairs = zip(self.parameters, self.views, strict=True)
        return [pair for pair, there, trains in zip(pairs, came, trained, strict=True) if not (there and trains)]


def _view(part: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """In the memory format of the parameter, or torch copies each gradient that it adds, and warns."""
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(parameter.ndim)
    if order is not None and parameter.is_contiguous(memory_format=order):
        return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
    return part.view(parameter.shape)


class Gradients:
    """The gradients of a model, and their sum over a group."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._all = list(parameters)
        self.parameters, self._frozen = _sorted_out(self._all)
        self.buckets: list[GradientBucket] = []
        self._own_control()
        self.wait_s = 0.0  # of the last sum, after backward had ended
        self.failed: BaseException | None = None
        self._handles: list[Any] = []
        self._works: list[Any] = []
        self._group = PeerGroup()  # that of the step under way
        self._armed = False
        self._next = 0  # the bucket that is to be sent next; always in order, or the members' sums would mix
        self._before_sum: Callable[[torch.Tensor], None] | None = None
        self.seen_by: Callable[[], None] = _no_view  # called when gradients have moved

    @property
    def shared(self) -> bool:
        """Whether there is a group to sum over."""
        return bool(self.buckets)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All gradients in as few tensors as there are."""
        if self.shared:
            return [bucket.gradients for bucket in self.buckets if bucket.size]
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def attach(self) -> None:
        """From now on gradients are parts of buckets."""
        if self.shared:
            for bucket in self.buckets:
                for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                    parameter.grad = view
            self.seen_by()
            return
        groups = _split(self.parameters)
        roomy = groups[-1][0].dtype in (torch.float32, torch.float64)  # others cannot hold the control numbers
        for group in groups:
            self.buckets.append(GradientBucket(group, len(Control) if roomy and group is groups[-1] else 0))
        if roomy:
            last = self.buckets[-1]
            self.control = last.flat[last.size + len(last.parameters) :]
        else:
            alone = GradientBucket([torch.nn.Parameter(torch.empty(0, device=groups[-1][0].device))], len(Control))
            alone.parameters, alone.views, alone.came = [], [], alone.flat[:0]
            self.buckets.append(alone)
            self.control = alone.flat[1:]
        self.slots = list(self.control)
        for bucket in self.buckets:
            for number, (parameter, view) in enumerate(zip(bucket.parameters, bucket.views, strict=True)):
                parameter.grad = view
                hook, trained = self._hook(bucket, number), parameter.requires_grad
                parameter.requires_grad_()  # torch gives no hook to one that was frozen since; it may be thawed again
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]  # torch gives it no type
                parameter.requires_grad_(trained)
        self.seen_by()

    def detach(self) -> None:
        """Back to plain PyTorch."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.buckets = [], []
        self._own_control()
        self.clear()

    def clear(self) -> None:
        """No gradient."""
        if self.shared:
            for bucket in self.buckets:
                bucket.clear()
        else:
            self.control.zero_()
            self.drop()

    def drop(self) -> None:
        """Set the gradients of a process alone to None, where the control numbers are zero."""
        for parameter in self.parameters:
            parameter.grad = None

    def refit(self) -> bool:
        """Between two steps: to what is trained now; False if that is the same as before."""
        trained, frozen = _sorted_out(self._all)
        if len(trained) == len(self.parameters) and all(map(operator.is_, trained, self.parameters)):
            return False
        shared = self.shared
        self.detach()
        self.parameters, self._frozen = trained, frozen
        if shared:
            self.attach()
        return True

    def check_frozen(self) -> None:
        """Raise if a frozen parameter is trained now: its gradient would be neither cleared nor summed."""
        if self._frozen:
            check_frozen(self._frozen)

    def arm(self, group: PeerGroup, before_sum: Callable[[torch.Tensor], None] | None = None) -> None:
        """The next backward is the last of the step: buckets are summed over the group as they fill up.

        `before_sum` sees the gradients of each bucket just before.
        """
        self._group, self._armed, self._next, self._before_sum = group, True, 0, before_sum
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def sum(self, group: PeerGroup) -> None:
        """Send what is left and wait; raises one of BROKEN."""
        self._armed = False
        while self._next < len(self.buckets):
            self._send()
        started_s = time.perf_counter()
        self._settle(group)
        self.wait_s = time.perf_counter() - started_s

    def as_they_came(self) -> contextlib.AbstractContextManager[None]:
        """For an update after the sum: parameters without a gradient at any member, or frozen by now, have none.

        A zero would move them by their moments. In one process torch gives them none.
        """
        return self._without_zeros() if self.buckets else AS_THEY_ARE

    @contextlib.contextmanager
    def _without_zeros(self) -> Iterator[None]:
        without = [each for bucket in self.buckets for each in bucket.without()]
        for parameter, _ in without:
            parameter.grad = None
        if without:
            self.seen_by()
        try:
            yield
        finally:
            for parameter, view in without:
                parameter.grad = view
            if without:
                self.seen_by()

    def divide(self, share: float, *, known: bool) -> int:
        """After the sum: turn gradients and loss into those of the mean over all counts; of no counts into zero.

        `share` was in the sum. Returns how often the count can be halved, if that is to be `known`: that waits for the
        device.
        """
        counted = self.slots[Control.COUNTED].clamp(min=1.0)
        for tensor in (self.slots[Control.LOSS], *self.tensors):
            tensor.div_(counted * share)
        return int(counted).bit_length() - 1 if known else 0

    def give_up(self, group: PeerGroup) -> None:
        """Drop the step: end what is under way, so that nothing writes into the buckets any more."""
        self._armed = False
        for work in self._works:
            group.hang_up()
            with contextlib.suppress(*BROKEN):
                group.wait(work)
        group.rest()
        self._works, self.failed = [], None
        if group.stuck:
            self.detach()  # and leave the buckets behind, in case it writes into them after all
        self.clear()

    def _own_control(self) -> None:
        self.control = torch.zeros(len(Control), device=self._all[0].device if self._all else None)
        self.slots = list(self.control)

    def _hook(self, bucket: GradientBucket, number: int) -> Callable[[torch.Tensor], None]:
        view, made = bucket.views[number], bucket.made

        def arrived(parameter: torch.Tensor) -> None:
            made.add(number)
            if parameter.grad is not view:  # it was set to None: earlier sums are in the view
                if parameter.grad is not None:
                    view.add_(parameter.grad)
                parameter.grad = view
            if self._armed:
                bucket.missing -= 1
                # The last bucket waits for `sum`: the control numbers are not in it yet.
                while self._next < len(self.buckets) - 1 and not self.buckets[self._next].missing:
                    self._send()

        return arrived

    def _send(self) -> None:
        """Start the sum of the next bucket; a failure is kept for `_settle`, because backward must not see it."""
        bucket = self.buckets[self._next]
        self._next += 1
        if self.failed is not None:
            return
        bucket.tell_which_came()
        if self._before_sum is not None and bucket.size:
            self._before_sum(bucket.gradients)
        try:
            self._works.append(self._group.begin_sum(bucket.flat))
        except BROKEN as error:
            self.failed = error

    def _settle(self, group: PeerGroup) -> None:
        if self.failed is not None:
            raise RuntimeError(f"the group is gone: {self.failed}") from self.failed
        group.wait_for_step(self._works)
        self._works = []


class Readings:
    """Control numbers of the last step that is known to be over: at once on a CPU, one step later on a GPU.

    On a GPU they are copied to the host while the next step is under way. All members look at the same one at the
    same boundary, so they still agree; they only learn of an order one step later.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self.numbers = [0.0] * len(Control)
        self._heard: float | None = None  # the loss of the step under way
        self._loss: torch.Tensor | None = torch.zeros((), device=device)
        self._number, self._dtype = 0.0, torch.float32  # of the last loss, until it is asked for as a tensor
        self._under_way: tuple[torch.Tensor, torch.cuda.Event] | None = None
        self._hosts = [torch.zeros(len(Control), pin_memory=True) for _ in range(2)] if self._gpu else []

    @property
    def loss(self) -> torch.Tensor:
        """The loss of the last step, over the global batch, where it was computed."""
        if self._loss is None:
            self._loss = torch.tensor(self._number, dtype=self._dtype)
        return self._loss

    def hear(self, loss: torch.Tensor, control: torch.Tensor) -> bool:
        """Take the loss of a step that one process makes at once: whether it needs no sum, and so no tensors.

        Each kind of torch call costs more than it seems: once a step, it is no longer in the caches.
        """
        if self._gpu or loss.dtype != control.dtype or loss.device != control.device:
            return False
        self._heard = loss.item() + 0.0  # as of a sum that begins with 0.0
        return True

    def take(self, control: torch.Tensor, loss: torch.Tensor) -> None:
        """After a step; `loss` is the number of it."""
        if self._heard is not None:
            self.numbers = [0.0] * len(self.numbers)
            self.numbers[Control.LOSS] = self._number = self._heard
            self._heard, self._loss, self._dtype = None, None, control.dtype
            return
        self._loss = loss.clone()
        if not self._gpu:
            self.numbers = control.tolist()
            return
        before = self._under_way
        host = self._hosts[0] if before is None or before[0] is self._hosts[1] else self._hosts[1]
        host.copy_(control, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no type
        event.record()
        self._under_way = (host, event)
        if before is not None:
            before[1].synchronize()
            self.numbers = before[0].tolist()

    def forget(self) -> None:
        """The group has changed: what is under way was said in another one."""
        self._under_way = self._heard = None
        self.numbers = [0.0] * len(self.numbers)


def _sorted_out(parameters: Iterable[torch.nn.Parameter]) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Trained parameters, and frozen ones."""
    kinds: tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]] = [], []
    for parameter in parameters:
        kinds[not parameter.requires_grad].append(parameter)
    return kinds


def _split(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Buckets in the order in which backward is likely to fill them: from the last parameter to the first."""
    groups: list[list[torch.nn.Parameter]] = []
    open_of: dict[object, int] = {}  # type and device -> the group that takes more of them
    room: dict[int, int] = {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        index = open_of.get(kind)
        if index is None or room[index] <= 0:
            index = open_of[kind] = len(groups)
            groups.append([])
            room[index] = BUCKET_BYTES
        groups[index].append(parameter)
        room[index] -= parameter.numel() * parameter.element_size()
    return groups


def _no_view() -> None:
    """The default of `seen_by`."""
