# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The guest's kernel, and the two templates: `debian` to work in, `tiny` to try things quickly.

DEBIAN_PACKAGES=python3,git,ca-certificates,procps

# The script leaves what is up to date alone.
make_guest() {
	mkdir -p "$GUEST" "$CACHE/guest"
	"$SOURCE/guest/kernel.sh" "$BUILD/guest/space-daemon" "$CACHE/guest"
	install -C -m 0644 "$CACHE/guest/vmlinuz" "$CACHE/guest/initrd" "$GUEST"
	note "$GUEST"
}

template_ready() {
	[ "$(cat "$MOUNT/templates/$1/state" 2>/dev/null)" = ready ]
}

# The Debian repositories that this host uses, as lines of a sources.list: no other mirror need be reachable.
debian_sources() {
	# shellcheck disable=SC2016
	apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' \
		'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u
}

# tar_debian FILE
tar_debian() {
	local sources codename
	sources=$(debian_sources)
	if [ -z "$sources" ]; then
		apt-get update
		sources=$(debian_sources)
	fi
	# shellcheck disable=SC1091
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	# shellcheck disable=SC2016
	mmdebstrap --format=tar --variant=minbase --dpkgopt=force-unsafe-io --include="$DEBIAN_PACKAGES" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
		--customize-hook='printf "127.0.0.1 localhost\n::1 localhost\n" >"$1/etc/hosts"' \
		"$codename" "$1.new" - <<<"$sources"
	mv "$1.new" "$1"
}

# tar_tiny FILE: busybox, all of its applets as links, and the files that programs expect.
tar_tiny() {
	local root applet
	root=$(mktemp -d)
	mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,dev,proc,sys,run,etc,home/user,var/log,mnt}
	install -d -m 0700 "$root/root"
	install -d -m 1777 "$root/tmp" "$root/var/tmp"
	install -m 0755 /bin/busybox "$root/bin/busybox"
	/bin/busybox --list-full | while read -r applet; do
		[ "$applet" = bin/busybox ] || ln -sf /bin/busybox "$root/$applet"
	done
	cat >"$root/etc/passwd" <<-PASSWD
		root:x:0:0:root:/root:/bin/sh
		daemon:x:1:1:daemon:/:/bin/false
		user:x:1000:1000:user:/home/user:/bin/sh
		nobody:x:65534:65534:nobody:/:/bin/false
	PASSWD
	printf 'root:x:0:\ndaemon:x:1:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n' >"$root/etc/group"
	printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
	printf 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' >"$root/etc/profile"
	chown -R 0:0 "$root"
	chown 1000:1000 "$root/home/user"
	tar -C "$root" --numeric-owner -cf "$1.new" .
	rm -rf "$root"
	mv "$1.new" "$1"
}

# make_template NAME: builds it unless it is there. Instances come and go, so the tar file is kept for the next one.
make_template() {
	local name=$1 dir tarball
	if template_ready "$name"; then
		note "is there"
		return 0
	fi
	dir=$(mktemp -d /var/tmp/quickstart-XXXXXX)
	# shellcheck disable=SC2064
	trap "rm -rf '$dir'" EXIT
	tarball=$dir/$name.tar
	if [ -n "$INSTANCE" ]; then
		mkdir -p "$CACHE"
		tarball=$CACHE/$name-$(cksum <"${BASH_SOURCE[0]}" | cut -d ' ' -f 1).tar # a changed recipe is another file
	fi
	[ -f "$tarball" ] || "tar_$name" "$tarball"
	# A directory that an interrupted run left behind is not ready and in the way.
	[ ! -d "$MOUNT/templates/$name" ] || rmdir "$MOUNT/templates/$name"
	spacectl template build "$name" --from "$tarball" --skip-devices
	echo all >"$MOUNT/templates/$name/share"
	note "made"
}

# The first sandbox, and a command in it.
first_sandbox() {
	local out
	case $(cat "$MOUNT/sandboxes/hello/state" 2>/dev/null) in
	'') spacectl create hello ;;
	stopped | failed) spacectl start hello ;;
	esac
	# shellcheck disable=SC2016
	out=$(spacectl exec hello sh -c 'echo "$(uname -sr), $(id -un), up $(cut -d " " -f 1 /proc/uptime) s"')
	note "says: $out"
}
