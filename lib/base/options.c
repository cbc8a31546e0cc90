// SPDX-License-Identifier: Apache-2.0
// The command line of a daemon: see options.h.
#include "base/options.h"

#include "base/config.h"
#include "base/log.h"

#include <getopt.h>
#include <stdio.h>

int options_parse(int argc, char **argv, const char *program, const char *about, const char **ret_config)
{
    static const struct option table[] = {{"config", required_argument, NULL, 'c'},
                                          {"debug", no_argument, NULL, 'd'},
                                          {"version", no_argument, NULL, 'v'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int o;
    *ret_config = CONFIG_PATH_DEFAULT;
    while ((o = getopt_long(argc, argv, "c:dvh", table, NULL)) == 'c' || o == 'd')
        if (o == 'c')
            *ret_config = optarg;
        else
            log_set_level(LOG_L_DEBUG);
    if (o == -1 && optind == argc)
        return -1;
    if (o == 'v')
        return printf("%s " SPACE_VERSION "\n", program) < 0;
    fprintf(o == 'h' ? stdout : stderr, "usage: %s [--config FILE] [--debug] [--version]\n%s", program, about);
    return o == 'h' ? 0 : 2;
}
