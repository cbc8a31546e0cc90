# SPDX-License-Identifier: Apache-2.0
"""A second S3 server for tests: OpenStack Swift with its s3api, one device, on 127.0.0.1. It knows no conditional puts."""

import http.client
import os
import signal
import subprocess
import time

from rgw import free_port, request

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


class Swift:
    def __init__(self, directory):
        self.dir, self.processes = directory, []
        ports = {kind: free_port() for kind in ("proxy", "account", "container", "object")}
        self.port = ports["proxy"]
        os.makedirs(f"{directory}/devices/d1")
        self._write("swift.conf", "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = only\ndefault = yes\n")
        self._write("proxy.conf", PROXY.format(dir=directory, **ports))
        for kind in ("account", "container", "object"):
            self._write(f"{kind}.conf", SERVER.format(dir=directory, kind=kind, port=ports[kind]))
            builder = f"{directory}/{kind}.builder"
            for arguments in (["create", "1", "1", "1"], ["add", f"r1z1-127.0.0.1:{ports[kind]}/d1", "1"], ["rebalance"]):
                subprocess.run(["swift-ring-builder", builder, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for kind in ("account", "container", "object", "proxy"):
            with open(f"{directory}/{kind}.log", "wb") as log:
                self.processes.append(subprocess.Popen([f"swift-{kind}-server", f"{directory}/{kind}.conf"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                       env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True))
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
                if self.request("GET", "/")[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > limit or any(p.poll() is not None for p in self.processes):
                raise AssertionError(f"swift does not start: see the logs\n{open(self.dir + '/proxy.log').read()[-2000:]}")
            time.sleep(0.1)

    def stop(self):
        for p in self.processes:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()

    def request(self, method, path, query="", body=b"", headers=None):
        return request(f"127.0.0.1:{self.port}", method, path, query, body, headers, keys=(USER, SECRET))
