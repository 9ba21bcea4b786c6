# SPDX-License-Identifier: MIT
"""What measure.py measures beside the plain loop: parts of blocks recomputed, blocks on the host, 4-bit weights, losses without
logits, other optimizers, the Trainer."""
import functools
import os
import time

LOSS_CHUNKS = 8


# Blocks: what transformers has no switch for


def select_layers(selection, n):
    """The block numbers of "all", a list, {"layers": [...]}, {"every": N} or {"first": N}; none where nothing is given."""
    if not selection:
        return []
    if selection == "all":
        return list(range(n))
    if isinstance(selection, list):
        return selection
    if "layers" in selection:
        return selection["layers"]
    return list(range(0, selection.get("first", n), selection.get("every", 1)))


def blocks_of(model):
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(owner, name):
    """Checkpoint a module's forward, or another method of it."""
    from torch.utils.checkpoint import checkpoint

    forward = getattr(owner, name)

    @functools.wraps(forward)  # bert counts the parameters of what it calls
    def again(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    setattr(owner, name, again)


def recompute_parts(model, attention, mlp):
    """attention, mlp: selections of blocks whose attention or feed-forward module alone is recomputed."""
    blocks = blocks_of(model)
    for i in select_layers(attention, len(blocks)):
        names = [name for name in ("self_attn", "attn", "attention") if hasattr(blocks[i], name)]
        recompute(getattr(blocks[i], names[0]), "forward")
    for i in select_layers(mlp, len(blocks)):
        if hasattr(blocks[i], "feed_forward_chunk"):  # bert has no one module
            recompute(blocks[i], "feed_forward_chunk")
        else:
            recompute(blocks[i].mlp, "forward")


def offload(block):
    from torch.autograd.graph import save_on_cpu

    forward = block.forward

    def on_host(*args, **kwargs):
        with save_on_cpu(pin_memory=True):
            return forward(*args, **kwargs)

    block.forward = on_host


def offload_layers(model, selection):
    blocks = blocks_of(model)
    for i in select_layers(selection, len(blocks)):
        offload(blocks[i])


# bitsandbytes' 4-bit layers


def quantize(torch, precision, model):
    """4-bit layers in place of those that transformers would replace; moving them to the card quantises them."""
    import bitsandbytes
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert

    compute = {"fp32": torch.float32, "fp16": torch.float16, "amp-fp16": torch.float16}.get(precision, torch.bfloat16)
    kept = get_keys_to_not_convert(model)
    for name, module in list(model.named_modules()):
        is_conv1d = isinstance(module, Conv1D)
        if name in kept or not (is_conv1d or type(module) is torch.nn.Linear):
            continue
        weight = module.weight.data.T.contiguous() if is_conv1d else module.weight.data
        layer = bitsandbytes.nn.Linear4bit(weight.shape[1], weight.shape[0], bias=module.bias is not None, compute_dtype=compute,
                                           compress_statistics=True, quant_type="nf4")
        layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4",
                                                  module=layer)
        layer.bias = module.bias
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    model.is_loaded_in_4bit = True


# Losses that do not materialise the logits


def fuse_loss(model):
    """Liger's fused linear cross-entropy, and nothing else of Liger's."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN, _apply_liger_kernel_to_instance

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ValueError("loss: fused: Liger has none for %s" % model.config.model_type)
    _apply_liger_kernel_to_instance(model, rope=False, rms_norm=False, swiglu=False, layer_norm=False, geglu=False,
                                    cross_entropy=False, fused_linear_cross_entropy=True)


class ChunkedLoss:
    """Cross-entropy over chunks of the tokens, each computed again in backward: the logits never exist as a whole."""

    def __init__(self, torch, model):
        from torch.utils.checkpoint import checkpoint

        self.functional, self.checkpoint = torch.nn.functional, checkpoint
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.body, self.head = getattr(self.model, self.model.base_model_prefix), self.model.get_output_embeddings()

    def __call__(self, input_ids, labels, **kw):
        hidden = self.body(input_ids=input_ids, **kw)[0]
        return ChunkedOutput(hidden, self.sum_chunks(hidden, labels))

    def sum_chunks(self, hidden, labels):
        targets = self.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous().view(-1)
        rows = hidden.view(-1, hidden.shape[-1])
        total = 0.0
        for row, target in zip(rows.chunk(LOSS_CHUNKS), targets.chunk(LOSS_CHUNKS)):
            total = total + self.checkpoint(self.of_chunk, row, target, use_reentrant=False)
        return total / (labels.numel() - labels.shape[0])

    def of_chunk(self, row, target):
        logits = self.head(row).float()
        return self.functional.cross_entropy(logits, target, ignore_index=-100, reduction="sum")


class ChunkedOutput:
    def __init__(self, hidden, loss):
        self.loss, self.last_hidden_state = loss, hidden


# Optimizers


class Optimizers:
    """Several optimizers that step one after the other."""

    def __init__(self, *parts):
        self.parts = parts

    @property
    def param_groups(self):
        """What a gradient scaler looks at."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def make_muon(torch, model):
    """Muon for the matrices of hidden layers; AdamW for embeddings, the output head, and whatever is no matrix."""
    tables = {id(p) for module in model.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()}
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    tables |= {id(p) for p in head.parameters()} if head is not None else set()
    params = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in params if p.ndim == 2 and id(p) not in tables]
    chosen = {id(p) for p in hidden}
    others = [p for p in params if id(p) not in chosen]
    return Optimizers(torch.optim.Muon(hidden, lr=1e-3), *([torch.optim.AdamW(others, lr=1e-4)] if others else []))


