#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""space-credd with its values in Vault: vault.py SPACE_CREDD. As root.

Debian has no package of Vault or OpenBao. What answers here is a server over TLS with the part of their KV version 2 API that is used, as
https://developer.hashicorp.com/vault/api-docs/secret/kv/kv-v2 describes it: versions, check of the token, errors.
"""
import errno
import http.server
import json
import os
import pathlib
import ssl
import subprocess
import sys
import threading
import time

from client import REMOVE, SANDBOX, TENANT, USER, Daemon, scope
from daemon import fails, nothing_plain, password

BOX = 0xA1
SECRET = b'quo"te\\back/slash \xc3\xa9'
TOKEN = "hvs.CAESIJ-token-for-tests"


class Vault(http.server.ThreadingHTTPServer):
    """Mount `kv`: PATH to its versions."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.kv, self.status, self.token, self.asked = {}, None, TOKEN, 0
        run = lambda *words: subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=vault", "-addext", "subjectAltName=IP:127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/ca.pem", f"{folder}/server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=None):
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self, act):
        s = self.server
        s.asked += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, v1, mount, kind, path = self.path.split("/", 4)
        if self.headers.get("X-Vault-Token") != s.token:
            self.answer(403, {"errors": ["permission denied"]})
        elif s.status:
            self.answer(s.status, {"errors": ["sealed"]})
        elif (v1, mount) != ("v1", "kv"):
            self.answer(404, {"errors": []})
        else:
            act(kind, path, body)

    def do_PUT(self):
        def put(kind, path, body):
            versions = self.server.kv.setdefault(path, [])
            versions.append(json.loads(body)["data"])
            self.answer(200, {"request_id": "1", "data": {"created_time": "2026-11-30T00:00:00Z", "deletion_time": "", "destroyed": False, "version": len(versions)}})

        self.handle_one(put)

    def do_GET(self):
        def get(kind, path, _):
            versions = self.server.kv.get(path)
            if kind != "data" or not versions:
                self.answer(404, {"errors": []})
                return
            self.answer(200, {"request_id": "2", "lease_id": "", "renewable": False, "lease_duration": 0, "data": {
                "data": versions[-1], "metadata": {"version": len(versions), "custom_metadata": None, "destroyed": False, "list": [1, {"data": "no"}]}}, "warnings": None})

        self.handle_one(get)

    def do_DELETE(self):
        def delete(kind, path, _):
            if kind == "metadata":
                self.server.kv.pop(path, None)
            self.answer(204)

        self.handle_one(delete)


def wait(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def main(program):
    d = Daemon(program)
    vault = Vault(d.folder)
    place = f"{d.folder}/vault"
    os.mkdir(place, 0o755)

    def write(name, text):
        path = f"{place}/{name}"
        pathlib.Path(path).write_text(text, encoding="ascii")
        os.chmod(path, 0o600)
        subprocess.run(["chown", USER, path], check=True)

    settings = f"url = {vault.url}\nmount = kv\nprefix = team/space\ntoken = token\nca = ca.pem\ncache = 1s\n"
    write("token", TOKEN + "\n")
    write("ca.pem", pathlib.Path(f"{d.folder}/ca.pem").read_text(encoding="ascii"))
    write("where", settings)
    with open(d.config, "a", encoding="ascii") as f:
        f.write(f"credential_store = {place}/where\n")
    with d:
        c = d.client()
        c.know(BOX, 1000)
        login = lambda: password(c.login(BOX, "https://a.example"))
        ident = c.add(scope(TENANT, 1000), "a", "a.example", SECRET)
        assert vault.kv == {"team/space/tenant/1000/a": [{"value": SECRET.decode()}]}, vault.kv
        assert login() == SECRET.decode()
        before = vault.asked
        login()
        assert vault.asked == before, "what was put is kept for a second"
        # An operator writes another one there; it counts within `cache`.
        vault.kv["team/space/tenant/1000/a"].append({"value": "by the operator \u20ac", "other": 1})
        time.sleep(1.1)
        assert login() == "by the operator \u20ac"
        # What cannot be had is refused; nothing else is taken in its place.
        for change, code in [({"value": ""}, errno.EAGAIN), ({"value": 7}, errno.EAGAIN), ({}, errno.EAGAIN)]:
            time.sleep(1.1)
            vault.kv["team/space/tenant/1000/a"].append(change)
            fails(code, login)
        vault.kv["team/space/tenant/1000/a"].append({"value": "good"})
        for status in (500, 503, 429):
            vault.status = status
            fails(errno.EAGAIN, login)
        vault.status = None
        assert login() == "good"
        time.sleep(1.1)
        vault.token = "another"
        fails(errno.EAGAIN, login)
        write("token", "another")  # renewed by an agent: read again
        assert login() == "good"
        b = c.make(scope(SANDBOX, 1000, BOX), "b").id
        c.set(b, 1, "b.example")
        vault.status = 503
        assert "503" in fails(errno.EAGAIN, c.value, b, b"x")
        assert not next(r for r in d.client(hostd=0).records if r.name == "b").has_value
        vault.status = None
        c.value(b, b"x")
        assert "team/space/sandbox/0000000000a1/b" in vault.kv
        c.value(b, b"")
        wait(lambda: "team/space/sandbox/0000000000a1/b" not in vault.kv)
        c.call(REMOVE, ident)
        wait(lambda: not vault.kv)
        fails(errno.ENOENT, login)
        d.kill()
        nothing_plain(d, SECRET, b"by the operator", json.dumps(SECRET.decode())[1:-1].encode())
        # Somebody else's certificate is not Vault's.
        write("where", settings.replace("ca = ca.pem\n", ""))
        d.start()
        c = d.client()
        c.know(BOX, 1000)
        e = c.make(scope(SANDBOX, 1000, BOX), "e").id
        c.set(e, 1, "a.example")
        assert "certificate" in fails(errno.EAGAIN, c.value, e, b"x").lower()
        for wrong in (settings.replace("https://127.0.0.1", "http://192.0.2.1"), settings.replace("token = token\n", ""), settings + "colour = red\n"):
            d.kill()
            write("where", wrong)
            d.start()
            assert "where" in d.ends()
        write("where", settings)


if __name__ == "__main__":
    main(sys.argv[1])
