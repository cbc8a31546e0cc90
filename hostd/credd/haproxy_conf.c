// SPDX-License-Identifier: Apache-2.0
// HAProxy's configuration: see haproxy.h. docs/injection.md says what each part is for.
#include "hostd/credd/haproxy.h"
#include "ipc/inject.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_CAS      "/etc/ssl/certs/ca-certificates.crt"
#define CAS_MAX         (16u << 20)
#define CONNECTIONS_MAX 8000u
#define THREADS_MAX     8

/* What is said of a connection is kept with it. Requests pass rule by rule; the usual ones leave early, since each rule and each variable costs all of them, and one that
 * is not told otherwise by space-credd ends at the last. Nothing that holds a URL or a header is logged. */
static const char frontend[] =
    "    tcp-request session set-var(sess.name) fc_pp_authority\n"
    "    tcp-request session set-var(sess.sni) ssl_fc_sni,lower,strcmp(sess.name)\n"
    "    http-request return status 421 content-type text/plain string \"the request is for another host than its connection\\n\" "
    "unless { req.hdr(host),host_only,lower,strcmp(sess.name) eq 0 } { var(sess.sni) -m int 0 } { req.hdr_cnt(host) eq 1 }\n"
    "    http-request return status 405 content-type text/plain string \"a host with a credential takes no such request\\n\" if { method TRACE "
    "CONNECT }\n"
    "    filter spoe engine credd config spoe.cfg\n"
    "    http-request send-spoe-group credd ask\n"
    "    http-request set-header Authorization %[var(txn.cred.authorization)] if { var(txn.cred.authorization) -m found }\n"
    "    http-request allow if { var(txn.cred.authorization) -m found }\n"
    "    http-request set-header X-Api-Key %[var(txn.cred.api_key)] if { var(txn.cred.api_key) -m found }\n"
    "    http-request allow if { var(txn.cred.api_key) -m found }\n"
    "    http-request return status 403 content-type text/plain lf-string \"%[var(txn.cred.reason)]\\n\" if { var(txn.cred.status) -m int 403 }\n"
    "    http-request return status 429 content-type text/plain lf-string \"%[var(txn.cred.reason)]\\n\" if { var(txn.cred.status) -m int 429 }\n"
    "    http-request return status 503 content-type text/plain lf-string \"%[var(txn.cred.reason)]\\n\" if { var(txn.cred.status) -m int 503 }\n"
    "    http-request return status 503 content-type text/plain string \"space-credd does not answer\\n\" unless { var(txn.cred.place) -m found }\n"
    "    http-request lua.inject\n"
    "    http-request return status 503 content-type text/plain string \"the credential cannot be put in\\n\" unless { var(txn.injected) -m str yes "
    "}\n"
    "    use_backend out-h1 unless { ssl_fc_alpn h2 }\n"
    "    default_backend out-h2\n";

static const char spoe[] = "# Made by space-inject at each start.\n"
                           "[credd]\n"
                           "spoe-agent agent\n"
                           "    groups ask\n"
                           "    option var-prefix cred\n"
                           "    option dontlog-normal\n"
                           "    timeout hello 2s\n"
                           "    timeout idle 1h\n"
                           "    timeout processing 5s\n"
                           "    use-backend agent\n"
                           "spoe-message use\n"
                           "    args id=fc_pp_unique_id name=fc_pp_authority port=dst_port method=method\n"
                           "spoe-group ask\n"
                           "    messages use\n";

/* The value is wiped from the request's variables, not from HAProxy's memory: that is where it has to be. */
static const char lua[] = "-- Made by space-inject at each start.\n"
                          "local function without(query, name)\n"
                          "  local kept = {}\n"
                          "  for part in string.gmatch(query, '[^&]+') do\n"
                          "    local key = string.gsub(string.match(part, '^[^=]*'), '+', ' ')\n"
                          "    key = string.gsub(key, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)\n"
                          "    if key ~= name then kept[#kept + 1] = part end\n"
                          "  end\n"
                          "  return kept\n"
                          "end\n"
                          "core.register_action('inject', {'http-req'}, function(txn)\n"
                          "  local place, name, value = txn:get_var('txn.cred.place'), txn:get_var('txn.cred.name'), txn:get_var('txn.cred.value')\n"
                          "  if not name or name == '' or not value then return end\n"
                          "  if place == 'query' then\n"
                          "    local parts = without(txn.sf:query(), name)\n"
                          "    parts[#parts + 1] = name .. '=' .. value\n"
                          "    txn.http:req_set_query(table.concat(parts, '&'))\n"
                          "  elseif place == 'header' then\n"
                          "    txn.http:req_del_header(name)\n"
                          "    txn.http:req_set_header(name, value)\n"
                          "  else\n"
                          "    return\n"
                          "  end\n"
                          "  txn:set_var('txn.injected', 'yes')\n"
                          "end, 0)\n";

static unsigned connections(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_max > 3 * CONNECTIONS_MAX)
        return CONNECTIONS_MAX;
    return files.rlim_max > 600 ? (unsigned)(files.rlim_max - 500) / 3 : 100;
}

/* Half of the processors, for others work for the same request; but two if there are: one thread is what a request waits for then. */
static long threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN), half = n / 2;
    return n < 2 ? 1 : half < 2 ? 2 : half > THREADS_MAX ? THREADS_MAX : half;
}

