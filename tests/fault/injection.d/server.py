#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of HTTPS: server.py ADDRESS CERTIFICATE KEY FOLDER. /files/ are the folder's, for who sends a token; to all else it says `seen`. It tells what it was sent only on its standard output,
a line of JSON each request."""
import http.server
import json
import os
import socketserver
import ssl
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        print(json.dumps({"path": self.path, "host": self.headers["Host"], "authorization": self.headers.get_all("Authorization") or []}), flush=True)
        status, body = self.file() if self.path.startswith("/files/") else (200, b"seen\n")
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self):
        name = os.path.join(sys.argv[4], self.path.partition("?")[0].removeprefix("/files/"))
        if not self.headers.get("Authorization", "").startswith("Bearer tok"):
            return 401, b""
        try:
            with open(os.path.join(name, "index.html") if name.endswith("/") else name, "rb") as f:
                return 200, f.read()
        except OSError:
            return 404, b""

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server = Server((sys.argv[1], 443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
