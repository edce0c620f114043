#!/bin/bash
# PID 1 of the namespaces of a group of small ssh hosts; see keep.sh. Starts them all, and waits for the end.
#
#   sshd.sh FOLDER IMAGE SLOT SIZE NUMBER...
#
# Each host has a file system (the image, FOLDER/files and FOLDER/NUMBER laid over it, at most SIZE written), processes
# and a network of its own, at 10.77.SLOT.NUMBER; this side of all of them is 10.77.SLOT.1.
set -eu
here=$(dirname "$0")
folder=$1 image=$2 slot=$3 size=$4
shift 4
own=$(readlink /proc/$$/ns/net)
export gateway=10.77.$slot.1
mkdir -p "$folder/mnt"
for number in "$@"; do
    unshare --mount --net --uts --pid --fork --kill-child --mount-proc -- \
        "$here/sshd-host.sh" "$folder" "$image" "$number" "10.77.$slot.$number" "$size" </dev/null &
    pid=$!
    while seen=$(readlink /proc/$pid/ns/net) && [ "$seen" = "$own" ]; do sleep 0.002; done
    link=gi${slot}x$number
    ip -batch - <<IP
link add $link type veth peer name eth0 netns $pid
link set $link up
address add $gateway peer 10.77.$slot.$number/32 dev $link
IP
    echo 1 >"/proc/sys/net/ipv4/conf/$link/forwarding" # what comes from one of them goes on to the others
done
touch "$folder/started"
cat >/dev/null
