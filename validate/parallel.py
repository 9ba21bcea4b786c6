#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Choose data-parallel runs to measure: writes run specs for measure.py to standard output.

  parallel.py options                     options of DDP, ZeroRedundancyOptimizer and FSDP2, one at a time, 2-layer models
  parallel.py deepspeed                   DeepSpeed's stages and options, 2-layer and 6-layer models
  parallel.py ranks --seed 1 --count 8    random models and options over --world GPUs, through NCCL
  parallel.py engines --seed 1 --count 8  random models under random ds_config.json files
  parallel.py hooks --seed 1 --count 8    random models under DDP with a compressing hook

The same seed gives the same lines. All but `ranks` need one GPU: their groups have one rank, or move nothing.
"""
import argparse
import json
import random
import sys

import choose

ADAMW = {"type": "AdamW", "params": {"lr": 0.0001, "torch_adam": True}}
SMALL_BUCKETS = {"reduce_bucket_size": 500000, "allgather_bucket_size": 700000}
SMALL_GATHERS = {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1000000,
                 "stage3_prefetch_bucket_size": 300000, "reduce_bucket_size": 500000}
LLAMA_1B = {"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 2048,
            "tie_word_embeddings": True}


def model_of(family, layers=2):
    if family == "gpt2":
        return {"model_type": "gpt2", "n_layer": layers, "n_embd": 384, "n_head": 6, "vocab_size": 5003, "n_positions": 256,
                "n_inner": 1184, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": 384, "num_attention_heads": 6,
            "num_key_value_heads": 2, "intermediate_size": 1184, "vocab_size": 5003, "max_position_embeddings": 256,
            "tie_word_embeddings": False}


def line(name, model, parallel, world=1, **run):
    spec = {"model": model, "gpu": "H200-141G", "batch": 3, "seq": 192, "precision": "bf16", "checkpoint": "none",
            "optimizer": "adamw-foreach", "accumulate": 1, "iterations": 4, "clip_grad_norm": False,
            "data_parallel": parallel, "world": world, "gpus_per_node": world}
    if world > 1:
        spec["collectives"] = "none"
    return {"id": name, "run": dict(spec, **run), "expect_bytes": 6 * choose.GIB}


def both(lines, name, parallel, layers=2, suffix="", **run):
    """The same for both families; `suffix` of the id stands behind the family."""
    for family in ("gpt2", "llama"):
        lines.append(line("%s-%s%s" % (name, family, suffix), model_of(family, layers), parallel, **run))


def choose_options():
    lines = []
    view = {"gradient_as_bucket_view": True}
    for precision in ("amp-bf16", "bf16"):
        more = {"precision": precision, "suffix": "-" + precision}
        both(lines, "ddp-static", "ddp", ddp={"static_graph": True}, **more)
        both(lines, "ddp-static-view", "ddp", ddp={"static_graph": True, **view}, **more)
        both(lines, "ddp-nosync", "ddp", ddp={"no_sync": True}, accumulate=3, **more)
        both(lines, "ddp-nosync-view", "ddp", ddp={**view, "no_sync": True}, accumulate=3, **more)
        both(lines, "ddp-unused", "ddp", ddp={"find_unused_parameters": True}, **more)
    both(lines, "ddp-static-acc", "ddp", ddp={"static_graph": True}, accumulate=2)
    both(lines, "ddp-static-reent", "ddp", ddp={"static_graph": True}, checkpoint="full-reentrant")
    both(lines, "ddp-unused-view-ckpt", "ddp", checkpoint="full",
         ddp={"find_unused_parameters": True, **view, "bucket_cap_mb": 1})
    both(lines, "ddp-fp16hook", "ddp", ddp={"compression": "fp16"}, precision="fp32")
    both(lines, "ddp-bf16hook-view", "ddp", ddp={**view, "compression": "bf16"}, precision="amp-bf16")
    both(lines, "zero1-rank0", "zero1", ddp={})

    def fsdp(name, suffix="", reshard=True, mixed=False, more=None, **run):
        both(lines, "fsdp-" + name, "fsdp2", suffix=suffix, world=8,
             fsdp={"reshard_after_forward": reshard, "mixed_precision": mixed, **(more or {})}, **run)

    for optimizer in ("adamw-forloop", "adamw-fused", "sgd-momentum"):
        fsdp(optimizer, optimizer=optimizer, precision="fp32")
    fsdp("bf16mp", mixed=True, clip_grad_norm=True)
    fsdp("fp16", precision="amp-fp16", clip_grad_norm=True)
    fsdp("fused-fp16", precision="amp-fp16", optimizer="adamw-fused")
    fsdp("hsdp", "-bf16", more={"replicas": 2})
    fsdp("hsdp", "-bf16mp", more={"replicas": 2}, mixed=True)
    fsdp("keep-ckpt", reshard=False, checkpoint="full")
    fsdp("offload", "-bf16", more={"offload": True})
    fsdp("offload", "-fp32mp", more={"offload": True}, mixed=True, precision="fp32", accumulate=2)
    fsdp("reent", checkpoint="full-reentrant")
    fsdp("reent-acc", checkpoint="full-reentrant", precision="amp-bf16", accumulate=2)
    fsdp("reshard2", "-fp32mp", reshard=2, mixed=True, precision="fp32")
    fsdp("reshard4", "-bf16", reshard=4)
    fsdp("reshard4", "-ckpt", reshard=4, checkpoint="full")
    for world in (2, 64):
        lines.append(line("fsdp-1b-w%d" % world, LLAMA_1B, "fsdp2", world, batch=2, seq=1024, precision="fp32", iterations=3,
                          fsdp={"reshard_after_forward": True, "mixed_precision": True}))
        lines[-1]["expect_bytes"] = 30 * choose.GIB
    return lines


def choose_deepspeed():
    lines = []

    def add(stage, suffix, precision="bf16", zero=None, world=1, layers=2, clipping=None, **run):
        config = {"zero_optimization": {"stage": stage, **(zero or {})}, "optimizer": ADAMW,
                  "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000000}
        if precision != "fp32":
            config[precision] = {"enabled": True}
        if clipping:
            config["gradient_clipping"] = clipping
        both(lines, "ds%d" % stage, "deepspeed-zero%d" % stage, layers=layers, suffix="-%s%s" % (precision, suffix),
             world=world, precision=precision, deepspeed=config, **run)

    for stage in (1, 2, 3):
        for precision in ("bf16", "fp16", "fp32"):
            add(stage, "", precision)
        add(stage, "-acc2", accumulate=2)
        add(stage, "-small", zero={**SMALL_BUCKETS, "overlap_comm": True, "contiguous_gradients": True})
        add(stage, "-w2", world=2)
        add(stage, "-w8", world=8)
        add(stage, "-w8", "fp32", SMALL_BUCKETS, 8)
        add(stage, "-acc2-w8", zero=SMALL_BUCKETS, world=8, accumulate=2)
    add(1, "-12l", zero={"reduce_bucket_size": 2000000, "allgather_bucket_size": 2000000}, world=4, layers=6)
    add(2, "-clip", clipping=1.0)
    add(2, "-nocontig", zero={"contiguous_gradients": False, "overlap_comm": False, "reduce_bucket_size": 500000})
    add(2, "-nooverlap-w8", zero={"overlap_comm": False, **SMALL_BUCKETS}, world=8)
    add(2, "-offload-w2", zero={"offload_optimizer": {"device": "cpu"}}, world=2)
    six = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 2000000, "reduce_bucket_size": 2000000}
    add(3, "-12l", zero=six, world=4, layers=6)
    add(3, "-12lckpt", zero=six, world=4, layers=6, checkpoint="full")
    add(3, "-ckpt", zero={"stage3_param_persistence_threshold": 0}, checkpoint="full")
    add(3, "-offload-w2", zero={"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}, world=2)
    add(3, "-persist0", zero=SMALL_GATHERS)
    add(3, "-persist0-w8", zero=SMALL_GATHERS, world=8)
    add(3, "-persist0dflt-w8", zero={"stage3_param_persistence_threshold": 0}, world=8)
    return lines


def choose_ranks(r, count, world, prefix):
    """Models and options as `choose.py runs` takes them; what the process group decides is taken in turn."""
    lines = []
    while len(lines) < count:
        family = choose.FAMILIES[len(lines) % len(choose.FAMILIES)]
        run = choose.make_run(r, family)
        kind = ("ddp", "fsdp2", "ddp", "zero1")[len(lines) % 4]
        for key in ("allocator_conf", "init_device", "use_cache", "tf32", "retain_losses", "empty_cache_each_step"):
            run.pop(key, None)
        run.update({"attention": "sdpa", "data_parallel": kind, "world": world, "gpus_per_node": world})
        if run["optimizer"] == "none" or kind == "zero1":
            run["optimizer"] = "adamw-foreach"
        if kind == "fsdp2":
            run["fsdp"] = {"reshard_after_forward": r.choice((True, True, False)), "mixed_precision": r.random() < 0.5}
        else:
            run["ddp"] = r.choice(({}, {}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 50}, {"static_graph": True}))
        rough = choose.rough_bytes(run)
        if choose.GIB <= rough <= 8 * choose.GIB:
            lines.append({"id": "%s-%02d-%s-%s" % (prefix, len(lines), kind, family), "run": run,
                          "expect_bytes": 4 * choose.GIB + 2 * rough})
    return lines


def of_reasonable_size(lines, name, run, more=0):
    rough = choose.rough_bytes(run)
    if choose.GIB <= rough <= 8 * choose.GIB:
        lines.append({"id": "%s-%02d-%s" % (name, len(lines), run["model"]["model_type"]), "run": run,
                      "expect_bytes": 4 * choose.GIB + 2 * rough + more})


def plain_run(r, family):
    """A run as `choose.py runs` takes them, without what has nothing to do with ranks."""
    run = choose.make_run(r, family)
    for key in ("allocator_conf", "init_device", "use_cache", "tf32", "retain_losses", "empty_cache_each_step", "zero_grad"):
        run.pop(key, None)
    return dict(run, attention="sdpa", iterations=4, checkpoint=r.choice(("none", "none", "full")))


def zero_options(r, stage):
    """What people write into zero_optimization."""
    size = r.choice((500000000, 500000000, 200000000, 50000000, 5000000))
    zero = {"stage": stage, "reduce_bucket_size": size, "allgather_bucket_size": size}
    if r.random() < 0.5:
        zero["overlap_comm"] = r.random() < 0.6
    if r.random() < 0.3:
        zero["contiguous_gradients"] = stage == 3 or r.random() < 0.6
    if stage == 3 and r.random() < 0.6:
        zero.update({"stage3_prefetch_bucket_size": r.choice((50000000, 5000000, 1000000)),
                     "stage3_param_persistence_threshold": r.choice((100000, 1000000, 10000, 0)),
                     "stage3_max_live_parameters": r.choice((1000000000, 30000000)),
                     "stage3_max_reuse_distance": r.choice((1000000000, 10000000))})
    if r.random() < 0.2:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3 and r.random() < 0.5:
            zero["offload_param"] = {"device": "cpu"}
    return zero


def choose_engines(r, count, prefix):
    lines = []
    while len(lines) < count:
        run, stage = plain_run(r, choose.FAMILIES[len(lines) % len(choose.FAMILIES)]), len(lines) % 3 + 1
        world = r.choice((1, 2, 4, 8, 16))
        config = {"zero_optimization": zero_options(r, stage), "optimizer": ADAMW, "zero_allow_untested_optimizer": True,
                  "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000000}
        precision = r.choice(("bf16", "bf16", "fp16", "fp32"))
        if precision != "fp32":
            config[precision] = {"enabled": True}
        if r.random() < 0.5:
            config["gradient_clipping"] = 1.0
        run.pop("clip_grad_norm", None)
        run.update({"precision": precision, "optimizer": "adamw-foreach", "deepspeed": config, "world": world,
                    "data_parallel": "deepspeed-zero%d" % stage, "gpus_per_node": min(world, 8)})
        if world > 1:
            run["collectives"] = "none"
        of_reasonable_size(lines, "%s-ds%d-w%d" % (prefix, stage, world), run, 4 * choose.GIB)
    return lines


def choose_hooks(r, count, prefix):
    lines = []
    while len(lines) < count:
        run = plain_run(r, choose.FAMILIES[len(lines) % len(choose.FAMILIES)])
        options = {"compression": ("fp16", "bf16")[len(lines) % 2]}
        if r.random() < 0.5:
            options["gradient_as_bucket_view"] = True
        if r.random() < 0.3:
            options["bucket_cap_mb"] = r.choice((5, 50, 100))
        if run["accumulate"] > 1 and r.random() < 0.5:
            options["no_sync"] = True
        if run["optimizer"] == "none":
            run["optimizer"] = "adamw-foreach"
        run.update({"data_parallel": "ddp", "world": 1, "gpus_per_node": 1, "ddp": options})
        of_reasonable_size(lines, prefix, run)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("options", "deepspeed", "ranks", "engines", "hooks"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--world", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "options":
        lines = choose_options()
    elif arguments.what == "deepspeed":
        lines = choose_deepspeed()
    elif arguments.what == "ranks":
        lines = choose_ranks(random.Random(arguments.seed), arguments.count, arguments.world, "p%d" % arguments.seed)
    elif arguments.what == "engines":
        lines = choose_engines(random.Random(arguments.seed), arguments.count, "e%d" % arguments.seed)
    else:
        lines = choose_hooks(random.Random(arguments.seed), arguments.count, "h%d" % arguments.seed)
    for each in lines:
        print(json.dumps(each))
    return 0


if __name__ == "__main__":
    sys.exit(main())
