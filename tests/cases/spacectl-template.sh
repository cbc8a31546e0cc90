#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spacectl template build: from a directory and from tar files; what is wrong with a tar file is said, and leaves nothing behind.
. "$(dirname "$0")/../lib.sh"

cd "$TESTTMP"
mkdir scratch
export TMPDIR=$TESTTMP/scratch
name=t-$$
remove_template() {
	[ ! -d "$SPACE/templates/$name" ] || spacectl template rm "$name"
}
defer remove_template

mkdir -p root/{bin,sbin,dev,proc,sys,run,tmp,etc,root,home/u}
cp "$(command -v busybox)" root/bin/busybox
ln -s busybox root/bin/sh
printf 'root:x:0:0::/root:/bin/sh\n' >root/etc/passwd
printf 'root:x:0:\n' >root/etc/group
chown 1234:2345 root/home/u
setfattr -n user.colour -v blue root/etc/passwd
tar --xattrs -C root -cf good.tar .

refused() {
	fails_with "$1" spacectl template build "$name" --from "${@:2}"
	[ ! -e "$SPACE/templates/$name" ] || fail "a refused template is there"
	eq '' "$(ls scratch)" "temporary files"
}

head -c 5000 good.tar >cut.tar
refused "cannot read cut.tar" cut.tar
tar -cf small.tar good.tar
head -c $(($(stat -c %s good.tar) / 512 * 512 + 512)) small.tar >whole-members.tar # only the end mark is missing
refused truncated whole-members.tar
gzip -k good.tar
head -c 20000 good.tar.gz >cut.tar.gz
refused "cannot read" cut.tar.gz
: >empty.tar
refused "cannot read" empty.tar
head -c 30000 /dev/urandom >noise.tar
refused "cannot read" noise.tar
touch x
tar -P -C root -cf up.tar ../x
refused '../x' up.tar
tar -P -cf absolute.tar "$TESTTMP/x"
refused "absolute: $TESTTMP/x" absolute.tar
mkdir dev
mknod dev/null c 1 3
tar -cf device.tar dev
refused dev/null device.tar
refused "No such file" nothing
refused "between 16M" good.tar --size 1M
refused "--size takes" good.tar --size 12Q
refused "--size too small" good.tar --size 16M --from /usr/bin
fails_with "not a name" spacectl template build ../x --from root
fails_with "already" spacectl template build tiny --from root

# An interrupt in the middle.
spacectl template build "$name" --from /usr/lib --size 20G 2>err &
pid=$!
wait_for 30 eval '[ -n "$(ls scratch)" ]'
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
eq 130 "$status" "status of an interrupted build"
eq '' "$(ls scratch)" "temporary files after an interrupt"
[ ! -e "$SPACE/templates/$name" ]

# The device left out, the rest as it was.
mkdir root/dev/pts
mknod root/dev/null c 1 3
tar --xattrs -C root -czf good.tar.gz .
spacectl template build "$name" --from good.tar.gz --skip-devices --size 64M
eq ready "$(cat "$SPACE/templates/$name/state")"
matches "$name +ready +64M" "$(spacectl template ls)"
spacectl template ls --json | python3 -c "import json, sys; assert '$name' in [t['template'] for t in json.load(sys.stdin)]"
sandbox box --template "$name"
eq '1234:2345' "$(stat -c %u:%g "$SPACE/root/$box/home/u")" "owner in the template"
eq blue "$(getfattr --only-values -n user.colour "$SPACE/root/$box/etc/passwd")" "xattr in the template"
[ ! -e "$SPACE/root/$box/dev/null" ] || [ ! -s "$SPACE/root/$box/dev/null" ]
eq made "$(spacectl exec "$box" sh -c 'echo made')"
eq '' "$(ls scratch)" "temporary files after a build"
