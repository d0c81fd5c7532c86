"""Dice in a loop, at several workers: which are thrown for each sample, and which for all of a batch.

    noise = torch.randn_like(x)          # for each: its size goes by the batch; so do draws in a loop over samples
    if random.random() < 0.5: ...        # for all

Torch's dice are each worker's own, so they are for samples: what is chosen by one of them for all of a batch is another
choice in each worker. Python's and numpy's, and generators of the script's own, are the same in all as long as all draw
equally often (sublet.train.choices), so they are for choices: drawn for each sample they go apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from sublet.cli.work.script.batchwise import NO_SIZES, ByBatch
from sublet.cli.work.script.calls import SAMPLED, draws, seeds, tells
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.functions import statement_of
from sublet.cli.work.script.grades import WHY, Grade
from sublet.cli.work.script.kinds import Function, Kind, within
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["ALIKE", "OWN", "chosen_by_torch", "drawn_by_samples", "refuse_dice"]

OWN = {
    "why": "torch's dice are each worker's own, and what is chosen by this one is another in each",
    "do": "random.random(), np.random.rand(6) < p, np.random.permutation(6): the same in all workers; or draw for each "
    "sample: torch.rand(len(x)), a transform of the dataset",
}
APART = {
    "why": "torch's dice are each worker's own, and what lasts (weights, or what is kept) would be another in each",
    "do": "numpy's, which are the same in all workers: torch.from_numpy(np.random.randn(*p.shape)).to(p)",
}
ALIKE = {
    "why": "this is drawn for each sample, or by what samples are, and these dice are the same in all workers only "
    "while all draw equally often: a worker has a part of the batch, so what is chosen next may be another in each",
    "do": "torch's, which are each worker's own: torch.rand(len(x)) < p, torch.randn_like(x); or draw in the dataset",
}
MAKES = ("Random", "RandomState", "Generator", "SeedSequence", "getstate", "get_state", "setstate", "set_state")
WORDS = frozenset((*NO_SIZES, "low", "high", "replacement", "p", "training", "inplace", "tau", "hard", "num_samples"))
BY_CHANCE = ("Random", "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix")
MOVES = ("to", "cuda", "cpu", "float", "double", "half", "long", "view", "reshape", "unsqueeze")


def refuse_dice(effects: Effects, around: ast.For, inner: ast.AST, kept: Iterable[str] = ()) -> None:
    """CannotConvert if dice of each worker's own choose for all of a batch, or those of all are thrown for samples."""
    if line := _moved_by_torch(effects, around, inner, kept):
        raise CannotConvert(APART["why"], line, APART["do"])
    for find, words in ((chosen_by_torch, OWN), (drawn_by_samples, ALIKE)):
        if line := min(find(effects, around, inner), default=0):
            raise CannotConvert(words["why"], line, words["do"])
    by = ByBatch(effects, inner, _told(effects, around))
    for call in (each for piece in by.names for each in by.calls(piece) if _mixes(effects.script, by, each, piece)):
        why, do = WHY[Grade.PAIRED]
        raise CannotConvert(why, call.lineno, do)


def _moved_by_torch(effects: Effects, around: ast.For, inner: ast.AST, kept: Iterable[str]) -> int:
    """The line between two epochs at which a die of each worker's own bears on what is the same in all."""
    scope, told = effects.script.scope_of(around), _told(effects, around)
    lasting = {*effects.state, *kept}
    for statement in (each for each in around.body if inner is not around and each is not inner):
        if id(statement) in told or not effects.done_by(statement, scope).writes.keys() & lasting:
            continue
        for piece in (statement, *effects.reached(statement)):
            for node in ast.walk(piece):
                if isinstance(node, ast.Call) and _is_own(effects, node) and _bears(effects, node, lasting):
                    return node.lineno
    return 0


