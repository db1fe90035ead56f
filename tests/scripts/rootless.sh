#!/bin/sh
# rootless.sh HOME COMMAND...: COMMAND as user 65534 of a host that is prepared for Podman without
# root: with ids for the user's containers, and one hierarchy of control groups.
set -e
home=$1
shift
if [ "$1" != --inside ]; then
	exec unshare --mount --propagation private sh "$0" "$home" --inside "$@"
fi
shift
mkdir -p "$home/run" "$home/config/containers"
printf 'nobody:100000:65536\n' >"$home/ids"
for file in /etc/subuid /etc/subgid; do
	mount --bind "$home/ids" "$file"
done
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || mount -t cgroup2 none /sys/fs/cgroup
cat >"$home/config/containers/storage.conf" <<END
[storage]
driver = "overlay"
runroot = "$home/run/storage"
graphroot = "$home/storage"
END
# Podman would raise the limits, for which it may lack the right.
cat >"$home/config/containers/containers.conf" <<END
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "crun"
END
# Where no network backend of its own is installed, Podman makes a folder in the configuration.
chown 65534:65534 "$home" "$home/run" "$home/config"
chmod 0700 "$home/run"
cd "$home"
export HOME="$home" XDG_RUNTIME_DIR="$home/run" XDG_CONFIG_HOME="$home/config"
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
