"""Replaces a training: each rank makes ten steps per second, and reports them. Put your own script in its place."""

import os
import time

from understudy_torch import step

rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"rank {rank} of {world_size}, round {os.environ['UNDERSTUDY_ROUND']}", flush=True)
number = 0
while True:
    number += 1
    step(number)
    if number % 100 == 0:
        print(f"step {number}", flush=True)
    time.sleep(0.1)
