"""The prose test: every number with a unit in the text of a chapter is bound to what the chapter computes.

python tools/prose.py [FILES]     name every number that is not bound; default: chapters and PAGES

A number is bound by one of
(a) the text output of a cell that is not tagged nbval-ignore-output and whose source lacks its digits, or a
    scenario input: a literal assigned to a name (or passed by keyword) that says what it measures;
(b) claim(expression, "671 MB", label), or a text bound of claim_between(), whose value is computed;
(c) a source cited in the same sentence, with the value in facts.csv.
"""

import ast
import csv
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import notebooks
from code_values import Claim, claims, has_digits, inputs, literal_names, printed_strings
from nbformat import NotebookNode
from quantities import Quantity, canonical, quantities
from sentences import sentences
from settings import ROOT

from econ.check import parse
from econ.units import unit_size

PAGES = ("README.md", "intro.md", "questions.md")
COMPUTED = re.compile(r"<!-- computed: \w+ -->\n.*?<!-- end -->", re.S)  # written and checked by tools/tables.py
Facts = Mapping[str, set[Quantity]]

# What the name of a scenario input must say, by the dimension of the quantity that it binds.
_SAYS = {
    "B": r"bytes|memory|capacity|cache|size|hbm|(^|_)b$", "B/s": r"bandwidth|bytes_per_s", "Hz": r"hz|clock",
    "FLOP": r"flop", "FLOP/s": r"flops?_per_s|peak", "FLOP/B": r"intensity|ridge|flop_per_b",
    "s": r"(^|_)s$|seconds|time|latency", "$": r"usd|price|cost", "%": r"frac|share|percent|utilisation",
    "tokens": r"tokens|prompt|output|context|batch|length|window|seq", "tok/s": r"tok\w*_per_s",
    "B/token": r"bytes_per_token", "params": r"params", "x": r"factor|ratio|times|speedup",
    "W": r"watt|power|(^|_)w$", "J": r"joule|energy|(^|_)j$", "Wh": r"wh$|energy",
}


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What the code of one or more chapters computes and assumes, and why something nearby does not count."""

    bound: set[Quantity] = field(default_factory=set)
    inputs: set[tuple[str, Fraction]] = field(default_factory=set)
    near_misses: dict[Quantity, str] = field(default_factory=dict)

    def binds(self, quantity: Quantity) -> bool:
        """True for a quantity that is printed, claimed or assumed."""
        says = _SAYS[quantity.dimension]
        return quantity in self.bound or any(
            value == quantity.value and re.search(says, name.lower()) for name, value in self.inputs)

    def add(self, other: "Evidence") -> None:
        """Take over what another chapter shows."""
        self.bound |= other.bound
        self.inputs |= other.inputs


def output_text(cell) -> str:
    """The stored text of a cell: streams and plain text, not HTML."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def _parsed(nb) -> list[tuple[int, NotebookNode, ast.Module]]:
    """Number, cell and syntax tree of every code cell."""
    cells = enumerate(nb.cells, start=1)
    return [(i, cell, notebooks.syntax_tree(cell.source)) for i, cell in cells if cell.cell_type == "code"]


def evidence(nb) -> Evidence:
    """Everything in a chapter's code cells that can bind a number."""
    literals = literal_names([tree for *_, tree in _parsed(nb)])
    written = {quantity for *_, tree in _parsed(nb) for quantity in printed_strings(tree)}
    found = Evidence()
    for number, cell, tree in _parsed(nb):
        found.inputs.update(inputs(tree))
        for claim in claims(tree, literals):
            _add_claim(found, claim, number, output_text(cell))
        for quantity in quantities(output_text(cell).replace("$", "\\$")):
            _add_printed(found, quantity, number, cell, tree, written)
    return found


def _add_claim(found: Evidence, claim: Claim, number: int, output: str) -> None:
    for quantity in claim.bound:
        if not claim.computed:
            found.near_misses[quantity] = f"the value that cell {number} claims is a literal, not computed"
        elif not all(text in output for text in claim.texts):
            found.near_misses[quantity] = f"the claim in cell {number} is not in its stored output"
        else:
            found.bound.add(quantity)


def _add_printed(found: Evidence, quantity: Quantity, number: int, cell: NotebookNode, tree: ast.Module,
                 written: set[Quantity]) -> None:
    if notebooks.IGNORE in notebooks.tags(cell):
        reason = f"cell {number} prints it, but is tagged {notebooks.IGNORE}"
    elif has_digits(tree, quantity.digits):
        reason = f"cell {number} prints it, but its source contains the digits"
    elif quantity in written:
        reason = f"cell {number} prints it, but it stands as text in the chapter's code"
    else:
        found.bound.add(quantity)
        return
    found.near_misses.setdefault(quantity, reason)


