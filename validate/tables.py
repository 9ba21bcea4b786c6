#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tables of docs/validate-results.md from what run_all.sh measured.

    validate/tables.py validate/results/gpu/h200 [--memplan ./memplan] [probe replay limits train ranks operations losses]

Predictions are made anew, with the GPU file beside the results: what was predicted when the card was measured stands in the files.
Errors are (predicted - measured) / measured.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import tempfile


def lines(path):
    with open(path, encoding="utf-8") as text:
        return [json.loads(line) for line in text]


def predict(memplan, folder, result):
    """The header of the program that memplan writes for the result's run: "gpu" and "predicted"."""
    run = dict(result["run"])
    run["gpu"] = os.path.join(os.path.abspath(folder), os.path.basename(run["gpu"]))
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "run.json"), "w", encoding="utf-8") as text:
            json.dump(run, text)
        done = subprocess.run([memplan, "fit", "--no-advice", "--run", "run.json", "--program", "program"], cwd=work, check=False,
                              capture_output=True, text=True)
        if done.returncode > 1:
            raise SystemExit(done.stderr)
        with open(os.path.join(work, "program"), encoding="utf-8") as text:
            return json.loads(text.readline())


def predictions(memplan, folder, results):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda result: predict(memplan, folder, result), results))


def percent(predicted, measured):
    return "%+.3f %%" % (100 * (predicted - measured) / measured)


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(*titles):
    row(*titles)
    row(*("---" if i == 0 else "---:" for i in range(len(titles))))


def name(result):
    return result["program"].removesuffix(".jsonl").split("-", 1)[1] if result["program"][1] == "-" else result["program"].removesuffix(".jsonl")


# ---- one function per table ----


def probe(prefix, _):
    log = json.load(open(prefix + "-probe.json", encoding="utf-8"))["_probe"]
    last = 0
    head("stage", "bytes of the card in use", "added")
    for stage in log["stages"]:
        row(stage["stage"], "{:,}".format(stage["used_bytes"]), "{:+,}".format(stage["used_bytes"] - last))
        last = stage["used_bytes"]
    print()
    head("rate", "a second")
    for rate in log["rates"]:
        row(rate["what"], "%.3g" % rate["per_second"])
    print()
    head("NCCL, two ranks", "one process, added", "mpirun, added", "mpirun, over the ranks")
    both = [[s for s in json.load(open(prefix + file, encoding="utf-8"))["_probe"]["stages"] if s["stage"].startswith("NCCL")]
            for file in ("-probe-one-process.json", "-probe-ranks.json")]
    for i in range(1, len(both[0])):
        added = ["{:+,}".format(stages[i]["used_bytes"] - stages[i - 1]["used_bytes"]) for stages in both]
        least, most = both[1][i]["least_of_all_ranks_bytes"], both[1][i]["most_of_all_ranks_bytes"]
        row(both[0][i]["stage"].split(": ")[1], *added, "{:,}".format(most) if least == most else "{:,} to {:,}".format(least, most))
    print()


def replay(prefix, memplan):
    results = lines(prefix + "-replay.jsonl")
    headers = predictions(memplan, os.path.dirname(prefix), results)
    head("job", "limit", "requests", "segments", "reserved, measured", "same addresses", "fit", "error", "died")
    for result, header in zip(results, headers):
        measured, plain = result["measured"], "cap_bytes" not in result and "leave_bytes" not in result
        limit = "" if plain else "cap {:,}".format(result["cap_bytes"]) if "cap_bytes" in result else "card left {:,}".format(result["leave_bytes"])
        fit = header["predicted"]["reserved_bytes"]
        row(name(result), limit, "{:,}".format(result["requests"]), "{:,}".format(result["segments"]),
            "{:,}".format(measured["reserved_bytes"]), "equal" if result["equal"] else "NOT equal",
            "{:,}".format(fit) if plain else "", percent(fit, measured["reserved_bytes"]) if plain else "",
            "at event {:,}, as predicted".format(measured["oom_event"]) if measured["oom"] else "")
    lost = [r for r in results if r["device_peak_bytes"] - r["device_idle_bytes"] != r["measured"]["reserved_bytes"]]
    print("\n%d of %d are equal to the byte at the driver's addresses; in %d the card lost (cudaMemGetInfo) just what is reserved.\n"
          % (sum(r["equal"] for r in results), len(results), len(results) - len(lost)))


def limits(prefix, memplan):
    results = lines(prefix + "-limits.jsonl")
    headers = predictions(memplan, os.path.dirname(prefix), results)
    count = {}
    for result, header in zip(results, headers):
        count.setdefault((header["predicted"]["oom"], result["measured"]["oom"]), []).append(name(result))
    head("fit says", "ran through", "died")
    for oom, text in ((False, "fits"), (True, "dies")):
        row(text, len(count.get((oom, False), [])), len(count.get((oom, True), [])))
    print("\ncalled \"fits\" and died: %s; called too large and ran: %s; equal at the driver's addresses: %d of %d\n"
          % (", ".join(count.get((False, True), [])) or "none", ", ".join(count.get((True, False), [])) or "none",
             sum(r["equal"] for r in results), len(results)))


def predicted_used(header):
    gpu, predicted = header["gpu"], header["predicted"]
    return gpu["unavailable_bytes"] + predicted["reserved_bytes"] + predicted["context_bytes"] - gpu["context_bytes"]


