#!/usr/bin/env bash
# Makes the shipped cost models measured on a CPU, cpu-fbgemm, and their card. One device is one process
# with one thread. About two hours on two cores that do nothing else; stopped, it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=out/cpu-data models=python/neuroshard_fast/models
mkdir -p $out

# tables NAME COUNT BATCH TYPE SEED: a pool with the reuse histograms of that batch size
tables() {
    [ -e "$out/$1.json" ] || neuroshard generate dlrm-2021 --max-rows 1000000 --tables "$2" \
        --batch-size "$3" --data-type "$4" --seed "$5" -o "$out/$1.json"
}
compute() { taskset -c 1 neuroshard profile compute "$@" -o $out --memory 2GiB; }

# batch size, data type, samples, seed
while read -r batch type samples seed; do
    tables "tables-${batch}_$type" 2000 "$batch" "$type" "$seed"
    compute "$out/tables-${batch}_$type.json" --batch-size "$batch" --label "${batch}_$type" --seed "$seed" \
        --samples "$samples" --rounds 2 --dims 4,8,12,16,20,32,40,64,80,128 --most-tables 24
done <<'END'
1024 fp32 4500 16
1024 fp16 3000 11
256 fp32 2000 12
256 fp16 1500 14
2048 fp32 1500 13
2048 fp16 500 15
END
# None of these tables is trained on, nor are batch size 512 and dims 24, 48 and 96.
while read -r batch type samples rounds seed label dims; do
    tables "held-out-${batch}_$type" 200 "$batch" "$type" 1
    compute "$out/held-out-${batch}_$type.json" --held-out --batch-size "$batch" --label "${batch}_${type}_$label" \
        --seed "$seed" --samples "$samples" --rounds "$rounds" --dims "$dims" --most-tables 24
done <<'END'
512 fp32 100 18 21 known 4,8,16,32,64,128
512 fp32 60 18 22 unseen 24,48,96
512 fp16 100 18 21 known 4,8,16,32,64,128
512 fp16 60 18 22 unseen 24,48,96
1024 fp32 100 9 21 known 4,8,16,32,64,128
1024 fp32 60 9 22 unseen 24,48,96
1024 fp16 100 9 21 known 4,8,16,32,64,128
1024 fp16 60 9 22 unseen 24,48,96
256 fp32 100 12 21 known 4,8,16,32,64,128
256 fp32 60 12 22 unseen 24,48,96
2048 fp32 100 9 21 known 4,8,16,32,64,128
END
for devices in 2 3 4; do
    neuroshard profile comm --devices $devices -o $out --batch-size 1024 --samples 300 --rounds 2
    neuroshard profile comm --devices $devices -o $out --batch-size 256 --label 256 --samples 100 --rounds 2
    neuroshard profile comm --devices $devices -o $out --batch-size 2048 --label 2048 --samples 100 --rounds 2
done
# Plans that the search proposes, of tables that are in none of the pools above.
if [ ! -e $out/start.safetensors ]; then
    neuroshard pretrain $out --epochs 40 --name start -o $out/start.safetensors
fi
[ -e $out/tables-refine.json ] || neuroshard generate dlrm-2021 --max-rows 1000000 --tables 400 --batch-size 1024 \
    --seed 1001 -o $out/tables-refine.json
neuroshard refine $out $out/tables-refine.json --cost-models $out/start.safetensors -o $out/refined.safetensors \
    --devices 4 --memory 2GiB --batch-size 1024 --epochs 40 --threads 2 --budget 25min --plot $out/refine-cycles.png
neuroshard pretrain $out --epochs 40 --plot docs/calibration-cpu-fbgemm.png --name cpu-fbgemm \
    -o $models/cpu-fbgemm.safetensors
{
    neuroshard models $models/cpu-fbgemm.safetensors
    echo
    echo "Predicted and measured costs, and how right the doubts are: \`docs/calibration-cpu-fbgemm.png\`."
    echo
    echo "Every command, from the tables to this card: \`scripts/measured_cpu_models.sh\`."
} >$models/cpu-fbgemm.md
