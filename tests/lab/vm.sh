#!/bin/bash
# PID 1 of the virtual machine's namespaces; see keep.sh. Runs qemu until standard input ends.
#
#   vm.sh FOLDER DISK
#
# FOLDER/qemu has qemu's options and their values, one a line. When qemu ends and there is a FOLDER/next, that is run in its place.
# DISK is never written to. FOLDER/files is handed in as a tar archive on a second disk.
# FOLDER/qemu.log has qemu's own messages; FOLDER/ended its exit status, once it is down for good.
set -eu
folder=$1 disk=$2 mnt=$folder/mnt
mkdir -p "$mnt"
# All that the machine writes, snapshots included, is in memory, and goes with this mount namespace.
mount -t tmpfs -o mode=755 lab "$mnt"
qemu-img create -q -f qcow2 -F raw -b "$disk" "$mnt/disk.qcow2"
tar --create --numeric-owner --directory="$folder/files" --file="$mnt/files.tar" .

runs() {
    set +e
    while :; do
        arguments=()
        while read -r option value; do arguments+=("$option" ${value:+"$value"}); done <"$folder/qemu"
        qemu-system-x86_64 "${arguments[@]}"
        status=$?
        mv "$folder/next" "$folder/qemu" 2>/dev/null || break
    done
    echo $status >"$folder/ended"
}

runs </dev/null >"$folder/qemu.log" 2>&1 &
cat >/dev/null
