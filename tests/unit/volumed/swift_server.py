# SPDX-License-Identifier: Apache-2.0
"""A second S3 server for tests: OpenStack Swift with its s3api, one device, on 127.0.0.1. It knows no conditional puts. Only the library is needed
(python3-swift): the packages of the servers would start a dozen services on a host with systemd. As a program, with Debian's Python: runs them."""

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time

USER, SECRET = "test:tester", "testing"
PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {proxy}
swift_dir = {dir}
user = root
workers = 0
log_address = /nowhere
[pipeline:main]
pipeline = catch_errors gatekeeper proxy-logging cache listing_formats s3api tempauth bulk slo proxy-logging proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
error_suppression_limit = 1000000
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""
SERVER = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
user = root
workers = 0
log_address = /nowhere
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""


def serve(directory, ports):
    """All four servers, one imports the library for all."""
    from swift.common import utils
    from swift.common.ring import RingBuilder
    from swift.common.wsgi import run_wsgi

    utils.HASH_PATH_SUFFIX = b"tests"  # else from /etc/swift
    for kind, port in zip(("account", "container", "object"), ports):
        builder = RingBuilder(1, 1, 1)
        builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1", "replication_port": int(port), "device": "d1", "weight": 1,
                         "meta": ""})
        builder.rebalance()
        builder.get_ring().save(f"{directory}/{kind}.ring.gz")
    for kind in ("account", "container", "object", "proxy"):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: they leave the process group by themselves
            os._exit(run_wsgi(f"{directory}/{kind}.conf", f"{kind}-server"))
    os.wait()


class Swift:
    def __init__(self, directory):
        self.dir = directory
        ports = {kind: rgw.free_port() for kind in ("proxy", "account", "container", "object")}
        self.port = ports["proxy"]
        os.makedirs(f"{directory}/devices/d1")
        self._write("proxy.conf", PROXY.format(dir=directory, **ports))
        for kind in ("account", "container", "object"):
            self._write(f"{kind}.conf", SERVER.format(dir=directory, kind=kind, port=ports[kind]))
        with open(f"{directory}/log", "wb") as log:
            command = ["/usr/bin/python3", __file__, directory, *(str(ports[k]) for k in ("account", "container", "object"))]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _write(self, name, text):
        with open(f"{self.dir}/{name}", "w", encoding="ascii") as f:
            f.write(text)

    def _wait(self):
        limit = time.monotonic() + 60
        while True:
            try:
                # each of the three behind the proxy begins to listen when it likes
                if [self.request("PUT", "/ready")[0], self.request("PUT", "/ready/object", body=b"x")[0]] == [200, 200]:
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > limit or self.process.poll() is not None:
                with open(f"{self.dir}/log", encoding="utf-8") as f:
                    raise AssertionError(f"swift does not start: {f.read()[-2000:]}")
            time.sleep(0.1)

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def request(self, method, path, query="", body=b"", headers=None):
        return rgw.request(f"127.0.0.1:{self.port}", method, path, query, body, headers, keys=(USER, SECRET))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
else:
    import rgw
