#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spacectl exec: exit statuses, streams, input, environment, signals.
. "$(dirname "$0")/../lib.sh"

sandbox box --template tiny

status_of() {
	local status=0
	"$@" >"$TESTTMP/out" 2>"$TESTTMP/err" || status=$?
	echo "$status"
}

eq 0 "$(status_of spacectl exec "$box" true)"
eq 7 "$(status_of spacectl exec "$box" sh -c 'echo out; echo err >&2; exit 7')"
eq out "$(cat "$TESTTMP/out")"
eq err "$(cat "$TESTTMP/err")"
eq 137 "$(status_of spacectl exec "$box" sh -c 'kill -9 $$')" "killed by signal 9"
eq 127 "$(status_of spacectl exec "$box" no-such-program)"
matches 'No such file' "$(cat "$TESTTMP/err")"
eq 126 "$(status_of spacectl exec "$box" /etc/passwd)"
eq 125 "$(status_of spacectl exec no-such-sandbox true)"
eq 125 "$(status_of spacectl exec "$box" --no-such-option true)"

# Arguments arrive as they are, without a shell in between.
eq '<a b><$HOME><><*>' "$(spacectl exec "$box" printf '<%s>' 'a b' '$HOME' '' '*')"
eq 'x y /tmp' "$(spacectl exec -e A=x -e 'B=y' -w /tmp "$box" sh -c 'echo "$A $B $(pwd)"')"
eq user "$(spacectl exec -u user "$box" id -un)"

# Input: a pipe, nothing at all, and a reader that does not want it.
eq 6 "$(printf 'abcdef' | spacectl exec "$box" wc -c | tr -d ' ')"
eq 0 "$(spacectl exec "$box" cat </dev/null | wc -c)"
eq done "$(head -c 3000000 /dev/zero | spacectl exec "$box" sh -c 'exec <&-; echo done')"

# Both streams, many megabytes at once, byte for byte.
head -c 8000000 /dev/urandom >"$TESTTMP/in"
sum=$(sha256sum <"$TESTTMP/in")
spacectl exec "$box" tee /dev/stderr <"$TESTTMP/in" >"$TESTTMP/out" 2>"$TESTTMP/err"
eq "$sum" "$(sha256sum <"$TESTTMP/out")" "stdout"
eq "$sum" "$(sha256sum <"$TESTTMP/err")" "stderr"

# A child left behind does not hold it up, and what was written before the end is all there.
began=$SECONDS
eq left "$(spacectl exec "$box" sh -c 'sleep 60 & echo left')"
at_most 20 $((SECONDS - began)) "seconds with a child left behind"

# Nobody reads any more.
spacectl exec "$box" yes 2>/dev/null | head -n 1 >/dev/null || ends=("${PIPESTATUS[@]}")
eq 141 "${ends[0]}" "status after SIGPIPE"

# Signals reach the program.
spacectl exec "$box" sh -c 'trap "echo got; exit 5" INT; echo ready; while :; do sleep 0.1; done' >"$TESTTMP/out" &
pid=$!
wait_for 30 grep -q ready "$TESTTMP/out"
kill -INT "$pid"
status=0
wait "$pid" || status=$?
eq 5 "$status"
eq got "$(tail -n 1 "$TESTTMP/out")"

eq 137 "$(status_of spacectl exec --timeout 1s "$box" sleep 60)" "status after a timeout"

# Nothing is left in proc.
eq '' "$(ls "$SPACE/proc/$box")" "jobs left behind"