def _bears(effects: Effects, call: ast.Call, lasting: set[str]) -> bool:
    """Whether the statement of a draw, or one that goes by what it gives, changes something that lasts."""
    scope, own = effects.script.scope_of(call), statement_of(effects.script, call)
    names = set(effects.done_by(own, scope).binds)
    beside = (node for node in ast.walk(effects.script.parents[own]) if isinstance(node, ast.stmt) and node is not own)
    goes_by = [own, *(each for each in beside if names & effects.done_by(each, scope).reads.keys())]
    return any(_changes(effects, each, lasting, scope) for each in goes_by)


def _changes(effects: Effects, statement: ast.stmt, lasting: set[str], scope: Scope) -> bool:
    """Whether it surely changes one of them: by a name, by a part, or in place; a method that is called may not."""
    done = effects.done_by(statement, scope)
    if done.binds.keys() & lasting:
        return True
    parts = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute | ast.Subscript)]
    stored = any(isinstance(node.ctx, ast.Store) for node in parts)
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    attrs = [func.attr for func in calls if isinstance(func, ast.Attribute)]
    placed = any(name.endswith("_") or name == "load_state_dict" for name in attrs)
    return (stored or placed or isinstance(statement, ast.AugAssign)) and bool(done.writes.keys() & lasting)


def _mixes(script: Script, by: ByBatch, call: ast.Call, piece: ast.AST) -> bool:
    """Whether it is an order of the samples of a batch, by which each meets another: `torch.randperm(len(x))`."""
    return script.full_name(call.func) == "torch.randperm" and any(by.goes_by(each, piece) for each in call.args)


def chosen_by_torch(effects: Effects, around: ast.AST, inner: ast.AST) -> Iterator[int]:
    """Lines that throw a die for a condition of the loop, or for all samples of a batch."""
    script, told = effects.script, _told(effects, around)
    by = ByBatch(effects, inner, told)
    for node in within(around):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and id(node) not in told:
            turn = inner in by.names and inner in script.above(node)
            if not (turn and by.is_repeated(node, inner)):
                yield from _thrown(effects, node.test, script.scope_of(node))
    for piece in by.names:
        for call in by.calls(piece):
            if not _is_own(effects, call):
                continue
            for_samples = any(by.goes_by(each, piece) for each in _sizes(script, call))
            if not (for_samples or by.is_repeated(call, piece) or _is_input(effects, by, call, piece)):
                yield call.lineno


def drawn_by_samples(effects: Effects, around: ast.AST, inner: ast.AST) -> Iterator[int]:
    """Lines that draw from dice which are the same in all, as often as a worker has samples, or by what they are."""
    by = ByBatch(effects, inner, _told(effects, around))
    for piece in by.names:
        for call in by.calls(piece):
            if _is_alike(effects, call):
                given = [*call.args, *(word.value for word in call.keywords)]
                sized = any(by.goes_by(each, piece) for each in given)
                if sized or by.is_repeated(call, piece) or by.is_chosen(call, piece):
                    yield call.lineno


def _told(effects: Effects, around: ast.AST) -> set[int]:
    """Nodes of statements that only tell somebody something."""
    statements = [each for each in ast.walk(around) if isinstance(each, ast.stmt) and _only_tells(effects, each)]
    return {id(node) for each in statements for node in ast.walk(each)}


