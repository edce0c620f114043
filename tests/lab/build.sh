#!/bin/bash
# Build the lab's root file systems from Debian packages, into an empty directory. Run by tests/lab/image.py.
#
#   build.sh lab OUT SUITE SOURCES FILES    OUT/root: the host, with the container's tree in /var/lib/lxc/101/rootfs
#   build.sh old OUT SUITE SOURCES          OUT/root: a small system of an older Debian
#
# SOURCES is a file of apt sources, made from this machine's own; it may be empty (then mmdebstrap's default).
# LAB_APT_OPTIONS holds lines of apt configuration to use; PACKAGES_container, PACKAGES_host, PACKAGES_old the lists.
# The caller runs this in a mount and PID namespace of its own, so nothing mounted or started here outlives it.
set -euo pipefail
kind=$1 out=$2 suite=$3 sources=$4
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

bootstrap() { # TARGET PACKAGES: a minimal system
    local options=()
    while read -r line; do [ -n "$line" ] && options+=(--aptopt="$line"); done <<<"$LAB_APT_OPTIONS"
    local from=()
    [ -s "$sources" ] && from=("$sources")
    mmdebstrap --mode=root --variant=minbase --format=directory --quiet "${options[@]}" \
        --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='force-unsafe-io' \
        --include="${2// /,}" "$suite" "$1" "${from[@]}"
}

finish() { # ROOT: users, and nothing that only this build knows
    chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash op
    rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/var/log/*.log
    rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/var/lib/dbus/machine-id
    : >"$1/etc/machine-id"
    mkdir -p "$1/var/log/journal"
    install -d -m 700 "$1/root/.ssh"
}

mask() { # ROOT UNIT...
    local root=$1
    shift
    for unit in "$@"; do ln -sfn /dev/null "$root/etc/systemd/system/$unit"; done
}

if [ "$kind" = old ]; then
    bootstrap "$out/root" "$PACKAGES_old"
    finish "$out/root"
    exit 0
fi

files=$5 root=$out/root
echo "lab: container, from Debian $suite"
bootstrap "$out/ct" "$PACKAGES_container"

echo "lab: host, a copy of it with a kernel, lxc and more"
cp -a "$out/ct" "$root"
[ -e /etc/resolv.conf ] && cp -L /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
chroot "$root" apt-get -qq update
# INITRD=No: the initrd is made once, below. force-confold: our own files come later.
INITRD=No chroot "$root" apt-get -qq -y --no-install-recommends install $PACKAGES_host
rm "$root/usr/sbin/policy-rc.d"
echo "lab: initrd"
echo MODULES=list >"$root/etc/initramfs-tools/conf.d/lab"
printf '%s\n' virtio_pci virtio_blk ext4 crc32c_generic >"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -c -k "$(ls "$root/lib/modules")"
umount "$root/dev" "$root/proc"

echo "lab: units and settings"
for tree in "$out/ct" "$root"; do finish "$tree"; done
cp -a --no-preserve=ownership "$files/container/." "$out/ct/"
cp -a --no-preserve=ownership "$files/host/." "$root/"
echo ct101 >"$out/ct/etc/hostname"
useless="apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
    e2scrub_reap.service systemd-pstore.service getty-static.service getty@tty1.service console-getty.service
    systemd-networkd-wait-online.service systemd-firstboot.service"
# In a user namespace these mounts fail and leave the container degraded.
mask "$out/ct" $useless sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    dev-hugepages.mount systemd-networkd.service
mask "$root" $useless lxc.service lxc-net.service lxc-monitord.service systemd-journal-remote.service
printf 'blacklist %s\n' kvm_intel kvm_amd psmouse iTCO_wdt >"$root/etc/modprobe.d/lab.conf"
chroot "$out/ct" systemctl -q enable infer.service ssh.service
chroot "$root" systemctl -q enable pve-guests.service ssh.service systemd-networkd.service \
    lab-files.service lab-devices.service lab-made.service gpu-persistence.service
: >"$root/etc/fstab"

echo "lab: the container's tree goes into the host, owners shifted by 100000"
mkdir -p "$root/var/lib/lxc/101"
mv "$out/ct" "$root/var/lib/lxc/101/rootfs"
