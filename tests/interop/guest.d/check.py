# SPDX-License-Identifier: Apache-2.0
"""Assertions that print both values, and waiting for an event with a deadline."""
import contextlib
import errno
import os
import time


def eq(want, got, what="value"):
    if want != got:
        raise AssertionError(f"{what}: want {str(want)[:500]!r}, got {str(got)[:500]!r}")


def is_in(part, whole, what="value"):
    if part not in whole:
        raise AssertionError(f"{what}: want {part!r} in {str(whole)[:500]!r}")


def at_most(limit, got, what="value"):
    if got > limit:
        raise AssertionError(f"{what}: want at most {limit}, got {got}")


@contextlib.contextmanager
def fails(*codes):
    """The block raises OSError with one of the errnos."""
    names = "/".join(errno.errorcode[c] for c in codes)
    try:
        yield
    except OSError as e:
        if e.errno not in codes:
            raise AssertionError(f"want {names}, got {errno.errorcode.get(e.errno, e)}") from e
    else:
        raise AssertionError(f"want {names}, got success")


def until(condition, timeout=20.0, what=None):
    """Asks until it is true; what it answered."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.01)
    return value


def still_waits(call, seconds=0.3):
    """A call that has to wait for something is not answered meanwhile."""
    if call.event.wait(seconds):
        raise AssertionError(f"T{call.name} was answered: {call.reply or call.error}, want it to wait")


def strerror(code):
    return os.strerror(code)
