"""Markdown as a reader sees it, cut into sentences: code, addresses and markup gone, mathematics kept."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from quantities import BARE_NUMBER, UNIT_AT_END

_FENCE = re.compile(r"\s*(?P<mark>`{3,}|~{3,}|:{3,})\s*(?:\{(?P<name>[\w:-]+)\})?\s*(?P<title>.*)")
_CODE_DIRECTIVES = {"code", "code-block", "code-cell", "literalinclude", "bibliography", "toctree"}
_OPTION = re.compile(r"\s*:(?P<key>[\w-]+):(?P<value>.*)")
_END_OF_SENTENCE = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!al\.)(?<!Fig\.)(?<=[.!?])[\"')\]]*\s+")
_DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.S)
_INLINE = re.compile(r"(?<![\\$])\$(?![\s$])((?:[^$\n]|\\\$)+?)(?<![\s\\])\$(?!\d)")
_ENVIRONMENT = re.compile(r"\\begin\{[a-z]+\*?\}(.+?)\\end\{[a-z]+\*?\}", re.S)
_NEW_BLOCK = re.compile(r"\s*(?:[-*+] |\d+\. |>|#|\|)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """The plain text of a sentence, a heading or a table row, and the keys of the sources it cites."""

    text: str
    sources: frozenset[str]


def sentences(markdown: str) -> Iterator[Sentence]:
    """Every sentence, heading, table row and caption of a Markdown text, in order.

    >>> [s.text for s in sentences("# Reading `x` at 3.35 TB/s\\n\\nOne. Two, **2 GB**.")]
    ['# Reading code at 3.35 TB/s', 'One.', 'Two, 2 GB.']
    """
    for block in _blocks(_plain(_without_code(markdown)).splitlines()):
        for text in _END_OF_SENTENCE.split(block):
            keys = ",".join(re.findall(r"⟦(.*?)⟧", text)).split(",")
            yield Sentence(text=re.sub(r"\s*⟦.*?⟧", "", text).strip(),
                           sources=frozenset(key.strip() for key in keys if key))


def _without_code(markdown: str) -> str:
    """Markdown without code blocks, comments and the options of directives; titles and alt texts stay."""
    kept: list[str] = []
    stack: list[tuple[str, bool, str]] = []   # open fences: mark, whether code stands inside, what closes it
    options = False                      # the line before opened a directive or was an option
    for line in re.sub(r"<!--.*?-->", "", markdown, flags=re.S).splitlines():
        fence, option = _FENCE.fullmatch(line), _OPTION.fullmatch(line)
        if stack and line.strip() == stack[-1][0]:
            kept += [stack.pop()[2], ""]
        elif stack and stack[-1][1]:
            continue
        elif fence:
            is_code = fence["name"] in _CODE_DIRECTIVES or not fence["name"] and fence["mark"][0] != ":"
            dollars = "$$" if fence["name"] == "math" else ""
            stack.append((fence["mark"], is_code, dollars))
            kept += ["", "" if is_code else dollars + fence["title"], *([] if dollars else [""])]
        elif options and option:
            kept += [option["value"], ""] if option["key"] == "alt" else []
        elif not line.startswith("% "):
            kept.append(line)
        options = bool(fence) or options and bool(option)
    return "\n".join(kept)


def _plain(text: str) -> str:
    """Inline markup resolved: what is left is what is read; citations become ⟦keys⟧."""
    text = re.sub(r"\{(?:foot)?cite[\w:]*\}`([^`]*)`", r"⟦\1⟧", text)
    text = re.sub(r"\{math\}`([^`]*)`", lambda m: _plain_math(m[1]), text)
    text = re.sub(r"\{[\w:-]+\}`(.*?)(?:\s*<[^`]*>)?`", r"\1", text, flags=re.S)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", text, flags=re.S)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]*(?:\([^()]*\))?[^()]*\)", r"\1", text)
    text = re.sub(r"<?\bhttps?://[^\s>)]+>?", "address", text)
    text = re.sub(r"</?[A-Za-z][^>\n]*>", " ", text)
    for mathematics in (_DISPLAY, _INLINE, _ENVIRONMENT):
        text = mathematics.sub(lambda m: _plain_math(m[1]), text)
    return re.sub(r"\*|(?<!\w)_|_(?!\w)", "", text)


def _plain_math(tex: str) -> str:
    """LaTeX as text, so that numbers and units in it stand as they do in prose."""
    for pattern, plain in ((r"\{,\}", ","), (r"\\(?:,|;|:|!| |quad|qquad)|~|&|\\\\", " "), (r"\\%", "%"),
                           (r"\\(?:times|cdot)(?![a-z])", "×"),
                           (r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1 / \2"),
                           (r"\\(?:text|mathrm|textrm|mathbf|textbf|operatorname)(?![a-z])", ""),
                           (r"\^\{(-?\d+)\}", r"^\1"), (r"\\[A-Za-z]+", " "), (r"[{}]", " "),
                           (r"(?<=[A-Za-z])\s*/\s*(?=[A-Za-z])", "/")):
        tex = re.sub(pattern, plain, tex)
    return f" {tex} "


def _blocks(lines: list[str]) -> Iterator[str]:
    """Paragraphs, list items, headings and table rows, each as one line."""
    block: list[str] = []
    units: list[str] = []   # unit of each column of the table that is being read
    for line in [*lines, ""]:
        in_table = line.lstrip().startswith("|")
        if in_table:
            cells = line.strip().strip("|").split("|")
            units = units or [(UNIT_AT_END.search(cell) or [""])[0] for cell in cells]
            line = "| " + " | ".join(map(_with_unit, cells, units + [""] * len(cells)))
        else:
            units = []
        if block and (not line.strip() or _NEW_BLOCK.match(line)):
            yield " ".join(block)
            block = []
        if line.strip():
            block.append(line.strip())
        if line.lstrip().startswith("#"):
            yield " ".join(block)
            block = []


def _with_unit(cell: str, unit: str) -> str:
    """A table cell; where it is a bare number under a heading with a unit, the unit is added."""
    return f"{cell.strip()} {unit}" if unit and BARE_NUMBER.fullmatch(cell.strip()) else cell.strip()
