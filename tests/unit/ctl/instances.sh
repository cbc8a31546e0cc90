#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Instances on one host know of each other (ctl/quickstart.d/host.sh): instances.sh SOURCE_ROOT
# shellcheck disable=SC2034
set -euo pipefail
. "$1/ctl/quickstart.d/host.sh"

dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
INSTANCES=$dir/instances
UID_BASE=1004096
CONF=$dir/mine.conf

eq() {
	[ "$1" = "$2" ] || {
		echo "$3: want '$1', got '$2'"
		exit 1
	}
}

# instance NAME UID_BASE: one that is up
instance() {
	mkdir -p "$INSTANCES"
	echo "uid_base = $2" >"$dir/$1.conf"
	echo "$dir/$1.conf" >"$INSTANCES/$1"
}

eq '' "$(other_instances)" "others, of which there are none"
eq 1004096 "$(free_uids)" "uids with nobody else"
instance mine 1004096
eq '' "$(other_instances)" "others beside our own"
eq 1004096 "$(free_uids)" "uids that only we have"
instance "with a space" 1004096
eq "$dir/with a space.conf" "$(other_instances)" "others"
eq 1008192 "$(free_uids)" "uids when another one has ours"
instance third 1008192
eq 1012288 "$(free_uids)" "uids when two have"
rm "$dir/with a space.conf"
eq "$dir/third.conf" "$(other_instances)" "others without one that went without --down"
eq 1004096 "$(free_uids)" "uids then"
UID_BASE=$((1000000 + 3999 * 4096))
instance last "$UID_BASE"
eq 1000000 "$(free_uids)" "uids after the last range"
