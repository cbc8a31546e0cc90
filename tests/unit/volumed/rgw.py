# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for tests: Ceph's object gateway with one monitor and one OSD in memory, on 127.0.0.1. And a client of a dozen lines that signs
by itself, to see the bucket from outside."""

import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import random
import signal
import socket
import subprocess
import time
import uuid

ACCESS, SECRET = "testaccess", "testsecret"
CONF = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
run dir = {dir}/run
admin socket = {dir}/run/$name.$pid.asok
pid file = {dir}/$name.pid
log file = {dir}/log/$name.log
crash dir = {dir}/log
mon data = {dir}/mon
mon data avail warn = 1
mon data avail crit = 1
mon allow pool size one = true
mon max pg per osd = 1000
paxos propose interval = 0.05
paxos min wait = 0.01
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd data = {dir}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd fast shutdown = false
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}{tls} tcp_nodelay=1
rgw thread pool size = 32
rgw cache enabled = false
rgw dns name = s3.localhost
"""


def free_port():
    """Below the range that the kernel takes the ports of outgoing connections from: those of other tests would take it before its server does."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Rgw:
    def __init__(self, directory, certificate=None):
        self.dir, self.port, self.tls_port = directory, free_port(), free_port()
        for name in ("mon", "osd", "run", "log"):
            os.makedirs(f"{directory}/{name}")
        tls = f" ssl_endpoint=127.0.0.1:{self.tls_port} ssl_certificate={certificate}" if certificate else ""
        self.env = {**os.environ, "CEPH_CONF": f"{directory}/ceph.conf", "CEPH_ARGS": "--no-mon-config"}
        fsid, mon = str(uuid.uuid4()), free_port()
        with open(self.env["CEPH_CONF"], "w", encoding="ascii") as f:
            f.write(CONF.format(fsid=fsid, mon=mon, dir=directory, port=self.port, tls=tls))
        self._run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{mon}]", f"{directory}/monmap")
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{directory}/monmap")
        try:
            self._run("ceph-mon", "-i", "a")
            osd = str(uuid.uuid4())
            self._run("ceph", "--connect-timeout", "30", "osd", "new", osd)
            self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
            self._run("ceph-osd", "-i", "0")
            self.start()
            self._run("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=test", "--display-name=test", f"--access-key={ACCESS}", f"--secret-key={SECRET}")
        except BaseException:
            self.stop()
            raise

    def _run(self, *command):
        subprocess.run(command, check=True, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)

    def start(self):
        """The gateway; the daemon is up when this returns."""
        self._run("radosgw", "-n", "client.rgw")
        limit = time.monotonic() + 60
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/")
                connection.getresponse().read()
                connection.close()
                return
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)

    def pid(self, name):
        try:
            with open(f"{self.dir}/{name}.pid", encoding="ascii") as f:
                return int(f.read())
        except (FileNotFoundError, ValueError):
            return None

    def send_signal(self, number, name="client.rgw"):
        os.kill(self.pid(name), number)

    def kill(self, name="client.rgw", number=signal.SIGKILL):
        pid = self.pid(name)
        if pid is None:
            return
        try:
            os.kill(pid, number)
            limit = time.monotonic() + 10
            while os.path.exists(f"/proc/{pid}"):
                if time.monotonic() > limit:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
        except ProcessLookupError:
            pass
        if os.path.exists(f"{self.dir}/{name}.pid"):
            os.unlink(f"{self.dir}/{name}.pid")

    def stop(self):
        for name in ("client.rgw", "osd.0", "mon.a"):
            self.kill(name)

    def request(self, method, path, query="", body=b"", headers=None, port=None):
        return request(f"127.0.0.1:{port or self.port}", method, path, query, body, headers)


def request(host, method, path, query="", body=b"", headers=None, keys=(ACCESS, SECRET), region="us-east-1"):
    """Status, headers, body. Path and query are encoded, the query in order."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    sent = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now, **(headers or {})}
    names = ";".join(sorted(sent))
    canonical = "\n".join([method, path, query, *(f"{n}:{sent[n]}" for n in sorted(sent)), "", names, digest])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    key = b"AWS4" + keys[1].encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"):
        key = hmac.digest(key, part.encode(), "sha256")
    sent["Authorization"] = f"AWS4-HMAC-SHA256 Credential={keys[0]}/{scope},SignedHeaders={names},Signature={key.hex()}"
    name, port = host.rsplit(":", 1)
    connection = http.client.HTTPConnection(name, int(port), timeout=60)
    try:
        connection.request(method, path + (f"?{query}" if query else ""), body, sent)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()
