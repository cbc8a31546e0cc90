// SPDX-License-Identifier: Apache-2.0
// The parts of spacectl that need no mount: command lines, tables, the reading of error files, job
// ends, the tar listing, the shell's escape, and copying of files and trees.
#include "spacectl/copy.h"
#include "spacectl/job.h"
#include "spacectl/options.h"
#include "spacectl/progress.h"
#include "spacectl/table.h"
#include "spacectl/tarball.h"
#include "spacectl/terminal.h"
#include "spacectl/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_number(const char *file, int line, const char *what, long long want, long long got)
{
    if (want == got)
        return;
    fprintf(stderr, "%s:%d: %s: want %lld, got %lld\n", file, line, what, want, got);
    exit(1);
}

static void check_text(const char *file, int line, const char *what, const char *want, const char *got)
{
    if (want == got || (want && got && !strcmp(want, got)))
        return;
    fprintf(stderr, "%s:%d: %s: want [%s], got [%s]\n", file, line, what, want ? want : "(null)", got ? got : "(null)");
    exit(1);
}

#define EQ(want, got)   check_number(__FILE__, __LINE__, #got, (long long)(want), (long long)(got))
#define TEXT(want, got) check_text(__FILE__, __LINE__, #got, want, got)

enum { OPT_FLAG, OPT_VALUE };

static const struct option_def defs[] = {
    [OPT_FLAG] = {'f', "flag", NULL, ""},
    [OPT_VALUE] = {'v', "value", "X", ""},
    {0, NULL, NULL, NULL},
};

/* Parses the words of `line`; they must outlive the result. */
static int parse(int passthrough, char *line, struct args *out, struct err *e)
{
    static char *argv[32];
    int argc = 0;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return options_parse(defs, passthrough, argc, argv, out, e);
}

static void options_take_every_form(void)
{
    struct args a;
    struct err e = {0};
    char line[] = "one -fv1 --value=2 two -v 3 --value 4 --space /x -- -f";
    EQ(0, parse(0, line, &a, &e));
    EQ(3, a.pos_count);
    TEXT("one", a.pos[0]);
    TEXT("two", a.pos[1]);
    TEXT("-f", a.pos[2]);
    TEXT(NULL, a.pos[3]);
    TEXT("/x", a.space);
    TEXT("", args_value(&a, OPT_FLAG));
    TEXT("4", args_value(&a, OPT_VALUE));
    int at = 0;
    TEXT("1", args_next(&a, OPT_VALUE, &at));
    TEXT("2", args_next(&a, OPT_VALUE, &at));
}

static void options_leave_a_command_alone(void)
{
    struct args a;
    struct err e = {0};
    char line[] = "-f name -v 1 ls -f --help -- x", dashes[] = "name -- -f x";
    EQ(0, parse(1, line, &a, &e));
    EQ(6, a.pos_count);
    TEXT("name", a.pos[0]);
    TEXT("ls", a.pos[1]);
    TEXT("--help", a.pos[3]);
    TEXT("1", args_value(&a, OPT_VALUE));
    EQ(0, a.help);
    EQ(0, parse(1, dashes, &a, &e));
    EQ(3, a.pos_count);
    TEXT("-f", a.pos[1]);
}

static void options_refuse_mistakes(void)
{
    struct args a;
    struct err e = {0};
    char unknown[] = "--what", letter[] = "-x", missing[] = "-v", flag_value[] = "--flag=1";
    EQ(-EINVAL, parse(0, unknown, &a, &e));
    TEXT("unknown option --what (see --help)", e.msg);
    EQ(-EINVAL, parse(0, letter, &a, &e));
    EQ(-EINVAL, parse(0, missing, &a, &e));
    EQ(-EINVAL, parse(0, flag_value, &a, &e));
}

static const struct column columns[] = {{"name", COLUMN_TEXT, NULL}, {"n", COLUMN_NUMBER, NULL}, {"s", COLUMN_SIZE, NULL}, {NULL, COLUMN_TEXT, NULL}};

static void table_text(bool json, char out[512])
{
    struct table *t = table_create(columns);
    table_add(t, (const char *const[]){"a\x1b\"\\", "12", "10737418240"});
    table_add(t, (const char *const[]){"\xc3\xa4\xff", NULL, ""});
    table_add(t, (const char *const[]){"\xed\xa0\x80", "x", "128M"});
    FILE *f = fmemopen(out, 512, "w");
    table_print(t, json, f);
    fclose(f);
    table_destroy(t);
}

