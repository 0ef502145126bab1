"""Imports run one way, and importing econ needs the standard library alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent
ECON = ROOT / "econ"
# A module imports only from modules before it. A new module gets its place here.
ORDER = [
    "units", "errors", "arrays", "names", "keys", "rules", "precision", "hardware", "families", "schedule", "model",
    "recurrent", "layers", "quantized", "ignored", "config",
    "work", "roofline", "memory", "parallel", "profiles", "placement", "latency", "serving", "cost", "techniques",
    "market", "choose", "findings", "scan", "readers", "statlines", "llamabench", "benches", "noted", "subject",
    "accounts", "floors", "running", "pace", "reports", "widgets", "check", "exercise", "axis", "svg", "live",
    "plots", "kernels", "answers", "cli", "__main__",
]
MODULES = sorted(path for path in ECON.rglob("*.py") if path != ECON / "__init__.py")


def name(path: Path) -> str:
    """The module of econ that a file belongs to; a package counts as one."""
    return path.relative_to(ECON).parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """Absolute names of the modules that a piece of code imports."""
    package = ["econ", *path.relative_to(ECON).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[:len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ([f"{base}.{alias.name}" for alias in node.names] if base == "econ" else [base])


def on_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported: not the bodies of functions."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        statement = todo.pop()
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
            todo += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]


def test_every_module_has_its_place():
    assert {name(path) for path in MODULES} <= set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ECON)))
def test_imports_run_one_way(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_econ = {full.split(".")[1] for full in imports(tree, path) if full.startswith("econ.")} - {name(path)}
    later = [module for module in of_econ if ORDER.index(module) > ORDER.index(name(path))]
    assert not later, f"{name(path)} imports {', '.join(later)}, which comes after it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ECON)))
def test_no_third_party_import_at_module_level(path):
    statements = on_import(ast.parse(path.read_text(encoding="utf-8")))
    plain = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
    roots = {full.split(".")[0] for statement in plain for full in imports(statement, path)}
    allowed = sys.stdlib_module_names | {"econ"} | ({"torch", "numpy"} if name(path) == "kernels" else set())
    assert roots <= allowed, f"imports {', '.join(roots - allowed)} on import; import it inside a function"


def test_the_order_is_checked_on_a_wrong_import():
    """The two checks above see what they must see."""
    tree = ast.parse("from .latency import Deployment\nfrom econ import cost\ndef f():\n    import torch\n")
    assert list(imports(tree, ECON / "units.py")) == ["econ.latency", "econ.cost", "torch"]
    inner = ast.parse("from ..units import fmt")
    assert list(imports(inner, ECON / "kernels" / "llama.py")) == ["econ.units"]
    assert not any(isinstance(statement, ast.Import) for statement in on_import(tree))


def test_import_econ_loads_the_standard_library_alone():
    code = ("import sys, time; before = set(sys.modules); start = time.perf_counter(); import econ\n"
            "ms = 1e3 * (time.perf_counter() - start)\n"
            "roots = {module.split('.')[0] for module in set(sys.modules) - before}\n"
            "print(f'import econ: {ms:.0f} ms', sorted(roots - set(sys.stdlib_module_names) - {'econ'}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)
    print(done.stdout)
    assert done.stdout.strip().endswith("[]"), f"third-party modules: {done.stdout}"
