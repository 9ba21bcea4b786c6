#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure training runs on a GPU: run specs in, measured runs out, as `memplan compare` reads them.

Each line of the input is a JSON object {"id": ..., "run": {...}} or a bare run spec; `run` has the keys that
`memplan fit --run` takes. Every run is a fresh process that builds the model with random weights, trains `iterations`
steps on random token ids, and reports the figures of PyTorch's allocator phase by phase. Running out of memory is a
result, not an error: the line then has "oom": true and the phases that were completed.

A line may have two more keys. `setting` changes what the run spec cannot say: {"env": {NAME: VALUE}} sets environment
variables, {"attention_kernels": ["flash", "efficient", "cudnn", "math"]} allows only these kernels for sdpa. `expect_bytes`
is how much of the card the run may take at most: with --jobs, runs start side by side as long as these fit together.

Data parallelism: with `collectives` nccl every rank is a process with a GPU of its own, and the first one is measured.
With `collectives` none there is one process, whose group of `world` ranks moves nothing: buffers are those of that many.
"""
import argparse
import contextlib
import ctypes
import gc
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback

import variants

DEFAULTS = {
    "framework": "hf",
    "precision": "fp32",
    "tf32": False,
    "attention": "sdpa",
    "checkpoint": "none",
    "offload": "none",
    "optimizer": "adamw-foreach",
    "accumulate": 1,
    "iterations": 3,
    "clip_grad_norm": False,
    "zero_grad": "set_to_none",
    "release_outputs": False,
    "retain_losses": False,
    "attention_mask": False,
    "use_cache": False,
    "empty_cache_each_step": False,
    "allocator_conf": "",
    "allocator_limit_bytes": 0,
    "init_device": "cuda",
    "seq_lengths": None,
    "pad_to": 1,
    "lora": None,
    "quantization": "none",
    "loss": "full",
    "experts": "grouped",
    "training_arguments": None,
    "data_parallel": "none",
    "world": 1,
    "gpus_per_node": None,
    "collectives": "nccl",
    "ddp": None,
    "fsdp": None,
    "deepspeed": None,
}
CHOICES = {
    "framework": ("hf", "hf-trainer"),
    "precision": ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
    "attention": ("sdpa", "eager"),
    "optimizer": ("adamw-foreach", "adamw-fused", "adamw-forloop", "sgd", "sgd-momentum", "adafactor", "none", "adamw-8bit",
                  "paged-adamw-8bit", "lion", "muon"),
    "quantization": ("none", "nf4"),
    "loss": ("full", "chunked", "fused"),
    "experts": ("grouped", "eager"),
    "zero_grad": ("set_to_none", "keep"),
    "attention_mask": (False, True, "padded"),
    "init_device": ("cuda", "cpu"),
    "data_parallel": ("none", "ddp", "zero1", "fsdp2", "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3"),
    "collectives": ("nccl", "none"),
}
REQUIRED = ("model", "batch", "seq")
IGNORED = ("gpu", "used", "expert_imbalance")
MODEL_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "opt": "OPTForCausalLM",
    "roberta": "RobertaForMaskedLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "vit": "ViTForImageClassification",
}
# Keys of a config.json that say how its checkpoint was stored or is to be used, not what the model is.
NOT_THE_MODEL = ("model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "_name_or_path")
STATISTICS = ("allocated", "reserved", "requested", "active", "inactive_split")


class SpecError(Exception):
    """A run spec that cannot be measured; the text says why."""


class Finished(Exception):
    """Another loop than the plain one has done the training."""


# Reading specs


def read_lines(path):
    """The lines of a JSON Lines file as [{"id", "run", ...}]."""
    lines = []
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            place = "%s:%d" % (path, number)
            try:
                value = json.loads(line)
            except ValueError as error:
                raise SpecError("%s: %s" % (place, error)) from error
            if not isinstance(value, dict):
                raise SpecError("%s: a line must be an object" % place)
            if "run" not in value:
                value = {"run": value}
            value.setdefault("id", "run-%03d" % number)
            value["run"] = check_run(value["run"], place)
            lines.append(value)
    if not lines:
        raise SpecError("%s: no run in it" % path)
    return lines


def check_run(run, place):
    """The spec with its model as an object; every problem is a SpecError."""
    for key in run:
        if key not in DEFAULTS and key not in REQUIRED and key not in IGNORED:
            raise SpecError("%s: unknown key '%s'" % (place, key))
    for key, choices in CHOICES.items():
        if run.get(key, DEFAULTS[key]) not in choices:
            raise SpecError("%s: %s: '%s' is none of %s" % (place, key, run[key], ", ".join(map(str, choices))))
    if "model" not in run:
        raise SpecError("%s: model: missing" % place)
    run = dict(run, model=read_model(run["model"], place))
    if run["model"].get("model_type") not in MODEL_CLASSES:
        raise SpecError("%s: model.model_type: '%s' is none of %s"
                        % (place, run["model"].get("model_type"), ", ".join(MODEL_CLASSES)))
    return run


def read_model(model, place):
    """A config object from itself, a file's name, or the name of a model in ../models."""
    if isinstance(model, dict):
        return model
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "%s.json" % model)
    for path in (model, beside):
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as text:
                value = json.load(text)
            return value if "model_type" in value else value["config"]
    raise SpecError("%s: model: '%s' is neither a file nor a shipped model" % (place, model))


