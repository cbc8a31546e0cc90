# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Helpers for test scripts: `. "$(dirname "$0")/../lib.sh"` first. The runner gives SPACE (the mount), SPACE_CONFIG, SPACE_DIR (the
# instance), BUILD, TESTTMP (a directory of the test's own) and spacectl on PATH.
#
#   sandbox VAR [OPTION...]     makes a sandbox (spacectl create OPTION...), its name in VAR; it goes when the test ends
#   sandbox_name VAR            only the name, for a test that makes it itself; removed at the end if it is there
#   defer COMMAND...            is run when the test ends, however it ends; the last one first
#   wait_for SECONDS COMMAND... until it succeeds; fails at the deadline
#   eq WANT GOT [WHAT]          ne, matches REGEX GOT [WHAT], at_most LIMIT GOT [WHAT] (numbers): fail, printing both
#   fails_with TEXT COMMAND...  the command fails and its standard error holds TEXT (an errno's text, say)
#   state NAME                  prints a sandbox's state
#   skip REASON                 ends the test as skipped
set -euo pipefail

: "${SPACE:?run me through tests/run}" "${TESTTMP:?}"

test_deferred=()

test_end() {
	local status=$? i
	trap - EXIT
	set +e
	for ((i = ${#test_deferred[@]} - 1; i >= 0; i--)); do
		eval "${test_deferred[i]}"
	done
	exit "$status"
}
trap test_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

defer() {
	local quoted
	printf -v quoted '%q ' "$@"
	test_deferred+=("$quoted")
}

fail() {
	printf 'FAILED at %s:%s: %s\n' "${BASH_SOURCE[-1]##*/}" "${BASH_LINENO[-2]}" "$*" >&2
	exit 1
}

skip() {
	printf '%s\n' "$*" >&2
	exit 77
}

remove_sandbox() {
	[ ! -d "$SPACE/sandboxes/$1" ] || rmdir "$SPACE/sandboxes/$1"
}

test_count=0
sandbox_name() {
	test_count=$((test_count + 1))
	printf -v "$1" '%s-%d-%d' "$(basename "$0" | tr -c 'A-Za-z0-9\n' - | cut -c 1-30)" $$ "$test_count"
	defer remove_sandbox "${!1}"
}

sandbox() {
	sandbox_name "$1"
	spacectl create "${@:2}" "${!1}"
}

state() {
	cat "$SPACE/sandboxes/$1/state"
}

wait_for() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || fail "not in time: $*"
		sleep 0.05
	done
}

eq() {
	[ "$1" = "$2" ] || fail "${3:-value}: want [$1], got [$2]"
}

ne() {
	[ "$1" != "$2" ] || fail "${3:-value}: want something other than [$1]"
}

matches() {
	[[ $2 =~ $1 ]] || fail "${3:-value}: want a match of [$1], got [$2]"
}

at_most() {
	awk -v limit="$1" -v got="$2" 'BEGIN { exit !(got <= limit) }' || fail "${3:-value}: want at most $1, got $2"
}

fails_with() {
	local want=$1 got status=0
	shift
	got=$({ "$@" 2>&1 >/dev/null; } 2>&1) || status=$?
	[ "$status" -ne 0 ] || fail "succeeded, want a failure with [$want]: $*"
	[[ $got == *"$want"* ]] || fail "$*: want an error with [$want], got [$got]"
}
