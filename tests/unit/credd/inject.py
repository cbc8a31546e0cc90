#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Credentials put into requests: space-netd, space-credd, space-inject with HAProxy, and real servers, without a machine: guests are network namespaces
(../netd/daemon.py). As root: inject.py SPACE_NETD SPACE_CREDD SPACE_INJECT CLOCK [TEST...]

CLOCK is clock.c, built: with it, space-credd's date is another."""
import ctypes
import errno
import hashlib
import json
import os
import pathlib
import re
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "netd"))
import client as credd  # noqa: E402
from daemon import HOST, POLICY, SERVER, World, eq, in_namespace, sh, wait  # noqa: E402

A, B = 0xA1, 0xB2  # sandboxes, which are the guests' keys as well
OTHER = "45.46.47.11"
NAMES = ["api.test", "basic.test", "query.test", "key.test", "plain.test", "late.test", "x.wild.test", "few.test", "old.test", "big.test", "cookie.test"]
TOKEN = b"tok-" + secrets.token_hex(16).encode()
ECHO = """
master_process off; pid nginx.pid; error_log nginx.log; daemon off; user root;
events { worker_connections 512; }
http {
  access_log off; client_max_body_size 0; gzip off; keepalive_timeout 600; keepalive_requests 1000000; large_client_header_buffers 8 64k;
  server {
    listen 443 ssl http2; server_name _; ssl_certificate leaf.pem; ssl_certificate_key leaf.key;
    location / { return 200 "$server_protocol $request_method $request_uri|$http_authorization|$http_x_api_key|$http_cookie|$http_transfer_encoding|$http_content_length|$host\n"; }
    location /file { root .; add_header X-Encoding yes; }
  }
}
"""


def no_sockets_but_unix_ones():
    """For this process, what `RestrictAddressFamilies=AF_UNIX` of space-inject's unit is: a seccomp filter (linux/filter.h)."""
    load, equal, answer = 0x20, 0x15, 0x06  # a word of the call; jump if it equals; return
    program = b"".join(struct.pack("=HBBI", *i) for i in [
        (load, 0, 0, 0), (equal, 0, 3, 41), (load, 0, 0, 16), (equal, 1, 0, socket.AF_UNIX),
        (answer, 0, 0, 0x00050000 | errno.EAFNOSUPPORT), (answer, 0, 0, 0x7fff0000)])
    text = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters, 0, 0):  # no new privileges; a filter
        raise OSError(ctypes.get_errno(), "seccomp")


def openssl(*argv, **kw):
    return subprocess.run(["openssl", *argv], check=True, capture_output=True, **kw).stdout


class Pki:
    """A CA of our own, as servers of a company have it."""

    def __init__(self, folder, name="up"):
        self.key, self.pem, self.folder = f"{folder}/{name}-ca.key", f"{folder}/{name}-ca.pem", folder
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out", self.pem, "-days", "30",
                "-subj", f"/CN={name} CA", "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def leaf(self, name, hosts):
        base = f"{self.folder}/{name}"
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{base}.key", "-out", f"{base}.csr", "-subj", "/O=test")
        pathlib.Path(f"{base}.ext").write_text("subjectAltName=" + ",".join(f"DNS:{h}" for h in hosts) + "\n")
        openssl("x509", "-req", "-in", f"{base}.csr", "-CA", self.pem, "-CAkey", self.key, "-CAcreateserial", "-days", "20", "-extfile", f"{base}.ext", "-out", f"{base}.pem")
        return f"{base}.pem", f"{base}.key"


