#!/usr/bin/env bash
# Makes the shipped simulated cost models: one file and card for each GPU, from the analytic model.
# About 20 minutes of one core for each. Usage: scripts/simulated_models.sh [a100 h100 h200]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
out=out/simulated models=python/neuroshard_fast/models
mkdir -p $out

# tables NAME COUNT BATCH TYPE SEED: a pool with the reuse histograms of that batch size
tables() {
    [ -e "$out/$1.json" ] ||
        neuroshard generate broad --tables "$2" --batch-size "$3" --data-type "$4" --seed "$5" -o "$out/$1.json"
}

for gpu in ${@:-a100 h100 h200}; do
    simulated="--backend simulated --hardware $gpu -o $out/$gpu"
    seed=0
    for batch in 65536 4096 8192 16384 49152 131072; do
        for type in fp32 fp16; do
            seed=$((seed + 1))
            # What planning takes where no batch size is given has no label.
            label=${batch}_$type
            [ "$label" = 65536_fp32 ] && label=
            tables "$batch-$type" 1500 "$batch" "$type" $seed
            neuroshard profile compute "$out/$batch-$type.json" $simulated --batch-size "$batch" \
                --label "$label" --seed $seed --samples 6000 --memory 80GiB --most-tables 30 --dims 4,8,12,16,20,32,40,64,80,128,256
        done
    done
    # batch size, data type, dims: none of the tables is trained on, nor are 32768, 24, 48 and 96.
    while read -r batch type dims label; do
        tables "held-out-$batch-$type" 300 "$batch" "$type" 100
        neuroshard profile compute "$out/held-out-$batch-$type.json" $simulated --batch-size "$batch" \
            --label "$label" --seed 100 --samples 1000 --memory 80GiB --most-tables 30 --dims "$dims" --held-out
    done <<'END'
4096 fp16 4,8,16,32,64,128 4096_fp16
65536 fp32 4,8,16,32,64,128 65536_fp32
131072 fp32 4,8,16,32,64,128 131072_fp32
65536 fp32 24,48,96 65536_fp32_dims
32768 fp32 4,8,16,32,64,128 32768_fp32
32768 fp16 24,48,96 32768_fp16_dims
END
    for devices in 2 3 4 6 8 12 16 20 24 32 48 64 128 256 512; do
        for batch in 65536 4096 131072; do
            label=$batch
            [ $batch = 65536 ] && label=
            neuroshard profile comm --devices $devices $simulated --batch-size $batch --label "$label" \
                --seed $((devices + batch)) --samples 800
        done
    done
    neuroshard pretrain $out/$gpu --epochs 120 --minibatch-size 128 --shared-minibatch-size 32 \
        --weight-decay 0.05 --patience 100 --plot docs/calibration-$gpu-sim.png --name $gpu-sim -o $models/$gpu-sim.safetensors
    {
        neuroshard models $models/$gpu-sim.safetensors
        echo
        echo "Predicted and SIMULATED costs, and how right the doubts are: \`docs/calibration-$gpu-sim.png\`."
        echo
        echo "Every command, from the tables to this card: \`scripts/simulated_models.sh $gpu\`."
    } >$models/$gpu-sim.md
done
