"""A job file with every key in it."""

from __future__ import annotations

WHOLE = """
name: pretrain-small
run: torchrun --nproc-per-node 4 train.py --lr 0.1
resources:
  any_of: [{accelerators: A100:1..8}, {accelerators: L4:1..16}]
  spot: spot
elastic: {workers: 2..16, sizes: [2, 4, 8, 16], on_node_loss: replace, replace_within: 5min, restart: 500ms}
training: {target: {steps: 1000}, global_batch: 512, samples_per_s: 100}
envs:
  LEVEL: 010
  ANSWER: yes
  FROM_ME:
secrets: {TOKEN: }
budget: {total: 120 USD, on_exhausted: checkpoint_stop}
deadline: 2026-11-02T00:00Z
checkpoint: {uri: ck, interval: 10m, keep: 5}
retry: {preemption: unlimited, infra: 4, user: 0}
stop_duration: 1m30s
setup: pip install -r needs.txt
file_mounts: {/data: s3://corpus/small, /out: {name: results, store: gcs, mode: MOUNT}}
weight: 2
"""
