#!/bin/bash
# PID 1 of an nspawn host's namespaces; see keep.sh. Boots it again after each reboot, until standard input ends.
#
#   nspawn.sh FOLDER IMAGE NAME GATEWAY
#
# FOLDER/files is laid over the image. FOLDER/console.log has the console; FOLDER/ended the exit status of nspawn,
# once the host is down for good. NAME is the machine's name; ve-NAME its interface on this side, with address GATEWAY.
set -eu
folder=$1 image=$2 name=$3 gateway=$4
link=ve-$name mnt=$folder/mnt
mkdir -p "$mnt"
# All that the host writes is in memory, and goes with this mount namespace.
mount -t tmpfs -o mode=755 lab "$mnt"
mkdir "$mnt/upper" "$mnt/work" "$mnt/root"
mount -t overlay lab -o "lowerdir=$image,upperdir=$mnt/upper,workdir=$mnt/work" "$mnt/root"
cp -a "$folder/files/." "$mnt/root/"
# nspawn keeps files of its own here.
mkdir -p /run/systemd
mount -t tmpfs -o mode=755 lab /run/systemd

connect() {
    until ip link set "$link" up 2>/dev/null; do sleep 0.01; done
    ip address replace "$gateway/24" dev "$link"
}

boots() {
    set +e
    while :; do
        connect &
        systemd-nspawn --quiet --directory="$mnt/root" --machine="$name" --register=no --keep-unit \
            --network-veth --capability=all --system-call-filter='~syslog' --resolv-conf=off --timezone=off --link-journal=no --console=pipe --boot
        status=$?
        kill %% 2>/dev/null
        wait %% 2>/dev/null
        [ $status = 133 ] || break # 133: the host asked for a reboot
    done
    echo $status >"$folder/ended"
}

boots </dev/null >"$folder/console.log" 2>&1 &
cat >/dev/null
