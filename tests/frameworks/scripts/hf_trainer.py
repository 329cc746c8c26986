"""Hugging Face's Trainer, as its documentation: it saves, and resumes from the last checkpoint of its folder.

hf_trainer.py OUTPUT_FOLDER
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Sequences(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        tokens = (torch.arange(32) * (index % 7 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


class PrintLoss(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"resumes at step {state.global_step}", flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']!r}", flush=True)


def main(folder):
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=400,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=10,
        save_total_limit=3,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=4))
    trainer = Trainer(model=model, args=arguments, train_dataset=Sequences(), callbacks=[PrintLoss()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))


if __name__ == "__main__":
    main(sys.argv[1])
