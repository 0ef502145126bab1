"""Markdown drafts of notebooks, for the commands `new` and `draft` of tools/notebooks.py."""

import re

import nbformat

CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```[ \t]*$\n?", re.M | re.S)

OPTION = re.compile(r"(?m)^:(\w+):[ \t]*(.*?)[ \t]*$")  # tags, and for exercises part, points, name, hint


def cells_of(text: str) -> list:
    """The cells of a draft, in order."""
    cells, end = [], 0
    for fence in CODE_CELL.finditer(text):
        cells += _text_cells(text[end:fence.start()])
        cells.append(_code_cell(fence[1], fence[2]))
        end = fence.end()
    return cells + _text_cells(text[end:])


def _text_cells(text: str) -> list:
    parts = (part.strip("\n") for part in re.split(r"(?m)^\+\+\+[ \t]*$", text))
    return [nbformat.v4.new_markdown_cell(part) for part in parts if part.strip()]


def _code_cell(options: str, source: str):
    values = dict(OPTION.findall(options))
    names = [name.strip(" \"'") for name in values.pop("tags", "").strip("[]").split(",") if name.strip()]
    metadata: dict = {"tags": names} if names else {}
    return nbformat.v4.new_code_cell(source.rstrip("\n"), metadata=metadata | ({"econ": values} if values else {}))


def text_of(cells: list) -> str:
    """The draft of some cells, outputs left out: the inverse of `cells_of`."""
    parts: list[str] = []
    for before, cell in zip([None, *cells], cells, strict=False):
        if cell.cell_type == "code":
            names = cell.metadata.get("tags", [])
            head = f":tags: [{', '.join(names)}]\n" if names else ""
            kept = {key: value for key, value in cell.metadata.get("econ", {}).items() if key != "exercise"}
            head += "".join(f":{key}: {value}\n" for key, value in kept.items())
            parts.append(f"```{{code-cell}}\n{head}{cell.source}\n```")
        else:
            split = before is not None and before.cell_type == "markdown"
            parts.append("+++\n" * split + cell.source)
    return "\n".join(parts) + "\n"
