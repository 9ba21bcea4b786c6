#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What transformers builds and calls, family by family, on the CPU: writes tests/data/modules.jsonl to standard output.

  modules.py [FAMILY...]                  needs torch, transformers and (for random weights only) no GPU

One line for each model: its parameters' shapes in the order of model.parameters(), its buffers' bytes, and the order in which
wrappers that hook into every module meet them. Hooks are put on as DeepSpeed's stage 3 puts them on (deepspeed/runtime/zero/
parameter_offload.py, _register_deepspeed_module): leaf modules count with all parameters below them.

  "forward", "backward"   "F3,4": a module begins that has parameters 3 and 4; "f3,4" it ends. "F": one without parameters.
                          "B", "b": likewise in backward. Ends of modules without parameters are left out: nothing happens.
"""
import json
import random
import sys

import torch
import transformers

LEAVES = {"MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"}  # deepspeed/runtime/zero/leaf_module_config.py

DECODER = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "max_position_embeddings": 64}
GROUPED = dict(DECODER, num_key_value_heads=2)
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}
OPT = dict(DECODER, ffn_dim=48, word_embed_proj_dim=32)
NEO = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
       "intermediate_size": 48, "attention_types": [[["global", "local"], 1]], "window_size": 8}
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
       "patch_size": 8, "num_labels": 5}
EXPERTS = dict(GROUPED, num_experts_per_tok=2)
DEEPSEEK = dict(DECODER, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8,
                v_head_dim=12, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
                moe_intermediate_size=24, n_shared_experts=1)
DRAWN = 4  # models of each family with random options
NO_PADDING = {"pad_token_id": None}

MODELS = [
    ("gpt2", GPT2), ("gpt2", dict(GPT2, tie_word_embeddings=False, activation_function="relu")),
    ("bert", dict(DECODER, type_vocab_size=2)), ("bert", dict(DECODER, hidden_act="gelu_new", pad_token_id=3)),
    ("roberta", dict(DECODER, type_vocab_size=1)),
    ("llama", GROUPED), ("llama", dict(GROUPED, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("llama", dict(GROUPED, head_dim=12, pad_token_id=0)),
    ("mistral", GROUPED), ("mistral", dict(GROUPED, head_dim=16, sliding_window=8)),
    ("qwen2", GROUPED), ("qwen2", dict(GROUPED, tie_word_embeddings=True)),
    ("qwen3", dict(GROUPED, head_dim=8)), ("qwen3", dict(GROUPED, head_dim=12, attention_bias=True)),
    ("gemma2", dict(GROUPED, head_dim=8)), ("gemma2", dict(GROUPED, head_dim=16, tie_word_embeddings=False, pad_token_id=None)),
    ("gemma2", dict(GROUPED, head_dim=8, attention_bias=True, hidden_activation="gelu_pytorch_tanh")),
    ("phi3", dict(GROUPED, **NO_PADDING)),
    ("phi3", dict(GROUPED, pad_token_id=5, tie_word_embeddings=True, resid_pdrop=0.1, embd_pdrop=0.1, partial_rotary_factor=0.5)),
    ("starcoder2", GROUPED), ("starcoder2", dict(GROUPED, use_bias=False, tie_word_embeddings=False, residual_dropout=0.1)),
    ("gpt_neox", DECODER), ("gpt_neox", dict(DECODER, attention_bias=False, use_parallel_residual=False, hidden_dropout=0.1)),
    ("gpt_neox", dict(DECODER, tie_word_embeddings=True, rotary_pct=1.0)),
    ("gpt_neo", NEO), ("gpt_neo", dict(NEO, tie_word_embeddings=False, resid_dropout=0.1)),
    ("opt", OPT), ("opt", dict(OPT, word_embed_proj_dim=16, do_layer_norm_before=False)),
    ("opt", dict(OPT, enable_bias=False, tie_word_embeddings=False, dropout=0.0)),
    ("opt", dict(OPT, _remove_final_layer_norm=True)),
    ("t5", T5), ("t5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    ("t5", dict(T5, num_decoder_layers=1, d_kv=12, relative_attention_num_buckets=8)),
    ("vit", VIT), ("vit", dict(VIT, qkv_bias=False, num_channels=1, hidden_dropout_prob=0.1)),
    ("mixtral", dict(EXPERTS, num_local_experts=4)), ("mixtral", dict(EXPERTS, num_local_experts=4, head_dim=12)),
    ("qwen3_moe", dict(EXPERTS, num_experts=4, moe_intermediate_size=24, head_dim=8)),
    ("qwen3_moe", dict(EXPERTS, num_experts=4, moe_intermediate_size=24, head_dim=8, mlp_only_layers=[0], attention_bias=True)),
    ("deepseek_v3", DEEPSEEK), ("deepseek_v3", dict(DEEPSEEK, q_lora_rank=None, attention_bias=True, n_shared_experts=2)),
]

EACH = {"gpt2": GPT2, "bert": DECODER, "roberta": DECODER, "llama": GROUPED, "mistral": GROUPED, "qwen2": GROUPED, "qwen3": GROUPED,
        "gemma2": GROUPED, "phi3": dict(GROUPED, **NO_PADDING), "starcoder2": GROUPED, "gpt_neox": DECODER, "gpt_neo": NEO, "opt": OPT,
        "t5": T5, "vit": VIT, "mixtral": dict(EXPERTS, num_local_experts=4),
        "qwen3_moe": dict(EXPERTS, num_experts=4, moe_intermediate_size=24), "deepseek_v3": DEEPSEEK}
# What may be drawn for a key that the family's configuration class has.
CHOICES = {"vocab_size": (97, 101), "head_dim": (6, 10, 24), "tie_word_embeddings": (True, False), "pad_token_id": (None, 0, 7),
           "attention_bias": (True, False), "mlp_bias": (True, False), "use_bias": (True, False), "enable_bias": (True, False),
           "qkv_bias": (True, False), "num_hidden_layers": (1, 3), "num_layers": (1, 3), "n_layer": (1, 3), "max_position_embeddings": (40, 72),
           "n_positions": (40, 72), "intermediate_size": (52, 90), "d_ff": (52, 90), "n_inner": (None, 52), "ffn_dim": (52, 90),
           "num_key_value_heads": (1, 4), "do_layer_norm_before": (True, False), "word_embed_proj_dim": (16, 32),
           "use_sliding_window": (True, False), "sliding_window": (None, 8), "max_window_layers": (1,), "type_vocab_size": (1, 3),
           "hidden_act": ("gelu", "relu", "silu"), "hidden_activation": ("gelu_pytorch_tanh",), "num_local_experts": (3, 5),
           "num_experts": (3, 5), "decoder_sparse_step": (1, 2), "first_k_dense_replace": (0, 1, 2), "n_shared_experts": (1, 2),
           "q_lora_rank": (None, 12), "kv_lora_rank": (8, 20), "v_head_dim": (8, 20), "num_channels": (1, 4), "num_labels": (1, 3),
           "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gelu"), "num_decoder_layers": (1, 2), "d_kv": (4, 20),
           "relative_attention_num_buckets": (8, 16), "use_parallel_residual": (True, False), "rotary_pct": (0.5, 1.0),
           "resid_pdrop": (0.0, 0.1), "hidden_dropout": (0.0, 0.1), "tie_encoder_decoder": (False,)}


def draw(family, r):
    """The family's small model with about a third of its keys drawn."""
    keys = dict(EACH[family])
    known = transformers.CONFIG_MAPPING[family]().to_dict()
    for key, values in CHOICES.items():
        if key in known and r.random() < 0.35 and not (key == "num_layers" and family == "gpt_neo"):
            keys[key] = r.choice(values)
    if family == "deepseek_v3":
        keys.pop("num_key_value_heads")
        keys.pop("head_dim", None)
    if "num_local_experts" in keys:  # num_experts is the same
        keys.pop("num_experts", None)
    if family == "t5":  # its labels are padded
        keys.pop("pad_token_id", None)
    if keys.get("num_hidden_layers") == 1:
        keys.pop("max_window_layers", None)
    return keys


