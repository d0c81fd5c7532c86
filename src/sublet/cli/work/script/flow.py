"""What a training loop carries from one turn to the next, and where it is when the process that had it is gone.

A process that takes over runs the script up to its loop, is given what the session keeps, runs the lines before the
batches of the epoch that training is in once more, and goes on with the next batch. So whatever the loop changes, and
asks for later, is known to the session (model, optimizer, schedulers), or is kept by it (`s.keep()` for values,
`extra_state=` for an object with a `state_dict`), or is lost. Nothing that bears on the result may be lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.bars import is_counted
from sublet.cli.work.script.calls import seeds
from sublet.cli.work.script.counting import counts_before_steps
from sublet.cli.work.script.course import Around, Course, Line, exposed
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.freezing import freezes_by
from sublet.cli.work.script.held import held_module
from sublet.cli.work.script.keeping import cannot_keep, goes_on
from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in
from sublet.cli.work.script.remembering import is_inner
from sublet.cli.work.script.settings import dataset_of, is_number_set, is_setting
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Carried", "Flow", "Roles"]

BY_HAND = "or keep the loop as it is, and save below $SUBLET_CHECKPOINT_DIR: docs/guides/what-a-script-must-do.md"

INSTEAD = (
    "random.random(), or np.random.random(), whose dice the session has; or draw for the next turn after s.step(), "
    "where s.updated"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Names of what training comes to, which the session knows."""

    models: frozenset[str] = frozenset()
    optimizers: frozenset[str] = frozenset()
    schedulers: frozenset[str] = frozenset()
    scalers: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()  # sessions, and what they keep
    loaders: frozenset[str] = frozenset()

    @property
    def state(self) -> frozenset[str]:
        """All that lasts."""
        return self.models | self.optimizers | self.schedulers | self.scalers | self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A name whose value, or object, one turn leaves to the next."""

    name: str
    line: int
    how: str  # "kept", "extra" for an object with a state, "part" for one whose module is kept, "lost"
    matters: bool  # it bears on the result
    part: str = ""  # of the object, that is kept in its place
    why: str = ""
    do: str = ""

    def refusal(self) -> CannotConvert:
        """Why it cannot be."""
        return CannotConvert(self.why, self.line, self.do)


@dataclass(slots=True)
class Flow:
    """Of one loop; `inner` is the one over batches, and `around` that over epochs, or the same."""

    effects: Effects
    around: Around
    inner: Around
    roles: Roles
    own_loop: bool = False  # steps of its own, with checkpoints
    loader: str = ""  # that is handed to the session
    dataset: str = field(init=False)  # of it, if a setting of it may change between epochs
    course: Course = field(init=False)
    relevant: set[str] = field(init=False)
    counter: str = field(init=False)  # the name that counts batches
    counts: dict[str, tuple[ast.AugAssign, int]] = field(init=False)  # of turns, before their steps; and the first
    carried: tuple[Carried, ...] = field(init=False)  # all that is; what the session knows is none of it

    def __post_init__(self) -> None:
        self.course = Course.of(self.effects, self.around, self.inner)
        scope = self.effects.script.scope_of(self.around)
        self.dataset = dataset_of(self.effects, self.loader, scope) if self.loader else ""
        self.relevant = self.course.relevant(self.roles.state | {self.dataset} - {""})
        self.counter = _counter(self.effects.script, self.inner)
        self.counts = {} if self.own_loop else counts_before_steps(self.effects, self.around, self.inner)
        self.carried = tuple(self._all_carried())

    @property
    def counter_matters(self) -> bool:
        """Whether anything but a print goes by the number of a batch."""
        return self.counter in self.relevant

    def _all_carried(self) -> Iterator[Carried]:
        for name, line in sorted(self._left_over().items(), key=lambda each: (each[1], each[0])):
            yield self._judged(name, line)

    def _left_over(self) -> dict[str, int]:
        """Names that are written in a turn and asked for by a later one, or after the loop."""
        effects, scope = self.effects, self.effects.script.scope_of(self.around)
        at = self.around.body.index(self.inner) if self.inner is not self.around else 0
        before = self.around.body[:at] if self.inner is not self.around else []
        after = self.around.body[at + 1 :] if self.inner is not self.around else []
        later = {name for line in self.course.later for name in line.speaks_of | line.done.changes.keys()}
        asked_before, bound_before = exposed(effects, before, scope)
        asked_turn, bound_turn = exposed(effects, self.inner.body, scope)
        asked_after, bound_after = exposed(effects, after, scope)
        bound_turn |= names_in(self.inner.target) if isinstance(self.inner, ast.For) else set()
        asked_turn -= names_in(self.inner.target) if isinstance(self.inner, ast.For) else set()
        counted = names_in(self.around.target) if isinstance(self.around, ast.For) else set()
        by_epoch = asked_before | ((asked_turn | ((asked_after | (later - bound_after)) - bound_turn)) - bound_before)
        by_batch = asked_turn | ((asked_after | ((by_epoch | later) - bound_after)) - bound_turn)
        found: dict[str, int] = {}
        for lines, asked in (
            (self.course.turns, by_batch),
            (self.course.after, by_epoch),
            (self.course.before, by_epoch),
        ):
            for line in lines:
                for name, at_line in line.done.writes.items():
                    if name in asked and name not in counted:
                        found.setdefault(name, at_line)
        known = self.roles.state | self.roles.loaders | {self.counter, self.dataset, *self.counts}
        return {name: line for name, line in found.items() if name not in known and not self._is_part(name)}

    def _is_part(self, name: str) -> bool:
        """Whether it stands for a part of what the session knows, and for nothing else, in every turn."""
        scope = self.effects.script.scope_of(self.around)
        if is_inner(self.effects.script, name, scope):
            return True  # what it stands for is looked at itself
        others = self.effects.same_as({name}, scope) - {name}
        rebound = any(name in line.done.binds for line in self.course.inside)
        own = any(self.effects.makes(value) for value in self.effects.given(name, scope))
        return bool(others) and others <= self.roles.state and not rebound and not own

    def _judged(self, name: str, line: int) -> Carried:
        effects, scope = self.effects, self.effects.script.scope_of(self.around)
        called = {other for other, value in bindings_in(scope) if name in effects.held(value)} | {name}
        matters = bool(called & self.relevant)
        own = "ck" if self.own_loop else "s"
        rebound = any(name in each.done.binds for each in self.course.inside)
        if effects.has_state(name, scope) and not rebound:
            return Carried(name=name, line=line, how="extra", matters=matters)
        if not rebound and (module := held_module(effects, name, scope)):
            return Carried(name=name, line=line, how="part", matters=matters, part=f"{name}.{module}")
        reason = cannot_keep(effects, self.around, name, self.roles.state)
        begins = self._begins_with_epoch(name) and not goes_on(effects.script, self.around, name)
        if reason is None and not begins:
            return Carried(name=name, line=line, how="kept", matters=matters)
        if reason is None or begins:
            why = f"`{name}` begins anew with each epoch: of one that is taken over amid it, a part would be lost"
            do = f"compute it after the batches of an epoch, from the model; or {own}.keep(), and begin anew at its end"
        else:
            why, do = reason
        return Carried(name=name, line=line, how="lost", matters=matters, why=why, do=f"{do}; {BY_HAND}")

    def _begins_with_epoch(self, name: str) -> bool:
        """Whether it is given a value before the batches of an epoch, whatever it was."""
        at = self.around.body.index(self.inner) if self.inner is not self.around else 0
        asked, bound = exposed(self.effects, self.around.body[:at], self.effects.script.scope_of(self.around))
        return name in bound and name not in asked

    def _sets(self, line: Line) -> bool:
        """Whether it is between the batches of two epochs, and sets something of the dataset."""
        between = any(line is each for each in (*self.course.before, *self.course.after))
        scope = self.effects.script.scope_of(self.around)
        return between and self.dataset in line.done.writes and is_setting(self.effects, line, self.dataset, scope)

    def check_given(self) -> None:
        """What the session was given stays what it is: the same objects, with the same samples."""
        effects, scope, loader = self.effects, self.effects.script.scope_of(self.around), self.loader
        makes = [value for value in effects.given(loader, scope) if isinstance(value, ast.Call)] if loader else []
        samples = {loader, *(name for made in makes for each in made.args[:1] for name in effects.held(each))} - {""}
        samples |= {self.dataset} - {""}
        bound = {name for line in self.course.inside for name in line.done.binds}
        for line in self.course.inside:
            if other := line.done.binds.keys() & (self.roles.state | {loader}):
                raise CannotConvert(
                    f"`{min(other)}` is another after this, and the session has the one that it was given",
                    line.done.binds[min(other)],
                    f"one for the whole training; {BY_HAND}",
                )
            if (changed := (line.done.changes.keys() | line.done.sets.keys()) & samples) and not self._sets(line):
                raise CannotConvert(
                    f"`{min(changed)}` changes in the loop, and workers of the session load ahead from what it was",
                    line.done.writes[min(changed)],
                    f"samples that follow from their index alone; {BY_HAND}",
                )
            for name in sorted((line.done.reads.keys() | line.done.writes.keys()) - bound):
                if self._is_group(name, scope):
                    raise CannotConvert(
                        f"`{name}` is a group of an optimizer as it was before the loop: with a state come others",
                        line.done.reads.get(name, self.around.lineno),
                        "optimizer.param_groups, asked for in the loop",
                    )

    def _is_group(self, name: str, scope: Scope) -> bool:
        """Whether it was taken out of an optimizer before the loop, and not copied."""
        return any(
            self.effects.held(value) & self.roles.optimizers
            and any(
                isinstance(node, ast.Attribute) and node.attr in ("param_groups", "state") for node in ast.walk(value)
            )
            for each, value in bindings_in(scope)
            if each == name and value.lineno < self.around.lineno
        )

    # ------------------------------------------------------------------------------------------- sessions

    def check_epochs(self) -> None:
        """Lines before the batches of an epoch run again where a worker takes over amid it: they may not add up."""
        varies = self.roles.state | self._written(self.course.turns)
        varies |= names_in(self.inner.target) if isinstance(self.inner, ast.For) else set()
        lasting = {each.name for each in self.carried} & self.relevant
        scope = self.effects.script.scope_of(self.around)
        counted = names_in(self.around.target) if isinstance(self.around, ast.For) else set()
        for line in self.course.before:
            done, at = line.done, getattr(line.node, "lineno", line.top.lineno)
            if (names := freezes_by(line.top)) is not None and not names & varies:
                continue  # who is trained is part of the state
            if done.draws:
                raise _again(done.draws, "random numbers are drawn, or a seed is set,", "draw them after the batches")
            if line.saves or line.jumps or line.updates:
                raise _again(at, "a step, a file or an end is made,", "put it after the batches of an epoch")
            fixed = self.roles.optimizers if done.sets else frozenset()  # a rate that follows from the epoch
            fixed |= self.roles.models if is_number_set(self.effects, line.node, scope, counted) else frozenset()
            changed = (done.changes.keys() | done.sets.keys()) & (
                self.roles.state - fixed
            ) | done.writes.keys() & lasting
            changed |= {name for name in done.changes if name in self.relevant and not self._is_new(name)}
            changed -= {self.dataset} if self._sets(line) else set()  # a setting counts once
            if changed:
                name = min(changed, key=lambda each: (each not in self.roles.state, each))
                do = f"a value that follows from the epoch, or a scheduler; or change `{name}` after the batches"
                raise _again(done.writes[name], f"`{name}` changes", do)
            if self._is_mode(line) or self._names_parts(line):
                continue
            looks = (line.speaks_of - done.sets.keys()) & varies
            if looks and (done.writes.keys() & self.relevant or (looks & self.roles.models and not _tells_of(line))):
                raise _again(at, f"`{min(looks)}` is looked at, which has changed by then,", "put it after the batches")
            varies = varies | done.binds.keys() if looks else varies - (done.binds.keys() if line.sure else set())

    def _is_new(self, name: str) -> bool:
        """Whether every epoch makes it anew before its batches."""
        return any(name in line.done.binds and line.sure for line in self.course.before)

    @staticmethod
    def _is_mode(line: Line) -> bool:
        call = line.node.value if isinstance(line.node, ast.Expr) else None
        return (
            call is not None and is_method(call, "train", "eval", "zero_grad") and isinstance(call.func.value, ast.Name)
        )

    def _names_parts(self, line: Line) -> bool:
        """`for group in optimizer.param_groups`."""
        scope, over = self.effects.script.scope_of(self.around), self.roles.optimizers
        return isinstance(line.node, ast.Assign) and any(
            self.effects.same_as({name}, scope) & over for name in line.done.binds
        )

    def check_workers(self, kept: Iterable[str]) -> None:
        """What lasts is the same in all workers: it may not come from the part of a batch that one of them has."""
        drawn = names_in(self.inner.target) - {self.counter} if isinstance(self.inner, ast.For) else set()
        lasting = self.roles.state | {name for name in kept if name in self.relevant} | {self.dataset} - {""}
        for line, own in self.course.goes_by(drawn):
            in_turn = any(line is each for each in self.course.turns)
            goes_by = line.asked & own
            if line.done.writes.keys() & lasting and not (in_turn and line.updates):
                goes_by |= line.done.reads.keys() & own
            elif not (line.jumps or line.saves):
                continue
            if goes_by := goes_by - self.roles.state:
                name = min(goes_by - line.done.writes.keys() or goes_by)
                raise CannotConvert(
                    f"`{name}` comes from a worker's own part of the batch, and decides about more than its step",
                    getattr(line.node, "lineno", line.top.lineno),
                    "s.loss is the loss over all workers, s.evaluate() that over held-out samples; " + BY_HAND,
                )

    def check_seeds(self) -> None:
        """Generators are part of the state, and other ones in each worker."""
        for each in ast.walk(self.around):
            if isinstance(each, ast.Call) and seeds(self.effects.script.full_name(each.func)):
                raise CannotConvert(
                    "a seed is set in the loop: a worker that takes over, and each of several, has numbers of its own",
                    each.lineno,
                    "seed= of the session, and no seed in the loop; " + BY_HAND,
                )

    @staticmethod
    def _written(lines: Iterable[Line]) -> set[str]:
        return {name for line in lines for name in line.done.writes}

    def after_steps(self, known: set[ast.stmt], first: int, last: int) -> list[ast.stmt]:
        """Statements of the loop over batches that change what lasts: they belong to a step that was made.

        CannotConvert if one comes before the step, which may be dropped and made again.
        """
        lasting = self.roles.state | {each.name for each in self.carried if each.how != "lost" or each.matters}
        found: list[ast.stmt] = []
        for line in self.course.turns:
            if line.top in known or line.top in found:
                continue
            done, at = line.done, getattr(line.node, "lineno", line.top.lineno)
            early = at < last
            fixed = self.roles.optimizers if early and at < first else frozenset()
            changed = (done.changes.keys() | done.binds.keys()) & lasting | done.sets.keys() & (lasting - fixed)
            if early and freezes_by(line.top) == set():
                continue  # in every turn alike: whoever makes the step again says it again
            if changed and early:
                name = min(changed)
                if self._is_generator(name):
                    why = f"`{name}` draws before the step is made: a step that is made again would draw again"
                    raise CannotConvert(why, done.writes[name], INSTEAD)
                raise CannotConvert(
                    f"`{name}` is remembered from step to step, and changes before the step is made",
                    done.writes[name],
                    "after s.step(), where s.updated: a step that is made again would count twice; or use s.steps",
                )
            if changed:
                found.append(line.top)
        for statement in found:
            self._refuse_shared(statement, lasting)
        return found

    def _is_generator(self, name: str) -> bool:
        return self.effects.is_generator(ast.Name(id=name), self.effects.script.scope_of(self.around))

    def _refuse_shared(self, statement: ast.stmt, lasting: Iterable[str]) -> None:
        """What is put under a condition may give no value to names that others ask for."""
        given = {name for line in self.course.turns if line.top is statement for name in line.done.binds} - set(lasting)
        for line in (*self.course.inside, *self.course.later):
            if line.top is not statement and (shared := given & line.speaks_of):
                raise CannotConvert(
                    f"`{min(shared)}` is given a value where something that lasts changes, and is used elsewhere",
                    statement.lineno,
                    "a statement of its own for each",
                )


def _again(line: int, what: str, do: str) -> CannotConvert:
    why = f"{what} before the batches of an epoch, which is done again where a worker takes over amid it"
    return CannotConvert(why, line, f"{do}; {BY_HAND}")


def _tells_of(line: Line) -> bool:
    """Whether a model is only spoken of, and not run."""
    return not any(isinstance(node, ast.Call) and not _is_print(node) for node in ast.walk(line.node))


def _is_print(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "print"


def _counter(script: Script, inner: Around) -> str:
    """`i` of `for i, batch in enumerate(loader)`."""
    counts = isinstance(inner, ast.For) and is_counted(script, inner)
    target = inner.target if isinstance(inner, ast.For) else None
    first = target.elts[0] if counts and isinstance(target, ast.Tuple) and target.elts else None
    return first.id if isinstance(first, ast.Name) else ""
