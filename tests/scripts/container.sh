#!/bin/sh
# container.sh FILES COMMAND...: COMMAND as in a container that has a device's files as volumes. Needs
# a mount namespace of its own.
set -e
files=$1
shift
net=$(mktemp -d)
mount --bind /sys/class/net "$net"
mount -t tmpfs none /sys/class
mount -t tmpfs none /dev
mknod -m 666 /dev/null c 1 3
for folder in sys/class/infiniband sys/class/infiniband_verbs dev/infiniband; do
	mkdir "/$folder"
	mount --bind "$files/$folder" "/$folder"
done
mkdir /sys/class/net
mount --move "$net" /sys/class/net
rmdir "$net"
exec "$@"
