# SPDX-License-Identifier: Apache-2.0
"""The servers that guests of the egress tests reach: on each address of its namespace, port 22 says who it is at once; 80, 443 and 5000 answer each
piece of data with "got:" and its length; 5001 sends without end. A line on standard output for each connection: address, port."""
import socket
import sys
import threading


def serve(connection, port, name):
    try:
        if port == 22:
            connection.sendall(b"SSH-2.0-test\r\n")
        while port == 5001:
            connection.sendall(b"x" * 65536)
        while data := connection.recv(65536):
            connection.sendall(b"got:%d" % len(data))
    except OSError:
        pass
    connection.close()


def listen(port):
    s = socket.create_server(("0.0.0.0", port), backlog=4096)
    while True:
        connection, _ = s.accept()
        print(connection.getsockname()[0], port, flush=True)
        threading.Thread(target=serve, args=(connection, port, ""), daemon=True).start()


for p in (22, 80, 443, 5000, 5001):
    threading.Thread(target=listen, args=(p,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
