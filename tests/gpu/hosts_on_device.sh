#!/usr/bin/env bash
# An all-reduce over two "hosts" on a machine with two GPUs and no network: each rank gets another host id, and neither
# peer-to-peer nor shared memory, so that NCCL has only sockets (the loopback interface) between them.
# Packages come as wheels in the folder that the first argument names (.whl by default); results go to $OUT.
# Wanted: 3 passed, 5 skipped, exit status 6 (the second host has no item of its own); then, with a transport that is not there, 2 passed, 1 failed, 5 skipped.
set -u
out=${OUT:?a directory for the results}
wheels=${1:-.whl}
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$wheels"/*.whl
export PYTHONPATH=/tmp/site:$PWD PYTHONUNBUFFERED=1
mapfile -t gpus < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | sed 's/^0000//' | tr 'A-F' 'a-f' | head -2)

inventory() {  # $1: the transport that is expected, $2: the file
cat > "$2" <<TOML
[hosts.gpu-a]
address = "local"
[[hosts.gpu-a.expect.devices]]
pci = ["${gpus[0]}"]
driver = "nvidia"
[hosts.gpu-b]
address = "local"
[[hosts.gpu-b.expect.devices]]
pci = ["${gpus[1]}"]
driver = "nvidia"
[collectives.two]
hosts = ["gpu-a", "gpu-b"]
transport = "$1"
busbw_gb_s_min = 0.1
[collectives.two.environment]
NCCL_HOSTID = "{host}"
NCCL_P2P_DISABLE = "1"
NCCL_SHM_DISABLE = "1"
NCCL_SOCKET_IFNAME = "lo"
NCCL_IB_DISABLE = "1"
TOML
}

judge() {  # $1: a name for the results, $2: the transport that is expected
inventory "$2" "/tmp/$1.toml"
python3 -m pytest -p pytest_gpuinfra.plugin --gpu-host=gpu-a --gpu-host=gpu-b --gpu-inventory="/tmp/$1.toml" \
  --gpu-recording="$out/$1.json" --junitxml="$out/$1.xml" --gpu-python="$(command -v python3)" -p no:cacheprovider \
  --durations=6 -k "hosts_sum or hosts_use or hosts_are or two_hosts" -rA 2>&1 | tee "$out/$1.txt"
echo "exit status ${PIPESTATUS[0]}" | tee -a "$out/$1.txt"
}

judge sockets NET/Socket
judge another-network NET/IB
{
  echo "left in /dev/shm: $(ls /dev/shm | grep -c nccl)"
  echo "processes of ours: $(pgrep -fc 'pytest-gpuinfra')"
  nvidia-smi --query-gpu=memory.used --format=csv,noheader
} | tee "$out/left.txt"
