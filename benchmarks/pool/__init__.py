"""How long a job lacks a pod that it has lost: with a pool's spare, Warm and Replace, and without any spare."""
