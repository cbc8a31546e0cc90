# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The daemons: units under systemd, else runit's runsvdir with a service and a log each. Either restarts what dies.

SERVICES="noded netd browsed volumed credd inject hostd spacefs" # in the order of their start

service_program() {
	case $1 in
	spacefs) echo "$LIBEXEC/spacefs" ;;
	*) echo "$LIBEXEC/space-$1" ;;
	esac
}

# The command line of a daemon, for a run script.
service_command() {
	case $1 in
	hostd | browsed) echo "setpriv --reuid=space --regid=space --init-groups --inh-caps=-all $(service_program "$1") --config $CONF" ;;
	*) echo "$(service_program "$1") --config $CONF" ;;
	esac
}

# A mount whose server was killed must go before a new one can come.
service_prelude() {
	[ "$1" != spacefs ] || cat <<-PRELUDE
		while umount -l "$MOUNT" 2>/dev/null; do :; done
	PRELUDE
}

write_if_changed() {
	local path=$1
	cat >"$path.new"
	chmod "$2" "$path.new"
	if cmp -s "$path.new" "$path"; then
		rm "$path.new"
	else
		mv "$path.new" "$path"
	fi
}

write_runit_service() {
	local name=$1
	mkdir -p "$SV/$name/log" "$LOGS/$name"
	write_if_changed "$SV/$name/run" 0755 <<-RUN
		#!/bin/sh
		exec 2>&1
		$(service_prelude "$name")
		exec $(service_command "$name")
	RUN
	# A crash is said where the daemon's own lines are. \$1 is -1 after a signal, the low bits of \$2 are its number.
	write_if_changed "$SV/$name/finish" 0755 <<-FINISH
		#!/bin/sh
		[ "\$1" -ge 0 ] || case \$((\$2 & 127)) in
		9 | 15) ;;
		*) echo "error: $name crashed by signal \$((\$2 & 127)), and is started again" ;;
		esac
	FINISH
	write_if_changed "$SV/$name/log/run" 0755 <<-RUN
		#!/bin/sh
		exec svlogd -tt $LOGS/$name
	RUN
}

runsvdir_pid() {
	local pid
	pid=$(cat "$RUNSVDIR_PID" 2>/dev/null) || return 1
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = runsvdir ] || return 1
	echo "$pid"
}

# Files of an earlier runsv may be there without it.
supervised() {
	sv status "$SV/$1" 2>/dev/null | grep -q '^\(run\|down\|finish\):'
}

start_runit() {
	local name
	for name in $SERVICES; do
		write_runit_service "$name"
	done
	if ! runsvdir_pid >/dev/null; then
		# In a session of its own: it outlives this script and its terminal.
		setsid sh -c "echo \$\$ >'$RUNSVDIR_PID'; exec runsvdir -P '$SV'" </dev/null >/dev/null 2>&1 &
	fi
	for name in $SERVICES; do
		wait_until 15 "runsv $name" supervised "$name"
		restart_if_outdated "$name"
		sv up "$SV/$name"
	done
}

# What the program becomes.
service_process() {
	case $1 in
	inject) echo /usr/sbin/haproxy ;;
	*) service_program "$1" ;;
	esac
}

# A new program or another command line replaces a running daemon; VMs live on.
restart_if_outdated() {
	local name=$1 pid
	pid=$(cat "$SV/$name/supervise/pid" 2>/dev/null || true)
	[ -n "$pid" ] || return 0
	if [ "$(readlink "/proc/$pid/exe")" != "$(service_process "$name")" ] || [ "$SV/$name/run" -nt "$SV/$name/supervise/pid" ]; then
		sv restart "$SV/$name"
	fi
}

start_systemd() {
	local unit units=
	for unit in space-noded space-netd space-browsed space-volumed space-credd space-inject space-hostd spacefs; do
		install -m 0644 "$SOURCE/ctl/systemd/$unit.service" /etc/systemd/system/
		units="$units $unit.service"
	done
	install -m 0644 "$SOURCE/ctl/systemd/space-guests.service" /etc/systemd/system/
	systemctl daemon-reload
	# shellcheck disable=SC2086
	systemctl enable $units
	# shellcheck disable=SC2086
	systemctl restart $units
	systemctl enable --now space-guests.service # never restarted: that would end the machines
}

service_log() {
	if [ "$SUPERVISOR" = systemd ]; then
		journalctl -n 20 --no-pager -u "$([ "$1" = spacefs ] && echo spacefs || echo "space-$1")"
	else
		tail -n 20 "$LOGS/$1/current"
	fi
}

tree_answers() {
	timeout 2 cat "$MOUNT/version" >/dev/null 2>&1
}

# ready SECONDS SERVICE COMMAND...: waits, and shows the service's log when it takes too long.
ready() {
	local limit=$1 name=$2
	shift 2
	wait_until "$limit" "$name" "$@" || {
		echo "--- the end of its log:"
		service_log "$name"
		return 1
	}
}

start_daemons() {
	"start_$SUPERVISOR"
	ready 30 noded test -S "$RUN/noded.sock"
	ready 30 netd test -S "$RUN/netd.sock"
	ready 30 browsed test -S "$RUN/browsed.sock"
	ready 30 volumed test -S "$RUN/volumed.sock"
	ready 30 credd test -S "$RUN/credd.sock"
	ready 30 inject test -S "$RUN/inject/admin"
	ready 60 hostd test -S "$RUN/hostd.sock"
	ready 60 spacefs tree_answers
	note "$(head -n 1 "$MOUNT/version") on $MOUNT, watched by $SUPERVISOR"
}

# Disks are consistent when the guests were asked to end. Whatever does not answer is ended with its QEMU below.
stop_sandboxes() {
	local path name count=0
	tree_answers || return 0
	for path in "$MOUNT"/sandboxes/*/state; do
		name=${path%/state}
		name=${name##*/}
		case $(timeout 5 cat "$path" 2>/dev/null) in
		running | paused | starting | creating)
			timeout 60 "$BIN/spacectl" --space "$MOUNT" stop "$name" &
			count=$((count + 1))
			[ $((count % 4)) -ne 0 ] || wait
			;;
		esac
	done
	wait
	note "$count stopped"
}

stop_runit() {
	local name pid
	pid=$(runsvdir_pid) || return 0
	for name in spacefs hostd inject credd volumed browsed netd noded; do
		[ ! -d "$SV/$name/supervise" ] || sv -w 10 force-stop "$SV/$name" || true
	done
	kill -HUP "$pid" # it ends its runsv processes, which end the logs
	wait_until 10 "runsvdir" gone "$pid"
	rm -f "$RUNSVDIR_PID"
}

gone() {
	[ ! -d "/proc/$1" ]
}

stop_systemd() {
	systemctl disable --now space-guests.service
	systemctl disable --now spacefs.service space-hostd.service space-inject.service space-credd.service space-volumed.service space-browsed.service space-netd.service space-noded.service
}

unmounted() {
	! mountpoint -q "$1" && ! grep -qF " $1 " /proc/self/mounts
}

stop_daemons() {
	"stop_$SUPERVISOR"
	if ! unmounted "$MOUNT"; then
		umount "$MOUNT" 2>/dev/null || umount -l "$MOUNT"
	fi
}

# Domains of this instance that are still there.
end_domains() {
	local domain
	for domain in $(virsh -q -c qemu:///system list --all --name 2>/dev/null); do
		if [[ $domain =~ ^$VM_PREFIX-[0-9a-f]{12}$ ]]; then
			virsh -q -c qemu:///system destroy "$domain" || true
		fi
	done
}
