/* SPDX-License-Identifier: MIT */
/* Two ways to put a block together from norms, attention and a feed-forward
 * module. */
#include "arch/arch.h"

struct mp_tensor *mp_apply_pre_norm_block(struct mp_runtime *rt, const struct mp_layer *call,
                                          const struct mp_pre_norm_block *b,
                                          struct mp_tensor *hidden)
{
    struct mp_tensor *residual = NULL, *weights = NULL, *returned;
    const struct mp_dropout_layer none = {0}, before = b->replaces ? b->dropout : none, within = b->replaces ? none : b->dropout;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, b->first));
    mp_let(&f, &hidden, mp_attention_part(rt, call, (union mp_part_forward){.attend = b->attention}, hidden, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &hidden, mp_apply_dropout_layer(rt, hidden, before));
    mp_let(&f, &hidden, mp_add(rt, residual, mp_apply_dropout_layer(rt, hidden, within)));
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, b->second));
    mp_let(&f, &hidden, mp_mlp_part(rt, call, (union mp_part_forward){.feed = b->mlp}, hidden));
    mp_let(&f, &hidden, mp_apply_dropout_layer(rt, hidden, before));
    mp_let(&f, &hidden, mp_add(rt, residual, mp_apply_dropout_layer(rt, hidden, within)));
    return mp_leave(&f, hidden);
}

struct mp_tensor *mp_apply_gpt_block(struct mp_runtime *rt, const struct mp_layer *call,
                                     const struct mp_gpt_block *b, struct mp_tensor *hidden,
                                     struct mp_tensor *mask, struct mp_tensor **weights_out)
{
    struct mp_tensor *residual = NULL, *attended = NULL, *weights = NULL, *fed_forward = NULL,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, b->first));
    mp_let(&f, &attended, mp_masked_attention_part(rt, call, (union mp_part_forward){.attend_masked = b->attention}, hidden, mask, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &hidden, mp_add(rt, attended, residual));
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, b->second));
    mp_let(&f, &fed_forward, mp_mlp_part(rt, call, (union mp_part_forward){.feed = b->mlp}, hidden));
    mp_let(&f, &hidden, mp_add(rt, residual, fed_forward));
    if (weights_out)
        mp_give(&f, weights_out, weights);
    return mp_leave(&f, hidden);
}
