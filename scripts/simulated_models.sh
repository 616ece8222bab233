#!/usr/bin/env bash
# Makes the shipped simulated cost models: one file and card for each GPU, from the analytic model.
# About half an hour on one core. Usage: scripts/simulated_models.sh [a100 h100 h200]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=out/simulated models=python/neuroshard_fast/models
mkdir -p $out
neuroshard generate broad --seed 0 -o $out/tables.json
neuroshard generate broad --seed 1 --tables 300 -o $out/held-out-tables.json
for gpu in ${@:-a100 h100 h200}; do
    simulated="--backend simulated --hardware $gpu --batch-size 65536 -o $out/$gpu"
    neuroshard profile compute $out/tables.json $simulated --samples 60000 --memory 80GiB
    neuroshard profile compute $out/held-out-tables.json $simulated --samples 3000 --memory 80GiB --held-out
    for devices in 2 4 8 16 32 64 128; do
        neuroshard profile comm --devices $devices $simulated --samples 15000
    done
    neuroshard pretrain $out/$gpu --epochs 100 --communication per-count --communication-sizes 256,128 --name $gpu-sim -o $models/$gpu-sim.safetensors
    {
        neuroshard models $models/$gpu-sim.safetensors
        echo
        echo "Every command, from the tables to this card: \`scripts/simulated_models.sh $gpu\`."
    } >$models/$gpu-sim.md
done
