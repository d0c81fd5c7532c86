"""Functions and methods that scripts call, by what they do to what they are given; all else may do anything."""

from __future__ import annotations

__all__ = [
    "BUILTINS", "CONTAINERS", "FRESH", "GROWS", "METHODS", "MODES", "READING", "SAMPLED", "draws", "is_known", "seeds",
    "tells",
]  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN = (  # libraries whose functions leave their arguments as they are, and return something new
    "torch", "numpy", "math", "cmath", "random", "itertools", "functools", "operator", "time", "datetime", "os", "sys",
    "json", "logging", "copy", "warnings", "pathlib", "gc", "statistics", "sklearn.metrics", "matplotlib",
    "torchvision", "wandb", "mlflow", "tensorboard", "tqdm", "pprint", "contextlib", "re", "string", "shutil", "pickle",
    "collections", "csv", "io", "gzip", "subprocess", "textwrap", "hashlib", "uuid", "platform", "glob", "struct",
)  # fmt: skip
BUILTINS = _words("""
    abs all any bool bytes callable chr dict divmod enumerate filter float format frozenset getattr hasattr
    hash hex id input int isinstance issubclass iter len list map max min oct open ord pow print range repr
    reversed round set slice sorted str sum super tuple type vars zip Exception ValueError RuntimeError
    AssertionError SystemExit
""")
CONTAINERS = _words("""
    list tuple set dict zip enumerate reversed sorted iter next map filter max min getattr
""")
MODES = _words("""
    train eval zero_grad
""")  # of a module: nothing that a state has
FRESH = _words("""
    item clone tolist mean sum std var norm exp log pow sqrt square abs argmax argmin softmax log_softmax
    sigmoid tanh relu size numel nelement dim eq ne lt gt le ge sub mul div matmul mm bmm dot keys
    get_last_lr strip split lower upper format join startswith endswith count index is_floating_point float64
    astype round floor ceil amax amin logsumexp
""")
READING = FRESH | _words("""
    backward parameters named_parameters buffers named_buffers modules named_modules children named_children
    state_dict values items get copy detach cpu cuda to view reshape flatten squeeze unsqueeze transpose
    permute expand repeat contiguous float double half long int bool type gather index_select masked_fill
    clamp chunk unbind t max min topk scatter numpy data_ptr element_size is_cuda any all isnan isinf
    isfinite new_zeros new_ones cumsum roll view_as type_as expand_as masked_select where nonzero unique
    narrow select flip diff prod cos sin argsort sign scale get_scale parse_args parse_known_args exists
    is_file is_dir mkdir with_suffix resolve get_device_properties
    unlink rename replace rmdir symlink_to hardlink_to touch write_text write_bytes
""")
GROWS = _words("""
    append appendleft extend update add insert pop popleft popitem clear remove discard setdefault sort
    reverse push put load_state_dict write writelines
""")
RANDOM = _words("""
    rand randn randint randperm normal bernoulli multinomial rand_like randn_like randint_like dropout
    manual_seed seed set_rng_state manual_seed_all poisson binomial seed_everything set_seed dropout1d dropout2d
    dropout3d alpha_dropout feature_dropout feature_alpha_dropout gumbel_softmax rrelu
""")
METHODS = _words("""
    uniform_ normal_ bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli multinomial
""")  # of a tensor, by which random numbers are drawn
SAMPLED = ("sample", "rsample")  # of a distribution
SEEDS = _words("""
    manual_seed seed set_rng_state manual_seed_all seed_everything set_seed default_rng
""")
TELLS = (
    "print", "logging.", "tqdm.", "wandb.", "mlflow.", "warnings.", "matplotlib.", "sys.stdout.", "sys.stderr.",
    "pprint.", "time.",
)  # fmt: skip


def is_known(full: str) -> bool:
    """Whether a function of this full name leaves what it is given as it is; one of torch that ends in _ does not."""
    if full in BUILTINS:
        return True
    return any(full == name or full.startswith(f"{name}.") for name in KNOWN) and not full.endswith("_")


def draws(full: str) -> bool:
    """Whether it takes random numbers from a generator of the process, or seeds one."""
    head, _, last = full.rpartition(".")
    return head.startswith(("random", "numpy.random")) or (
        last in RANDOM and head.startswith(("torch", "numpy", "lightning"))
    )


def seeds(full: str) -> bool:
    """Whether it seeds a generator of the process."""
    return full.rpartition(".")[2] in SEEDS


def tells(full: str) -> bool:
    """Whether all that it does is to tell somebody something."""
    return any(full == name or (name.endswith(".") and full.startswith(name)) for name in TELLS)
