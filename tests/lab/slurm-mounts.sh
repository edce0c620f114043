# Sourced by slurm.sh and slurm-node.sh: what the controller and each node see of this machine's files.
export SLURM_CONF=/run/cluster/slurm.conf PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8

# mounts EMPTY CLUSTER SHARED: EMPTY becomes /run, in memory; CLUSTER is in it; all else but SHARED is read-only.
mounts() {
    mount -t tmpfs -o mode=755 lab "$1"
    mkdir "$1/cluster" "$1/munge" "$1/slurmd" "$1/slurmctld" "$1/tmp" "$1/log" "$1/lock"
    mount --bind "$2" "$1/cluster"
    mount --bind "$3" "$3"
    mount --rbind "$1" /run
    mount --bind /run/log /var/log
    mount --bind /run/cluster/hosts /etc/hosts
    mount -o remount,bind,ro /
}

start_munge() {
    munged --force --num-threads=1 --key-file=/run/cluster/munge.key --pid-file=/run/munge/munged.pid \
        --seed-file=/run/munge/seed --log-file=/run/munge/log
}
