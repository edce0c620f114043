#!/bin/bash
# Prolog and epilog of Slurm: judge the node before each job, and after it; a bad node gets no more jobs.
#
#   slurm.conf:  Prolog=/etc/slurm/gpuinfra/prolog.sh
#                Epilog=/etc/slurm/gpuinfra/prolog.sh
#                PrologFlags=Alloc
#                SchedulerParameters=nohold_on_prolog_fail
#
# slurmd runs it as root on the node itself. It reads only (level passive), which no running job notices. Ending with
# another status than 0 drains the node; a batch job whose prolog failed is requeued, and with nohold_on_prolog_fail not
# held, so that it runs on another node.
# Only what was seen wrong drains (status 1). What could not be observed (6) is written down and lets the job run: a
# node is not lost for a log that nobody could read. Set GPUINFRA_DRAIN_UNKNOWN=1 below if it should be.
#
# gpuinfra.conf beside this file may set: GPUINFRA_BIN, where pytest is; GPUINFRA_INVENTORY, what is expected;
# GPUINFRA_STATE, where each node keeps its last recording and output; GPUINFRA_ARGUMENTS, more for pytest;
# GPUINFRA_DEADLINE, in seconds, which is to stay below MessageTimeout (10 by default) and PrologEpilogTimeout.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin # slurmd sets none
GPUINFRA_BIN=/opt/gpuinfra/bin
GPUINFRA_INVENTORY=/etc/gpuinfra.toml
GPUINFRA_STATE=/var/lib/gpuinfra
GPUINFRA_ARGUMENTS=
GPUINFRA_DEADLINE=9
GPUINFRA_DRAIN_UNKNOWN=0
configuration=$(dirname "$(readlink -f "$0")")/gpuinfra.conf
[ ! -e "$configuration" ] || . "$configuration"

began_ms=$(date +%s%3N)
node=${SLURMD_NODENAME:-$(hostname -s)}
mkdir -p "$GPUINFRA_STATE" && cd "$GPUINFRA_STATE" || exit 0
# shellcheck disable=SC2086 # several arguments are meant
timeout "$GPUINFRA_DEADLINE" "$GPUINFRA_BIN/pytest" --gpu-host="local:$node" --gpu-inventory="$GPUINFRA_INVENTORY" \
  --gpu-level=passive -q -p no:cacheprovider --gpu-recording="$GPUINFRA_STATE/last-$node.json" \
  $GPUINFRA_ARGUMENTS >"last-$node.txt" 2>&1 </dev/null
status=$?
took_ms=$(($(date +%s%3N) - began_ms))
echo "$(date -u +%FT%TZ) job ${SLURM_JOB_ID:-none} ${SLURM_SCRIPT_CONTEXT:-} status $status after $took_ms ms" \
  >>"history-$node.txt"
case $status in
1) exit 1 ;;
0) exit 0 ;;
*) exit "$GPUINFRA_DRAIN_UNKNOWN" ;;
esac
