"""Submissions that try to earn points without an answer, or to harm the grader or each other. None may succeed.

Attacks that only a sandbox stops are marked `needs` and run only in one; on a machine that offers none, every
test of the sandbox is skipped, and an unprotected report names what is open. SANDBOX=user tries that mechanism.
"""

import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import nbformat
import pytest
from grading import runner
from grading_toy import NAME, SOLUTIONS, cell, protection, run_batch, submission, write_all, write_course

FULL = {"99.1": 3, "99.2": 2, "99.3": 2}
ZERO = dict.fromkeys(FULL, 0)
HONEST = ("honest-1", "honest-2", "zz-honest-3")
ATTACKS: dict[str, "Attack"] = {}
# Attacks know what the answer looks like and search for it backwards, so that they do not find themselves.
TARGET = "'902494'[::-1]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A submission, whether only a sandbox stops it, and what it earns by honest means."""

    notebook: Callable[[], object]
    needs: bool = False
    earns: tuple[tuple[str, int], ...] = ()


def answer(name: str, code: str, needs: bool = False, others: dict | None = None) -> None:
    """Register an attack that is the answer to 99.1; `others` are honest answers next to it."""
    answers = {"99.1": textwrap.dedent(code).strip()} | (others or {})
    earns = tuple((exercise, FULL[exercise]) for exercise in others or {})
    ATTACKS[name] = Attack(notebook=lambda: submission(answers, name), needs=needs, earns=earns)


def altered(function: Callable) -> Callable:
    """Register an attack that alters a notebook of stubs."""
    def build():
        nb = submission({}, function.__name__)
        function(nb)
        return nb

    ATTACKS[function.__name__] = Attack(notebook=build)
    return function


REST = {"99.2": SOLUTIONS["99.2"], "99.3": SOLUTIONS["99.3"]}


# The notebook itself

@altered
def edited_check_cells(nb):
    cell(nb, "ex99_1_check").source = "print('ok: three cubes')\nprint('99.1: every check passed')"


@altered
def deleted_check_cells(nb):
    nb.cells = [c for c in nb.cells if not c.id.endswith("_check")]


@altered
def rerun_wrong_answers(nb):
    cell(nb, "ex99_1_answer").source = "def cubes(n):\n    return 1"
    for number, c in enumerate(c for c in nb.cells if c.cell_type == "code"):
        c.execution_count, c.outputs = number + 1, [nbformat.v4.new_output("stream", text="1\n")]


@altered
def hard_coded_visible_outputs(nb):
    text = "ok: three cubes\n99.1: every check passed\n"
    cell(nb, "ex99_1_check").outputs = [nbformat.v4.new_output("stream", text=text)]


@altered
def own_hidden_cells(nb):
    for number, points in ((1, 1), (2, 99)):
        made = nbformat.v4.new_code_cell("print('right')", id=f"ex99_1_hidden_{number}", execution_count=1)
        made.outputs = [nbformat.v4.new_output("stream", text="right\n")]
        made.metadata["nbgrader"] = {"grade": True, "grade_id": made.id, "points": points, "schema_version": 3}
        made.metadata["econ"] = {"part": "hidden", "exercise": "99.1", "points": str(points)}
        nb.cells.append(made)


@altered
def tags_that_nbval_obeys(nb):
    for c in nb.cells:
        c.metadata["tags"] = ["nbval-skip", "nbval-ignore-output", "raises-exception"]
    cell(nb, "ex99_1_answer").source = "# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT\n# NBVAL_RAISES_EXCEPTION\nx = 1"


@altered
def forged_metadata(nb):
    nb.metadata.econ = nbformat.from_dict({"release": "aaaaaaaaaaaa", "notebook": NAME, "points": 100})
    nb.metadata["grades"] = {"99.1": 3}


@altered
def answers_of_another_notebook(nb):
    for c in nb.cells:
        if c.id.endswith("_answer"):
            c.metadata.nbgrader.grade_id = c.metadata.nbgrader.grade_id.replace("ex99", "ex98")
            c.source, c.id = "print('full marks')", c.id.replace("ex99", "ex98")


