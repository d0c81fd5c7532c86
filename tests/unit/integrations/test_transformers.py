"""The elastic Trainer does what the Trainer of transformers does in one process."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from torch.utils.data import Dataset  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.integrations.transformers import Trainer  # noqa: E402
from sublet.integrations.transformers.fitness import ATTRIBUTES, METHODS, TESTED, moved, require_as_pinned  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


class Texts(Dataset):
    """Of different lengths: a mean over samples is not one over labels."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = (torch.arange(8) + index) % 16
        return {"input_ids": ids, "labels": torch.where(torch.arange(8) < index * 5 % 8, ids, -100)}


class Pairs(Texts):
    def __getitem__(self, index):
        return {"x": torch.tensor([index / 10.0, 1.0]), "y": torch.tensor(index % 3.0)}


class Own(torch.nn.Module):
    """A model that says its own loss, a mean over samples."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def forward(self, x, y):
        return {"loss": torch.nn.functional.mse_loss(self.line(x).squeeze(1), y)}


def llama():
    torch.manual_seed(3)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, max_position_embeddings=8, num_key_value_heads=1, **sizes))


def own():
    torch.manual_seed(3)
    return Own()


class Heard(TrainerCallback):
    """Every event, and where training was."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name.startswith("on_") and name not in ("on_log", "on_prediction_step", "on_init_end"):
            return lambda _, state, __, **___: self.events.append((name, state.global_step, round(state.epoch, 6)))
        return super().__getattribute__(name)


def arguments(place, **more):
    usual = {"train_sampling_strategy": "sequential", "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    usual |= {"learning_rate": 1e-2, "save_strategy": "no"}
    return TrainingArguments(output_dir=str(place), **usual | more)


def trained(kind, model, data, args, **more):
    heard = Heard()
    trainer = kind(model=model, args=args, train_dataset=data, callbacks=[heard], **more)
    output = trainer.train()
    logs = [{name: value for name, value in each.items() if name in FIGURES} for each in trainer.state.log_history]
    return dict(model.state_dict()), logs, heard.events, output


FIGURES = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm", "train_loss")
SETTINGS = {
    "accumulated": {"gradient_accumulation_steps": 3, "num_train_epochs": 2, "warmup_steps": 3, "max_grad_norm": 0.3},
    "part of an epoch": {"num_train_epochs": 1.5, "logging_strategy": "epoch", "weight_decay": 0.1},
    "steps": {"max_steps": 7, "lr_scheduler_type": "cosine", "optim": "sgd"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("make", [llama, own])
def test_in_one_process_it_comes_to_what_the_trainer_comes_to(make, settings, tmp_path):
    data = Texts(22) if make is llama else Pairs(22)  # the last batch is smaller
    if make is own and "gradient_accumulation_steps" in settings:
        data = Pairs(20)  # the Trainer weighs micro-batches alike, whatever their size; we weigh samples
    found = []
    for kind in (transformers.Trainer, Trainer):
        args = arguments(tmp_path, per_device_train_batch_size=4, logging_steps=2, **settings)
        found.append(trained(kind, make(), data, args))
    (weights, logs, events, output), (ours, our_logs, our_events, our_output) = found
    torch.testing.assert_close(ours, weights, rtol=1e-4, atol=1e-5)
    assert our_logs == [pytest.approx(each, rel=1e-3) for each in logs]
    assert our_events == events
    assert our_output.global_step == output.global_step
    assert our_output.training_loss == pytest.approx(output.training_loss, rel=1e-3)


def test_half_precision_is_that_of_the_trainer(tmp_path):
    found = []
    for kind in (transformers.Trainer, Trainer):
        args = arguments(tmp_path, per_device_train_batch_size=4, num_train_epochs=1, bf16=True, learning_rate=1e-3)
        found.append(trained(kind, llama(), Texts(22), args)[0])
    args = arguments(tmp_path, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=1e-3)
    plain = trained(Trainer, llama(), Texts(22), args)
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)  # sums of bfloat16 have three digits
    assert any(not torch.equal(found[1][name], plain[0][name]) for name in found[1])


class Scaled(Trainer):
    """With the scaler that accelerate makes for `fp16`, which it makes for GPUs alone."""

    start = 2.0**10

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=self.start, growth_interval=4)


class Overflowing(Scaled):
    start = 2.0**127  # no loss times that is finite


def test_losses_are_scaled_by_the_trainers_scaler_and_gradients_unscaled(tmp_path):
    """By powers of two: what is scaled and unscaled is the same to the bit."""
    more = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "max_grad_norm": 0.3, "logging_steps": 2}
    plain, scaled = (trained(kind, llama(), Texts(22), arguments(tmp_path, **more)) for kind in (Trainer, Scaled))
    assert all(torch.equal(scaled[0][name], plain[0][name]) for name in plain[0])
    assert scaled[1] == plain[1]


