"""Optimizer state in ranges trains as one process does, through any worlds and deaths (oracles E5 and E6)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublet.domain.shards import ranges_for  # noqa: E402
from sublet.train.link.following import Broken  # noqa: E402
from sublet.train.shards.meeting import NOTHING, Gone, Shards  # noqa: E402
from sublet.train.shards.moments import Moments  # noqa: E402
from sublet.train.state.state import broadcast  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

BATCH, FEATURES = 12, 5
STEP = ("before sum", "summed", "updated", "gathering", "finished")
POINTS = (*STEP, "meeting", "late", "even", "moving", "moved", "met")


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()


def adam(model):
    """Two groups, of which one has weight decay."""
    weights, biases = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.05, amsgrad=True)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.1)


def bare(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model, step, samples):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(BATCH, 3, generator=generator, dtype=torch.float64)
    return ((model(x[samples]) - y[samples]) ** 2).mean(1).sum() / BATCH


def plainly(steps, make):
    model = network()
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, range(BATCH)).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]), optimizer.state_dict()


class Died(BaseException):
    pass


class Worker:
    """The training of one worker in a thread; `faults` are (point, step, dies or misses the answer)."""

    def __init__(self, name, make=adam, faults=()):
        self.name, self.faults, self.dead = name, list(faults), False
        self.model = network()
        if name != "a":  # only what the first was built with counts
            with torch.no_grad():
                for each in self.model.parameters():
                    each.add_(0.1)
        self.optimizer = make(self.model)
        self.steps, self.carries, self.flats = 0, name == "a", [torch.zeros(0)]
        self.shards = Shards(Moments(self.optimizer, self.model.parameters()), self, self.at)
        self.samples = {}

    def at(self, point):
        for fault in self.faults:
            if fault[:2] == (point, self.steps):
                self.faults.remove(fault)
                self.dead = fault[2] == "dies"
                raise Died if self.dead else Broken("pretended: the answer was lost")

    # ---- as `Run` says

    @property
    def applied(self):
        return self.steps if self.carries else NOTHING

    def attach(self):
        """Gradients lie in one flat piece of memory, which is summed."""
        count = sum(each.numel() for each in self.model.parameters())
        if len(self.flats[0]) != count:
            self.flats = [torch.zeros(count, dtype=torch.float64)]
        at = 0
        for each in self.model.parameters():
            each.grad = self.flats[0][at : at + each.numel()].view(each.shape)
            at += each.numel()
        self.shards.moments.see_gradients()

    def update_late(self, mesh, speaker, *, late):
        if late or not len(self.flats[0]):
            self.attach()
        for each in self.flats:
            mesh.broadcast(each, speaker)
        if late:
            self.optimizer.step()

    def finish(self):
        self.flats[0].zero_()
        self.steps += 1

    def tell(self, mesh, speaker):
        ours = None
        if mesh.rank == speaker:
            ours = {"model": self.model.state_dict(), "steps": self.steps, "groups": self.shards.moments.groups()}
        return broadcast(mesh, speaker, ours)

    def take(self, tree):
        self.model.load_state_dict(tree["model"])
        self.shards.moments.load_state_dict(tree["groups"])
        self.steps, self.carries = tree["steps"], True

    # ---- its life

    def live(self, mesh, count, until):
        """One generation: meets, and trains until a step."""
        try:
            self.shards.meet(mesh, count)
            self.attach()
            while self.steps < until:
                self.step(mesh)
        except (Died, Broken, Gone) as error:
            mesh.hang_up()
            return type(error).__name__
        return "done"

    def step(self, mesh):
        self.flats[0].zero_()
        samples = range(mesh.rank * BATCH // mesh.world, (mesh.rank + 1) * BATCH // mesh.world)
        if samples:
            loss_of(self.model, self.steps, samples).backward()
        self.at("before sum")
        mesh.sum(self.flats[0], range(mesh.world))
        self.samples[self.steps] = samples
        self.at("summed")
        self.optimizer.step()
        self.shards.gather(mesh)
        self.finish()
        self.at("finished")


def generation(workers, until, keep=2):
    """All of these as a group, by their order; what became of each."""
    threads = Threads()
    meshes = ThreadsMesh.all_of(threads, len(workers))
    count = ranges_for(len(workers), keep)
    lives = {
        worker.name: lambda worker=worker, mesh=mesh: worker.live(mesh, count, until)
        for worker, mesh in zip(workers, meshes, strict=True)
    }
    found = threads.run(lives)
    assert all(isinstance(each, str) for each in found.values()), found
    return found


def part(workers, stays):
    """Members of a group hand over before some of them leave."""
    threads = Threads()
    meshes = ThreadsMesh.all_of(threads, len(workers))
    told = threads.run(
        {
            worker.name: lambda worker=worker, mesh=mesh: worker.shards.hand_over(
                mesh, stays=worker.name in stays, saves=not stays
            )
            for worker, mesh in zip(workers, meshes, strict=True)
        }
    )
    assert set(told.values()) == {None}, told


def assert_as_plain(workers, steps, make=adam):
    weights, state = plainly(steps, make)
    for worker in workers:
        assert worker.steps == steps
        found = torch.cat([each.detach().flatten() for each in worker.model.parameters()])
        assert torch.allclose(found, weights, rtol=1e-12, atol=1e-13), worker.name
        assert torch.equal(found, torch.cat([each.detach().flatten() for each in workers[0].model.parameters()]))
    return state


names = iter(f"w{number}" for number in range(10**9))


@pytest.mark.parametrize(("make", "keep"), [(adam, 1), (adam, 2), (momentum, 2), (bare, 1)])
@settings(max_examples=examples(24), deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_any_sequence_of_worlds_is_one_process_within_rounding(make, keep, worlds):
    workers, steps = [Worker("a", make)], 0
    for world in worlds:
        if world < len(workers):
            part(workers, {each.name for each in workers[-world:]})
            workers = workers[-world:]
        workers += [Worker(next(names), make) for _ in range(world - len(workers))]
        steps += 2
        assert set(generation(workers, steps, keep).values()) == {"done"}
        assert_as_plain(workers, steps, make)


def memory_of(worker):
    """Where its moments lie, each piece of memory once: by address, what it has room for and what of it is used."""
    room, used = {}, {}
    for state in worker.optimizer.state.values():
        for each in state.values():
            if each.dim():
                address = each.untyped_storage().data_ptr()
                room[address], used[address] = each.untyped_storage().nbytes(), used.get(address, 0) + each.nbytes
    return room, used


@pytest.mark.parametrize("keep", [1, 2])
def test_through_any_change_a_worker_keeps_the_memory_of_its_range_and_no_more(keep):
    workers = [Worker("a"), *(Worker(f"b{n}") for n in range(4))]
    for steps, world in enumerate((5, 2, 4, 3, 1, 5), start=1):
        if world < len(workers):
            part(workers, {each.name for each in workers[:world]})
            workers = workers[:world]
        workers += [Worker(next(names)) for _ in range(world - len(workers))]
        assert set(generation(workers, steps, keep).values()) == {"done"}
        for worker in workers:
            room, used = memory_of(worker)
            assert sum(room.values()) <= 1.02 * sum(used.values()), (world, worker.name)
            low, high = worker.shards._ranges.of(workers.index(worker))
            assert sum(used.values()) == 3 * 8 * (high - low), "three moments of 8 bytes"


def test_what_a_worker_has_stays_where_it_is_when_its_range_grows():
    workers = [Worker("a"), Worker("b")]
    assert set(generation(workers, 3, 1).values()) == {"done"}
    before = set(memory_of(workers[1])[0])  # of a piece of the first parameter, and of three whole ones
    part(workers, {"b"})
    assert set(generation(workers[1:], 4, 1).values()) == {"done"}
    assert len(before) == 4 * 3
    assert len(before & set(memory_of(workers[1])[0])) >= 3 * 3
    assert_as_plain(workers[1:], 4)


@pytest.mark.parametrize("how", ["dies", "misses"])
@pytest.mark.parametrize(
    ("world", "point"),
    [(world, point) for world in (2, 4, 5) for point in STEP if world > 2 or point not in ("updated", "gathering")],
)
def test_a_worker_that_dies_at_any_point_of_a_step_costs_nothing(world, point, how):
    for place in range(world):
        workers = [Worker("a"), *(Worker(f"b{n}") for n in range(world - 1))]
        workers[place].faults = [(point, 4 if point == "finished" else 3, how)]
        found = generation(workers, 6)
        assert found.pop(workers[place].name) == ("Died" if how == "dies" else "Broken")
        assert set(found.values()) == {"Broken"}
        left = [each for each in workers if not each.dead]
        assert len(left) == world - (how == "dies")
        left.append(Worker("new"))
        assert set(generation(left, 8).values()) == {"done"}, (place, found)
        assert_as_plain(left, 8)


@pytest.mark.parametrize("point", ["meeting", "even", "moving", "moved", "met"])
def test_a_worker_that_dies_at_any_point_of_a_meeting_costs_nothing(point):
    for place in range(5):
        workers = [Worker("a"), *(Worker(f"b{n}") for n in range(3))]
        assert set(generation(workers, 3).values()) == {"done"}
        newcomer = Worker("new")
        met = [*workers, newcomer]
        met[place].faults = [(point, 0 if met[place] is newcomer and point in ("meeting", "even") else 3, "dies")]
        found = generation(met, 5)
        assert found[met[place].name] == "Died", found
        left = [each for each in met if not each.dead]
        assert set(generation(left, 6).values()) == {"done"}
        assert_as_plain(left, 6)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_random_deaths_and_lost_answers_cost_nothing_as_long_as_each_range_has_a_holder(data):
    workers, steps = [Worker("a"), *(Worker(next(names)) for _ in range(data.draw(st.integers(0, 5))))], 0
    for _ in range(data.draw(st.integers(1, 4))):
        steps += 3
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(workers))
            point, how = data.draw(st.sampled_from(POINTS)), data.draw(st.sampled_from(["dies", "misses"]))
            victim.faults = [(point, data.draw(st.integers(max(0, steps - 4), steps)), how)]
        for worker in workers:  # some miss the answer of the same step, and lack the sum of it
            if data.draw(st.integers(0, 3)) == 0:
                worker.faults.append(("summed", steps - 2, "misses"))
        for _ in range(8):
            found = generation(workers, steps)
            workers = [each for each in workers if not each.dead]
            if set(found.values()) == {"done"} or not workers:
                break
            assert "Gone" not in found.values(), found
            if data.draw(st.booleans()):
                workers.append(Worker(next(names)))
        if not workers or all(not each.carries for each in workers):
            return
        assert_as_plain(workers, steps)