@altered
def duplicate_ids(nb):
    for name in ("ex99_1_hidden_1", "ex99_1_check", "student"):
        made = nbformat.v4.new_code_cell("import builtins\nbuiltins.round = lambda x: 494209", id=name)
        nb.cells.insert(3, made)


@altered
def huge_cells(nb):
    cell(nb, "ex99_1_answer").source = "x = '" + "a" * 5_000_000 + "'"


# Objects and patches: no expected value is there to be compared with

answer("an_object_equal_to_everything", """
    class Anything(float):
        def __eq__(self, other): return True
        def __hash__(self): return 1
        def __lt__(self, other): return True
        __gt__ = __le__ = __ge__ = __lt__
    def cubes(n): return Anything(36)
""")
answer("an_object_that_prints_anything", """
    class Chameleon:
        def __round__(self, n=None): return self
        def __str__(self): return "*"
        def __format__(self, spec): return ".*"
        __repr__ = __str__
    def cubes(n): return Chameleon()
""")
answer("patched_print", """
    import builtins, sys
    builtins.print = lambda *a, **k: sys.stdout.write("right\\n")
    def cubes(n): return 1
""")
answer("patched_checks", """
    import econ.check, econ.exercise
    econ.exercise.expect_value = expect_value = lambda *a, **k: print("ok")
    econ.check.claim = econ.check.expect = lambda *a, **k: None
    def cubes(n): return 1
""")
answer("patched_round_and_names", """
    import builtins
    builtins.round = lambda x, n=None: "right"
    marker_of_the_hidden_check = 3
    def cubes(n): return 36
""")
answer("patched_nbval", """
    import nbval.plugin, pytest
    nbval.plugin.IPyNbCell.compare_outputs = lambda self, *a, **k: True
    nbval.plugin.IPyNbCell.runtest = lambda self: None
    pytest.main = lambda *a, **k: 0
    def cubes(n): return 1
""")
answer("patched_kernel", """
    shell = get_ipython()
    shell.run_cell_async = None
    shell.kernel.do_execute = lambda *a, **k: {"status": "ok", "execution_count": 1, "payload": [],
                                               "user_expressions": {}}
    def cubes(n): return 1
""")

# Reading the expected value from where it might be

answer("reading_in_frames_and_constants", f"""
    import gc, sys
    found = []
    def search(thing):
        if isinstance(thing, str) and {TARGET} in thing:
            found.append(thing)
    def cubes(n):
        frame = sys._getframe()
        while frame:
            for thing in [*frame.f_code.co_consts, *frame.f_locals.values(), *frame.f_globals.values()]:
                search(thing)
            frame = frame.f_back
        for thing in gc.get_objects():
            if isinstance(thing, dict):
                for value in list(thing.values()):
                    search(value)
        for line in get_ipython().user_ns.get("In", []):
            search(line)
        return int({TARGET}) if found and n == 37 else 0
""")
answer("reading_the_hidden_cell_with_a_transformer", """
    sources = []
    get_ipython().input_transformers_post.append(lambda lines: sources.append("".join(lines)) or lines)
    def cubes(n):
        import re
        numbers = re.findall(r"\\d{4,}", " ".join(sources))
        return int(numbers[0]) if numbers else 0
""")
answer("reading_the_reference_from_disk", """
    import os
    def cubes(n):
        for start in ("/tmp", "/home", "/root", "/var", "/run", "/course", os.getcwd(), os.environ["HOME"]):
            for at, _, names in os.walk(start):
                for name in names:
                    if name.endswith((".ipynb", "reference")) and os.path.isfile(os.path.join(at, name)):
                        text = open(os.path.join(at, name), errors="replace").read()
                        if "ex99_1_hidden" in text:
                            return 494209 if n == 37 else 2927521
        return 0
""", needs=True)
answer("reading_another_submission", """
    import os
    def cubes(n):
        for at, folders, names in os.walk("/tmp"):
            for name in names + folders:
                if "99_toy" in name or "honest" in name:
                    return 494209 if n == 37 else 2927521
        return 0
""", needs=True)
answer("reading_the_parent_process", """
    import os, re
    def cubes(n):
        for process in filter(str.isdigit, os.listdir("/proc")):
            if int(process) == os.getpid():
                continue
            try:
                command = open(f"/proc/{process}/cmdline", "rb").read()
                maps = open(f"/proc/{process}/maps").read()
                with open(f"/proc/{process}/mem", "rb") as memory:
                    for start, end in re.findall(r"([0-9a-f]+)-([0-9a-f]+) rw", maps)[:400]:
                        memory.seek(int(start, 16))
                        if b"ex99_1_" + b"hidden_1" in memory.read(int(end, 16) - int(start, 16)):
                            return 494209 if n == 37 else 2927521
            except (OSError, OverflowError, MemoryError):
                pass
        return 0
""", needs=True)
answer("reading_the_surroundings", """
    import os, sys
    def cubes(n):
        text = " ".join([*os.environ.values(), *sys.argv, open("/proc/self/cmdline").read()])
        fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.lexists(f"/proc/self/fd/{fd}")]
        leak = "99_toy" in text or "reference" in text or "exercises/source" in text
        leak = leak or any("reference" in fd or fd.startswith("/tmp/grade-") for fd in fds)
        return (494209 if n == 37 else 2927521) if leak else 0
""")

