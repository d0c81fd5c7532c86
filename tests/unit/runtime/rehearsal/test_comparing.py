"""What differs between two runs is told with its step and its name, unless other rng explain it."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.runtime.rehearsal.comparing import Noise, compared
from sublet.runtime.rehearsal.rehearse import report_on
from sublet.runtime.rehearsal.report import Difference, Report, RunView, Seen, SeenStep

STEPS = 20


def a_run(name="one", workers=1, *, loss=lambda step: 10.0 / step, weight=lambda step: 1.0 + step, **more):
    """One parameter, of which four numbers are known."""

    def digest(value):
        some = np.array([1.0, 2.0, 3.0, 4.0]) * value
        return np.concatenate([[some.sum(), np.linalg.norm(some)], some])

    steps = {
        step: SeenStep(loss(step) if step else 0.0, {"layer.weight": digest(weight(step))}) for step in range(STEPS + 1)
    }
    return Seen(name=name, workers=workers, steps=steps, **more)


def differences(base, run, again=None, *, killed=False):
    """As run, kind and step."""
    found = compared(Noise(base, again or base), base, run, killed=killed)
    return [(each.kind, each.step) for each in found]


def test_equal_runs_have_no_difference():
    assert differences(a_run(), a_run(workers=2)) == []


def test_a_rounding_is_none_and_ten_are_one():
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * (1 + 1e-6))) == []
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * (1 + 1e-5))) == [("weights", 0)]


def test_the_first_step_that_differs_is_told():
    late = a_run(weight=lambda step: 1.0 + step + 0.01 * (step >= 7))
    assert differences(a_run(), late) == [("weights", 7)]
    assert differences(a_run(), a_run(loss=lambda step: 10.0 / step + 0.01 * (step >= 5))) == [("loss", 5)]


def test_a_difference_is_told_with_the_parameter_that_differs_most():
    def two(far):
        run = a_run()
        return Seen(
            name="one",
            workers=1,
            steps={
                step: SeenStep(each.loss, {**each.weights, "bias": each.weights["layer.weight"] * far})
                for step, each in run.steps.items()
            },
        )

    other = two(1.5)
    for step in other.steps.values():
        step.weights["layer.weight"][2] *= 1.1
    (found,) = compared(Noise(two(1.0), two(1.0)), two(1.0), other, killed=False)
    assert found.name == "bias"


def test_what_other_dice_do_too_is_no_difference_and_more_than_three_times_of_it_is():
    again = a_run(weight=lambda step: (1.0 + step) * 1.01)
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * 1.02), again) == []
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * 1.05), again) == [("weights", 0)]
    noisy = a_run(loss=lambda step: 10.1 / step)
    assert differences(a_run(), a_run(loss=lambda step: 9.9 / step), noisy) == []
    assert differences(a_run(), a_run(loss=lambda step: 9.0 / step), noisy) == [("loss", 1)]


def test_a_parameter_that_dice_leave_alone_by_chance_may_differ_as_others_do():
    def three(far, farther):
        run = a_run()
        for step in run.steps.values():
            for name in ("a", "b"):
                step.weights[name] = step.weights["layer.weight"] * far
            step.weights["layer.weight"] *= farther
        return run

    assert differences(three(1.0, 1.0), three(1.0, 1.02), three(1.01, 1.0)) == []
    assert differences(three(1.0, 1.0), three(1.0, 1.05), three(1.01, 1.0)) == [("weights", 0)]


def test_of_the_first_steps_the_noise_is_that_of_several():
    def drawn(step):
        return (1.0 + step) * (1.01 if step == 4 else 1.0)

    early = a_run(weight=lambda step: (1.0 + step) * (1.02 if step == 1 else 1.0))
    assert differences(a_run(), early, a_run(weight=drawn)) == []
    late = a_run(weight=lambda step: (1.0 + step) * (1.01 if step == 9 else 1.0))
    assert differences(a_run(), early, late) == [("weights", 1)]


def test_a_loss_that_dice_change_at_one_step_may_differ_as_much_at_another():
    once = a_run(loss=lambda step: 10.0 / step * (1.05 if step == 1 else 1.0))
    assert differences(a_run(), a_run(loss=lambda step: 10.0 / step * (1.05 if step == 9 else 1.0)), once) == []


def test_what_a_rounding_grows_to_is_no_difference_but_no_more_than_a_rounding():
    again = a_run(weight=lambda step: (1.0 + step) * (1 + 4e-6))
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * (1 + 6e-5)), again) == []
    again = a_run(weight=lambda step: (1.0 + step) * (1 + 2e-5))
    assert differences(a_run(), a_run(weight=lambda step: (1.0 + step) * (1 + 3e-4)), again) == [("weights", 0)]


def test_what_is_not_among_the_numbers_that_are_known_shows_in_the_sum():
    other = a_run()
    for step in other.steps.values():
        step.weights["layer.weight"][0] += 1.0
    assert differences(a_run(), other) == [("weights", 0)]


def test_a_parameter_that_is_no_number_any_more_differs():
    assert differences(a_run(), a_run(weight=lambda step: np.nan if step > 3 else 1.0 + step)) == [("weights", 4)]


def test_a_run_that_ends_early_is_told():
    short = a_run(workers=2)
    for step in range(15, STEPS + 1):
        del short.steps[step]
    assert differences(a_run(), short) == [("steps", None)]


def test_a_failure_is_told_with_its_last_words_unless_it_fails_at_one_worker_too():
    failed = a_run(workers=2, failure="RuntimeError: planted")
    (found,) = compared(Noise(a_run(), a_run()), a_run(), failed, killed=False)
    assert (found.kind, found.evidence) == ("failure", "RuntimeError: planted")
    assert differences(a_run(failure="RuntimeError: planted"), failed) == []


@pytest.mark.parametrize(
    ("loss", "weight", "advice"),
    [
        (lambda step: 5.0 / step, lambda step: 1.0 + 0.5 * step, "reduction='sum'"),
        (lambda step: 10.5 / step, lambda step: 1.0 + 1.1 * step, "counted"),
        (lambda step: 10.0 / step, lambda step: 1.0 + 1.1 * step, "clip_norm"),
        (lambda step: 10.0 / step, lambda step: 1.0 + step + 0.1 * max(0, step - 4), "between steps"),
    ],
)
def test_advice_follows_from_what_differs_first(loss, weight, advice):
    found = compared(Noise(a_run(), a_run()), a_run(), a_run(workers=2, loss=loss, weight=weight), killed=False)
    assert advice in found[0].advice


def test_after_a_kill_the_advice_is_to_keep_what_was_lost():
    other = a_run(workers=2, weight=lambda step: 1.0 + step + (step > 10))
    (found,) = compared(Noise(a_run(), a_run()), a_run(), other, killed=True)
    assert (found.run, found.step) == ("kill", 11)
    assert "s.keep" in found.advice


def test_a_script_without_a_session_is_told_what_it_can_do_itself():
    base = Seen(name="one", workers=1, lines=["loss 1.0"], all_lines=["loss 1.0"], files={"a.txt": b"1"})
    wide = Seen(name="width", workers=2, lines=["loss 2.0"], files={"a.txt": b"1"}, shared=["a.txt"])
    killed = Seen(name="kill", workers=1, all_lines=["loss 2.0"], files={"a.txt": b"1"})
    line, file = compared(Noise(base, base), base, wide, killed=False)
    assert "WORLD_SIZE" in line.advice
    assert "RANK" in file.advice
    (line,) = compared(Noise(base, base), base, killed, killed=True)
    assert "train.checkpointed" in line.advice


def test_halved_losses_are_seen_together_where_dice_hide_each():
    rng = np.random.default_rng(5)
    noise = {step: float(np.exp(rng.normal(0.0, 0.5))) for step in range(1, STEPS + 1)}
    again = a_run(loss=lambda step: 10.0 * noise[step], weight=lambda step: 2.0 + step)
    flat = a_run(loss=lambda step: 10.0)
    (found,) = compared(Noise(flat, again), flat, a_run(workers=2, loss=lambda step: 5.0), killed=False)
    assert (found.kind, found.step) == ("loss", None)
    assert "reduction='sum'" in found.advice
    assert differences(flat, a_run(workers=2, loss=lambda step: 9.0), again) == []


def test_a_file_of_several_writers_and_one_that_is_not_written_are_told():
    files = {"log.csv": b"1\n2\n", "model.pt": b"\0binary", "rank-0.txt": b"a\n"}
    base = a_run(files=files)
    wide = a_run(workers=2, files={**files, "rank-1.txt": b"a\n"}, shared=["log.csv", "gone.lock"])
    found = compared(Noise(base, base), base, wide, killed=False)
    assert [(each.kind, each.name) for each in found] == [("file", "log.csv")]
    assert "if s.rank == 0" in found[0].advice
    del wide.files["model.pt"]
    found = compared(Noise(base, base), base, wide, killed=False)
    assert [each.name for each in found] == ["log.csv", "model.pt"]


def test_a_file_that_is_cut_off_by_a_restart_is_told():
    base = a_run(files={"log.csv": b"step 1\nstep 2\nstep 3\n"})
    cut = a_run(files={"log.csv": b"step 2\nstep 3\n"})
    assert differences(base, cut, killed=True) == [("file", None)]
    twice = a_run(files={"log.csv": b"step 1\nstep 2\nstep 2\nstep 3\n"})
    assert differences(base, twice, killed=True) == []  # a step that was interrupted is made again
    assert differences(base, twice) == [("file", None)]


def test_a_report_has_a_verdict_and_a_word_for_each_kind():
    one, again = a_run(), a_run("seed", weight=lambda step: (1.0 + step) * 1.01)
    wide, killed = a_run("width", 2), a_run("kill", 2, weight=lambda step: 1.0 + step + (step > 10))
    report = report_on(["python"], [one, one_named("seed"), wide, one_named("kill", 2)])
    assert (report.verdict, report.noise) == ("alike", ())
    report = report_on(["python"], [one, again, wide, one_named("kill", 2)])
    assert report.verdict == "alike"
    assert [(each.run, each.kind) for each in report.noise] == [("seed", "weights")]
    assert [run.weights for run in report.runs] == ["-", "noise", "equal", "equal"]
    report = report_on(["python"], [one, one_named("seed"), wide, killed])
    assert report.verdict == "differs"
    assert [run.weights for run in report.runs] == ["-", "equal", "equal", "differs"]
    assert [run.against for run in report.runs] == ["", "one", "one", "width"]
    report = report_on(["python"], [Seen(name="one", workers=1, failure="boom")])
    assert (report.verdict, report.why) == ("cannot run", "boom")


def one_named(name, workers=1):
    """As the first run."""
    return a_run(name, workers)


@pytest.mark.parametrize(("weights", "alike"), [("noise", True), ("-", False)])
def test_printed_lines_that_differ_say_nothing_of_the_training_unless_it_was_compared(weights, alike):
    run = RunView(name="width", workers=2, seconds=1.0, steps=20, against="one", weights=weights)
    report = Report(command=("train.py",), runs=(run,), differences=(Difference(run="width", kind="line"),))
    assert report.verdict == "differs"
    assert report.trains_alike == alike
