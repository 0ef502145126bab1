"""Write everything that depends on book.toml: values in _config.yml and the first code cell of every chapter.

python tools/settings.py            rewrite _config.yml and the chapters' first code cells
python tools/settings.py --check    say what is out of date, change nothing, exit 1 if anything is
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "OWNER"
sys.path.insert(0, str(ROOT))   # the other tools import this module first and econ after it

BOOTSTRAP = '''\
# Find this book's package: in a clone or on Binder by walking up; in Colab install the edition's tag.
# Colab has been simulated and a GPU's tensors faked; no chapter has been run on a GPU yet.
import importlib.util
import subprocess
import sys
from pathlib import Path

REPOSITORY, EDITION = "{repository}", "{edition}"
home = next((p for p in (Path.cwd(), *Path.cwd().parents) if (p / "econ" / "units.py").is_file()), None)
if home:
    sys.path.insert(0, str(home))
elif importlib.util.find_spec("econ") is None:
    if REPOSITORY.startswith("OWNER/"):
        raise SystemExit("book.toml still says OWNER: set `repository` to this book's GitHub owner/name.")
    source = f"git+https://github.com/{{REPOSITORY}}@{{EDITION}}"
    if subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", source]).returncode:
        raise SystemExit(f"{{source}} was not installed: does that tag exist, and is the network on?")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of book.toml."""

    title: str
    author: str
    repository: str
    branch: str
    edition: str
    data_date: str
    site_url: str

    @property
    def published(self) -> bool:
        """True once `repository` names a real repository."""
        return not self.repository.startswith(PLACEHOLDER + "/")

    @property
    def ref(self) -> str:
        """What Colab opens and its first cell installs: one tag for both, or the branch before there is one."""
        return self.edition or self.branch


def load(path: Path = ROOT / "book.toml") -> Settings:
    """Read book.toml; a missing or unknown key is a ValueError that names it."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    wrong = set(Settings.__dataclass_fields__) ^ set(values)
    if wrong:
        raise ValueError(f"{path.name}: missing or unknown key: {', '.join(sorted(wrong))}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", values["repository"]):
        raise ValueError(f"{path.name}: repository = {values['repository']!r} is not OWNER/NAME")
    return Settings(**{key: str(value) for key, value in values.items()})


def bootstrap_source(settings: Settings | None = None) -> str:
    """The source of every chapter's first code cell."""
    settings = settings or load()
    return BOOTSTRAP.format(repository=settings.repository, edition=settings.ref).rstrip("\n")


def config_values(settings: Settings) -> dict[str, str]:
    """Key in _config.yml -> value; without a repository the buttons that need one are off."""
    on = "true" if settings.published else "false"
    return {"title": f'"{settings.title}"', "author": f'"{settings.author}"',
            "url": f'"https://github.com/{settings.repository}"' if settings.published else '""',
            "branch": f'"{settings.ref}"',
            "colab_url": '"https://colab.research.google.com"' if settings.published else '""',
            "use_repository_button": on, "use_issues_button": on, "ogp_site_url": f'"{settings.site_url}"'}


def render_config(text: str, settings: Settings) -> str:
    """_config.yml with the values of book.toml; each key must stand there exactly once."""
    for key, value in config_values(settings).items():
        line = value.replace("\\", r"\\")
        text, n = re.subn(rf"(?m)^( *{key}:) .*$", rf"\1 {line}", text)
        if n != 1:
            raise ValueError(f"_config.yml: the key {key!r} stands there {n} times, not once")
    return text


def main(argv: list[str]) -> int:
    """Rewrite what is out of date, or with --check only name it."""
    import notebooks

    check, path = argv == ["--check"], ROOT / "_config.yml"
    old = path.read_text(encoding="utf-8")
    new = render_config(old, load())
    chapters = [p for p in notebooks.chapters() if notebooks.bootstrap_problem(notebooks.read(p))]
    stale = [path] * (new != old) + chapters
    for item in stale:
        print(f"{item.relative_to(ROOT)}: {'differs from' if check else 'rewritten from'} book.toml")
    if not check:
        path.write_text(new, encoding="utf-8")
        for chapter in chapters:
            notebooks.write(notebooks.set_bootstrap(notebooks.read(chapter)), chapter)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