static void write_global(FILE *f, const struct config *c, const char *folder)
{
    fprintf(f,
            "# Made by space-inject at each start: docs/injection.md.\n"
            "global\n"
            "    default-path origin %s\n"
            "    chroot %s\n"
            "    user %s\n"
            "    group %s\n"
            "    stats socket unix@%s/" INJECT_ADMIN " user %s mode 600 level admin\n"
            "    stats timeout 10s\n"
            "    nbthread %ld\n"
            "    maxconn %u\n"
            "    log /" INJECT_LOG " len 500 format raw local0 warning\n"
            "    lua-load-per-thread %s/inject.lua\n"
            "    tune.bufsize 32768\n"
            "    tune.ssl.default-dh-param 2048\n"
            "    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets\n"
            "    ssl-default-server-options ssl-min-ver TLSv1.2\n"
            "resolvers default\n" /* else it asks those of resolv.conf, for which it makes sockets */
            "    timeout retry 1s\n",
            folder, folder, c->inject_user, c->inject_user, folder, c->cred_user, threads(), connections(), folder);
}

static void write_proxies(FILE *f, const struct config *c, const char *folder)
{
    fputs("defaults\n"
          "    mode http\n"
          "    log global\n"
          "    option dontlog-normal\n"
          "    option log-separate-errors\n" /* they are warnings then, and worse */
          "    timeout connect 30s\n"
          "    timeout client 1h\n"
          "    timeout server 1h\n"
          "    timeout tunnel 24h\n"
          "    timeout client-fin 2m\n"
          "    timeout http-request 30s\n"
          "    timeout http-keep-alive 10m\n"
          "    unique-id-format %[fc_pp_unique_id]\n"
          "    log-format \"sandbox %[fc_pp_unique_id,field(1,.)]: %[var(sess.name)]: %ST %ts %[ssl_bc_err_str]\"\n"
          "    error-log-format \"a guest's connection for %[ssl_fc_sni]: %[fc_err_str]: %[ssl_fc_err_str]\"\n"
          "frontend in\n"
          "    option http-no-delay\n",
          f);
    for (unsigned i = 0; i < INJECT_SLOTS; i++)
        fprintf(f, "    bind unix@%s/" INJECT_IN " user %s mode 600 accept-proxy ssl strict-sni crt-list %s/" INJECT_LIST " alpn h2,http/1.1\n",
                folder, i, c->net_user, folder, i);
    fputs(frontend, f);
    /* The server is spoken with as the guest speaks: HTTP/2 would cost who asks one thing at a time a message more for each answer (WINDOW_UPDATE). Paths of servers are in HAProxy's root. Sessions are not used again: their names would not be compared with the certificate's. */
    for (int h2 = 0; h2 < 2; h2++)
        fprintf(f,
                "backend out-%s\n"
                "    http-reuse never\n"
                "    server netd unix@/" INJECT_OUT
                " send-proxy-v2 proxy-v2-options unique-id ssl verify required ca-file %s/upstream.pem sni fc_pp_authority "
                "alpn %shttp/1.1 ws h1 no-ssl-reuse\n",
                h2 ? "h2" : "h1", folder, h2 ? "h2," : "");
    fputs("backend agent\n"
          "    mode tcp\n"
          "    timeout connect 2s\n"
          "    retries 1\n"
          "    timeout server 1h\n"
          "    server credd unix@/" INJECT_SPOE "\n",
          f);
}

/* ---- files ---- */

static FILE *create(const char *folder, const char *name, struct err *e)
{
    char path[CONFIG_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        err_sys(e, "write %s", path);
    return f;
}

static int close_file(FILE *f, const char *name, struct err *e)
{
    bool bad = ferror(f);
    return fclose(f) != 0 || bad ? err_set(e, EIO, "write %s: it is not whole", name) : 0;
}

static int write_text(const char *folder, const char *name, const char *text, struct err *e)
{
    FILE *f = create(folder, name, e);
    if (!f)
        return -e->code;
    fputs(text, f);
    return close_file(f, name, e);
}

/* False: it is not there. */
static bool append(FILE *to, const char *path)
{
    FILE *f = fopen(path, "re");
    size_t n, sum = 0;
    char part[8192];
    while (f && sum < CAS_MAX && (n = fread(part, 1, sizeof part, f)) > 0)
        sum += fwrite(part, 1, n, to);
    if (!f)
        return false;
    fputc('\n', to);
    fclose(f);
    return true;
}

static int write_cas(const struct config *c, const char *folder, struct err *e)
{
    FILE *f = create(folder, "upstream.pem", e);
    if (!f)
        return -e->code;
    bool any = append(f, SYSTEM_CAS);
    if (append(f, c->inject_ca))
        any = true;
    else
        log_info("servers are verified by the system's CAs alone: %s: %s", c->inject_ca, strerror(errno));
    int rc = close_file(f, "upstream.pem", e);
    return rc < 0 || any ? rc : err_set(e, ENOENT, "no server can be verified: neither " SYSTEM_CAS " nor %s is there", c->inject_ca);
}

static int write_lists(const char *folder, struct err *e)
{
    int rc = 0;
    for (unsigned i = 0; i < INJECT_SLOTS && rc == 0; i++) {
        char name[32];
        snprintf(name, sizeof name, INJECT_LIST, i);
        rc = write_text(folder, name, "", e);
    }
    return rc;
}

int haproxy_configure(const struct config *c, const char *folder, struct err *e)
{
    int rc = write_lists(folder, e);
    if (rc == 0)
        rc = write_cas(c, folder, e);
    if (rc == 0)
        rc = write_text(folder, "spoe.cfg", spoe, e);
    if (rc == 0)
        rc = write_text(folder, "inject.lua", lua, e);
    FILE *f = rc == 0 ? create(folder, "haproxy.cfg", e) : NULL;
    if (!f)
        return rc < 0 ? rc : -e->code;
    write_global(f, c, folder);
    write_proxies(f, c, folder);
    return close_file(f, "haproxy.cfg", e);
}
