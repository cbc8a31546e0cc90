#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Debian's diod client tools, which none of us wrote, against space-hostd's own socket.
. "$(dirname "$0")/../lib.sh"
cd "$TESTTMP"

sandbox box --template tiny
socket=$SPACE_DIR/run/hostd.sock
ls9() { diodls -s "$socket" -a / "$@"; }
cat9() { diodcat -s "$socket" -a / "$@"; }

eq "$(ls "$SPACE" | LC_ALL=C sort)" "$(ls9 | grep -v '^\.' | LC_ALL=C sort)" "the root as the mount shows it"
eq "$(ls "$SPACE/sandboxes/$box" | LC_ALL=C sort)" "$(ls9 "sandboxes/$box" | grep -v '^\.' | LC_ALL=C sort)" "a sandbox"
eq "$(cat "$SPACE/version")" "$(cat9 version)" "a file"
eq "$(cat "$SPACE/sandboxes/$box/id")" "$(cat9 "sandboxes/$box/id")" "an attribute"
matches "^-rw-r--r--.* state$" "$(ls9 -l "sandboxes/$box" | grep state)" "a long listing"

head -c 3000000 /dev/urandom >file
spacectl cp file "$box:/root/file"
cat9 "root/$box/root/file" >back
cmp file back

status=0
cat9 sandboxes/nothing/id 2>err || status=$?
ne 0 "$status" "a missing file"
matches "No such file" "$(cat err)"
