#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the kernel and the initramfs that guests boot: kernel.sh SPACE_DAEMON OUT_DIR
#
# OUT_DIR/vmlinuz is the kernel of Debian's linux-image-cloud-amd64, OUT_DIR/initrd an initramfs of space-daemon as /init, the modules that
# a guest needs, and /modules/list, their load order. The package is downloaded as apt is configured, once, into OUT_DIR/cache, and
# unpacked there; nothing is installed. What is up to date is left alone. KERNEL_PACKAGE names another package.
set -euo pipefail

[ $# -eq 2 ] || {
	echo "usage: $0 SPACE_DAEMON OUT_DIR" >&2
	exit 2
}
daemon=$(readlink -f "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd -P)
cache=$out/cache

die() {
	echo "$0: $*" >&2
	exit 1
}

# Names as in the kernel's source; those that are built in, or that a kernel does not have, are left out.
wanted=(virtio_pci virtio_blk virtio_console virtio_rng virtio_net tcp_diag ext4 crc32c_generic crc32c-intel pvpanic-mmio pvpanic)

[ -x "$daemon" ] || die "$1 is no program"

# The versioned package that the meta package depends on.
package_name() {
	[ -z "${KERNEL_PACKAGE:-}" ] || {
		echo "$KERNEL_PACKAGE"
		return
	}
	apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1
}

fetch() {
	local name
	[ ! -f "$cache/complete" ] || return 0
	name=$(package_name)
	[ -n "$name" ] || die "apt knows no linux-image-cloud-amd64: is 'apt-get update' needed?"
	rm -rf "$cache.new"
	mkdir -p "$cache.new/tree"
	(cd "$cache.new" && apt-get download -q "$name") >"$cache.new/log" 2>&1 || {
		cat "$cache.new/log" >&2
		die "download $name"
	}
	dpkg-deb -x "$cache.new"/*.deb "$cache.new/tree"
	rm "$cache.new"/*.deb
	touch "$cache.new/complete"
	rm -rf "$cache"
	mv "$cache.new" "$cache"
}

# module_path NAME: below the modules directory; '-' and '_' are the same in names.
module_path() {
	local pattern=${1//[-_]/[-_]}
	find . -name "$pattern.ko" | head -n 1 | sed 's,^\./,,'
}

declare -A seen=()
order=()
# add PATH: what it depends on first, as the module itself says; so depmod is not needed.
add() {
	local dep path
	[ -z "${seen[$1]:-}" ] || return 0
	seen[$1]=1
	for dep in $(tr '\0' '\n' <"$1" | sed -n 's/^depends=//p' | tr , ' '); do
		path=$(module_path "$dep")
		[ -n "$path" ] || die "$1 needs $dep, which is not there"
		add "$path"
	done
	order+=("$1")
}

resolve() {
	local name path
	for name in "${wanted[@]}"; do
		path=$(module_path "$name")
		[ -z "$path" ] || add "$path"
	done
}

# The daemon is a program of the host's user otherwise: owners and times in the archive are fixed, so that the same input gives the same bytes.
pack() {
	local tree=$1 path
	install -D -s -m 0755 "$daemon" "$tree/init" # its debugging information would stay in each guest's memory
	mkdir -p "$tree"/{dev,proc,sys,root,modules}
	for path in "${order[@]}"; do
		install -m 0644 "$path" "$tree/modules/$(basename "$path")"
		echo "/modules/$(basename "$path")"
	done >"$tree/modules/list"
	find "$tree" -exec touch -h -d @0 {} +
	(cd "$tree" && find . -print | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet --reproducible)
}

exec 9>"$out/lock"
flock 9 # one makes it, who came meanwhile finds it made
if [ -f "$out/initrd" ] && [ -f "$out/vmlinuz" ] && [ "$out/initrd" -nt "$daemon" ] && [ "$out/initrd" -nt "$0" ]; then
	exit 0
fi
fetch
modules=$(echo "$cache"/tree/lib/modules/* "$cache"/tree/usr/lib/modules/*)
modules=${modules%% *}
[ -d "$modules" ] || die "the kernel package has no modules"
cd "$modules"
resolve
tree=$(mktemp -d "$out/tree-XXXXXX")
trap 'rm -rf "$tree" "$out/initrd.new" "$out/vmlinuz.new"' EXIT
pack "$tree" >"$out/initrd.new"
install -m 0644 "$cache"/tree/boot/vmlinuz-* "$out/vmlinuz.new"
mv "$out/vmlinuz.new" "$out/vmlinuz"
mv "$out/initrd.new" "$out/initrd"
chmod 0644 "$out/initrd"
