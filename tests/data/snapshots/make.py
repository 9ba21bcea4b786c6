#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the snapshots of this folder as torch.cuda.memory._dump_snapshot() would have written them.

usage: make.py (from the repository root). Small blocks and 30 MiB blocks on device 1 of two, with stack frames that entries
share, under max_split_size_mb:64, plus an unused segment in the pool of a CUDA graph.
"""
import gzip, json, os, pickle

HERE = os.path.dirname(os.path.abspath(__file__))
BASE, LARGE = 0x7F0000000000, 0x7E0000000000
FRAMES = [{"name": "forward", "filename": "/usr/lib/model.py", "line": 300}, {"name": "<module>", "filename": "train.py", "line": 7}]


def entry(action, addr, size, frames=None):
    e = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1700000000000000 + addr % 977,
         "compile_context": "N/A", "user_metadata": ""}
    if frames is not None:
        e["frames"] = frames
    return e


def free(addr, size):
    return [entry("free_requested", addr, size, FRAMES), entry("free_completed", addr, size, FRAMES)]


def block(address, size, requested, state):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": FRAMES if state != "inactive" else []}


def segment(address, size, blocks, kind, pool=(0, 0)):
    live = [b for b in blocks if b["state"] != "inactive"]
    return {"device": 1, "address": address, "total_size": size, "allocated_size": sum(b["size"] for b in live),
            "active_size": sum(b["size"] for b in live), "requested_size": sum(b["requested_size"] for b in live), "stream": 0,
            "segment_type": kind, "segment_pool_id": pool, "is_expandable": False, "frames": FRAMES, "blocks": blocks}


trace = [entry("segment_alloc", BASE, 2 << 20, FRAMES)]
trace += [entry("alloc", BASE + 512 * i, 400 + i, FRAMES) for i in range(100)]
trace += [entry("segment_alloc", LARGE, 30 << 20), entry("alloc", LARGE, (30 << 20) - 7)]
trace += free(LARGE, (30 << 20) - 7)
for i in range(0, 100, 2):
    trace += free(BASE + 512 * i, 400 + i)
for i in range(0, 98, 2):
    trace += [entry("alloc", BASE + 512 * i, 1 + i)]
for i in range(0, 98, 2):
    trace += free(BASE + 512 * i, 1 + i)
trace += [entry("alloc", LARGE, 29 << 20)]
trace += [entry("alloc", BASE, 3)]
while len(trace) < 400:
    addr = BASE + 1024 * (1 + (len(trace) - 1) % 2 * 0)
    trace += [entry("alloc", addr, 9)] + free(addr, 9)
trace = trace[:400]
live = {}
for e in trace:
    if e["action"] == "alloc":
        live[e["addr"]] = e["size"]
    elif e["action"] == "free_completed":
        del live[e["addr"]]
blocks, at = [], BASE
for a in sorted(x for x in live if x >= BASE):
    if a > at:
        blocks.append(block(at, a - at, 1, "inactive"))
    blocks.append(block(a, 512, live[a], "active_allocated"))
    at = a + 512
blocks.append(block(at, BASE + (2 << 20) - at, 0, "inactive"))
large = [block(LARGE, 30 << 20, 29 << 20, "active_allocated")]
snapshot = {
    "segments": [segment(LARGE, 30 << 20, large, "large"),
                 segment(0x7D0000000000, 2 << 20, [block(0x7D0000000000, 2 << 20, 0, "inactive")], "small", (0, 3)),
                 segment(BASE, 2 << 20, blocks, "small")],
    "device_traces": [[], trace],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 << 20,
                           "garbage_collection_threshold": 0.0, "expandable_segments": False, "pinned_num_register_threads": 1,
                           "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
                           "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}},
    "external_annotations": [{"name": "step", "stage": "START", "device": 1, "time_us": 1700000000000000}],
}
for protocol in (2, 3, 4):
    with open(f"{HERE}/protocol{protocol}.pickle", "wb") as f:
        pickle.dump(snapshot, f, protocol)
with gzip.GzipFile(f"{HERE}/protocol5.pickle.gz", "wb", mtime=0) as f:
    pickle.dump(snapshot, f, 5)
with open(f"{HERE}/snapshot.json", "w") as f:
    json.dump(snapshot, f)
