#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The S3 backend against Ceph's object gateway, directly and through a proxy that damages answers; or, with --swift, what any server must do against
OpenStack Swift's s3api. The last ones with space-volumed itself. As root. Arguments: backendctl, space-volumed, then --swift, or parts of names of tests
to run."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

from bad_proxy import Proxy
import client
from objects import TESTS, Backend, holds, run_tests, same, test, wait
import rgw
import swift_server

PROGRAM, VOLUMED = sys.argv[1:3]
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
PART = 5 << 20


ANY = []


def any_server(function):
    ANY.append(function)
    return test(function)


class Context:
    def __init__(self, directory, other):
        self.dir, self.buckets = directory, 0
        self.certificates()
        self.server = swift_server.Swift(f"{directory}/swift") if other else rgw.Rgw(f"{directory}/rgw", f"{directory}/server.pem")
        self.access, self.secret = (swift_server.USER, swift_server.SECRET) if other else (rgw.ACCESS, rgw.SECRET)
        self.conditional = not other
        self.proxy = Proxy(self.server)
        self.keys = self.credentials("good", self.access, self.secret)

    def certificates(self):
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], check=True, cwd=self.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        for name in ("ca", "other-ca"):
            openssl("req", "-x509", *ec, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
        openssl("req", *ec, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server", "-addext", "subjectAltName=DNS:s3.localhost,DNS:*.s3.localhost")
        openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2", "-copy_extensions", "copy", "-out", "server.crt")
        with open(f"{self.dir}/server.pem", "w", encoding="ascii") as out:
            for part in ("server.key", "server.crt"):
                with open(f"{self.dir}/{part}", encoding="ascii") as f:
                    out.write(f.read())

    def credentials(self, name, access, secret, mode=0o600):
        path = f"{self.dir}/{name}"
        with open(path, "w", encoding="ascii") as f:
            f.write(f"# of the tests\naccess_key = {access}\nsecret_key = {secret}\n")
        os.chmod(path, mode)
        return path

    def bucket(self):
        self.buckets += 1
        name = f"bucket{self.buckets}"
        same("make a bucket", 200, self.server.request("PUT", f"/{name}")[0])
        return name

    def outside(self, bucket, name, **more):
        """What lies there, by another client."""
        return self.server.request("GET", f"/{bucket}/{name}", **more)

    def uploads(self, bucket):
        return self.server.request("GET", f"/{bucket}", "uploads=")[2].count(b"<UploadId>")


def backend(c, tmp, bucket, proxy=False, endpoint=None, env=None, keys=None, **options):
    """Options of backend_s3_options; through the proxy or not."""
    words = {"endpoint": endpoint or f"http://127.0.0.1:{c.proxy.port if proxy else c.server.port}", "bucket": bucket, "credentials": keys or c.keys, "stall": 2, **options}
    return Backend(PROGRAM, ["s3", *(f"{k}={v}" for k, v in words.items())], tmp, env=env)


@any_server
def objects_are_put_and_got_back_in_ranges(c, tmp):
    bucket, data = c.bucket(), os.urandom(3_000_000)
    with backend(c, tmp, bucket, prefix="node/") as b:
        same("put", 0, b.put("t/packs/one", data).rc)
        same("as others see it", data, c.outside(bucket, "node/t/packs/one")[2])
        same("whole", data, b.get("t/packs/one", 0, 4_000_000))
        same("middle", data[2_000_000:2_000_100], b.get("t/packs/one", 2_000_000, 100))
        same("end", data[-5:], b.get("t/packs/one", len(data) - 5, 100))
        same("at the end", b"", b.get("t/packs/one", len(data), 100))
        same("behind the end", b"", b.get("t/packs/one", len(data) + 5, 100))
        a = b.ok("stat", "t/packs/one")
        same("size", len(data), a.total)
        same("empty", 0, b.put("t/empty", b"").rc)
        same("nothing", b"", b.get("t/empty"))
        same("replaced", 0, b.put("t/packs/one", b"new").rc)
        same("new", b"new", b.get("t/packs/one"))
        b.fails("ENOENT", "get", "t/packs/two", 0, 10, "-")
        b.fails("ENOENT", "stat", "t/packs/two")
        b.ok("delete", "t/packs/one")
        b.ok("delete", "t/packs/one")
        b.fails("ENOENT", "get", "t/packs/one", 0, 10, "-")


@any_server
def names_outside_the_prefix_or_of_others_are_not_listed(c, tmp):
    bucket = c.bucket()
    names = sorted(["a-b", "a/c", "a.b", "a0", "b/x/y/z", "b/x-y"] + [f"p/{i:03d}" for i in range(15)])
    for foreign in ("other/x", "mine/ä", "mine/a b", "mine/%41+&<>", "mine/p/", "mine/probe-1"):
        same("foreign object", 200, c.server.request("PUT", "/" + bucket + "/" + urllib.parse.quote(foreign), body=b"x")[0])
    with backend(c, tmp, bucket, prefix="mine/") as b:
        f = b.file(b"1")
        for i in [b.start("put", n, f) for n in names]:
            same("put", 0, b.answer(i).rc)
        same("all", (names, False), b.list())
        for size in (1, 9):
            got, after = [], "-"
            while True:
                page, more = b.list("-", after, size)
                got += page
                if not more:
                    break
                after = page[-1]
            same(f"pages of {size}", names, got)
        same("prefix and after", [n for n in names if n.startswith("p/") and n > "p/008"], b.list("p/", "p/008")[0])
        same("none", ([], False), b.list("zz"))


@test
def only_one_of_many_puts_if_absent_wins(c, tmp):
    bucket = c.bucket()
    with backend(c, tmp, bucket) as b:
        ids = [b.start("put", "manifest", b.file(f"{i}".encode() * 100, f"f{i}"), "absent") for i in range(12)]
        same("outcomes", ["EEXIST"] * 11 + ["ok"], sorted(b.answer(i).name for i in ids))
        same("no probe is left", [b"manifest"], [p.split(b"<")[0] for p in c.server.request("GET", f"/{bucket}", "list-type=2")[2].split(b"<Key>")[1:]])
        same("features", "1", b("features").text)


@any_server
def a_server_without_conditional_puts_is_looked_at_first(c, tmp):
    bucket = c.bucket()
    for fault, what in ((lambda m, p, n: "status 501 NotImplemented" if m == "PUT" and "probe-" in p else None, "refused"), (lambda m, p, n: "ignore-condition", "ignored")):
        c.proxy.reset(fault)
        with backend(c, tmp, bucket, proxy=True) as b:
            b.ok("check")
            same(f"features, {what}", "0", b("features").text)
            same("put", 0, b("put", f"m-{what}", b.file(b"1"), "absent").rc)
            b.fails("EEXIST", "put", f"m-{what}", b.file(b"2"), "absent")
            same("it is the first", b"1", b.get(f"m-{what}"))


@any_server
def large_objects_go_in_parts_and_leave_nothing_when_they_fail(c, tmp):
    bucket, data = c.bucket(), os.urandom(3 * PART + 12345)
    c.proxy.reset()
    with backend(c, tmp, bucket, proxy=True, part=PART) as b:
        same("put", 0, b.put("large", data).rc)
        same("parts", 4, c.proxy.count("PUT", "partNumber="))
        holds("the same bytes", data == c.outside(bucket, "large")[2])
        holds("and for us", data == b.get("large", 0, len(data) + 1))
        same("a range across parts", data[PART - 10 : PART + 10], b.get("large", PART - 10, 20))
        c.proxy.reset(lambda m, p, n: "status 403 AccessDenied" if "partNumber=3" in p else None)
        b.fails("EACCES", "put", "refused", b.file(data))
        same("aborted", 1, c.proxy.count("DELETE", "uploadId="))
        same("nothing is left", 0, c.uploads(bucket))
        c.proxy.reset(lambda m, p, n: "hang" if "partNumber=2" in p else None)
        i = b.start("put", "cancelled", b.file(data))
        wait(lambda: c.proxy.count("PUT", "partNumber=2"), what="part 2")
        b.process.stdin.write(f"0 cancel {i}\n")
        b.process.stdin.flush()
        same("cancelled", "ECANCELED", b.answer(i, 10).name)
        same("nothing is left", 0, c.uploads(bucket))
        c.proxy.reset(lambda m, p, n: "drop-after" if m == "POST" and "uploadId=" in p and c.proxy.count("POST", "uploadId=") < 2 else None)
        same("completed unseen", 0, b.put("unseen", data).rc)
        holds("it is there", data == c.outside(bucket, "unseen")[2])


@any_server
def parts_of_a_killed_upload_are_swept(c, tmp):
    bucket, data = c.bucket(), os.urandom(3 * PART)
    c.proxy.reset(lambda m, p, n: "hang" if "partNumber=2" in p else None)
    b = backend(c, tmp, bucket, proxy=True, part=PART)
    b.start("put", "large", b.file(data))
    wait(lambda: c.proxy.count("PUT", "partNumber=2"), what="part 2")
    b.process.kill()
    b.process.wait()
    b.process.stdout.close()
    c.proxy.reset()
    same("it left an upload", 1, c.uploads(bucket))
    same("and somebody a probe", 200, c.server.request("PUT", f"/{bucket}/probe-old", body=b"x")[0])
    with backend(c, tmp, bucket) as b:
        same("young", 0, b.ok("sweep", 3600).count)
        time.sleep(1.1)
        same("old enough", 2, b.ok("sweep", 0).count)
        same("nothing is left", 0, c.uploads(bucket))
        same("nor the probe", 404, c.outside(bucket, "probe-old")[0])


@any_server
def wrong_keys_and_a_bucket_that_is_gone_are_said_at_once(c, tmp):
    bucket = c.bucket()
    c.proxy.reset()
    with backend(c, tmp, bucket, proxy=True, keys=c.credentials("bad", c.access, "wrong")) as b:
        b.fails("EACCES", "put", "x", b.file(b"x"), says="secret key")
        b.fails("EACCES", "check", says="secret key")
        same("tried once each", 2, len(c.proxy.seen))
    with backend(c, tmp, bucket, keys=c.credentials("bad", "nobody", c.secret)) as b:
        b.fails("EACCES", "check", says="credentials file")
    with backend(c, tmp, "no-such-bucket") as b:
        for command in (["check"], ["put", "x", b.file(b"x")], ["get", "x", 0, 1, "-"], ["list", "-", "-", 0, "-"], ["delete", "x"]):
            b.fails("ENODEV", *command)
    for mode, text in ((0o644, "mode 0644"), (0o640, "mode 0640")):
        b = backend(c, tmp, bucket, keys=c.credentials("open", c.access, c.secret, mode))
        same("refused", "EACCES", b.created.name)
        holds("it says why", text in b.created.text, b.created.text)
        holds("it does not quote the key", c.secret not in b.created.text)
        same("it ends", 1, b.process.wait())
        b.process.stdout.close()


@test
def answers_that_are_worth_it_are_tried_again_and_others_are_not(c, tmp):
    bucket = c.bucket()
    with backend(c, tmp, bucket, proxy=True) as b:
        data = b.file(b"1" * 1000)
        for status in ("500 InternalError", "502 BadGateway", "503 ServiceUnavailable", "409 OperationAborted", "400 RequestTimeout", "429 TooManyRequests"):
            c.proxy.reset(lambda m, p, n, s=status: f"status {s}" if n < 2 else None)
            same(f"put after two {status}", 0, b("put", "again", data).rc)
            same("tries", 3, len(c.proxy.seen))
        for fault in ("drop", "portal"):
            c.proxy.reset(lambda m, p, n, f=fault: f if n < 2 else None)
            same(f"put after two {fault}", 0, b("put", "again", data).rc)
        for status, name in (("403 AccessDenied", "EACCES"), ("405 MethodNotAllowed", "EIO"), ("412 PreconditionFailed", "EIO"), ("400 InvalidRequest", "EIO"),
                             ("403 QuotaExceeded", "ENOSPC"), ("507 InsufficientStorage", "ENOSPC"), ("301 PermanentRedirect", "EIO"), ("404 NoSuchBucket", "ENODEV")):
            c.proxy.reset(lambda m, p, n, s=status: f"status {s}")
            b.fails(name, "put", "not-again", data, says=status.split()[0])
            same(f"tries of {status}", 1, len(c.proxy.seen))
        c.proxy.reset(lambda m, p, n: "portal-404")
        b.fails("EIO", "get", "again", 0, 10, "-", says="not how an S3 server")
    with backend(c, tmp, bucket, proxy=True, patience=2) as b:
        c.proxy.reset(lambda m, p, n: "status 500 InternalError")
        b.fails("EIO", "put", "never", data, says="tried")
        c.proxy.reset(lambda m, p, n: "status 503 SlowDown")
        b.fails("ETIMEDOUT", "put", "never", data, says="SlowDown")


@test
def a_put_whose_answer_was_lost_is_not_a_conflict(c, tmp):
    bucket = c.bucket()
    with backend(c, tmp, bucket, proxy=True) as b:
        b.ok("check")
        c.proxy.reset(lambda m, p, n: "drop-after" if m == "PUT" and n == 0 else None)
        same("it was ours", 0, b("put", "manifest", b.file(b"mine"), "absent").rc)
        same("tried again", 2, c.proxy.count("PUT"))  # by curl itself, since the connection was a kept one
        c.proxy.reset(lambda m, p, n: "drop" if m == "PUT" and n == 0 else None)
        b.fails("EEXIST", "put", "manifest", b.file(b"others"), "absent")
        same("it stays", b"mine", b.get("manifest"))


@test
def damaged_bodies_are_found_and_asked_for_again(c, tmp):
    bucket, data = c.bucket(), os.urandom(50_000)
    with backend(c, tmp, bucket, proxy=True) as b:
        same("put", 0, b.put("x", data).rc)
        for fault in ("short", "short-length", "long", "wrong", "slow", "drop"):
            c.proxy.reset(lambda m, p, n, f=fault: f if n < 1 else None)
            same(f"got after {fault}", data, b.get("x", 0, 60_000))
            same(f"asked twice for {fault}", 2, c.proxy.count("GET"))
        for fault in ("short", "short-length", "long"):
            c.proxy.reset(lambda m, p, n, f=fault: f if n < 1 else None)
            same(f"range after {fault}", data[100:1100], b.get("x", 100, 1000))
        for fault in ("short", "wrong", "long"):
            c.proxy.reset(lambda m, p, n, f=fault: f)
            b.fails("EBADMSG", "get", "x", 0, 60_000, "-")
            same(f"not for ever: {fault}", 4, len(c.proxy.seen))
        for fault in ("short", "short-length", "wrong", "portal"):
            c.proxy.reset(lambda m, p, n, f=fault: f if n < 1 else None)
            same(f"list after {fault}", (["x"], False), b.list())


@test
def slow_down_means_fewer_at_the_same_time_and_then_more_again(c, tmp):
    bucket = c.bucket()
    with backend(c, tmp, bucket, proxy=True, flight=16) as b:
        f = b.file(b"x" * 1000)
        c.proxy.reset()
        c.proxy.delay = 0.05
        for i in [b.start("put", f"a/{i}", f) for i in range(48)]:
            same("put", 0, b.answer(i).rc)
        holds("at most 16, and many", 8 < c.proxy.most <= 16, str(c.proxy.most))
        c.proxy.reset(lambda m, p, n: "status 503 SlowDown" if c.proxy.active > 4 else None)
        c.proxy.delay = 0.05
        for i in [b.start("put", f"b/{i}", f) for i in range(48)]:
            same("put", 0, b.answer(i).rc)
        low = b.stats()
        holds("slowed", low["slowed"] > 0 and low["limit"] < 16, str(low))
        holds("most got through at the first try", low["slowed"] < 48, str(low))
        c.proxy.reset()
        for i in [b.start("put", f"c/{i}", f) for i in range(200)]:
            same("put", 0, b.answer(i).rc)
        holds("back", b.stats()["limit"] > low["limit"], str(b.stats()))


@test
def many_requests_share_the_latency(c, tmp):
    bucket = c.bucket()
    with backend(c, tmp, bucket, proxy=True, flight=16) as b:
        f = b.file(os.urandom(1000))
        c.proxy.reset()
        c.proxy.delay = 0.2
        began = time.monotonic()
        for i in [b.start("put", f"a/{i}", f) for i in range(48)]:
            same("put", 0, b.answer(i).rc)
        took = time.monotonic() - began
        holds("48 puts at 200 ms each, 16 at a time", took < 48 * 0.2 / 2, f"{took:.1f} s")
    with backend(c, tmp, bucket, proxy=True, flight=1) as b:
        c.proxy.reset()
        c.proxy.delay = 0.1
        late = [b.start("put", f"b/{i}", f) for i in range(8)]
        first = b.start("get", "a/1", 0, 1000, "-", "urgent")
        same("urgent", 0, b.answer(first).rc)
        holds("the others wait", not any(i in b.answers for i in late[-4:]))
        for i in late:
            same("put", 0, b.answer(i).rc)


@test
def a_server_that_hangs_or_is_killed_is_waited_for(c, tmp):
    bucket, data = c.bucket(), os.urandom(300_000)
    with backend(c, tmp, bucket, patience=60) as b:
        same("put", 0, b.put("before", data).rc)
        c.server.send_signal(signal.SIGSTOP)
        f = b.file(data)
        ids = [b.start("put", f"hung/{i}", f) for i in range(4)]
        wait(lambda: b.stats()["retries"] > 0, what="another try")
        c.server.send_signal(signal.SIGCONT)
        for i in ids:
            same("put over a hang", 0, b.answer(i).rc)
        c.server.kill()
        ids = [b.start("put", f"killed/{i}", f) for i in range(4)]
        time.sleep(0.5)
        c.server.start()
        for i in ids:
            same("put over a kill", 0, b.answer(i).rc)
        same("all are there", 9, len(b.list()[0]))
        holds("whole", data == b.get("hung/3") == b.get("killed/3"))
    with backend(c, tmp, bucket, patience=2) as b:
        c.server.send_signal(signal.SIGSTOP)
        try:
            b.fails("ETIMEDOUT", "get", "before", 0, 10, "-", seconds=20)
        finally:
            c.server.send_signal(signal.SIGCONT)


@test
def cancelled_requests_end_at_once_also_when_nothing_answers(c, tmp):
    bucket = c.bucket()
    c.proxy.reset(lambda *_: "hang")
    with backend(c, tmp, bucket, proxy=True, stall=60) as b:
        f = b.file(b"x" * 1000)
        ids = [b.start("put", f"x/{i}", f) for i in range(40)]
        wait(lambda: len(c.proxy.seen) >= 16, what="16 requests")
        for i in ids[::2]:
            b.process.stdin.write(f"0 cancel {i}\n")
        b.process.stdin.flush()
        for i in ids[::2]:
            same("cancelled", "ECANCELED", b.answer(i, 5).name)
        began = time.monotonic()
        b.end()
        holds("the end does not wait for a server", time.monotonic() - began < 5)
        holds("the others are cancelled by it", all(b.answer(i).name == "ECANCELED" for i in ids[1::2]))
    c.proxy.reset()


@any_server
def clocks_that_differ_are_corrected(c, tmp):
    bucket = c.bucket()
    for shift, seconds in (("-20m", 1200), ("+20m", -1200)):
        with backend(c, tmp, bucket, env={"LD_PRELOAD": FAKETIME, "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1", "ASAN_OPTIONS": "verify_asan_link_order=0"}) as b:
            same("put", 0, b.put("x", b"1").rc)
            same("put", 0, b.put("x", b"2").rc)
            s = b.stats()
            same("one try was refused", 3, s["tries"])
            holds("the offset", abs(s["clock"] / 1000 - seconds) < 5, str(s))
            time.sleep(1.1)
            same("an old object for a sweep is old by the server's clock", 0, b.ok("sweep", 0).count)
    c.proxy.reset(lambda m, p, n: "status 403 RequestTimeTooSkewed")
    with backend(c, tmp, bucket, proxy=True) as b:
        b.fails("EACCES", "put", "x", b.file(b"x"), says="clocks")
        holds("not for ever", len(c.proxy.seen) <= 4)


@test
def tls_trusts_the_given_authority_only(c, tmp):
    bucket = c.bucket()
    https = f"https://s3.localhost:{c.server.tls_port}"
    with backend(c, tmp, bucket, endpoint=https, ca=f"{c.dir}/ca.pem") as b:
        same("path style", 0, b.put("x", b"1").rc)
    with backend(c, tmp, bucket, endpoint=https, ca=f"{c.dir}/ca.pem", style="host") as b:
        same("host style", b"1", b.get("x"))
        same("put", 0, b.put("y/z", b"2").rc)
        same("list", (["x", "y/z"], False), b.list())
        same("stat", 1, b.ok("stat", "y/z").total)
    with backend(c, tmp, bucket, endpoint=f"http://s3.localhost:{c.server.port}", style="host") as b:
        same("host style without TLS", b"2", b.get("y/z"))
    for options in ({"ca": f"{c.dir}/other-ca.pem"}, {}):
        with backend(c, tmp, bucket, endpoint=https, **options) as b:
            b.fails("EIO", "check", says="certificate")
    with backend(c, tmp, bucket, endpoint=f"https://127.0.0.1:{c.server.tls_port}", ca=f"{c.dir}/ca.pem") as b:
        b.fails("EIO", "check")  # another name than the certificate's
    for options in ({"endpoint": "ftp://localhost"}, {"endpoint": "http://u:p@localhost"}, {"endpoint": "http://localhost/x"}, {"bucket": "Bad_Name"}, {"prefix": "x"}, {"part": 1000},
                    {"ca": f"{c.dir}/none.pem"}):
        b = backend(c, tmp, **{"bucket": bucket, **options})
        holds(f"refused: {options}", b.created.rc < 0)
        same("it ends", 1, b.process.wait())
        b.process.stdout.close()


class Daemon(client.Daemon):
    """space-volumed over a bucket."""

    def __init__(self, c, bucket, endpoint=None, keys=None, conf=""):
        super().__init__(VOLUMED)
        own = f"{self.folder}/credentials"  # the daemon's user reads it
        shutil.copy(keys or c.keys, own)
        os.chmod(own, 0o600)
        shutil.chown(own, "nobody")
        with open(self.conf, encoding="ascii") as f:
            text = f.read().replace(f"store = {self.store}\n", f"store = {endpoint or f'http://127.0.0.1:{c.server.port}'}/{bucket}/node\nstore_credentials = {own}\n{conf}")
        with open(self.conf, "w", encoding="ascii") as f:
            f.write(text)


@any_server
def the_daemon_keeps_files_in_a_bucket(c, tmp):
    bucket, name, data, a = c.bucket(), f"{tmp}/file", os.urandom(20 << 20), client.ident()
    with open(name, "wb") as f:
        f.write(data)
    with Daemon(c, bucket) as d:
        s = d.client()
        s.upload("ann", a, name)
        same("all of it was there already", 0, s.upload("ann", client.ident(), name).new)
        s.download("ann", a, f"{tmp}/got")
        with open(f"{tmp}/got", "rb") as f:
            holds("the same bytes", f.read() == data)
        s.call(client.DELETE, "ann", client.ident())
        s.call(client.GC)
        same("what is wrong", 0, s.call(client.FSCK, "ann", flags=client.READ_ALL).wrong)
        s.close()


@test
def the_daemon_goes_on_when_the_server_was_killed_or_hung(c, tmp):
    """Over TLS, with the authority's file where only the configuration says."""
    bucket, name, data = c.bucket(), f"{tmp}/file", os.urandom(48 << 20)
    with open(name, "wb") as f:
        f.write(data)
    ca = shutil.copy(f"{c.dir}/ca.pem", f"{c.dir}/public.pem")
    os.chmod(c.dir, 0o755)
    os.chmod(ca, 0o644)
    with Daemon(c, bucket, f"https://s3.localhost:{c.server.tls_port}", conf=f"store_ca = {ca}\nstore_style = host\n") as d:
        s = d.client()
        ids = [client.ident() for _ in range(2)]
        up = s.send_upload("ann", ids[0], name)
        wait(lambda: c.server.request("GET", f"/{bucket}", "list-type=2")[2].count(b"/packs/") > 0, what="a pack")
        c.server.kill()
        time.sleep(0.5)
        c.server.start()
        s.wait(up)
        down = s.send_download("ann", ids[0], f"{tmp}/got")
        c.server.send_signal(signal.SIGSTOP)
        time.sleep(1)
        c.server.send_signal(signal.SIGCONT)
        s.wait(down)
        with open(f"{tmp}/got", "rb") as f:
            holds("the same bytes", f.read() == data)
        s.close()


@test
def the_daemon_says_what_is_wrong_with_its_bucket(c, tmp):
    bucket, name = c.bucket(), f"{tmp}/file"
    with open(name, "wb") as f:
        f.write(os.urandom(100_000))
    for where, keys, number, text in ((bucket, c.credentials("bad", c.access, "wrong"), "EACCES", "secret key"), ("no-such-bucket", None, "ENODEV", "make the bucket")):
        with Daemon(c, where, keys=keys) as d:
            s = d.client()
            try:
                s.upload("ann", client.ident(), name)
                raise AssertionError("it was done")
            except client.Failed as e:
                same("errno", getattr(errno, number), e.errno)
                holds("the sentence says why", text in str(e), str(e))
            holds("the log, too", text in d.output(), d.output())
            s.close()


def main():
    patterns = [p for p in sys.argv[3:] if p != "--swift"]
    other = "--swift" in sys.argv
    if other:
        TESTS[:] = ANY
    with tempfile.TemporaryDirectory(prefix="s3-") as directory:
        c = Context(directory, other)
        try:
            run_tests(c, patterns, c.proxy.reset)
        finally:
            c.proxy.stop()
            c.server.stop()


if __name__ == "__main__":
    main()
