# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of an HTTP server which damages answers, or gives its own. Faults are given as a function from (method, path, number of
this request) to the name of a fault, or None."""

import http.client
import http.server
import threading
import time

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>"


class Proxy:
    def __init__(self, server):
        self.server_behind, self.target, self.fault, self.lock = server, server.port, lambda *_: None, threading.RLock()
        self.seen, self.active, self.most, self.delay = [], 0, 0, 0.0
        self.rate, self.free = 0, 0.0  # bytes a second that answers have together (0: no limit); from when on the next one has them
        self.released = threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def __getattr__(self, name):
                if name.startswith("do_"):
                    return lambda: proxy.handle(self)
                raise AttributeError(name)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_):  # clients that go away
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def reset(self, fault=None):
        self.released.set()
        with self.lock:
            self.fault, self.seen, self.most, self.delay = fault or (lambda *_: None), [], 0, 0.0
        self.released = threading.Event()

    def count(self, method, part=""):
        with self.lock:
            return sum(1 for m, p in self.seen if m == method and part in p)

    def handle(self, h):
        body = h.rfile.read(int(h.headers.get("Content-Length") or 0))
        with self.lock:
            number = len(self.seen)
            self.seen.append((h.command, h.path))
            fault, released = self.fault(h.command, h.path, number), self.released
            self.active += 1
            self.most = max(self.most, self.active)
        time.sleep(self.delay)
        with self.lock:
            self.active -= 1  # before the client can know and send the next
        self.answer(h, body, fault, released)

    def answer(self, h, body, fault, released):
        kind, _, argument = (fault or "").partition(" ")
        if kind == "status":  # "status 503 SlowDown"
            status, code = argument.split(" ")
            return self.send(h, int(status), {"Content-Type": "application/xml"}, ERROR.format(code=code).encode())
        if kind == "portal":
            return self.send(h, 200, {"Content-Type": "text/html"}, b"<html>please log in</html>")
        if kind == "hang":
            released.wait(60)
            h.close_connection = True
            return None
        if kind == "drop":
            h.close_connection = True
            return None
        if kind == "portal-404":
            return self.send(h, 404, {"Content-Type": "text/html"}, b"<html>no such page</html>")
        if kind == "ignore-condition":
            return self.send(h, *self.forward_without(h, body))
        status, headers, data = self.forward(h, body)
        self.pace(len(data))
        if kind == "drop-after":  # carried out, and nobody hears of it
            h.close_connection = True
        elif kind == "short":
            self.send(h, status, headers, data, data[: len(data) // 2])
            h.close_connection = True
        elif kind == "short-length":  # consistent in itself
            self.send(h, status, headers, data[: len(data) // 2])
        elif kind == "wrong":
            self.send(h, status, headers, bytes([data[0] ^ 1]) + data[1:] if data else data)
        elif kind == "long":
            self.send(h, status, headers, data + b"more")
        elif kind == "slow":
            self.send(h, status, headers, data, data[:100])
            for i in range(100, len(data)):
                if released.wait(0.05):
                    break
                h.wfile.write(data[i : i + 1])
                h.wfile.flush()
            h.close_connection = True
        else:
            self.send(h, status, headers, data)
        return None

    def pace(self, size):
        if not self.rate:
            return
        with self.lock:
            now = time.monotonic()
            self.free = max(self.free, now) + size / self.rate
            wait = self.free - now
        time.sleep(wait)

    def forward(self, h, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        connection.putrequest(h.command, h.path, skip_host=True, skip_accept_encoding=True)
        for name, value in h.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        data = reply.read()
        headers = {k: v for k, v in reply.headers.items() if k.lower() not in ("transfer-encoding", "connection")}
        connection.close()
        return reply.status, headers, data

    def forward_without(self, h, body):
        """Without If-None-Match, signed anew: a server that does not know it."""
        path, _, query = h.path.partition("?")
        kept = {k.lower(): v for k, v in h.headers.items() if k.lower() in ("x-amz-meta-space-sha256", "range", "content-type")}
        status, headers, data = self.server_behind.request(h.command, path, query, body, kept)
        return status, {k: v for k, v in headers.items() if k.lower() not in ("transfer-encoding", "connection")}, data

    @staticmethod
    def send(h, status, headers, data, part=None):
        h.send_response_only(status)
        length = headers.get("Content-Length", "0") if h.command == "HEAD" else str(len(data))
        for name, value in {**headers, "Content-Length": length}.items():
            if status != 204 or name != "Content-Length":
                h.send_header(name, value)
        h.end_headers()
        if h.command != "HEAD":
            h.wfile.write(data if part is None else part)
        h.wfile.flush()
