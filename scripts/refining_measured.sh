#!/usr/bin/env bash
# How right refined cost models are on this machine's CPU (docs/cost-models.md): measures lookups and all-to-alls,
# trains, refines for 4 devices, and compares predicted and measured costs of 40 tasks that took no part in it. One
# device is one process with one thread. About an hour and a half on two cores that do nothing else; stopped, it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=out/refining-measured
data=$out/data
mkdir -p $data

# tables NAME COUNT BATCH TYPE SEED: a pool with the reuse histograms of that batch size
tables() {
    [ -e "$out/$1.json" ] || neuroshard generate dlrm-2021 --max-rows 1000000 --tables "$2" \
        --batch-size "$3" --data-type "$4" --seed "$5" -o "$out/$1.json"
}
refine() {
    neuroshard refine $data "$@" --devices 4 --memory 2GiB --batch-size 1024 --epochs 40 --threads 2
}

# batch size, data type, samples, seed
while read -r batch type samples seed; do
    tables "tables-${batch}_$type" 2000 "$batch" "$type" "$seed"
    taskset -c 1 neuroshard profile compute "$out/tables-${batch}_$type.json" -o $data --memory 2GiB \
        --batch-size "$batch" --label "${batch}_$type" --seed "$seed" --samples "$samples" --rounds 2 \
        --dims 4,8,12,16,20,32,40,64,80,128 --most-tables 24
done <<'END'
1024 fp32 2000 16
1024 fp16 900 11
256 fp32 800 12
256 fp16 500 14
2048 fp32 600 13
2048 fp16 300 15
END
for devices in 2 3 4; do
    neuroshard profile comm --devices $devices -o $data --batch-size 1024 --samples 300 --rounds 2
    neuroshard profile comm --devices $devices -o $data --batch-size 256 --label 256 --samples 80 --rounds 2
    neuroshard profile comm --devices $devices -o $data --batch-size 2048 --label 2048 --samples 80 --rounds 2
done
[ -e $out/start.safetensors ] || neuroshard pretrain $data --epochs 40 --name start -o $out/start.safetensors
# Tables that are in none of the pools above.
tables tables-refine 400 1024 fp32 1001
refine $out/tables-refine.json --cost-models $out/start.safetensors -o $out/refined.safetensors --cycles 4 \
    --plot $out/refine-cycles.png
# Others again: these tasks are compared with the refined models, which then no longer matter.
tables tables-check 400 1024 fp32 1002
refine $out/tables-check.json --cost-models $out/refined.safetensors -o $out/checked.safetensors --cycles 1 \
    --label check --seed 7 --tasks-per-cycle 40
