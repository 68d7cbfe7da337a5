"""Memory whose address is used in a loop must be named in it or after it.

Numba gives an array back after the last use of its name, whoever still has its address: what then overwrites
it shows as a crash, seldom and somewhere else.
"""

import ast
from pathlib import Path

import pytest

import softcarry.cpu

FILES = sorted(Path(softcarry.cpu.__file__).parent.glob("*.py"))
MAKERS = {"empty", "zeros", "full", "ones"}


def given_back_too_soon(tree):
    """Names of arrays, made in a compiled function, whose address outlives the last use of the name."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or "njit" not in ast.unparse(
            ast.Module([ast.Expr(decorator) for decorator in function.decorator_list], [])
        ):
            continue
        nodes = list(ast.walk(function))
        loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
        inner = {id(node) for loop in loops for node in ast.walk(loop) if node is not loop}
        outermost = [loop.lineno for loop in loops if id(loop) not in inner]
        for node in nodes:
            made = (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Attribute)
                and node.value.func.attr in MAKERS
                and isinstance(node.targets[0], ast.Name)
            )
            if not made:
                continue
            name = node.targets[0].id
            uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and n is not node.targets[0]]
            addressed = any(
                isinstance(n, ast.Attribute) and n.attr == "ctypes" and getattr(n.value, "id", "") == name
                for n in nodes
            )
            if addressed and max(use.lineno for use in uses) < max(outermost, default=0):
                yield f"{function.name}: {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_memory_outlives_the_last_loop(path):
    assert not list(given_back_too_soon(ast.parse(path.read_text())))


BAD = """
@njit(cache=True)
def kernel(counter):
    memory = np.empty(8)
    place = memory.ctypes.data
    while claim(counter) < 3:
        store(place)
"""


def test_the_fault_is_seen():
    assert list(given_back_too_soon(ast.parse(BAD))) == ["kernel: memory"]
    assert not list(given_back_too_soon(ast.parse(BAD + "    keep(memory)\n")))
