// SPDX-License-Identifier: Apache-2.0
// The `keep` policy: see keep.h.
#include "hostd/snapshot/keep.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int parse_tier(char *text, struct keep_tier *t)
{
    char kind[8], every[16], how_long[16];
    uint64_t e, f;
    int end = 0;
    if (sscanf(text, "%7s every %15s for %15s %n", kind, every, how_long, &end) != 3 || (text[end] && strcmp(text + end, "to object store") != 0) ||
        (strcmp(kind, "disk") != 0 && strcmp(kind, "full") != 0) || str_parse_duration(every, &e) < 0 || str_parse_duration(how_long, &f) < 0 ||
        e < KEEP_EVERY_MIN || e > UINT32_MAX || f < e || f > UINT32_MAX)
        return -EINVAL;
    *t = (struct keep_tier){.full = kind[0] == 'f', .store = text[end] != 0, .every = (uint32_t)e, .keep_for = (uint32_t)f};
    return 0;
}

int keep_parse(const char *text, struct keep_policy *out, struct err *e)
{
    char copy[512], *save = NULL;
    *out = (struct keep_policy){0};
    if (strlen(text) >= sizeof copy)
        return err_set(e, EINVAL, "keep has more than %zu bytes", sizeof copy - 1);
    str_copy(copy, sizeof copy, text);
    if (!strcmp(str_trim(copy), "none"))
        return 0;
    str_copy(copy, sizeof copy, text);
    for (char *line = strtok_r(copy, "\n,", &save); line; line = strtok_r(NULL, "\n,", &save)) {
        char *trimmed = str_trim(line);
        if (!*trimmed)
            continue;
        if (out->count == KEEP_TIERS_MAX)
            return err_set(e, EINVAL, "keep has more than %d tiers", KEEP_TIERS_MAX);
        if (parse_tier(trimmed, &out->tier[out->count++]) < 0)
            return err_set(e, EINVAL,
                           "keep takes `none`, `default`, or lines such as `disk every 5m for 1h` and `full every 1h for 1d` (the second time not "
                           "shorter), perhaps with ` to object store` behind, not '%.60s'",
                           trimmed);
    }
    return out->count ? 0 : err_set(e, EINVAL, "keep is empty: `none` for no snapshots, `default` for the node's policy");
}

static int64_t period(int64_t t, uint64_t phase, uint32_t every)
{
    int64_t shifted = t + (int64_t)(phase % every);
    return shifted >= 0 ? shifted / every : -((-shifted + every - 1) / every);
}

static bool tier_due(const struct keep_tier *t, uint64_t phase, int64_t now, int64_t last)
{
    return last < 0 || period(now, phase, t->every) > period(last, phase, t->every);
}

enum keep_due keep_due(const struct keep_policy *p, uint64_t phase, int64_t now, int64_t last, int64_t last_full)
{
    enum keep_due due = KEEP_NOTHING;
    for (unsigned i = 0; i < p->count; i++) {
        const struct keep_tier *t = &p->tier[i];
        if (t->full && tier_due(t, phase, now, last_full))
            return KEEP_FULL;
        if (!t->full && tier_due(t, phase, now, last))
            due = KEEP_DISK;
    }
    return due;
}

/* The first one of each period is what the tier wants. */
static void mark(const struct keep_policy *p, unsigned tier, uint64_t phase, int64_t now, struct keep_item *items, size_t n)
{
    const struct keep_tier *t = &p->tier[tier];
    int64_t before = INT64_MIN;
    for (size_t i = 0; i < n; i++) {
        int64_t in = period(items[i].taken, phase, t->every), until = items[i].taken + (int64_t)t->keep_for;
        if ((t->full && !items[i].full) || in == before)
            continue;
        before = in;
        items[i].store = items[i].store || (t->store && now <= until);
        if (until > items[i].until) {
            items[i].until = until;
            items[i].tier = tier;
        }
    }
}

size_t keep_thin(const struct keep_policy *p, uint64_t phase, int64_t now, struct keep_item *items, size_t n)
{
    size_t go = 0;
    for (size_t i = 0; i < n; i++)
        items[i].until = items[i].tier = items[i].store = 0;
    for (unsigned i = 0; i < p->count; i++)
        mark(p, i, phase, now, items, n);
    for (size_t i = 0; i < n; i++) {
        items[i].stays = items[i].until && now <= items[i].until;
        go += !items[i].stays;
    }
    return go;
}

static void format_duration(uint32_t seconds, char out[16])
{
    static const struct {
        uint32_t seconds;
        char letter;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    size_t i = 0;
    while (seconds % units[i].seconds)
        i++;
    snprintf(out, 16, "%u%c", seconds / units[i].seconds, units[i].letter);
}

char *keep_format(const struct keep_tier *t, char out[KEEP_LINE_MAX])
{
    char every[16], keep_for[16];
    format_duration(t->every, every);
    format_duration(t->keep_for, keep_for);
    snprintf(out, KEEP_LINE_MAX, "%s every %s for %s%s", t->full ? "full" : "disk", every, keep_for, t->store ? " to object store" : "");
    return out;
}
