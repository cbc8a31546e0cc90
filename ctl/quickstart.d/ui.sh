# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Progress for people: numbered steps with times, output kept in a log and shown when a step fails.
#
# A step is a function. It runs in a subshell of its own process group, so that an interrupt ends all that it started, and its
# output goes to $LOG. What it says with `note` stands behind its line.

step_number=0
step_total=0 # set by the caller
step_pid=

die() {
	printf 'quickstart: %s\n' "$1" >&2
	shift
	[ $# -eq 0 ] || printf '  %s\n' "$@" >&2
	exit 1
}

note() {
	printf '%s' "$*" >"$NOTE"
}

# Seconds since the start of the shell, with a tenth.
now() {
	local seconds rest
	read -r seconds rest </proc/uptime
	printf '%s' "$seconds"
}

elapsed() {
	awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'
}

interrupted() {
	trap - INT TERM HUP
	[ -z "$step_pid" ] || kill -TERM -- "-$step_pid" 2>/dev/null || true
	printf '\nquickstart: interrupted; run it again, it goes on where it was\n' >&2
	exit 130
}

# Waits for the step while a clock runs on a terminal.
attend() {
	local title=$1 began=$2
	if [ -t 1 ]; then
		while kill -0 "$step_pid" 2>/dev/null; do
			printf '\r[%2d/%d] %s ... %s ' "$step_number" "$step_total" "$title" "$(elapsed "$began")"
			sleep 0.5 &
			wait -n "$step_pid" $! 2>/dev/null || true
		done
		printf '\r\033[K'
	fi
}

# step TITLE FUNCTION [ARGUMENT...]
step() {
	local title=$1 began said status=0
	shift
	step_number=$((step_number + 1))
	began=$(now)
	: >"$NOTE"
	[ -t 1 ] || printf '[%2d/%d] %s ...' "$step_number" "$step_total" "$title"
	printf '\n== %s\n' "$title" >>"$LOG"
	local start
	start=$(stat -c %s "$LOG")
	set -m
	(
		set -euo pipefail
		trap - INT TERM HUP
		"$@"
	) </dev/null >>"$LOG" 2>&1 9>&- &
	step_pid=$!
	set +m
	attend "$title" "$began"
	wait "$step_pid" || status=$?
	step_pid=
	if [ -t 1 ]; then
		printf '[%2d/%d] %s ...' "$step_number" "$step_total" "$title"
	fi
	if [ "$status" -eq 0 ]; then
		said=$(cat "$NOTE")
		printf ' %s (%s)\n' "${said:-done}" "$(elapsed "$began")"
		return 0
	fi
	printf ' FAILED (%s)\n' "$(elapsed "$began")"
	printf '%s\n' "--- the end of $LOG:" >&2
	tail -c "+$((start + 1))" "$LOG" | tail -n 25 >&2
	exit 1
}

# Runs what changes the host, which several instances may want at the same time. Nothing it starts inherits the lock.
exclusively() {
	exec 8>/run/lock/space-host.lock
	flock 8
	"$@" 8>&-
}

# wait_until SECONDS WHAT COMMAND...: polls with a deadline.
wait_until() {
	local limit=$1 what=$2 deadline
	shift 2
	deadline=$((SECONDS + limit))
	until "$@"; do
		if [ "$SECONDS" -ge "$deadline" ]; then
			echo "$what: not within $limit s" >&2
			return 1
		fi
		sleep 0.05
	done
}