def get(run, key):
    value = run.get(key)
    return DEFAULTS.get(key) if value is None else value


# One run, in a process of its own


def build_model(torch, run):
    import transformers

    config = {key: value for key, value in run["model"].items() if key not in NOT_THE_MODEL}
    config = transformers.CONFIG_MAPPING[run["model"]["model_type"]](use_cache=get(run, "use_cache"), **config)
    config._attn_implementation = get(run, "attention")
    if get(run, "experts") == "eager":
        config._experts_implementation = "eager"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(get(run, "precision"), torch.float32)
    torch.set_default_dtype(dtype)
    on_host = get(run, "quantization") == "nf4" or get(run, "framework") == "hf-trainer"
    with torch.device("cpu" if on_host else get(run, "init_device")):
        model = getattr(transformers, MODEL_CLASSES[run["model"]["model_type"]])(config)
    torch.set_default_dtype(torch.float32)
    if get(run, "quantization") == "nf4":
        variants.quantize(torch, get(run, "precision"), model)
    if get(run, "loss") == "fused":
        variants.fuse_loss(model)
    if get(run, "framework") == "hf-trainer":
        return model  # the Trainer moves it
    model.to("cuda")
    model.train()
    if get(run, "lora"):
        model = add_adapters(model, get(run, "lora"))
    checkpoint = get(run, "checkpoint")
    blocks = {key: value for key, value in checkpoint.items() if key not in ("attention", "mlp")} if isinstance(checkpoint, dict) else {}
    if checkpoint != "none" and (blocks or not isinstance(checkpoint, dict)):
        reentrant = checkpoint == "full-reentrant"
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if blocks:
        layers = variants.blocks_of(model)
        chosen = variants.select_layers(blocks, len(layers))
        for i, layer in enumerate(layers):
            layer.gradient_checkpointing = i in chosen
    if isinstance(checkpoint, dict):
        variants.recompute_parts(model, checkpoint.get("attention"), checkpoint.get("mlp"))
    if get(run, "offload") != "none":
        variants.offload_layers(model, get(run, "offload"))
    return model


def add_adapters(model, lora):
    import peft

    config = peft.LoraConfig(r=lora["rank"], lora_alpha=lora.get("alpha", 16), lora_dropout=lora.get("dropout", 0.0),
                             target_modules=lora["targets"])
    model = peft.get_peft_model(model, config)
    model.train()
    return model


def is_parallel(run):
    return get(run, "data_parallel") != "none"


def is_deepspeed(run):
    return get(run, "data_parallel").startswith("deepspeed")


def start_process_group(torch, run, rank, rendezvous):
    """NCCL, or a group of `world` ranks of which this process is the first, and which moves nothing."""
    torch.cuda.set_device(rank)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(get(run, "world")))
    if get(run, "collectives") == "none":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=get(run, "world"))
    else:
        torch.distributed.init_process_group("nccl", init_method="file://" + rendezvous, rank=rank,
                                             world_size=get(run, "world"), device_id=torch.device("cuda", rank))
        torch.distributed.barrier()
    x = torch.ones(1 << 20, device="cuda")
    torch.distributed.all_reduce(x)
    torch.cuda.synchronize()
    del x


