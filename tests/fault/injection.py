#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""Credentials put into the requests of a real guest: what its server is given, what the guest sees and trusts, and whichever daemon dies. What is done to requests in detail:
tests/unit/credd/inject.py."""
import json
import os
import secrets
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import *

HERE = os.path.dirname(os.path.abspath(__file__))
NS = f"in{os.getpid()}"
HOST, SERVER = "45.45.46.1", "45.45.46.10"
DNS_PORT = 20000 + os.getpid() % 10000
NAMES = ["api.test", "plain.test"]
TOKEN = "tok" + secrets.token_hex(16)
MINE = "/O=spacefs/CN=spacefs tenant 0 CA "


def sh(text):
    subprocess.run(text, shell=True, check=True, capture_output=True)


class World:
    """A server with two names, a name server, a CA that only the host trusts, and one sandbox that ran before there was any credential."""

    def __init__(self):
        sh(f"ip netns add {NS}")
        defer(subprocess.run, ["ip", "netns", "del", NS])
        sh(f"ip link add {NS}a type veth peer name {NS}b && ip link set {NS}b netns {NS} && ip addr add {HOST}/24 dev {NS}a && ip link set {NS}a up")
        defer(subprocess.run, ["ip", "link", "del", f"{NS}a"])
        sh(f"ip -n {NS} addr add {SERVER}/24 dev {NS}b && ip -n {NS} link set {NS}b up && ip -n {NS} link set lo up")
        self.pki()
        self.log = open(f"{TESTTMP}/server.log", "w+")
        self.start("ip", "netns", "exec", NS, sys.executable, f"{HERE}/injection.d/server.py", SERVER, f"{TESTTMP}/leaf.pem", f"{TESTTMP}/leaf.key", f"{TESTTMP}/www", stdout=self.log)
        self.start("dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", f"--port={DNS_PORT}", "--listen-address=127.0.0.1",
                   "--bind-interfaces", "--user=root", "--pid-file=", *[f"--address=/{n}/{SERVER}" for n in NAMES])
        self.configure()
        self.box = Box()
        self.give_client(self.box)
        wait_until(lambda: "ready" in open(self.log.name).read(), 15, "the server listens")

    @staticmethod
    def start(*argv, **kw):
        process = subprocess.Popen(argv, **kw)

        def end():
            process.kill()
            process.wait()
        defer(end)

    @staticmethod
    def pki():
        at = lambda name: f"{TESTTMP}/{name}"
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        sh(f"openssl req -x509 {key} -keyout {at('up.key')} -out {at('up.pem')} -days 30 -subj '/CN=upstream CA' -addext keyUsage=critical,keyCertSign")
        sh(f"openssl req {key} -keyout {at('leaf.key')} -out {at('leaf.csr')} -subj /O=test; echo subjectAltName={','.join('DNS:' + n for n in NAMES)} > {at('leaf.ext')};"
           f"openssl x509 -req -in {at('leaf.csr')} -CA {at('up.pem')} -CAkey {at('up.key')} -CAcreateserial -days 20 -extfile {at('leaf.ext')} -out {at('leaf.pem')}")
        sh(f"cc -O1 -static -o {at('tls')} {HERE}/injection.d/tls.c -lssl -lcrypto")

    @staticmethod
    def configure():
        """netd asks our name server, and HAProxy trusts our server's CA, until the end."""
        conf = os.environ["SPACE_CONFIG"]
        before = open(conf).read()

        def put(text):
            with open(conf, "w") as f:
                f.write(text)
            restart("netd", "inject")
        defer(put, before)
        put(before + f"\nresolver = 127.0.0.1:{DNS_PORT}\ninject_ca = {TESTTMP}/up.pem\n")

    @staticmethod
    def give_client(box):
        shutil.copy(f"{TESTTMP}/tls", box.root("tls"))
        shutil.copy(f"{TESTTMP}/up.pem", box.root("up.pem"))
        box.set("egress", "allow tcp *.test:443\n")

    def seen(self):
        """What the server was sent since the last time."""
        self.log.seek(0)
        lines = [json.loads(l) for l in self.log.read().splitlines() if l != "ready"]
        new, self.count = lines[getattr(self, "count", 0):], len(lines)
        return new


def restart(*names):
    for name in names:
        daemon_back(name, kill_daemon(name))
    haproxy_answers()


def haproxy_answers():
    def answers():
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(f"{config()['run']}/inject/admin")
            return True
        except OSError:
            return False
    wait_until(answers, 20, "HAProxy answers")


world = None


def ask(name, box=None, trust=""):
    """The guest's request with a placeholder: its lines."""
    return (box or world.box).run(f"{trust} /tls {name} 443 'Authorization: placeholder'").out.splitlines()


def works(box=None):
    lines = ask("api.test", box)
    return lines[0].startswith(MINE) and lines[-1] == "seen"


