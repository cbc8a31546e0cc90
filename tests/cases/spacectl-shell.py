#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spacectl shell on a real terminal: size and resize, Ctrl-C, exit status, the escape, and the terminal restored in every case."""
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time

DEADLINE = 40
BOX = "spacectl-shell-%d" % os.getpid()


def set_size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Session:
    """A spacectl process that leads a session on a terminal of its own."""

    def __init__(self, *arguments):
        self.master, self.slave = os.openpty()
        set_size(self.slave, 33, 101)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.slave, fd)
            os.execvp("spacectl", ("spacectl",) + arguments)

    def expect(self, text):
        """Reads until `text` comes; drops all up to it."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.seen:
            if not select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0]:
                sys.exit("want %r within %d s, got %r" % (text, DEADLINE, self.seen))
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text):
        os.write(self.master, text)

    def end(self, want):
        """The exit status, and the terminal as it was."""
        deadline = time.monotonic() + DEADLINE
        while True:
            if select.select([self.master], [], [], 0.02)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                sys.exit("spacectl did not end within %d s; it said %r" % (DEADLINE, self.seen))
        equal(want, os.waitstatus_to_exitcode(status), "exit status")
        equal(self.before, termios.tcgetattr(self.slave), "terminal modes")
        os.close(self.master)
        os.close(self.slave)


def equal(want, got, what):
    if want != got:
        sys.exit("%s: want %r, got %r" % (what, want, got))


def size_resize_interrupt_and_status():
    s = Session("shell", BOX)
    s.expect(b"# ")
    s.type(b"stty size; tty; echo $TERM\r")
    s.expect(b"33 101")
    s.expect(b"/dev/")
    s.expect(os.environ["TERM"].encode())
    set_size(s.slave, 44, 122)
    # The new size travels behind what is typed next, so ask until it is there.
    s.type(b"until stty size | grep -q '44 122'; do sleep 0.1; done; echo re''sized\r")
    s.expect(b"resized")
    s.type(b"sleep 1000; echo status=$?\r")
    s.expect(b"sleep 1000")
    time.sleep(0.2)  # not a wait for a result: an interrupt any earlier is as good
    s.type(b"\x03")
    s.expect(b"# ")
    s.type(b"exit 5\r")
    s.end(5)


def escape_ends_it():
    s = Session("shell", BOX)
    s.expect(b"# ")
    s.type(b"\r~.")
    s.end(255)


def a_crash_restores_the_terminal():
    s = Session("shell", BOX)
    s.expect(b"# ")
    os.kill(s.pid, signal.SIGSEGV)
    s.end(-signal.SIGSEGV)


def a_command_instead_of_the_shell():
    s = Session("shell", BOX, "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && exit 9")
    s.end(9)


def no_terminal_is_an_error():
    got = subprocess.run(["spacectl", "shell", BOX], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    equal(125, got.returncode, "exit status without a terminal")
    if b"no terminal" not in got.stderr:
        sys.exit("want a sentence about the terminal, got %r" % got.stderr)


os.environ["TERM"] = "vt100"
subprocess.run(["spacectl", "create", "--template", "tiny", BOX], check=True)
try:
    size_resize_interrupt_and_status()
    escape_ends_it()
    a_crash_restores_the_terminal()
    a_command_instead_of_the_shell()
    no_terminal_is_an_error()
finally:
    subprocess.run(["spacectl", "rm", "-f", BOX], check=True)
