"""Try from inside the sandbox what a student's code must not do; prints what was possible, as JSON.

python probe.py SEEN      SEEN is JSON: the grader's folders, packages and process, as choose.py writes them
"""

import json
import os
import socket
import sys


def reads(path: str) -> bool:
    """True when a file, or any file below a folder, can be read."""
    files = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    return any(os.access(file, os.R_OK) for file in ([path] if os.path.isfile(path) else files))


def start_time(process: int) -> str:
    """When a process started, in ticks; empty when there is none of that number."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def reaches(process: int, started: str) -> bool:
    """True when the grader's process can be read or signalled."""
    if start_time(process) != started:
        return False
    if os.access(f"/proc/{process}/environ", os.R_OK):
        return True
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def main(seen: dict) -> None:
    """Print what was possible; fails when the kernel's packages cannot be loaded."""
    sys.path.insert(0, os.path.dirname(os.getcwd()))
    import ipykernel  # noqa: F401

    import econ.units

    print(json.dumps({
        "reads_grader": any(map(reads, seen["secret"])),
        "reaches_grader": reaches(seen["process"], seen["started"]),
        "writes_packages": any(os.access(path, os.W_OK) for path in [*seen["packages"], econ.units.__file__]),
        "has_network": [name for _, name in socket.if_nameindex()] != ["lo"]}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
