#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Record what PyTorch makes of a program: the loss of every micro-batch.

    memplan fit ... --precision fp32 --iterations 20 --program job.jsonl
    memplan validate train job.jsonl --start FOLDER/job            # weights and token ids that training starts from
    python3 train_reference.py job.jsonl -o FOLDER                 # reads them, writes FOLDER/job.losses.json
    memplan validate train job.jsonl --losses FOLDER/job.losses.json

Without FOLDER/job.weights the model starts as PyTorch initialises it, and the weights are written there, for --weights.
The model's dropout must be 0: random numbers are not comparable. TF32 is off unless the run says tf32. Weights are float32, one
parameter after another in the order of model.parameters(). The loop is that of measure.py. --device cpu needs no GPU.
"""

import argparse
import array
import contextlib
import json
import os

CLASSES = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
HALF = {"bf16": "bfloat16", "fp16": "float16", "amp-bf16": "bfloat16", "amp-fp16": "float16"}


def read_run(path):
    with open(path, encoding="utf-8") as text:
        run = json.loads(text.readline())["run"]
    if not isinstance(run["model"], dict):
        name = run["model"]
        shipped = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "%s.json" % name)
        with open(name if os.path.isfile(name) else shipped, encoding="utf-8") as text:
            model = json.load(text)
        run["model"] = model if "model_type" in model else model["config"]
    return run


def build_model(torch, transformers, run, device):
    kind = run["model"]["model_type"]
    config = {key: value for key, value in run["model"].items() if key != "model_type"}
    if kind != "bert":
        config.setdefault("pad_token_id", None)  # some releases default to 0, whose row of the table is not trained then
    config = transformers.CONFIG_MAPPING[kind](use_cache=False, **config)
    config._attn_implementation = run["attention"]
    if run["precision"] in ("bf16", "fp16"):
        torch.set_default_dtype(getattr(torch, HALF[run["precision"]]))
    model = getattr(transformers, CLASSES[kind])(config).to(device)
    torch.set_default_dtype(torch.float32)
    model.train()
    if run["checkpoint"] != "none":
        with contextlib.suppress(TypeError):  # releases that know one kind only take no argument
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": run["checkpoint"] == "full-reentrant"})
        model.gradient_checkpointing_enable() if not model.is_gradient_checkpointing else None
    return model


def make_optimizer(torch, run, params):
    name = run["optimizer"]
    if name.startswith("adamw"):
        return torch.optim.AdamW(params, lr=1e-4)
    if name.startswith("sgd"):
        return torch.optim.SGD(params, lr=1e-3, momentum=0.9 if name == "sgd-momentum" else 0.0)
    raise SystemExit("optimizer: '%s' is not compared" % name)


def load_weights(torch, model, path):
    with open(path, "rb") as file:
        flat, at = torch.frombuffer(bytearray(file.read()), dtype=torch.float32), 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(flat[at:at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()
    if at != flat.numel():
        raise SystemExit("%s: %d values for %d parameters" % (path, flat.numel(), at))


def save_weights(model, path):
    with open(path, "wb") as file:
        for parameter in model.parameters():
            array.array("f", parameter.detach().float().cpu().flatten().tolist()).tofile(file)


def batches(torch, run, out, device):
    """Token ids: those of the start, or drawn."""
    shape = (run["batch"], run["seq"])
    if os.path.exists(out + ".tokens.json"):
        with open(out + ".tokens.json", encoding="utf-8") as text:
            return [torch.tensor(ids, device=device).view(shape) for ids in json.load(text)["tokens"]]
    return [torch.randint(0, run["model"]["vocab_size"], shape, device=device) for _ in range(run["accumulate"])]


def padding_mask(torch, ids):
    mask = torch.ones_like(ids)
    mask[:, ids.shape[1] - max(1, ids.shape[1] // 8):] = 0
    return mask


def autocast(torch, run, device):
    if run["precision"].startswith("amp"):
        return torch.autocast(device, dtype=getattr(torch, HALF[run["precision"]]))
    return contextlib.nullcontext()


def train(torch, run, model, data, device):
    optimizer = make_optimizer(torch, run, [p for p in model.parameters() if p.requires_grad])
    scaler = torch.cuda.amp.GradScaler() if run["precision"] == "amp-fp16" else None
    losses = []
    for it in range(run["iterations"]):
        for mb in range(run["accumulate"]):
            ids = data[(it * run["accumulate"] + mb) % len(data)]
            more = {}
            if run["attention_mask"]:
                more["attention_mask"] = padding_mask(torch, ids) if run["attention_mask"] == "padded" else torch.ones_like(ids)
            with autocast(torch, run, device):
                loss = model(input_ids=ids, labels=ids, **more).loss
            losses.append(loss.item())
            loss = loss / run["accumulate"]
            (scaler.scale(loss) if scaler else loss).backward()
        if run["clip_grad_norm"]:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def record(torch, transformers, program, folder, device):
    run = read_run(program)
    out = os.path.join(folder, os.path.splitext(os.path.basename(program))[0])
    torch.manual_seed(0)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = run["tf32"]
    model = build_model(torch, transformers, run, device)
    if os.path.exists(out + ".weights"):
        load_weights(torch, model, out + ".weights")
    else:
        save_weights(model, out + ".weights")
    data = batches(torch, run, out, device)
    losses = train(torch, run, model, data, device)
    with open(out + ".writing", "w", encoding="utf-8") as file:
        where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "device": where, "run": run, "losses": losses,
                   "tokens": [ids.flatten().tolist() for ids in data]}, file)
        file.write("\n")
    os.replace(out + ".writing", out + ".losses.json")
    print("%s: %d losses, first %.6f, last %.6f" % (out, len(losses), losses[0], losses[-1]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", help="program files of memplan fit")
    parser.add_argument("-o", "--output", required=True, help="folder of the files to read and write")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    for program in arguments.programs:
        record(torch, transformers, program, arguments.output, arguments.device)


if __name__ == "__main__":
    main()
