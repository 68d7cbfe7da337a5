"""The layers of DESIGN.md: imports point down only, and no modules import each other in a circle."""

import ast
import importlib.util
from graphlib import TopologicalSorter
from pathlib import Path

import softcarry

ROOT = Path(softcarry.__file__).parent

# From the ground up; a module may import from its own layer and those before it.
LAYERS = (
    ("softcarry.errors", "softcarry._version"),
    ("softcarry._arrays", "softcarry._host_arrays"),
    ("softcarry.cpu",),
    ("softcarry.numerics",),
    ("softcarry.carry", "softcarry.moments"),
    (
        "softcarry.rows",
        "softcarry._attention",
        "softcarry.merging",
        "softcarry._conventions",
        "softcarry.trace",
        "softcarry._trace_notes",
        "softcarry.memory_passes",
        "softcarry._counted_row",
        "softcarry._softmax_algorithms",
        "softcarry.reference",
    ),
    ("softcarry.report",),
    ("softcarry.auditing",),
    ("softcarry.benchmarks",),
    ("softcarry.cli", "softcarry.pytest_plugin", "softcarry.__main__"),
)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("softcarry", *path.relative_to(ROOT).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported_modules(path):
    """Every module of softcarry that a file imports, in functions too, but not for type checkers only."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("softcarry"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("softcarry"):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield (
                    whole
                    if importlib.util.find_spec(node.module).submodule_search_locations
                    and (importlib.util.find_spec(whole))
                    else node.module
                )


def layer(module):
    for height, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return height
    raise AssertionError(f"{module} belongs to no layer: add it to LAYERS and to DESIGN.md")


def upward_imports(height):
    return [
        f"{module} imports {target}"
        for module, path in modules()
        if module != "softcarry"
        for target in imported_modules(path)
        if target != "softcarry" and height(target) > height(module)
    ]


def test_imports_point_down_only():
    assert upward_imports(layer) == []


def test_upward_imports_would_be_seen():
    found = upward_imports(lambda module: -layer(module))
    assert "softcarry.auditing._audit imports softcarry.errors" in found


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        module: set(imported_modules(path)) - {module} for module, path in modules() if module != "softcarry"
    }
    for targets in graph.values():
        targets.discard("softcarry")
    order = list(TopologicalSorter(graph).static_order())
    assert len(order) >= len(graph)
