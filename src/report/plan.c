/* SPDX-License-Identifier: MIT */
/* A plan as text and as JSON: the settings, what they take, how good they are, and what to type. */
#include "report/plan.h"

#include <inttypes.h>

#include "base/table.h"
#include "base/units.h"

/* ---- pieces ---- */

static void bytes_cell(struct mp_table *table, uint64_t bytes)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_strbuf_release(&text);
}

static void exact_cell(struct mp_table *table, uint64_t bytes)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_grouped_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_strbuf_release(&text);
}

/* ---- blocks ---- */

static bool is_prefix(const struct mp_layer_set *set) { return set->n > 0 && set->layers[set->n - 1] == (int32_t)set->n - 1; }

/* As a run spec says it: {first: 12}, all, [0, 3]. */
static void add_set(const struct mp_layer_set *set, int64_t n_layers, struct mp_strbuf *out)
{
    if (set->n == (size_t)n_layers) {
        mp_strbuf_addstr(out, "all");
    } else if (is_prefix(set)) {
        mp_strbuf_addf(out, "{first: %zu}", set->n);
    } else {
        mp_strbuf_addch(out, '[');
        for (size_t i = 0; i < set->n; i++)
            mp_strbuf_addf(out, "%s%" PRId32, i ? ", " : "", set->layers[i]);
        mp_strbuf_addch(out, ']');
    }
}

/* full, {first: 12}, {layers: [0, 3], attention: [1]}; offload on a line of its own. */
static void add_checkpoint(const struct mp_run *run, struct mp_strbuf *out)
{
    const int64_t n = mp_model_layers(run->model);
    const struct mp_layer_set *const blocks = &run->checkpoint_layers;
    const bool parts = run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0;
    const char *between = "{";
    mp_strbuf_addstr(out, "  checkpoint: ");
    if (run->checkpoint != MP_CHECKPOINT_LAYERS && !parts) {
        mp_strbuf_addstr(out, mp_checkpoint_text(run->checkpoint));
    } else {
        if (run->checkpoint == MP_CHECKPOINT_LAYERS && is_prefix(blocks)) {
            mp_strbuf_addf(out, "{first: %zu", blocks->n);
            between = ", ";
        } else if (run->checkpoint == MP_CHECKPOINT_LAYERS) {
            mp_strbuf_addstr(out, "{layers: ");
            add_set(blocks, n, out);
            between = ", ";
        }
        for (int part = 0; part < MP_PARTS; part++) {
            if (run->recompute[part].n == 0)
                continue;
            mp_strbuf_addf(out, "%s%s: ", between, mp_block_part_text((enum mp_block_part)part));
            add_set(&run->recompute[part], n, out);
            between = ", ";
        }
        mp_strbuf_addch(out, '}');
    }
    mp_strbuf_addch(out, '\n');
    if (run->offload.n > 0) {
        mp_strbuf_addstr(out, "  offload: ");
        add_set(&run->offload, n, out);
        mp_strbuf_addch(out, '\n');
    }
}

/* "recompute 4 and offload 2 of 12 blocks" */
static void add_treatment(const struct mp_plan_option *o, struct mp_strbuf *out)
{
    static const char *const verbs[] = {"keep", "recompute", "recompute attention of", "recompute the MLP of", "offload"};
    const int64_t n = mp_model_layers(o->run.model);
    const char *between = "";
    for (int c = MP_PLAN_KEEP + 1; c < MP_PLAN_CHOICES; c++) {
        if (o->n_blocks[c] == 0)
            continue;
        mp_strbuf_addf(out, "%s%s %d", between, verbs[c], o->n_blocks[c]);
        between = ", ";
    }
    if (!between[0])
        mp_strbuf_addf(out, "keep all %" PRId64 " blocks", n);
    else
        mp_strbuf_addf(out, " of %" PRId64 " blocks", n);
}

static double gap(double value, double bound) { return value > 0 ? (value - bound) / value : 0; }

/* ---- text ---- */

