"""The sandbox that a student's kernel runs in: which one this machine offers, and how it is entered.

namespaces   run by root: another user, own mounts, own processes, no network
bubblewrap   run by anyone where `bwrap` works: own mounts, own processes, no network
user         run by root in a container: another user and nothing more
none         resource limits only; the report says "unprotected"
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
MECHANISMS = ("namespaces", "bubblewrap", "user", "none")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts",
          "/etc/localtime", "/sys/devices/system/cpu")
UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork",
           "--kill-child")
KERNEL = ("-m", "ipykernel_launcher", "--HistoryManager.enabled=False", "-f")
FIRST_UID, USERS = 20_000, 40_000
NEEDS = {   # what an unprotected run leaves open
    "reading the reference or another submission from disk": "reads_grader",
    "reading the grader's memory or environment, or stopping it": "reaches_grader",
    "changing econ or an installed package for later submissions": "writes_packages",
    "using the network": "has_network",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one submission may use."""

    memory_bytes: int = 2 << 30       # all its processes together
    processes: int = 128              # threads count too
    file_bytes: int = 64 << 20        # one file
    disk_bytes: int = 256 << 20       # its folder in memory
    output_bytes: int = 1 << 20       # what all its cells print
    cell_s: int = 30
    total_s: int = 180

    def resources(self) -> dict[str, int]:
        """The limits that the operating system keeps for each process."""
        return {"RLIMIT_AS": 2 * self.memory_bytes, "RLIMIT_NPROC": self.processes, "RLIMIT_CPU": self.total_s,
                "RLIMIT_FSIZE": self.file_bytes, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A chosen mechanism, the folder `stage` it works in, and what a probe inside it found open."""

    mechanism: str
    stage: Path
    limits: Limits
    threads: int
    open: tuple[str, ...] = ()
    refused: tuple[str, ...] = field(default=())    # other mechanisms and why not

    @property
    def protected(self) -> bool:
        """True when no attack of the list reaches anything but its own submission (network apart)."""
        return not set(self.open) - {"using the network"}

    def describe(self) -> str:
        """One line for the report."""
        state = f"protected by {self.mechanism}" if self.protected else "UNPROTECTED"
        return state + (f"; open: {'; '.join(self.open)}" if self.open else "")

    def slot_uid(self, slot: int) -> int | None:
        """The user that submission `slot` runs as; None where it is the grader's own."""
        if self.mechanism not in ("namespaces", "user"):
            return None
        return FIRST_UID + (os.getpid() * 64 + slot % 64) % USERS

    def kernelspec(self, slot: int, folder: Path) -> dict[str, str]:
        """Write the kernelspec `graded` for one submission below `folder`; returns the environment that finds it.

        Creates folder/channels (the kernel's sockets) and, without own mounts, folder/course/work.
        """
        command = self.command(slot, folder)
        spec = folder / "jupyter" / "kernels" / "graded"
        spec.mkdir(parents=True)
        content = {"argv": command, "display_name": "graded", "language": "python", "interrupt_mode": "signal"}
        (spec / "kernel.json").write_text(json.dumps(content))
        return {"JUPYTER_PATH": str(folder / "jupyter")}

    def command(self, slot: int, folder: Path, *probe: str) -> list[str]:
        """The command that enters the sandbox and starts the kernel, or `probe` in its place."""
        policy = self.policy(slot, folder)
        inside = [*policy["python"], "-I", str(HERE / "inside.py"), json.dumps(policy), *probe]
        if self.mechanism == "namespaces":
            return [*UNSHARE, *inside]
        if self.mechanism == "bubblewrap":
            return [*bubblewrap(policy), *inside]
        return inside

    def policy(self, slot: int, folder: Path) -> dict:
        """Everything inside.py has to know."""
        uid, channels = self.slot_uid(slot), folder / "channels"
        channels.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_mounts = self.mechanism in ("namespaces", "bubblewrap")
        place = Path("/course") if own_mounts else folder / "course"
        work = place / "work"
        if not own_mounts:
            place.mkdir()
            place.chmod(0o755)      # Python lists a folder before it imports from it
            work.mkdir(mode=0o700)
            (place / "econ").symlink_to(self.stage / "course" / "econ")
        (folder / "root").mkdir(exist_ok=True)
        if uid is not None:
            os.chown(channels, uid, uid)
        home = work / ".home"
        return {"mechanism": self.mechanism, "uid": uid, "root": str(folder / "root"), "work": str(work),
                "channels": str(channels), "channels_inside": "/run/kernel" if own_mounts else str(channels),
                "skeleton": str((Path("/course") if own_mounts else self.stage / "course") / "skeleton"),
                "readable": readable(self.stage), "links": links(), "disk_bytes": self.limits.disk_bytes,
                "limits": self.limits.resources(), "env": environment(home, self.threads),
                "python": [sys.executable], "kernel": [*KERNEL, str(home / "connection.json")]}


def readable(stage: Path) -> dict[str, str]:
    """Outside path -> inside path of all that a kernel may read."""
    packages = {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    wanted = {*SYSTEM, sys.prefix, sys.base_prefix, *packages}
    paths = sorted(path for path in wanted if os.path.exists(path) and not os.path.islink(path))
    kept: list[str] = []
    for path in paths:
        if not any(path.startswith(parent + "/") for parent in kept):
            kept.append(path)
    program = str(HERE / "inside.py")
    return {path: path for path in kept} | {str(stage / "course"): "/course", program: program}


def links() -> dict[str, str]:
    """The links of the system's own layout, such as /bin -> usr/bin."""
    return {path: os.readlink(path) for path in SYSTEM if path.count("/") == 1 and os.path.islink(path)}


def environment(home: Path, threads: int) -> dict[str, str]:
    """All that the kernel knows of its surroundings."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(home), "USER": "student",
            "LOGNAME": "student", "LANG": "C.UTF-8", "MPLCONFIGDIR": str(home / "matplotlib"), "MPLBACKEND": "agg",
            "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}


def bubblewrap(policy: dict) -> list[str]:
    """The command line of bwrap for a policy."""
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for link, target in policy["links"].items():
        command += ["--symlink", target, link]
    for source, target in policy["readable"].items():
        command += ["--ro-bind", source, target]
    return [*command, "--bind", policy["channels"], policy["channels_inside"], "--tmpfs", policy["work"], "--"]
