#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 240
# The other commands of spacectl, each once in its place in a sandbox's life, and their errors.
. "$(dirname "$0")/../lib.sh"

sandbox_name box
sandbox_name copy
sandbox_name renamed

spacectl create --wait --template tiny --memory 160M --label colour=blue "$box"
eq running "$(state "$box")"
eq 160M "$(cat "$SPACE/sandboxes/$box/memory")"
eq colour=blue "$(cat "$SPACE/sandboxes/$box/labels")"
fails_with "File exists" spacectl create "$box"
fails_with "not a name" spacectl create "a/b"
fails_with "No such file" spacectl create --template no-such-template "$copy"
[ ! -e "$SPACE/sandboxes/$copy" ] || fail "a sandbox that could not be made is there"

matches "$box +running +160M" "$(spacectl ls)"
spacectl ls --json "$box" | python3 -c "
import json, sys
rows = json.load(sys.stdin)
assert len(rows) == 1 and rows[0]['name'] == '$box' and rows[0]['state'] == 'running' and rows[0]['vcpus'] == 1, rows"

spacectl exec "$box" sh -c 'echo one >/root/file; sync'
spacectl pause "$box"
eq paused "$(state "$box")"
spacectl resume "$box"
eq running "$(state "$box")"

snapshot=$(spacectl snapshot create "$box")
matches "$snapshot" "$(spacectl snapshot ls "$box")"
spacectl snapshot create "$box" mine >/dev/null
spacectl snapshot ls --json "$box" | python3 -c "import json, sys; assert 'mine' in [s['snapshot'] for s in json.load(sys.stdin)]"

spacectl fork "$box" "$copy"
eq one "$(spacectl exec "$copy" cat /root/file)" "file in the fork"
spacectl exec "$box" sh -c 'echo two >/root/file; sync'
eq one "$(spacectl exec "$copy" cat /root/file)" "file in the fork after a change in its source"

spacectl rollback "$box" mine
eq one "$(spacectl exec "$box" cat /root/file)" "file after the roll back"

spacectl stop "$box"
eq stopped "$(state "$box")"
fails_with "pause $box" spacectl pause "$box"
spacectl start "$box"
eq one "$(spacectl exec "$box" cat /root/file)" "file after stop and start"
spacectl kill "$box"
eq stopped "$(state "$box")"

spacectl mv "$box" "$renamed"
[ ! -e "$SPACE/sandboxes/$box" ]
eq stopped "$(state "$renamed")"
fails_with "No such file" spacectl mv "$box" "$copy"

spacectl events | python3 -c "
import json, sys
kinds = {json.loads(line)['kind'] for line in sys.stdin}
assert kinds, 'no events'"
spacectl snapshot rm "$renamed" mine "$snapshot"
spacectl rm "$renamed" "$copy"
[ ! -e "$SPACE/sandboxes/$renamed" ]
spacectl rm -f "$renamed"
fails_with "No such file" spacectl rm "$renamed"
