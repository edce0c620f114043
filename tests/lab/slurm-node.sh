#!/bin/bash
# One node of the Slurm cluster, as PID 1 of its own namespaces; see slurm.sh.
#
#   slurm-node.sh FOLDER SHARED NAME ADDRESS
#
# Its GPUs, IOMMU groups, kernel command line, kernel log and boot id are made ones; all else is this machine's.
set -eu
here=$(dirname "$0")
folder=$1 shared=$2 name=$3 address=$4
. "$here/slurm-mounts.sh"
hostname "$name"
ip link set lo up
for _ in $(seq 500); do ip link show eth0 >/dev/null 2>&1 && break || sleep 0.01; done
ip -batch - <<IP
address add $address/24 dev eth0
link set eth0 up
IP
mounts "$folder/run-$name" "$folder/cluster" "$shared"

mount -t tmpfs -o mode=755 lab /run/lock
mkdir /run/lock/dev
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
    mknod -m 666 "/run/lock/dev/${device% *}" c 1 "${device#* }"
done
mkdir /run/lock/dev/shm
mount -t tmpfs -o mode=1777 lab /run/lock/dev/shm
ln -s /proc/self/fd /run/lock/dev/fd
mount --rbind /run/lock/dev /dev # no /dev/kmsg: the kernel's log is in the journal, as it is in a container

cp -a /run/cluster/made/usr/lib/lab/made /run/lab
for place in sys/bus/pci sys/devices/pci0000:00 sys/kernel/iommu_groups proc/driver proc/cmdline; do
    [ ! -e "/run/lab/$place" ] || mount --bind "/run/lab/$place" "/$place"
done
python3 -c 'import uuid; print(uuid.uuid4())' >/run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
/usr/bin/python3 -Es "$here/files/host/usr/local/sbin/lab-kmsg" --name=boot </run/cluster/made/usr/lib/lab/kernel-log

start_munge
touch "/run/cluster/up-$name"
slurmd -N "$name" -f "$SLURM_CONF" -L /run/slurmd.log
sleep infinity &
wait
