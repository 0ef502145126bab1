"""Tables of Markdown, for the tools that write pages."""


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are aligned left, the others right."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"
