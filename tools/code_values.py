"""What a chapter's code says about its numbers: literals, scenario inputs, claims, digits in a source."""

import ast
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from fractions import Fraction

from notebooks import call_name
from quantities import Quantity, quantities

from econ import units
from econ.check import NUMBER

_WRAPPERS = {"int", "float", "round", "abs", "min", "max", "sum", "range", "zip", "enumerate", "Fraction",
             "Decimal"}
_SIGNATURES = {"claim": ("value", "text", "label"), "claim_between": ("value", "lo", "hi", "label")}
_NUMBER = re.compile(rf"{NUMBER}(?:e[+-]?\d+)?")
_OPERATORS = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
              ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a**b}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A call of claim() or claim_between(): what it binds, and whether its value is computed."""

    name: str
    texts: tuple[str, ...]
    label: str
    computed: bool

    @property
    def bound(self) -> list[Quantity]:
        """The quantities in the texts."""
        return [quantity for text in self.texts for quantity in quantities(text.replace("$", "\\$"))]


def claims(tree: ast.Module, literals: Set[str]) -> list[Claim]:
    """The claims of one cell; a text or a label that is not a plain string stays empty."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and call_name(node) in _SIGNATURES:
            names = _SIGNATURES[call_name(node)]
            given = dict(zip(names, node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
            texts = [_string(given.get(name)) for name in names[1:]]
            computed = "value" in given and not is_literal(given["value"], literals)
            found.append(Claim(name=call_name(node), texts=tuple(texts[:-1]), label=texts[-1],
                               computed=computed))
    return found


def _string(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Every name and the expression that it is bound to, by =, :=, `for` and keyword arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
            yield from _pairs(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            yield from _pairs(node.target, node)  # type: ignore[arg-type]  # computed, whatever its value
        elif isinstance(node, ast.For | ast.comprehension):
            yield from _pairs(node.target, node.iter)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        same = len(parts) == len(target.elts)
        for inner, part in zip(target.elts, parts if same else [value] * len(target.elts), strict=True):
            yield from _pairs(inner, part)


def literal_names(trees: list[ast.Module]) -> set[str]:
    """Names that a chapter binds only to literals, to arithmetic of literals or to one another."""
    bound: dict[str, list[ast.expr]] = {}
    for name, value in (pair for tree in trees for pair in assignments(tree)):
        bound.setdefault(name, []).append(value)
    names: set[str] = set()
    while more := _literal_through(bound, names) - names:
        names |= more
    return names


def _literal_through(bound: dict[str, list[ast.expr]], names: set[str]) -> set[str]:
    return {name for name, values in bound.items() if all(is_literal(value, names) for value in values)}


def is_literal(node: ast.AST, names: Set[str] = frozenset()) -> bool:
    """True for a constant, a name of `names`, an element of a literal, and arithmetic of constants.

    Arithmetic on a name is a computation: that is how a formula worked by hand starts from its inputs.
    """
    if isinstance(node, ast.Name):
        return node.id in names or _unit_constant(node) is not None
    if isinstance(node, ast.NamedExpr):
        return is_literal(node.value, names)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return is_literal(node.value, names) or _unit_constant(node) is not None
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and is_literal(node.func.value, names):
            return True   # a method of a literal
        return call_name(node) in _WRAPPERS and all(is_literal(argument, names) for argument in node.args)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(is_literal(element, names) for element in node.elts)
    if isinstance(node, ast.AugAssign):
        return False
    return all(is_literal(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _unit_constant(node: ast.AST) -> int | None:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    value = getattr(units, name, None) if name.isupper() else None
    return value if isinstance(value, int) else None


def inputs(tree: ast.Module) -> Iterator[tuple[str, Fraction]]:
    """Scenario inputs of a cell: names of assignments and keyword arguments, with their numbers."""
    keywords = [(n.arg, n.value) for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg]
    for name, value in [*assignments(tree), *keywords]:
        yield from ((name, number) for number in numbers(value))


def numbers(node: ast.AST) -> list[Fraction]:
    """The numbers of a literal: one for a constant or arithmetic of constants, several for a list."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return [Fraction(repr(node.value))]
    if isinstance(node, ast.Name | ast.Attribute):
        return [Fraction(value)] if (value := _unit_constant(node)) else []
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [-number for number in numbers(node.operand)]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        pairs = [(a, b) for a in numbers(node.left) for b in numbers(node.right)]
        return [Fraction(_OPERATORS[type(node.op)](a, b)) for a, b in pairs[:1]]
    if isinstance(node, ast.Tuple | ast.List):
        return [number for element in node.elts for number in numbers(element)]
    return []


def _constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Every constant of a tree except those in format specifications such as the 3 of {x:.3f}."""
    if isinstance(node, ast.Constant):
        yield node
    children = [node.value] if isinstance(node, ast.FormattedValue) else ast.iter_child_nodes(node)
    for child in children:
        yield from _constants(child)


def has_digits(tree: ast.Module, digits: str) -> bool:
    """True where a source contains the digits of a printed number, wherever its point or exponent stands."""
    texts = [str(constant.value) for constant in _constants(tree)]
    return any(_same_digits(found, digits) for text in texts for found in _NUMBER.findall(text))


def _same_digits(one: str, other: str) -> bool:
    one, other = one.replace(",", ""), other.replace(",", "")
    significant = [re.sub(r"e.*|\D", "", text).strip("0") for text in (one, other)]
    return one == other or significant[0] == significant[1] and len(significant[0]) > 1


def printed_strings(tree: ast.Module) -> set[Quantity]:
    """Quantities that stand as text in a source, outside the arguments of claims."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    spared = {id(inner) for node in calls if call_name(node) in _SIGNATURES for inner in ast.walk(node)}
    texts = [c.value for c in _constants(tree) if isinstance(c.value, str) and id(c) not in spared]
    return {quantity for text in texts for quantity in quantities(text)}
