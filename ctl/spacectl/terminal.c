// SPDX-License-Identifier: Apache-2.0
// Raw mode: see terminal.h.
#include "spacectl/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* The one mutable global of the program: a crash handler has no other way to find what must be put
 * back. */
static struct {
    struct termios cooked;
    atomic_bool raw;
    bool prepared;
} saved;

void terminal_restore(void)
{
    if (atomic_exchange(&saved.raw, false))
        tcsetattr(STDIN_FILENO, TCSADRAIN, &saved.cooked);
}

static void on_crash(int signal)
{
    terminal_restore();
    raise(signal); /* SA_RESETHAND: now it ends the program as it would have */
}

static int prepare(struct err *e)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
    if (tcgetattr(STDIN_FILENO, &saved.cooked) < 0)
        return err_set(e, ENOTTY, "standard input is no terminal (use `spacectl exec`)");
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &action, NULL);
    atexit(terminal_restore);
    saved.prepared = true;
    return 0;
}

int terminal_raw(struct err *e)
{
    struct termios raw;
    int rc = saved.prepared ? 0 : prepare(e); /* only once: later the terminal may be raw already */
    if (rc < 0)
        return rc;
    raw = saved.cooked;
    cfmakeraw(&raw);
    atomic_store(&saved.raw, true);
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0) {
        atomic_store(&saved.raw, false);
        return err_sys(e, "cannot put the terminal into raw mode");
    }
    return 0;
}

void terminal_size(unsigned *columns, unsigned *rows)
{
    struct winsize size;
    *columns = 80;
    *rows = 24;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
        *columns = size.ws_col;
        *rows = size.ws_row;
    }
}

bool escape_filter(struct escape *x, const char *in, size_t len, char *out, size_t *ret_len)
{
    size_t n = 0;
    bool end = false;
    for (size_t i = 0; i < len && !end; i++) {
        char c = in[i];
        if (x->held) {
            x->held = false;
            if (c == '.') {
                end = true;
                continue;
            }
            out[n++] = '~';
            if (c == '~') {
                x->fresh_line = false;
                continue;
            }
        } else if (x->fresh_line && c == '~') {
            x->held = true;
            continue;
        }
        out[n++] = c;
        x->fresh_line = c == '\r' || c == '\n';
    }
    *ret_len = n;
    return end;
}
