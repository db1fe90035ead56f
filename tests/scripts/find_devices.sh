#!/bin/sh
# Looks for RDMA devices as scripts and libraries of collective operations do: which interface belongs
# to which port, by the GIDs' interfaces; where the device is; what it counts.
set -e
for device in /sys/class/infiniband/*; do
	for port in "$device"/ports/*; do
		for gid in "$port"/gids/*; do
			index=${gid##*/}
			case $(cat "$gid") in 0000:0000:0000:0000:0000:0000:0000:0000) continue ;; esac
			netdev=$(cat "$port/gid_attrs/ndevs/$index")
			type=$(cat "$port/gid_attrs/types/$index")
			state=$(cat "/sys/class/net/$netdev/operstate")
			echo "${device##*/} port ${port##*/} gid $index $type ==> $netdev ($state)"
		done
		echo "$(cut -d: -f2 "$port/state"), $(cat "$port/link_layer"), $(cat "$port/rate")"
		for counter in "$port"/counters/* "$port"/hw_counters/*; do
			case $(cat "$counter") in *[!0-9]* | '') echo "$counter is no number" && exit 1 ;; esac
		done
		echo "counters $(ls "$port/counters" | wc -l) hw_counters $(ls "$port/hw_counters" | wc -l)"
	done
	echo "$(cat "$device/node_type"), firmware $(cat "$device/fw_ver"), node $(cat "$device/device/numa_node")"
	echo "interfaces $(ls "$device/device/net" | tr '\n' ' ')CPUs $(cat "$device/device/local_cpus")"
	for verbs in /sys/class/infiniband_verbs/*; do
		[ -e "$verbs/ibdev" ] && [ "$(cat "$verbs/ibdev")" = "${device##*/}" ] || continue
		test -c "/dev/infiniband/${verbs##*/}"
		echo "verbs ${verbs##*/} abi $(cat "$verbs/abi_version")"
	done
done