def test_steps_that_are_not_finite_are_left_out_until_the_scale_fits(tmp_path):
    args = arguments(tmp_path, per_device_train_batch_size=4, num_train_epochs=3)
    before, model = llama().state_dict(), llama()
    trainer = Overflowing(model=model, args=args, train_dataset=Texts(22))
    trainer.train()
    assert trainer.state.global_step == 18
    assert trainer.accelerator.scaler.get_scale() < 2.0**127
    assert all(torch.isfinite(weight).all() for weight in model.state_dict().values())
    assert any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 of the Trainer takes a GPU")
def test_fp16_is_that_of_the_trainer(tmp_path):
    found = []
    for kind in (transformers.Trainer, Trainer):
        more = {"use_cpu": False, "fp16": True, "per_device_train_batch_size": 4, "learning_rate": 1e-3}
        args = arguments(tmp_path, num_train_epochs=3, max_grad_norm=0.3, **more)
        found.append(trained(kind, llama(), Texts(22), args)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)  # sums of float16 have three digits


def test_evaluation_saving_and_stopping_early_are_those_of_the_trainer(tmp_path):
    found = []
    for kind in (transformers.Trainer, Trainer):
        place = tmp_path / kind.__module__
        args = arguments(
            place,
            per_device_train_batch_size=4,
            num_train_epochs=9,
            greater_is_better=True,  # so it gets worse
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="steps",
            save_steps=4,
            save_total_limit=2,
            metric_for_best_model="eval_loss",
            load_best_model_at_end=True,
        )
        trainer = kind(
            model=llama(),
            args=args,
            train_dataset=Texts(20),
            eval_dataset=Texts(6),
            callbacks=[heard := Heard(), transformers.EarlyStoppingCallback(2)],
        )
        trainer.train()
        saved = sorted(path.name for path in place.glob("checkpoint-*"))
        found.append((saved, trainer.state.global_step, trainer.state.best_global_step, heard.events))
        found[-1] += (dict(trainer.model.state_dict()),)
    *expected, weights = found[0]
    *facts, ours = found[1]
    assert facts == expected
    assert facts[1] < 45  # it stopped early
    torch.testing.assert_close(ours, weights, rtol=1e-4, atol=1e-5)


class Dies(TrainerCallback):
    """As a process that is killed in a step. Its disk keeps up: what was saved before a step is there when it is made.

    Otherwise a busy machine writes the checkpoint that a start began with until the end of its last step.
    """

    def __init__(self, step):
        self.step, self.trainer = step, None

    def on_step_begin(self, args, state, control, **more):
        self.trainer._session._around.saver.settle()
        if state.global_step == self.step:
            raise Killed


class Killed(Exception): ...


def test_the_loss_of_a_training_is_that_of_all_its_starts(tmp_path, monkeypatch):
    more = {"per_device_train_batch_size": 4, "num_train_epochs": 3, "logging_steps": 4}
    expected = trained(Trainer, llama(), Texts(22), arguments(tmp_path / "calm", **more))[3].training_loss
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", "0")
    for begins, step in ((0, 7), (7, 14)):
        dies = Dies(step)
        trainer = Trainer(model=llama(), args=arguments(tmp_path, **more), train_dataset=Texts(22), callbacks=[dies])
        dies.trainer = trainer
        with pytest.raises(Killed):
            trainer.train()
        assert trainer._initial_global_step == begins
    trainer = Trainer(model=llama(), args=arguments(tmp_path, **more), train_dataset=Texts(22))
    found = trainer.train()
    assert trainer._initial_global_step == 14
    assert found.training_loss == pytest.approx(expected, rel=1e-5)
    again = Trainer(model=llama(), args=arguments(tmp_path, **more), train_dataset=Texts(22)).train()
    assert again.training_loss == pytest.approx(expected, rel=1e-5)  # there was nothing left to train


