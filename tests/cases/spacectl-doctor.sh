#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spacectl doctor: all well on this instance; and it names what is missing, and the remedy, on one that is not there.
. "$(dirname "$0")/../lib.sh"

spacectl doctor >"$TESTTMP/out" || fail "$(cat "$TESTTMP/out")"
matches 'ok +mount' "$(cat "$TESTTMP/out")"
spacectl doctor --json | python3 -c "
import json, sys
rows = {r['check']: r for r in json.load(sys.stdin)}
assert rows['pool']['result'] == 'ok', rows['pool']"

mkdir "$TESTTMP/empty"
printf 'run = %s\npool = %s\nmount = %s\n' "$TESTTMP/empty" "$TESTTMP/empty" "$TESTTMP/empty" >"$TESTTMP/conf"
status=0
spacectl --space "$TESTTMP/empty" doctor --config "$TESTTMP/conf" >"$TESTTMP/out" || status=$?
eq 1 "$status"
for check in pool space-noded space-hostd mount; do
	grep -A 1 "^FAIL  $check " "$TESTTMP/out" | grep -q -- '->' || fail "no remedy for $check: $(cat "$TESTTMP/out")"
done
printf 'nonsense = 1\n' >"$TESTTMP/conf"
spacectl doctor --config "$TESTTMP/conf" >"$TESTTMP/out" || true
matches 'FAIL +configuration .*nonsense' "$(cat "$TESTTMP/out")"
