#!/bin/bash
# PID 1 of a Slurm cluster on this machine: its controller, then its nodes; see keep.sh and slurm.py. Ends with stdin.
#
#   slurm.sh FOLDER SHARED NODE...
#
# Controller and nodes have a network (10.79.0.0/24, behind a bridge that only they have), a host name and mounts of
# their own. They see this machine's files read-only, but for SHARED and what they have in memory. FOLDER/cluster is at
# /run/cluster of each.
set -eu
here=$(dirname "$0")
if [ "${1-}" != inside ]; then
    exec unshare --net --uts -- "$0" inside "$@"
fi
shift
folder=$1 shared=$2
shift 2
. "$here/slurm-mounts.sh"
own=$(readlink /proc/$$/ns/net)
hostname controller
ip -batch - <<IP
link set lo up
link add cluster type bridge
link set cluster up
address add 10.79.0.1/24 dev cluster
IP
mkdir -p "$folder/run"
number=10
for node in "$@"; do
    number=$((number + 1))
    mkdir -p "$folder/run-$node"
    unshare --mount --net --uts --pid --fork --kill-child --mount-proc -- \
        "$here/slurm-node.sh" "$folder" "$shared" "$node" "10.79.0.$number" </dev/null &
    pid=$!
    while seen=$(readlink /proc/$pid/ns/net) && [ "$seen" = "$own" ]; do sleep 0.002; done
    ip -batch - <<IP
link add v$number type veth peer name eth0 netns $pid
link set v$number master cluster
link set v$number up
IP
done
mounts "$folder/run" "$folder/cluster" "$shared"
start_munge
slurmctld -f "$SLURM_CONF" -L /run/slurmctld.log
touch /run/cluster/started
cat >/dev/null
