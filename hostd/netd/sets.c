// SPDX-License-Identifier: Apache-2.0
// Named sets: see sets.h. Hosts as the projects document them for firewalls.
#include "hostd/netd/sets.h"

#include <string.h>

static const char *const debian[] = {"deb.debian.org:80,443",      "security.debian.org:80,443",
                                     "ftp.debian.org:80,443",      "cdn-fastly.deb.debian.org:80,443",
                                     "snapshot.debian.org:80,443", NULL};
static const char *const ubuntu[] = {"archive.ubuntu.com:80,443", "*.archive.ubuntu.com:80,443", "security.ubuntu.com:80,443",
                                     "ports.ubuntu.com:80,443", NULL};
static const char *const alpine[] = {"dl-cdn.alpinelinux.org:80,443", NULL};
static const char *const pypi[] = {"pypi.org:443", "files.pythonhosted.org:443", NULL};
static const char *const npm[] = {"registry.npmjs.org:443", "registry.yarnpkg.com:443", NULL};
static const char *const crates[] = {"crates.io:443", "index.crates.io:443", "static.crates.io:443", NULL};
static const char *const golang[] = {"proxy.golang.org:443", "sum.golang.org:443", "storage.googleapis.com:443", NULL};
static const char *const github[] = {"github.com:22,443",
                                     "api.github.com:443",
                                     "codeload.github.com:443",
                                     "uploads.github.com:443",
                                     "ssh.github.com:443",
                                     "*.githubusercontent.com:443",
                                     "ghcr.io:443",
                                     NULL};

static const struct {
    const char *name;
    const char *const *targets;
} sets[] = {{"alpine", alpine}, {"crates", crates}, {"debian", debian}, {"github", github},
            {"go", golang},     {"npm", npm},       {"pypi", pypi},     {"ubuntu", ubuntu}};

const char set_names[] = "alpine, crates, debian, github, go, npm, pypi, ubuntu";

const char *const *set_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (strlen(sets[i].name) == len && memcmp(sets[i].name, name, len) == 0)
            return sets[i].targets;
    return NULL;
}
