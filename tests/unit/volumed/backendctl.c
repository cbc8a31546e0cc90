// SPDX-License-Identifier: Apache-2.0
// Puts requests to a backend, for tests: commands on standard input, answers on standard output.
//
//   backendctl dir PATH | backendctl s3 KEY=VALUE...     (keys: those of struct backend_s3_options)
//
// A command is a line "ID VERB ARGUMENT...", an answer a line "ID RC GOT TOTAL COUNT MORE SENTENCE": in the order in which they end.
//   put NAME FILE [absent] [urgent]   get NAME OFFSET SIZE FILE [urgent]   stat NAME   delete NAME
//   list PREFIX AFTER MAX FILE ("-" for any of them: none; FILE gets "NAME SIZE MODIFIED" lines)   sweep SECONDS   check
//   cancel ID-OF-ANOTHER   stats   features
// The end of the input destroys the backend, and with it what is under way.
#include "hostd/volumed/backend/backend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 8

struct request {
    struct request *next;
    struct backend_op *op;
    char id[32], file[512];
    struct iovec iov;
    enum backend_verb verb;
};

static struct backend *backend;
static struct request *requests;
static uv_pipe_t input;
static char line[4096];
static size_t line_len;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "backendctl: %s: %s\n", what, why);
    exit(1);
}

static void write_file(const struct request *q, const struct backend_result *r)
{
    if (strcmp(q->file, "-") == 0 || !q->file[0] || r->rc < 0 || (q->verb != BACKEND_GET && q->verb != BACKEND_LIST))
        return;
    FILE *f = fopen(q->file, "wb");
    if (!f)
        die(q->file, "cannot be written");
    if (q->verb == BACKEND_GET && r->got)
        fwrite(q->iov.iov_base, 1, r->got, f);
    for (size_t i = 0; i < r->count && r->objects; i++)
        fprintf(f, "%s %llu %lld\n", r->objects[i].name, (unsigned long long)r->objects[i].size, (long long)r->objects[i].modified);
    fclose(f);
}

static void done(void *user, const struct backend_result *r)
{
    struct request *q = user, **p = &requests;
    while (*p != q)
        p = &(*p)->next;
    *p = q->next;
    write_file(q, r);
    printf("%s %d %zu %llu %zu %d %s\n", q->id, r->rc, r->got, (unsigned long long)r->total, r->count, r->more, r->e.msg);
    free(q->iov.iov_base);
    free(q);
}

static void read_file(struct iovec *out, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        die(path, "cannot be read");
    fseek(f, 0, SEEK_END);
    out->iov_len = (size_t)ftell(f);
    out->iov_base = malloc(out->iov_len + 1);
    rewind(f);
    if (fread(out->iov_base, 1, out->iov_len, f) != out->iov_len)
        die(path, "cannot be read");
    fclose(f);
}

static const char *none(const char *word)
{
    return strcmp(word, "-") == 0 ? "" : word;
}

static void print_stats(const char *id)
{
    struct backend_stats s = backend_stats(backend);
    printf("%s 0 requests=%llu failures=%llu tries=%llu retries=%llu slowed=%llu sent=%llu received=%llu running=%u waiting=%u limit=%u clock=%lld\n",
           id, (unsigned long long)s.requests, (unsigned long long)s.failures, (unsigned long long)s.tries, (unsigned long long)s.retries,
           (unsigned long long)s.slowed, (unsigned long long)s.sent, (unsigned long long)s.received, s.running, s.waiting, s.limit,
           (long long)s.clock_offset_ms);
}

static void cancel(const char *id)
{
    for (struct request *q = requests; q; q = q->next)
        if (strcmp(q->id, id) == 0)
            backend_cancel(q->op);
}

/* True when the words are a request; fills it in. */
static int make(char *w[WORDS], int n, struct request *q, struct backend_request *r)
{
    static const struct {
        const char *name;
        enum backend_verb verb;
        int words;
    } verbs[] = {{"put", BACKEND_PUT, 4},       {"get", BACKEND_GET, 6},     {"stat", BACKEND_STAT, 3},  {"list", BACKEND_LIST, 6},
                 {"delete", BACKEND_DELETE, 3}, {"sweep", BACKEND_SWEEP, 3}, {"check", BACKEND_CHECK, 2}};
    size_t i = 0;
    while (i < sizeof verbs / sizeof verbs[0] && (strcmp(w[1], verbs[i].name) != 0 || n < verbs[i].words))
        i++;
    if (i == sizeof verbs / sizeof verbs[0])
        return 0;
    r->verb = q->verb = verbs[i].verb;
    r->name = n > 2 ? none(w[2]) : "";
    for (int k = 3; k < n; k++)
        r->flags |= strcmp(w[k], "absent") == 0 ? BACKEND_IF_ABSENT : strcmp(w[k], "urgent") == 0 ? BACKEND_URGENT : 0u;
    if (r->verb == BACKEND_PUT) {
        read_file(&q->iov, w[3]);
        r->iov = &q->iov;
        r->iov_count = 1;
    } else if (r->verb == BACKEND_GET) {
        r->offset = strtoull(w[3], NULL, 10);
        r->size = q->iov.iov_len = strtoull(w[4], NULL, 10);
        r->buf = q->iov.iov_base = malloc(r->size + 1);
        snprintf(q->file, sizeof q->file, "%s", w[5]);
    } else if (r->verb == BACKEND_LIST) {
        r->after = none(w[3]);
        r->max = (unsigned)strtoul(w[4], NULL, 10);
        snprintf(q->file, sizeof q->file, "%s", w[5]);
    } else if (r->verb == BACKEND_SWEEP) {
        r->name = "";
        r->older = strtoull(w[2], NULL, 10);
    }
    return 1;
}