static enum mp_run_key key_of(const char *text)
{
    int key = 0;
    while (key < MP_RUN_KEYS && strcmp(mp_run_key_text((enum mp_run_key)key), text) != 0)
        key++;
    return (enum mp_run_key)key;
}

/* Those that a plan says anyway, whoever chose them. */
static bool is_planned(enum mp_run_key key)
{
    static const enum mp_run_key keys[] = {MP_KEY_MODEL, MP_KEY_GPU, MP_KEY_BATCH, MP_KEY_ACCUMULATE, MP_KEY_SEQ, MP_KEY_PRECISION, MP_KEY_OPTIMIZER,
                                           MP_KEY_CHECKPOINT, MP_KEY_OFFLOAD, MP_KEY_ATTENTION, MP_KEY_ALLOCATOR_CONF, MP_KEY_DATA_PARALLEL, MP_KEY_WORLD,
                                           MP_KEY_GPUS_PER_NODE};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (keys[i] == key)
            return true;
    return false;
}

/* Whatever else the user gave, each on a line, as JSON, which YAML holds. */
static void write_given(const struct mp_run *run, struct mp_strbuf *out)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_json_writer w;
    struct mp_arena arena;
    struct memplan_error err = {0};
    mp_arena_init(&arena);
    mp_json_init(&w, &text, 0);
    mp_run_write_json(run, &w, NULL);
    const struct mp_value *const all = text.failed ? NULL : mp_json_parse(&arena, "run", text.data, text.len, &err);
    out->failed |= all == NULL;
    for (size_t i = 0; all && i < all->as.object.length; i++) {
        const struct mp_member *const member = &all->as.object.members[i];
        const enum mp_run_key key = key_of(member->key);
        if (is_planned(key) || !mp_run_is_given(run, key))
            continue;
        mp_strbuf_addf(out, "  %s: ", member->key);
        mp_json_init(&w, out, 0);
        mp_json_value(&w, NULL, member->value);
        mp_strbuf_addch(out, '\n');
    }
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
}

/* A shipped name or a path, or what stands in the run itself. */
static void write_model(const struct mp_run *run, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 0);
    mp_strbuf_addstr(out, "  model: ");
    if (run->model_value && run->model_value->kind == MP_STRING)
        mp_strbuf_addstr(out, run->model_value->as.string.text);
    else
        mp_json_value(&w, NULL, run->model->config);
    mp_strbuf_addch(out, '\n');
}

static void write_spec(const struct mp_run *run, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "\nAs a run spec, for memplan fit --run FILE:\n");
    write_model(run, out);
    mp_strbuf_addf(out, "  gpu: %s\n", run->gpu_value);
    mp_strbuf_addf(out, "  batch: %" PRId64 "\n  accumulate: %" PRId64 "\n  seq: %" PRId64 "\n", run->batch, run->accumulate, run->seq);
    mp_strbuf_addf(out, "  precision: %s\n  optimizer: %s\n", mp_precision_text(run->precision), mp_optimizer_text(run->optimizer));
    add_checkpoint(run, out);
    if (run->attention != MP_ATTENTION_SDPA)
        mp_strbuf_addf(out, "  attention: %s\n", mp_attention_text(run->attention));
    if (run->allocator_conf[0])
        mp_strbuf_addf(out, "  allocator_conf: \"%s\"\n", run->allocator_conf);
    if (run->parallel != MP_PARALLEL_NONE)
        mp_strbuf_addf(out, "  data_parallel: %s\n  world: %" PRId64 "\n  gpus_per_node: %" PRId64 "\n", mp_parallel_text(run->parallel), run->world,
                       run->gpus_per_node);
    write_given(run, out);
}

/* Where transformers keeps the blocks. */
static const char *blocks_of(const char *model_type)
{
    static const struct { const char *type, *blocks; } all[] = {
        {"gpt2", "model.transformer.h"},        {"gpt_bigcode", "model.transformer.h"}, {"gpt_neo", "model.transformer.h"},
        {"bert", "model.bert.encoder.layer"},   {"roberta", "model.roberta.encoder.layer"}, {"opt", "model.model.decoder.layers"},
        {"gpt_neox", "model.gpt_neox.layers"},  {"vit", "model.vit.encoder.layer"}};
    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        if (strcmp(all[i].type, model_type) == 0)
            return all[i].blocks;
    return "model.model.layers";
}

