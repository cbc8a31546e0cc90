#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests a second with a credential put in (guest, netd, HAProxy with credd, netd, server) beside HAProxy alone with the same TLS (client, HAProxy, server). Bar: 70 %.

injection.py SPACE-NETD SPACE-CREDD SPACE-INJECT [ROUNDS]; as root, on a quiet machine. Needs h2load (nghttp2-client)."""
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit", "credd"))
from inject import *  # noqa: E402,F403

REQUESTS, CLIENTS = 20000, 16
ALONE = """global
    nbthread {threads}
    tune.bufsize 32768
    tune.ssl.default-dh-param 2048
    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets
defaults
    mode http
    timeout connect 30s
    timeout client 1h
    timeout server 1h
frontend in
    bind {host}:8444 ssl crt {dir}/alone.pem alpn h2,http/1.1
    option http-no-delay
    http-request set-header Authorization "Bearer {token}"
    use_backend out-h1 unless {{ ssl_fc_alpn h2 }}
    default_backend out-h2
backend out-h1
    http-reuse never
    server far {server}:443 ssl verify required ca-file {ca} sni str(api.test) alpn http/1.1 no-ssl-reuse
backend out-h2
    http-reuse never
    server far {server}:443 ssl verify required ca-file {ca} sni str(api.test) alpn h2,http/1.1 no-ssl-reuse
"""


def load(namespace, to, size, *args):
    """Requests a second; all must have been answered, with as many bytes as the server says when it was given the secret (h2load counts no codes of HTTP/1.1)."""
    argv = ["ip", "netns", "exec", namespace] if namespace else []
    out = subprocess.run(argv + ["h2load", "-n", str(REQUESTS), "-c", str(CLIENTS), "-t", "1", *args, f"--connect-to={to}", "https://api.test/"], capture_output=True, text=True).stdout
    if f"({REQUESTS * size}) data" not in out:
        raise AssertionError(out)
    return float(re.search(r"([\d.]+) req/s", out)[1])


def main():
    with Injecting(*sys.argv[1:4]) as w:
        rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
        w.ask(1)
        w.credd.add(credd.scope(credd.TENANT, 1000), "api", "api.test", TOKEN, method="header Authorization Bearer {}")
        g = w.guest(A)
        size = len(w.curl(g, A, "https://api.test/"))
        certificate, key = w.pki.leaf("alone", ["api.test"])
        (w.dir / "alone.pem").write_text(open(certificate).read() + open(key).read())
        os.rename(w.dir / "alone.pem", w.dir / "alone.both")
        (w.dir / "alone.cfg").write_text(ALONE.format(host=HOST, dir=w.dir, server=SERVER, token=TOKEN.decode(), ca=w.pki.pem, threads=os.cpu_count()).replace("alone.pem", "alone.both"))
        w.spawn("alone", ["haproxy", "-q", "-db", "-f", str(w.dir / "alone.cfg")])
        wait("HAProxy alone listens", lambda: f"{HOST}:8444" in sh("ss", "-ltn"))
        for what, args in (("HTTP/1.1", ["--h1"]), ("HTTP/2, 10 streams", ["-m", "10"])):
            alone, ours = [], []
            for _ in range(rounds):
                alone.append(load(w.far, f"{HOST}:8444", size, *args))
                ours.append(load(g, f"{SERVER}:443", size, *args))
                time.sleep(1)  # a guest may begin so many connections a second
            a, o = statistics.median(alone), statistics.median(ours)
            print(f"{what}: HAProxy alone {a:.0f} requests/s, injected {o:.0f}: {o / a:.2f} (bar 0.70)", flush=True)


if __name__ == "__main__":
    main()