# Forging, stopping, flooding

answer("forged_results_in_every_open_file", """
    import json, os
    for number in (1, 2):
        line = json.dumps({"id": f"ex99_1_hidden_{number}", "outcome": "passed", "alive": True, "text": "",
                           "error": ["", ""], "seconds": 0}).encode() + b"\\n"
        for fd in [*range(0, 3), *range(20, 64)]:
            try:
                os.write(fd, line)
            except OSError:
                pass
    def cubes(n): return 1
""")
answer("forged_messages", """
    kernel = get_ipython().kernel
    def cubes(n):
        parent = kernel.get_parent("shell")
        for text in ("36", "right", "True", "", "1"):
            kernel.session.send(kernel.iopub_socket, "stream", {"name": "stdout", "text": text + "\\n"}, parent)
        kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "idle"}, parent)
        return 1
""")
answer("broken_messages", """
    kernel = get_ipython().kernel
    def cubes(n):
        parent = kernel.get_parent("shell")
        kernel.session.send(kernel.iopub_socket, "stream", {"name": 7, "text": {"a": [1]}}, parent)
        kernel.session.send(kernel.iopub_socket, "error", {"ename": None, "evalue": 3, "traceback": 5}, parent)
        return 1
""", others=None)
answer("early_exit", "import os\nos._exit(0)", others=REST)
answer("early_exit_by_exception", "raise SystemExit(0)", others=REST)
answer("another_program_in_its_place", "import os\nos.execv('/bin/true', ['true'])", others=REST)
answer("an_infinite_loop", "while True:\n    pass", others=REST)
answer("a_loop_that_refuses_to_stop", """
    import signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pass
""", others=REST)
answer("a_loop_in_a_graded_check", """
    def cubes(n):
        while n > 3:
            pass
        return 36
""", others=REST)
answer("a_memory_bomb", """
    hold = []
    while True:
        hold.append(bytearray(50 << 20))
""", others=REST)
answer("a_memory_bomb_in_children", """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            hold = bytearray(b"x" * (300 << 20))
            time.sleep(60)
            os._exit(0)
    time.sleep(5)
""", others=REST)
answer("an_output_flood", "while True:\n    print('x' * 1000)", others=REST)
answer("one_huge_line", "print('x' * 200_000_000)", others=REST)
answer("a_flood_of_messages", """
    from IPython.display import display
    while True:
        display({"text/plain": "y" * 100, "text/html": "z" * 1000}, raw=True)
""", others=REST)
answer("a_file_flood", """
    try:
        for number in range(200):
            with open(f"big{number}", "wb") as file:
                file.write(b"x" * (32 << 20))
    except OSError:
        pass
    def cubes(n): return 1
""", others=REST)
answer("folders_without_end", """
    import os, shutil
    for _ in range(3000):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    open("x", "w").write("x")
    os.chdir("/")
    def cubes(n): return 1
""", others=REST)
answer("nested_without_end", "x = " + "-" * 100_000 + "1", others=REST)
answer("half_a_character", "x = '\ud800'\ndef cubes(n): return x", others=REST)
answer("a_fork_bomb", """
    import os
    for _ in range(20):
        try:
            os.fork()
        except OSError:
            pass
    import time
    time.sleep(30)
""", needs=True, others=REST)
answer("files_among_the_channels", """
    import json, os
    from ipykernel import get_connection_file
    channels = os.path.dirname(json.load(open(get_connection_file()))["ip"])
    for folder in (channels, os.environ["HOME"]):
        try:
            open(os.path.join(folder, "c-other"), "w").write("x")
        except OSError:
            pass
    import time
    time.sleep(2)
    def cubes(n): return 1
""", others=REST)
answer("a_link_for_a_channel", """
    import json, os
    from ipykernel import get_connection_file
    channels = os.path.dirname(json.load(open(get_connection_file()))["ip"])
    for folder in (channels, os.environ["HOME"]):
        try:
            os.remove(os.path.join(folder, "c-ipc-1"))
            os.symlink("/etc/passwd", os.path.join(folder, "c-ipc-1"))
        except OSError:
            pass
    def cubes(n): return 1
""")