/* Where a block keeps attention and MLP; bert's MLP is a method. */
static const char *part_of(const char *model_type, enum mp_block_part part)
{
    const bool bert = strcmp(model_type, "bert") == 0 || strcmp(model_type, "roberta") == 0;
    if (part == MP_PART_MLP)
        return bert ? "blocks[i], \"feed_forward_chunk\"" : "blocks[i].mlp, \"forward\"";
    if (bert || strcmp(model_type, "gpt_neox") == 0)
        return "blocks[i].attention, \"forward\"";
    return strcmp(model_type, "gpt2") == 0 ? "blocks[i].attn, \"forward\"" : "blocks[i].self_attn, \"forward\"";
}

/* "range(12)", "range(4, 9)", "(0, 3,)": what Python goes through. */
static void add_loop(const struct mp_layer_set *set, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "  for i in ");
    if (is_prefix(set)) {
        mp_strbuf_addf(out, "range(%zu)", set->n);
    } else if (set->layers[set->n - 1] - set->layers[0] + 1 == (int32_t)set->n) {
        mp_strbuf_addf(out, "range(%" PRId32 ", %" PRId32 ")", set->layers[0], set->layers[set->n - 1] + 1);
    } else {
        mp_strbuf_addch(out, '(');
        for (size_t i = 0; i < set->n; i++)
            mp_strbuf_addf(out, "%" PRId32 "%s", set->layers[i], i + 1 < set->n ? ", " : ",)");
    }
    mp_strbuf_addstr(out, ":\n      ");
}

static void write_switches(const struct mp_run *run, struct mp_strbuf *out)
{
    if (run->checkpoint == MP_CHECKPOINT_FULL)
        mp_strbuf_addstr(out, "  model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n");
    if (run->checkpoint != MP_CHECKPOINT_LAYERS)
        return;
    mp_strbuf_addf(out,
                   "  model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n"
                   "  for i, layer in enumerate(%s):\n      layer.gradient_checkpointing = ",
                   blocks_of(run->model->model_type));
    if (is_prefix(&run->checkpoint_layers)) {
        mp_strbuf_addf(out, "i < %zu\n", run->checkpoint_layers.n);
    } else {
        mp_strbuf_addstr(out, "i in (");
        for (size_t i = 0; i < run->checkpoint_layers.n; i++)
            mp_strbuf_addf(out, "%" PRId32 "%s", run->checkpoint_layers.layers[i], i + 1 < run->checkpoint_layers.n ? ", " : ",)\n");
    }
}

/* transformers has no switch for these: a module's forward is wrapped. */
static void write_wrappers(const struct mp_run *run, struct mp_strbuf *out)
{
    const bool parts = run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0;
    if (!mp_run_treats_blocks(run))
        return;
    mp_strbuf_addf(out, "  blocks = %s\n", blocks_of(run->model->model_type));
    if (parts)
        mp_strbuf_addstr(out, "  import functools\n"
                              "  from torch.utils.checkpoint import checkpoint\n"
                              "  def recompute(module, name):\n"
                              "      f = getattr(module, name)\n"
                              "      setattr(module, name, functools.wraps(f)(lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k)))\n");
    for (int part = 0; part < MP_PARTS; part++) {
        if (run->recompute[part].n == 0)
            continue;
        add_loop(&run->recompute[part], out);
        mp_strbuf_addf(out, "recompute(%s)\n", part_of(run->model->model_type, (enum mp_block_part)part));
    }
    if (run->offload.n == 0)
        return;
    mp_strbuf_addstr(out, "  def offload(block):\n"
                          "      f = block.forward\n"
                          "      def on_host(*a, **k):\n"
                          "          with torch.autograd.graph.save_on_cpu(pin_memory=True):\n"
                          "              return f(*a, **k)\n"
                          "      block.forward = on_host\n");
    add_loop(&run->offload, out);
    mp_strbuf_addstr(out, "offload(blocks[i])\n");
}

