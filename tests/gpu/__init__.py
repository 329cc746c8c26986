"""`make gpu`: what the launcher promises about GPUs, on a machine that has one. It needs only torch and this tree."""
