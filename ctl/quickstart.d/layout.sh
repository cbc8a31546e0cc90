# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Where everything of an instance lies. There are two layouts, one for a host, one for a private instance below a directory; all
# other code only uses these variables.
#
#   CONF      configuration            POOL  btrfs directory     POOL_IMAGE  its loop file, unless POOL lies on btrfs already
#   RUN STATE MOUNT GUEST              as in space.conf(5)
#   STORE VOLUMES KEYS  suspended sandboxes, what space-volumed knows of them, keys of tenants
#   CREDENTIALS CREDENTIAL_KEYS         what space-credd keeps, and who wraps its key
#   SV LOGS   runit services and logs  SUPERVISOR  systemd or runit
#   BIN LIBEXEC                        programs. An instance has copies: its daemons' user may not see the build directory
#   CACHE                              what takes long to make and does not change, kept in the build directory

# The value of a key in an existing configuration, else what --set says, else the second argument.
configured() {
	local value='' setting
	for setting in "${settings[@]}"; do
		[ "${setting%%=*}" != "$1" ] || value=${setting#*=}
	done
	[ ! -f "$CONF" ] || value=$(sed -n "s/^[[:blank:]]*$1[[:blank:]]*=[[:blank:]]*//p" "$CONF" | tail -n 1)
	printf '%s' "${value:-$2}"
}

has_systemd() {
	[ -d /run/systemd/system ]
}

layout_host() {
	INSTANCE=
	CONF=/etc/space/space.conf
	DATA=/var/lib/space
	POOL=$(configured pool "$DATA/pool")
	STATE=$(configured state "$DATA/state")
	RUN=$(configured run /run/space)
	MOUNT=$(configured mount /space)
	GUEST=$(configured guest /usr/local/lib/space/guest)
	STORE=$(configured store "$(dirname "$STATE")/store")
	VOLUMES=$(configured store_cache "$(dirname "$STATE")/volumes")
	KEYS=$(configured keys /etc/space/keys)
	CREDENTIALS=$(configured credentials "$(dirname "$STATE")/credentials")
	CREDENTIAL_KEYS=$(configured credential_keys /etc/space/credential-keys)
	VM_PREFIX=$(configured vm_prefix space)
	DEFAULT_TEMPLATE=$(configured template debian)
	POOL_IMAGE=$DATA/pool.img
	SV=/etc/space/sv
	LOGS=/var/log/space
	BIN=/usr/local/bin
	LIBEXEC=/usr/local/libexec/space
	CACHE=$BUILD/cache
	RUNSVDIR_PID=/run/space-runsvdir.pid
	LOG=$LOGS/quickstart.log
	if has_systemd; then SUPERVISOR=systemd; else SUPERVISOR=runit; fi
	mkdir -p "$LOGS" /etc/space
}

# Everything below one directory, with names and uids that no other instance has.
layout_instance() {
	local hash
	mkdir -p "$1"
	INSTANCE=$(cd "$1" && pwd -P)
	hash=$(printf '%s' "$INSTANCE" | cksum | cut -d ' ' -f 1)
	CONF=$INSTANCE/space.conf
	DATA=$INSTANCE
	POOL=$INSTANCE/pool
	STATE=$INSTANCE/state
	RUN=$INSTANCE/run
	MOUNT=$INSTANCE/space
	GUEST=$INSTANCE/guest
	STORE=$(configured store "$INSTANCE/store")
	VOLUMES=$INSTANCE/volumes
	KEYS=$(configured keys "$INSTANCE/keys")
	CREDENTIALS=$INSTANCE/credentials
	CREDENTIAL_KEYS=$INSTANCE/credential-keys
	VM_PREFIX=$(configured vm_prefix "$(printf 'i%x' "$hash")")
	UID_BASE=$((1000000 + hash % 4000 * 4096))
	DEFAULT_TEMPLATE=$(configured template tiny)
	POOL_IMAGE=$INSTANCE/pool.img
	SV=$INSTANCE/sv
	LOGS=$INSTANCE/log
	BIN=$INSTANCE/bin
	LIBEXEC=$INSTANCE/bin
	CACHE=$BUILD/cache
	RUNSVDIR_PID=$INSTANCE/runsvdir.pid
	LOG=$LOGS/quickstart.log
	SUPERVISOR=runit
	# Sockets below RUN must fit into sun_path, see lib/base/config.h.
	[ "${#RUN}" -le 63 ] || die "the path $RUN is longer than 63 bytes; choose a shorter --instance directory"
	mkdir -p "$LOGS"
}

spacectl() {
	"$BIN/spacectl" --space "$MOUNT" "$@"
}
