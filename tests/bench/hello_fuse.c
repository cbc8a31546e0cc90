// SPDX-License-Identifier: Apache-2.0
// The simplest FUSE file system, one directory with the file `state`: what a control file's latency is compared with. hello MOUNTPOINT
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <string.h>

static const char text[] = "running\n";

static void fill(fuse_ino_t ino, struct stat *st)
{
    *st =
        (struct stat){.st_ino = ino, .st_mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0444, .st_nlink = 1, .st_size = ino == 1 ? 0 : sizeof text - 1};
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param e = {.ino = 2, .generation = 1};
    (void)parent;
    fill(2, &e.attr);
    if (strcmp(name, "state"))
        fuse_reply_err(req, ENOENT);
    else
        fuse_reply_entry(req, &e);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fi;
    fill(ino, &st);
    fuse_reply_attr(req, &st, 0);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    fi->direct_io = fi->noflush = 1;
    fuse_reply_open(req, fi);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    size_t at = (size_t)off < sizeof text - 1 ? (size_t)off : sizeof text - 1, left = sizeof text - 1 - at;
    (void)ino;
    (void)fi;
    fuse_reply_buf(req, text + at, left < size ? left : size);
}

int main(int argc, char **argv)
{
    static const struct fuse_lowlevel_ops ops = {.lookup = on_lookup, .getattr = on_getattr, .open = on_open, .read = on_read};
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    struct fuse_session *s = argc == 2 ? fuse_session_new(&args, &ops, sizeof ops, NULL) : NULL;
    if (!s || fuse_set_signal_handlers(s) < 0 || fuse_session_mount(s, argv[1]) < 0)
        return 1;
    int rc = fuse_session_loop(s);
    fuse_session_unmount(s);
    fuse_session_destroy(s);
    return rc != 0;
}
