#!/bin/bash
# Run one lab host for as long as standard input stays open, then leave nothing behind.
#
#   keep.sh FOLDER SCRIPT ARGUMENT...
#
# The lab holds the other end of standard input. When it closes it, or dies in any way, SCRIPT (PID 1 of a PID
# namespace, in a mount namespace of its own) reads the end of the file and exits; the kernel then kills every process
# of the host, and its mounts and network interfaces go with them. What the kernel keeps goes here: cgroups, and
# FOLDER unless FOLDER/again says that the host is only being started afresh.
set -u
folder=$1
shift
group=gpuinfra-lab-$(basename "$folder")
# cpuset takes no process before its cpus are set, so it is left alone.
tops=$(awk '$3 ~ /^cgroup2?$/ && $2 !~ /cpuset/ {print $2}' /proc/mounts)

for top in $tops; do
    { mkdir -p "$top/$group" && echo $$ >"$top/$group/cgroup.procs"; } 2>/dev/null
done

unshare --mount --pid --fork --kill-child --mount-proc -- "$@" 2>"$folder/start.log"

for top in $tops; do
    echo $$ >"$top/cgroup.procs"
done 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for top in $tops; do
        [ -d "$top/$group" ] || continue
        find "$top/$group" -depth -type d -exec rmdir {} \; 2>/dev/null
        [ -d "$top/$group" ] && left=yes
    done
    [ -n "$left" ] || break
    sleep 0.02
done
[ -e "$folder/again" ] || rm -rf "$folder"