def train(prefix, memplan, file="-train.jsonl"):
    results = lines(prefix + file)
    headers = predictions(memplan, os.path.dirname(prefix), results)
    head("job", "operations", "allocated, measured", "fit", "reserved, measured", "fit", "card, measured", "predicted", "error", "loss, first and last",
         "PyTorch's differ by")
    for result, header in zip(results, headers):
        measured, fit, used = result["measured"], header["predicted"], predicted_used(header)
        losses = result["losses"]
        row(name(result), "{:,}".format(result["operations_run"]), "{:,}".format(measured["allocated_bytes"]),
            percent(fit["allocated_bytes"], measured["allocated_bytes"]), "{:,}".format(measured["reserved_bytes"]),
            percent(fit["reserved_bytes"], measured["reserved_bytes"]), "{:,}".format(measured["device_used_bytes"]), "{:,}".format(used),
            percent(used, measured["device_used_bytes"]), "%.4f, %.4f" % (losses[0], losses[-1]),
            "%.1e" % result["worst_loss_difference"] if "worst_loss_difference" in result else "")
    print("\n%d of %d are equal to the byte at the driver's addresses.\n" % (sum(r["equal_at_same_addresses"] for r in results), len(results)))


def phases(prefix, memplan):
    """The first job of train, phase by phase."""
    result = lines(prefix + "-train.jsonl")[0]
    header = predict(memplan, os.path.dirname(prefix), result)
    context = predicted_used(header) - header["predicted"]["reserved_bytes"]
    head("phase of " + name(result), "allocated", "error", "reserved", "error", "card", "error")
    for measured, fit in zip(result["measured"]["phases"][:10], header["predicted"]["phases"]):
        row(measured["phase"], "{:,}".format(measured["allocated_peak"]), percent(fit["allocated_peak"], measured["allocated_peak"]),
            "{:,}".format(measured["reserved_peak"]), percent(fit["reserved_peak"], measured["reserved_peak"]),
            "{:,}".format(measured["device_peak"]), percent(context + fit["reserved_peak"], measured["device_peak"]))
    print()


def ranks(prefix, memplan):
    train(prefix, memplan, "-train-ranks.jsonl")


def random(prefix, memplan):
    for file in ("-random.jsonl", "-random-ranks.jsonl"):
        results = lines(prefix + file)
        headers = predictions(memplan, os.path.dirname(prefix), results)
        head("job", "run", "operations or requests", "reserved, measured", "allocated, error", "reserved, error", "card, error", "same addresses")
        exact, close, trained = 0, 0, 0
        for result, header in zip(results, headers):
            measured, fit, is_train = result["measured"], header["predicted"], result["command"] == "train"
            used = predicted_used(header)
            equal = result["equal_at_same_addresses"] if is_train else result["equal"]
            exact += fit["allocated_bytes"] == measured["allocated_bytes"] and fit["reserved_bytes"] == measured["reserved_bytes"]
            trained += is_train
            close += is_train and abs(used / measured["device_used_bytes"] - 1) <= 0.01
            row(result["program"].removesuffix(".jsonl"), result["command"], "{:,}".format(result["operations_run" if is_train else "requests"]),
                "{:,}".format(measured["reserved_bytes"]), percent(fit["allocated_bytes"], measured["allocated_bytes"]),
                percent(fit["reserved_bytes"], measured["reserved_bytes"]),
                percent(used, measured["device_used_bytes"]) if is_train else "", "equal" if equal else "NOT equal")
        print("\n%d of %d exact in allocated and reserved bytes; the card within 1 %% in %d of %d that were trained.\n"
              % (exact, len(results), close, trained))


def operations(prefix, _):
    types = {}
    for file in ("-operations.jsonl", "-operations-ranks.jsonl"):
        for result in lines(prefix + file):
            for op in result["operations"]:
                entry = types.setdefault(op["dtype"], {"n": 0, "ops": set(), "worst": 0, "in": "", "failed": 0})
                entry["n"] += op["results"]
                entry["ops"].add(op["op"])
                entry["failed"] += not op["passed"]
                if op["worst_relative_error"] > entry["worst"]:
                    entry["worst"], entry["in"] = op["worst_relative_error"], op["op"]
    head("type", "results", "operations", "worst", "in", "limit", "failed")
    for dtype in ("float32", "bfloat16", "float16", "int64", "bool"):
        entry = types[dtype]
        limit = "1e-5" if dtype == "float32" else "2e-2" if "float" in dtype else "0"
        row(dtype, "{:,}".format(entry["n"]), len(entry["ops"]), "%.1e" % entry["worst"], entry["in"], limit, entry["failed"])
    print()


def losses(prefix, _):
    head("job", "steps", "first loss", "last loss", "PyTorch's differ by", "on two ranks by")
    together = {r["program"]: max(rank["worst_loss_difference"] for rank in r["ranks"]) for r in lines(prefix + "-losses-ranks.jsonl")}
    for result in lines(prefix + "-losses.jsonl"):
        two = together.get(result["program"])
        row(result["program"].removesuffix(".jsonl"), 20, "%.6f" % result["losses"][0], "%.6f" % result["losses"][-1],
            "%.1e" % result["worst_loss_difference"], "" if two is None else "%.1e" % two)
    print()


TABLES = {f.__name__: f for f in (probe, replay, limits, train, phases, ranks, random, operations, losses)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", help="such as validate/results/gpu/h200")
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="which (default: all)")
    parser.add_argument("--memplan", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "memplan"))
    arguments = parser.parse_args()
    for table in arguments.tables or TABLES:
        TABLES[table](arguments.prefix, os.path.abspath(arguments.memplan))


if __name__ == "__main__":
    main()
