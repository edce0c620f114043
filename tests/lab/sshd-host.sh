#!/bin/bash
# One small ssh host, as PID 1 of its own namespaces; see sshd.sh.
set -eu
folder=$1 image=$2 number=$3 address=$4 size=$5
mnt=$folder/mnt root=$folder/mnt/root
mount -t tmpfs -o "mode=755,size=$size" lab "$mnt"
mkdir "$mnt/upper" "$mnt/work" "$root"
mount -t overlay lab -o "lowerdir=$image,upperdir=$mnt/upper,workdir=$mnt/work" "$root"
cp -a "$folder/files/." "$folder/$number/." "$root/"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 lab "$root/dev"
mount -t tmpfs -o mode=755 lab "$root/run"
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
    mknod -m 666 "$root/dev/${device% *}" c 1 "${device#* }"
done
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/run/sshd"
mount -t devpts -o newinstance,ptmxmode=666,gid=5,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 lab "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
hostname "$(cat "$root/etc/hostname")"
ip link set lo up
for _ in $(seq 500); do ip link show eth0 >/dev/null 2>&1 && break || sleep 0.01; done
ip address add "$address/24" dev eth0
ip link set eth0 up
cd "$root"
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash /lab-init "$number"
