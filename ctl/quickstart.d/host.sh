# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the host must bring: packages, the programs, users, KVM and libvirt. Everything here is safe to repeat.

LIBVIRT_HOME=/var/lib/libvirt/qemu
LIBVIRT_STARTED=/run/space-libvirt.pids # of the daemons that we started, for --down
INSTANCES=/run/space-instances          # a file for each that is up, named as its machines are: the path of its configuration

# Names in package lists that are not installed.
missing_packages() {
	local package
	sed 's/#.*//' "$@" | tr -s '[:space:]' '\n' | sed '/^$/d' | sort -u | while read -r package; do
		dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
	done
}

# install_packages LIST...
install_packages() {
	local missing
	mapfile -t missing < <(missing_packages "$@")
	if [ "${#missing[@]}" -eq 0 ]; then
		note "all there"
		return 0
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get update
	apt-get install -y --no-install-recommends "${missing[@]}"
	note "installed ${missing[*]}"
}

build() {
	if [ ! -f "$BUILD/build.ninja" ]; then
		meson setup --prefix /usr/local "$BUILD" "$SOURCE"
	fi
	ninja -C "$BUILD"
	note "in $BUILD"
}

install_programs() {
	if [ -z "$INSTANCE" ]; then
		meson install -C "$BUILD" --no-rebuild --only-changed
		note "spacectl in $BIN, daemons in $LIBEXEC"
	else
		mkdir -p "$BIN"
		install -C -m 0755 "$BUILD"/ctl/spacectl "$BUILD"/hostd/space-hostd "$BUILD"/hostd/noded/space-noded \
			"$BUILD"/hostd/noded/space-qemu-ram.so "$BUILD"/spacefs/spacefs "$BUILD"/ctl/space-reaper \
			"$BUILD"/hostd/netd/space-netd "$BUILD"/hostd/browse/space-browse "$BUILD"/hostd/browse/space-browsed \
			"$BUILD"/hostd/volumed/space-volumed "$BUILD"/hostd/credd/space-credd "$BUILD"/hostd/credd/space-inject "$BIN"
		note "in $BIN"
	fi
}

prepare_users() {
	getent group space >/dev/null || addgroup --system space
	getent passwd space >/dev/null ||
		adduser --system --ingroup space --home /nonexistent --no-create-home --disabled-login space
	getent passwd space-vol >/dev/null ||
		adduser --system --group --home /nonexistent --no-create-home --disabled-login space-vol
	getent passwd space-cred >/dev/null ||
		adduser --system --group --home /nonexistent --no-create-home --disabled-login space-cred
	getent passwd space-inject >/dev/null ||
		adduser --system --group --home /nonexistent --no-create-home --disabled-login space-inject
	getent passwd space-net >/dev/null ||
		adduser --system --group --home /nonexistent --no-create-home --disabled-login space-net
	if [ -z "$INSTANCE" ] && [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
		id -nG "$SUDO_USER" | tr ' ' '\n' | grep -qx space || adduser "$SUDO_USER" space
		note "user and group space; $SUDO_USER is in the group"
	else
		note "user and group space"
	fi
}

# If QEMU's user cannot open /dev/kvm, libvirt probes QEMU anew at every start of a VM, 80 s each.
prepare_virtualisation() {
	getent group kvm >/dev/null || addgroup --system kvm
	if [ -e /dev/kvm ]; then
		chgrp kvm /dev/kvm
		chmod 0660 /dev/kvm
		note "/dev/kvm for group kvm"
	else
		note "no /dev/kvm: guests are emulated"
	fi
	chmod 0711 "$LIBVIRT_HOME"
}

# The configurations of what else is up on this host: it shares libvirt and the uids of machines with us.
other_instances() {
	local file conf
	for file in "$INSTANCES"/*; do
		conf=$(cat "$file" 2>/dev/null) || continue
		[ "$conf" = "$CONF" ] || [ ! -f "$conf" ] || echo "$conf"
	done
}

# The first range of uids from UID_BASE on that no other instance has.
free_uids() {
	local base=$UID_BASE others
	mapfile -t others < <(other_instances)
	while grep -qsx "uid_base = $base" "${others[@]}" /dev/null; do
		base=$((1000000 + (base - 1000000 + 4096) % (4000 * 4096)))
	done
	echo "$base"
}

libvirt_answers() {
	virsh -q -c qemu:///system version >/dev/null 2>&1
}

# start_daemon NAME
start_daemon() {
	local pid=/run/$1.pid
	if ! [ -s "$pid" ] || [ "$(cat "/proc/$(cat "$pid")/comm" 2>/dev/null)" != "$1" ]; then
		"$LIBEXEC/space-reaper" "$1" -d -p "$pid"
	fi
}

start_libvirt() {
	if libvirt_answers; then
		note "was running"
	elif has_systemd; then
		systemctl enable --now virtlogd.socket libvirtd.service
	else
		# One that runs already, and only hangs, holds the lock on its pid file. Not by name: containers may have their own.
		start_daemon virtlogd
		start_daemon libvirtd
		printf "%s\n" "$(cat /run/virtlogd.pid)" "$(cat /run/libvirtd.pid)" >"$LIBVIRT_STARTED"
		note "started"
	fi
	wait_until 30 "libvirtd" libvirt_answers
}

# Connections to libvirtd that are open.
libvirt_clients() {
	awk '$6 == "03" && $8 ~ "/libvirt/libvirt-sock$"' /proc/net/unix | wc -l
}

# Only what we started, and only when nobody uses it any more.
stop_libvirt() {
	local pid
	rm -f "$INSTANCES/$VM_PREFIX"
	[ -f "$LIBVIRT_STARTED" ] || return 0
	if [ -n "$(other_instances)" ] || [ -n "$(virsh -q -c qemu:///system list --name 2>/dev/null)" ] || [ "$(libvirt_clients)" -gt 0 ]; then
		note "libvirtd stays: others use it"
		return 0
	fi
	while read -r pid; do
		case $(cat "/proc/$pid/comm" 2>/dev/null) in
		libvirtd | virtlogd) kill "$pid" ;;
		esac
	done <"$LIBVIRT_STARTED"
	rm -f "$LIBVIRT_STARTED"
}