def make_bitsandbytes(name, params):
    import bitsandbytes

    kind = {"adamw-8bit": "AdamW8bit", "paged-adamw-8bit": "PagedAdamW8bit", "lion": "Lion"}[name]
    return getattr(bitsandbytes.optim, kind)(params, lr=1e-4)


# transformers' Trainer


def trainer_arguments(run):
    """TrainingArguments of the run, and how many samples it evaluates."""
    from transformers import TrainingArguments

    given = dict(run.get("training_arguments") or {})
    given.setdefault("per_device_train_batch_size", run["batch"])
    given.setdefault("gradient_accumulation_steps", run.get("accumulate") or 1)
    given.setdefault("per_device_eval_batch_size", given["per_device_train_batch_size"])
    n_samples = given.pop("eval_samples", 4 * given["per_device_eval_batch_size"])
    given.update(max_steps=run.get("iterations") or 3, report_to="none", save_strategy="no", disable_tqdm=True,
                 output_dir="/tmp/measure-trainer-%d" % os.getpid())
    return TrainingArguments(**given), n_samples


def make_samples(torch, run, n):
    samples = []
    for _ in range(n):
        ids = torch.randint(0, run["model"].get("vocab_size", 1000), (run["seq"],))
        mask = {"attention_mask": torch.ones_like(ids)} if run.get("attention_mask") else {}
        samples.append({"input_ids": ids, **mask, "labels": ids.clone()})
    return samples


def make_marker(transformers, mark, at, step_s):
    """A callback that ends phases."""

    class Marker(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            mark("data")

        def on_step_begin(self, *_, **__):
            at.update(micro_batch=0, started=time.perf_counter())

        def on_substep_end(self, *_, **__):
            mark("it%d.mb%d.bwd" % (at["iteration"], at["micro_batch"]))
            at["micro_batch"] += 1

        def on_pre_optimizer_step(self, *_, **__):
            mark("it%d.clip" % at["iteration"])

        def on_optimizer_step(self, *_, **__):
            mark("it%d.opt" % at["iteration"])

        def on_step_end(self, *_, **__):
            mark("it%d.zero" % at["iteration"])
            step_s.append(round(time.perf_counter() - at["started"], 6))
            at["iteration"] += 1

        def on_evaluate(self, *_, **__):
            mark("it%d.eval" % (at["iteration"] - 1))

    return Marker()


def train_with_trainer(torch, run, model, mark, step_s):
    """Trainer.train(): phases end at its callbacks, before its accelerator's backward, and before it clips."""
    import transformers

    at = {"iteration": 0, "micro_batch": 0, "started": 0.0}
    arguments, n_evaluated = trainer_arguments(run)
    n = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.max_steps
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=make_samples(torch, run, n),
                                   eval_dataset=make_samples(torch, run, n_evaluated),
                                   callbacks=[make_marker(transformers, mark, at, step_s)])
    mark("model")
    backward, clip = trainer.accelerator.backward, trainer._clip_grad_norm

    def marked_backward(loss, **kw):
        mark("it%d.mb%d.fwd" % (at["iteration"], at["micro_batch"]))
        return backward(loss, **kw)

    def marked_clip(model):
        mark("it%d.mb%d.bwd" % (at["iteration"], at["micro_batch"]))
        return clip(model)

    trainer.accelerator.backward, trainer._clip_grad_norm = marked_backward, marked_clip
    trainer.train()
