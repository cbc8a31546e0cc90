// SPDX-License-Identifier: Apache-2.0
// The command line of a daemon, which is the same for all of them: --config FILE, --debug, --version, --help.
#ifndef SPACE_BASE_OPTIONS_H
#define SPACE_BASE_OPTIONS_H

/*
 * -1: go on, with *ret_config borrowed from argv, or the default; --debug has set the log's level. Else the status to exit with: what was asked for, or what
 * is wrong, was printed. `about` follows the first line of the usage: "", or lines with their ends.
 */
int options_parse(int argc, char **argv, const char *program, const char *about, const char **ret_config);

#endif