class Injecting(World):
    def __init__(self, netd, credd_program, inject, clock=None):
        self.clock = clock
        self.port = 20000 + os.getpid() % 10000
        users = "net_user = nobody\ncred_user = daemon\ninject_user = bin\n"
        super().__init__(netd, users + f"resolver = 127.0.0.1:{self.port}\n")
        os.chmod(self.dir, 0o755)
        self.inject_program, self.credd_program = inject, credd_program
        self.pki = Pki(self.dir)
        with open(self.dir / "conf", "a") as f:
            f.write(f"credentials = {self.dir}/state\ncredential_keys = {self.dir}/keys\ninject_ca = {self.pki.pem}\n")
        os.mkdir(self.dir / "keys", 0o700)
        (self.dir / "keys/default.wrapping").write_text(f"k1 = {secrets.token_hex(32)}\n")
        (self.dir / "keys/credentials.key").write_text("service = file\nkey = k1\nfile = default.wrapping\n")
        for name in (".", "default.wrapping", "credentials.key"):
            os.chmod(self.dir / "keys" / name, 0o700 if name == "." else 0o600)
            os.chown(self.dir / "keys" / name, 1, 1)
        self.processes = {}
        try:
            self.start_all()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def start_all(self):
        self.start_credd()
        self.start_inject()
        self.dns = self.spawn("dns", ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", f"--port={self.port}",
                                      "--listen-address=127.0.0.1", "--bind-interfaces", "--user=root", "--pid-file="] + [f"--address=/{n}/{SERVER}" for n in NAMES] +
                                     [f"--address=/false.test/{OTHER}"])
        self.serve()

    def spawn(self, name, argv, **kw):
        p = subprocess.Popen(argv, stdout=self.log, stderr=self.log, **kw)
        self.processes[name] = p
        return p

    def kill(self, name):
        p = self.processes.pop(name)
        p.kill()
        p.wait()

    def later(self):
        """Where the date is another, if there is a CLOCK; `ahead` says by how much."""
        if not self.clock:
            return None
        if not (self.dir / "ahead").exists():
            self.ahead(0)
        return {**os.environ, "LD_PRELOAD": self.clock, "CLOCK_AHEAD": str(self.dir / "ahead"), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def ahead(self, days):
        with open(self.dir / "ahead", "r+b" if (self.dir / "ahead").exists() else "wb") as f:
            f.write(struct.pack("=q", days * 86400))

    def start_credd(self):
        self.spawn("credd", [self.credd_program, "--config", self.dir / "conf"], env=self.later())
        self.credd = credd.Client(f"{self.dir}/credd.sock")

    def start_inject(self):
        admin = self.dir / "inject/admin"
        admin.unlink(missing_ok=True)
        self.spawn("inject", [self.inject_program, "--config", self.dir / "conf"], preexec_fn=no_sockets_but_unix_ones)
        wait("HAProxy is there", admin.exists)

    def serve(self):
        self.pki.leaf("leaf", NAMES)
        sh("ip", "-n", self.far, "addr", "add", f"{OTHER}/24", "dev", "eth0")
        (self.dir / "nginx.conf").write_text(ECHO)
        self.spawn("nginx", ["ip", "netns", "exec", self.far, "nginx", "-p", str(self.dir), "-c", str(self.dir / "nginx.conf"), "-e", str(self.dir / "nginx.log")])
        wait("the server listens", lambda: ":443 " in sh("ip", "netns", "exec", self.far, "ss", "-ltn"))

    def __exit__(self, *exc):
        for name in list(self.processes):
            self.kill(name)
        super().__exit__(*exc)

    def guest(self, key, policy="allow tcp *.test:443,8443"):
        name = super().guest(key, policy)
        self.credd.know(key, 1000 if key == A else 1001)
        self.trust(key)
        return name

    def trust(self, key):
        text = self.credd.call(12, uid=1000 if key == A else 1001)[1]
        (self.dir / f"trust-{key}.pem").write_bytes(text)
        return text

    def look_up(self, name, host):
        """The guest asks, as its resolver does."""
        labels = b"".join(bytes([len(l)]) + l.encode() for l in host.split(".")) + b"\0"

        def go():
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.settimeout(5)
            for _ in range(5):
                s.sendto(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + labels + b"\0\x01\0\x01", ("192.0.0.1", 53))
                try:
                    return s.recv(512)[-4:]
                except TimeoutError:
                    pass
            raise AssertionError(f"no answer on {host}")
        return socket.inet_ntoa(in_namespace(name, go))

    def curl(self, name, key, url, *args, ca=None, check=True, input=None, env=None):
        host = url.split("/")[2].split(":")[0]
        port = (url.split("/")[2].split(":") + ["443"])[1]
        address = self.look_up(name, host)
        argv = ["ip", "netns", "exec", name, "curl", "-sS", "-m", "20", "--cacert", str(ca or self.dir / f"trust-{key}.pem"), "--resolve", f"{host}:{port}:{address}", url, *args]
        r = subprocess.run(argv, capture_output=True, text=True, input=input, env=env)
        if check and r.returncode:
            raise AssertionError(f"curl {url}: {r.returncode} {r.stderr}")
        return r.stdout if check else (r.returncode, r.stdout, r.stderr)


def parts(text):
    return text.strip().split("|")


def test_the_secret_is_added_and_the_guests_own_header_goes(w, g):
    for version in ("--http1.1", "--http2"):
        got = parts(w.curl(g, A, "https://api.test/x?a=1", version, "-H", "Authorization: Bearer mine", "-H", "authorization: again", "-H", "Cookie: c=1"))
        eq(f"Bearer {TOKEN.decode()}", got[1], "what the server was given")
        eq(("GET /x?a=1", "c=1"), (got[0].split(" ", 1)[1], got[3]), "the rest of the request")
        eq("HTTP/1.1" if version == "--http1.1" else "HTTP/2.0", got[0].split()[0], "what HAProxy speaks with the server")
    import base64
    eq("Basic " + base64.b64encode(b"ann:" + TOKEN).decode(), parts(w.curl(g, A, "https://basic.test/"))[1], "basic")
    eq([TOKEN.decode(), ""], parts(w.curl(g, A, "https://key.test/", "-H", "x-api-key: mine", "-H", "X-API-KEY: mine"))[2:0:-1], "a header of another name")
    eq(["k=" + TOKEN.decode(), ""], parts(w.curl(g, A, "https://cookie.test/", "-H", "cookie: mine", "-H", "Cookie: again"))[3:0:-2], "one that HAProxy has no rule for")
    eq(f"GET /p?a=1&b=%20&key={TOKEN.decode()}", parts(w.curl(g, A, "https://query.test/p?a=1&key=mine&b=%20&k%65y=2&key"))[0].split(" ", 1)[1], "query")
    eq(f"GET /?key={TOKEN.decode()}", parts(w.curl(g, A, "https://query.test/"))[0].split(" ", 1)[1], "query, where there is none")
    eq(f"Bearer {TOKEN.decode()}", parts(w.curl(g, A, "https://x.wild.test/"))[1], "a wildcard's")


def test_a_host_without_a_credential_is_never_decrypted(w, g):
    got = parts(w.curl(g, A, "https://plain.test/", "-H", f"Authorization: placeholder", ca=w.pki.pem))
    eq("placeholder", got[1], "what the server was given")
    code, _, err = w.curl(g, A, "https://plain.test/", check=False)
    eq(60, code, f"the server's own certificate is what the guest sees: {err}")
    w.credd.know(B, 1001)
    h = w.guest(B)
    got = parts(w.curl(h, B, "https://api.test/", "-H", "Authorization: placeholder", ca=w.pki.pem))
    eq("placeholder", got[1], "another tenant's guest")


def test_another_host_inside_of_the_connection_gets_nothing(w, g):
    for version in ("--http1.1", "--http2"):
        code, out, err = w.curl(g, A, "https://api.test/", version, "-H", "Host: plain.test", "-w", "%{http_code}", check=False)
        eq("421", out[-3:], "another Host")
    raw = b"GET https://plain.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n"
    status = talk(w, g, "api.test", raw).split(b" ")[1]
    assert status in (b"400", b"421"), status
    for raw in (b"GET / HTTP/1.1\r\nHost: api.test\r\nHost: plain.test\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        assert talk(w, g, "api.test", raw).split(b" ")[1] in (b"400", b"421")
    for method in (b"TRACE / HTTP/1.1", b"CONNECT api.test:443 HTTP/1.1"):
        assert talk(w, g, "api.test", method + b"\r\nHost: api.test\r\n\r\n").split(b" ")[1] in (b"400", b"405")


def connect(w, g, host, port=443, alpn=("http/1.1",), verify=True):
    address = w.look_up(g, host)
    raw = in_namespace(g, lambda: socket.create_connection((address, port), 20))
    ctx = ssl.create_default_context(cafile=str(w.dir / f"trust-{A}.pem"))
    ctx.set_alpn_protocols(list(alpn))
    if not verify:
        ctx.check_hostname = False
        ctx.verify_mode = ssl.CERT_NONE
    return ctx.wrap_socket(raw, server_hostname=host)


def comes(s, text):
    """Reads until it came: the head and the body of an answer may be records of their own. False: the connection ended before."""
    got = b""
    while text not in got:
        part = s.recv(65536)
        if not part:
            return False
        got += part
    return True


def talk(w, g, host, raw):
    with connect(w, g, host) as s:
        s.sendall(raw)
        return s.recv(65536)


def test_what_must_not_be_used_is_refused(w, g):
    def status(host):
        return w.curl(g, A, f"https://{host}/", "-w", "|%{http_code}", check=False)[1]
    eq("200", status("few.test")[-3:], "first use")
    assert status("few.test").endswith("|429"), status("few.test")
    wait("it expires", lambda: status("old.test").endswith("|403"), 5)
    assert "expire" in status("old.test"), status("old.test")
    late = w.credd.make(credd.scope(credd.TENANT, 1000), "late").id
    w.credd.set(late, credd.HOSTS, "late.test")
    assert status("late.test").endswith("|403")
    w.credd.value(late, TOKEN)
    with connect(w, g, "late.test") as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: late.test\r\n\r\n")
        assert comes(s, TOKEN)
        w.credd.call(credd.REMOVE, late)  # at once, and in a connection that is there
        s.sendall(b"GET / HTTP/1.1\r\nHost: late.test\r\n\r\n")
        eq(b"403", s.recv(65536).split(b" ")[1], "after it was removed")
    eq("placeholder", parts(w.curl(g, A, "https://late.test/", "-H", "Authorization: placeholder", ca=w.pki.pem))[1], "and in the next")


def test_a_server_that_cannot_be_verified_gets_nothing(w, g):
    other = Pki(w.dir, "other")
    other.leaf("false", ["false.test"])
    heard = []
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(w.dir / "false.pem", w.dir / "false.key")
    server = in_namespace(w.far, lambda: socket.create_server((OTHER, 8443)))

    def run():
        while True:
            c, _ = server.accept()
            try:
                with ctx.wrap_socket(c, server_side=True) as s:
                    heard.append(s.recv(65536))
            except OSError:
                pass
    threading.Thread(target=run, daemon=True).start()
    ident = w.credd.add(credd.scope(credd.TENANT, 1000), "false", "false.test:8443\nfalse.test", TOKEN, method="header Authorization Bearer {}")
    eq("503", w.curl(g, A, "https://false.test:8443/", "-w", "%{http_code}", check=False)[1][-3:], "its certificate is of a CA that nobody knows")
    eq([], [h for h in heard if h], "what it was given")
    w.credd.call(credd.REMOVE, ident)
    said = re.compile(rf"HAProxy: sandbox {A:012x}: false.test: 503 .*certificate verify failed")
    wait("the log says so", lambda: said.search((w.dir / "log").read_text()))


def test_what_haproxy_logs_is_limited(w, g):
    def lines():
        return [l for l in (w.dir / "log").read_text().splitlines() if "HAProxy: " in l]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect(str(w.dir / "inject/log"))
        for i in range(500):
            s.send(b"flood %d \x1b[2J\n" % i)
        wait("another line", lambda: s.send(b"one more") and any("HAProxy: one more" in l for l in lines()))
    flood = [l for l in lines() if "flood" in l]
    assert 1 <= len(flood) < 300 and flood[0].endswith("?[2J"), (len(flood), flood[:1])
    assert any(re.search(r"HAProxy: \d+ more lines were not written", l) for l in lines()), lines()[-3:]


def test_bodies_pass_as_they_are(w, g):
    """A server of our own: lengths, encodings, 100-continue, streaming, WebSocket, large bodies."""
    server = Server(w)
    ident = w.credd.add(credd.scope(credd.TENANT, 1000), "big", "big.test:8443", TOKEN, method="header Authorization Bearer {}")
    head, body = server.ask(g, b"GET /gzip HTTP/1.1\r\nHost: big.test:8443\r\nAccept-Encoding: gzip\r\n\r\n")
    eq((b"gzip", b"%d" % len(GZIP)), (head[b"content-encoding"], head[b"content-length"]), "headers of a compressed answer")
    eq(GZIP, body, "a compressed answer")
    # A length stays a length, for both versions; what has none is chunked.
    for version in ("--http1.1", "--http2"):
        got = json.loads(w.curl(g, A, "https://big.test:8443/headers", version, "--data-binary", "x" * 1000))
        eq(("1000", None, f"Bearer {TOKEN.decode()}"), (got.get("content-length"), got.get("transfer-encoding"), got.get("authorization")), f"an upload by {version}")
    # Nothing of the body is sent before the server says so, and its refusal comes through.
    with connect(w, g, "big.test", 8443) as s:
        s.sendall(b"POST /continue HTTP/1.1\r\nHost: big.test:8443\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        eq(b"HTTP/1.1 100", s.recv(65536)[:12], "before the body")
        s.sendall(b"12345")
        eq(b"HTTP/1.1 200", s.recv(65536)[:12], "after it")
        s.sendall(b"POST /refuse HTTP/1.1\r\nHost: big.test:8443\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        eq(b"HTTP/1.1 417", s.recv(65536)[:12], "a refusal before the body")
    # Pieces come when they are sent.
    with connect(w, g, "big.test", 8443) as s:
        s.sendall(b"GET /stream HTTP/1.1\r\nHost: big.test:8443\r\n\r\n")
        text = b""
        for i in range(3):
            while b"piece %d" % i not in text:
                text += s.recv(65536)
            assert b"piece %d" % (i + 1) not in text, text
            server.go.release()
    with connect(w, g, "big.test", 8443) as s:
        s.sendall(b"GET /socket HTTP/1.1\r\nHost: big.test:8443\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                  b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        answer = s.recv(65536)
        assert b" 101 " in answer.split(b"\r\n")[0] and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer, answer
        for _ in range(3):
            s.sendall(b"\x82\x85\x01\x02\x03\x04" + bytes(c ^ k for c, k in zip(b"hello", b"\x01\x02\x03\x04\x01")))
            eq(b"\x82\x05hello", s.recv(65536), "a frame's echo")
    # 1 GiB up and 64 MiB down, whole.
    size = 1 << 30
    for version, bytes_ in (("--http1.1", size), ("--http2", size >> 5)):
        got = in_namespace(g, lambda: subprocess.run(f"head -c {bytes_} /dev/zero | ip netns exec {g} curl -sS -m 100 {version} --cacert {w.dir}/trust-{A}.pem "
                           f"--resolve big.test:8443:{SERVER} -T - -H 'Content-Length: {bytes_}' https://big.test:8443/count", shell=True, capture_output=True, text=True))
        eq((f"{bytes_}", ""), (got.stdout, got.stderr), f"an upload by {version}")
    eq(64 << 20, int(w.curl(g, A, "https://big.test:8443/down", "-o", "/dev/null", "-w", "%{size_download}")), "a download")
    w.credd.call(credd.REMOVE, ident)


GZIP = bytes.fromhex("1f8b0800000000000203cb48cdc9c95728cf2fca49010085114a0d0b000000")


class Server:
    """HTTP/1.1 over TLS, by hand, so that nothing is prettied up."""

    def __init__(self, w):
        self.w = w
        self.go = threading.Semaphore(0)
        self.ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ctx.load_cert_chain(w.dir / "leaf.pem", w.dir / "leaf.key")
        self.ctx.set_alpn_protocols(["http/1.1"])
        self.listener = in_namespace(w.far, lambda: socket.create_server((SERVER, 8443), backlog=64))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            c, _ = self.listener.accept()
            threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def one(self, c):
        try:
            with self.ctx.wrap_socket(c, server_side=True) as s:
                f = s.makefile("rb")
                while line := f.readline():
                    self.request(s, f, line.split(b" ")[1])
        except OSError:
            pass  # what the client meets is what counts

    def request(self, s, f, path):
        headers = {}
        while (line := f.readline()) not in (b"\r\n", b""):
            key, value = line.split(b":", 1)
            headers[key.lower().decode()] = value.strip().decode()

        def answer(body, extra=b"", status=b"200 OK"):
            s.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n" % len(body) + extra + b"\r\n" + body)
        length = int(headers.get("content-length") or 0)
        if path == b"/gzip":
            answer(GZIP, b"Content-Encoding: gzip\r\n")
        elif path == b"/headers":
            f.read(length)
            answer(json.dumps(headers).encode())
        elif path == b"/continue":
            s.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            answer(f.read(length))
        elif path == b"/refuse":
            answer(b"", b"Connection: close\r\n", b"417 Expectation Failed")
        elif path == b"/stream":
            s.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(4):
                s.sendall(b"8\r\npiece %d\n\r\n" % i)
                if i < 3:
                    self.go.acquire(timeout=10)
            s.sendall(b"0\r\n\r\n")
        elif path == b"/socket":
            key = headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            import base64
            s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
                      base64.b64encode(hashlib.sha1(key).digest()) + b"\r\n\r\n")
            while frame := f.read(11):
                mask = frame[2:6]
                s.sendall(b"\x82\x05" + bytes(c ^ mask[i % 4] for i, c in enumerate(frame[6:])))
        elif path == b"/count":
            sum = 0
            if "chunked" in headers.get("transfer-encoding", ""):
                while n := int(f.readline(), 16):
                    sum += len(f.read(n + 2)) - 2
                f.readline()
            buffer = bytearray(1 << 18)
            while sum < length and (n := f.readinto(memoryview(buffer)[:min(len(buffer), length - sum)])):
                sum += n
            answer(b"%d" % sum)
        elif path == b"/down":
            s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
            for _ in range(64):
                s.sendall(bytes(1 << 20))

    def ask(self, g, raw):
        with connect(self.w, g, "big.test", 8443) as s:
            s.sendall(raw)
            f = s.makefile("rb")
            f.readline()
            head = {}
            while (line := f.readline()) != b"\r\n":
                key, value = line.split(b":", 1)
                head[key.lower()] = value.strip()
            return head, f.read(int(head[b"content-length"]))


def test_whoever_dies_nothing_leaves_unchecked_and_all_comes_back(w, g):
    def works():
        code, out, _ = w.curl(g, A, "https://api.test/", "-m", "15", check=False)
        return code == 0 and TOKEN.decode() in out
    assert works()
    # HAProxy: connections end, and the next are refused.
    with connect(w, g, "api.test") as s:
        w.kill("inject")
        try:
            s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            eq(b"", s.recv(100), "after HAProxy's end")
        except OSError:
            pass
    code, out, err = w.curl(g, A, "https://api.test/", "-H", "Authorization: placeholder", check=False)
    assert code in (35, 56) and not out, (code, out, err)
    code, out, err = w.curl(g, A, "https://api.test/", "-H", "Authorization: placeholder", ca=w.pki.pem, check=False)
    assert code in (35, 56) and not out, (code, out, err)
    eq("ok", parts(w.curl(g, A, "https://plain.test/", "-H", "Authorization: ok", ca=w.pki.pem))[1], "a host without a credential, meanwhile")
    w.start_inject()
    wait("it works again", works)
    # space-credd: no secret, and no new connection whose name nobody can judge.
    with connect(w, g, "api.test") as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert comes(s, TOKEN)
        w.kill("credd")
        s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        eq(b"503", s.recv(65536).split(b" ")[1], "a request without space-credd")
    began = time.monotonic()
    code, out, _ = w.curl(g, A, "https://plain.test/", ca=w.pki.pem, check=False)
    assert code in (35, 56) and not out, (code, out)
    assert 4 < time.monotonic() - began < 10, time.monotonic() - began
    w.start_credd()
    w.credd.know(A, 1000)
    wait("it works again", works)
    eq("ok", parts(w.curl(g, A, "https://plain.test/", "-H", "Authorization: ok", ca=w.pki.pem))[1], "a host without a credential")


def test_certificates_are_renewed_and_connections_go_on(w, g):
    """In HAProxy itself: the next certificate of a host, and of the next CA, which guests were given with the one before."""
    def works(s):
        s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        return comes(s, TOKEN)

    def verified(ca=None):
        code, out, _ = w.curl(g, A, "https://api.test/", env=w.later(), ca=ca, check=False)
        return code, TOKEN.decode() in out

    def shown():
        with connect(w, g, "api.test", verify=False) as s:
            assert works(s)
            return s.getpeercert(True)
    before = w.dir / f"trust-{A}.pem"
    with connect(w, g, "api.test") as s:
        assert works(s)
        seen = [shown()]
        eq(seen[0], shown(), "the certificate of another connection")
        for days in (8, 180, 360):  # a week before its end; the next CA; the one after that
            w.ahead(days)
            seen.append(shown())
            eq(len(seen), len(set(seen)), f"certificates after {days} days")
            eq((0, True) if days < 360 else (60, False), verified(before), f"with the CAs of the first day, after {days} days")
            assert works(s), "the connection of the first day"
        os.rename(before, old := w.dir / "trust-old.pem")
        w.trust(A)
        eq((0, True), verified(), "with the CAs of that day")
        w.ahead(0)
        eq((0, True), verified(old), "the first day again, after a clock that was wrong")
        os.rename(old, before)
        assert works(s)


def test_a_connection_goes_with_the_policy_and_only_where_it_was_pinned(w, g):
    with connect(w, g, "api.test") as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert comes(s, TOKEN)
        w.ask(POLICY, A, A, "allow tcp plain.test:443")
        try:
            s.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
            eq(b"", s.recv(100), "after the policy changed")
        except OSError:
            pass
    w.ask(POLICY, A, A, "allow tcp *.test:443,8443")
    # HAProxy's way out takes nobody else, and no connection that it was not given.
    out = str(w.dir / "inject/out")
    for ident in (b"0000000000a1.0123456789abcdef", b"x" * 29):
        s = socket.socket(socket.AF_UNIX)
        s.connect(out)
        tlv = b"\x05\0\x1d" + ident
        s.sendall(b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H", 12 + len(tlv)) + bytes(12) + tlv)
        s.settimeout(10)
        eq(b"", s.recv(10), "a connection that nobody gave it")
    r = subprocess.run(["setpriv", "--reuid=games", "--clear-groups", "python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({out!r})"], capture_output=True, text=True)
    assert "PermissionError" in r.stderr, r.stderr


def question(sock, sandbox, name, tag, port=443):
    """As space-netd asks (lib/ipc/inject.h): verdict, slot, sentence."""
    sock.send(struct.pack("=IIQQ256s", 1, port, tag, sandbox, name.encode()))
    _, verdict, _, slot, sentence = struct.unpack("=IIQI228s", sock.recv(4096)[:248])
    return verdict, slot, sentence.rstrip(b"\0").decode()


def text(word):
    return bytes([len(word)]) + word  # shorter than 240


def frame(kind, stream, payload):
    body = struct.pack(">BIBB", kind, 1, stream, 0) + payload
    return struct.pack(">I", len(body)) + body


def test_requests_that_come_together_are_each_answered(w, g, count=600):
    """As HAProxy asks (lib/ipc/inject.h, SPOE 2.0): more than one read of space-credd's holds, and more than it sends at once; every second is nobody's."""
    string, number = b"\x08", b"\x03"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as netd, socket.socket(socket.AF_UNIX) as s:
        netd.connect(str(w.dir / "inject/ask"))
        s.connect(str(w.dir / "inject/spoe"))
        netd.settimeout(20)
        s.settimeout(20)
        eq(2, question(netd, A, "api.test", 77)[0], "it is to be decrypted")
        replies = s.makefile("rb")

        def reply():
            return replies.read(struct.unpack(">I", replies.read(4))[0])
        s.sendall(frame(1, 0, text(b"supported-versions") + string + text(b"2.0") + text(b"max-frame-size") + number + b"\xfc\xf0\x06" + text(b"capabilities") + string + text(b"")))
        eq(101, reply()[0], "hello")
        asks = [frame(3, i % 200, text(b"use") + b"\4" + text(b"id") + string + text(b"%012x.%016x" % (A, 77 + i % 2)) + text(b"name") + string + text(b"api.test") +
                      text(b"port") + number + b"\xfb\x0c" + text(b"method") + string + text(b"GET")) for i in range(count)]
        s.sendall(b"".join(asks))
        for i in range(count):
            got = reply()
            eq((103, i % 200), (got[0], got[5]), f"answer {i}")
            assert (TOKEN if i % 2 == 0 else b"knows of no such connection") in got and (TOKEN in got) == (i % 2 == 0), (i, got)


def runtime(w, command):
    """What HAProxy answers, in words."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(w.dir / "inject/admin"))
        s.sendall(command.encode() + b"\n")
        return s.makefile("rb").read().decode().split()


def test_tenants_beyond_the_slots_wait_and_names_beyond_the_list_replace_the_oldest(w, g):
    PASS, SLOT, REFUSE, WAIT = 1, 2, 3, 4
    every = w.credd.add(credd.scope(credd.PLATFORM), "every", "*.many.test", TOKEN, method="header Authorization Bearer {}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(str(w.dir / "inject/ask"))
        s.settimeout(20)
        eq(WAIT, question(s, 0xfff, "a.many.test", 1)[0], "a sandbox that nobody told of")
        verdicts = []
        for i in range(66):
            w.credd.know(0x1000 + i, 5000 + i)
            verdicts.append(question(s, 0x1000 + i, "a.many.test", 100 + i))
        slots = {v[1] for v in verdicts if v[0] == SLOT}
        refused = [v for v in verdicts if v[0] == REFUSE]
        assert 62 <= len(slots) <= 64 and len(slots) + len(refused) == 66 and "too many tenants" in refused[0][2], (len(slots), refused)
        eq(PASS, question(s, 0x1000, "a.few.test", 1)[0], "a name without a credential")
        # A slot holds 1,024 names; the oldest goes, and what is asked again comes back.
        for i in range(1030):
            eq(SLOT, question(s, 0x1000, f"n{i}.many.test", 10000 + i)[0], f"name {i}")
        eq(SLOT, question(s, 0x1000, "a.many.test", 2)[0], "the first one again")
        listed = runtime(w, f"show ssl crt-list {w.dir}/inject/list-{verdicts[0][1]}")
        eq((1024, True, False), (len([l for l in listed if "many.test" in l]), any(l.endswith("/a.many.test") for l in listed), any(l.endswith("/n0.many.test") for l in listed)), "the list")
    w.credd.call(credd.REMOVE, every)


def test_haproxy_can_reach_nothing_else_and_leaves_no_trace(w, g):
    pid = w.processes["inject"].pid
    assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    eq(["2"] * 4, re.search(r"Uid:(.*)", status)[1].split(), "its user")
    eq("0" * 16, re.search(r"CapEff:\s*(\w+)", status)[1], "its capabilities")
    eq(str(w.dir / "inject"), os.readlink(f"/proc/{pid}/root"), "its root")
    for path in w.dir.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert TOKEN not in path.read_bytes(), f"the secret is in {path}"


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Injecting(*sys.argv[1:5]) as w:
        tenant = credd.scope(credd.TENANT, 1000)
        w.ask(1)
        w.credd.add(tenant, "api", "api.test\n*.wild.test", TOKEN, method="header Authorization Bearer {}")
        w.credd.add(tenant, "basic", "basic.test", TOKEN, method="basic ann")
        w.credd.add(tenant, "query", "query.test", TOKEN, method="query key")
        w.credd.add(tenant, "key", "key.test", TOKEN, method="header X-Api-Key {}")
        w.credd.add(tenant, "cookie", "cookie.test", TOKEN, method="header Cookie k={}")
        w.credd.add(tenant, "few", "few.test", TOKEN, method="header Authorization {}", rate="1/1h")
        w.credd.add(tenant, "old", "old.test", TOKEN, method="header Authorization {}", expires="1s")
        g = w.guest(A)
        for name, test in list(globals().items()):
            if name.startswith("test_") and (len(sys.argv) < 6 or any(a in name for a in sys.argv[5:])):
                began = time.monotonic()
                test(w, g)
                print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