static void command(char *text)
{
    char *w[WORDS], *save;
    int n = 0;
    for (char *t = strtok_r(text, " ", &save); t && n < WORDS; t = strtok_r(NULL, " ", &save))
        w[n++] = t;
    if (n < 2)
        die("not a command", text);
    if (strcmp(w[1], "cancel") == 0 && n == 3) {
        cancel(w[2]);
    } else if (strcmp(w[1], "stats") == 0) {
        print_stats(w[0]);
    } else if (strcmp(w[1], "features") == 0) {
        printf("%s 0 %u\n", w[0], backend_features(backend));
    } else {
        struct request *q = calloc(1, sizeof *q);
        struct backend_request r = {.done = done, .user = q};
        if (!make(w, n, q, &r))
            die("not a command", text);
        snprintf(q->id, sizeof q->id, "%s", w[0]);
        q->next = requests;
        requests = q;
        q->op = backend_start(backend, &r);
    }
}

static void alloc(uv_handle_t *h, size_t size, uv_buf_t *out)
{
    (void)h, (void)size;
    if (line_len == sizeof line)
        die("input", "a line is too long");
    *out = uv_buf_init(line + line_len, (unsigned)(sizeof line - line_len));
}

static void got(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    (void)buf;
    if (n < 0) {
        uv_close((uv_handle_t *)s, NULL);
        backend_destroy(backend, NULL, NULL);
        return;
    }
    line_len += (size_t)n;
    for (char *end; (end = memchr(line, '\n', line_len));) {
        *end = 0;
        command(line);
        line_len -= (size_t)(end + 1 - line);
        memmove(line, end + 1, line_len);
    }
}

static struct backend *create_s3(uv_loop_t *loop, char **words, struct err *e)
{
    struct backend_s3_options o = {0};
    for (; *words; words++) {
        char *value = strchr(*words, '=');
        if (!value)
            die("no option", *words);
        *value++ = 0;
        const struct {
            const char *name, **to;
        } texts[] = {{"endpoint", &o.endpoint}, {"bucket", &o.bucket},           {"prefix", &o.prefix},
                     {"region", &o.region},     {"credentials", &o.credentials}, {"ca", &o.ca}};
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            if (strcmp(*words, texts[i].name) == 0)
                *texts[i].to = value;
        unsigned long n = strtoul(value, NULL, 10);
        if (strcmp(*words, "flight") == 0)
            o.flight = (unsigned)n;
        else if (strcmp(*words, "patience") == 0)
            o.patience_s = (unsigned)n;
        else if (strcmp(*words, "stall") == 0)
            o.stall_s = (unsigned)n;
        else if (strcmp(*words, "part") == 0)
            o.part_size = n;
        else if (strcmp(*words, "style") == 0)
            o.style = strcmp(value, "host") == 0 ? BACKEND_S3_HOST : BACKEND_S3_PATH;
    }
    return backend_s3_create(loop, &o, e);
}

int main(int argc, char **argv)
{
    uv_loop_t loop;
    struct err e = {0};
    uv_loop_init(&loop);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3)
        die("usage", "backendctl dir PATH | backendctl s3 KEY=VALUE...");
    backend =
        strcmp(argv[1], "dir") == 0 ? backend_dir_create(&loop, &(struct backend_dir_options){.path = argv[2]}, &e) : create_s3(&loop, argv + 2, &e);
    if (!backend) {
        printf("- %d 0 0 0 0 %s\n", -e.code, e.msg);
        uv_run(&loop, UV_RUN_DEFAULT);
        uv_loop_close(&loop);
        return 1;
    }
    printf("- 0 0 0 0 0 %s\n", backend_describe(backend));
    uv_pipe_init(&loop, &input, 0);
    uv_pipe_open(&input, 0);
    uv_read_start((uv_stream_t *)&input, alloc, got);
    uv_run(&loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&loop);
    if (rc < 0)
        die("the loop still has handles", uv_strerror(rc));
    return 0;
}