def load_facts(path: Path = ROOT / "facts.csv") -> Facts:
    """Source key -> the quantities that facts.csv quotes from it, where the test scans their unit."""
    facts: dict[str, set[Quantity]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if unit := canonical(row["unit"].strip()):
                quantity = Quantity(digits=row["value"].strip().replace(",", ""), unit=unit)
                facts.setdefault(row["source"].strip(), set()).add(quantity)
    return facts


def is_cited(quantity: Quantity, sources: frozenset[str], facts: Facts) -> bool:
    """True where one of the sources says this value, in whatever prefix of the unit."""
    return any(fact.value == quantity.value and fact.dimension == quantity.dimension
               for source in sources for fact in facts.get(source, ()))


def unbound(text: str, found: Evidence, facts: Facts) -> Iterator[str]:
    """One line for each number of a Markdown text that nothing binds, and for each bare dollar sign."""
    for sentence in sentences(text):
        if re.search(r"(?<!\\)\$\d", sentence.text):
            yield 'a "$" before a number starts mathematics: write "\\$"'
        for quantity in quantities(sentence.text):
            if not found.binds(quantity) and not is_cited(quantity, sentence.sources, facts):
                yield f'"{quantity}" is not bound: {_reason(quantity, sentence.sources, found)}'


def _reason(quantity: Quantity, sources: frozenset[str], found: Evidence) -> str:
    if quantity in found.near_misses:
        return found.near_misses[quantity]
    if sources:
        return f"facts.csv has no such value from {', '.join(sorted(sources))}"
    return "no output prints it, no claim() states it, the sentence cites no source"


def chapter_problems(nb, facts: Facts) -> list[str]:
    """Every unbound number of a chapter, and every claim whose number is no longer in the text."""
    found, problems, in_text = evidence(nb), [], set()
    for i, cell in enumerate(nb.cells, start=1):
        if cell.cell_type == "markdown":
            problems += [f"cell {i}: {line}" for line in unbound(cell.source, found, facts)]
            in_text |= {quantity for s in sentences(cell.source) for quantity in quantities(s.text)}
    for i, claim in _claims(nb):
        missing = [quantity for quantity in claim.bound if quantity not in in_text]
        if claim.name == "claim" and missing:
            problems.append(f'cell {i}: claims "{missing[0]}", which the text does not say')
    return problems


def _claims(nb) -> list[tuple[int, Claim]]:
    literals = literal_names([tree for *_, tree in _parsed(nb)])
    return [(i, claim) for i, _, tree in _parsed(nb) for claim in claims(tree, literals)]


def contradictions(books: Mapping[str, object]) -> list[str]:
    """Labels that are claimed with two values which no rounding reconciles."""
    first: dict[str, tuple[str, str]] = {}
    problems = []
    for name, nb in books.items():
        for i, claim in _claims(nb):
            if claim.name == "claim" and claim.label and claim.texts[0]:
                here = (claim.texts[0], f"{name}: cell {i}")
                there = first.setdefault(claim.label, here)
                if not _reconcile(there[0], here[0]):
                    problems.append(f'"{claim.label}" is {" in ".join(there)} and {" in ".join(here)}')
    return problems


def _reconcile(one: str, other: str) -> bool:
    """True where some value rounds to both texts."""
    (a, a_half), (b, b_half) = _interval(one), _interval(other)
    return abs(a - b) < a_half + b_half or a == b


def _interval(text: str) -> tuple[Fraction, Fraction]:
    number, unit = parse(text)
    half = Fraction(10) ** int(number.as_tuple().exponent) / 2
    return Fraction(number) * unit_size(unit), half * unit_size(unit)


def page_problems(path: Path, books: Mapping[str, object], facts: Facts) -> list[str]:
    """Every number of a Markdown page that no chapter computes and no source says."""
    found = Evidence()
    for nb in books.values():
        found.add(evidence(nb))
    text = path.read_text(encoding="utf-8")
    return list(unbound(COMPUTED.sub("", text), found, facts))


def main(argv: list[str]) -> int:
    """Print every problem; exit 1 if there is one."""
    facts = load_facts()
    books = {f"chapters/{path.name}": notebooks.read(path) for path in notebooks.chapters()}
    paths = [Path(name) for name in argv] or [*notebooks.chapters(), *(ROOT / page for page in PAGES)]
    problems = contradictions(books)
    for path in paths:
        lines = (chapter_problems(notebooks.read(path), facts) if path.suffix == ".ipynb"
                 else page_problems(path, books, facts))
        problems += [f"{path}: {line}" for line in lines]
    print("\n".join(problems) or "Every number in the text is bound.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