def test_a_training_that_stopped_early_is_over_at_its_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    more = {"per_device_train_batch_size": 4, "eval_strategy": "epoch", "metric_for_best_model": "eval_loss"}

    def start(epochs):
        args = arguments(tmp_path, num_train_epochs=epochs, greater_is_better=True, **more)  # so it gets worse
        stop = transformers.EarlyStoppingCallback(2)
        data = {"train_dataset": Texts(20), "eval_dataset": Texts(6)}
        trainer = Trainer(model=llama(), args=args, callbacks=[stop], **data)
        trainer.train()
        return trainer.state.global_step, trainer.model.state_dict()

    steps, weights = start(9)
    assert steps == 15
    for _ in range(2):  # what the second leaves behind is over, too
        again, found = start(9)
        assert again == steps
        assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert start(12)[0] == 20  # more epochs are an order to train on, until it is stopped again


# ------------------------------------------------------------------------------------ what transformers may move


@pytest.mark.parametrize("name", METHODS)
def test_the_trainer_still_has(name):
    assert not moved(transformers.Trainer, {name: METHODS[name]})


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_trainer_still_reads(name):
    assert f"self.{name}" in inspect.getsource(transformers.Trainer)


def test_a_name_that_moved_is_named():
    with pytest.raises(InvalidValue, match=r"Trainer\._run_away, Trainer\.train\(far\)"):
        require_as_pinned("transformers", TESTED, transformers.Trainer, {"_run_away": (), "train": ("far",)})


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("auto_find_batch_size", True),
        ("enable_jit_checkpoint", True),
        ("train_sampling_strategy", "group_by_length"),
        ("lr_scheduler_type", "greedy"),
    ],
)
def test_what_cannot_be_elastic_is_refused(field, value, tmp_path):
    with pytest.raises(InvalidValue, match=field):
        Trainer(model=own(), args=arguments(tmp_path, eval_strategy="epoch", **{field: value}), train_dataset=Pairs(8))


@pytest.mark.parametrize("field", ["fsdp", "deepspeed", "parallelism_config"])
def test_what_cuts_the_model_is_refused(field, tmp_path):
    args = arguments(tmp_path)
    setattr(args, field, {"some": "thing"})  # the arguments themselves ask for packages that are not here
    with pytest.raises(InvalidValue, match=field):
        Trainer(model=own(), args=args, train_dataset=Pairs(8))


def test_a_checkpoint_of_the_trainers_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("SUBLET_CHECKPOINT_DIR", raising=False)
    trainer = Trainer(model=own(), args=arguments(tmp_path), train_dataset=Pairs(8))
    for given in (str(tmp_path), True):
        with pytest.raises(InvalidValue, match="resume_from_checkpoint"):
            trainer.train(resume_from_checkpoint=given)


def test_batches_that_accumulation_does_not_divide_cannot_be_dropped(tmp_path):
    args = arguments(tmp_path, dataloader_drop_last=True, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    with pytest.raises(InvalidValue, match="dataloader_drop_last"):
        Trainer(model=own(), args=args, train_dataset=Pairs(22)).train()


def test_an_epoch_is_not_cut_short(tmp_path):
    class Hasty(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            control.should_epoch_stop = True
            return control

    trainer = Trainer(model=own(), args=arguments(tmp_path), train_dataset=Pairs(30), callbacks=[Hasty()])
    with pytest.raises(InvalidValue, match="should_epoch_stop"):
        trainer.train()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (Pairs(8)[index] for index in range(8))


def test_a_stream_is_refused(tmp_path):
    trainer = Trainer(model=own(), args=arguments(tmp_path, max_steps=2), train_dataset=Stream())
    with pytest.raises(InvalidValue, match="Stream, a stream"):
        trainer.train()
