#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Choose runs of what variants.py measures: writes run specs for measure.py to standard output.

  choose_variants.py families --seed 1 --count 24  the families that choose.py leaves out
  choose_variants.py trainer --seed 1 --count 12   transformers' Trainer
  choose_variants.py qlora --seed 1 --count 12     adapters on 4-bit weights
  choose_variants.py losses --seed 1 --count 8     losses without logits, and the optimizers of bitsandbytes and torch
  choose_variants.py t5 --seed 1 --count 6         T5, mostly in float16, whose blocks clamp their states
  choose_variants.py corners                       2-layer models, one for each rule, to be recorded with labels

The same seed gives the same lines.
"""
import argparse
import json
import random
import sys

import choose

GIB = 1 << 30
CAUSAL = ("llama", "gpt2", "mistral", "qwen2", "qwen3")
FUSED = ("llama", "mistral", "qwen2", "qwen3")
TARGETS = {"gpt2": (["c_attn"], ["c_attn", "c_proj", "c_fc"]), "bert": (["query", "value"],)}
LLAMA_TARGETS = (["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "all-linear")


def t5(r):
    heads = r.choice((6, 8, 12))
    return {"model_type": "t5", "num_layers": r.randint(2, 6), "d_model": heads * 64, "num_heads": heads, "d_kv": 64,
            "d_ff": r.choice((3, 4)) * heads * 64, "vocab_size": 32128, "dropout_rate": r.choice((0.0, 0.1)),
            "decoder_start_token_id": 0, "pad_token_id": 0,
            "feed_forward_proj": r.choice(("relu", "gated-gelu"))}


def roberta(r):
    model = dict(choose.bert(r), model_type="roberta", vocab_size=50265)
    model["max_position_embeddings"] += 2
    return model


def make_model(r, family):
    model = t5(r) if family == "t5" else roberta(r) if family == "roberta" else choose.make_model(r, family)
    if model.get("vocab_size", 0) > 70000:
        model["vocab_size"] = 65024
    return model


def make_run(r, family, precisions):
    model = make_model(r, family)
    longest = min(1024, model.get("n_positions") or model.get("max_position_embeddings") or 512)
    longest -= 2 if family == "roberta" else 0
    return {"model": model, "gpu": "H200-141G", "framework": "hf", "batch": r.choice((1, 2, 3, 4, 6, 8)),
            "seq": min(longest, r.choice((128, 190, 256, 384, 500, 512, 777, 1024))), "precision": r.choice(precisions),
            "attention": "eager" if r.random() < 0.2 else "sdpa", "checkpoint": "none", "optimizer": "adamw-foreach",
            "accumulate": r.choice((1, 1, 2)), "iterations": 3}


def line(name, run):
    return {"id": name, "run": run, "expect_bytes": 8 * GIB}


# Models of the other families


def plain(r, layers, width, heads, inner):
    """Sizes under the names that most families give them."""
    heads_of = r.choice((6, 8, 12))
    return {layers: r.randint(2, 8), width: heads_of * 64, heads: heads_of, inner: r.choice((3, 4)) * heads_of * 64}


def opt(r):
    model = plain(r, "num_hidden_layers", "hidden_size", "num_attention_heads", "ffn_dim")
    dropout = r.choice((0.0, 0.1))
    return dict(model, vocab_size=50272, max_position_embeddings=2048, word_embed_proj_dim=model["hidden_size"], dropout=dropout,
                attention_dropout=dropout)


def decoder(r, **more):
    model = plain(r, "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return dict(model, vocab_size=r.choice((32000, 50304)), max_position_embeddings=4096, **more)


def grouped(r, **more):
    model = decoder(r, **more)
    return dict(model, num_key_value_heads=r.choice((2, model["num_attention_heads"])))


def gpt_neox(r):
    dropout = r.choice((0.0, 0.1))
    return decoder(r, hidden_dropout=dropout, attention_dropout=dropout)


def phi3(r):
    return grouped(r, pad_token_id=0, tie_word_embeddings=r.random() < 0.5)


def gemma2(r):
    return dict(grouped(r), head_dim=r.choice((64, 128, 256)), vocab_size=65024)


def mixtral(r):
    return dict(grouped(r), num_hidden_layers=r.randint(2, 4), num_local_experts=r.choice((4, 8)), num_experts_per_tok=2)


def qwen3_moe(r):
    return dict(grouped(r), num_hidden_layers=r.randint(2, 4), head_dim=64, moe_intermediate_size=r.choice((256, 384)),
                num_experts=r.choice((8, 16)), num_experts_per_tok=r.choice((2, 4)), norm_topk_prob=r.random() < 0.5)


def gpt_neo(r):
    model = plain(r, "num_layers", "hidden_size", "num_heads", "intermediate_size")
    model["num_layers"] += model["num_layers"] % 2
    dropout = r.choice((0.0, 0.1))
    return dict(model, attention_types=[[["global", "local"], model["num_layers"] // 2]], vocab_size=50257, window_size=256,
                max_position_embeddings=2048, resid_dropout=dropout, embed_dropout=dropout, attention_dropout=dropout)


def starcoder2(r):
    return grouped(r, sliding_window=r.choice((None, 256, 4096)))


def deepseek_v3(r):
    model = decoder(r, moe_intermediate_size=256, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
                    first_k_dense_replace=1, n_shared_experts=1, kv_lora_rank=128, q_lora_rank=r.choice((None, 192)),
                    qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64)
    return dict(model, num_hidden_layers=r.randint(2, 4), num_key_value_heads=model["num_attention_heads"])


def vit(r):
    dropout = r.choice((0.0, 0.1))
    model = plain(r, "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return dict(model, image_size=r.choice((128, 224)), patch_size=16, num_labels=r.choice((2, 1000)), hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout)


OTHERS = {"opt": opt, "roberta": roberta, "gpt_neox": gpt_neox, "phi3": phi3, "gemma2": gemma2, "t5": t5, "mixtral": mixtral,
          "qwen3_moe": qwen3_moe, "gpt_neo": gpt_neo, "starcoder2": starcoder2, "deepseek_v3": deepseek_v3, "vit": vit}


# Each of these returns the i-th run


def families(r, i):
    family = list(OTHERS)[i % len(OTHERS)]
    model = dict({"model_type": family}, **OTHERS[family](r))
    longest = 512 if family == "t5" else model.get("max_position_embeddings", 4096) - 2
    run = {"model": model, "gpu": "H200-141G", "framework": "hf", "batch": r.choice((1, 2, 3, 4, 5, 8)),
           "seq": min(longest, r.choice((100, 128, 190, 256, 333, 512, 640, 777, 1024))),
           "precision": r.choice(("amp-bf16", "amp-bf16", "amp-fp16", "bf16", "bf16", "fp16", "fp32")),
           "attention": "eager" if r.random() < 0.3 else "sdpa", "checkpoint": r.choice(("none", "none", "none", "full")),
           "optimizer": r.choice(("adamw-foreach", "adamw-foreach", "adamw-foreach", "adamw-fused", "adamw-forloop", "sgd",
                                  "sgd-momentum", "adafactor")),
           "accumulate": r.choice((1, 1, 2)), "iterations": 3}
    if family == "gpt_neo":
        run["attention"] = "eager"  # the only one it has
    if family == "vit":
        run["seq"] = (model["image_size"] // model["patch_size"]) ** 2 + 1
    choose.maybe(r, run, "clip_grad_norm", 0.25, True)
    choose.maybe(r, run, "zero_grad", 0.2, "keep")
    choose.maybe(r, run, "release_outputs", 0.2, True)
    choose.maybe(r, run, "empty_cache_each_step", 0.25, True)
    if family not in ("t5", "vit"):
        choose.maybe(r, run, "attention_mask", 0.2, True, "padded")
    return family, run


def t5_runs(r, i):
    run = make_run(r, "t5", ("fp16", "fp16", "bf16", "amp-fp16", "fp32"))
    run["checkpoint"] = r.choice(("none", "none", "full"))
    return "t5", run


def trainer(r, i):
    family = ("gpt2", "llama", "bert", "roberta", "t5", "qwen2", "mistral", "qwen3")[i % 8]
    run = make_run(r, family, ("fp32",))
    arguments = {"per_device_train_batch_size": run.pop("batch"), "gradient_accumulation_steps": run.pop("accumulate")}
    how = r.choice(("bf16", "bf16", "bf16", "fp16", "fp32", "weights"))
    if how in ("bf16", "fp16"):
        arguments[how] = True
    if how == "weights":
        run["precision"] = "bf16"
        arguments["bf16"] = True
    if r.random() < 0.3:
        arguments["gradient_checkpointing"] = True
    if r.random() < 0.3:
        arguments.update(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=r.choice((2, 4, 8)), eval_samples=20)
    if r.random() < 0.3:
        arguments["optim"] = r.choice(("adamw_torch", "sgd"))
    if r.random() < 0.3:
        arguments["logging_steps"] = r.choice((1, 2))
    run.update(framework="hf-trainer", batch=arguments["per_device_train_batch_size"],
               accumulate=arguments["gradient_accumulation_steps"], training_arguments=arguments)
    for key in ("optimizer", "checkpoint"):
        del run[key]
    return family, run


def qlora(r, i):
    family = ("llama", "qwen2", "mistral", "gpt2", "qwen3", "llama")[i % 6]
    run = make_run(r, family, ("bf16", "bf16", "bf16", "amp-bf16", "fp16", "fp32"))
    targets = r.choice(TARGETS.get(family, LLAMA_TARGETS))
    run.update(quantization="nf4", lora={"rank": r.choice((4, 8, 16, 64)), "targets": targets, "alpha": 16,
                                         "dropout": r.choice((0.0, 0.0, 0.05))})
    run["checkpoint"] = r.choice(("none", "none", "full", "full-reentrant"))
    run["optimizer"] = r.choice(("adamw-foreach", "adamw-fused", "paged-adamw-8bit", "adamw-8bit"))
    return family, run


def losses(r, i):
    changes = ({"optimizer": "adamw-8bit"}, {"optimizer": "paged-adamw-8bit"}, {"optimizer": "lion"}, {"optimizer": "muon"},
               {"loss": "chunked"}, {"loss": "fused"})[i % 6]
    family = r.choice(FUSED if changes.get("loss") == "fused" else CAUSAL)
    run = make_run(r, family, ("bf16", "amp-bf16", "amp-bf16", "fp32"))
    if "loss" in changes:
        run["model"]["vocab_size"] = r.choice((32000, 65024, 128256))
    return family, dict(run, **changes)


def choose_some(r, how, name, count):
    lines = []
    while len(lines) < count:
        family, run = how(r, len(lines))
        measure = dict(run, checkpoint=run.get("checkpoint", "none"))
        if how is families or family == "t5" or GIB // 2 <= choose.rough_bytes(measure) <= 6 * GIB:
            lines.append(line("%s-%02d-%s" % (name, len(lines), family), run))
    return lines


# One small model for each rule


def corners():
    lines = []

    def add(name, family, model=None, **run):
        spec = {"model": dict(choose.small(family), **(model or {})), "gpu": "H200-141G", "framework": "hf", "batch": 3, "seq": 192,
                "precision": "bf16", "attention": "sdpa", "checkpoint": "none", "optimizer": "adamw-foreach", "accumulate": 1,
                "iterations": 2}
        lines.append({"id": name, "run": dict(spec, **run), "expect_bytes": 3 * GIB})

    lora = {"rank": 8, "targets": ["q_proj", "v_proj"], "alpha": 16, "dropout": 0.05}
    wide = {"vocab_size": 50021}
    for precision in ("bf16", "amp-bf16", "fp32", "fp16"):
        add("qlora-llama-" + precision, "llama", precision=precision, quantization="nf4", lora=lora)
        add("fused-llama-" + precision, "llama", wide, precision=precision, loss="fused")
        add("chunked-llama-" + precision, "llama", wide, precision=precision, loss="chunked")
    add("qlora-llama-large", "llama", batch=9, quantization="nf4", lora=lora)
    add("qlora-llama-full", "llama", quantization="nf4", lora=lora, checkpoint="full")
    add("qlora-llama-reentrant", "llama", quantization="nf4", lora=lora, checkpoint="full-reentrant")
    add("qlora-llama-all", "llama", quantization="nf4", lora=dict(lora, targets="all-linear", dropout=0.0))
    add("qlora-gpt2", "gpt2", quantization="nf4", lora=dict(lora, targets=["c_attn"]))
    add("qlora-gpt2-amp", "gpt2", quantization="nf4", lora=dict(lora, targets=["c_attn"]), precision="amp-bf16")
    add("fused-llama-tied", "llama", dict(wide, tie_word_embeddings=True), loss="fused", accumulate=2)
    add("fused-llama-lora", "llama", wide, loss="fused", lora=lora)
    add("fused-gemma2", "llama", {"model_type": "gemma2", "vocab_size": 50021, "sliding_window": 128}, loss="fused")
    add("chunked-gpt2", "gpt2", wide, loss="chunked", precision="amp-bf16", accumulate=2)
    add("chunked-llama-tied", "llama", dict(wide, tie_word_embeddings=True), loss="chunked")
    add("muon-llama", "llama", optimizer="muon")
    add("muon-gpt2-amp", "gpt2", optimizer="muon", precision="amp-fp16", accumulate=2, clip_grad_norm=True)
    for optimizer in ("adamw-8bit", "paged-adamw-8bit", "lion"):
        add(optimizer + "-llama", "llama", wide, optimizer=optimizer)
    add("t5-fp16", "llama", precision="fp16", seq=128)
    lines[-1]["run"]["model"] = {"model_type": "t5", "num_layers": 2, "d_model": 256, "num_heads": 4, "d_kv": 64, "d_ff": 512,
                                 "vocab_size": 5003, "dropout_rate": 0.1, "decoder_start_token_id": 0, "pad_token_id": 0}
    t5_model = lines[-1]["run"]["model"]
    add("t5-fp16-full", "llama", precision="fp16", seq=128, checkpoint="full")
    lines[-1]["run"]["model"] = t5_model
    for family, model in (("bert", {}), ("bert", {"model_type": "roberta", "max_position_embeddings": 258}), ("llama", t5_model)):
        kind = model.get("model_type", family)
        add("trainer-" + kind, family, model, framework="hf-trainer", precision="fp32", iterations=3,
            training_arguments={"bf16": True, "eval_strategy": "steps", "eval_steps": 2, "eval_samples": 20})
        if kind == "t5":
            lines[-1]["run"]["model"] = t5_model
        for key in ("optimizer", "checkpoint"):
            del lines[-1]["run"][key]
    scalings = {"llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8192},
                "linear": {"factor": 4.0}, "dynamic": {"factor": 2.0},
                "yarn": {"factor": 4.0, "original_max_position_embeddings": 2048},
                "longrope": {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 128}}
    for kind, scaling in scalings.items():
        add("rope-" + kind, "llama", {"rope_parameters": dict(scaling, rope_type=kind, rope_theta=10000.0)})
    add("rope-dynamic-long", "llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
                                       "max_position_embeddings": 128})
    add("rope-phi3-longrope", "llama", {"model_type": "phi3", "pad_token_id": 0, "max_position_embeddings": 4096,
                                        "original_max_position_embeddings": 128,
                                        "rope_parameters": dict(scalings["longrope"], rope_type="longrope", rope_theta=10000.0)})
    for precision in ("bf16", "amp-bf16"):
        add("experts-mixtral-" + precision, "llama", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
            experts="eager", precision=precision)
    add("experts-qwen3_moe", "llama", {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                                       "moe_intermediate_size": 96}, experts="eager")
    add("experts-mixtral-full", "llama", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        experts="eager", checkpoint="full")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("families", "trainer", "qlora", "losses", "t5", "corners"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12)
    arguments = parser.parse_args()
    r = random.Random(arguments.seed)
    how = {"families": families, "trainer": trainer, "qlora": qlora, "losses": losses, "t5": t5_runs}.get(arguments.what)
    for entry in choose_some(r, how, arguments.what, arguments.count) if how else corners():
        print(json.dumps(entry))
    return 0


if __name__ == "__main__":
    sys.exit(main())
