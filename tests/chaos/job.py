"""A small training job for the kill tests: `python job.py SAMPLES EPOCHS STEP_MS [ROOM]`.

More than ROOM samples at a time do not fit into its memory.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

from sublet import train

samples, epochs, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3
room = int(sys.argv[4]) if sys.argv[4:] else samples
torch.manual_seed(0)
x = torch.randn(samples, 8)
y = (x.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with train.session(model, optimizer, torch.utils.data.TensorDataset(x, y), global_batch=32) as session:
    for inputs, labels in session.batches(epochs=epochs):
        time.sleep(step_s)
        if len(inputs) > room:
            raise torch.OutOfMemoryError(f"{len(inputs)} samples")
        session.step(nn.functional.cross_entropy(model(inputs), labels))
print("done")