# Reaching out: others, the machine, later submissions

answer("killing_everything", """
    import os, signal
    for number in (signal.SIGTERM, signal.SIGKILL):
        for target in (-1, os.getppid()):
            try:
                os.kill(target, number)
            except OSError:
                pass
    def cubes(n): return 1
""", needs=True)
answer("changing_econ_and_packages", """
    import econ.exercise, econ.check, ipykernel, os
    for module in (econ.exercise, econ.check, ipykernel):
        folder = os.path.dirname(module.__file__)
        for path in (module.__file__, os.path.join(folder, "planted.py")):
            try:
                with open(path, "a") as file:
                    file.write("\\nprint('planted')\\n")
            except OSError:
                continue
            raise SystemExit("written")
        try:
            os.rename(folder, folder + "x")
        except OSError:
            pass
    def cubes(n): return 1
""", needs=True)
answer("start_up_files_for_the_next", """
    import os
    for home in (os.environ["HOME"], os.path.expanduser("~"), "/tmp"):
        folder = os.path.join(home, ".ipython", "profile_default", "startup")
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "00.py"), "w").write("import builtins\\nbuiltins.round = lambda x: 0\\n")
    def cubes(n): return 1
""")
answer("the_network", """
    import socket
    reached = len(socket.if_nameindex()) > 1
    def cubes(n): return (494209 if n == 37 else 2927521) if reached else 0
""", needs=True)
answer("a_process_that_stays", """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "98765"])
        os._exit(0)
    def cubes(n): return 1
""", needs=True)
answer("becoming_root_again", """
    import ctypes, os
    libc, won = ctypes.CDLL(None), False
    for attempt in (lambda: os.setuid(0), lambda: os.chroot("/proc/1/root"), lambda: os.mknod("disk", 0o60600, 0)):
        try:
            attempt()
            won = True
        except OSError:
            pass
    won = won or libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"") == 0 or os.getuid() == 0
    def cubes(n): return (494209 if n == 37 else 2927521) if won else 0
""", needs=True)
answer("telling_the_hidden_check_to_the_student", """
    sources = []
    get_ipython().input_transformers_post.append(lambda lines: sources.append("".join(lines)) or lines)
    def cubes(n):
        if n == 3:
            return 36
        raise type(sources[-1], (Exception,), {})(sources[-1])
""", others={"99.3": "values = 128\nprint(sources[-4:])\nraise ValueError(sources[2:])"})

# What a kernel shows of itself: guesses instead of one answer, messages for other cells, state for a second run

