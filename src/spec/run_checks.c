/* SPDX-License-Identifier: MIT */
/* What keys say together, against model and card: problems, and warnings where the figures hold
 * only so far. */
#include "spec/run_checks.h"

#include <inttypes.h>

#include "spec/run_adapters.h"
#include "spec/run_blocks.h"

/* What is trained is up to the script, not to the file: a checkpoint of one class is often loaded
 * as another. */
static void check_head(struct mp_run_reader *r)
{
    const char *planned;
    const char *const other = mp_model_other_head(r->run->model, &planned);
    if (other != NULL)
        mp_reader_warn(r, mp_arena_printf(r->arena,
                                          "architectures names %.80s; what is planned is %s with "
                                          "the family's %s, which may take more or less",
                                          other, r->run->model->model_type, planned));
}

static void check_precision(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    const bool bf16 =
        run->precision == MP_PRECISION_BF16 || run->precision == MP_PRECISION_AMP_BF16;
    if (bf16 && !run->gpu->bf16)
        mp_reader_warn(
            r, mp_arena_printf(r->arena,
                               "%s has no native bfloat16 (compute capability %d.%d): it is "
                               "emulated and slow, amp-fp16 "
                               "is what such cards are used with",
                               run->gpu->name, run->gpu->compute_capability / 10,
                               run->gpu->compute_capability % 10));
}

static void check_optimizer(struct mp_run_reader *r)
{
    if (r->run->optimizer == MP_OPTIMIZER_PAGED_ADAMW_8BIT)
        mp_reader_warn(
            r,
            "paged-adamw-8bit keeps state of tensors from 100,000 elements up in managed memory, "
            "which moves between host and card and is not counted");
}

/* Memory of experts that run one by one depends on the routing. */
static void check_experts(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    if (run->experts == MP_EXPERTS_GROUPED) {
        if (mp_run_is_given(run, MP_KEY_EXPERT_IMBALANCE))
            mp_problems_add(&r->problems, NULL, "expert_imbalance",
                            "grouped experts do not depend on the routing; give experts: eager or "
                            "leave it out");
        return;
    }
    if (run->expert_imbalance > 1.0)
        mp_reader_warn(
            r, mp_arena_printf(r->arena,
                               "experts run one by one: requested bytes are a bound for routing "
                               "whose busiest expert has at most %g times the mean",
                               run->expert_imbalance));
    else
        mp_reader_warn(
            r, "experts run one by one: this is for balanced routing, --expert-imbalance gives a "
               "bound");
}

void mp_run_check(struct mp_run_reader *r)
{
    check_head(r);
    check_precision(r);
    check_optimizer(r);
    if (r->run->loss != MP_LOSS_FULL)
        mp_reader_refuse_beside(r, "loss", mp_loss_text(r->run->loss));
    if (r->run->optimizer == MP_OPTIMIZER_MUON)
        mp_reader_refuse_beside(r, "optimizer", mp_optimizer_text(r->run->optimizer));
    mp_run_adapters_check(r);
    check_experts(r);
    mp_run_blocks_check(r);
}
