"""A small language model with the Trainer of Hugging Face: padding, accumulation, warm-up, clipping, evaluation."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from sublet.integrations.transformers import Trainer


class Texts(Dataset):
    """Counting, from anywhere; of different lengths."""

    def __init__(self, first, last):
        self.numbers = range(first, last)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        ids = (torch.arange(12) + number) % 32
        labels = torch.where(torch.arange(12) < 3 + number * 7 % 9, ids, -100)
        return {"input_ids": ids, "labels": labels}


torch.manual_seed(1)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=12, num_key_value_heads=2, **sizes))
args = TrainingArguments(
    output_dir="out",
    num_train_epochs=5,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=5,
    logging_steps=10,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Texts(0, 180), eval_dataset=Texts(180, 200))
print("mean loss of all steps:", trainer.train().training_loss)
trainer.save_model("final")

torch.save(model.state_dict(), "model.pt")
