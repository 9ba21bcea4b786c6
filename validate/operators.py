#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Record what single PyTorch operators ask of the allocator, over many shapes: one JSON line per case.

A line has the case's own keys and `forward` and `backward`: the allocator events in order, `+BYTES` for an allocation and
`-N` for a free of allocation number N of that case, counted from 1 over forward and backward.
With `profile` in the case the line has `kernels` instead: names and shared memory (bytes) of what backward launches.
The results are what the rules on attention kernels, embeddings, scans and reductions of docs/memory-model.md rest on.
"""
import argparse
import gc
import json
import os
import sys
import tempfile

import torch
import torch.nn.functional as F

MARKER_BYTES = 1_234_567  # no operator of any case asks for this
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64, "bool": torch.bool}


def heads(case, n_heads, dtype, layout):
    """A (batch, heads, seq, dim) leaf view; `bsad` has the memory of a transposed projection, as in llama and bert."""
    B, S, D = case["batch"], case["seq"], case["dim"]
    if layout == "bsad":
        return torch.randn(B, S, n_heads, D, device="cuda", dtype=dtype).transpose(1, 2)
    if layout == "split":  # one of three parts of a joint projection, as in gpt2
        joint = torch.randn(B, S, 3 * n_heads * D, device="cuda", dtype=dtype)
        return joint.split(n_heads * D, dim=2)[1].view(B, S, n_heads, D).transpose(1, 2)
    return torch.randn(B, n_heads, S, D, device="cuda", dtype=dtype)


def attention(case):
    """scaled_dot_product_attention; `mask` is bool (as transformers passes it), additive, or absent."""
    dtype, layout = DTYPES[case["dtype"]], case.get("layout", "bsad")
    A, K, B, S = case["heads"], case.get("kv_heads", case["heads"]), case["batch"], case["seq"]
    grad = case.get("grad", True)
    q, k, v = (heads(case, n, dtype, layout).detach().requires_grad_(grad) for n in (A, K, K))
    mask = None
    if case.get("mask"):
        mask = torch.ones(B, 1, S, S, device="cuda", dtype=torch.bool).tril()
        if case["mask"] == "float":
            mask = torch.zeros(B, 1, S, S, device="cuda", dtype=dtype).masked_fill(~mask, -1e4)
    kernels = case.get("kernel", "default")
    for name, enable in (("flash", torch.backends.cuda.enable_flash_sdp),
                         ("efficient", torch.backends.cuda.enable_mem_efficient_sdp),
                         ("cudnn", torch.backends.cuda.enable_cudnn_sdp), ("math", torch.backends.cuda.enable_math_sdp)):
        enable(kernels == "default" or name in kernels.split("+"))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=case.get("dropout", 0.0),
                                              is_causal=mask is None and case.get("causal", True), enable_gqa=K != A)

    return forward, [q, k, v] if grad else []


def embedding(case):
    table = torch.randn(case["rows"], case["dim"], device="cuda", dtype=DTYPES[case["dtype"]], requires_grad=True)
    index = torch.randint(0, case["rows"], (case.get("batch", 1), case["n"]), device="cuda")
    return lambda: F.embedding(index, table), [table]


def layer_norm(case):
    x = torch.randn(case["rows"], case["dim"], device="cuda", dtype=DTYPES[case["dtype"]], requires_grad=True)
    w, b = (torch.randn(case["dim"], device="cuda", dtype=x.dtype, requires_grad=True) for _ in range(2))
    return lambda: F.layer_norm(x, (case["dim"],), w, b), [x, w, b]


def reduction(case):
    x = torch.ones(case["shape"], device="cuda", dtype=DTYPES[case["dtype"]])
    if case["how"] == "norm":
        return lambda: torch.linalg.vector_norm(x), []
    function = {"sum": torch.sum, "mean": torch.mean, "all": torch.all, "any": torch.any}[case["how"]]
    dim = case.get("dim")
    return (lambda: function(x)) if dim is None else (lambda: function(x, dim=tuple(dim))), []


def cumsum(case):
    x = torch.ones(case["batch"], case["n"], device="cuda", dtype=DTYPES[case["dtype"]])
    return lambda: x.cumsum(-1), []


def linear(case):
    x = torch.randn(case["rows"], case["inner"], device="cuda", dtype=DTYPES[case["dtype"]], requires_grad=True)
    w = torch.randn(case["outer"], case["inner"], device="cuda", dtype=x.dtype, requires_grad=True)
    b = torch.randn(case["outer"], device="cuda", dtype=x.dtype, requires_grad=True) if case.get("bias") else None
    return lambda: F.linear(x, w, b), [x, w] + ([b] if b is not None else [])


def cross_entropy(case):
    x = torch.zeros(case["rows"], case["classes"], device="cuda", dtype=DTYPES[case["dtype"]], requires_grad=True)
    target = torch.zeros(case["rows"], device="cuda", dtype=torch.int64)
    return lambda: F.cross_entropy(x, target), [x]


def pointwise(case):
    x = torch.zeros(case["shape"], device="cuda", dtype=DTYPES[case["dtype"]], requires_grad=True)
    function = {"gelu": F.gelu, "silu": F.silu, "mul": lambda y: y * y, "dropout": lambda y: F.dropout(y, 0.1),
                "float": lambda y: y.to(torch.float32), "half": lambda y: y.to(torch.bfloat16),
                "softmax": lambda y: F.softmax(y, -1), "softmax32": lambda y: F.softmax(y, -1, dtype=torch.float32),
                "expand": lambda y: y + torch.zeros(1, device="cuda", dtype=y.dtype)}[case["how"]]
    return lambda: function(x), [x]


OPERATORS = {f.__name__: f for f in
             (attention, embedding, layer_norm, reduction, cumsum, linear, cross_entropy, pointwise)}


def marker():
    torch.empty(MARKER_BYTES, dtype=torch.uint8, device="cuda")


def perform(case):
    """Forward and backward between markers. False: this kernel refuses the case."""
    forward, inputs = OPERATORS[case["op"]](case)
    marker()
    try:
        out = forward()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return str(error).splitlines()[0][:160]
    marker()
    gradients = None
    if inputs:
        gradient = torch.empty_like(out)
        marker()
        gradients = torch.autograd.grad(out, inputs, gradient)
    else:
        marker()
    marker()
    del out, gradients
    return None


def parts(events):
    """The events between markers, in the notation of the output."""
    found, current, number, count = [], None, {}, 0
    for event in events:
        action, size = event["action"], event["size"]
        if action == "alloc" and size == MARKER_BYTES:
            current = []
            found.append(current)
        elif current is None or (action == "free_completed" and size == MARKER_BYTES):
            continue
        elif action == "alloc":
            if len(found) != 2:  # between the second and the third marker the incoming gradient is made
                count += 1
                number[event["addr"]] = count
            current.append("+%d" % size)
        elif action == "free_completed" and event["addr"] in number:
            current.append("-%d" % number.pop(event["addr"]))
    return found


def profile(case):
    """Kernels of the backward with their shared memory."""
    forward, inputs = OPERATORS[case["op"]](case)
    out = forward()
    gradient = torch.empty_like(out)
    torch.autograd.grad(out, inputs, gradient, retain_graph=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        torch.autograd.grad(out, inputs, gradient)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as text:
            events = json.load(text)["traceEvents"]
    return [{"name": e["name"], "shared_bytes": e["args"].get("shared memory")} for e in events if e.get("cat") == "kernel"]


def run_case(case):
    gc.collect()  # what an earlier case left in reference cycles must not be freed in this one
    if case.get("profile"):
        return dict(case, kernels=profile(case))
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=4_000_000, clear_history=True)
    refusal = perform(case)
    torch.cuda.synchronize()
    if refusal:
        return dict(case, refused=refusal)
    found = parts(torch.cuda.memory._snapshot()["device_traces"][0])
    return dict(case, forward=" ".join(found[0]), backward=" ".join(found[2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", help="JSON Lines file of cases, or - for standard input")
    parser.add_argument("-o", "--output", default="operators.jsonl", help="default: %(default)s")
    arguments = parser.parse_args()
    # Workspaces and kernels' modules come with first use; this is not the case's doing.
    a = torch.randn(64, 64, device="cuda", requires_grad=True)
    F.linear(a, a, a[0]).sum().backward()
    with sys.stdin if arguments.cases == "-" else open(arguments.cases) as text, open(arguments.output, "w") as out:
        for line in text:
            case = json.loads(line)
            try:
                result = run_case(case)
            except torch.OutOfMemoryError as error:
                result = dict(case, refused=str(error).splitlines()[0][:160])
            torch.cuda.empty_cache()
            out.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
