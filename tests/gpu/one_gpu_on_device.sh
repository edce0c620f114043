#!/usr/bin/env bash
# Judge a machine with one GPU and no network, by the plugin itself: without an inventory, with one that expects the one
# GPU, and with one that expects a second. Packages come as wheels in .whl, results go to $OUT. Argument: more options for pytest.
# Wanted: no failed and no error among the items of suites/gpu, twice; then errors, of the GPU that is not there.
set -u
out=${OUT:?a directory for the results}
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD PYTHONUNBUFFERED=1
gpu=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | sed 's/^0000//' | tr 'A-F' 'a-f' | head -1)
mkdir -p /tmp/none

judge() {  # $1: a name for the results, $2: the addresses that are expected; "" for no inventory
inventory=(--gpu-host=local)
if [ -n "$2" ]; then
  printf '[hosts.h200]\naddress = "local"\n[[hosts.h200.expect.devices]]\npci = [%s]\ndriver = "nvidia"\n' "$2" > "/tmp/$1.toml"
  inventory=(--gpu-host=h200 --gpu-inventory="/tmp/$1.toml")
fi
shift 2
(cd /tmp/none && python3 -m pytest -p pytest_gpuinfra.plugin "${inventory[@]}" --gpu-recording="$out/$name.json" \
  --gpu-python="$(command -v python3)" -p no:cacheprovider -rA "$@") 2>&1 | tee "$out/$name.txt"
echo "exit status ${PIPESTATUS[0]}" | tee -a "$out/$name.txt"
grep -cE '^(FAILED|ERROR) .*suites/gpu/' "$out/$name.txt" | sed 's/^/failed or error in suites\/gpu: /' | tee -a "$out/$name.txt"
}

name=nothing-expected; judge "$name" "" "$@"
name=one-expected; judge "$name" "\"$gpu\"" "$@"
name=two-expected; judge "$name" "\"$gpu\", \"0000:fe:00.0\"" "$@"
nvidia-smi -q -x > "$out/smi.xml"
