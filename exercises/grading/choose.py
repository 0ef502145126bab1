"""Prepare what kernels may read, and choose the first mechanism whose probe finds nothing open."""

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ipykernel

from grading.probe import start_time
from grading.sandbox import HERE, MECHANISMS, NEEDS, Limits, Sandbox

ROOT = HERE.parents[1]
PROBE_S = 30


def prepare(stage: Path) -> None:
    """Fill a new folder with what every kernel reads: econ, compiled, and caches that are slow to build.

    Also makes stage/secret, which no kernel may read: the probe tries to.
    """
    stage.chmod(0o711)
    course = stage / "course"
    shutil.copytree(ROOT / "econ", course / "econ", ignore=shutil.ignore_patterns("__pycache__"))
    (course / "work").mkdir()
    (course / "skeleton" / "matplotlib").mkdir(parents=True)
    fonts = {**os.environ, "MPLCONFIGDIR": str(course / "skeleton" / "matplotlib")}
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], env=fonts, capture_output=True)
    compileall.compile_dir(course / "econ", quiet=2)
    for path in (course, *course.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    secret = stage / "secret"
    secret.mkdir(mode=0o700)
    (secret / "reference").write_text("secret")


def choose(stage: Path, secret: Sequence[Path], limits: Limits, threads: int,
           wanted: Sequence[str] = MECHANISMS) -> Sandbox:
    """The first of the wanted mechanisms that works and protects; the last resort is `none`, without protection.

    A mechanism protects when its probe can read none of the files at or below the `secret` paths.
    """
    refused: list[str] = []
    for mechanism in wanted:
        why = missing(mechanism)
        sandbox = Sandbox(mechanism=mechanism, stage=stage, limits=limits, threads=threads)
        if not why:
            sandbox, why = probed(sandbox, secret)
        if not why and (sandbox.protected or mechanism == "none"):
            return replace(sandbox, refused=tuple(refused))
        hint = " (try chmod -R go-rwx on sources, solutions and submissions)" * (mechanism == "user" and not why)
        refused.append(f"{mechanism}: {why or 'leaves open ' + '; '.join(sandbox.open)}{hint}")
    raise ValueError("no sandbox: " + " | ".join(refused))


def missing(mechanism: str) -> str:
    """What a mechanism lacks on this machine, as far as can be told without trying; empty if nothing."""
    root = os.geteuid() == 0
    if mechanism in ("namespaces", "user") and not root:
        return "only root can change the user"
    if mechanism == "namespaces" and not (shutil.which("unshare") and shutil.which("setpriv")):
        return "unshare and setpriv (util-linux) are not installed"
    if mechanism == "bubblewrap":
        return "bwrap is not installed" if not shutil.which("bwrap") else "root needs none" * root
    return ""


def probed(sandbox: Sandbox, secret: Sequence[Path]) -> tuple[Sandbox, str]:
    """The sandbox with what its probe found open, or why it cannot be entered."""
    folder = sandbox.stage / f"probe-{sandbox.mechanism}"
    folder.mkdir(mode=0o711)
    seen = {"secret": [str(path.absolute()) for path in (sandbox.stage / "secret", *secret)], "process": os.getpid(),
            "started": start_time(os.getpid()), "packages": [os.path.dirname(ipykernel.__file__)]}
    code = (HERE / "probe.py").read_text(encoding="utf-8")
    command = sandbox.command(0, folder, "-c", code, json.dumps(seen))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return sandbox, f"the probe took more than {PROBE_S} s"
    except ValueError:
        return sandbox, (done.stderr.strip().splitlines() or ["the probe printed nothing"])[-1]
    return replace(sandbox, open=tuple(text for text, key in NEEDS.items() if found[key])), ""


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