def _only_tells(effects: Effects, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    printed = isinstance(call, ast.Call) and tells(effects.script.full_name(call.func))
    return printed or effects.only_tells(statement)


def _thrown(effects: Effects, test: ast.expr, scope: Scope) -> Iterator[int]:
    """In a condition, in what its names are made from in a turn, and in functions that it asks."""
    names = effects.rests_on(names_in(test), scope)
    where = effects.loop if effects.loop is not None else scope
    values = [test, *(value for name in names for value in effects.given_in(where, name))]
    for value in values:
        for node in (each for piece in (value, *effects.reached(value)) for each in ast.walk(piece)):
            if isinstance(node, ast.Call) and _is_own(effects, node):
                yield node.lineno


def _is_own(effects: Effects, call: ast.Call) -> bool:
    """Whether it draws from torch's generator of the process."""
    if any(word.arg == "generator" for word in call.keywords) or _is_alike(effects, call):
        return False
    full = effects.script.full_name(call.func)
    drawn = full.startswith("torch.") and draws(full) and not seeds(full)
    return drawn or _is_transform(effects, call) or effects.draws_into(call, effects.script.scope_of(call))


def _is_transform(effects: Effects, call: ast.Call) -> bool:
    """Whether all that it is given is changed alike, by chance: `RandomCrop(28)(x)`; a sequence of such has a name."""
    func, scope = call.func, effects.script.scope_of(call)
    made = [func] if isinstance(func, ast.Call) else effects.given(func.id, scope) if isinstance(func, ast.Name) else []
    names = [
        effects.script.full_name(node.func) for each in made for node in ast.walk(each) if isinstance(node, ast.Call)
    ]
    return any(
        name.startswith("torchvision.transforms.") and name.rpartition(".")[2].startswith(BY_CHANCE) for name in names
    )


def _is_alike(effects: Effects, call: ast.Call) -> bool:
    """Whether it draws from Python's or numpy's dice, or from a generator that the script has made before its loop."""
    full, scope = effects.script.full_name(call.func), effects.script.scope_of(call)
    if full.startswith(("random.", "numpy.random.")):
        return not seeds(full) and full.rpartition(".")[2] not in MAKES
    if isinstance(call.func, ast.Attribute) and effects.is_generator(call.func.value, scope):
        return not seeds(call.func.attr)
    words = [word.value for word in call.keywords if word.arg == "generator"]
    return any(effects.is_generator(each, scope) for each in words)


def _sizes(script: Script, call: ast.Call) -> list[ast.expr]:
    """What the size of a draw goes by."""
    if not isinstance(call.func, ast.Attribute) and not script.full_name(call.func).startswith("torch."):
        return []
    words = [word.value for word in call.keywords if word.arg not in WORDS]
    last = script.full_name(call.func).rpartition(".")[2]
    if last == "randint":
        return words or call.args[-1:]
    if isinstance(call.func, ast.Attribute) and not script.full_name(call.func).startswith("torch."):
        return [call.func.value, *(call.args if call.func.attr in SAMPLED else []), *words]
    functional = "functional" in script.full_name(call.func)
    return [*(call.args[:1] if functional else call.args), *words]


def _is_input(effects: Effects, by: ByBatch, call: ast.Call, piece: ast.AST) -> bool:
    """Whether modules alone are given it, and nothing of the batch with it: samples that are made up, as a GAN's."""
    script, node = effects.script, _moved(effects.script, call)
    above = script.parents.get(node)
    if isinstance(above, ast.Call):
        return _is_given(effects, by, node, piece)
    name = root_of(call.func) if isinstance(above, ast.Expr) else ""
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        name = above.targets[0].id
    body = piece.body if isinstance(piece, Function) else [piece]
    uses = [each for part in body for each in ast.walk(part) if isinstance(each, ast.Name) and each.id == name]
    uses = [each for each in uses if isinstance(each.ctx, ast.Load) and each not in ast.walk(node)]
    return bool(uses) and all(_is_given(effects, by, each, piece) for each in uses)


def _moved(script: Script, node: ast.expr) -> ast.expr:
    """The draw with what is only done to all of it: `torch.randn(8, 2).to(device)`."""
    while True:
        above = script.parents.get(node)
        call = script.parents.get(above) if isinstance(above, ast.Attribute) else None
        if not isinstance(call, ast.Call) or not is_method(call, *MOVES):
            return node
        node = call


def _is_given(effects: Effects, by: ByBatch, node: ast.AST, piece: ast.AST) -> bool:
    call = effects.script.parents.get(node)
    if not isinstance(call, ast.Call) or node not in call.args:
        return False
    scope, name = effects.script.scope_of(call), root_of(call.func)
    module = isinstance(call.func, ast.Name) and effects.of(name, scope) is Kind.MODULE
    return module and not any(by.goes_by(each, piece) for each in call.args)
