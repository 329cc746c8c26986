"""How long a job is without a pod that it has lost: with a pool's spare, Warm and Replace, and where nobody has one."""