@check(limit=120)
def a_credential_reaches_its_host_and_the_guest_trusts_what_it_sees():
    eq("unable to get local issuer certificate", ask("api.test")[0], "what the guest thinks of a server that it does not know")
    eq("", world.box.out("ls /run/space 2>/dev/null || true"), "what a guest is told without any credential")
    mute = Box()
    pid = mute.mute()
    make("tenant", "injected", "api.test\n", "header Authorization Bearer {}\n", TOKEN)
    defer(os.rmdir, path("credentials", "tenant", "injected"))
    wait_until(lambda: is_told(world.box), 15, "a guest that runs is told its CA, whoever does not answer")
    given_up = f"sandbox {mute.get('id')} is not told its CA"
    wait_until(lambda: given_up in open(f"{os.environ['SPACE_DIR']}/log/hostd/current", errors="replace").read(), 15, "one that does not answer is given up")
    wake(pid)
    wait_until(lambda: is_told(mute), 15, "it is told once it answers")
    mute.remove()
    world.seen()
    lines = ask("api.test")
    if not lines[0].startswith(MINE):
        fail(f"the guest saw {lines}")
    eq([{"path": "/", "host": "api.test:443", "authorization": [f"Bearer {TOKEN}"]}], world.seen(), "what the server was given")
    has("it is decrypted", world.box.get("net"), "net")
    has("api.test", read("credentials", "tenant", "injected", "log"), "the credential's log")


def is_told(box):
    return "BEGIN" in box.out("cat /run/space/ca.pem 2>/dev/null || true")


def make(scope, name, hosts, method, value):
    os.mkdir(path("credentials", scope, name))
    for file, text in (("hosts", hosts), ("method", method), ("value", value + "\n")):
        write(text, "credentials", scope, name, file)


@check(limit=120)
def a_usual_client_trusts_it_and_is_given_it_without_settings():
    """git, of a host that gives nothing without the token. pip and Python's urllib do the same, but take a minute and more under emulation."""
    if not exists("templates", "debian"):
        skip("needs template debian")
    folder, who = f"{TESTTMP}/www", "git -c user.name=n -c user.email=e@api.test -c init.defaultBranch=main"
    shutil.rmtree(folder, ignore_errors=True)  # of a run by hand
    sh(f"mkdir {folder} && cd {folder} && {who} init work && echo 'hello from git' > work/text && git -C work add text && cd work && {who} commit -m one && cd .. && git clone --bare work repo.git "
       "&& git -C repo.git update-server-info")
    box = Box("debian")
    box.set("egress", "allow tcp api.test:443\n")
    world.seen()
    eq("hello from git", box.out("cd /root && git clone -q https://api.test/files/repo.git && cat repo/text"))
    eq({f"Bearer {TOKEN}"}, {a for r in world.seen() for a in r["authorization"]}, "what the server was given")
    box.remove()


@check
def a_host_without_one_is_never_decrypted():
    eq("unable to get local issuer certificate", ask("plain.test")[0], "whose certificate the guest sees")
    world.seen()
    lines = ask("plain.test", trust="SSL_CERT_FILE=/up.pem")
    eq(["/CN=upstream CA", "seen"], [lines[0], lines[-1]], "with the server's own CA")
    eq([["placeholder"]], [r["authorization"] for r in world.seen()], "what the server was given")


@check(limit=120)
def new_ones_forks_and_restarted_ones_are_told_before_anybody_uses_them():
    fork = Box.known(fresh_name())
    shutil.copytree(path("sandboxes", world.box.name), path("sandboxes", fork.name))
    fork.touch()
    fork.set("egress", "allow tcp *.test:443\n")
    eq(True, works(fork), "a fork")
    fork.remove()
    new = Box()
    has("BEGIN", new.out("cat $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS"), "in a new one")
    new.verb("stop")
    new.verb("start")
    has("BEGIN", new.out("cat /run/space/ca.pem"), "after it was booted anew")
    new.remove()


@check(limit=120)
def whoever_dies_nothing_leaves_unchecked_and_all_comes_back():
    world.seen()
    for name in ("inject", "credd", "netd"):
        old = kill_daemon(name)
        for _ in range(3):
            ask("api.test")  # it may be refused, or be served by the next one
        daemon_back(name, old)
        haproxy_answers()
        wait_until(works, 30, f"it works again after {name}")
    given = {a for r in world.seen() for a in r["authorization"]}
    eq({f"Bearer {TOKEN}"}, given, "all that the server was given meanwhile")


def holds(pid, needle):
    """Is it in that process's memory?"""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for start, end in [tuple(int(x, 16) for x in l.split()[0].split("-")) for l in maps if " rw" in l or " r--p" in l]:
            for where in range(start, end, 4 << 20):
                try:
                    if needle in os.pread(mem.fileno(), min((4 << 20) + len(needle), end - where), where):
                        return True
                except OSError:
                    break
    return False


@check(limit=120)
def the_secret_is_not_in_the_guest_nor_in_whoever_passes_it_on_encrypted():
    eq(True, works(), "it is used once more")  # and never named to the guest by us
    for name, pid in [("the guest's machine", world.box.qemu())] + [(n, daemon_pid(n)) for n in ("netd", "hostd", "noded", "volumed")]:
        eq(False, holds(pid, TOKEN.encode()[3:19]), f"the secret in the memory of {name}")
    eq(True, holds(daemon_pid("inject"), TOKEN.encode()[3:19]), "the secret in HAProxy's, so that we would have found it")


def begin():
    global world
    for program in ("dnsmasq", "ip", "cc", "openssl", "haproxy"):
        if not shutil.which(program):
            skip(f"needs {program}")
    world = World()


if __name__ == "__main__":
    begin()
    main()
