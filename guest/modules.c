// SPDX-License-Identifier: Apache-2.0
// Loads the kernel modules that the initramfs carries: see modules.h.
#include "guest/modules.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void load(const char *path)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
        log_warn("load %s: %s", path, strerror(errno));
    unlink(path); /* it would stay in memory for good */
}

void modules_load(const char *list)
{
    char line[256];
    FILE *f = fopen(list, "re");
    if (!f) {
        log_warn("open %s: %s: no modules are loaded", list, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (*line)
            load(line);
    }
    fclose(f);
}
