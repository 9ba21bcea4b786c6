#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Choose what to measure: writes run specs for measure.py or cases for operators.py to standard output.

  choose.py runs --seed 1 --count 130     random models, shapes and options of all families
  choose.py parts --seed 1 --count 48     parts of blocks recomputed, blocks on the host
  choose.py caps MEASURED --seed 1        measured runs again, under caps near what they needed
  choose.py batches --seed 1 --count 6    jobs under a cap, for measure.py --max-batch
  choose.py kernels                       attention kernels forced one by one, masks, windows, other corner cases
  choose.py operators                     shapes of single operators
  choose.py huge                          operators on tensors of more than 2^31 elements
  choose.py shared                        attention kernels to profile

The same seed gives the same lines. Sizes are kept to what a few seconds and a few GiB are enough for; the estimate that
does so is rough and is for this only.
"""
import argparse
import json
import random
import sys

GIB = 1 << 30
FAMILIES = ("gpt2", "bert", "llama", "mistral", "qwen2", "qwen3")
ALLOCATOR_CONFS = (
    "expandable_segments:True",
    "expandable_segments:True",
    "max_split_size_mb:{split}",
    "roundup_power2_divisions:{divisions}",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[1:4,16:2,64:8,>:1]",
    "max_split_size_mb:{split},max_non_split_rounding_mb:{rounding}",
    "large_segment_size_mb:{large}",
    "max_split_size_mb:{split},roundup_power2_divisions:{divisions}",
)


# Models


def gpt2(r):
    heads, dim = r.choice((4, 6, 8, 12, 16)), r.choice((32, 48, 64, 64, 80, 96, 128))
    dropout = r.choice((0.0, 0.1))
    return {"model_type": "gpt2", "n_layer": r.randint(2, 16), "n_embd": heads * dim, "n_head": heads,
            "vocab_size": r.choice((50257, 50304, 32000, 30011, 8192, 5003)), "n_positions": r.choice((1024, 2048, 4096)),
            "n_inner": r.choice((None, None, 3 * heads * dim + 8)),
            "activation_function": r.choice(("gelu_new", "gelu_new", "gelu_new", "gelu", "relu")),
            "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
            "tie_word_embeddings": r.random() < 0.8}


def bert(r):
    heads, dim = r.choice((4, 8, 12, 16)), r.choice((32, 48, 64, 64, 96))
    dropout = r.choice((0.0, 0.1))
    return {"model_type": "bert", "num_hidden_layers": r.randint(2, 16), "hidden_size": heads * dim,
            "num_attention_heads": heads, "intermediate_size": r.choice((4, 3)) * heads * dim,
            "vocab_size": r.choice((30522, 28996, 21128, 119547)), "hidden_act": "gelu", "type_vocab_size": r.choice((2, 2, 1)),
            "max_position_embeddings": r.choice((512, 1024, 2048)), "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout, "tie_word_embeddings": True}


def rotary(r, family):
    groups, kv_heads, dim = r.choice((1, 2, 4, 8)), r.choice((1, 2, 4)), r.choice((32, 64, 64, 80, 96, 128, 128))
    heads = groups * kv_heads
    if heads < 4:
        heads, kv_heads = 4 * heads, 4 * kv_heads
    hidden = heads * dim if r.random() < 0.8 else 64 * r.randint(8, 32)
    model = {"model_type": family, "num_hidden_layers": r.randint(2, 14), "hidden_size": hidden,
             "num_attention_heads": heads, "num_key_value_heads": kv_heads,
             "intermediate_size": 32 * (hidden * r.choice((8, 11, 14)) // 96), "vocab_size":
             r.choice((32000, 32000, 32768, 49152, 65024, 128256, 151936)), "max_position_embeddings": 8192,
             "hidden_act": "silu", "attention_dropout": r.choice((0.0, 0.0, 0.0, 0.1)),
             "tie_word_embeddings": r.random() < 0.4}
    if family == "qwen3" or (hidden != heads * dim and family != "qwen2"):
        model["head_dim"] = dim
    elif hidden != heads * dim:
        model["hidden_size"] = heads * dim
    if family == "llama":
        model["attention_bias"] = r.random() < 0.15
        model["mlp_bias"] = r.random() < 0.1
    if family == "mistral":
        model["sliding_window"] = r.choice((None, 4096, 4096, 1024, 512))
    return model


def make_model(r, family):
    return gpt2(r) if family == "gpt2" else bert(r) if family == "bert" else rotary(r, family)


# Runs


def make_shape(r, model):
    longest = min(4096, model.get("n_positions") or model["max_position_embeddings"])
    seq = r.choice((64, 100, 128, 190, 256, 333, 384, 500, 512, 512, 640, 768, 777, 1000, 1024, 1024, 1025, 1536, 2000,
                    2048, 2048, 3000, 4096))
    batch = r.choice((1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 12, 16, 24))
    return batch, min(seq, longest)


def maybe(r, run, key, chance, *values):
    if r.random() < chance:
        run[key] = r.choice(values)


def make_run(r, family):
    model = make_model(r, family)
    batch, seq = make_shape(r, model)
    n_layers = model.get("n_layer") or model["num_hidden_layers"]
    run = {"model": model, "gpu": "H200-141G", "framework": "hf", "batch": batch, "seq": seq,
           "precision": r.choice(("amp-bf16", "amp-bf16", "amp-bf16", "bf16", "bf16", "fp32", "amp-fp16", "amp-fp16", "fp16")),
           "attention": "eager" if r.random() < 0.3 else "sdpa",
           "checkpoint": r.choice(("none",) * 6 + ("full", "full", "full-reentrant", "layers")),
           "optimizer": r.choice(("adamw-foreach",) * 6 + ("adamw-fused", "adamw-fused", "adamw-forloop", "sgd",
                                                           "sgd-momentum", "adafactor", "none")),
           "accumulate": r.choice((1, 1, 1, 2, 3)), "iterations": 3}
    if run["checkpoint"] == "layers":
        run["checkpoint"] = {"layers": sorted(r.sample(range(n_layers), r.randint(1, n_layers - 1)))}
    maybe(r, run, "tf32", 0.1, True)
    maybe(r, run, "clip_grad_norm", 0.25, True)
    maybe(r, run, "zero_grad", 0.15, "keep")
    maybe(r, run, "release_outputs", 0.2, True)
    maybe(r, run, "retain_losses", 0.1, True)
    maybe(r, run, "attention_mask", 0.2, True, True, "padded")
    maybe(r, run, "use_cache", 0.1 if family != "bert" else 0.0, True)
    maybe(r, run, "empty_cache_each_step", 0.1, True)
    maybe(r, run, "init_device", 0.15, "cpu")
    maybe(r, run, "allocator_conf", 0.3, *ALLOCATOR_CONFS)
    if "allocator_conf" in run:
        run["allocator_conf"] = run["allocator_conf"].format(
            split=r.choice((20, 32, 64, 100, 128, 256, 512)), divisions=r.choice((2, 4, 8, 16)),
            rounding=r.choice((20, 64, 128)), large=r.choice((12, 16, 32, 64)))
    return run


def rough_bytes(run):
    """A rough peak, to leave out what is too large or too small to be worth a process."""
    m, n = run["model"], run["batch"] * run["seq"]
    hidden = m.get("n_embd") or m["hidden_size"]
    layers, heads = m.get("n_layer") or m["num_hidden_layers"], m.get("n_head") or m["num_attention_heads"]
    inner = m.get("n_inner") or m.get("intermediate_size") or 4 * hidden
    params = layers * (4 * hidden * hidden + 3 * hidden * inner) + 2 * m["vocab_size"] * hidden
    width = 2 if run["precision"] in ("bf16", "fp16") else 4
    activations = layers * n * (24 * hidden + 6 * inner) * (2 if width == 2 else 4)
    if run["attention"] == "eager" or (width == 4 and run["precision"] == "fp32"):
        activations += layers * 12 * run["batch"] * heads * run["seq"] ** 2
    if run["checkpoint"] in ("full", "full-reentrant"):
        activations //= layers
    return params * width * 4 + activations + 18 * n * m["vocab_size"]


def choose_runs(r, count, smallest, largest, prefix):
    lines = []
    while len(lines) < count:
        family = FAMILIES[len(lines) % len(FAMILIES)]
        run = make_run(r, family)
        rough = rough_bytes(run)
        if smallest <= rough <= largest:
            lines.append({"id": "%s-%03d-%s" % (prefix, len(lines), family), "run": run,
                          "expect_bytes": 2 * GIB + rough * 3 // 2})
    return lines


# Parts of blocks, blocks on the host

PART_FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "bert", "mistral")


def some(r, layers):
    return sorted(r.sample(layers, r.randint(1, len(layers)))) if layers else []


def choose_for_blocks(r, kind, n):
    """The values of `checkpoint` and `offload` of one run."""
    everyone = list(range(n))
    chosen = r.choice(("all", some(r, everyone), {"every": 2}, {"first": r.randint(1, n)}))
    if kind in ("attention", "mlp"):
        return {kind: chosen}, "none"
    if kind == "both":
        return {"attention": chosen, "mlp": some(r, everyone)}, "none"
    if kind == "offload":
        return "none", {"layers": chosen} if isinstance(chosen, list) else chosen
    parts = {name: [] for name in ("layers", "attention", "mlp", "offload", "kept")}
    for layer in everyone:
        parts[r.choice(tuple(parts))].append(layer)
    checkpoint = {name: parts[name] for name in ("layers", "attention", "mlp") if parts[name]}
    return checkpoint or "none", {"layers": parts["offload"]} if parts["offload"] else "none"


def choose_parts(r, count, smallest, largest):
    kinds = ("attention", "mlp", "offload", "both", "mixed", "offload")
    lines = []
    while len(lines) < count:
        family, kind = PART_FAMILIES[len(lines) // len(kinds) % len(PART_FAMILIES)], kinds[len(lines) % len(kinds)]
        run = make_run(r, family)
        n = run["model"].get("n_layer") or run["model"]["num_hidden_layers"]
        rough = rough_bytes(run)
        if not smallest <= rough <= largest or n > 10:
            continue
        run.pop("use_cache", None)
        run["checkpoint"], run["offload"] = choose_for_blocks(r, kind, n)
        lines.append({"id": "%s-%02d-%s" % (kind, len(lines), family), "run": run, "expect_bytes": 2 * GIB + rough * 3 // 2})
    return lines


def choose_caps(r, path, count):
    """Measured runs under caps from just below what was allocated to just above what was reserved."""
    with open(path, encoding="utf-8") as text:
        measured = [json.loads(line) for line in text]
    measured = [m for m in measured if not m["measured"]["oom"] and "setting" not in m
                and "allocator_limit_bytes" not in m["run"]]
    lines = []
    for i, line in enumerate(r.sample(measured, min(count, len(measured)))):
        m = line["measured"]
        slack = m["reserved_bytes"] - m["allocated_bytes"]
        limit = int(m["allocated_bytes"] + r.choice((-0.5, 0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.0, 1.2)) * slack)
        run = dict(line["run"], allocator_limit_bytes=limit >> 20 << 20)
        if r.random() < 0.4:
            threshold = "garbage_collection_threshold:%s" % r.choice(("0.5", "0.6", "0.8", "0.9"))
            conf = run.get("allocator_conf", "")
            run["allocator_conf"] = conf + "," + threshold if conf else threshold
        lines.append({"id": "%s-cap%02d" % (line["id"], i), "run": run, "expect_bytes": limit + 2 * GIB})
    return lines


def choose_batches(r, count):
    lines = []
    while len(lines) < count:
        run = make_run(r, FAMILIES[len(lines) % len(FAMILIES)])
        n_layers = run["model"].get("n_layer") or run["model"]["num_hidden_layers"]
        one = rough_bytes(dict(run, batch=1))
        if n_layers > 8 or one > GIB or run["seq"] < 256 or run["seq"] > 2048 or run.get("attention_mask") == "padded":
            continue
        limit = r.choice((2, 3, 4, 6)) * GIB
        del run["batch"]
        run.update(iterations=2, allocator_limit_bytes=limit)
        lines.append({"id": "batch-%02d-%s" % (len(lines), run["model"]["model_type"]), "run": run,
                      "expect_bytes": limit + GIB})
    return lines


# Corner cases, with 2-layer models


def small(family, heads=4, kv_heads=2, dim=64, hidden=None, vocab=5003, dropout=0.0, layers=2, **more):
    hidden = hidden or heads * dim
    if family == "gpt2":
        model = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_inner": 3 * hidden + 32, "vocab_size": vocab,
                 "n_positions": 2048, "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    elif family == "bert":
        model = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
                 "intermediate_size": 3 * hidden + 32, "vocab_size": vocab, "max_position_embeddings": 2048,
                 "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    else:
        model = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
                 "num_key_value_heads": kv_heads, "intermediate_size": 3 * hidden + 32, "vocab_size": vocab,
                 "max_position_embeddings": 8192, "attention_dropout": dropout}
        if family != "qwen2":
            model["head_dim"] = dim
    return dict({"model_type": family}, **model, **more)


class Corner:
    """Collects the lines of choose_kernels()."""

    def __init__(self):
        self.lines = []

    def add(self, name, model, setting=None, **run):
        spec = {"model": model, "gpu": "H200-141G", "framework": "hf", "batch": 3, "seq": 192, "precision": "bf16",
                "attention": "sdpa", "checkpoint": "none", "optimizer": "adamw-foreach", "accumulate": 1, "iterations": 2}
        line = {"id": name, "run": dict(spec, **run), "expect_bytes": 3 * GIB}
        if setting:
            line["setting"] = setting
        self.lines.append(line)


FLASH = {"env": {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}}
EFFICIENT = {"attention_kernels": ["efficient", "math"]}
OLD_WORKSPACE = {"env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}}


def choose_kernels():
    corner = Corner()
    for precision in ("bf16", "fp16", "amp-bf16", "amp-fp16"):
        for family in ("gpt2", "llama", "bert"):
            corner.add("flash-%s-%s" % (family, precision), small(family), FLASH, precision=precision)
    for dim in (32, 40, 80, 96, 128, 160, 256, 100):
        corner.add("flash-llama-d%d" % dim, small("llama", dim=dim), FLASH)
        corner.add("flash-gpt2-d%d" % dim, small("gpt2", dim=dim, dropout=0.1), FLASH, precision="amp-bf16")
    for family in ("gpt2", "llama", "bert", "qwen3"):
        corner.add("flash-%s-seq190" % family, small(family, dropout=0.1), FLASH, seq=190)
        corner.add("flash-%s-full" % family, small(family), FLASH, seq=200, checkpoint="full")
        corner.add("flash-%s-reentrant" % family, small(family), FLASH, seq=200, checkpoint="full-reentrant")
    corner.add("flash-llama-split", small("llama", heads=2, kv_heads=1), FLASH, batch=1, seq=1024)
    corner.add("flash-gpt2-padded", small("gpt2"), FLASH, attention_mask="padded")
    corner.add("flash-llama-padded", small("llama"), FLASH, attention_mask="padded")
    corner.add("flash-bert-padded", small("bert"), FLASH, attention_mask="padded", seq=190)
    corner.add("flash-mistral-window", small("mistral", sliding_window=128), FLASH)
    for dim in (64, 80, 96, 128, 100):
        for seq in (192, 190):
            corner.add("efficient-gpt2-d%d-s%d" % (dim, seq), small("gpt2", dim=dim), EFFICIENT, seq=seq, precision="fp16")
    for family in ("gpt2", "bert", "llama"):
        for precision in ("amp-fp16", "fp16"):
            corner.add("efficient-%s-%s" % (family, precision), small(family, dropout=0.1), EFFICIENT, precision=precision)
        corner.add("efficient-%s-padded" % family, small(family), EFFICIENT, precision="amp-fp16", attention_mask="padded")
        corner.add("efficient-%s-padded-s190" % family, small(family), EFFICIENT, precision="amp-fp16",
                   attention_mask="padded", seq=190)
        corner.add("efficient-%s-full" % family, small(family), EFFICIENT, precision="amp-fp16", checkpoint="full")
    corner.add("efficient-llama-g1", small("llama", kv_heads=4), EFFICIENT, precision="amp-fp16", seq=190)
    for dim in (64, 96, 128, 160):
        corner.add("fp32-gpt2-d%d-dropout" % dim, small("gpt2", dim=dim, dropout=0.1), precision="fp32", seq=190)
    corner.add("fp32-llama-g1-padded", small("llama", kv_heads=4), precision="fp32", attention_mask="padded", seq=190)
    corner.add("fp32-llama-g2-padded", small("llama"), precision="fp32", attention_mask="padded", seq=190)
    corner.add("fp32-bert-padded", small("bert"), precision="fp32", attention_mask="padded", seq=192)
    for family in ("gpt2", "llama"):
        corner.add("workspace-%s" % family, small(family), OLD_WORKSPACE, precision="amp-bf16")
        corner.add("workspace-%s-full" % family, small(family), OLD_WORKSPACE, checkpoint="full")
    for attention in ("sdpa", "eager"):
        for precision in ("amp-bf16", "bf16", "fp32"):
            corner.add("window-mistral-%s-%s" % (attention, precision), small("mistral", sliding_window=128),
                       attention=attention, precision=precision)
        corner.add("window-mistral-%s-padded" % attention, small("mistral", sliding_window=128), attention=attention,
                   attention_mask="padded", precision="amp-bf16")
        corner.add("window-mistral-%s-ones" % attention, small("mistral", sliding_window=128), attention=attention,
                   attention_mask=True)
        corner.add("window-qwen2-%s" % attention,
                   small("qwen2", sliding_window=128, use_sliding_window=True, max_window_layers=1), attention=attention)
        corner.add("window-qwen3-%s-padded" % attention,
                   small("qwen3", sliding_window=128, use_sliding_window=True, max_window_layers=1), attention=attention,
                   attention_mask="padded", precision="amp-bf16")
        for family in FAMILIES:
            more = {"sliding_window": 4096} if family == "mistral" else {}
            corner.add("padded-%s-%s" % (family, attention), small(family, **more), attention=attention,
                       attention_mask="padded", precision="amp-bf16", seq=190)
            corner.add("ones-%s-%s" % (family, attention), small(family, **more), attention=attention,
                       attention_mask=True, batch=17, seq=320)
    corner.add("window-mistral-full", small("mistral", sliding_window=128), checkpoint="full", precision="amp-bf16")
    corner.add("window-mistral-reentrant", small("mistral", sliding_window=128), checkpoint="full-reentrant")
    corner.add("window-mistral-equal", small("mistral", sliding_window=192))
    corner.add("padded-gpt2-full", small("gpt2"), attention_mask="padded", checkpoint="full", precision="amp-bf16")
    corner.add("padded-llama-reentrant", small("llama"), attention_mask="padded", checkpoint="full-reentrant")
    corner.add("padded-bert-reentrant", small("bert"), attention_mask="padded", checkpoint="full-reentrant")
    for clip in (False, True):
        corner.add("fused-scaler-gpt2-clip%d" % clip, small("gpt2"), precision="amp-fp16", optimizer="adamw-fused",
                   clip_grad_norm=clip, iterations=3)
    corner.add("fused-scaler-llama", small("llama"), precision="amp-fp16", optimizer="adamw-fused", iterations=3)
    for optimizer in ("adamw-forloop", "sgd-momentum", "adafactor", "none"):
        corner.add("scaler-bert-%s" % optimizer, small("bert"), precision="amp-fp16", optimizer=optimizer)
    for dim in (100, 36, 20, 264, 320):
        corner.add("dim%d-gpt2" % dim, small("gpt2", dim=dim, dropout=0.1))
        corner.add("dim%d-llama" % dim, small("llama", dim=dim), precision="amp-bf16")
    corner.add("dim100-bert-fp32", small("bert", dim=100), precision="fp32")
    corner.add("dim100-llama-fp32", small("llama", dim=100, kv_heads=4), precision="fp32")
    for batch, seq in ((17, 192), (40, 1000), (70, 1024)):
        corner.add("long-bert-%dx%d" % (batch, seq), small("bert", vocab=511), batch=batch, seq=seq)
        corner.add("long-gpt2-%dx%d" % (batch, seq), small("gpt2", vocab=511), batch=batch, seq=seq, precision="amp-bf16")
        corner.add("long-llama-%dx%d" % (batch, seq), small("llama", vocab=511), batch=batch, seq=seq)
    corner.add("long-gpt2-vocab-odd", small("gpt2", vocab=1237), batch=9, seq=1023, precision="fp32")
    corner.add("one-token-llama", small("llama"), batch=5, seq=1)
    corner.add("one-row-gpt2", small("gpt2"), batch=1, seq=1500)
    for family in FAMILIES:
        corner.add("host-%s" % family, small(family, tie_word_embeddings=True), init_device="cpu", precision="amp-bf16")
    for family in ("gpt2", "qwen3", "bert", "mistral"):
        corner.add("cache-%s-full" % family, small(family), use_cache=True, checkpoint="full")
        corner.add("cache-%s-fp32" % family, small(family), use_cache=True, precision="fp32")
    corner.add("lengths-gpt2", small("gpt2"), seq_lengths=[512, 190, 777], pad_to=64, seq=777, iterations=4)
    corner.add("lengths-llama", small("llama"), seq_lengths=[512, 100], accumulate=3, seq=512, precision="amp-bf16")
    for line in corner.lines:
        if line["run"]["batch"] * line["run"]["seq"] > 30000:
            line["expect_bytes"] = 16 * GIB
    return corner.lines


# Single operators


def choose_operators():
    cases = []

    def case(op, **keys):
        cases.append(dict({"op": op}, **keys))

    def attention(kernel, dtype, dim, seq, batch=2, n_heads=4, kv_heads=None, **more):
        case("attention", kernel=kernel, dtype=dtype, dim=dim, seq=seq, batch=batch, heads=n_heads,
             kv_heads=kv_heads or n_heads, **more)

    for dim in (8, 20, 32, 40, 64, 72, 80, 96, 100, 128, 136, 160, 192, 224, 256, 320):
        for seq in (1, 63, 64, 100, 128, 190, 192, 256, 512, 1000, 1025):
            for kernel in ("flash", "efficient", "default"):
                attention(kernel, "bf16", dim, seq)
            attention("efficient", "fp32", dim, seq)
    for dim in (64, 72, 96, 100, 128, 256):
        for seq in (63, 128, 190, 1000):
            for kernel in ("flash", "efficient", "default"):
                attention(kernel, "fp16", dim, seq, dropout=0.1)
                attention(kernel, "bf16", dim, seq, causal=False)
                attention(kernel, "bf16", dim, seq, kv_heads=2)
                attention(kernel, "bf16", dim, seq, layout="split")
                attention(kernel, "bf16", dim, seq, layout="bhsd")
                attention(kernel, "bf16", dim, seq, grad=False)
                for mask in ("bool", "float"):
                    attention(kernel, "bf16", dim, seq, mask=mask)
                    attention(kernel, "bf16", dim, seq, mask=mask, batch=1, dropout=0.1)
            attention("efficient", "fp32", dim, seq, dropout=0.1)
            attention("default", "fp32", dim, seq, kv_heads=2)
            attention("default", "fp32", dim, seq, mask="bool")
            attention("default", "fp32", dim, seq, mask="float")
            attention("default", "fp32", dim, seq, mask="bool", grad=False)
            attention("default", "fp32", dim, seq, layout="split")
            attention("math", "bf16", dim, seq)
            attention("math", "bf16", dim, seq, mask="bool", kv_heads=2)
    for n_heads in (1, 2, 4, 8, 16, 32):
        for seq in (128, 256, 300, 512, 1024, 2048, 4096):
            for dim in (64, 128, 256):
                attention("flash", "bf16", dim, seq, batch=1, n_heads=n_heads)
    for n in list(range(3000, 40000, 500)) + [3072, 3073, 36864, 36865] + [40000 + 4000 * i for i in range(40)] + \
            [2**18, 2**19, 2**20, 3000000]:
        case("embedding", n=n, rows=50257, dim=64, dtype="bf16")
        case("cumsum", batch=1, n=n, dtype="int64")
    for rows in (1, 2, 3, 10, 50, 100, 512, 1000, 2048, 5003, 151936):
        for n in (3072, 3073, 4096, 5000, 8192, 20000, 65536):
            for dim in (64, 100, 768, 1100, 4096):
                for dtype in ("fp32", "bf16"):
                    case("embedding", n=n, rows=rows, dim=dim, dtype=dtype)
    for rows in (1, 100, 1000, 1024, 8192, 65535, 65536, 65537, 70000, 131072, 131073, 200000):
        for dim in (64, 768, 1000):
            for dtype in ("fp32", "bf16"):
                case("layer_norm", rows=rows, dim=dim, dtype=dtype)
    for n in (100, 1000, 1024, 4000, 4096, 5000, 10000, 16384, 30000, 65536, 100000, 131072, 1000000):
        for how, dtype in (("all", "bool"), ("sum", "bool"), ("norm", "fp32"), ("norm", "bf16"), ("sum", "fp32"),
                           ("mean", "bf16"), ("any", "bool")):
            case("reduction", how=how, shape=[n], dtype=dtype)
        case("reduction", how="all", shape=[1, n], dim=[1], dtype="bool")
    r = random.Random(7)
    for _ in range(150):
        rows, columns = int(2 ** r.uniform(0, 17)), int(2 ** r.uniform(0, 13))
        case("reduction", how=r.choice(("sum", "mean")), shape=[rows, columns], dim=[r.randint(0, 1)],
             dtype=r.choice(("fp32", "bf16")))
    for _ in range(40):
        shape = [int(2 ** r.uniform(0, 5)), int(2 ** r.uniform(0, 9)), int(2 ** r.uniform(0, 11))]
        case("reduction", how="sum", shape=shape, dim=r.choice(([0, 1], [1, 2], [0, 2], [1])), dtype="fp32")
    for batch in (1, 2, 3, 17):
        for n in (1, 100, 1024, 2048, 4096, 5000):
            case("cumsum", batch=batch, n=n, dtype="int64")
            case("cumsum", batch=batch, n=n, dtype="bool")
    for rows in (1000, 4096, 100000):
        for outer in (64, 768, 3000):
            case("linear", rows=rows, inner=256, outer=outer, dtype="bf16", bias=True)
    return cases


def choose_shared():
    """Backward of the memory-efficient kernels, profiled: how much shared memory they need decides where they run."""
    return [{"op": "attention", "kernel": "efficient", "dtype": dtype, "dim": dim, "seq": seq, "batch": 2, "heads": 4,
             "kv_heads": 4, "dropout": dropout, "profile": True}
            for dtype in ("fp32", "bf16", "fp16") for dim in (32, 64, 96, 128, 256) for seq in (190, 256)
            for dropout in (0.0, 0.1)]


def choose_huge():
    """Tensors of more than 2^31 elements; several GiB each."""
    rows, classes = 17000, 131072
    cases = [{"op": "cross_entropy", "rows": rows, "classes": classes, "dtype": dtype} for dtype in ("fp32", "bf16")]
    cases += [{"op": "linear", "rows": rows, "inner": 64, "outer": classes, "dtype": "bf16", "bias": bias}
              for bias in (False, True)]
    cases += [{"op": "pointwise", "how": how, "shape": [rows, classes], "dtype": "bf16"}
              for how in ("gelu", "silu", "mul", "dropout", "float", "softmax", "softmax32", "expand")]
    cases += [{"op": "pointwise", "how": "half", "shape": [rows, classes], "dtype": "fp32"}]
    cases += [{"op": "reduction", "how": how, "shape": [rows, classes], "dim": dim, "dtype": "bf16"}
              for how in ("sum", "mean") for dim in ([0], [1])]
    cases += [{"op": "reduction", "how": how, "shape": [rows, classes], "dtype": dtype}
              for how in ("sum", "norm") for dtype in ("bf16", "fp32")]
    cases += [{"op": "reduction", "how": "sum", "shape": [rows, classes], "dim": dim, "dtype": "fp32"} for dim in ([0], [1])]
    cases += [{"op": "linear", "rows": rows, "inner": 64, "outer": classes, "dtype": "fp32", "bias": True},
              {"op": "reduction", "how": "sum", "shape": [classes, 33000], "dim": [0], "dtype": "bf16"},
              {"op": "reduction", "how": "sum", "shape": [9000, 4, 70000], "dim": [0, 1], "dtype": "bf16"}]
    cases += [{"op": "layer_norm", "rows": 530000, "dim": 4096, "dtype": "bf16"},
              {"op": "embedding", "n": 530000, "rows": 5003, "dim": 4096, "dtype": "bf16"}]
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("runs", "parts", "caps", "batches", "kernels", "operators", "huge", "shared"))
    parser.add_argument("measured", nargs="?", help="for caps: measured runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--smallest-gib", type=float, default=0.5)
    parser.add_argument("--largest-gib", type=float, default=8.0)
    arguments = parser.parse_args()
    r = random.Random(arguments.seed)
    if arguments.what == "runs":
        lines = choose_runs(r, arguments.count, int(arguments.smallest_gib * GIB), int(arguments.largest_gib * GIB),
                            "r%d" % arguments.seed)
    elif arguments.what == "parts":
        lines = choose_parts(r, arguments.count, int(arguments.smallest_gib * GIB), int(arguments.largest_gib * GIB))
    elif arguments.what == "caps":
        lines = choose_caps(r, arguments.measured, arguments.count)
    elif arguments.what == "batches":
        lines = choose_batches(r, arguments.count)
    else:
        lines = {"kernels": choose_kernels, "operators": choose_operators, "huge": choose_huge,
                 "shared": choose_shared}[arguments.what]()
    for line in lines:
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
