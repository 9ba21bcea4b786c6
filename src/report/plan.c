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

static bool is_prefix(const struct mp_run *run)
{
    for (size_t i = 0; i < run->checkpoint_layers.n; i++)
        if (run->checkpoint_layers.layers[i] != (int32_t)i)
            return false;
    return true;
}

/* As a run spec says it: full, {first: 12}, {layers: [0, 3]}. */
static void add_checkpoint(const struct mp_run *run, struct mp_strbuf *out)
{
    if (run->checkpoint != MP_CHECKPOINT_LAYERS) {
        mp_strbuf_addstr(out, mp_checkpoint_text(run->checkpoint));
    } else if (is_prefix(run)) {
        mp_strbuf_addf(out, "{first: %zu}", run->checkpoint_layers.n);
    } else {
        mp_strbuf_addstr(out, "{layers: [");
        for (size_t i = 0; i < run->checkpoint_layers.n; i++)
            mp_strbuf_addf(out, "%s%" PRId32, i ? ", " : "", run->checkpoint_layers.layers[i]);
        mp_strbuf_addstr(out, "]}");
    }
}

static double gap(double value, double bound) { return value > 0 ? (value - bound) / value : 0; }

/* ---- text ---- */

static void write_spec(const struct mp_run *run, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "\nAs a run spec, for memplan fit --run FILE:\n");
    mp_strbuf_addf(out, "  model: %s\n  gpu: %s\n",
                   run->model_value && run->model_value->kind == MP_STRING ? run->model_value->as.string.text : run->model->name, run->gpu_value);
    mp_strbuf_addf(out, "  batch: %" PRId64 "\n  accumulate: %" PRId64 "\n  seq: %" PRId64 "\n", run->batch, run->accumulate, run->seq);
    mp_strbuf_addf(out, "  precision: %s\n  optimizer: %s\n  checkpoint: ", mp_precision_text(run->precision), mp_optimizer_text(run->optimizer));
    add_checkpoint(run, out);
    mp_strbuf_addch(out, '\n');
    if (run->attention != MP_ATTENTION_SDPA)
        mp_strbuf_addf(out, "  attention: %s\n", mp_attention_text(run->attention));
    if (run->allocator_conf[0])
        mp_strbuf_addf(out, "  allocator_conf: \"%s\"\n", run->allocator_conf);
    if (run->parallel != MP_PARALLEL_NONE)
        mp_strbuf_addf(out, "  data_parallel: %s\n  world: %" PRId64 "\n  gpus_per_node: %" PRId64 "\n", mp_parallel_text(run->parallel), run->world,
                       run->gpus_per_node);
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

static void write_settings(const struct mp_run *run, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "\nTo type:\n");
    mp_strbuf_addf(out, "  micro-batch %" PRId64 ", %" PRId64 " micro-batches a step (loss / %" PRId64 ", one optimizer.step())\n", run->batch,
                   run->accumulate, run->accumulate);
    if (run->optimizer == MP_OPTIMIZER_ADAMW_FUSED)
        mp_strbuf_addstr(out, "  torch.optim.AdamW(model.parameters(), fused=True)\n");
    if (run->checkpoint == MP_CHECKPOINT_FULL)
        mp_strbuf_addstr(out, "  model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n");
    if (run->checkpoint == MP_CHECKPOINT_LAYERS) {
        mp_strbuf_addf(out,
                       "  model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n"
                       "  for i, layer in enumerate(%s):\n      layer.gradient_checkpointing = ",
                       blocks_of(run->model->model_type));
        if (is_prefix(run)) {
            mp_strbuf_addf(out, "i < %zu\n", run->checkpoint_layers.n);
        } else {
            mp_strbuf_addstr(out, "i in (");
            for (size_t i = 0; i < run->checkpoint_layers.n; i++)
                mp_strbuf_addf(out, "%" PRId32 "%s", run->checkpoint_layers.layers[i], i + 1 < run->checkpoint_layers.n ? ", " : ",)\n");
        }
    }
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
        mp_table_cell(table, " ");
        mp_table_cell(table, " ");
    } else {
        mp_table_cell(table, "%d", o->n_recomputed);
        bytes_cell(table, o->device_used_bytes);
        mp_table_cell(table, "%.4g s", o->cost.step_s);
    }
}

static void write_options(const char *title, const struct mp_plan_option *options, size_t n, struct mp_strbuf *out)
{
    static const char *const titles[] = {"batch", "micro-batches", "precision", "ranks", "allocator", "recomputed", "device used", "step"};
    struct mp_table *const table = mp_table_new("rrlllrrr");
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (size_t i = 0; i < n; i++)
        option_cells(table, &options[i]);
    mp_strbuf_addf(out, "\n%s:\n", title);
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

static void write_nothing(const struct mp_plan *plan, struct mp_strbuf *out)
{
    const struct mp_run *const run = plan->request.run;
    mp_strbuf_addf(out, "Nothing fits: %s on %s", run->model->name, run->gpu->name);
    if (plan->request.gpus > 1)
        mp_strbuf_addf(out, " x %" PRId64, plan->request.gpus);
    mp_strbuf_addstr(out, ".\n");
    mp_strbuf_addstr(out, plan->proven ? "Proof: even the smallest settings (one sequence, every block recomputed) ask for "
                                       : "The smallest settings (one sequence, every block recomputed) ask for ");
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
    const int64_t layers = mp_model_layers(run->model);
    mp_strbuf_addf(out, "Plan: %s on %s", run->model->name, run->gpu->name);
    if (run->world > 1)
        mp_strbuf_addf(out, " x %" PRId64 " (%s)", run->world, mp_parallel_text(run->parallel));
    mp_strbuf_addf(out, ", %" PRId64 " tokens a step.\n", run->batch * run->seq * run->accumulate * run->world);
    mp_strbuf_addf(out, "Micro-batch %" PRId64 ", %s, %s, recompute %d of %" PRId64 " blocks, %s.\n", run->batch, mp_precision_text(run->precision),
                   mp_optimizer_text(run->optimizer), best->n_recomputed, layers,
                   run->allocator_conf[0] ? run->allocator_conf : "allocator as it is");
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
        mp_json_int(w, "recomputed_blocks", o->n_recomputed);
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
