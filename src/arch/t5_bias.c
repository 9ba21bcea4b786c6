/* SPDX-License-Identifier: MIT */
/* T5's relative position bias: distances in buckets, looked up per head. */
#include "arch/t5_bias.h"

static struct mp_tensor *square(struct mp_runtime *rt, int64_t seq, enum mp_dtype dtype)
{
    return mp_empty(rt, MP_SHAPE(seq, seq), dtype);
}

/* The sign of the distance chooses half of the buckets (encoder), or the
 * distance is cut off at zero (decoder). */
static void fold_sign(struct mp_runtime *rt, struct mp_frame *f, bool bidirectional, int64_t seq,
                      struct mp_tensor **position, struct mp_tensor **buckets)
{
    if (bidirectional) {
        struct mp_tensor *positive = square(rt, seq, MP_BOOL);
        struct mp_tensor *wide = square(rt, seq, MP_I64);
        mp_discard(rt, positive);
        struct mp_tensor *scaled = square(rt, seq, MP_I64);
        mp_discard(rt, wide);
        mp_let(f, buckets, square(rt, seq, MP_I64)); /* 0 + that */
        mp_discard(rt, scaled);
        mp_let(f, position, square(rt, seq, MP_I64)); /* abs */
    } else {
        struct mp_tensor *zeros = square(rt, seq, MP_I64);
        struct mp_tensor *minimum = square(rt, seq, MP_I64);
        mp_discard(rt, zeros);
        mp_let(f, position, square(rt, seq, MP_I64)); /* negated */
        mp_discard(rt, minimum);
    }
}

/* max_exact + (log(x / max_exact) / log(max_distance / max_exact) * (n -
 * max_exact)).long(), at most n - 1 */
static struct mp_tensor *large_buckets(struct mp_runtime *rt, int64_t seq)
{
    enum { FLOAT_STEPS = 4 };
    struct mp_tensor *x = square(rt, seq, MP_F32);
    for (int i = 0; i < FLOAT_STEPS; i++) {
        struct mp_tensor *next = square(rt, seq, MP_F32);
        mp_discard(rt, x);
        x = next;
    }
    struct mp_tensor *whole = square(rt, seq, MP_I64);
    mp_discard(rt, x);
    struct mp_tensor *sum = square(rt, seq, MP_I64);
    mp_discard(rt, whole);
    struct mp_tensor *last = square(rt, seq, MP_I64);
    struct mp_tensor *minimum = square(rt, seq, MP_I64);
    mp_discard(rt, last);
    mp_discard(rt, sum);
    return minimum;
}

/* _relative_position_bucket */
static struct mp_tensor *bucket(struct mp_runtime *rt, struct mp_tensor *position,
                                bool bidirectional)
{
    const int64_t seq = mp_dim(position, 0);
    struct mp_tensor *buckets = NULL, *is_small = NULL, *large = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &position);
    fold_sign(rt, &f, bidirectional, seq, &position, &buckets);
    mp_let(&f, &is_small, square(rt, seq, MP_BOOL));
    mp_let(&f, &large, large_buckets(rt, seq));
    struct mp_tensor *chosen = square(rt, seq, MP_I64);
    if (!bidirectional)
        mp_let(&f, &buckets, square(rt, seq, MP_I64)); /* 0 + chosen; otherwise added in place */
    mp_discard(rt, chosen);
    return mp_leave(&f, buckets);
}

struct mp_tensor *mp_t5_bias(struct mp_runtime *rt, struct mp_tensor *table, int64_t seq,
                             bool bidirectional)
{
    static const int heads_first[] = {2, 0, 1};
    struct mp_tensor *context = NULL, *memory = NULL, *position = NULL, *buckets = NULL,
                     *values = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    struct mp_tensor *range = mp_empty(rt, MP_SHAPE(seq), MP_I64);
    mp_let(&f, &context, mp_empty(rt, MP_SHAPE(seq), MP_I64)); /* + past_seen_tokens */
    mp_discard(rt, range);
    mp_let(&f, &memory, mp_empty(rt, MP_SHAPE(seq), MP_I64));
    mp_let(&f, &position, square(rt, seq, MP_I64));
    mp_let(&f, &buckets, bucket(rt, position, bidirectional));
    mp_let(&f, &values, mp_embedding(rt, buckets, table));
    mp_let(&f, &values, mp_unsqueeze(rt, mp_permute(rt, values, 3, heads_first), 0));
    return mp_leave(&f, values);
}
