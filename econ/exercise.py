"""What a graded exercise needs: checks that say what went wrong, and inputs of a student's own.

These checks are for the student who is still at work. A grade comes from other inputs, whose results are
compared outside the student's notebook, so nothing here has to keep a secret.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from econ.check import ClaimError

HINT_REL = 0.005    # how near a ratio must come to a hint's factor
SLIP_REL = 0.0005   # how near to a slip, unless a check says otherwise; right answers may lie near one


@contextmanager
def exercise(name: str) -> Iterator[None]:
    """Run the checks of one exercise and print one line about them; the notebook goes on either way.

    An answer that is missing, wrong or raises is reported, not raised, so that a student can run all cells.

    >>> with exercise("05.1"):
    ...     expect_value(671_088_640, 671_088_640, "bytes of the cache")
    ok: bytes of the cache
    05.1: every check passed
    >>> with exercise("05.1"):
    ...     expect_value(None, 671_088_640, "bytes of the cache")
    05.1: not answered yet
    """
    try:
        yield
    except NotImplementedError:
        print(f"{name}: not answered yet")
    except ClaimError as error:
        print(f"{name}: not right yet. {error}")
    except Exception as error:     # whatever a student's code raises
        print(f"{name}: your code raises {type(error).__name__}: {error}")
    else:
        print(f"{name}: every check passed")


def expect_value(got, want: float, what: str, *, hints: Mapping[float, str] | None = None,
                 rel: float = 1e-3) -> None:
    """Print `ok: what`, or fail and say by what factor an answer is off and which mistake has that factor.

    `hints` maps a ratio got/want to the mistake that causes it; `rel` is the relative tolerance.
    Raises NotImplementedError for None (no answer yet), ClaimError for anything else that is not `want`.

    >>> expect_value(5_368_709_120, 671_088_640, "bytes of the cache", hints={8: "count KV heads, not heads"})
    Traceback (most recent call last):
    econ.check.ClaimError: bytes of the cache: 8 times the expected 6.71089e+08. Count KV heads, not heads.
    """
    if got is None:
        raise NotImplementedError(what)
    value = _number(got, what)
    if math.isclose(value, want, rel_tol=rel):
        print(f"ok: {what}")
        return
    ratio = value / want if want else math.inf
    near = [text for factor, text in (hints or {}).items() if math.isclose(ratio, factor, rel_tol=HINT_REL)]
    advice = f" {near[0][0].upper()}{near[0][1:]}." if near else ""
    raise ClaimError(f"{what}: {_times(value, want, ratio)}.{advice}")


def expect_within(got, low: float, high: float, what: str, *, slips: Mapping[float, str] | None = None,
                  near: float = SLIP_REL) -> None:
    """Print `ok: what` for a number in a wide band that is none of the known slips; it may still be wrong.

    For an answer that is one number and will be graded: the band and the slips give nothing away.
    `near` is how near, relative, a number must come to a slip: 0.0005 for one that is not rounded, more for
    one that a student rounds or guesses.
    Raises NotImplementedError for None (no answer yet), ClaimError for a slip or a number outside the band.

    >>> expect_within(24, 1, 1_000, "sequences that fit", slips={22: "the log prints GiB, not GB"})
    ok: sequences that fit is plausible
    >>> expect_within(22, 1, 1_000, "sequences that fit", slips={22: "the log prints GiB, not GB"})
    Traceback (most recent call last):
    econ.check.ClaimError: sequences that fit: 22. The log prints GiB, not GB.
    """
    if got is None:
        raise NotImplementedError(what)
    value = _number(got, what)
    for slip, text in (slips or {}).items():
        if math.isclose(value, slip, rel_tol=near):
            raise ClaimError(f"{what}: {value:.6g}. {text[0].upper()}{text[1:]}.")
    if not low <= value <= high:
        raise ClaimError(f"{what}: {value:.6g} is not between {low:.6g} and {high:.6g}; check the unit")
    print(f"ok: {what} is plausible")


def expect_letter(got, letters: str = "abcd") -> None:
    """Fail unless an answer is one of the letters, small or capital; which one is right stays open.

    Raises ClaimError for anything else, None included.

    >>> expect_letter("C")
    >>> expect_letter("(c)")
    Traceback (most recent call last):
    econ.check.ClaimError: the step: one of the letters a, b, c, d is wanted, not '(c)'
    """
    if str(got).strip().lower() not in tuple(letters):
        raise ClaimError(f"the step: one of the letters {', '.join(letters)} is wanted, not {got!r}")


def _number(got, what: str) -> float:
    got = got.item() if hasattr(got, "item") else got
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise ClaimError(f"{what}: a number was expected, not {type(got).__name__}")
    if not math.isfinite(got):
        raise ClaimError(f"{what}: a finite number was expected, not {got}")
    return float(got)


def _times(value: float, want: float, ratio: float) -> str:
    if not math.isfinite(ratio) or ratio <= 0:
        return f"{value:.6g}, expected {want:.6g}"
    return f"{ratio:.4g} times the expected {want:.6g}"


def variant(student: str, name: str) -> random.Random:
    """A source of random inputs that is the same for one student and one exercise, everywhere and always.

    Seeded with the SHA-256 of both; case and blanks around a student's id do not matter.
    Raises ValueError for an empty id.

    >>> variant("ada", "05.3").choice([1024, 2048, 4096]) == variant(" Ada ", "05.3").choice([1024, 2048, 4096])
    True
    """
    student = student.strip().lower()
    if not student:
        raise ValueError('the student id is empty: write STUDENT = "your-id" with the id that your teacher gave you')
    digest = hashlib.sha256(f"{name}:{student}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
