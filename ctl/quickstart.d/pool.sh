# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The pool (a directory on btrfs, or a loop file with a btrfs of its own), the configuration, and the other directories.

is_btrfs() {
	[ "$(stat -f -c %T "$1" 2>/dev/null)" = btrfs ]
}

# Six tenths of what is free on the file system that holds it, at most 200G (20G for an instance); the file is sparse.
pool_size() {
	local free limit=200
	free=$(df --output=avail -B 1G "$DATA" | tail -n 1)
	[ -z "$INSTANCE" ] || limit=20
	free=$((free * 6 / 10))
	[ "$free" -le "$limit" ] || free=$limit
	[ "$free" -ge 4 ] || {
		echo "$DATA has room for a pool of only ${free}G; 4G are needed" >&2
		return 1
	}
	echo "${free}G"
}

make_pool_image() {
	local size
	size=$(pool_size)
	truncate -s "$size" "$POOL_IMAGE.new"
	chmod 0600 "$POOL_IMAGE.new"
	mkfs.btrfs -q -L space-pool "$POOL_IMAGE.new"
	mv "$POOL_IMAGE.new" "$POOL_IMAGE" # complete, or not there
}

# So that the pool comes back after a reboot. Without systemd, ctl/quickstart brings it back.
mount_pool_at_boot() {
	local unit
	unit=$(systemd-escape --path --suffix=mount "$POOL")
	cat >"/etc/systemd/system/$unit" <<-UNIT
		[Unit]
		Description=Pool of the spacefs sandboxes

		[Mount]
		What=$POOL_IMAGE
		Where=$POOL
		Type=btrfs
		Options=loop,noatime,discard=async

		[Install]
		WantedBy=multi-user.target
	UNIT
	systemctl daemon-reload
	systemctl enable --now "$unit"
}

prepare_pool() {
	mkdir -p "$DATA" "$POOL"
	if mountpoint -q "$POOL"; then
		is_btrfs "$POOL" || {
			echo "$POOL is mounted, but no btrfs" >&2
			return 1
		}
		note "$POOL is mounted"
	elif [ ! -e "$POOL_IMAGE" ] && is_btrfs "$POOL"; then
		note "$POOL lies on btrfs"
	else
		[ -e "$POOL_IMAGE" ] || make_pool_image
		[ -e /dev/loop-control ] || modprobe loop
		if [ -z "$INSTANCE" ] && has_systemd; then
			mount_pool_at_boot
		else
			mount -o loop,noatime,discard=async "$POOL_IMAGE" "$POOL"
		fi
		note "$POOL_IMAGE ($(stat -c %s "$POOL_IMAGE" | numfmt --to=iec)) on $POOL"
	fi
	chmod 0711 "$POOL"
}

unmount_pool() {
	local unit
	if [ ! -e "$POOL_IMAGE" ] || ! mountpoint -q "$POOL"; then
		return 0
	fi
	unit=$(systemd-escape --path --suffix=mount "$POOL" 2>/dev/null || true)
	if [ -z "$INSTANCE" ] && has_systemd && [ -f "/etc/systemd/system/$unit" ]; then
		systemctl disable --now "$unit"
	else
		wait_until 20 "$POOL is busy" umount "$POOL"
	fi
}

# A wrapping key in a file, unless there is something better already. docs/protocol/keys.md says what it is worth.
make_keys() {
	install -d -m 0700 -o space-vol -g space-vol "$KEYS" "$VOLUMES"
	case $STORE in
	/*) install -d -m 0700 -o space-vol -g space-vol "$STORE" ;;
	esac
	[ ! -e "$KEYS/default.key" ] || return 0
	(
		umask 0077
		echo "k1 = $(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')" >"$KEYS/default.wrapping"
		printf '# Who wraps the keys of tenants without a file of their own: see docs/protocol/keys.md.\nservice = file\nkey = k1\nfile = default.wrapping\n' >"$KEYS/default.key.new"
	)
	chown space-vol:space-vol "$KEYS/default.wrapping" "$KEYS/default.key.new"
	mv "$KEYS/default.key.new" "$KEYS/default.key"
}

# The same for space-credd: its wrapping key is root's, who reads it at the start.
make_credential_keys() {
	install -d -m 0711 -o space-cred -g space-cred "$CREDENTIALS"
	install -d -m 0750 -o root -g space-cred "$CREDENTIAL_KEYS"
	[ ! -e "$CREDENTIAL_KEYS/credentials.key" ] || return 0
	(
		umask 0077
		echo "k1 = $(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')" >"$CREDENTIAL_KEYS/credentials.wrapping"
		printf '# Who wraps the key of space-credd: see docs/credentials.md.\nservice = file\nkey = k1\nfile = credentials.wrapping\n' >"$CREDENTIAL_KEYS/credentials.key.new"
	)
	mv "$CREDENTIAL_KEYS/credentials.key.new" "$CREDENTIAL_KEYS/credentials.key"
}

# Directories, and the configuration unless there is one. space-noded makes RUN, or mends its owner and mode. From now on others know of us.
configure() {
	local setting
	# A mount that is there already may hang: it is not touched.
	grep -qF " $MOUNT " /proc/self/mounts || mkdir -p "$MOUNT"
	install -d -m 0700 -o space -g space "$STATE"
	[ -z "$INSTANCE" ] || mkdir -p "$INSTANCE/etc" # daemons may read there from their start on
	make_keys
	make_credential_keys
	if [ "$SUPERVISOR" = systemd ]; then # space-hostd's unit names it, so that it must be there first
		echo "d $RUN 1755 root root" >/etc/tmpfiles.d/space.conf
		systemd-tmpfiles --create /etc/tmpfiles.d/space.conf
	fi
	mkdir -p "$INSTANCES"
	echo "$CONF" >"$INSTANCES/$VM_PREFIX"
	if [ -f "$CONF" ]; then
		note "$CONF is kept"
		return 0
	fi
	{
		echo "# spacefs: see space.conf(5). What is not here has its default."
		echo "pool = $POOL"
		echo "run = $RUN"
		echo "state = $STATE"
		echo "mount = $MOUNT"
		echo "guest = $GUEST"
		echo "template = $DEFAULT_TEMPLATE"
		if [ -n "$INSTANCE" ]; then
			echo "vm_prefix = $VM_PREFIX"
			echo "store = $STORE"
			echo "store_cache = $VOLUMES"
			echo "keys = $KEYS"
			echo "credentials = $CREDENTIALS"
			echo "credential_keys = $CREDENTIAL_KEYS"
			echo "uid_base = $(free_uids)"
			echo "egress = $INSTANCE/etc/egress"
			echo "memory = 128M"
		fi
	} >"$CONF.new"
	for setting in "${settings[@]}"; do
		sed -i "/^${setting%%=*} = /d" "$CONF.new"
		echo "${setting%%=*} = ${setting#*=}" >>"$CONF.new"
	done
	mv "$CONF.new" "$CONF"
	note "$CONF"
}
