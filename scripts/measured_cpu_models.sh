#!/usr/bin/env bash
# Makes the shipped cost models measured on a CPU, cpu-fbgemm, and their card. One device is one process
# with one thread. About an hour and a half on two cores that do nothing else; stopped, it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=out/cpu-data models=python/neuroshard_fast/models
pool="dlrm-2021 --batch-size 1024 --max-rows 1000000"
common="-o $out --batch-size 1024"
mkdir -p $out
neuroshard generate $pool --tables 6000 --seed 2 -o $out/tables.json
neuroshard generate $pool --tables 200 --seed 1 -o $out/held-out-tables.json
taskset -c 1 neuroshard profile compute $out/tables.json $common --memory 2GiB --samples 20000 --rounds 1
taskset -c 1 neuroshard profile compute $out/held-out-tables.json $common --memory 2GiB --seed 1 \
    --samples 800 --rounds 16 --held-out
for devices in 2 3 4; do
    neuroshard profile comm --devices $devices $common --samples 400 --rounds 2
done
neuroshard pretrain --communication per-count $out --name cpu-fbgemm -o $models/cpu-fbgemm.safetensors
{
    neuroshard models $models/cpu-fbgemm.safetensors
    echo
    echo "Every command, from the tables to this card: \`scripts/measured_cpu_models.sh\`."
} >$models/cpu-fbgemm.md