CLASSES = {"bert": "AutoModelForMaskedLM", "roberta": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM",
           "vit": "AutoModelForImageClassification"}


def build(family, keys, attention):
    config = transformers.AutoConfig.for_model(family, **keys)
    if family != "vit":
        config.use_cache = False
    auto = getattr(transformers, CLASSES.get(family, "AutoModelForCausalLM"))
    return auto.from_config(config, attn_implementation=attention).train()


def apply_to_tensors(function, value):
    if isinstance(value, (tuple, list)):
        return value.__class__([apply_to_tensors(function, each) for each in value])
    if isinstance(value, dict):
        for key in value:
            value[key] = apply_to_tensors(function, value[key])
        return value
    return function(value) if isinstance(value, torch.Tensor) else value


class Hooks:
    """The order of events, told by the same hooks and the same autograd functions as DeepSpeed's."""

    def __init__(self, model):
        self.numbers = {id(p): i for i, p in enumerate(model.parameters())}
        self.events = []
        self.register(model)

    def tell(self, what, module):
        leaf = type(module).__name__ in LEAVES
        numbers = sorted({self.numbers[id(p)] for p in module.parameters(recurse=leaf)})
        if numbers or what in "FB":
            self.events.append(what + ",".join(map(str, numbers)))

    def register(self, module):
        if type(module).__name__ not in LEAVES:
            for child in module.children():
                self.register(child)
        hooks = self
        module.calls, module.remaining = 0, 0

        class Before(torch.autograd.Function):
            @staticmethod
            def forward(ctx, output):
                module.calls += 1
                return output.detach()

            @staticmethod
            def backward(ctx, *gradients):
                if module.calls > 0:
                    hooks.tell("B", module)
                    module.calls -= 1
                return gradients

        class After(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                if x.requires_grad:
                    module.remaining += 1
                return x.detach()

            @staticmethod
            def backward(ctx, *gradients):
                module.remaining -= 1
                if module.remaining == 0:
                    hooks.tell("b", module)
                return gradients

        def begin_backward_of(module, inputs):
            module.remaining = 0
            return apply_to_tensors(After.apply, inputs)

        module.register_forward_pre_hook(lambda module, inputs: hooks.tell("F", module))
        module.register_forward_hook(lambda module, inputs, output: hooks.tell("f", module))
        module.register_forward_hook(lambda module, inputs, output: apply_to_tensors(Before.apply, output))
        module.register_forward_pre_hook(begin_backward_of)


def batch(family, keys):
    if family == "vit":
        size = keys["image_size"]
        return {"pixel_values": torch.randn(2, keys.get("num_channels", 3), size, size), "labels": torch.tensor([0, 1])}
    ids = torch.randint(6, 90, (2, 16))
    return {"input_ids": ids, "labels": ids}


def measure(family, keys, attention):
    torch.manual_seed(0)
    model = build(family, keys, attention)
    line = {"model": dict({"model_type": family}, **keys), "attention": attention,
            "parameters": [list(p.shape) for p in model.parameters()],
            "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers())}
    hooks = Hooks(model)
    loss = model(**batch(family, keys)).loss
    line["forward"] = " ".join(hooks.events)
    hooks.events = []
    loss.backward()
    line["backward"] = " ".join(hooks.events)
    return line


def main():
    wanted = sys.argv[1:]
    r = random.Random(1)
    drawn = [(family, draw(family, r)) for family in EACH for _ in range(DRAWN)]
    for family, keys in MODELS + drawn:
        if wanted and family not in wanted:
            continue
        for attention in ("eager",) if family == "gpt_neo" else ("sdpa", "eager") if (family, keys) in MODELS else ("sdpa",):
            print(json.dumps(measure(family, keys, attention)), flush=True)


if __name__ == "__main__":
    main()
