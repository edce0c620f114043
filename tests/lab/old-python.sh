#!/bin/bash
# Run a Python of the "old" image, see oldest_python in image.py: old-python.sh ROOT INTERPRETER ARGUMENT...
set -eu
root=$1
shift
mount --bind -o ro "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs lab "$root/tmp"
mount -t tmpfs -o mode=755 lab "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/urandom" c 1 9
cd "$root"
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1 "$@"
