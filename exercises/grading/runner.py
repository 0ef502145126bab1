"""Run one grafted notebook in the sandbox and watch it: time, memory, processes and results."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from grading.sandbox import HERE, Sandbox

POLL_S = 0.2
RESULT_BYTES = 8 << 20
CHANNELS = {"c.json", *(f"c-ipc-{number}" for number in range(1, 6))}     # five sockets and their addresses
CHANNEL_BYTES = 1 << 16
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came back: one record a cell, in order, and why the run was stopped, if it was."""

    cells: tuple[dict, ...]
    stopped: str
    seconds: float

    def outcome(self, cell_id: str) -> str:
        """How a cell ended; "not run" when the run did not come that far."""
        return next((cell["outcome"] for cell in self.cells if cell["id"] == cell_id), "not run")


def run(sandbox: Sandbox, slot: int, notebook: str, folder: Path, total_s: float) -> Run:
    """Run a notebook's text with nbval, the kernel in the sandbox; every process of it is gone afterwards."""
    start = time.monotonic()
    trusted = folder / "trusted"
    trusted.mkdir(mode=0o700, parents=True)
    folder.chmod(0o711)
    paths = sandbox.kernelspec(slot, folder)
    read, write = os.pipe()
    settings = {"folder": str(trusted), "pipe": write, "channels": str(folder / "channels"),
                "cell_s": sandbox.limits.cell_s, "output_bytes": sandbox.limits.output_bytes}
    process = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "nbrun.py"), json.dumps(settings)], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[write], start_new_session=True, cwd=trusted,
        env={**os.environ, **paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""})
    os.close(write)
    watch = Watch(sandbox, process.pid, folder, start + total_s)
    try:
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin as entry:    # it has ended: no cell is reported
            entry.write(notebook.encode())
        text, stopped = watch.collect(read)
    finally:
        os.close(read)
        watch.end(sandbox.slot_uid(slot) if sandbox.mechanism == "user" else None)
        process.wait()
    cells = tuple(json.loads(line) for line in text.split(b"\n")[:-1])
    return Run(cells=cells, stopped=stopped, seconds=time.monotonic() - start)


class Watch:
    """All processes of one run, looked at a few times a second."""

    def __init__(self, sandbox: Sandbox, pid: int, folder: Path, deadline: float) -> None:
        self.limits, self.folder, self.deadline = sandbox.limits, folder, deadline
        self.seen: dict[int, str] = {pid: processes().get(pid, (0, "", 0))[1]}

    def collect(self, pipe: int) -> tuple[bytes, str]:
        """Read the pipe to its end or until a limit is passed; what was read, and which limit."""
        text, looked = b"", 0.0
        while True:
            if select.select([pipe], [], [], POLL_S)[0]:
                part = os.read(pipe, 1 << 16)
                text += part
                if not part:
                    return text, ""
            if time.monotonic() - looked > POLL_S:
                looked = time.monotonic()
                stopped = self.passed_limit() or "too many results" * (len(text) > RESULT_BYTES)
                if stopped:
                    return text, stopped

    def passed_limit(self) -> str:
        """Which limit the run has passed; empty for none."""
        resident = self.update()
        if time.monotonic() > self.deadline:
            return "time"
        if resident > self.limits.memory_bytes:
            return "memory"
        if size_bytes(self.folder / "course" / "work") > self.limits.disk_bytes:
            return "disk"
        channels = self.folder / "channels"
        names = set(os.listdir(channels))
        strange = names - CHANNELS or any((channels / name).is_symlink() for name in names)
        return "files among its channels" * bool(strange or size_bytes(channels) > CHANNEL_BYTES)

    def update(self) -> int:
        """Note every process that descends from the first; returns the bytes they hold together."""
        table = processes()
        self.seen = {pid: born for pid, born in self.seen.items() if pid in table and table[pid][1] == born}
        grown = True
        while grown:
            new = {pid: row[1] for pid, row in table.items() if row[0] in self.seen and pid not in self.seen}
            self.seen |= new
            grown = bool(new)
        return sum(table[pid][2] for pid in self.seen)

    def end(self, uid: int | None) -> None:
        """Kill every process noted, and of a user of its own every process."""
        for _ in range(50):
            self.update()
            left = set(self.seen) | ({pid for pid in processes() if owner(pid) == uid} if uid is not None else set())
            for pid in left:
                with_signal(pid, signal.SIGKILL)
            if not left or all(state(pid) in "ZX" for pid in left):
                return
            time.sleep(0.02)


def remove(folder: Path) -> None:
    """Remove a folder; `rm` also takes one that is too deep for Python."""
    subprocess.run(["rm", "-rf", str(folder)], capture_output=True)


def size_bytes(folder: Path) -> int:
    """Bytes on disk of all files below a folder; 0 when there is none, as where the folder is in memory."""
    total, folders = 0, [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:     # removed meanwhile
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                folders += [entry.path] if entry.is_dir(follow_symlinks=False) else []
    return total


def processes() -> dict[int, tuple[int, str, int]]:
    """Process id -> parent, start time, resident bytes, of every process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat(int(name))
            if fields:
                found[int(name)] = (int(fields[1]), fields[19], int(fields[21]) * PAGE_BYTES)
    return found


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def state(pid: int) -> str:
    """The state letter of a process; X when it is gone."""
    return (stat(pid) or ["X"])[0]


def owner(pid: int) -> int:
    """The user that a process belongs to; -1 when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def with_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
