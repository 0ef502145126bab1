"""Every chapter and exercise in a simulated Colab: an empty folder, a new environment, this repository at its tag.

The environment sees the packages of the one that runs the tests (numpy, torch and so on, as Colab has them)
and a module `google.colab`. Git answers for github.com with a local repository. Nothing is downloaded.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import notebooks
import pytest
import settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

ROOT = settings.ROOT
NOTEBOOKS = {str(path.relative_to(ROOT)): path
             for path in [*notebooks.chapters(), *sorted((ROOT / "exercises").glob("*.ipynb"))]}
BOOK = replace(settings.load(), repository="someone/book", edition="v0.0.1")
PREINSTALLED = {"IPython", "google", "ipywidgets", "matplotlib", "numpy", "torch"}   # of what Colab has
NOT_SOURCES = shutil.ignore_patterns(".*", "_build", "build", "*.egg-info", "__pycache__")
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell, failed = InteractiveShell.instance(), {}
for name, cells in json.load(open(sys.argv[1])).items():
    shell.reset(new_session=False)
    sys.modules["__main__"].__spec__ = None   # as in a new kernel; starting a process looks at it
    results = (shell.run_cell(cell) for cell in cells)
    failed[name] = next((repr(result.error_in_exec or result.error_before_exec)
                         for result in results if not result.success), "")
print()
print(json.dumps(failed))
"""


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", "-c", "user.name=Someone", "-c", "user.email=someone@example.org", *command],
                   cwd=folder, check=True, capture_output=True)


class Colab:
    """A new environment in a new folder, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.origin = folder / "content", folder / "origin"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        self.site = next((folder / "venv").glob("lib/python*/site-packages"))
        (self.site / "preinstalled.pth").write_text(sysconfig.get_path("purelib"))
        (self.site / "google" / "colab").mkdir(parents=True)
        (self.site / "google" / "colab" / "__init__.py").touch()
        self._publish()

    def _publish(self) -> None:
        """Make a repository of the working tree, tagged as the edition."""
        shutil.copytree(ROOT, self.origin, ignore=NOT_SOURCES)
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "book"], ["tag", BOOK.edition]):
            git(self.origin, *command)

    def run(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        """Run Python in the empty folder, where github.com is the local repository and no index is reachable."""
        settled = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{self.origin.as_uri()}.insteadOf",
                   "GIT_CONFIG_VALUE_0": f"https://github.com/{BOOK.repository}", "MPLBACKEND": "Agg",
                   "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run([self.python, *command], cwd=self.home, env=inherited | settled | (env or {}),
                              text=True, capture_output=True)

    def packages(self) -> set[str]:
        """Every installed package with its version."""
        return set(self.run("-m", "pip", "list", "--format=freeze").stdout.split())

    def run_cells(self, chapters: dict[str, list[str]]) -> dict[str, str]:
        """Run some cells of each chapter, one chapter after the other; the first error of each, or ""."""
        (self.home.parent / "cells.json").write_text(json.dumps(chapters))
        done = self.run("-c", RUN, str(self.home.parent / "cells.json"))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    return Colab(tmp_path_factory.mktemp("colab"))


@pytest.fixture(scope="module")
def installed(colab):
    """The environment after all chapters ran up to their imports; what failed; packages before and after."""
    before = colab.packages()
    failed = colab.run_cells({name: up_to_imports(notebooks.read(path)) for name, path in NOTEBOOKS.items()})
    return failed, before, colab.packages()


def imports(source: str) -> list[ast.stmt]:
    nodes = ast.walk(notebooks.syntax_tree(source))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def modules(node: ast.stmt) -> list[str]:
    return [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def up_to_imports(nb) -> list[str]:
    """The first cell as published, the cells up to the first import of econ, and every other import."""
    first, *cells = [cell.source for cell in notebooks.code_cells(nb)]
    assert first == settings.bootstrap_source()
    uses = [any(name.split(".")[0] == "econ" for node in imports(cell) for name in modules(node)) for cell in cells]
    rest = [ast.unparse(node) for cell in cells for node in imports(cell)]
    return [settings.bootstrap_source(BOOK), *cells[:uses.index(True) + 1], *rest]


def test_without_a_repository_the_first_cell_says_what_to_set_in_one_line(colab):
    placeholder = replace(BOOK, repository="OWNER/llm-inference-economics")
    done = colab.run("-c", settings.bootstrap_source(placeholder))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "book.toml still says OWNER: set `repository` to this book's GitHub owner/name."]


def test_a_tag_that_does_not_exist_is_named_in_the_last_line(colab):
    done = colab.run("-c", settings.bootstrap_source(replace(BOOK, edition="v9.9.9")))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "git+https://github.com/someone/book@v9.9.9 was not installed: does that tag exist, and is the network on?")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_chapter_runs_up_to_its_imports(installed, name):
    failed, *_ = installed
    assert failed[name] == ""


def test_only_econ_is_added_and_nothing_changes_version(installed):
    _, before, after = installed
    assert any(line.startswith("numpy==") for line in before)
    assert not any(line.startswith("econ==") for line in before), "econ is installed where the tests run"
    assert before <= after and {line.split("==")[0] for line in after - before} == {"econ"}


def test_the_installed_package_is_complete(installed, colab):
    def files(package: Path) -> dict[str, bytes]:
        return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}

    assert files(colab.site / "econ") == files(colab.origin / "econ")
    where = "import econ, econ.live; print(econ.__file__, len(econ.models()), len(econ.accelerators()))"
    file, *counts = colab.run("-c", where).stdout.split()
    assert Path(file).is_relative_to(colab.site)
    assert [int(n) for n in counts] == [len(list((ROOT / "econ/data/models").glob("*.json"))),
                                        len(list((ROOT / "econ/data/accelerators").glob("*.toml")))]


@pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_a_chapter_imports_only_what_colab_has(path):
    names = {name.split(".")[0] for cell in notebooks.code_cells(notebooks.read(path))
             for node in imports(cell.source) for name in modules(node)}
    assert names <= sys.stdlib_module_names | PREINSTALLED | {"econ"}


@pytest.mark.long
@pytest.mark.parametrize("path", notebooks.chapters(), ids=lambda path: path.name)
def test_a_whole_chapter_runs(installed, colab, path):
    cells = [cell.source for cell in notebooks.code_cells(notebooks.read(path))]
    assert colab.run_cells({path.name: [settings.bootstrap_source(BOOK), *cells[1:]]}) == {path.name: ""}
