#!/usr/bin/env bash
# Run the plugin itself on a machine with GPUs and no network; packages come as wheels in .whl, results go to $OUT.
# Argument: more options for pytest.
set -u
out=${OUT:?a directory for the results}
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD PYTHONUNBUFFERED=1
mapfile -t gpus < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | sed 's/^0000//' | tr 'A-F' 'a-f')
list=$(printf '"%s", ' "${gpus[@]}")
cat > /tmp/gpuinfra.toml <<TOML
[hosts.h200]
address = "local"
[hosts.h200.expect]
peer_access = "correct"
driver_version = "580.*"
driver_parameters = { DmaRemapPeerMmio = "1" }
[hosts.h200.expect.gpu]
name = "NVIDIA H200"
peer_copy_gb_s_min = 370.0
busbw_gb_s_min = { shm = 24.0, p2p = 280.0 }
[[hosts.h200.expect.devices]]
pci = [${list%, }]
driver = "nvidia"
link_width = 16
TOML
python3 -m pytest -p pytest_gpuinfra.plugin --gpu-host=h200 --gpu-inventory=/tmp/gpuinfra.toml --gpu-recording="$out/recording.json" \
  --junitxml="$out/junit.xml" --alluredir=/tmp/allure --gpu-python="$(command -v python3)" -p no:cacheprovider --durations=8 "$@" 2>&1 | tee "$out/output.txt"
echo "exit status ${PIPESTATUS[0]}" | tee -a "$out/output.txt"
tar -C /tmp -czf "$out/allure.tar.gz" allure
nvidia-smi -q -x > "$out/smi.xml"
