#!/usr/bin/env bash
# Run SGLang with TP=2 on a machine with two GPUs and no network, and judge it by our plugin; results go to $OUT.
# /tmp/sgl.tar.zst: SGLang's packages for cp312 as one archive (see tests/recorded/sglang/README.md); the plugin's own
# wheels, and zstandard's, in the folder that the first argument names. The rest of the arguments go to the .py.
set -u
out=${OUT:?a directory for the results}
wheels=$1
shift
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$wheels"/*.whl || exit
if [ ! -d /tmp/sgl ]; then
  PYTHONPATH=/tmp/site python3 - <<'PY' || exit
import tarfile
import zstandard
with open("/tmp/sgl.tar.zst", "rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as reader:
    with tarfile.open(fileobj=reader, mode="r|") as archive:
        archive.extractall("/tmp/sgl", filter="fully_trusted")
PY
fi
echo "packages are there after $SECONDS s"
PYTHONPATH=/tmp/site:$PWD PYTHONUNBUFFERED=1 python3 tests/gpu/sglang_on_device.py /tmp/sgl "$out" "$@" 2>&1 | tee /tmp/output.txt
mkdir -p /tmp/results && cp /tmp/output.txt /tmp/results/
tar -C /tmp -czf "$out/results.tar.gz" results
