#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of HTTPS: server.py ADDRESS CERTIFICATE KEY. Says `seen`, and tells what it was sent only on its standard output, a line of JSON each request."""
import http.server
import json
import socketserver
import ssl
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        print(json.dumps({"path": self.path, "host": self.headers["Host"], "authorization": self.headers.get_all("Authorization") or []}), flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"seen\n")

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
