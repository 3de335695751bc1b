#!/bin/sh
# The runs of the first comparison table in README.md: measure.sh GRISTMILL OUT.jsonl. A minute and a half on an H200; models are generated in memory.
set -eu
gristmill=$1 out=$2
run() { model=$1; shift; "$gristmill" bench "synth:$model" --device cuda "$@" --json | grep '^{' | tee -a "$out"; }
for model in glm-4.7-flash:q4_0 deepseek-v2-lite:q4_0 youtu-llm-2b:q4_0 glm-4.7-flash:q4_k_m deepseek-v2-lite:q4_k_m; do
  run $model -p 512 -n 128 -d 0 -r 3
done
run glm-4.7-flash:q4_0 -p 0 -n 64 -d 4096,16384 -r 2
run deepseek-v2-lite:q4_0 -p 0 -n 64 -d 4096,16384 -r 2
run youtu-llm-2b:q4_0 -p 0 -n 64 -d 4096 -r 2
