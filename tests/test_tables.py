"""The README's table and the pages of accelerators and models are what the package computes now."""

import importlib.util
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools" / "tables.py"


def load_tool():
    spec = importlib.util.spec_from_file_location("tables", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_page_is_current():
    assert load_tool().main(["--check"]) == 0


def test_a_stale_number_is_noticed(tmp_path, monkeypatch):
    tool = load_tool()
    for page in ("README.md", "for_students.md", "for_teachers.md", "peers.md", "accelerators.md", "models.md"):
        text = (TOOL.parent.parent / page).read_text(encoding="utf-8")
        (tmp_path / page).write_text(text.replace("989", "1979").replace("70.6 B", "70.0 B"), encoding="utf-8")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main(["--check"]) == 1


def test_the_readme_shows_what_a_hand_count_gives():
    row = next(line for line in load_tool().answers().splitlines() if line.startswith("| llama-3.3-70b"))
    assert "141 GB" in row and "328 kB" in row and "72.3 ms" in row and "10.4 ms" in row