def wrap_model(torch, run, model, rank):
    if is_deepspeed(run):
        import deepspeed

        config = dict(get(run, "deepspeed") or {"zero_optimization": {"stage": int(run["data_parallel"][-1])}},
                      train_micro_batch_size_per_gpu=run["batch"], gradient_accumulation_steps=get(run, "accumulate"))
        return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    if run["data_parallel"] == "fsdp2":
        return shard(torch, run, model)
    options = dict(get(run, "ddp") or {})
    options.pop("no_sync", None)
    hook = options.pop("compression", "none")
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], **options)
    if hook != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, getattr(default_hooks, hook + "_compress_hook"))
    return model


def shard(torch, run, model):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from transformers.modeling_layers import GradientCheckpointingLayer

    given = get(run, "fsdp") or {}
    options = {"reshard_after_forward": given.get("reshard_after_forward", True)}
    if given.get("mixed_precision"):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if given.get("offload"):
        options["offload_policy"] = CPUOffloadPolicy()
    if given.get("replicas", 1) > 1:
        replicas = given["replicas"]
        options["mesh"] = torch.distributed.init_device_mesh("cuda", (replicas, get(run, "world") // replicas),
                                                             mesh_dim_names=("replicate", "shard"))
    for block in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def sync_or_not(run, model, last):
    """no_sync(): gradients stay with the rank until the last micro-batch."""
    return model.no_sync() if (get(run, "ddp") or {}).get("no_sync") and not last else contextlib.nullcontext()


def make_optimizer(torch, run, params, model):
    name = get(run, "optimizer")
    if name == "muon":
        return variants.make_muon(torch, model)
    if name in ("adamw-8bit", "paged-adamw-8bit", "lion"):
        return variants.make_bitsandbytes(name, params)
    if run.get("data_parallel") == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(params, optimizer_class=torch.optim.AdamW, lr=1e-4)
    if name == "none":
        return None
    if name.startswith("adamw"):
        kind = {"adamw-foreach": {}, "adamw-fused": {"fused": True}, "adamw-forloop": {"foreach": False}}[name]
        return torch.optim.AdamW(params, lr=1e-4, **kind)
    if name.startswith("sgd"):
        return torch.optim.SGD(params, lr=1e-3, momentum=0.9 if name == "sgd-momentum" else 0.0)
    return torch.optim.Adafactor(params, lr=1e-3)


def lengths(run):
    """Tokens of the micro-batches that are made: micro-batch n of the run uses number n modulo their count."""
    accumulate, given, pad = get(run, "accumulate"), get(run, "seq_lengths"), get(run, "pad_to") or 1
    if not given:
        return [-(-run["seq"] // pad) * pad] * accumulate
    return [-(-given[i % len(given)] // pad) * pad for i in range(math.lcm(accumulate, len(given)))]


def make_mask(torch, run, batch, seq):
    mask = torch.ones(batch, seq, dtype=torch.int64, device="cuda")
    if get(run, "attention_mask") == "padded":
        mask[:, seq - max(1, seq // 8):].zero_()
    return mask


def limit_allocator(torch, limit):
    """Cap the allocator at `limit` bytes exactly: PyTorch takes a fraction and rounds the product down."""
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = min(1.0, limit / total)
    while int(fraction * total) < limit and fraction < 1.0:
        fraction = math.nextafter(fraction, 2.0)
    torch.cuda.set_per_process_memory_fraction(fraction)


def statistics(torch, kind):
    values = torch.cuda.memory_stats()
    return {name: values["%s_bytes.all.%s" % (name, kind)] for name in STATISTICS}


def used_by_process(pid):
    """Bytes that the driver attributes to this process, or None where NVML cannot tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
            if process.pid == pid:
                return process.usedGpuMemory
    except Exception:  # no NVML, or one that is too old: the figures are left out
        pass
    return None


def train(torch, run, recorder, rank=0, rendezvous=None):
    """The measured loop. Returns `measured`; its local variables are part of what is measured, so it is one function."""
    torch.cuda.init()
    if get(run, "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = True
    if get(run, "allocator_limit_bytes"):
        limit_allocator(torch, get(run, "allocator_limit_bytes"))
    if get(run, "allocator_conf"):
        torch.cuda.memory._set_allocator_settings(get(run, "allocator_conf"))
    if recorder:
        recorder.start()
    phases, peaks, n_params, step_s = [], [], None, []

    def mark(name):
        torch.cuda.synchronize()
        current, peak = statistics(torch, "current"), statistics(torch, "peak")
        peaks.append(peak)
        phases.append({"phase": name, "requested": current["requested"], "requested_peak": peak["requested"],
                       "allocated_peak": peak["allocated"], "reserved_peak": peak["reserved"]})
        if recorder:
            recorder.mark(name)
        torch.cuda.reset_peak_memory_stats()

    oom = False
    try:
        torch.manual_seed(0)
        if is_parallel(run):
            start_process_group(torch, run, rank, rendezvous)
        model = build_model(torch, run)
        n_params = sum(p.numel() for p in model.parameters())
        if get(run, "framework") == "hf-trainer":
            variants.train_with_trainer(torch, run, model, mark, step_s)
            raise Finished
        mark("model")
        if is_parallel(run):
            model = wrap_model(torch, run, model, rank)
            mark("wrap")
        engine, optimizer = None, None
        if is_deepspeed(run):
            engine = model
        else:
            optimizer = make_optimizer(torch, run, [p for p in model.parameters() if p.requires_grad], model)
        amp = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(get(run, "precision"))
        scaler = torch.amp.GradScaler("cuda") if amp is torch.float16 else None
        accumulate, batch, images = get(run, "accumulate"), run["batch"], run["model"]["model_type"] == "vit"
        vocab = 2 if images else run["model"].get("vocab_size") or getattr(model, "module", model).config.vocab_size
        held, forward = [], variants.ChunkedLoss(torch, model) if get(run, "loss") == "chunked" else model
        data = [torch.randint(0, vocab, (batch,) if images else (batch, seq), device="cuda") for seq in lengths(run)]
        pixels = []
        if images:
            size, channels = run["model"].get("image_size", 224), run["model"].get("num_channels", 3)
            dtype = next(model.parameters()).dtype
            pixels = [torch.randn(batch, channels, size, size, device="cuda", dtype=dtype) for _ in data]
        masks = {}
        if get(run, "attention_mask"):
            masks = {seq: make_mask(torch, run, batch, seq) for seq in dict.fromkeys(lengths(run))}
        mark("data")
        for it in range(get(run, "iterations")):
            started = time.perf_counter()
            for mb in range(accumulate):
                ids = data[(it * accumulate + mb) % len(data)]
                kw = {"attention_mask": masks[ids.shape[1]]} if masks else {}
                with sync_or_not(run, model, mb == accumulate - 1):
                    with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
                        if images:
                            out = model(pixel_values=pixels[(it * accumulate + mb) % len(data)], labels=ids)
                        else:
                            out = forward(input_ids=ids, labels=ids, **kw)
                        loss = out.loss
                    if not engine:
                        loss = loss / accumulate
                    mark("it%d.mb%d.fwd" % (it, mb))
                    if recorder:
                        recorder.watch(loss)
                    if engine:
                        engine.backward(loss)
                    else:
                        (scaler.scale(loss) if scaler else loss).backward()
                mark("it%d.mb%d.bwd" % (it, mb))
                if get(run, "retain_losses"):
                    held.append(out.loss)
                if get(run, "release_outputs"):
                    del out, loss
                if engine:
                    engine.step()
            if engine:
                mark("it%d.opt" % it)
                step_s.append(round(time.perf_counter() - started, 6))
                continue
            if get(run, "clip_grad_norm"):
                if scaler and optimizer:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                mark("it%d.clip" % it)
            if optimizer is not None:
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                mark("it%d.opt" % it)
                optimizer.zero_grad(set_to_none=get(run, "zero_grad") != "keep")
            else:
                model.zero_grad(set_to_none=get(run, "zero_grad") != "keep")
            if get(run, "empty_cache_each_step"):
                torch.cuda.empty_cache()
            mark("it%d.zero" % it)
            step_s.append(round(time.perf_counter() - started, 6))
    except Finished:
        pass
    except torch.OutOfMemoryError:
        oom = True
    peaks.append(statistics(torch, "peak"))  # of the phase that was not completed, if any
    peak = {name: max(p[name] for p in peaks) for name in STATISTICS}
    measured = {"oom": oom}
    for name in STATISTICS:
        measured[name + "_bytes"] = peak[name]
    used = used_by_process(os.getpid())
    if used is not None:
        other = used - statistics(torch, "current")["reserved"]
        measured["non_allocator_bytes"] = other
        measured["device_used_bytes"] = peak["reserved"] + other
    measured["alloc_retries"] = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    measured["params"] = n_params
    measured["step_s"] = step_s
    measured["phases"] = phases
    if recorder:
        recorder.stop()
    return measured


def apply_setting(torch, setting):
    kernels = setting.get("attention_kernels")
    if kernels:
        torch.backends.cuda.enable_flash_sdp("flash" in kernels)
        torch.backends.cuda.enable_mem_efficient_sdp("efficient" in kernels)
        torch.backends.cuda.enable_cudnn_sdp("cudnn" in kernels)
        torch.backends.cuda.enable_math_sdp("math" in kernels)


def other_rank(line, rank, rendezvous):
    """Body of the processes beside the measured one: the same run, unobserved. They end with it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    import torch

    apply_setting(torch, line.get("setting", {}))
    train(torch, line["run"], None, rank, rendezvous)


def start_other_ranks(line, rendezvous):
    if not is_parallel(line["run"]) or get(line["run"], "collectives") == "none":
        return []
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=other_rank, args=(line, rank, rendezvous)) for rank in range(1, get(line["run"], "world"))]
    for process in others:
        process.start()
    return others


def child(connection, line, trace_path, labels):
    """Body of a fresh process: measure one run and send the result."""
    try:
        setting = line.get("setting", {})
        os.environ.update(setting.get("env", {}))
        rendezvous = os.path.join(tempfile.gettempdir(), "ranks-%d" % os.getpid())
        others = start_other_ranks(line, rendezvous)
        import torch

        import events

        apply_setting(torch, setting)
        # Taking Python stacks breaks checkpointing: the exception that stops a recomputation early gets lost.
        labels = labels and get(line["run"], "checkpoint") == "none" and get(line["run"], "loss") != "chunked"
        recorder = events.Recorder(labels) if trace_path else None
        result = {"measured": train(torch, line["run"], recorder, 0, rendezvous)}
        for process in others:
            process.join(10)
            process.kill()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(rendezvous)
        if recorder:
            recorder.write(trace_path, {key: line[key] for key in ("id", "run", "setting") if key in line})
    except Exception as error:
        result = {"error": repr(error)[:500], "traceback": traceback.format_exc()[-1500:]}
    connection.send(result)
    connection.close()
    if is_parallel(line["run"]):
        os._exit(0)  # libraries of process groups may wait for each other at exit


# What is done with a line: generators that ask for runs and are sent their results


def one_run(line):
    result = yield line["run"]
    return result


def largest_batch(line):
    """The largest batch that trains: doubling from 1, then halving the interval between what fits and what does not."""
    fits, fails, tries = 0, None, {}
    while fails is None or fails - fits > 1:
        batch = max(1, 2 * fits) if fails is None else (fits + fails) // 2
        result = yield dict(line["run"], batch=batch)
        if "measured" not in result:
            return result
        measured = result["measured"]
        tries[str(batch)] = {"fits": not measured["oom"], "reserved_bytes": measured["reserved_bytes"],
                             "alloc_retries": measured["alloc_retries"]}
        if measured["oom"]:
            fails = batch
        else:
            fits = batch
    return {"measured": {"max_batch": fits, "tries": tries}}


class Pool:
    """Runs side by side, each in a process forked from this one, which has imported torch but not started CUDA."""

    def __init__(self, jobs, capacity, timeout, trace_dir, labels):
        self.fork = multiprocessing.get_context("fork")
        self.jobs, self.capacity, self.timeout = jobs, capacity, timeout
        self.trace_dir, self.labels = trace_dir, labels
        self.running = {}  # connection -> (process, line, task, bytes of the card, deadline)

    def measure(self, lines, task_of, report):
        """Drive the task of every line to its end; report(line, result) is called as each ends."""
        ready = []
        for line in lines:
            task = task_of(line)
            ready.append((line, task, next(task)))
        while ready or self.running:
            for entry in list(ready):
                if self.has_room(entry[0]):
                    ready.remove(entry)
                    self.start(*entry)
            for connection in multiprocessing.connection.wait(list(self.running), timeout=1.0):
                line, task, result = self.finish(connection)
                try:
                    ready.insert(0, (line, task, task.send(result)))
                except StopIteration as end:
                    report(line, end.value)
            self.stop_late()

    def expected(self, line):
        return line.get("expect_bytes", self.capacity // self.jobs)

    def has_room(self, line):
        taken = sum(entry[3] for entry in self.running.values())
        fits = taken + self.expected(line) <= self.capacity or not self.running
        return len(self.running) < self.jobs and fits

    def start(self, line, task, run):
        ours, theirs = self.fork.Pipe(duplex=False)
        trace_path = os.path.join(self.trace_dir, line["id"] + ".txt.gz") if self.trace_dir else None
        process = self.fork.Process(target=child, args=(theirs, dict(line, run=run), trace_path, self.labels))
        process.start()
        theirs.close()
        self.running[ours] = (process, line, task, self.expected(line), time.monotonic() + self.timeout)

    def finish(self, connection):
        process, line, task, _, deadline = self.running.pop(connection)
        try:
            result = connection.recv()
        except EOFError:
            process.join()
            late = time.monotonic() >= deadline
            result = {"error": "stopped after %d s" % self.timeout if late else "exit status %s" % process.exitcode}
        connection.close()
        process.join()
        return line, task, result

    def stop_late(self):
        for process, _, _, _, deadline in self.running.values():
            if time.monotonic() >= deadline:
                process.kill()


class Writer:
    """The output file: lines are appended as they come, and put into the order of the input at the end."""

    def __init__(self, path, lines):
        self.path, self.order, self.done = path, [line["id"] for line in lines], {}
        self.failed = 0
        open(path, "w", encoding="utf-8").close()

    def add(self, line, result):
        kept = {key: line[key] for key in ("id", "run", "setting") if key in line}
        kept.update({key: value for key, value in result.items() if key != "traceback"})
        self.done[line["id"]] = json.dumps(kept)
        with open(self.path, "a", encoding="utf-8") as out:
            out.write(self.done[line["id"]] + "\n")
        print("%s: %s" % (line["id"], summary(result)), file=sys.stderr, flush=True)
        if "error" in result:
            self.failed += 1
            print(result.get("traceback", ""), file=sys.stderr, flush=True)

    def close(self):
        temporary = self.path + ".part"
        with open(temporary, "w", encoding="utf-8") as out:
            out.writelines(self.done[name] + "\n" for name in self.order if name in self.done)
        os.replace(temporary, self.path)


def summary(result):
    if "error" in result:
        return "failed: " + result["error"]
    measured = result["measured"]
    if "max_batch" in measured:
        return "largest batch %d" % measured["max_batch"]
    text = "reserved %.3f GiB" % (measured["reserved_bytes"] / 2**30)
    return "out of memory after %d phases, %s" % (len(measured["phases"]), text) if measured["oom"] else text


def card_bytes():
    """Size of the card without starting CUDA in this process, which is going to fork."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    except Exception:  # without NVML the runs are only counted, not weighed
        return 1 << 60


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("specs", help="JSON Lines file with run specs, or - for standard input")
    parser.add_argument("-o", "--output", default="measured.jsonl", help="measured runs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--memory-gib", type=float, metavar="GIB",
                        help="how much of the card runs side by side may take together (default: 95 %% of it)")
    parser.add_argument("--trace", metavar="DIR", help="write the allocator events of each run to DIR/ID.txt.gz")
    parser.add_argument("--labels", action="store_true", help="with --trace: say where each event comes from")
    parser.add_argument("--max-batch", action="store_true",
                        help="find the largest batch that trains under allocator_limit_bytes instead")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS",
                        help="a run that takes longer is stopped and fails (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="check the specs and print them, measure nothing")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    try:
        lines = read_lines(arguments.specs)
    except (SpecError, OSError) as error:
        print("measure.py: %s" % error, file=sys.stderr)
        return 2
    if arguments.max_batch:
        for line in lines:
            line["run"].setdefault("batch", 1)
    missing = ["%s: %s: missing" % (line["id"], key) for line in lines for key in REQUIRED if key not in line["run"]]
    if missing:
        print("measure.py: " + "\n".join(missing), file=sys.stderr)
        return 2
    if arguments.dry_run:
        for line in lines:
            print(json.dumps(line))
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch  # noqa: F401  imported once here, so that the forked runs need not
    import transformers

    for name in MODEL_CLASSES.values():
        getattr(transformers, name)
    gc.freeze()
    if arguments.trace:
        os.makedirs(arguments.trace, exist_ok=True)
    writer = Writer(arguments.output, lines)
    capacity = int(arguments.memory_gib * 2**30) if arguments.memory_gib else int(0.95 * card_bytes())
    pool = Pool(arguments.jobs, capacity, arguments.timeout, arguments.trace, arguments.labels)
    pool.measure(lines, largest_batch if arguments.max_batch else one_run, writer.add)
    writer.close()
    return 3 if writer.failed else 0


if __name__ == "__main__":
    sys.exit(main())
