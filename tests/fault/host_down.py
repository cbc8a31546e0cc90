#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 180
"""The host goes down: guests are flushed, all machines end, none is started any more, and what ran comes back with the next space-hostd."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import leftovers
from lib import *


@check(limit=150)
def what_ran_comes_back_with_what_it_wrote():
    ran, stopped = Box(), Box()
    stopped.verb("stop")
    eq("", ran.out("echo unsynced > /root/u"))
    old = daemon_pid("hostd")
    os.kill(old, signal.SIGUSR1)
    wait_until(lambda: not set(qemus()) and not leftovers.domains(), 30, "all machines end")
    eq(["running", "stopped"], [ran.state, stopped.state], "states, which say what is to be")
    refused(errno.ESHUTDOWN, stopped.verb, "start")
    has("the host goes down", stopped.get("error"))
    kill_daemon("hostd")
    daemon_back("hostd", old)
    ran.wait_state("running", 60)
    eq("unsynced", ran.out("cat /root/u"))
    eq(False, stopped.state == "running", "what did not run was started")


main()
