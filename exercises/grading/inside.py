"""Enter the sandbox and start the kernel there; run as a program, with the standard library alone.

python inside.py POLICY [PROBE]      POLICY is the JSON text that sandbox.py writes, PROBE a program to run instead

It changes what this process may see (own mounts, no network but loopback), then who it is, then what it may
use, and becomes the kernel. Nothing of the grader's environment, open files or privileges goes along.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
DETACH = 2
SET_PDEATHSIG, SET_NO_NEW_PRIVS = 1, 38
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
DEVICES = ("null", "zero", "full", "random", "urandom")
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> None:
    """Call the C library; OSError when it refuses."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())


def bind(source: str, target: str, writable: bool = False) -> None:
    """Show a file or folder of the outside at `target`, read-only unless said otherwise."""
    place = Path(target)
    if os.path.isdir(source):
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, target, flags=BIND | REC)
    if not writable:
        mount("none", target, flags=BIND | REMOUNT | RDONLY | NOSUID)


def memory_folder(path: str, size_bytes: int, mode: str) -> None:
    """A folder in memory, of a limited size."""
    os.makedirs(path, exist_ok=True)
    mount("tmpfs", path, "tmpfs", NOSUID | NODEV, f"size={size_bytes},mode={mode}")


def own_root(policy: dict) -> None:
    """A new root folder in memory that holds what the policy names and nothing else."""
    root = policy["root"]
    mount("none", "/", flags=REC | (1 << 18))   # private: no mount of ours is seen outside
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=4m,mode=0755")
    for link, target in policy["links"].items():
        os.symlink(target, root + link)
    for folder in ("/tmp", "/dev/shm"):
        memory_folder(root + folder, policy["disk_bytes"], "1777")
    for source, target in policy["readable"].items():
        bind(source, root + target)
    memory_folder(root + policy["work"], policy["disk_bytes"], "0755")
    bind(policy["channels"], root + policy["channels_inside"], writable=True)
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", writable=True)
    for link, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"{root}/dev/{link}")
    os.makedirs(root + "/proc")
    mount("proc", root + "/proc", "proc", NOSUID | NODEV | NOEXEC)
    change_root(root)


def change_root(root: str) -> None:
    """Make `root` the root folder and let go of the old one."""
    os.mkdir(root + "/old")
    os.chdir(root)
    call("syscall", ctypes.c_long(pivot_number()), b".", b"old")
    os.chdir("/")
    call("umount2", b"/old", DETACH)
    os.rmdir("/old")
    mount("none", "/", flags=BIND | REMOUNT | RDONLY | NOSUID | NODEV)


def pivot_number() -> int:
    """The number of the system call pivot_root, which the C library does not wrap."""
    return {"x86_64": 155}.get(os.uname().machine, 41)


def raise_loopback() -> None:
    """A new network has one interface, the loopback, and it is down."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def limit(limits: dict) -> None:
    """Set the resource limits, soft and hard."""
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def prepare_work(policy: dict) -> None:
    """The fresh working folder: a home with the prepared caches, and the addresses of the kernel's channels."""
    home = Path(policy["env"]["HOME"])
    shutil.copytree(policy["skeleton"], home)
    inside = policy["channels_inside"]
    connection = Path(inside, "c.json")
    if connection.exists():
        values = json.loads(connection.read_text()) | {"ip": f"{inside}/c-ipc"}
        (home / "connection.json").write_text(json.dumps(values))
    if policy["uid"] is not None:
        for path in (Path(policy["work"]), home, *home.rglob("*")):
            os.chown(path, policy["uid"], policy["uid"])


def become(uid: int | None) -> None:
    """Give up every privilege, for good."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    call("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)   # a change of user has cleared it


def main(policy: dict, probe: list[str]) -> None:
    """Enter the sandbox; does not return."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    if policy["mechanism"] == "namespaces":
        own_root(policy)
        raise_loopback()
    prepare_work(policy)
    os.chdir(policy["work"])
    os.umask(0o077)
    become(policy["uid"])
    limit(policy["limits"])
    if not probe:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    command = [*policy["python"], *(probe or policy["kernel"])]
    os.execve(command[0], command, policy["env"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
