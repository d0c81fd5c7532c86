"""Functions of a script that are looked at where they are called: with its training loop, or with what that needs."""

from __future__ import annotations

import ast

from sublet.cli.work.script.reading import Script, is_method

__all__ = ["count_of", "function_of", "makes", "shared_names", "statement_of", "trains"]


def function_of(script: Script) -> tuple[ast.FunctionDef, ast.Call] | None:
    """With a loop in which a step is made, and called in another loop, once; or with all epochs, and given what."""
    for function in (each for each in script.tree.body if isinstance(each, ast.FunctionDef)):
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and trains(node)]
        inner = [loop for loop in loops if not any(other is not loop and other in ast.walk(loop) for other in loops)]
        calls = [
            node
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name
        ]
        if len(calls) != 1 or script.scope_of(calls[0]) is function:
            continue
        if not inner and makes(script, function) and _is_given_once(script, calls[0]):
            return function, calls[0]
        looped = isinstance(script.parents[statement_of(script, calls[0])], ast.For)
        if looped and not loops and trains(function):
            return function, calls[0]
        if len(inner) != 1:
            continue
        if looped and inner[0] in function.body:
            return function, calls[0]
        above = script.parents[inner[0]]
        asks = count_of(function.args) or shared_names(function)
        if asks and not looped and isinstance(above, ast.For) and above in function.body:
            return function, calls[0]
    return None


def makes(script: Script, function: ast.FunctionDef) -> bool:
    """Whether loaders or optimizers are made in it, and returned at its end."""
    made = [script.full_name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    ours = any(full.startswith("torch.optim.") or full.rpartition(".")[2] == "DataLoader" for full in made)
    return ours and isinstance(function.body[-1], ast.Return)


def _is_given_once(script: Script, call: ast.Call) -> bool:
    """Whether what it returns gets names, and not in a loop."""
    looped = any(isinstance(each, ast.For | ast.While) for each in script.above(call))
    return isinstance(statement_of(script, call), ast.Assign) and not looped


def trains(node: ast.AST) -> bool:
    """Whether a step is made in it."""
    return all(any(is_method(each, word) for each in ast.walk(node)) for word in ("backward", "step"))


def shared_names(function: ast.FunctionDef) -> list[ast.Global]:
    """Names that are those of the file; each line of them by itself."""
    return [each for each in function.body if isinstance(each, ast.Global)]


def count_of(args: ast.arguments) -> int:
    """How many there are."""
    return len(args.posonlyargs) + len(args.args) + len(args.kwonlyargs)


def statement_of(script: Script, node: ast.AST) -> ast.stmt:
    """That it is in."""
    return next(each for each in script.above(node) if isinstance(each, ast.stmt))