static void tables_print_both_forms(void)
{
    char out[512];
    table_text(false, out);
    TEXT("NAME  N   S\na?\"\\  12  10G\n\xc3\xa4\xff   -   -\n\xed\xa0\x80   x   128M\n", out);
    table_text(true, out);
    TEXT("[\n {\"name\": \"a\\u001b\\\"\\\\\", \"n\": 12, \"s\": 10737418240},\n {\"name\": "
         "\"\xc3\xa4\\ufffd\", "
         "\"n\": null, \"s\": \"\"},\n"
         " {\"name\": \"\\ufffd\\ufffd\\ufffd\", \"n\": \"x\", \"s\": \"128M\"}\n]\n",
         out);
}

static void job_ends_are_read_exactly(void)
{
    struct job_end end;
    EQ(0, job_end_parse("exit 3", &end));
    EQ(JOB_EXITED, end.kind);
    EQ(3, end.number);
    EQ(0, job_end_parse("signal 9", &end));
    EQ(JOB_SIGNALED, end.kind);
    EQ(0, job_end_parse("lost", &end));
    EQ(JOB_LOST, end.kind);
    static const char *const wrong[] = {"", "exit", "exit -1", "exit 256", "exit 3x", "signal", "gone"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EQ(-EPROTO, job_end_parse(wrong[i], &end));
}

static int judge(const char *text, char line[256], char **name)
{
    struct err e = {0};
    snprintf(line, 256, "%s", text);
    return tarball_judge(line, name, &e);
}

static void tar_listings_are_judged(void)
{
    char line[256], *name = NULL;
    EQ(TARBALL_MEMBER, judge("block 1: -rw-r--r-- 0/0               0 2026-11-29 16:11:57 ./a\\nb\\\\ \\377", line, &name));
    TEXT("./a\nb\\ \xff", name);
    EQ(TARBALL_MEMBER, judge("block 6: lrwxrwxrwx 0/0 0 2026-11-29 16:11:57 ./l -> ../../etc", line, &name));
    TEXT("./l", name);
    EQ(TARBALL_DEVICE, judge("block 9: crw-r--r-- 0/0             1,3 2026-11-29 16:11:57 dev/null", line, &name));
    TEXT("dev/null", name);
    EQ(-EINVAL, judge("block 1: -rw-r--r-- 0/0 0 2026-11-29 16:11:57 /etc/passwd", line, &name));
    EQ(-EINVAL, judge("block 1: -rw-r--r-- 0/0 0 2026-11-29 16:11:57 a/../../x", line, &name));
    EQ(-EINVAL, judge("block 1: drwxr-xr-x 0/0 0 2026-11-29 16:11:57 ..", line, &name));
    EQ(-EINVAL, judge("block 1: drwxr-xr-x 0/0 0 2026-11-29 16:11:57 a/..", line, &name));
    EQ(TARBALL_MEMBER, judge("block 1: drwxr-xr-x 0/0 0 2026-11-29 16:11:57 ..a/b..", line, &name));
    EQ(-EINVAL, judge("block 1: hrw-r--r-- 0/0 0 2026-11-29 16:11:57 a link to ../x", line, &name));
    EQ(-EINVAL, judge("block 1: hrw-r--r-- 0/0 0 2026-11-29 16:11:57 a link to /x", line, &name));
    EQ(TARBALL_END_MARK, judge("block 10: ** Block of NULs **", line, &name));
    EQ(TARBALL_NO_END_MARK, judge("block 4: ** End of File **", line, &name));
    EQ(TARBALL_UNKNOWN, judge("block 4:", line, &name));
}

static void error_lines_match_their_failure_only(void)
{
    char text[256];
    snprintf(text, sizeof text, "t sandboxes/a EEXIST old\n2026-01-01T00:00:00Z /sandboxes/b/state EINVAL it is stopped\n");
    TEXT("it is stopped", tree_error_sentence(text, EINVAL, "sandboxes/b/state"));
    snprintf(text, sizeof text, "2026-01-01T00:00:00Z sandboxes/b/state EINVAL it is stopped\n");
    TEXT(NULL, tree_error_sentence(text, EBUSY, "sandboxes/b/state"));
    snprintf(text, sizeof text, "2026-01-01T00:00:00Z sandboxes/b/state EINVAL it is stopped\n");
    TEXT(NULL, tree_error_sentence(text, EINVAL, "sandboxes/c/state"));
    snprintf(text, sizeof text, "\n");
    TEXT(NULL, tree_error_sentence(text, EINVAL, "sandboxes/c/state"));
}

static void names_are_checked(void)
{
    struct err e = {0};
    EQ(0, tree_check_name("sandbox", "a-b_c.1", &e));
    EQ(0, tree_check_name("sandbox", "alice:a", &e));
    static const char *const wrong[] = {"", ".", "..", "a/b", "-a", "a:", ":a", "a b", "a:b:c"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EQ(-EINVAL, tree_check_name("sandbox", wrong[i], &e));
}

/* Feeds one byte at a time as well as all at once: the user's keys come either way. */
static void escape_is_found_on_a_fresh_line_only(void)
{
    static const struct {
        const char *in, *out;
        bool end;
    } cases[] = {
        {"ls\r~.", "ls\r", true}, {"~.", "", true}, {"a~.", "a~.", false}, {"~~x\r", "~x\r", false}, {"~x", "~x", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct escape whole = {.fresh_line = true}, bytes = {.fresh_line = true};
        char out[32] = "", joined[32] = "";
        size_t len, total = 0;
        EQ(cases[i].end, escape_filter(&whole, cases[i].in, strlen(cases[i].in), out, &len));
        out[len] = 0;
        TEXT(cases[i].out, out);
        bool end = false;
        for (const char *p = cases[i].in; *p && !end; p++) {
            end = escape_filter(&bytes, p, 1, joined + total, &len);
            total += len;
        }
        joined[total] = 0;
        EQ(cases[i].end, end);
        TEXT(cases[i].out, joined);
    }
}

static void holes_are_kept(const char *dir)
{
    char from[256], to[256], buf[4] = "";
    struct stat st;
    struct err e = {0};
    snprintf(from, sizeof from, "%s/sparse", dir);
    snprintf(to, sizeof to, "%s/copy", dir);
    int in = open(from, O_RDWR | O_CREAT | O_TRUNC, 0600), out = open(to, O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQ(3, pwrite(in, "abc", 3, 5 << 20));
    EQ(0, ftruncate(in, 64 << 20));
    EQ(0, copy_data(in, out, from, &e));
    EQ(0, fstat(out, &st));
    EQ(64 << 20, st.st_size);
    EQ(1, st.st_blocks < 4096);
    EQ(3, pread(out, buf, 3, 5 << 20));
    TEXT("abc", buf);
    close(in);
    close(out);
}

/* The destination holds a link where a directory comes: nothing may be written through it. */
static void trees_are_copied_without_following(const char *dir)
{
    char cmd[1024];
    struct copy_report report = {0};
    struct err e = {0};
    snprintf(cmd, sizeof cmd,
             "cd %s && mkdir -p a/sub b outside && echo 1 > a/file && chmod 751 a/file && echo 2 > "
             "a/sub/x && ln -s /etc/passwd a/link "
             "&& mkfifo a/fifo && ln -s ../outside b/sub",
             dir);
    EQ(0, system(cmd));
    snprintf(cmd, sizeof cmd, "%s/a", dir);
    int from = open(cmd, O_RDONLY | O_DIRECTORY);
    snprintf(cmd, sizeof cmd, "%s/b", dir);
    int to = open(cmd, O_RDONLY | O_DIRECTORY);
    umask(022);
    EQ(0, copy_tree(from, to, "a", &report, &e));
    EQ(1, report.skipped);
    EQ(1, report.failed);
    close(from);
    close(to);
    snprintf(cmd, sizeof cmd,
             "cd %s && [ ! -e outside/x ] && [ ! -e b/fifo ] && [ \"$(stat -c %%a b/file)\" = 751 ] && "
             "[ \"$(readlink b/link)\" = /etc/passwd ]",
             dir);
    EQ(0, system(cmd));
}

static void progress_is_a_line(void)
{
    char line[256];
    EQ(0, progress_line("durable no\njobs 3\n", "a", line, sizeof line));
    EQ(1, progress_line("durable no\nupload_bytes 1048576\nupload_total 4194304\n", "a", line, sizeof line) > 0);
    TEXT("a: storing [#######-----------------------]  25 % of 4 MiB", line);
    EQ(1, progress_line("download_bytes 9\ndownload_total 8\n", "b", line, sizeof line) > 0);
    TEXT("b: fetching [##############################] 100 % of 0 MiB", line);
}

int main(void)
{
    char dir[] = "/tmp/spacectl-test-XXXXXX", cmd[64];
    options_take_every_form();
    options_leave_a_command_alone();
    options_refuse_mistakes();
    tables_print_both_forms();
    job_ends_are_read_exactly();
    tar_listings_are_judged();
    error_lines_match_their_failure_only();
    names_are_checked();
    progress_is_a_line();
    escape_is_found_on_a_fresh_line_only();
    if (!mkdtemp(dir))
        return 1;
    holes_are_kept(dir);
    trees_are_copied_without_following(dir);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    return system(cmd) != 0;
}