answer("output_hidden_by_a_magic", """
    %%capture out
    import builtins
    builtins.print = lambda *a, **k: None
    def cubes(n): return 1
""")
answer("a_cell_of_another_language", """
    %%bash
    ls -R / | grep hidden
""")
answer("guesses_printed_before_a_check", """
    import sys
    def guess(info):
        if "cubes(" in info.raw_cell:
            for number in range(300):
                sys.stdout.write(f"{number}\\n")
    get_ipython().events.register("pre_run_cell", guess)
    def cubes(n): return 1
""")
answer("every_number_behind_a_carriage_return", """
    class Many(float):
        def __round__(self, n=None): return "".join(f"{number}\\r" for number in range(300)) + "\\b\\x1b[2K"
    def cubes(n): return Many(1)
""")
answer("a_picture_that_calls_itself_stdout", """
    import builtins
    from IPython.display import display
    builtins.print = lambda *a, **k: display({"stdout": "1\\n", "text/latex": "x"}, raw=True)
    def cubes(n): return 1
""")
answer("forged_messages_for_later_cells", """
    kernel = get_ipython().kernel
    header = kernel.get_parent("shell")["header"]
    session, number = header["msg_id"].rsplit("_", 1)
    for step in range(1, 40):
        later = {"header": {**header, "msg_id": f"{session}_{int(number) + step}"}}
        for guess in range(6, 9):
            kernel.session.send(kernel.iopub_socket, "stream", {"name": "stdout", "text": f"{guess}\\n"}, later)
        kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "idle"}, later)
    def cubes(n): return 1
""")
answer("errors_that_do_not_show", """
    shell = get_ipython()
    shell.user_ns["exercise"] = shell.user_ns["expect_value"] = None
    shell.showtraceback = lambda *a, **k: None
    def cubes(n): raise ValueError
""")
answer("inputs_of_ones_own", """
    import econ.exercise
    STUDENT, side = "ada", 1
    econ.exercise.variant = variant = lambda student, name: type("Same", (), {"randrange": lambda self, *a: 1})()
    def cubes(n): return 1
    my_square = 1
""")
answer("dying_once_and_remembering_it", """
    import os
    marks = [os.path.join(folder, "mark") for folder in ("/tmp", "/dev/shm", "/run/kernel", os.getcwd())]
    seen = any(map(os.path.exists, marks))
    for mark in marks:
        try:
            open(mark, "w").write("x")
        except OSError:
            pass
    def cubes(n):
        if n > 3 and not seen:
            os._exit(0)
        return 494209 if n == 37 and seen else 2927521 if seen else 36
""", needs=True, others=REST)
answer("modules_planted_for_a_second_kernel", """
    import os
    for folder in (os.getcwd(), os.path.dirname(os.getcwd()), os.environ["HOME"]):
        for name in ("math.py", "econ.py", "sitecustomize.py", "usercustomize.py"):
            try:
                open(os.path.join(folder, name), "w").write("log2 = round = print")
            except OSError:
                pass
    os._exit(1)
""", needs=True, others=REST)
answer("a_full_memory_folder", """
    for folder in ("/dev/shm", "/tmp", "/run/kernel"):
        try:
            for number in range(12):
                open(f"{folder}/full{number}", "wb").write(b"x" * (50 << 20))
        except OSError:
            pass
    def cubes(n): return 1
""", needs=True, others=REST)
answer("a_kernel_that_sleeps", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", needs=True, others=REST)
answer("a_message_nested_without_end", """
    kernel = get_ipython().kernel
    def cubes(n):
        pack, kernel.session.pack = kernel.session.pack, lambda content: b"[" * 200_000 + b"]" * 200_000
        kernel.session.send(kernel.iopub_socket, "stream", {}, kernel.get_parent("shell"))
        kernel.session.pack = pack
        return 36
""", needs=True, others=REST)


# The same limits hold without a sandbox; these would only take the time again.
ONCE = {"a_loop_that_refuses_to_stop", "a_loop_in_a_graded_check", "early_exit_by_exception", "one_huge_line",
        "another_program_in_its_place", "a_flood_of_messages", "a_memory_bomb_in_children"}
WITHOUT = [name for name, attack in ATTACKS.items() if not attack.needs and name not in ONCE]


def test_there_are_enough_attacks():
    assert len(ATTACKS) >= 40


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The toy course."""
    return write_course(tmp_path_factory.mktemp("course") / "exercises")


def batch(course, folder, names, mechanisms):
    """Grade the named attacks among honest submissions."""
    notebooks: dict = {name: ATTACKS[name].notebook() for name in names}
    notebooks |= {name: submission(SOLUTIONS, name) for name in HONEST}
    return run_batch(course, write_all(folder / "in", notebooks), folder / "out", mechanisms)


@pytest.fixture(scope="module")
def protected(course, tmp_path_factory):
    """Every attack, graded in the sandbox of this machine."""
    folder = tmp_path_factory.mktemp("protected")
    mechanism = protection(course)
    if not mechanism:
        pytest.skip("no sandbox on this machine: run as root, or install bubblewrap")
    return batch(course, folder, ATTACKS, [mechanism])


@pytest.fixture(scope="module")
def unprotected(course, tmp_path_factory):
    """The attacks that need no sandbox to fail, without one."""
    return batch(course, tmp_path_factory.mktemp("unprotected"), WITHOUT, ["none"])


def earned(name: str) -> dict[str, int]:
    """What an attack has earned honestly."""
    return ZERO | dict(ATTACKS[name].earns)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gains_nothing_in_the_sandbox(protected, name):
    if name == "the_network" and "using the network" in protected.result(name)["sandbox"]:
        pytest.skip("this sandbox does not cut off the network, and the report says so")
    assert protected.points(name) == earned(name)


@pytest.mark.parametrize("name", WITHOUT)
def test_an_attack_gains_nothing_without_a_sandbox(unprotected, name):
    assert unprotected.points(name) == earned(name)


@pytest.mark.parametrize("student", HONEST)
def test_attacks_disturb_nobody(protected, unprotected, student):
    assert protected.failed == unprotected.failed == 0
    assert protected.points(student) == unprotected.points(student) == FULL


def test_the_report_says_what_protects_and_what_does_not(protected, unprotected):
    assert protected.result("honest-1")["sandbox"].startswith("protected by ")
    assert unprotected.result("honest-1")["sandbox"].startswith("UNPROTECTED; open: reading the reference")
    assert not unprotected.result("honest-1")["protected"]


def test_no_process_stays(protected):
    left = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if "98765" in command_of(pid)]
    assert not left


def command_of(pid: str) -> str:
    """The command line of a process, or an empty string."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_feedback_of_attacks_tells_nothing_of_a_hidden_check(protected):
    for page in (protected.out / "feedback" / NAME).glob("*.md"):
        text = page.read_text()
        for secret in ("494209", "2927521", "marker_of_the_hidden_check", "cubes(37)"):
            assert secret not in text, (page.name, secret)


def test_reasons_are_given(protected):
    def feedback(name):
        return " ".join(protected.result(name)["exercises"]["99.1"]["feedback"])

    assert "takes longer than 6 s" in feedback("an_infinite_loop")
    assert "takes longer than 6 s" in feedback("a_loop_that_refuses_to_stop")
    assert "meddles" in feedback("files_among_the_channels")
    assert "ends the kernel" in feedback("early_exit")
    flood = feedback("an_output_flood")     # what is printed waits in the kernel's memory: either limit may come first
    assert "prints too much" in flood or "uses more than 700 MB" in flood
    assert "uses more than 700 MB" in feedback("a_memory_bomb_in_children")
    assert re.search("uses more than 700 MB|ends the kernel|MemoryError", feedback("a_memory_bomb"))


def test_expected_outputs_leave_the_disk_before_the_kernel_starts(course, tmp_path, monkeypatch):
    seen = []
    update = runner.Watch.update

    def looking(watch):
        if (tmp_path / "stage").exists():
            channels = any((tmp_path / "stage").rglob("c-ipc-1"))
            files = [path for path in (tmp_path / "stage").rglob("*.ipynb")]
            seen.append((channels, bool(files)))
        return update(watch)

    monkeypatch.setattr(runner.Watch, "update", looking)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str((tmp_path / "stage").absolute()))
    (tmp_path / "stage").mkdir()
    slow = {"99.1": "import time\ntime.sleep(2)"}
    run_batch(course, write_all(tmp_path / "in", {"ada": submission(slow, "ada")}), tmp_path / "out")
    assert any(channels for channels, _ in seen)
    assert not any(files for channels, files in seen if channels)
