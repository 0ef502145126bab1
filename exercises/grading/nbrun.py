"""Run nbval on one grafted notebook in this process; run as a program by runner.py.

python nbrun.py SETTINGS < NOTEBOOK      SETTINGS is JSON: folder, pipe, channels, cell_s, output_bytes

The notebook's file is gone before the kernel starts. One line of JSON for each code cell goes to the pipe, as
soon as it is known. nbval compares; this file only tells it how to reach the kernel, and when to give up.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from queue import Empty

import nbval.kernel
import nbval.plugin
import pytest
from jupyter_client.manager import KernelManager

POLL_S = 0.5
TEXT_CHARS = 4_000


class DeadKernel(Exception):
    """The kernel's process has ended."""


class TooMuchOutput(Exception):
    """The kernel has sent more than a submission may."""


class WatchedKernel(nbval.kernel.RunningKernel):
    """A kernel whose death is noticed at once, and which may say only so much."""

    budget_bytes = 0

    def get_message(self, stream, timeout=None):
        """The next message of a channel, or Empty after `timeout` seconds."""
        end = time.monotonic() + (timeout or 0)
        while True:
            try:
                message = super().get_message(stream, timeout=min(POLL_S, max(end - time.monotonic(), 0)))
            except Empty:
                if not self.is_alive():
                    raise DeadKernel("the kernel has ended") from None
                if time.monotonic() >= end:
                    raise
                continue
            self.pay(message)
            return message

    def pay(self, message) -> None:
        """Take the size of a message off the budget; stop the kernel when nothing is left."""
        self.budget_bytes -= len(json.dumps(message.get("content", {}), default=str))
        if self.budget_bytes < 0 and self.is_alive():
            self.stop()
            raise TooMuchOutput("more output than a submission may print")


class Reporter:
    """A pytest plugin: forgets the file, and writes a line for each cell into the pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_collection_finish(self, session) -> None:
        """Every cell with its reference output is in memory now: remove the file."""
        for item in session.items:
            Path(item.fspath).unlink(missing_ok=True)

    def pytest_runtest_makereport(self, item, call) -> None:
        """Report a cell that has run, or why the kernel did not start."""
        if call.when == "call" or (call.when == "setup" and call.excinfo):
            self.write({"id": item.cell.id, "seconds": round(call.duration, 3), **self.outcome(item, call)})

    def outcome(self, item, call) -> dict:
        """How a cell ended, what it printed and the error it raised."""
        outputs = getattr(item, "test_outputs", None) or []
        printed = "".join(str(o.get("text", "")) for o in outputs if o.get("output_type") == "stream")
        error: dict = next((o for o in outputs if o.get("output_type") == "error"), {})
        alive = item.parent.kernel is not None and item.parent.kernel.is_alive()
        return {"outcome": self.kind(item, call, alive, error), "alive": alive, "text": printed[:TEXT_CHARS],
                "error": [str(error.get("ename", ""))[:100], str(error.get("evalue", ""))[:TEXT_CHARS]]}

    def kind(self, item, call, alive, error) -> str:
        """One word for how a cell ended."""
        if call.excinfo is None:
            return "passed"
        if call.when == "setup":
            return "not started"
        raised = call.excinfo.value
        if isinstance(raised, TooMuchOutput):
            return "too much output"
        if item.parent.timed_out and "Timeout" in str(raised):
            return "timeout"
        return "died" if not alive else "raised" if error else "failed"

    def write(self, record: dict) -> None:
        """One line into the pipe."""
        os.write(self.pipe, json.dumps(record).encode() + b"\n")


def main(settings: dict) -> int:
    """Run nbval on the notebook that standard input holds."""
    os.set_inheritable(settings["pipe"], False)
    path = Path(settings["folder"], "reference.ipynb")
    path.write_text(sys.stdin.read(), encoding="utf-8")
    WatchedKernel.budget_bytes = settings["output_bytes"]
    connection = str(Path(settings["channels"], "c.json"))
    nbval.plugin.RunningKernel = WatchedKernel
    nbval.kernel.KernelManager = partial(KernelManager, transport="ipc", connection_file=connection)
    nbval.plugin.IPyNbCell.format_output_compare = lambda *arguments: None   # a long difference takes long
    options = ["--nbval", "--nbval-kernel-name=graded", f"--nbval-cell-timeout={settings['cell_s']}",
               "--nbval-kernel-startup-timeout=60", f"--rootdir={settings['folder']}", "-c", os.devnull,
               "-p", "no:cacheprovider", "-p", "nbval.plugin", "--tb=no", "-q", str(path)]
    return int(pytest.main(options, plugins=[Reporter(settings["pipe"])]))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # the grader decides when to stop
    sys.exit(main(json.loads(sys.argv[1])))
