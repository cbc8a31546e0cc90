# SPDX-License-Identifier: Apache-2.0
"""What runs in the guest of ports.py: servers of every temper, each on a port of its own."""
import base64
import functools
import hashlib
import http.server
import os
import socket
import socketserver
import struct
import threading
import time

PIECE = 1 << 16


class Web(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        left, hash_ = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            data = self.rfile.read(min(left, PIECE))
            hash_.update(data)
            left -= len(data)
        body = hash_.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def echo(c):
    while data := c.recv(PIECE):
        c.sendall(data)


def digest(c):
    """Answers once the other side sends no more."""
    hash_, count = hashlib.sha256(), 0
    while data := c.recv(PIECE):
        hash_.update(data)
        count += len(data)
    c.sendall(f"{count} {hash_.hexdigest()}".encode())


def greeting(c):
    c.sendall(b"220 welcome\r\n")


def deaf(c):
    time.sleep(1000)


def reset(c):
    c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def flood(c):
    """As much as it gets rid of, which is written to a file."""
    c.settimeout(3)
    sent = 0
    try:
        while True:
            sent += c.send(bytes(PIECE))
    except OSError:
        with open("/flood.new", "w") as f:
            f.write(str(sent))
        os.rename("/flood.new", "/flood")


def websocket(c):
    """The handshake of RFC 6455, then an echo of whatever comes."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += c.recv(PIECE)
    key = next(l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    echo(c)


def serve(port, talk, family=socket.AF_INET, at="127.0.0.1"):
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((at, port))
    listener.listen(512)

    def one(c):
        with c:
            try:
                talk(c)
            except OSError:
                pass

    def run():
        while True:
            c, _ = listener.accept()
            threading.Thread(target=one, args=(c,), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()


os.makedirs("/www", exist_ok=True)
with open("/www/large", "wb") as f:
    f.write(hashlib.shake_128(b"large").digest(4 << 20))
socketserver.ThreadingTCPServer.allow_reuse_address = True
web = socketserver.ThreadingTCPServer(("127.0.0.1", 8000), functools.partial(Web, directory="/www"))
web.daemon_threads = True
for port, talk in ((9001, echo), (9002, digest), (9003, greeting), (9004, deaf), (9005, reset), (9006, flood), (9008, websocket)):
    serve(port, talk)
silent = socket.create_server(("127.0.0.1", 9009), backlog=512)  # its connections are the kernel's
serve(9007, greeting, socket.AF_INET6, "::1")
print("ready", flush=True)
web.serve_forever()
