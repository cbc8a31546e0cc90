#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spacectl cp: files and trees in both directions, and links that would lead out.
. "$(dirname "$0")/../lib.sh"

sandbox box --template tiny
cd "$TESTTMP"

head -c 3000000 /dev/urandom >file
spacectl cp file "$box:/root/"
spacectl cp "$box:/root/file" back
eq "$(sha256sum <file)" "$(sha256sum <back)" "a file there and back"
eq "$(sha256sum <file)" "$(spacectl exec "$box" sha256sum /root/file | sed 's/  .*/  -/')" "as the guest sees it"

printf '#!/bin/sh\necho ran\n' >script
chmod 755 script
spacectl cp script "$box:/root/other-name"
eq ran "$(spacectl exec "$box" /root/other-name)" "an executable stays one"

mkdir -p tree/sub
echo 1 >tree/a
echo 2 >"tree/sub/b with blanks"
ln -s "sub/b with blanks" tree/link
ln -s sub/../a tree/cut
spacectl cp -r tree "$box:/root"
eq 2 "$(cat "$SPACE/root/$box/root/tree/sub/b with blanks")"
spacectl cp -r "$box:/root/tree" out
diff -r tree out
eq "sub/b with blanks" "$(readlink out/link)" "a safe target is kept as it is"
eq a "$(readlink out/cut)" "behind a name, .. is cut: that name could be a link"

fails_with "use -r" spacectl cp "$box:/root" here
fails_with "No such file" spacectl cp "$box:/root/nothing" here
fails_with "No such file" spacectl cp nothing "$box:/root/"
fails_with "neither side" spacectl cp file here
fails_with "not a name" spacectl cp file ".x:/root"

# Links of a hostile guest: one to the host's files, one out of the tree.
echo "host's own" >secret
spacectl exec "$box" sh -c "ln -s '$TESTTMP/secret' /root/absolute; ln -s ../../../../../../../..$TESTTMP/secret /root/relative
	mkfifo /root/fifo; ln -s / /root/loop"
fails_with "No such file" spacectl cp "$box:/root/absolute" stolen
fails_with "No such file" spacectl cp "$box:/root/relative" stolen
[ ! -e stolen ]
fails_with "neither a regular file" spacectl cp "$box:/root/fifo" f
echo safe >mine
fails_with "No such file" spacectl cp mine "$box:/root/relative/deeper"
eq "host's own" "$(cat secret)"

# Holes stay holes.
truncate -s 200M sparse
printf x | dd of=sparse bs=1 seek=100000000 conv=notrunc status=none
spacectl cp sparse "$box:/root/"
at_most 2048 "$(spacectl exec "$box" du -k /root/sparse | cut -f 1)" "KiB of a sparse file in the guest"
spacectl cp "$box:/root/sparse" sparse2
cmp sparse sparse2
at_most 2048 "$(du -k sparse2 | cut -f 1)" "KiB of a sparse file on the host"