static void write_settings(const struct mp_run *run, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "\nTo type:\n");
    mp_strbuf_addf(out, "  micro-batch %" PRId64 ", %" PRId64 " micro-batches a step (loss / %" PRId64 ", one optimizer.step())\n", run->batch,
                   run->accumulate, run->accumulate);
    if (run->optimizer == MP_OPTIMIZER_ADAMW_FUSED)
        mp_strbuf_addstr(out, "  torch.optim.AdamW(model.parameters(), fused=True)\n");
    write_switches(run, out);
    write_wrappers(run, out);
    if (run->allocator_conf[0])
        mp_strbuf_addf(out, "  export PYTORCH_CUDA_ALLOC_CONF=%s\n", run->allocator_conf);
}

static void write_numbers(const struct mp_plan_option *o, struct mp_strbuf *out)
{
    const struct { const char *name; uint64_t bytes; } rows[] = {
        {"allocated", o->allocated_bytes}, {"reserved", o->reserved_bytes}, {"device used", o->device_used_bytes}};
    struct mp_table *const table = mp_table_new("lrr");
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++) {
        mp_table_cell(table, "%s", rows[i].name);
        bytes_cell(table, rows[i].bytes);
        exact_cell(table, rows[i].bytes);
    }
    mp_strbuf_addstr(out, "\nPeaks in bytes, by replay:\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

static void write_time(const struct mp_plan_option *o, struct mp_strbuf *out)
{
    const struct mp_step_cost *const c = &o->cost;
    mp_strbuf_addf(out, "\nA step takes about %.4g s (%.0f tokens/s): forward %.4g s and backward %.4g s a micro-batch, optimizer %.4g s", c->step_s,
                   c->tokens_per_s, c->forward_s, c->backward_s, c->optimizer_s);
    if (c->communication_s > 0)
        mp_strbuf_addf(out, ", communication %.4g s that does not hide", c->communication_s);
    mp_strbuf_addstr(out, ".\n");
    mp_strbuf_addf(out, "Bound for these settings: %.4g s, gap %.2f %%", o->bound_s, 100 * gap(c->step_s, o->bound_s));
    if (o->greedy_s < 0)
        mp_strbuf_addstr(out, "; choosing blocks greedily fits nowhere.\n");
    else
        mp_strbuf_addf(out, "; choosing blocks greedily: %.4g s, %.2f %% more.\n", o->greedy_s,
                       100 * MP_MAX(o->greedy_s - c->step_s, 0) / c->step_s);
    if (o->n_cuts)
        mp_strbuf_addf(out, "The replay said no %d times before it fitted: fragmentation takes the rest.\n", o->n_cuts);
    if (!o->optimal)
        mp_strbuf_addstr(out, "The solver ran out of time: the best choice found, not proven best.\n");
}

static void option_cells(struct mp_table *table, const struct mp_plan_option *o)
{
    const struct mp_run *const run = &o->run;
    mp_table_cell(table, "%" PRId64, run->batch);
    mp_table_cell(table, "%" PRId64, run->accumulate);
    mp_table_cell(table, "%s", mp_precision_text(run->precision));
    mp_table_cell(table, "%s", mp_parallel_text(run->parallel));
    mp_table_cell(table, "%s", run->allocator_conf[0] ? "expandable" : "default");
    if (o->proven_too_large || !o->fits) {
        mp_table_cell(table, "%s", o->proven_too_large ? "too large" : o->beaten ? "slower" : "does not fit");
        for (int i = 0; i < 4; i++)
            mp_table_cell(table, " ");
    } else {
        mp_table_cell(table, "%d", o->n_blocks[MP_PLAN_RECOMPUTE]);
        mp_table_cell(table, "%d", o->n_blocks[MP_PLAN_ATTENTION] + o->n_blocks[MP_PLAN_MLP]);
        mp_table_cell(table, "%d", o->n_blocks[MP_PLAN_OFFLOAD]);
        bytes_cell(table, o->device_used_bytes);
        mp_table_cell(table, "%.4g s", o->cost.step_s);
    }
}

static void write_options(const char *title, const struct mp_plan_option *options, size_t n, struct mp_strbuf *out)
{
    static const char *const titles[] = {"batch", "micro-batches", "precision", "ranks", "allocator", "recomputed", "in part", "offloaded",
                                        "device used", "step"};
    struct mp_table *const table = mp_table_new("rrlllrrrrr");
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (size_t i = 0; i < n; i++)
        option_cells(table, &options[i]);
    mp_strbuf_addf(out, "\n%s:\n", title);
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

/* What the plan left as it was given cannot be smaller. */
static void add_smallest(const struct mp_run *run, struct mp_strbuf *out)
{
    const bool blocks = mp_run_is_given(run, MP_KEY_CHECKPOINT) || mp_run_is_given(run, MP_KEY_OFFLOAD);
    if (mp_run_is_given(run, MP_KEY_BATCH) && run->batch > 1)
        mp_strbuf_addf(out, "%" PRId64 " sequences as given", run->batch);
    else
        mp_strbuf_addstr(out, "one sequence");
    mp_strbuf_addstr(out, blocks ? ", blocks as given" : ", every block recomputed or offloaded");
}

static void write_nothing(const struct mp_plan *plan, struct mp_strbuf *out)
{
    const struct mp_run *const run = plan->request.run;
    mp_strbuf_addf(out, "Nothing fits: %s on %s", run->model->name, run->gpu->name);
    if (plan->request.gpus > 1)
        mp_strbuf_addf(out, " x %" PRId64, plan->request.gpus);
    mp_strbuf_addstr(out, ".\n");
    mp_strbuf_addstr(out, plan->proven ? "Proof: even the smallest settings (" : "The smallest settings (");
    add_smallest(run, out);
    mp_strbuf_addstr(out, ") ask for at least ");
    mp_bytes_format(out, plan->least_bytes);
    mp_strbuf_addstr(out, plan->proven ? " of tensors alone; the card gives " : " of tensors; the card gives ");
    mp_bytes_format(out, plan->available_bytes);
    mp_strbuf_addstr(out, plan->proven ? ".\n" : ", but no replay ends well.\n");
    if (plan->n_changes == 0) {
        mp_strbuf_addstr(out, "No single change that was tried makes it fit.\n");
        return;
    }
    struct mp_table *const table = mp_table_new("ll");
    for (size_t i = 0; i < plan->n_changes; i++) {
        mp_table_cell(table, "%s", plan->changes[i].what);
        mp_table_cell(table, "%s", plan->changes[i].setting);
    }
    mp_strbuf_addstr(out, "\nEach of these alone would (replayed), the smallest change first:\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

void mp_report_plan_text(const struct mp_plan *plan, struct mp_strbuf *out)
{
    const struct mp_plan_option *const best = plan->best;
    if (!best) {
        write_nothing(plan, out);
        return;
    }
    const struct mp_run *const run = &best->run;
    mp_strbuf_addf(out, "Plan: %s on %s", run->model->name, run->gpu->name);
    if (run->world > 1)
        mp_strbuf_addf(out, " x %" PRId64 " (%s)", run->world, mp_parallel_text(run->parallel));
    mp_strbuf_addf(out, ", %" PRId64 " tokens a step.\n", run->batch * run->seq * run->accumulate * run->world);
    mp_strbuf_addf(out, "Micro-batch %" PRId64 ", %s, %s, ", run->batch, mp_precision_text(run->precision), mp_optimizer_text(run->optimizer));
    add_treatment(best, out);
    mp_strbuf_addf(out, ", %s.\n", run->allocator_conf[0] ? run->allocator_conf : "allocator as it is");
    if (best->cost.host_bytes > 0) {
        mp_strbuf_addstr(out, "What is offloaded takes ");
        mp_bytes_format(out, best->cost.host_bytes);
        mp_strbuf_addstr(out, " of pinned host memory on every rank.\n");
    }
    write_numbers(best, out);
    write_time(best, out);
    write_spec(run, out);
    write_settings(run, out);
    write_options("Tried", plan->options, plan->n_options, out);
    if (plan->n_front)
        write_options("Memory against time (no other one is better in both)", plan->front, plan->n_front, out);
}

/* ---- JSON ---- */

static void write_option(struct mp_json_writer *w, const char *key, const struct mp_plan_option *o)
{
    mp_json_object(w, key);
    mp_run_write_json(&o->run, w, "run");
    mp_json_bool(w, "fits", o->fits);
    mp_json_bool(w, "proven_too_large", o->proven_too_large);
    mp_json_bool(w, "proven_slower", o->beaten);
    if (o->fits) {
        mp_json_uint(w, "requested_bytes", o->requested_bytes);
        mp_json_uint(w, "allocated_bytes", o->allocated_bytes);
        mp_json_uint(w, "reserved_bytes", o->reserved_bytes);
        mp_json_uint(w, "device_used_bytes", o->device_used_bytes);
        mp_json_int(w, "recomputed_blocks", o->n_blocks[MP_PLAN_RECOMPUTE]);
        mp_json_int(w, "attention_recomputed_blocks", o->n_blocks[MP_PLAN_ATTENTION]);
        mp_json_int(w, "mlp_recomputed_blocks", o->n_blocks[MP_PLAN_MLP]);
        mp_json_int(w, "offloaded_blocks", o->n_blocks[MP_PLAN_OFFLOAD]);
        mp_json_uint(w, "host_bytes", o->cost.host_bytes);
        mp_json_double(w, "step_s", o->cost.step_s);
        mp_json_double(w, "forward_s", o->cost.forward_s);
        mp_json_double(w, "backward_s", o->cost.backward_s);
        mp_json_double(w, "optimizer_s", o->cost.optimizer_s);
        mp_json_double(w, "communication_s", o->cost.communication_s);
        mp_json_double(w, "tokens_per_s", o->cost.tokens_per_s);
        mp_json_double(w, "bound_s", o->bound_s);
        mp_json_double(w, "gap", gap(o->cost.step_s, o->bound_s));
        if (o->greedy_s < 0)
            mp_json_null(w, "greedy_s");
        else
            mp_json_double(w, "greedy_s", o->greedy_s);
        mp_json_bool(w, "proven_best", o->optimal);
        mp_json_int(w, "cuts", o->n_cuts);
    }
    mp_json_end_object(w);
}

void mp_report_plan_json(const struct mp_plan *plan, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_int(&w, "schema_version", MP_PLAN_SCHEMA_VERSION);
    mp_json_bool(&w, "fits", plan->best != NULL);
    if (plan->best)
        write_option(&w, "plan", plan->best);
    else
        mp_json_null(&w, "plan");
    if (!plan->best) {
        mp_json_object(&w, "nothing_fits");
        mp_json_bool(&w, "proven", plan->proven);
        mp_json_uint(&w, "least_requested_bytes", plan->least_bytes);
        mp_json_uint(&w, "available_bytes", plan->available_bytes);
        mp_json_array(&w, "changes");
        for (size_t i = 0; i < plan->n_changes; i++) {
            mp_json_object(&w, NULL);
            mp_json_string(&w, "what", plan->changes[i].what);
            mp_json_string(&w, "setting", plan->changes[i].setting);
            mp_json_end_object(&w);
        }
        mp_json_end_array(&w);
        mp_json_end_object(&w);
    }
    mp_json_array(&w, "tried");
    for (size_t i = 0; i < plan->n_options; i++)
        write_option(&w, NULL, &plan->options[i]);
    mp_json_end_array(&w);
    mp_json_array(&w, "pareto");
    for (size_t i = 0; i < plan->n_front; i++)
        write_option(&w, NULL, &plan->front[i]);
    mp_json_end_array(&w);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
}
